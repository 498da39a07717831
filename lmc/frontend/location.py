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
    "has_programs",
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
_STANDARD, _INSTALLED = (
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib")
)


def here() -> Location | None:
    """Where the innermost caller outside of lmc stands.

    If it is a library, what called it: in `stack.enter_context(s.user())` the line of that, not one
    of `contextlib`.
    """
    frame = caller = _outside(sys._getframe(1))
    while frame is not None and is_library(name := frame.f_code.co_filename):
        if is_own(name):  # what stands beyond has called lmc, not the library
            break
        frame = frame.f_back
    if frame is not None and not is_own(frame.f_code.co_filename):
        caller = frame
    return of_frame(caller) if caller is not None else None


def _outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is none of lmc's."""
    while frame is not None and frame.f_code.co_filename.startswith(_LMC):
        frame = frame.f_back
    return frame


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
    frame = _outside(sys._getframe(1))
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


def has_programs(filename: str) -> None:
    """Note that a source file defines a program.

    A program may be a part of an installed package. What belongs to that package is then the
    user's own code, as it is where the package is developed.
    """
    if is_library(filename) and not is_own(filename):
        real = os.path.realpath(filename)
        if real.startswith(_INSTALLED):
            _programs.add(_package_of(real))
            is_library.cache_clear()


_programs: set[str] = set()
"""Packages and single files among the installed libraries that programs are a part of."""


def _package_of(file: str) -> str:
    """The folder of the outermost package that a file is in, else the file itself."""
    package = file
    while os.path.exists(os.path.join(above := os.path.dirname(package), "__init__.py")):
        package = above
    return package if package == file else package + os.sep


@functools.cache  # asked at every call that a traced program makes
def is_library(filename: str) -> bool:
    """Whether a source file is Python's own or an installed library's."""
    if filename.startswith("<frozen"):
        return True
    real = os.path.realpath(filename)
    return real.startswith((_STANDARD, _INSTALLED)) and not real.startswith(tuple(_programs))


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
