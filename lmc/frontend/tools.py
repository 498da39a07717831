"""Tools: plain Python functions that a program calls on values that are not known yet.

Inside a program a call is told to the program's recorder; everywhere else a tool is the function
that it was made of.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Protocol

from lmc.errors import Location, UsageError
from lmc.frontend.location import here

__all__ = ["Caller", "Tool", "call", "held_by", "recording", "tool"]

DEFAULT_BACKOFF = 0.5

_PLAIN = (str, int, float, bool, bytes, type(None))
_GIVES: dict[Any, str] = {str: "text", int: "int", float: "float", bool: "bool"}


class Caller(Protocol):
    """What the calls of tools are told to while a program runs or is traced."""

    def call(
        self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: Location | None
    ) -> Any: ...


_recorder: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("recorder", default=None)


@contextlib.contextmanager
def recording(recorder: Caller | None) -> Iterator[None]:
    """Inside, tools that are called are told to `recorder`; with None they are plain functions."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


class Tool:
    """A Python function, sync or async, that programs may call; see `tool` for the options."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        timeout: float | None = None,
        retries: int = 0,
        backoff: float = DEFAULT_BACKOFF,
        pure: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self.pure = pure
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.gives = _gives(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.key: Hashable = (_key(function), timeout, retries, backoff, pure)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder.get()
        if recorder is None:
            return self.function(*args, **kwargs)
        at = here()
        _refuse_states(self, (*args, *kwargs.values()), at)
        return recorder.call(self, args, kwargs, at)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        if instance is None:
            return self
        return self._of(self.function.__get__(instance, owner))

    def _of(self, function: Callable[..., Any]) -> Tool:
        return Tool(
            function,
            timeout=self.timeout,
            retries=self.retries,
            backoff=self.backoff,
            pure=self.pure,
        )

    def __reduce__(self) -> str | tuple[object, ...]:
        """Tools are pickled by reference, as functions are."""
        return self.function.__qualname__

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself; what it calls is not told to anybody."""
        _recorder.set(None)  # in the context of this call
        return self.function(*args, **kwargs)


@typing.overload
def tool(
    function: Callable[..., Any],
    *,
    timeout: float | None = None,
    retries: int = 0,
    backoff: float = DEFAULT_BACKOFF,
    pure: bool = False,
) -> Tool: ...


@typing.overload
def tool(
    function: None = None,
    *,
    timeout: float | None = None,
    retries: int = 0,
    backoff: float = DEFAULT_BACKOFF,
    pure: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    timeout: float | None = None,
    retries: int = 0,
    backoff: float = DEFAULT_BACKOFF,
    pure: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a Python function, sync or async; also as `@lmc.tool(timeout=5)`.

    Args:
        function: takes and returns texts, numbers, truth values, None, and lists and dictionaries
            of these. If it is annotated to return `str`, `int`, `float`, `bool` or `list[str]`, the
            program can go on with the result as with any value of that type; the result is checked.
        timeout: seconds that an attempt may take.
        retries: how often it is tried again after it raised or took too long.
        backoff: seconds before the second attempt; each later pause is twice as long.
        pure: the same arguments give the same result, and nobody sees that it is called. Then a run
            calls it once for equal arguments, and several calls may run at the same time; calls of
            other tools wait for each other, in the order of the program.

    Raises:
        UsageError: an option is out of its range, or it is no function.
    """
    if function is None:
        return functools.partial(tool, timeout=timeout, retries=retries, backoff=backoff, pure=pure)
    at = here()
    if isinstance(function, Tool):
        function = function.function
    if not callable(function) or isinstance(function, type):
        raise UsageError(f"a tool is a function, not {type(function).__name__}", at)
    for name, value, least in (("timeout", timeout, 0), ("backoff", backoff, 0)):
        if name == "timeout" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
            raise UsageError(f"{name} is {value!r}", at, hint=f"give {name}= a number of seconds")
    if type(retries) is not int or retries < 0:
        raise UsageError(f"retries is {retries!r}", at, hint="give 0 or more")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"the tool {function.__name__}() is a generator", at, hint="return a list instead"
        )
    return Tool(function, timeout=timeout, retries=retries, backoff=backoff, pure=bool(pure))


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a Python function as a tool: `lmc.call(search, query, limit=3)`.

    For its options make a tool of it first: `lmc.call(lmc.tool(search, timeout=5), query)`.

    Raises:
        UsageError: it is no function. Inside a program, `ToolError` if it raises.
    """
    made = function if isinstance(function, Tool) else tool(function)
    return made(*args, **kwargs)


def _gives(function: Callable[..., Any]) -> str:
    """The type of a function's results, as the IR writes it; "value" where it is not said."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # annotations may name anything
        return "value"
    wanted = hints.get("return")
    if typing.get_origin(wanted) is list and typing.get_args(wanted) == (str,):
        return "list<text>"
    try:
        return _GIVES.get(wanted, "value")
    except TypeError:  # not hashable
        return "value"


def _key(function: Any) -> Hashable:
    """The same for functions that are the same, made twice by the same code or not."""
    if isinstance(function, types.MethodType):
        return (_key(function.__func__), id(function.__self__))
    if type(function) is not types.FunctionType:
        return id(function)
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    held = (*defaults, *held_by(function))
    return (id(function.__code__), *((type(v), v) if type(v) in _PLAIN else id(v) for v in held))


def held_by(function: Any) -> list[Any]:
    """The values that a function takes from the function around it."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not set yet
            found.append(cell.cell_contents)
    return found


def _refuse_states(made: Tool, args: tuple[Any, ...], at: Location | None) -> None:
    from lmc.frontend.dsl import Appendable, Forks, State

    for arg in args:
        if type(arg) in (State, Forks) or issubclass(type(arg), Appendable):
            raise UsageError(
                f"{made.name}() was given a {type(arg).__name__}, which no tool can take",
                at,
                hint="give it texts and other values of the program",
            )
