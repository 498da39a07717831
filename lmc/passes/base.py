"""What a pass is, and how its name and options are spelled."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

from lmc.ir.core import Program

__all__ = ["Pass", "spell_pass"]


class Pass(Protocol):
    """A rewrite of programs: a frozen dataclass whose fields are its options.

    It keeps the meaning (`lmc.ir.interpret`) of every valid program, and it neither logs, dumps,
    times nor verifies: the instruments of the manager do.
    """

    name: ClassVar[str]
    """How pipelines call it."""

    def run(self, program: Program) -> Program:
        """The rewritten program; the same object if there is nothing to do."""


def spell_pass(pass_: Pass) -> str:
    """The pass as a pipeline spells it: its name, and its options where they are not the defaults.

    >>> from lmc.passes.hoist_prefix import HoistPrefix
    >>> spell_pass(HoistPrefix(min_characters=8))
    'hoist-prefix{min-characters=8}'
    """
    assert dataclasses.is_dataclass(pass_), "a pass is a dataclass"
    options = [
        f"{f.name.replace('_', '-')}={getattr(pass_, f.name)}"
        for f in dataclasses.fields(pass_)
        if getattr(pass_, f.name) != f.default
    ]
    return f"{pass_.name}{{{','.join(options)}}}" if options else pass_.name
