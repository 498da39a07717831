"""Reading generated texts back as values of a type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmc.errors import IRError
from lmc.ir.core import Op, Operand, check_type
from lmc.ir.types import TEXT, VALUE, Type, parse_type
from lmc.typed import gives

__all__ = ["Typed"]


@dataclass(frozen=True)
class Typed(Op):
    """The text of a gen as the value that the gen's type reads it back as.

    %n = value.typed %age {type = "int", name = "age"}

    It raises where the gen ran out of tokens. A type with few values gives their text. See
    `lmc/typed.py` for the types.
    """

    op: ClassVar[str] = "value.typed"
    text: Operand
    type: str
    name: str

    def result_types(self) -> tuple[Type, ...]:
        return (parse_type(gives(self.type) or "value"),)

    def result_hints(self) -> tuple[str, ...]:
        return (self.name,)

    def verify(self) -> None:
        check_type(self, "the text", self.text, TEXT, VALUE)
        if gives(self.type) is None:
            raise IRError(f"value.typed: there is no type `{self.type}`")
