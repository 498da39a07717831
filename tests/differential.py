"""Compiled = eager, for one random program: what the property test and the long proof both check.

    python -m tests.differential [PROGRAMS] [SEED] [--done FILE]

runs PROGRAMS random programs (a few hundred by default) in pieces of 50; piece n of a SEED has
always the same programs. With a FILE, the pieces that it names are not run again, so a run that was
interrupted goes on. The end tells how many programs there were, all different ones, and what was in
them; a difference ends the run with the program that shows it.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import lmc
from lmc.errors import LmcError
from lmc.result import Result
from lmc.runtime.results import RowResult
from tests.programs import BODIES, program_of

__all__ = ["SETTINGS", "TEXTS", "Setting", "check_program"]

ARGUMENTS = st.sampled_from(
    ["", "cat", "What is it? ", "the cat sat on the mat", "\u00e9\U0001f642"]
)
TEXTS = st.lists(ARGUMENTS, min_size=1, max_size=5) | st.builds(
    lambda text, n: [text] * n, ARGUMENTS, st.integers(2, 3)
)
"""Of the rows; often the same in all of them, which the compiler then knows."""
TAKES_BACK = re.compile(r"Scratch\(|'vote'")  # what is said and then taken back was said
SETS = re.compile(r"(Put|Naming|Score|Fork)\(")  # gives variables to what was said elsewhere
STEP = re.compile(r"(\w+)\(")  # of a body as text
PIECE = 50  # programs
PHASES = (Phase.generate, Phase.shrink)


@dataclass(frozen=True)
class Setting:
    """How a program is compiled and run.

    Attributes:
        level: of optimization.
        kv_tokens, max_batch_tokens: limits of the engine.
        seed: of the random draws.
        order: of the random order in which rows arrive, some only when others are done.
        fuse: what to fuse.
    """

    level: int
    kv_tokens: int
    max_batch_tokens: int
    seed: int
    order: int
    fuse: str | None = None

    @property
    def options(self) -> lmc.Options:
        """How it is compiled."""
        return lmc.Options(level=self.level, fuse=self.fuse)


SETTINGS = st.builds(
    Setting,
    level=st.sampled_from([0, 1, 2, 3]),
    kv_tokens=st.sampled_from([300, 700, 100_000]) | st.integers(260, 2_000),
    max_batch_tokens=st.sampled_from([3, 17, 512]),
    seed=st.integers(0, 3),
    order=st.integers(0, 99),
    fuse=st.sampled_from([None, None, "statements"]),
)


def meaning(result: Result) -> tuple[object, ...]:
    """All of a result that must be the same."""
    error = result.error and _told(result.error)
    metas = {
        name: getattr(meta, "token_ids", meta and [m and m.token_ids for m in _flat(meta)])
        for name, meta in result._meta.items()
    }
    if error and not result.text:  # the program raised: what it knew by then depends on time
        return (_told(result.value), error)
    return (_told(result.variables), result.text, _told(result.value), error, metas)


def _told(value: Any) -> Any:
    """A value with its errors (of branches that failed) in words: two objects are never equal."""
    if isinstance(value, LmcError):
        return type(value).__name__, value.problem
    if type(value) in (list, tuple):
        return type(value)(map(_told, value))
    if type(value) is dict:
        return {key: _told(held) for key, held in value.items()}
    return value


def _flat(meta: object) -> list[Any]:
    return [x for item in meta for x in _flat(item)] if isinstance(meta, list) else [meta]


@contextmanager
def engine(**options: int) -> Iterator[lmc.Engine]:
    with lmc.Engine("fake", **options) as made:  # type: ignore[arg-type]
        yield made
        made.core.audit()


def check_program(body: tuple[object, ...], texts: Sequence[str], how: Setting) -> None:
    """Run a program in every way, and compare each with rows that run eagerly and alone."""
    program = program_of(body)
    rows = [{"x": text} for text in texts]
    alone = []
    for index, row in enumerate(rows):
        with engine(kv_tokens=how.kv_tokens) as fresh:  # an empty cache, nothing beside it
            alone.append(meaning(_arriving(program, fresh, how, {index: row}, eager=True)[index]))
    with engine(kv_tokens=how.kv_tokens, max_batch_tokens=how.max_batch_tokens) as shared:
        options = how.options
        for ordered in (True, False):  # with a cold cache and a warm one
            results = program.run_batch(
                rows, engine=shared, seed=how.seed, options=options, ordered=ordered
            )
            results.sort(key=lambda result: result.index)
            assert [meaning(r) for r in results] == alone, f"in a batch, {ordered=}"
        for eager in (False, True):
            found = _arriving(program, shared, how, dict(enumerate(rows)), eager=eager)
            told = [meaning(found[index]) for index in range(len(rows))]
            assert told == alone, f"as they arrive, {eager=}"
        if results[0].error is None:
            for eager in (False, True):
                _check_stream(program, shared, how, rows[0], alone[0], body, eager=eager)


def _arriving(
    program: lmc.Program,
    engine: lmc.Engine,
    how: Setting,
    rows: dict[int, dict[str, str]],
    *,
    eager: bool,
) -> dict[int, Result]:
    """The results of rows that arrive one by one in a random order."""
    job = program._job(engine, eager, how.seed, None, how.options)
    draw = random.Random(how.order)
    started: dict[int, Future[Any]] = {}
    for index in draw.sample(sorted(rows), len(rows)):
        if started and draw.random() < 0.3:
            draw.choice(list(started.values())).result(timeout=60)
        done: Future[Any] = Future()
        try:
            job.start(index, rows[index], done.set_result)
        except LmcError as error:  # as a batch takes it
            done.set_result(RowResult(error=error))
        started[index] = done
    found = {n: Result(done.result(timeout=60), n) for n, done in started.items()}
    job.close()
    return found


def _check_stream(
    program: lmc.Program,
    engine: lmc.Engine,
    how: Setting,
    row: dict[str, str],
    alone: tuple[object, ...],
    body: tuple[object, ...],
    *,
    eager: bool,
) -> None:
    options = how.options
    stream = program.stream(engine=engine, seed=how.seed, options=options, eager=eager, **row)
    told = "".join(stream)
    result = stream.result()
    assert meaning(result) == alone, f"streamed, {eager=}"
    if not TAKES_BACK.search(repr(body)):
        assert told == result.text, f"the text of a stream, {eager=}"
    if not SETS.search(repr(body)):
        for name, value in result.variables.items():
            if type(value) is str:
                assert "".join(stream.text(name)).endswith(value), f"streamed {name}, {eager=}"


# ------------------------------------------------------------------------------ the long proof


def run_piece(first: int, piece: int, count: int) -> list[tuple[object, ...]]:
    """Check the programs of one piece; their bodies."""
    bodies: list[tuple[object, ...]] = []

    @seed(first * 1_000_003 + piece)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    @given(body=BODIES, texts=TEXTS, how=SETTINGS)
    def piece_of_it(body: tuple[object, ...], texts: list[str], how: Setting) -> None:
        check_program(body, texts, how)
        bodies.append(body)

    piece_of_it()
    return bodies


def main(arguments: Sequence[str]) -> int:
    """Run pieces until there are enough programs; 1 if one of them shows a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("programs", type=int, nargs="?", default=300)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--done", type=Path, help="file of the pieces that were run")
    given_ = parser.parse_args(arguments)
    done = _read(given_.done)
    started = time.process_time()
    for piece in range(-(-given_.programs // PIECE)):
        if piece in done:
            continue
        bodies = run_piece(given_.seed, piece, PIECE)
        uses = Counter(step for body in map(repr, bodies) for step in set(STEP.findall(body)))
        shown = ",".join(f"{step}={number}" for step, number in sorted(uses.items()))
        done[piece] = line = f"{piece} {len(bodies)} {len(set(map(repr, bodies)))} {shown}"
        if given_.done is not None:
            with given_.done.open("a") as file:
                file.write(line + "\n")
        print(f"piece {piece}: {len(bodies)} programs", file=sys.stderr, flush=True)
    _tell(done, time.process_time() - started)
    return 0


def _read(path: Path | None) -> dict[int, str]:
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return {int(line.split()[0]): line for line in lines}


def _tell(done: dict[int, str], seconds: float) -> None:
    programs = different = 0
    uses: Counter[str] = Counter()
    for line in done.values():
        _, count, distinct, *kinds = line.split()
        programs, different = programs + int(count), different + int(distinct)
        for kind in filter(None, "".join(kinds).split(",")):
            name, _, number = kind.partition("=")
            uses[name] += int(number)
    print(f"{programs} programs, {different} different ones in their pieces: no difference")
    print("with " + ", ".join(f"{name} in {number}" for name, number in uses.most_common()))
    print(f"{seconds:.0f} CPU seconds in this run")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
