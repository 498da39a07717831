"""What the calls do that `rewrite` puts in the place of Python's own syntax.

They decide whether a value is known: if so they do what Python does, else they record it. The
tracer watches the exceptions of this module as those of the program itself.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from lmc.frontend.handlers import catches
from lmc.frontend.location import is_library
from lmc.frontend.symbolic import Text, TextList, Unknown, is_symbolic
from lmc.frontend.symbolic_numbers import Bool, Float, Int

__all__ = ["CALLS", "Guards", "guards"]

_OWN = __file__.rpartition("frontend")[0]


class Guards:
    """How many blocks the code of one run is inside of that might catch an exception.

    A block counts itself off where it counted itself on: a generator that was left inside of one
    may be closed at any time, when another program is traced.
    """

    def __init__(self) -> None:
        self.count = 0


guards: contextvars.ContextVar[Guards | None] = contextvars.ContextVar("guards", default=None)
"""Those of the run that is traced."""


def _called(function: Any) -> Any:
    """The copy of a function that the program calls, if it is the user's own."""
    plain = function.__func__ if type(function) is types.MethodType else function
    if type(plain) is not types.FunctionType:
        return function
    file = plain.__code__.co_filename
    if file.startswith(_OWN) or is_library(file):
        return function
    from lmc.frontend.rewrite import rewritten  # which imports this module

    return rewritten(function)


def _join(separator: Any, items: Any) -> Any:
    if type(separator) is not str:
        return separator.join(items)
    if type(items) is TextList:
        return items._source.pure("list.join", separator, items)
    items = list(items)
    for item in items:
        if type(item) is Text:
            if not all(isinstance(other, str) for other in items):
                break
            between = [part for one in items for part in (separator, one)]
            return item._source.pure("text.concat", *between[1:])
    return separator.join(items)


def _contains(container: Any, item: Any) -> Any:
    if type(item) is Text and isinstance(container, str):
        return item._source.pure("text.contains", container, item)
    if type(container) is Text and isinstance(item, str):
        return container._source.pure("text.contains", container, item)
    return item in container


def _identical(left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if type(one) is Unknown and other is None:
            return one._source.pure("value.none", one)
        if is_symbolic(one) and other is not None and other is not one:
            if type(one) is Bool and type(other) is bool:
                return bool(one) is other
            one._source.need("`is` on a value that is not known yet")
    return left is right


def _fstring(*parts: Any) -> Any:
    done: list[Any] = []
    source = None
    for part in parts:
        if type(part) is not tuple:
            done.append(part)
            continue
        value, conversion, spec = part
        if type(value) in (Text, Int, Float, Unknown) and not spec and conversion in (-1, ord("s")):
            source = value._source
            done.append(_as_text(value))
        elif type(value) is Text and not spec and conversion == ord("r"):
            source = value._source
            done.append(source.pure("text.repr", value))
        elif type(spec) is Text:
            spec._source.need("a format that is not known yet")
        else:
            done.append(format(_CONVERSIONS[conversion](value), spec or ""))
    if source is None:
        return "".join(done)
    return source.pure("text.concat", *done)


_CONVERSIONS: dict[int, Callable[[Any], Any]] = {
    -1: lambda value: value,
    ord("s"): str,
    ord("r"): repr,
    ord("a"): ascii,
}


def _length(value: Any) -> Any:
    if type(value) is Text:
        return value._source.pure("text.length", value)
    if type(value) is TextList:
        return value._source.pure("list.length", value)
    return len(value)


def _as_text(value: Any) -> Any:
    if type(value) is Text:
        return value
    if type(value) is Int:
        return value._source.pure("int.text", value)
    if type(value) is Float:
        return value._source.pure("float.text", value)
    if type(value) is Unknown:
        return value._source.pure("value.text", value)
    return str(value)


def _kind(value: Any) -> Any:
    return value._poses_as if is_symbolic(value) else type(value)


def _matched(value: Any) -> Any:
    """The subject of a `match`, which asks for the type of a value without telling it."""
    parts = value.values() if type(value) is dict else value
    for one in (value, *(parts if type(value) in (list, tuple, dict) else ())):
        if type(one) is Unknown:
            one._source.need("`match` on a value that is not known yet")
    return value


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """Inside, a failed model call would be caught by the program."""
    run = guards.get() or Guards()
    run.count += 1
    try:
        yield
    finally:
        run.count -= 1


class _Guarding:
    """A context manager that may swallow exceptions."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._run = guards.get() or Guards()

    def __enter__(self) -> Any:
        entered = _special(self._manager, "__enter__")()
        self._run.count += 1
        return entered

    def __exit__(self, *raised: Any) -> Any:
        self._run.count -= 1
        return _special(self._manager, "__exit__")(*raised)


def _special(value: Any, name: str) -> Any:
    """A method as the interpreter finds it: of the class, whatever the object itself holds."""
    kind = type(value)
    found = next(vars(cls)[name] for cls in kind.__mro__ if name in vars(cls))
    get = getattr(type(found), "__get__", None)
    return found if get is None else get(found, value, kind)


_HARMLESS = (
    contextlib.nullcontext,
    contextlib.closing,
    contextlib.redirect_stdout,
    contextlib.redirect_stderr,
    type(threading.Lock()),
    type(threading.RLock()),
)


def _entered(manager: Any) -> Any:
    """What a `with` block enters; it may swallow exceptions if nothing says that it does not."""
    kind = type(manager)
    if kind in _HARMLESS or kind.__module__.partition(".")[0] == "lmc":
        return manager
    generator = manager.gen if kind is _FROM_GENERATOR else None
    if type(generator) is types.GeneratorType and not catches(generator.gi_code):
        return manager
    if not all(any(name in vars(cls) for cls in kind.__mro__) for name in _METHODS):
        return manager  # which Python says
    return _Guarding(manager)


_METHODS = ("__enter__", "__exit__")
_FROM_GENERATOR = contextlib._GeneratorContextManager


CALLS: dict[str, Callable[..., Any]] = {
    "called": _called,
    "join": _join,
    "contains": _contains,
    "same": _identical,
    "fstring": _fstring,
    "length": _length,
    "text": _as_text,
    "kind": _kind,
    "matched": _matched,
    "guarded": _guarded,
    "entered": _entered,
}
