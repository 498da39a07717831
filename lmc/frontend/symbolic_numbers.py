"""Numbers and truth values that are not known yet: seen while tracing, as texts are."""

from __future__ import annotations

import operator
from typing import Any

from lmc.frontend.symbolic import Symbolic, arithmetic

__all__ = ["Bool", "Float", "Int"]


class Bool(Symbolic):
    """A truth value that is not known yet. Asking for it takes one way of a branch."""

    _poses_as = bool

    def __bool__(self) -> bool:
        return self._source.decide(self.value)

    def __index__(self) -> int:
        return int(bool(self))

    __int__ = __index__

    def __float__(self) -> float:
        return float(bool(self))

    def __round__(self, digits: int | None = None) -> int:
        return round(bool(self), digits)

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    def __ne__(self, other: object) -> bool:
        return bool(self) != other

    def __hash__(self) -> int:
        return hash(bool(self))

    def __str__(self) -> str:
        return str(bool(self))

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(bool(self), spec)

    def __invert__(self) -> int:
        return -2 if self else -1  # as ~True and ~False, which Python warns of


def _on_known(name: str) -> None:
    """Give `Bool` an operator: on the way that is taken, the truth value is known."""
    function = getattr(operator, f"__{name}__")

    def method(self: Bool, *others: object) -> Any:
        return function(bool(self), *others)

    def reflected(self: Bool, other: object) -> Any:
        return function(other, bool(self))

    setattr(Bool, f"__{name}__", method)
    if hasattr(int, f"__r{name}__"):
        setattr(Bool, f"__r{name}__", reflected)


for _name in (
    "lt", "le", "gt", "ge", "add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "lshift",
    "rshift", "and", "or", "xor", "neg", "pos", "abs",
):  # fmt: skip
    _on_known(_name)


class Int(Symbolic):
    """A number that is not known yet."""

    _poses_as = int

    def __bool__(self) -> bool:
        return bool(self._source.pure("int.nonzero", self))

    def __index__(self) -> int:
        self._need("the number")

    __int__ = __float__ = __trunc__ = __round__ = __index__

    def _with(self, fn: str, *operands: object) -> Any:
        args = tuple(map(_as_number, operands))
        if not all(type(a) in (int, Int) for a in args):
            if all(isinstance(a, (int, float, complex)) for a in args):
                self._need("arithmetic")
            return NotImplemented
        return self._source.pure(fn, *args)

    def __add__(self, other: object) -> Any:
        return self._with("int.add", self, other)

    def __radd__(self, other: object) -> Any:
        return self._with("int.add", other, self)

    def __sub__(self, other: object) -> Any:
        return self._with("int.sub", self, other)

    def __rsub__(self, other: object) -> Any:
        return self._with("int.sub", other, self)

    def __mul__(self, other: object) -> Any:
        return self._with("int.mul", self, other)

    def __rmul__(self, other: object) -> Any:
        return self._with("int.mul", other, self)

    def __neg__(self) -> Any:
        return self._with("int.sub", 0, self)

    def __pos__(self) -> Int:
        return self

    def __eq__(self, other: object) -> Any:
        return self._with("int.eq", self, other)

    def __ne__(self, other: object) -> Any:
        return self._with("int.ne", self, other)

    __hash__ = Symbolic.__hash__

    def __lt__(self, other: object) -> Any:
        return self._with("int.lt", self, other)

    def __le__(self, other: object) -> Any:
        return self._with("int.le", self, other)

    def __gt__(self, other: object) -> Any:
        return self._with("int.lt", other, self)

    def __ge__(self, other: object) -> Any:
        return self._with("int.le", other, self)


class Float(Symbolic):
    """A number with a fraction that is not known yet."""

    _poses_as = float

    def __bool__(self) -> bool:
        return bool(self._source.pure("float.nonzero", self))

    def __int__(self, *_: object) -> int:
        self._need("the number")

    __float__ = __trunc__ = __round__ = __floor__ = __ceil__ = __int__

    def _with(self, fn: str, *operands: object) -> Any:
        args = tuple(map(_as_number, operands))
        exact = [_as_float(a) for a in args]
        if any(a is None for a in exact):
            if all(isinstance(a, (int, float, complex)) for a in args):
                self._need("arithmetic")
            return NotImplemented
        return self._source.pure(fn, *exact)

    def __add__(self, other: object) -> Any:
        return self._with("float.add", self, other)

    def __radd__(self, other: object) -> Any:
        return self._with("float.add", other, self)

    def __sub__(self, other: object) -> Any:
        return self._with("float.sub", self, other)

    def __rsub__(self, other: object) -> Any:
        return self._with("float.sub", other, self)

    def __mul__(self, other: object) -> Any:
        return self._with("float.mul", self, other)

    def __rmul__(self, other: object) -> Any:
        return self._with("float.mul", other, self)

    def __neg__(self) -> Any:
        return self._with("float.mul", -1.0, self)  # 0.0 has a sign, too

    def __pos__(self) -> Float:
        return self

    def __eq__(self, other: object) -> Any:
        return self._with("float.eq", self, other)

    def __ne__(self, other: object) -> Any:
        return self._with("float.ne", self, other)

    __hash__ = Symbolic.__hash__

    def __lt__(self, other: object) -> Any:
        return self._with("float.lt", self, other)

    def __le__(self, other: object) -> Any:
        return self._with("float.le", self, other)

    def __gt__(self, other: object) -> Any:
        return self._with("float.lt", other, self)

    def __ge__(self, other: object) -> Any:
        return self._with("float.le", other, self)


def _as_number(value: object) -> object:
    """A truth value as the number that arithmetic takes it for; anything else as it is."""
    return int(bool(value)) if type(value) in (bool, Bool) else value


def _as_float(number: object) -> float | Float | None:
    """The number as Python's arithmetic with a float takes it; None if it is none, or inexact."""
    if type(number) in (float, Float):
        return number  # type: ignore[return-value] # one of these
    if type(number) is int and abs(number) <= 2**53:
        return float(number)
    return None


for _name in ("floordiv", "rfloordiv", "truediv", "rtruediv", "mod", "rmod", "divmod", "rdivmod",
              "pow", "rpow", "abs"):  # fmt: skip
    setattr(Float, f"__{_name}__", arithmetic)
for _name in (
    "floordiv", "rfloordiv", "truediv", "rtruediv", "mod", "rmod", "divmod", "rdivmod", "pow",
    "rpow", "abs", "invert", "and", "rand", "or", "ror", "xor", "rxor", "lshift",
    "rlshift", "rshift", "rrshift",
):  # fmt: skip
    setattr(Int, f"__{_name}__", arithmetic)
