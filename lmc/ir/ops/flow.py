"""Terminators: where a way of the program goes on or ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmc.errors import IRError
from lmc.ir.core import Const, Op, Operand, Region, Value, check_type
from lmc.ir.types import BOOL, STATE

__all__ = ["If", "Resume", "Ret"]


@dataclass(frozen=True)
class If(Op):
    """Go on in the first region if the condition holds, else in the second; neither comes back.

    flow.if %c after %r { ... } else { ... }

    After `after` stand values that had to succeed before the condition was asked for, in program
    order: if the condition fails, and one of them does, too, the program raised there.
    """

    op: ClassVar[str] = "flow.if"
    terminator: ClassVar[bool] = True
    condition: Operand
    then: Region
    orelse: Region
    after: tuple[Operand, ...] = ()

    def verify(self) -> None:
        check_type(self, "the condition", self.condition, BOOL)
        _no_states(self, self.after)


@dataclass(frozen=True)
class Resume(Op):
    """Run the rest of the program eagerly, replaying it with the results of its model calls.

    flow.resume (%s1, %a), (%s2, %b) after %r {reason = "int() of a text"}

    The pairs are the (state, result) of every model call made on this way, in program order; after
    `after` stand the results of all tools called on it.
    """

    op: ClassVar[str] = "flow.resume"
    terminator: ClassVar[bool] = True
    calls: tuple[tuple[Operand, Operand], ...] = ()
    reason: str = ""
    after: tuple[Operand, ...] = ()

    def verify(self) -> None:
        for nth, (state, text) in enumerate(self.calls, 1):
            check_type(self, f"the state of call {nth}", state, STATE)
            if text.type == STATE:
                raise IRError(f"flow.resume: the result of call {nth} is a state")
        _no_states(self, self.after)


@dataclass(frozen=True)
class Ret(Op):
    """The end: the final state, the named variables, and what the function returned, if anything.

    ret %s2, {answer = %a, "with space" = %b}, %value after %r

    After `after` stand values that nobody may read but that must not fail, such as the results of
    tools: where one fails, the program raised.
    """

    op: ClassVar[str] = "ret"
    terminator: ClassVar[bool] = True
    state: Value
    names: tuple[str, ...] = ()
    values: tuple[Operand, ...] = ()
    value: Operand = Const(None)  # noqa: RUF009 - frozen
    after: tuple[Operand, ...] = ()

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)
        if len(self.names) != len(self.values):
            raise IRError(f"ret: {len(self.names)} names for {len(self.values)} values")
        for name in sorted({n for n in self.names if self.names.count(n) > 1}):
            raise IRError(f"ret: the variable `{name}` is given twice")
        for name, held in zip(self.names, self.values, strict=True):
            if held.type == STATE:
                raise IRError(f"ret: the variable `{name}` is a state, which no variable can hold")
        if self.value.type == STATE:
            raise IRError("ret: the value is a state, which no program can return")
        _no_states(self, self.after)


def _no_states(op: Op, after: tuple[Operand, ...]) -> None:
    if any(operand.type == STATE for operand in after):
        raise IRError(f"{op.mnemonic}: a state cannot fail, so nothing needs to wait for it")
