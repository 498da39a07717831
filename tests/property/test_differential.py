"""Compiled = eager: the same tokens for every program, level, batch, order and cache state."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmc
from tests.programs import BODIES, program_of

EXAMPLES = int(os.environ.get("LMC_DIFFERENTIAL_EXAMPLES", "150"))
ARGUMENTS = st.sampled_from(["", "cat", "What is it? ", "the cat sat on the mat", "é\U0001f642"])
TAKES_BACK = re.compile(r"Scratch\(|'vote'")  # what is said and then taken back was said
SETS = re.compile(r"(Put|Naming|Score|Fork)\(")  # gives variables to what was said elsewhere


def meaning(result: lmc.Result) -> tuple[object, ...]:
    error = result.error and (type(result.error).__name__, result.error.problem)
    metas = {
        name: getattr(meta, "token_ids", meta and [m and m.token_ids for m in _flat(meta)])
        for name, meta in result._meta.items()
    }
    if error and not result.text:  # the program raised: what it knew by then depends on time
        return (result.value, error)
    return (result.variables, result.text, result.value, error, metas)


def _flat(meta: object) -> list[object]:
    return [x for item in meta for x in _flat(item)] if isinstance(meta, list) else [meta]


@contextmanager
def engine(**options: int) -> Iterator[lmc.Engine]:
    with lmc.Engine("fake", **options) as made:
        yield made
        made.core.audit()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    body=BODIES,
    texts=st.lists(ARGUMENTS, min_size=1, max_size=5),
    level=st.sampled_from([0, 1, 2, 3]),
    kv_tokens=st.sampled_from([300, 700, 100_000]),
    max_batch_tokens=st.sampled_from([3, 17, 512]),
    seed=st.integers(0, 3),
)
def test_compiled_batches_equal_eager_runs_alone(
    body: tuple[object, ...],
    texts: list[str],
    level: int,
    kv_tokens: int,
    max_batch_tokens: int,
    seed: int,
) -> None:
    program = program_of(body)
    rows = [{"x": text} for text in texts]
    alone = []
    for index, row in enumerate(rows):
        with engine() as fresh:  # no cache, nothing beside it
            job = program._job(fresh, True, seed, None, lmc.Options())
            alone.append(meaning(run_at(job, index, row)))
    with engine(kv_tokens=kv_tokens, max_batch_tokens=max_batch_tokens) as shared:
        options = lmc.Options(level=level)
        for _ in ("cold", "warm"):
            results = program.run_batch(rows, engine=shared, seed=seed, options=options)
            assert [meaning(r) for r in results] == alone
        results = program.run_batch(rows, engine=shared, seed=seed, eager=True)
        assert [meaning(r) for r in results] == alone
        if results[0].error is None:
            for eager in (False, True):
                stream = program.stream(
                    engine=shared, seed=seed, options=options, eager=eager, **rows[0]
                )
                told = "".join(stream)
                assert meaning(stream.result()) == alone[0]
                if not TAKES_BACK.search(repr(body)):
                    assert told == results[0].text
                if not SETS.search(repr(body)):
                    for name, value in results[0].variables.items():
                        if type(value) is str:
                            assert "".join(stream.text(name)).endswith(value)


def run_at(job: object, index: int, row: dict[str, str]) -> lmc.Result:
    """Run a single row as if it were row `index` of a batch."""
    from concurrent.futures import Future

    from lmc.result import Result

    done: Future[object] = Future()
    job.start(index, row, done.set_result)  # type: ignore[attr-defined]
    return Result(done.result(timeout=60), index)  # type: ignore[arg-type]
