"""Exceptions that a program meets while it is traced, and whether values not known cause them."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType
from typing import Any

from lmc.errors import LmcError, Location
from lmc.frontend.handlers import catches_at
from lmc.frontend.location import is_library, is_own, of_code, of_frame
from lmc.frontend.rewrite import NO_SOURCE, is_copy, is_patched, refused, unreadable
from lmc.frontend.symbolic import Source, Text, TextList, is_symbolic, tracing
from lmc.frontend.syntax import Guards, guards

__all__ = ["handled", "watching"]

_OWN = __file__.rpartition("frontend")[0]
_SYNTAX = f"{_OWN}frontend/syntax.py"
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})


@contextmanager
def watching(
    source: Source,
    met: Callable[[BaseException, Location | None], None],
    unseen: Callable[[str, Location], None],
    unread: CodeType | None,
) -> Iterator[None]:
    """Say of each exception that a value which is known might not have raised.

    Symbolic values are no real texts: code that cannot work with them raises, and the program, or
    a library, might catch that. So every exception ends the graph that the program does not raise
    itself, by a `raise` of its own; those that lmc raises on purpose (an index out of range, wrong
    usage) do not count. Whether it is caught afterwards makes no difference.

    Code of the user's that was not rewritten (see `rewrite`) may also ask what nobody records:
    what class a value is of, or whether it is None. That ends the graph, too.

    Args:
        source: the trace that is being made.
        met: told of each exception, with the innermost line of the user's own code.
        unseen: told of what code asks unseen, and where it begins.
        unread: the program's own code, if it was not rewritten.
    """
    all_unread = set() if unread is None else {unread}

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or (kind := _kind(frame)) == "lmc":
            return None
        code = frame.f_code
        if kind == "user" and code.co_filename != _SYNTAX and not is_copy(code):
            back = frame.f_back
            if refused(code, frame.f_globals) or (back is not None and back.f_code in all_unread):
                all_unread.add(code)
            asks = unreadable(code)
            if asks is not None and code in all_unread:
                unseen(f"{asks} in {NO_SOURCE}", of_code(code))
            elif asks is not None and any(_may_fool(v, asks) for v in frame.f_locals.values()):
                unseen(f"{asks} in a function that Python calls by itself", of_code(code))
        frame.f_trace_lines = False
        return local

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception":
            kind, error, trace = arg
            if _suspicious(frame, kind, trace):
                met(error, _user_frame(frame))
        return local

    before = sys.gettrace()
    token, no_guards = tracing.set(source), guards.set(Guards())
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
        guards.reset(no_guards)
        tracing.reset(token)


def handled(end: CodeType) -> bool:
    """Whether an exception might be caught between here and the innermost frame of `end`."""
    run = guards.get()
    if run is not None and run.count > 0:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (code := frame.f_code) is not end:
        if code.co_name == "__del__":  # what it raises is told to nobody
            return True
        if code.co_exceptiontable and not is_own(code.co_filename) and not is_copy(code):
            blocks = not is_patched(code)  # else `guards` counts those that matter
            if catches_at(code, frame.f_lasti, blocks):
                return True
        frame = frame.f_back
    return False


def _kind(frame: FrameType) -> str:
    """Whose code a frame runs: "lmc", "library", or the "user"'s, rewritten syntax included."""
    file = frame.f_code.co_filename
    if file.startswith(_OWN):
        return "user" if file == _SYNTAX else "lmc"
    return "library" if is_library(file) else "user"


def _suspicious(frame: FrameType, kind: type[BaseException], trace: TracebackType | None) -> bool:
    """Whether an exception seen in a frame might be due to a value that is not known."""
    if not issubclass(kind, Exception) or issubclass(
        kind, (StopIteration, StopAsyncIteration, LmcError)
    ):
        return False
    below = trace.tb_next if trace is not None else None
    if _kind(frame) == "library":  # what it catches itself counts if it looked at such a value
        return below is None and any(map(_touches, frame.f_locals.values()))
    if below is None:
        code = frame.f_code
        explicit = dis.opname[code.co_code[frame.f_lasti]] in _RAISES
        return code.co_filename == _SYNTAX or not explicit
    return _kind(below.tb_frame) == "library"


def _touches(value: object) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return any(map(is_symbolic, value))  # type: ignore[call-overload] # one of these
    if type(value) is dict:
        return any(map(is_symbolic, value.values()))
    return is_symbolic(value)


def _may_fool(value: object, asks: str) -> bool:
    """Whether code that asks this of an argument may be told something else than in a run."""
    if asks != "`type()`" and type(value) in (Text, TextList):
        return False  # neither of these is None, or the same as something known
    return is_symbolic(value)


def _user_frame(frame: FrameType | None) -> Location | None:
    """The innermost line of the user's own code."""
    while frame is not None:
        if _kind(frame) == "user" and frame.f_code.co_filename != _SYNTAX:
            return of_frame(frame)
        frame = frame.f_back
    return None
