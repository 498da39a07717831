"""What watches the passes: checks, dumps and times. They change nothing."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lmc.errors import InternalError, RunError
from lmc.ir.core import Program
from lmc.ir.interpret import HashModel, Meaning, arguments_of, interpret
from lmc.ir.types import TEXT
from lmc.ir.verifier import verify
from lmc.passes.base import Pass, spell_pass
from lmc.passes.reorder_unordered import ReorderUnordered

__all__ = [
    "Change", "CheckMeaning", "DumpIR", "Instrument", "Keep", "PassRecord", "Timing", "VerifyEach",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """What a pass did.

    Attributes:
        stage: place of the pass in the pipeline, from 1.
        pass_: the pass.
        before: what it was given.
        program: what it made; the same object means that it had nothing to do.
        seconds: how long it took.
    """

    stage: int
    pass_: Pass
    before: Program
    program: Program
    seconds: float

    @property
    def changed(self) -> bool:
        """Whether it had something to do."""
        return self.program is not self.before


class Instrument(Protocol):
    """Something that is told what each pass did."""

    def begin(self, program: Program, /) -> None:
        """The program before all passes."""

    def after(self, change: Change, /) -> None:
        """What a pass did; not called for a pass that raised."""


@dataclass(frozen=True)
class VerifyEach:
    """Verifies the program before the first pass and after each pass that changed it."""

    def begin(self, program: Program) -> None:
        verify(program)

    def after(self, change: Change) -> None:
        if change.changed:
            verify(change.program)


@dataclass(frozen=True)
class DumpIR:
    """Writes the program before and after each pass that changed it, and what changed.

    `00-trace.lmir` is the program before all passes; `03-dce.lmir` and `03-dce.diff` come from the
    third pass. Passes that changed nothing leave no files.
    """

    directory: Path

    def begin(self, program: Program) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write("00-trace.lmir", str(program))

    def after(self, change: Change) -> None:
        if not change.changed:
            return
        label = change.pass_.name
        name = f"{change.stage:02}-{label}"
        old, new = (str(p).splitlines(keepends=True) for p in (change.before, change.program))
        self._write(f"{name}.lmir", "".join(new))
        lines = difflib.unified_diff(old, new, f"before {label}", f"after {label}")
        self._write(f"{name}.diff", "".join(lines))

    def _write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Keep:
    """Keeps what each pass was given and made, for reports."""

    changes: list[Change] = field(default_factory=list)

    def begin(self, _: Program) -> None:
        self.changes.clear()

    def after(self, change: Change) -> None:
        self.changes.append(change)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did: its spelling, the time it took, and the nodes before and after."""

    name: str
    seconds: float
    changed: bool
    nodes_before: int
    nodes_after: int


@dataclass(frozen=True)
class Timing:
    """Keeps a record of each pass, for `--time-passes` and `lmc explain`."""

    records: list[PassRecord] = field(default_factory=list)

    def begin(self, _: Program) -> None:
        self.records.clear()

    def after(self, change: Change) -> None:
        counts = [sum(1 for _ in p.walk()) for p in (change.before, change.program)]
        name = spell_pass(change.pass_)
        self.records.append(PassRecord(name, change.seconds, change.changed, *counts))


@dataclass(frozen=True)
class CheckMeaning:
    """Runs the program before and after each pass that changed it against several models.

    Attributes:
        runs: how many models to try.
    """

    runs: int = 8

    def begin(self, _: Program) -> None:
        pass

    def after(self, change: Change) -> None:
        if not change.changed or isinstance(change.pass_, ReorderUnordered):  # it may change it
            return
        for seed in range(self.runs):
            old, new = (_meaning(p, seed) for p in (change.before, change.program))
            if old != new:
                raise InternalError(
                    f"the program means something else than before {change.pass_.name}: "
                    f"with model {seed} it gave {old}, and now gives {new}"
                )


_ANSWERS = ((), ("yes", "no", "", " a, b ", "3"))  # every other model answers like a person
_TEXTS = ("", "a", "A longer text,\nof two lines.", "yes", "3")


def _meaning(program: Program, seed: int) -> Meaning | str:
    """What a program gives with one model, or the error that it ends in."""
    model = HashModel(seed, _ANSWERS[seed % len(_ANSWERS)])
    arguments = [
        _TEXTS[(seed + nth) % len(_TEXTS)] if p.type == TEXT else None
        for nth, p in enumerate(program.params)
    ]
    try:
        return interpret(program, arguments_of(program, arguments), model)
    except RunError as error:
        return f"RunError: {error.problem}"
