"""Source to plan: the only file that knows the order of the compiler's parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.errors import Location

if TYPE_CHECKING:
    from lmc.frontend.arguments import Arguments
    from lmc.ir.core import Program
    from lmc.passes.instruments import Change, PassRecord
    from lmc.plan import Plan

__all__ = [
    "Compiled", "Options", "changes_of", "compile_function", "optimize", "trace_function",
]  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        level: 0 nothing, 1 token-exact clean-up, 2 sharing and scheduling, 3 all.
        passes: pipeline text that replaces the level's, as in "canonicalize, cse, dce".
        dump: directory for the graph before and after each pass that changed it.
        defaults: parameters of gens that give none of their own (`frontend.parameters.run_wide`).
    """

    level: int = 2
    passes: str | None = None
    dump: Path | None = None
    defaults: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A program at each stage: as traced, as optimized, as a plan; and what each pass did."""

    traced: Program
    program: Program
    plan: Plan
    options: Options
    records: tuple[PassRecord, ...]


def trace_function(
    function: Callable[..., object], name: str, arguments: Arguments, source: Location | None
) -> Program:
    """The graph of a Python function, not optimized.

    Raises:
        TraceError, UsageError: the program is wrong.
    """
    from lmc.frontend.tracer import trace

    return trace(function, name, arguments, source)


def optimize(program: Program, options: Options) -> tuple[Program, tuple[PassRecord, ...]]:
    """The graph after the passes, and what each of them did.

    Raises:
        UsageError: there is no such level, pass or option.
        InternalError: a pass is at fault.
    """
    from lmc.passes.instruments import DumpIR, Instrument, Timing, VerifyEach
    from lmc.passes.manager import PassManager

    timing = Timing()
    instruments: list[Instrument] = [timing, VerifyEach()]
    if options.dump is not None:
        instruments.append(DumpIR(options.dump))
    optimized = PassManager.of(_pipeline(options), instruments).run(program)
    return optimized, tuple(timing.records)


def _pipeline(options: Options) -> str | int:
    return options.level if options.passes is None else options.passes


def changes_of(compiled: Compiled) -> tuple[Change, ...]:
    """What each pass was given and made. The passes run again: graphs are not kept for it."""
    from lmc.passes.instruments import Keep
    from lmc.passes.manager import PassManager

    kept = Keep()
    PassManager.of(_pipeline(compiled.options), [kept]).run(compiled.traced)
    return tuple(kept.changes)


def compile_function(
    function: Callable[..., object],
    name: str,
    arguments: Arguments,
    source: Location | None,
    options: Options,
) -> Compiled:
    """Trace, optimize and lower a Python function.

    Raises:
        LmcError: the program, one of its constraints, or the pipeline is wrong.
    """
    from lmc.codegen.lower import lower
    from lmc.frontend.parameters import run_defaults

    with run_defaults(options.defaults):
        traced = trace_function(function, name, arguments, source)
    program, records = optimize(traced, options)
    return Compiled(traced, program, lower(program, options.level), options, records)
