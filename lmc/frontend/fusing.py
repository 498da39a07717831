"""`fuse="statements"`: a straight run of statements is appended as one row, as `+` would put it.

    s += "Name: "
    s += lmc.gen("name", regex=...)      ──►  s += "Name: " + gen(...) + ", age " + gen(...)
    s += ", age "
    s += lmc.gen("age", regex=...)

What may be a part of a template is held back when it is appended, and appended together with what
follows as soon as the program does anything else with a prompt of the run. That is all: it is done
where the program speaks, so eager and compiled runs do the same.

Owns        the statements of a run that are held back, of all of its prompts.
Promises    they are appended in the order in which their prompts began to be held back, before
            anything else is seen or done; none is lost when one fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from lmc.errors import Location, UsageError

__all__ = ["FUSE", "Fusion", "checked_fuse", "fusing", "fusion_of_run"]

FUSE = ("statements",)

_fuse: ContextVar[str | None] = ContextVar("fuse", default=None)

Held = tuple[object, Location | None]


def checked_fuse(fuse: object) -> str | None:
    """What is to be fused, or None.

    Raises:
        UsageError: that cannot be fused.
    """
    if fuse is None or (type(fuse) is str and fuse in FUSE):
        return fuse
    raise UsageError(f"fuse={fuse!r}", hint='use fuse="statements", or leave it out')


@contextlib.contextmanager
def fusing(fuse: str | None) -> Iterator[None]:
    """Inside, programs begin with this option."""
    token = _fuse.set(fuse)
    try:
        yield
    finally:
        _fuse.reset(token)


def fusion_of_run() -> Fusion | None:
    """Where a run that begins now holds statements back; None if it does not."""
    return None if _fuse.get() is None else Fusion()


class Fusion:
    """The statements of a run that are held back; `busy` while they are being appended."""

    def __init__(self) -> None:
        self._held: dict[Any, list[Held]] = {}  # by prompt state
        self.busy = False

    def hold(self, state: object, item: object, at: Location | None) -> None:
        """Append an item to a state later."""
        self._held.setdefault(state, []).append((item, at))

    def flush(self, append: Callable[[Any, list[Held]], None]) -> None:
        """Append all that is held back; `append` takes a state and its items."""
        if self.busy:
            return
        self.busy = True
        try:
            while self._held:
                state = next(iter(self._held))
                append(state, self._held.pop(state))
        finally:
            self.busy = False
