"""No collection of Python's garbage in the middle of a mask.

Masks of new places make many small objects that live on, so that full collections would mostly
begin there: in a process with a million objects each takes a quarter of a second, and a model's
step waits for it. They begin a moment later instead, in the caller's own time; nothing is saved.
"""

from __future__ import annotations

import gc
from types import TracebackType

__all__ = ["Undisturbed"]


class Undisturbed:
    """A context in which no collection begins, if collections are on; for any number of threads."""

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        if self._was_on:
            gc.disable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._was_on:
            gc.enable()
