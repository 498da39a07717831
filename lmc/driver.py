"""Source to plan: the only file that knows the order of the compiler's parts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.errors import Location, UsageError

if TYPE_CHECKING:
    from lmc.frontend.arguments import Arguments
    from lmc.ir.core import Program
    from lmc.passes.instruments import Change, Instrument, PassRecord
    from lmc.passes.manager import PassManager
    from lmc.plan import Plan

__all__ = [
    "Compiled", "Options", "changes_of", "compile_function", "optimize", "specializes",
    "trace_function",
]  # fmt: skip

KEPT_VARIANTS = 16  # of a compiled program, for batches whose rows share texts


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        level: 0 nothing, 1 token-exact clean-up, 2 sharing and scheduling, 3 all.
        passes: pipeline text that replaces the level's, as in "canonicalize, cse, dce".
        dump: directory for the graph before and after each pass that changed it.
        defaults: parameters of gens that give none of their own (`frontend.parameters.run_wide`).
        fuse: "statements" appends a straight run of statements as one row (`frontend.fusing`). That
            may change what the model writes, in eager runs too.
        reorder_unordered: put the texts of `lmc.unordered` in the order in which rows share most of
            their prompts. That changes the prompts.
    """

    level: int = 2
    passes: str | None = None
    dump: Path | None = None
    defaults: tuple[tuple[str, Any], ...] = ()
    reorder_unordered: bool = False
    fuse: str | None = None

    def __post_init__(self) -> None:
        if type(self.level) is not int:
            raise UsageError(f"level is {self.level!r}, must be an integer", hint="give 0 to 3")
        if not isinstance(self.passes, str | None):
            raise UsageError(
                f"passes is {self.passes!r}, must be a text", hint='write passes="cse, dce"'
            )
        if self.fuse is not None:
            from lmc.frontend.fusing import checked_fuse

            checked_fuse(self.fuse)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, programs are traced and run with what these options say of the program itself."""
        from lmc.frontend.fusing import fusing
        from lmc.frontend.parameters import run_defaults

        with run_defaults(self.defaults), fusing(self.fuse):
            yield


@dataclass(frozen=True)
class Compiled:
    """A program at each stage: as traced, as optimized, as a plan; and what each pass did."""

    traced: Program
    program: Program
    plan: Plan
    options: Options
    records: tuple[PassRecord, ...]
    _variants: dict[tuple[str | None, ...], Compiled] = field(default_factory=dict, repr=False)

    def knowing(self, known: tuple[str | None, ...]) -> Compiled:
        """The program for rows that have these texts, one for each parameter where not None.

        It is not traced again, and kept: a second batch with these texts compiles nothing. If it
        does not use them, it is this one.
        """
        from lmc.passes.specialize import Specialize

        found = self._variants.get(known)
        if found is None:
            traced = dataclasses.replace(self.traced, known=known)
            found = self
            if known and Specialize().run(traced) is not traced:
                found = _compiled(traced, self.options)
            while len(self._variants) >= KEPT_VARIANTS:
                # another thread may be doing the same
                self._variants.pop(next(iter(self._variants), ()), None)
            self._variants[known] = found
        return found


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
    from lmc.passes.instruments import DumpIR, Timing, VerifyEach

    timing = Timing()
    instruments: list[Instrument] = [timing, VerifyEach()]
    if options.dump is not None:
        instruments.append(DumpIR(options.dump))
    optimized = _manager(options, *instruments).run(program)
    return optimized, tuple(timing.records)


def _manager(options: Options, *instruments: Instrument) -> PassManager:
    from lmc.passes.manager import PassManager

    pipeline = options.level if options.passes is None else options.passes
    manager = PassManager.of(pipeline, instruments)
    return manager.reordering() if options.reorder_unordered else manager


def changes_of(compiled: Compiled) -> tuple[Change, ...]:
    """What each pass was given and made. The passes run again: graphs are not kept for it."""
    from lmc.passes.instruments import Keep

    kept = Keep()
    _manager(compiled.options, kept).run(compiled.traced)
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
    with options.applied():
        traced = trace_function(function, name, arguments, source)
    return _compiled(traced, options)


def _compiled(traced: Program, options: Options) -> Compiled:
    from lmc.codegen.lower import lower

    program, records = optimize(traced, options)
    return Compiled(traced, program, lower(program, options.level), options, records)


def specializes(options: Options) -> bool:
    """Whether a program that is compiled so makes use of what the rows of a batch share."""
    from lmc.passes.specialize import Specialize

    passes = _manager(options).passes
    return any(isinstance(pass_, Specialize) for pass_ in passes)
