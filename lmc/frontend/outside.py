"""Programs that change what they read from outside: noticed while they are traced.

A traced program runs more often than it would eagerly. If it counts its runs in a global, say, the
graph has a count that no eager run would have met. Such a program is no graph: what its traces have
changed is put back, and it runs eagerly.

Owns        what was outside before, between and after the runs of one program.
Promises    what is made once and then kept, as in a cache, is let through, if runs before and after
            were alike.
Costs       a snapshot each time it looks. What cannot be looked into is not noticed: an array, say;
            iterators are only if runs differ.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from lmc.errors import Location, TraceError
from lmc.frontend.dependencies import SHARED, Same, Snapshot, snapshot

__all__ = ["Outside", "refusal"]


class Outside:
    """What a program reads from outside, and the objects that all its runs share, over time."""

    def __init__(self, function: Callable[..., Any], shared: tuple[object, ...]) -> None:
        self._function = function
        self._shared = shared
        self._undo: list[Callable[[], None]] = []
        self._seen = [snapshot(function, shared, self._undo)]

    def look(self) -> None:
        """Note how it is now."""
        self._seen.append(snapshot(self._function, self._shared))

    def change(self) -> str | None:
        """What has changed while it was looked at, in words."""
        return next(filter(None, (_difference(a, b) for a, b in pairwise(self._seen))), None)

    def put_back(self) -> None:
        """Make all of it what it was at first, unless somebody else has changed it since."""
        if snapshot(self._function, self._shared) == self._seen[-1]:
            for put in reversed(self._undo):
                put()

    def used_up(self) -> str | None:
        """What each run leaves behind otherwise, unseen, and cannot be put back: an iterator."""
        name = SHARED
        for part in self._seen[-1]:
            if type(part) is str:
                name = part
            if type(part) is Same and hasattr(type(part.value), "__next__"):
                return _words(name)
        return None

    def last_change(self) -> str | None:
        """What has changed between the last two looks, in words."""
        return _difference(*self._seen[-2:])


def refusal(what: str, source: Location | None) -> TraceError:
    """The error of a program that uses up what lies outside of it."""
    return TraceError(
        f"the program uses up {what}, which lies outside of it, and runs more than once while it is"
        " compiled",
        source,
        hint="pass a list, or call what gives the next one in a tool (@lmc.tool), which runs once;"
        " or run the program eagerly",
    )


def _difference(before: Snapshot, after: Snapshot) -> str | None:
    if before == after or type(before[-1]) is object or type(after[-1]) is object:  # too deep
        return None
    pairs = zip(before, after, strict=False)
    first = next((n for n, (a, b) in enumerate(pairs) if a != b), len(before) - 1)
    name = next((part for part in reversed(before[: first + 1]) if type(part) is str), SHARED)
    return _words(name)


def _words(name: str) -> str:
    return "an object among its arguments" if name == SHARED else f"`{name}`"
