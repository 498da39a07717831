"""Let what is the same in all rows of a batch be known when it is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.core import Const, Operand, Program, Value

__all__ = ["Specialize"]


@dataclass(frozen=True)
class Specialize:
    """Put the texts of arguments that are equal in all rows in the place of their parameters.

        program @p(%rules: text, %x: text) {known = ["Be kind.", null]} {
          %s1 = lm.extend %s0, %rules, %x    =>    %s1 = lm.extend %s0, "Be kind.", %x

    What follows from them can then be folded, and is a prefix that all rows share. The parameters
    stay: a row still gives all of its arguments, and whoever runs the program sees to it that the
    known ones are these.

    Tokens stay the same: a text is the same text, whether it is an argument or a constant.

    Running it again changes nothing.
    """

    name: ClassVar[str] = "specialize"

    def run(self, program: Program) -> Program:
        """The program without known parameters, or `program` itself if it uses none."""
        new: dict[Value, Operand] = {
            param: Const(text)
            for param, text in zip(program.params, program.known, strict=False)
            if text is not None
        }
        return program.with_body(program.body.substitute(new))
