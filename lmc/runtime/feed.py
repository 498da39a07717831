"""What a run says while it runs: pieces of text, kept for every reader.

One thread writes (the executor's), any number read, each from the beginning and at its own speed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmc.runtime.results import RowResult

__all__ = ["Feed", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text: whole characters, and nothing that may belong to a stop string.

    Attributes:
        name: of the variable; None for the whole prompt.
        branch: of the fork it was set in, the outermost first; empty outside of forks.
        text: what is new; may be empty in a variable's last piece.
        finish_reason: with the last piece of a variable, why it ended; None before.
    """

    name: str | None
    branch: tuple[int, ...]
    text: str
    finish_reason: str | None = None


class Feed:
    """The pieces of one run, in the order they came, and its result."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._result: RowResult | None = None
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self._result is not None

    def put(self, piece: Piece) -> None:
        """Add a piece."""
        with self._changed:
            self._pieces.append(piece)
            self._tell()

    def close(self, result: RowResult) -> None:
        """The run is over."""
        with self._changed:
            self._result = result
            self._tell()

    def _tell(self) -> None:
        self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def wait(self, at: int) -> Piece | RowResult:
        """The piece number `at`, once it is there; the result if there are no more."""
        with self._changed:
            while True:
                found = self._look(at)
                if found is not None:
                    return found
                self._changed.wait()

    def look(self, at: int) -> Piece | RowResult | None:
        """Like `wait`, but None where it would have to wait."""
        with self._changed:
            return self._look(at)

    def _look(self, at: int) -> Piece | RowResult | None:
        return self._pieces[at] if at < len(self._pieces) else self._result

    def result(self) -> RowResult:
        """The result, waiting for it."""
        with self._changed:
            while self._result is None:
                self._changed.wait()
            return self._result

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each change, on the writing thread; it must not block."""
        with self._changed:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Do not call it any more."""
        with self._changed:
            self._listeners.remove(listener)
