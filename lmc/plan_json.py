"""Plans as JSON values, both ways: every dataclass of `lmc.plan` by the names of its fields.

Promises    `decoded(encoded(plan))` equals `plan`; what is read has the types that its class says,
            or is refused.
Not here    the rules that a plan must keep beyond types (`plan_check`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any

from lmc import plan as p
from lmc.params import GenParams
from lmc.plan import Const, Instr, Plan, Reg

__all__ = ["decoded", "encoded"]

T = typing.TypeVar("T")


def encoded(plan: Plan) -> dict[str, Any]:
    """A plan as JSON values."""
    found = _encode(plan)
    assert isinstance(found, dict)
    return found


def decoded(data: dict[str, Any]) -> Plan:
    """The plan that JSON values stand for.

    Raises:
        TypeError, ValueError, RecursionError: they stand for none.
    """
    plan = _decode(Plan, data)
    assert isinstance(plan, Plan)
    return plan


_INSTRS: dict[str, type[Instr]] = {
    cls.op: cls
    for cls in (
        p.Start,
        p.Extend,
        p.Role,
        p.Gen,
        p.Match,
        p.Chain,
        p.Select,
        p.Score,
        p.StateText,
        p.Compute,
        p.HostCall,
        p.Typed,
        p.MakeList,
        p.Pack,
        p.Race,
        p.Pick,
        p.Attempt,
        p.Prefill,
        p.Release,
        p.If,
        p.Resume,
        p.Ret,
    )
}


def _encode(value: object) -> object:
    if isinstance(value, Reg):
        return {"r": value.index}
    if isinstance(value, Const):
        return {"c": value.value}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, GenParams):
        return {k: _encode(v) for k, v in value.non_default().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"op": value.op, **held} if isinstance(value, Instr) else held
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(wanted: Any, data: Any) -> Any:  # noqa: ANN401 - follows the type it is given
    """The value of type `wanted` that JSON values stand for; TypeError or ValueError for none."""
    origin = typing.get_origin(wanted)
    if wanted is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _one_of(list(typing.get_args(wanted)), data)
    if origin is tuple:
        args = typing.get_args(wanted)
        held = _expect(list, data)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(args[0], item) for item in held)
        return tuple(_decode(a, item) for a, item in zip(args, held, strict=True))
    if origin is dict:
        return dict(_expect(dict, data))
    if wanted is Reg:
        return Reg(_expect(int, _only(data, "r")))
    if wanted is Const:
        return Const(_decode(_hints(Const)["value"], _only(data, "c")))
    if wanted is Instr:
        op = _expect(dict, data).get("op")
        if not isinstance(op, str) or op not in _INSTRS:
            raise ValueError(f"there is no instruction {op!r}")
        return _fields(_INSTRS[op], {k: v for k, v in data.items() if k != "op"})
    if dataclasses.is_dataclass(wanted):
        assert isinstance(wanted, type)
        return _fields(wanted, _expect(dict, data))
    return _expect(wanted, data)


def _one_of(options: list[Any], data: Any) -> Any:  # noqa: ANN401 - as `_decode`
    """The value of a union: of plain types, of `Reg` and `Const`, or of one type and None."""
    if data is None and type(None) in options:
        return None
    options = [o for o in options if o is not type(None)]
    if set(options) == {Reg, Const}:
        return _decode(Reg if "r" in _expect(dict, data) else Const, data)
    if len(options) == 1:
        return _decode(options[0], data)
    if not isinstance(data, tuple(options)):
        raise TypeError(f"{_short(data)} is none of {', '.join(o.__name__ for o in options)}")
    return data


def _expect(kind: type[T], data: Any) -> T:  # noqa: ANN401 - JSON values
    """The data, if it is of a JSON type; a truth value is no number, an integer is also a float."""
    if kind is float and type(data) is int:
        if abs(data) > 2**1000:
            raise ValueError("a number is too large")
        return kind(data)  # type: ignore[call-arg] # a float
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise TypeError(f"expected {kind.__name__}, found {_short(data)}")
    return data


def _only(data: Any, key: str) -> Any:  # noqa: ANN401 - JSON values
    if list(_expect(dict, data)) != [key]:
        raise ValueError(f"{_short(data)} is no operand")
    return data[key]


def _short(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields(cls: type, data: dict[str, Any]) -> Any:  # noqa: ANN401 - an instance of `cls`
    """An instance of a dataclass, out of its fields by name."""
    hints, what = _hints(cls), getattr(cls, "op", cls.__name__.lower())
    held = {}
    for f in dataclasses.fields(cls):
        if f.name in data:
            held[f.name] = _decode(hints[f.name], data[f.name])
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{what} has no {f.name!r}")
    for name in data:
        if name not in held:
            raise ValueError(f"{what} has an unknown {name!r}")
    return cls(**held)
