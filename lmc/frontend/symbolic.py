"""Values that are not known yet: texts, numbers, truth values and lists seen while tracing.

A `Text` says that it is a `str` and has its methods, but holds no characters: whatever would read
them fails at once instead of reading something else. Methods that have a pure function in
`lmc.textops` are recorded; every other use raises `NeedsValue`, and the tracer ends the graph
there. Formatting one (`format`, `%`) gives a placeholder, which the trace finds again when the
string reaches a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, SupportsIndex

__all__ = ["Bool", "Int", "NeedsValue", "Source", "Text", "TextList"]


class NeedsValue(BaseException):
    """Tracing cannot go on: the program uses a value that is not known yet.

    Not an `Exception`, so that `except Exception` in a program does not swallow it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Source(Protocol):
    """The trace that symbolic values belong to."""

    def pure(self, fn: str, *args: object) -> Any:
        """The symbolic result of a pure function."""

    def decide(self, value: object) -> bool:
        """Which way the current path takes at a condition."""

    def formatted(self, value: object) -> str:
        """A placeholder made by formatting: it must reach a prompt."""

    def need(self, what: str) -> NoReturn:
        """End the graph here."""


class Text:
    """A text that is not known yet."""

    def __init__(self, source: Source, value: Any) -> None:
        self._source = source
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # `isinstance(x, str)` holds, as it will when the program runs
        return str

    # -- carried along by formatting
    def __str__(self) -> str:
        return self._source.formatted(self.value)

    def __format__(self, spec: str) -> str:
        if spec:
            self._source.need(f"the format {spec!r} of a text that is not known yet")
        return self._source.formatted(self.value)

    def __repr__(self) -> str:
        return self._source.formatted(self._source.pure("text.repr", self).value)

    def __add__(self, other: object) -> Any:
        return self._source.pure("text.concat", self, other) if _text(other) else NotImplemented

    def __radd__(self, other: object) -> Any:
        return self._source.pure("text.concat", other, self) if _text(other) else NotImplemented

    # -- conditions
    def __eq__(self, other: object) -> Any:
        return self._source.pure("text.eq", self, other) if _text(other) else False

    def __ne__(self, other: object) -> Any:
        return self._source.pure("text.ne", self, other) if _text(other) else True

    def __lt__(self, other: str) -> Any:
        return self._source.pure("text.lt", self, other) if _text(other) else NotImplemented

    def __le__(self, other: str) -> Any:
        return self._source.pure("text.le", self, other) if _text(other) else NotImplemented

    def __gt__(self, other: str) -> Any:
        return self._source.pure("text.lt", other, self) if _text(other) else NotImplemented

    def __ge__(self, other: str) -> Any:
        return self._source.pure("text.le", other, self) if _text(other) else NotImplemented

    def __bool__(self) -> bool:
        return bool(self._source.pure("text.nonempty", self))

    def __contains__(self, part: str) -> Any:  # Python calls bool() on it
        return self._source.pure("text.contains", self, part)

    # -- numbers, parts
    def __len__(self) -> int:
        self._source.need("len() of a text that is not known yet")

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        if isinstance(key, slice):
            if key.step not in (None, 1):
                self._source.need("a slice with a step of a text that is not known yet")
            if isinstance(key.start, Int) or isinstance(key.stop, Int):
                self._source.need("a slice whose ends are not known yet")
            stop = key.stop if key.stop is not None else _END
            return self._source.pure("text.slice", self, key.start or 0, stop)
        if not _inside(self._source, key, self._source.pure("text.length", self)):
            raise IndexError("string index out of range")
        return self._source.pure("text.at", self, key)

    def __iter__(self) -> Any:
        self._source.need("the characters of a text that is not known yet")

    def __hash__(self) -> int:
        self._source.need("a text that is not known yet as a key")

    def __int__(self) -> int:
        self._source.need("int() of a text that is not known yet")

    def __float__(self) -> float:
        self._source.need("float() of a text that is not known yet")

    def __index__(self) -> int:
        self._source.need("a text that is not known yet as an index")

    def __mod__(self, _: object) -> Any:
        self._source.need("% on a text that is not known yet")

    def __mul__(self, _: object) -> Any:
        self._source.need("* on a text that is not known yet")

    __rmul__ = __mul__

    def __copy__(self) -> Text:
        return self

    def __deepcopy__(self, _: object) -> Text:
        return self

    def __reduce_ex__(self, _: object) -> Any:
        self._source.need("a copy of a text that is not known yet")

    # -- methods with choices of arguments
    def strip(self, chars: str | None = None) -> Any:
        return self._call("text.strip", "text.strip_chars", chars)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> Any:
        if maxsplit != -1:
            self._source.need("split() with maxsplit of a text that is not known yet")
        if sep is not None and not sep:
            raise ValueError("empty separator")
        return self._call("text.words", "text.split", sep)

    def splitlines(self, keepends: bool = False) -> Any:
        if keepends:
            self._source.need("splitlines(True) of a text that is not known yet")
        return self._source.pure("text.lines", self)

    def join(self, parts: Any) -> Any:
        if isinstance(parts, TextList):
            return self._source.pure("list.join", self, parts)
        return self._source.pure("text.join", self, *parts)

    def _call(self, plain: str, with_argument: str, argument: str | None) -> Any:
        if argument is None:
            return self._source.pure(plain, self)
        return self._source.pure(with_argument, self, argument)


def _inside(source: Source, index: object, length: Int) -> bool:
    """Whether an index lies inside a sequence: both ways are followed where it is not known.

    So the program sees the exception that Python would raise, and may catch it.
    """
    if type(index) is not int:
        source.need("an index that is not known yet")
    return bool(source.pure("int.lt", index, length) if index >= 0 else length >= -index)


_END = 2**62  # a slice end beyond every text


def _text(value: object) -> bool:
    return isinstance(value, str)


def _recorded(fn: str, arity: int) -> Callable[..., Any]:
    def method(self: Text, *args: object, **more: object) -> Any:
        if len(args) + 1 != arity or more or not all(map(_text, args)):
            self._source.need(f"{fn.partition('.')[2]}() with these arguments")
        return self._source.pure(fn, self, *args)

    return method


def _refused(name: str) -> Callable[..., Any]:
    def method(self: Text, *_: object, **__: object) -> Any:
        self._source.need(f"{name}() of a text that is not known yet")

    return method


_SIMPLE = {
    "lstrip": 1, "rstrip": 1, "lower": 1, "upper": 1, "title": 1, "capitalize": 1, "isdigit": 1,
    "replace": 3, "removeprefix": 2, "removesuffix": 2, "find": 2, "count": 2, "startswith": 2,
    "endswith": 2,
}  # fmt: skip
for _name, _arity in _SIMPLE.items():
    setattr(Text, _name, _recorded(f"text.{_name}", _arity))
for _name in dir(str):
    if not _name.startswith("__") and _name not in vars(Text):
        setattr(Text, _name, _refused(_name))


class Bool:
    """A truth value that is not known yet. Asking for it takes one way of a branch."""

    def __init__(self, source: Source, value: object) -> None:
        self._source = source
        self.value = value

    def __bool__(self) -> bool:
        return self._source.decide(self.value)

    def __str__(self) -> str:
        return str(self._source.pure("bool.text", self))

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self._source.pure("bool.text", self), spec)

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    def __hash__(self) -> int:
        return hash(bool(self))

    def __invert__(self) -> Any:
        return self._source.pure("bool.not", self)


class Int:
    """A number that is not known yet."""

    def __init__(self, source: Source, value: object) -> None:
        self._source = source
        self.value = value

    def __str__(self) -> str:
        return str(self._source.pure("int.text", self))

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self._source.pure("int.text", self), spec)

    def __bool__(self) -> bool:
        return bool(self._source.pure("int.nonzero", self))

    def __hash__(self) -> int:
        self._source.need("a number that is not known yet as a key")

    def __index__(self) -> int:
        self._source.need("a number that is not known yet where Python needs it")

    __int__ = __index__

    def __float__(self) -> float:
        self._source.need("a number that is not known yet where Python needs it")

    def _with(self, fn: str, *args: object) -> Any:
        if not all(isinstance(a, (int, Int)) for a in args):
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

    __rmul__ = __mul__

    def __eq__(self, other: object) -> Any:
        return self._with("int.eq", self, other)

    def __ne__(self, other: object) -> Any:
        return self._with("int.ne", self, other)

    def __lt__(self, other: object) -> Any:
        return self._with("int.lt", self, other)

    def __le__(self, other: object) -> Any:
        return self._with("int.le", self, other)

    def __gt__(self, other: object) -> Any:
        return self._with("int.lt", other, self)

    def __ge__(self, other: object) -> Any:
        return self._with("int.le", other, self)


class TextList:
    """A list of texts whose length is not known yet."""

    def __init__(self, source: Source, value: object) -> None:
        self._source = source
        self.value = value

    def __getitem__(self, index: object) -> Any:
        if isinstance(index, slice):
            self._source.need("a slice of a list that is not known yet")
        if not _inside(self._source, index, self._source.pure("list.length", self)):
            raise IndexError("list index out of range")
        return self._source.pure("list.get", self, index)

    def __len__(self) -> int:
        self._source.need("len() of a list that is not known yet")

    def __iter__(self) -> Any:
        self._source.need("the items of a list that is not known yet")

    def __contains__(self, _: object) -> bool:
        self._source.need("`in` on a list that is not known yet")

    def __bool__(self) -> bool:
        self._source.need("the truth of a list that is not known yet")

    def __str__(self) -> str:
        self._source.need("the text of a list that is not known yet")

    __repr__ = __str__
