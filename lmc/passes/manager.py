"""Runs passes one after another, and tells instruments what each did."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmc.errors import InternalError, LmcError, UsageError
from lmc.ir.attributes import suggestion
from lmc.ir.core import Program
from lmc.passes import PASSES, PIPELINES
from lmc.passes.base import Pass, spell_pass
from lmc.passes.instruments import Change, DumpIR, Instrument
from lmc.passes.reorder_unordered import ReorderUnordered
from lmc.passes.specialize import Specialize

__all__ = ["PassManager", "parse_pipeline"]


@dataclass(frozen=True)
class PassManager:
    r"""A pipeline.

    >>> from lmc.ir import parse
    >>> program = parse('program @p() {\n  %s0 = lm.start\n  %s1 = lm.start\n  ret %s1\n}')
    >>> print(PassManager.of("cse,dce").run(program), end="")
    program @p() {
      %s0 = lm.start
      ret %s0
    }

    Attributes:
        passes: in the order in which they run.
        instruments: told after every pass what it did; they may raise.
    """

    passes: tuple[Pass, ...]
    instruments: tuple[Instrument, ...] = ()

    @staticmethod
    def of(pipeline: str | int, instruments: Sequence[Instrument] = ()) -> PassManager:
        """The manager of a pipeline text or of an optimization level.

        Raises:
            UsageError: there is no such level, pass or option.
        """
        if isinstance(pipeline, str):
            passes = parse_pipeline(pipeline)
        elif pipeline in PIPELINES:
            passes = PIPELINES[pipeline]
        else:
            levels = ", ".join(map(str, PIPELINES))
            raise UsageError(f"there is no level {pipeline}", hint=f"levels are {levels}")
        return PassManager(passes, tuple(instruments))

    def reordering(self) -> PassManager:
        """The same with `reorder-unordered`, in front of what would settle the order."""
        first = [pass_ for pass_ in self.passes[:1] if isinstance(pass_, Specialize)]
        rest = self.passes[len(first) :]
        return PassManager((*first, ReorderUnordered(), *rest), self.instruments)

    def __str__(self) -> str:
        """The pipeline text, which `parse_pipeline` reads back."""
        return ",".join(map(spell_pass, self.passes))

    def run(self, program: Program) -> Program:
        """The program after all passes.

        Raises:
            InternalError: a pass raised, or an instrument found fault with what it made. The
                message names the pass, those before it, and the file with the last good graph.
        """
        for instrument in self.instruments:
            instrument.begin(program)
        for stage, pass_ in enumerate(self.passes, 1):
            started = time.perf_counter()
            try:
                after = pass_.run(program)
                seconds = time.perf_counter() - started
                change = Change(stage, pass_, program, after, seconds)
                for instrument in self.instruments:
                    instrument.after(change)
            except Exception as error:  # whatever it is, it is a fault of the pass: say of which
                raise self._fault(stage, pass_, program, error) from error
            program = after
        return program

    def _fault(self, stage: int, pass_: Pass, program: Program, error: Exception) -> InternalError:
        earlier = ",".join(map(spell_pass, self.passes[: stage - 1])) or "none"
        problem = error.problem if isinstance(error, LmcError) else f"{error}"
        kept = self._keep(program)
        return InternalError(
            f"the pass {pass_.name} failed: {type(error).__name__}: {problem}\n"
            f"  passes before it: {earlier}\n"
            f"  last good graph: {kept}",
            program.source,
            hint="a lower level (-O 0) compiles without it",
        )

    def _keep(self, program: Program) -> Path:
        """Write the last good graph where the dumps are, or else among temporary files."""
        dumps = [i.directory for i in self.instruments if isinstance(i, DumpIR)]
        directory = dumps[0] if dumps else Path(tempfile.mkdtemp(prefix="lmc-"))
        path = directory / "last-good.lmir"
        path.write_text(str(program), encoding="utf-8")
        return path


_PASS = re.compile(r"\s*([\w-]+)\s*(?:\{([^}]*)\})?\s*(?:,|$)")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Read a pipeline such as `canonicalize,cse,hoist-prefix{min-characters=8}`.

    Raises:
        UsageError: it is malformed, there is no such pass or option, or a pass comes too late.
    """
    passes: list[Pass] = []
    position, text = 0, text.strip()
    while position < len(text):
        found = _PASS.match(text, position)
        if not found:
            raise UsageError(
                f"cannot read the pipeline from `{text[position:]}`",
                hint="write names with commas between: canonicalize,cse,dce",
            )
        passes.append(_make(found[1], found[2] or ""))
        position = found.end()
    names = [pass_.name for pass_ in passes]
    if (
        "reorder-unordered" in names[names.index("canonicalize") :]
        if "canonicalize" in names
        else ()
    ):
        raise UsageError(
            "reorder-unordered comes too late: canonicalize puts texts in the order given",
            hint="name it before canonicalize",
        )
    return tuple(passes)


def _make(name: str, options: str) -> Pass:
    kinds = {cls.name: cls for cls in PASSES}
    if name not in kinds:
        raise UsageError(f"there is no pass `{name}`", hint=suggestion(name, kinds))
    cls: Any = kinds[name]
    fields = {f.name.replace("_", "-"): f for f in dataclasses.fields(cls)}
    held: dict[str, int] = {}
    for option in filter(None, (o.strip() for o in options.split(","))):
        key, _, value = option.partition("=")
        if key not in fields:
            raise UsageError(f"{name} has no option `{key}`", hint=suggestion(key, fields))
        try:
            held[fields[key].name] = int(value)
        except ValueError:
            raise UsageError(f"{name}: {key} is `{value}`, must be an integer") from None
    made: Pass = cls(**held)
    return made
