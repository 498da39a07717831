"""The pure functions on texts, numbers and lists that programs, graphs and plans share.

One table, `PURE`, names each function once: its argument and result types as the IR writes them
and what it computes on Python values. The tracer records them, `canonicalize` folds them when all
arguments are constants, the runtime executes them. To add one, add a line here.

Types are written as in the IR: `text`, `bool`, `int`, `float`, `list<text>`, `value`; `any` takes
all but states, and a trailing `*` any number of arguments.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["HOST_TYPES", "PURE", "PureFn"]

HOST_TYPES = ("text", "int", "float", "bool", "list<text>", "value")
"""What tools may be said to give; `value` is anything."""


@dataclass(frozen=True, slots=True)
class PureFn:
    """A pure function: argument types, result type, and what it computes."""

    takes: tuple[str, ...]
    gives: str
    compute: Callable[..., Any]

    @property
    def variadic(self) -> bool:
        """Whether the last argument may be repeated any number of times."""
        return bool(self.takes) and self.takes[-1].endswith("*")


def _concat(*parts: str) -> str:
    return "".join(parts)


def _slice(text: str, start: int, stop: int) -> str:
    return text[start:stop]


def _split(text: str, separator: str) -> list[str]:
    return text.split(separator)


def _words(text: str) -> list[str]:
    return text.split()


def _contains(text: str, part: str) -> bool:
    return part in text


def _majority(*texts: str) -> int:
    """The index of the first of the texts that occur most often."""
    counts = Counter(texts)
    return max(range(len(texts)), key=lambda index: (counts[texts[index]], -index))


def _argmax(*numbers: float) -> int:
    """The index of the first of the largest numbers."""
    return max(range(len(numbers)), key=numbers.__getitem__)


def _join(separator: str, *parts: str) -> str:
    return separator.join(parts)


def _is_none(value: object) -> bool:
    return value is None


PURE: dict[str, PureFn] = {
    "text.concat": PureFn(("text*",), "text", _concat),
    "text.join": PureFn(("text", "text*"), "text", _join),
    "text.unordered": PureFn(("text", "text*"), "text", _join),  # a pass may change the order
    "text.copy": PureFn(("text",), "text", str),
    "text.strip": PureFn(("text",), "text", str.strip),
    "text.strip_chars": PureFn(("text", "text"), "text", str.strip),
    "text.lstrip": PureFn(("text",), "text", str.lstrip),
    "text.rstrip": PureFn(("text",), "text", str.rstrip),
    "text.lower": PureFn(("text",), "text", str.lower),
    "text.upper": PureFn(("text",), "text", str.upper),
    "text.title": PureFn(("text",), "text", str.title),
    "text.capitalize": PureFn(("text",), "text", str.capitalize),
    "text.replace": PureFn(("text", "text", "text"), "text", str.replace),
    "text.removeprefix": PureFn(("text", "text"), "text", str.removeprefix),
    "text.removesuffix": PureFn(("text", "text"), "text", str.removesuffix),
    "text.slice": PureFn(("text", "int", "int"), "text", _slice),
    "text.at": PureFn(("text", "int"), "text", operator.getitem),
    "text.split": PureFn(("text", "text"), "list<text>", _split),
    "text.words": PureFn(("text",), "list<text>", _words),
    "text.lines": PureFn(("text",), "list<text>", str.splitlines),
    "text.length": PureFn(("text",), "int", len),
    "text.find": PureFn(("text", "text"), "int", str.find),
    "text.count": PureFn(("text", "text"), "int", str.count),
    "text.eq": PureFn(("text", "text"), "bool", operator.eq),
    "text.ne": PureFn(("text", "text"), "bool", operator.ne),
    "text.lt": PureFn(("text", "text"), "bool", operator.lt),
    "text.le": PureFn(("text", "text"), "bool", operator.le),
    "text.contains": PureFn(("text", "text"), "bool", _contains),
    "text.startswith": PureFn(("text", "text"), "bool", str.startswith),
    "text.endswith": PureFn(("text", "text"), "bool", str.endswith),
    "text.repr": PureFn(("text",), "text", repr),
    "text.isdigit": PureFn(("text",), "bool", str.isdigit),
    "text.majority": PureFn(("text", "text*"), "int", _majority),
    "text.nonempty": PureFn(("text",), "bool", bool),
    "int.add": PureFn(("int", "int"), "int", operator.add),
    "int.sub": PureFn(("int", "int"), "int", operator.sub),
    "int.mul": PureFn(("int", "int"), "int", operator.mul),
    "int.eq": PureFn(("int", "int"), "bool", operator.eq),
    "int.ne": PureFn(("int", "int"), "bool", operator.ne),
    "int.lt": PureFn(("int", "int"), "bool", operator.lt),
    "int.le": PureFn(("int", "int"), "bool", operator.le),
    "int.text": PureFn(("int",), "text", str),
    "int.argmax": PureFn(("int", "int*"), "int", _argmax),
    "float.argmax": PureFn(("float", "float*"), "int", _argmax),
    "int.nonzero": PureFn(("int",), "bool", bool),
    "float.add": PureFn(("float", "float"), "float", operator.add),
    "float.sub": PureFn(("float", "float"), "float", operator.sub),
    "float.mul": PureFn(("float", "float"), "float", operator.mul),
    "float.eq": PureFn(("float", "float"), "bool", operator.eq),
    "float.ne": PureFn(("float", "float"), "bool", operator.ne),
    "float.lt": PureFn(("float", "float"), "bool", operator.lt),
    "float.le": PureFn(("float", "float"), "bool", operator.le),
    "float.text": PureFn(("float",), "text", str),
    "float.nonzero": PureFn(("float",), "bool", bool),
    "value.text": PureFn(("value",), "text", str),
    "value.truth": PureFn(("value",), "bool", bool),
    "value.none": PureFn(("value",), "bool", _is_none),
    "value.eq": PureFn(("any", "any"), "bool", operator.eq),
    "value.ne": PureFn(("any", "any"), "bool", operator.ne),
    "value.get": PureFn(("value", "any"), "value", operator.getitem),
    "bool.not": PureFn(("bool",), "bool", operator.not_),
    "bool.text": PureFn(("bool",), "text", str),
    "list.get": PureFn(("list<text>", "int"), "text", operator.getitem),
    "list.length": PureFn(("list<text>",), "int", len),
    "list.join": PureFn(("text", "list<text>"), "text", str.join),
}
