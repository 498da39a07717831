"""`lmc check`: a compiled program against the Python function it was made from."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmc.commands import options
from lmc.commands.output import say
from lmc.commands.running import How, check_compiles, what_to_run
from lmc.errors import LmcError, RunError, UsageError

if TYPE_CHECKING:
    from lmc.engine import Engine
    from lmc.result import Result

__all__ = ["check_command"]

SHOWN = 24  # characters on each side of a difference


def check_command(
    source: options.Source,
    arg: options.Arg = None,
    args: options.Args = None,
    batch: options.Batch = None,
    model: options.Model = options.DEFAULT_MODEL,
    device: options.DeviceOption = options.Device.auto,
    dtype: options.DTypeOption = options.DType.auto,
    kv_tokens: options.KVTokens = None,
    level: options.Level = 2,
    passes: options.Passes = None,
    seed: options.Seed = 0,
    traceback: options.Traceback = False,  # noqa: ARG001 - its callback keeps it
) -> None:
    """Run a program compiled and eagerly on the same rows, and show the first difference.

    Both give the same, token by token, unless the function has effects, or reads something that
    changes, between its runs. A row that fails must fail alike both ways.
    """
    from lmc.api import Loaded

    chosen = options.compile_options(level, passes)
    what = what_to_run(source, arg, args, batch, False)
    if isinstance(what.program, Loaded):
        raise UsageError(
            f"{source} is an artifact", hint="check the .py file that it was made from"
        )
    how = How(model, device, dtype, kv_tokens, False, seed, chosen, None)
    rows = what.rows if what.rows is not None else [what.arguments]
    results = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        check_compiles(what.program, rows, how)
        with how.engine(what.program.name) as engine:
            compiled = what.program.iter_batch(rows, engine=engine, options=chosen)
            eager = what.program.iter_batch(rows, engine=engine, eager=True)
            count = calls = tokens = failed = 0
            with contextlib.closing(compiled), contextlib.closing(eager):
                for one, other in zip(compiled, eager, strict=True):
                    difference = next(_differences(one, other, engine), None)
                    if difference is not None:
                        place = f"line {what.rows.lines[one.index]}: " if what.rows else ""
                        say(place + difference.shown(), results)
                        raise RunError(
                            "compiled and eager do not give the same",
                            what.program.where,
                            hint="a program must do the same each time it runs: no random numbers, "
                            "clocks or counters of its own, nothing changed outside",
                        )
                    count += 1
                    failed += one.error is not None
                    for meta in _metas(one):
                        calls += 1
                        tokens += meta.completion_tokens
    alike = f", {failed} of which failed alike" if failed else ""
    say(
        f"{count} row{'s' * (count != 1)}{alike}: compiled and eager give the same, "
        f"token by token ({calls} model calls in variables, {tokens} tokens)\n",
        results,
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
    yield from _of_values("the returned value", one.value, other.value, None, None, engine)


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
