"""What `rewrite` does, for functions whose source is not at hand: on their bytecode.

What asks for the characters of a value inside the interpreter becomes `helper[operand]`, as
subscripts are alike in all versions of Python:

    f"<{x}>"     each value and the whole are one
    f(x)         f is, where it is a global name; so are len and str
    with x:      x is
    "-".join(x)  where the separator is written there, it is one with a `join` of its own

The rest does what it did. `is`, `type()` and `match` are left: `rewrite.unreadable` finds them.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dis import opmap
from typing import Any

from lmc.frontend import syntax
from lmc.frontend.assembly import Assembly, Instr, StrangeCodeError, taken_apart

__all__ = ["patched"]

_CONVERSIONS = (-1, ord("s"), ord("r"), ord("a"))
_NULL_FIRST = sys.version_info < (3, 13)  # below the function that is called, else above it
_METHODS_BY_ATTRIBUTE = sys.version_info >= (3, 12)


def patched(code: types.CodeType, space: dict[str, Any]) -> types.CodeType | None:
    """The code with calls in place of what reads values unseen, also in functions inside of it.

    Args:
        code: of a function.
        space: its globals; `len` and `str` may mean something else there.

    Returns:
        None if there is nothing to replace, or the code is not understood.
    """
    try:
        return _patched(code, space)
    except StrangeCodeError:
        return None


def _patched(code: types.CodeType, space: dict[str, Any]) -> types.CodeType | None:
    parts = taken_apart(code)
    inner = [_patched(c, space) if isinstance(c, types.CodeType) else None for c in parts.consts]
    parts.consts = [new or old for new, old in zip(inner, parts.consts, strict=True)]
    patch = _Patch(parts, space)
    patch.run()
    return parts.put_together(deeper=2) if patch.changed or any(inner) else None


class _Helper:
    """`helper[operand]` is a call."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call

    def __getitem__(self, operand: Any) -> Any:
        return self._call(operand)


class _Separator(str):
    """A text with a `join` that knows of values not known yet."""

    __slots__ = ()

    def join(self, items: Iterable[Any]) -> Any:
        return syntax.CALLS["join"](str(self), items)


class _Patch:
    """Replaces instructions of one code, in place."""

    def __init__(self, parts: Assembly, space: dict[str, Any]) -> None:
        self._parts = parts
        self._space = space
        self.changed = False

    def run(self) -> None:
        done: list[Instr] = []
        led_to = self._parts.led_to()
        for instr in self._parts.instrs:
            if self._joins_a_constant(instr, done) and instr not in led_to:
                separator = _Separator(self._parts.consts[done[-1].arg])
                done[-1].arg = self._parts.const(separator)
                self.changed = True
            new = list(self._in_place_of(instr)) or [instr]
            if new != [instr]:
                self._parts.take_over(instr, new[0])
                self.changed = True
            done += new
        self._parts.instrs = done

    def _in_place_of(self, instr: Instr) -> Iterator[Instr]:
        """What replaces an instruction; nothing if it stays."""
        name, arg, line = instr.name, instr.arg, instr.line

        def helped(call: Callable[[Any], Any]) -> Iterator[Instr]:
            yield Instr(opmap["LOAD_CONST"], self._parts.const(_Helper(call)), 0, line)
            yield Instr(opmap["SWAP"], 2, 0, line)
            yield Instr(_SUBSCRIPT.op, _SUBSCRIPT.arg, _SUBSCRIPT.caches, line)

        match name:
            case "FORMAT_VALUE":  # 3.11, 3.12
                if arg & 4:
                    yield Instr(opmap["BUILD_TUPLE"], 2, 0, line)
                yield from helped(_formatter(_CONVERSIONS[arg & 3], with_spec=bool(arg & 4)))
            case "CONVERT_VALUE":
                yield from helped(_formatter(_CONVERSIONS[arg], with_spec=False))
            case "FORMAT_SIMPLE":
                yield from helped(_formatter(-1, with_spec=False))
            case "FORMAT_WITH_SPEC":
                yield Instr(opmap["BUILD_TUPLE"], 2, 0, line)
                yield from helped(_formatter(-1, with_spec=True))
            case "BEFORE_WITH":
                yield from helped(syntax.CALLS["entered"])
                yield instr
            case "BUILD_STRING":
                yield Instr(opmap["BUILD_TUPLE"], arg, 0, line)
                yield from helped(_whole)
            case "LOAD_GLOBAL" if arg & 1:  # a function, which is called
                if _NULL_FIRST:
                    yield Instr(opmap["PUSH_NULL"], 0, 0, line)
                yield Instr(instr.op, arg & ~1, instr.caches, line, wide=instr.wide)
                yield from helped(self._callee(self._parts.code.co_names[arg >> 1]))
                if not _NULL_FIRST:
                    yield Instr(opmap["PUSH_NULL"], 0, 0, line)

    def _callee(self, name: str) -> Callable[[Any], Any]:
        if name in _BUILTINS and name not in self._space:
            return _BUILTINS[name]
        called: Callable[[Any], Any] = syntax.CALLS["called"]
        return called

    def _joins_a_constant(self, instr: Instr, before: list[Instr]) -> bool:
        if not before or before[-1].name != "LOAD_CONST":
            return False
        if _METHODS_BY_ATTRIBUTE:
            named, index = instr.name == "LOAD_ATTR", instr.arg >> 1
        else:
            named, index = instr.name == "LOAD_METHOD", instr.arg
        return (
            named
            and self._parts.code.co_names[index] == "join"
            and type(self._parts.consts[before[-1].arg]) is str
        )


def _formatter(conversion: int, with_spec: bool) -> Callable[[Any], Any]:
    if with_spec:
        return lambda pair: syntax.CALLS["fstring"]((pair[0], conversion, pair[1]))
    return lambda value: syntax.CALLS["fstring"]((value, conversion, None))


def _whole(pieces: tuple[Any, ...]) -> Any:
    return syntax.CALLS["fstring"](*((piece, -1, None) for piece in pieces))


def _with_one_argument(name: str, builtin: Callable[..., Any]) -> Callable[[Any], Any]:
    def call(*args: Any, **more: Any) -> Any:
        return syntax.CALLS[name](*args) if len(args) == 1 and not more else builtin(*args, **more)

    return lambda _: call


_BUILTINS = {"len": _with_one_argument("length", len), "str": _with_one_argument("text", str)}


def _subscript() -> Instr:
    """How a subscript is written here."""
    try:
        instrs = taken_apart((lambda a, b: a[b]).__code__).instrs
    except StrangeCodeError:  # nothing is patched then
        return Instr(0)
    return next(i for i in instrs if i.name == "BINARY_SUBSCR")


_SUBSCRIPT = _subscript()
