"""The user's file and line of a call into lmc."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType

from lmc.errors import Location

__all__ = [
    "here",
    "in_library",
    "is_library",
    "is_own",
    "of_code",
    "of_frame",
    "of_traceback",
    "unwatched",
]

_LMC = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib")}
)


def here() -> Location | None:
    """Where the innermost caller outside of lmc stands."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LMC):
        frame = frame.f_back
    return of_frame(frame) if frame is not None else None


@contextmanager
def unwatched() -> Iterator[None]:
    """Work of lmc's own, done while a program is traced: nobody watches its exceptions."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


def of_code(code: CodeType) -> Location:
    """Where a function begins."""
    return Location(_shown(code.co_filename), code.co_firstlineno)


def of_frame(frame: FrameType) -> Location:
    """The place of a frame; its file is written relative to the working directory if below it."""
    return Location(_shown(frame.f_code.co_filename), frame.f_lineno)


def in_library() -> bool:
    """Whether the innermost caller outside of lmc is Python's own or an installed library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LMC):
        frame = frame.f_back
    return frame is not None and is_library(frame.f_code.co_filename)


def of_traceback(trace: TracebackType | None) -> Location | None:
    """The innermost place of a traceback that is the user's own code, else outside of lmc."""
    best: Location | None = None
    own: Location | None = None
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_LMC):
            best = Location(_shown(name), trace.tb_lineno)
            if not is_library(name):
                own = best
        trace = trace.tb_next
    return own or best


@functools.cache  # asked at every call that a traced program makes
def is_library(filename: str) -> bool:
    """Whether a source file is Python's own or an installed library's."""
    return filename.startswith("<frozen") or os.path.realpath(filename).startswith(_LIBRARIES)


def is_own(filename: str) -> bool:
    """Whether a source file is one of lmc's."""
    return filename.startswith(_LMC)


def _shown(filename: str) -> str:
    try:
        return _relative(filename, os.getcwd())
    except OSError:  # the working directory is gone
        return filename


@functools.lru_cache(maxsize=4096)  # asked at every primitive
def _relative(filename: str, directory: str) -> str:
    if not os.path.isabs(filename):
        return filename
    relative = os.path.relpath(filename, directory)
    return filename if relative.startswith(os.pardir) else relative
