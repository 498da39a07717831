"""No collection of Python's garbage in the middle of a mask.

Masks of new places make many small objects that live on, so that full collections would mostly
begin there: in a process with a million objects each takes a quarter of a second, and a model's
step waits for it. They begin a moment later instead, in the caller's own time; nothing is saved.

These are functions and no context manager, since making one could itself begin a collection.
"""

from __future__ import annotations

import gc

__all__ = ["pause", "resume"]


def pause() -> bool:
    """Begin no collections until `resume` is called with what is returned; for any thread."""
    was_on = gc.isenabled()
    gc.disable()
    return was_on


def resume(was_on: bool) -> None:
    """Begin collections again, if they were on."""
    if was_on:
        gc.enable()
