"""Calls of plain Python functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmc.errors import IRError
from lmc.ir.attributes import suggestion
from lmc.ir.core import Effect, Op, Operand
from lmc.ir.types import STATE, Type, parse_type
from lmc.textops import HOST_TYPES

__all__ = ["HostCall"]


@dataclass(frozen=True)
class HostCall(Op):
    """A call of a tool: a Python function that is passed in beside the program.

    %v0 = host.call %query, 3 after %a {fn = "search", names = ["limit"]}

    The last arguments are given by `names`. The values after `after` are only waited for: what the
    program had read before. `gives` is the type of the result. A pure call may be moved and merged,
    but not dropped, since it may raise; other calls keep their order, too.
    """

    op: ClassVar[str] = "host.call"
    args: tuple[Operand, ...]
    fn: str
    names: tuple[str, ...] = ()
    gives: str = "value"
    pure: bool = False
    after: tuple[Operand, ...] = ()

    @property
    def effect(self) -> Effect:
        return Effect.PURE if self.pure else Effect.IO

    def result_types(self) -> tuple[Type, ...]:
        return (parse_type(self.gives),)

    def verify(self) -> None:
        for nth, arg in enumerate((*self.args, *self.after), 1):
            if arg.type == STATE:
                raise IRError(f"host.call: argument {nth} is a state, which no tool can take")
        if len(self.names) > len(self.args):
            raise IRError(f"host.call: {len(self.names)} names for {len(self.args)} arguments")
        if len(set(self.names)) != len(self.names):
            raise IRError("host.call: an argument is given twice")
        if self.gives not in HOST_TYPES:
            raise IRError(
                f"host.call: tools give no `{self.gives}`", hint=suggestion(self.gives, HOST_TYPES)
            )
