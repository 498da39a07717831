"""Values that are not known yet: texts, lists and others seen while tracing.

They say that they are `str`, `int`, `bool` and `list`, and have their methods, but hold nothing:
whatever would read them fails at once instead of reading something else. What has a pure function
in `lmc.textops` is recorded; every other use raises `NeedsValue`, and the tracer ends the graph.
"""

from __future__ import annotations

import collections.abc
import contextvars
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, SupportsIndex

__all__ = [
    "NeedsValue",
    "Source",
    "Symbolic",
    "Text",
    "TextList",
    "Unknown",
    "arithmetic",
    "is_symbolic",
    "not_while_tracing",
    "tracing",
]


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

    def one_of_few(self, value: object) -> str | None:
        """What a text is on this path, if it can be one of a few; takes a way for each of them."""

    def need(self, what: str) -> NoReturn:
        """End the graph here."""


tracing: contextvars.ContextVar[Source | None] = contextvars.ContextVar("tracing", default=None)
"""The trace that is being made, if one is."""


def not_while_tracing() -> None:
    """End the graph if a program that is traced runs another one: that waits for the run."""
    source = tracing.get()
    if source is not None:
        source.need("another program is run inside of this one")


class Symbolic:
    """Base: a value of a trace."""

    _poses_as: type

    def __init__(self, source: Source, value: Any) -> None:
        self._source = source
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # `isinstance(x, str)` holds while tracing as it will when the program runs
        return self._poses_as

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(self._poses_as, name):
            self._source.need(f"`{name}` of a {self._poses_as.__name__} that is not known yet")
        raise AttributeError(f"{self._poses_as.__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        self._need("the characters")

    def __repr__(self) -> str:
        self._need("the characters")

    def __format__(self, _: str) -> str:
        self._need("the characters")

    def __hash__(self) -> int:
        self._need("the hash")

    def __reduce_ex__(self, _: object) -> Any:
        self._need("a pickled copy")

    def __copy__(self) -> Symbolic:
        return self

    def __deepcopy__(self, _: object) -> Symbolic:
        return self

    def _need(self, what: str) -> NoReturn:
        name = self._poses_as.__name__
        kind = "an int" if name == "int" else f"a {name}"
        self._source.need(f"{what} of {kind} that is not known yet")


class Text(Symbolic):
    """A text that is not known yet.

    Where its characters are needed and it can be one of a few texts (it was selected, say), every
    one of them gets a way of its own, on which the text is known.
    """

    _poses_as = str

    def _known(self, what: str) -> str:
        """The text, where it is needed; ends the trace if it may be any."""
        text = self._source.one_of_few(self.value)
        return self._need(what) if text is None else text

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(str, name):
            return getattr(self._known(f"`{name}`"), name)
        return super().__getattr__(name)

    def __str__(self) -> str:
        return self._known("the characters")

    def __repr__(self) -> str:
        return repr(self._known("the characters"))

    def __format__(self, spec: str) -> str:
        return format(self._known("the characters"), spec)

    def __hash__(self) -> int:
        return hash(self._known("the hash"))

    def __add__(self, other: object) -> Any:
        return self._source.pure("text.concat", self, other) if _text(other) else NotImplemented

    def __radd__(self, other: object) -> Any:
        return self._source.pure("text.concat", other, self) if _text(other) else NotImplemented

    # -- conditions
    def __eq__(self, other: object) -> Any:
        return self._source.pure("text.eq", self, other) if _text(other) else False

    def __ne__(self, other: object) -> Any:
        return self._source.pure("text.ne", self, other) if _text(other) else True

    def __lt__(self, other: object) -> Any:
        return self._source.pure("text.lt", self, other) if _text(other) else NotImplemented

    def __le__(self, other: object) -> Any:
        return self._source.pure("text.le", self, other) if _text(other) else NotImplemented

    def __gt__(self, other: object) -> Any:
        return self._source.pure("text.lt", other, self) if _text(other) else NotImplemented

    def __ge__(self, other: object) -> Any:
        return self._source.pure("text.le", other, self) if _text(other) else NotImplemented

    def __bool__(self) -> bool:
        return bool(self._source.pure("text.nonempty", self))

    def __contains__(self, part: object) -> Any:  # Python calls bool() on it
        if not _text(part):
            self._need("a strange part")
        return self._source.pure("text.contains", self, part)

    # -- numbers, parts
    def __len__(self) -> int:
        return len(self._known("len()"))

    def __getitem__(self, key: Any) -> Any:
        if type(key) is slice:
            if key.step not in (None, 1):
                return self._known("a slice with a step")[key]
            ends = [_plain_end(key.start, 0), _plain_end(key.stop, _END)]
            if None in ends:
                return self._known("a slice with ends that are not known yet")[key]
            return self._source.pure("text.slice", self, *ends)
        if not _inside(self._source, key, self._source.pure("text.length", self)):
            raise IndexError("string index out of range")
        return self._source.pure("text.at", self, key)

    def __iter__(self) -> Any:
        return iter(self._known("the characters"))

    def __int__(self) -> int:
        return int(self._known("int()"))

    def __float__(self) -> float:
        return float(self._known("float()"))

    def __mod__(self, values: Any) -> Any:
        return self._known("%") % values

    def __rmod__(self, _: object) -> Any:
        self._need("%")

    def __mul__(self, times: Any) -> Any:
        return self._known("*") * times

    __rmul__ = __mul__

    # -- methods with choices of arguments
    def strip(self, chars: str | None = None) -> Any:
        return self._call("text.strip", "text.strip_chars", chars)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> Any:
        if maxsplit != -1:
            return self._known("split() with maxsplit").split(sep, maxsplit)
        if sep is not None and _text(sep) and not sep:
            raise ValueError("empty separator")
        return self._call("text.words", "text.split", sep)

    def splitlines(self, keepends: bool = False) -> Any:
        if keepends:
            return self._known("splitlines(True)").splitlines(keepends)
        return self._source.pure("text.lines", self)

    def join(self, parts: Any) -> Any:
        if type(parts) is TextList:
            return self._source.pure("list.join", self, parts)
        parts = list(parts)
        if not all(map(_text, parts)):
            self._need("join() of strange parts")
        return self._source.pure("text.join", self, *parts)

    def _call(self, plain: str, with_argument: str, argument: str | None) -> Any:
        if argument is None:
            return self._source.pure(plain, self)
        if not _text(argument):
            self._need("a method with a strange argument")
        return self._source.pure(with_argument, self, argument)


_END = 2**62  # a slice end beyond every text


def _plain_end(end: object, default: int) -> int | None:
    """The end of a slice, if it is known."""
    if end is None:
        return default
    return end if type(end) is int else None


def _inside(source: Source, index: object, length: Any) -> bool:
    """Whether an index lies inside a sequence: both ways are followed where it is not known.

    So the program sees the exception that Python would raise, and may catch it.
    """
    if type(index) is not int:
        source.need("an index that is not known yet")
    return bool(source.pure("int.lt", index, length) if index >= 0 else length >= -index)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _recorded(fn: str, arity: int) -> Callable[..., Any]:
    def method(self: Text, *args: object, **more: object) -> Any:
        if len(args) + 1 != arity or more or not all(map(_text, args)):
            name = fn.partition(".")[2]
            return getattr(self._known(f"{name}() with these arguments"), name)(*args, **more)
        return self._source.pure(fn, self, *args)

    return method


_SIMPLE = {
    "lstrip": 1, "rstrip": 1, "lower": 1, "upper": 1, "title": 1, "capitalize": 1, "isdigit": 1,
    "replace": 3, "removeprefix": 2, "removesuffix": 2, "find": 2, "count": 2, "startswith": 2,
    "endswith": 2,
}  # fmt: skip
for _name, _arity in _SIMPLE.items():
    setattr(Text, _name, _recorded(f"text.{_name}", _arity))


def arithmetic(self: Symbolic, *_: object) -> Any:
    """A method for operators that are not recorded."""
    self._need("arithmetic")


class TextList(Symbolic):
    """A list of texts whose length is not known yet."""

    _poses_as = list

    def __getitem__(self, index: object) -> Any:
        if type(index) is slice:
            self._need("a slice")
        if not _inside(self._source, index, self._source.pure("list.length", self)):
            raise IndexError("list index out of range")
        return self._source.pure("list.get", self, index)

    def __len__(self) -> int:
        self._need("len()")

    def __bool__(self) -> bool:
        return bool(self._source.pure("int.nonzero", self._source.pure("list.length", self)))

    def __iter__(self) -> Any:
        self._need("the items")

    def __contains__(self, _: object) -> bool:
        self._need("`in`")

    def __eq__(self, _: object) -> bool:
        self._need("a comparison")

    def __ne__(self, _: object) -> bool:
        self._need("a comparison")

    __hash__ = Symbolic.__hash__

    def __add__(self, _: object) -> Any:
        self._need("+")

    __radd__ = __mul__ = __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = __reversed__ = __add__


collections.abc.Sequence.register(TextList)  # so that `case [a, b]:` asks for its length


class Unknown(Symbolic):
    """A value of which not even the type is known yet, such as the result of a tool."""

    @property
    def _poses_as(self) -> type:  # type: ignore[override]
        self._need("the type")

    def _need(self, what: str) -> NoReturn:
        self._source.need(f"{what} of a value that is not known yet")

    def __getattr__(self, name: str) -> Any:
        self._need(f"`{name}`")

    def __bool__(self) -> bool:
        return bool(self._source.pure("value.truth", self))

    def __eq__(self, other: object) -> Any:
        return self._compared("value.eq", other)

    def __ne__(self, other: object) -> Any:
        return self._compared("value.ne", other)

    __hash__ = Symbolic.__hash__

    def _compared(self, fn: str, other: object) -> Any:
        if not is_symbolic(other) and type(other) not in (str, int, float, bool, type(None)):
            self._need("a comparison")
        return self._source.pure(fn, self, other)

    def __getitem__(self, key: object) -> Any:
        if not is_symbolic(key) and type(key) not in (str, int):
            self._need("an item")
        return self._source.pure("value.get", self, key)

    def __len__(self) -> int:
        self._need("len()")

    def __iter__(self) -> Any:
        self._need("the items")

    def __contains__(self, _: object) -> bool:
        self._need("`in`")

    def __call__(self, *_: object, **__: object) -> Any:
        self._need("a call")

    def __index__(self) -> int:
        self._need("the number")

    __int__ = __float__ = __complex__ = __trunc__ = __floor__ = __ceil__ = __index__

    def __round__(self, _: object = None) -> Any:
        self._need("the number")

    def __reversed__(self) -> Any:
        self._need("the items")


for _name in (
    "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv",
    "truediv", "rtruediv", "mod", "rmod", "divmod", "rdivmod", "pow", "rpow", "neg", "pos", "abs",
    "invert", "and", "rand", "or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift", "rrshift",
):  # fmt: skip
    setattr(Unknown, f"__{_name}__", arithmetic)

# so that `case {"key": x}:` asks for its keys; `match` itself does not ask for the type
collections.abc.Mapping.register(Unknown)


def is_symbolic(value: object) -> bool:
    """Whether a value belongs to a trace; `isinstance` would be told otherwise."""
    return issubclass(type(value), Symbolic)
