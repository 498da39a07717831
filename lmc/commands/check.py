"""`lmc check`: compiled programs against the Python functions they were made from."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmc.commands import options
from lmc.commands.given import Rows, given_arguments
from lmc.commands.made_up import made_up_rows, missing_arguments
from lmc.commands.output import say, shown_value
from lmc.commands.running import How, check_compiles
from lmc.commands.source import load_programs
from lmc.errors import LmcError, RunError, UsageError

if TYPE_CHECKING:
    from lmc.api import Program
    from lmc.driver import Options
    from lmc.engine import Engine
    from lmc.result import Result

__all__ = ["check_command"]

SHOWN = 24  # characters on each side of a difference


def check_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM.py[:NAME]...",
            help="Files, and the function in each; all its programs where none is named.",
        ),
    ],
    arg: options.Arg = None,
    args: options.Args = None,
    batch: options.Batch = None,
    model: options.Model = options.DEFAULT_MODEL,
    device: options.DeviceOption = options.Device.auto,
    dtype: options.DTypeOption = options.DType.auto,
    kv_tokens: options.KVTokens = None,
    tensor_parallel: options.TensorParallel = 1,
    level: options.Level = 2,
    passes: options.Passes = None,
    fuse: options.Fuse = None,
    seed: options.Seed = 0,
    traceback: options.Traceback = False,  # noqa: ARG001 - its callback keeps it
) -> None:
    """Run programs compiled and eagerly on the same rows, and show the first difference of each.

    Both give the same, token by token, unless the function has effects, or reads something that
    changes, between its runs. A row that fails must fail alike both ways. Arguments that are not
    given are made up.
    """
    chosen = options.compile_options(level, passes, fuse=fuse)
    how = How(
        model, device, dtype, kv_tokens, False, seed, chosen, None,
        tensor_parallel=tensor_parallel,
    )  # fmt: skip
    differing = []
    results = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        checks = list(_checks(sources, arg, args, batch))
        for check in checks:
            check_compiles(check.program, check.rows, how)
        with how.engine(checks[0].program.name) as engine:
            for check in checks:
                told, same = _compare(check, engine, chosen)
                say(f"{check.source}: {told}" if len(checks) > 1 else told, results)
                if not same:
                    differing.append(check)
    if differing:
        raise RunError(
            "compiled and eager do not give the same",
            differing[0].program.where,
            hint="a program must do the same each time it runs: no random numbers, clocks or "
            "counters of its own, nothing changed outside",
        )


@dataclass(frozen=True)
class _Check:
    """A program and the rows to check it on; `lines` tells where in a file they stand."""

    source: str
    program: Program
    rows: Rows | list[dict[str, object]]
    made_up: tuple[str, ...] = ()
    lines: Sequence[int] = ()


def _checks(
    sources: Sequence[str], arg: list[str] | None, args: str | None, batch: Path | None
) -> Iterator[_Check]:
    """What is to be checked; all sources are read before anything runs."""
    if args is not None and batch is not None:
        raise UsageError(
            "--args and --batch exclude each other", hint="give what varies by --batch"
        )
    for given_source in sources:
        for source, program in load_programs(given_source).items():
            given = given_arguments(program, arg, args)
            if batch is not None:
                rows = Rows(batch, given)
                yield _Check(source, program, rows, lines=rows.lines)
                continue
            made = made_up_rows(program, given)
            program.arguments(made[0])  # refuses what the program does not take
            yield _Check(source, program, made, tuple(missing_arguments(program, given)))


def _compare(check: _Check, engine: Engine, chosen: Options) -> tuple[str, bool]:
    """What to say of a program, and whether both ways give the same."""
    compiled = check.program.iter_batch(check.rows, engine=engine, options=chosen)
    eager = check.program.iter_batch(check.rows, engine=engine, eager=True, options=chosen)
    count = calls = tokens = failed = 0
    with contextlib.closing(compiled), contextlib.closing(eager):
        for one, other in zip(compiled, eager, strict=True):
            difference = next(_differences(one, other, engine), None)
            if difference is not None:
                place = f"line {check.lines[one.index]}: " if check.lines else ""
                return place + difference.shown(), False
            count += 1
            failed += one.error is not None
            for meta in _metas(one):
                calls += 1
                tokens += meta.completion_tokens
    made_up = f" with a made-up {' and '.join(check.made_up)}" if check.made_up else ""
    alike = f", {failed} of which failed alike" if failed else ""
    return (
        f"{count} row{'s' * (count != 1)}{made_up}{alike}: compiled and eager give the same, "
        f"token by token ({calls} model call{'s' * (calls != 1)} in variables, "
        f"{tokens} token{'s' * (tokens != 1)})\n",
        True,
    )


def _metas(result: Result) -> Iterator[Any]:
    def walk(meta: Any) -> Iterator[Any]:  # noqa: ANN401 - nested lists of CallMeta
        if isinstance(meta, list):
            for item in meta:
                yield from walk(item)
        elif hasattr(meta, "completion_tokens"):
            yield meta

    for meta in result._meta.values():
        yield from walk(meta)


@dataclass(frozen=True)
class _Difference:
    """What is not the same: where, and what stands there both ways."""

    where: str
    compiled: str
    eager: str
    tokens: str = ""

    def shown(self) -> str:
        lines = [
            f"{self.where} is not the same",
            f"  compiled: {self.compiled}",
            f"  eager:    {self.eager}",
        ]
        if self.tokens:
            lines.append(f"  {self.tokens}")
        return "\n".join(lines) + "\n"


def _differences(one: Result, other: Result, engine: Engine) -> Iterator[_Difference]:
    """What differs between the compiled and the eager result, the most telling first."""
    errors = [_told(result) for result in (one, other)]
    if errors[0] != errors[1]:
        yield _Difference("the error", *errors)
    names = list(dict.fromkeys([*one.variables, *other.variables]))
    for name in names:
        mine, theirs = (result.variables.get(name, _MISSING) for result in (one, other))
        metas = one._meta.get(name), other._meta.get(name)
        yield from _of_values(f"the variable {name!r}", mine, theirs, *metas, engine)
    yield from _of_values("the text", one.text, other.text, None, None, engine)
    returned = "the returned value"
    try:
        yield from list(_of_values(returned, one.value, other.value, None, None, engine))
    except Exception:  # it holds itself, or fails when it is compared
        mine, theirs = shown_value(one.value), shown_value(other.value)
        if mine != theirs:
            yield _Difference(returned, mine, theirs)


class _Missing:
    def __repr__(self) -> str:
        return "(not set)"


_MISSING = _Missing()


def _told(result: Result) -> str:
    error = result.error
    return "none" if error is None else f"{type(error).__name__}: {error.problem}"


def _of_values(
    where: str,
    one: Any,  # noqa: ANN401 - any value of a variable
    other: Any,  # noqa: ANN401
    mine: Any,  # noqa: ANN401 - meta, nested as the value is
    theirs: Any,  # noqa: ANN401
    engine: Engine,
) -> Iterator[_Difference]:
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        metas = [m if isinstance(m, list) else [m] * len(one) for m in (mine, theirs)]
        for nth, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _of_values(f"{where}[{nth}]", a, b, metas[0][nth], metas[1][nth], engine)
        return
    tokens = _of_tokens(mine, theirs, engine)
    if isinstance(one, LmcError) and isinstance(other, LmcError):  # of a failed branch
        if str(one) != str(other) or type(one) is not type(other):
            yield _Difference(where, repr(one), repr(other))
    elif isinstance(one, str) and isinstance(other, str):
        if one != other:
            pairs = enumerate(zip(one, other, strict=False))
            at = next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
            here = slice(max(0, at - SHOWN), at + SHOWN)
            yield _Difference(
                f"{where}, from character {at} on,", repr(one[here]), repr(other[here]), tokens
            )
        elif tokens:
            yield _Difference(
                f"{where} is spelled by other tokens: it", repr(one), repr(other), tokens
            )
    elif one != other or type(one) is not type(other):
        yield _Difference(where, repr(one), repr(other), tokens)


def _of_tokens(mine: Any, theirs: Any, engine: Engine) -> str:  # noqa: ANN401 - as above
    """The first token that differs, in words; nothing if there is none."""
    ids = [getattr(meta, "token_ids", ()) for meta in (mine, theirs)]
    for nth, pair in enumerate(itertools.zip_longest(*ids)):
        if pair[0] != pair[1]:
            spelled = [_spelled(token, engine) for token in pair]
            return f"token {nth}: {spelled[0]} compiled, {spelled[1]} eagerly"
    return ""


def _spelled(token: int | None, engine: Engine) -> str:
    if token is None:
        return "none"
    raw = engine.executor.target.tokenizer.token_bytes[token]
    return f"{token} {(raw or b'').decode(errors='replace')!r}"
