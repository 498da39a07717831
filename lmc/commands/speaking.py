"""`--stream`: variables for people while they come, one after the other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TextIO

from lmc.commands.output import say

if TYPE_CHECKING:
    from lmc.runtime.feed import Piece

__all__ = ["Speaker"]


class Speaker:
    """Writes variables as `name: text`, each from its first piece to its last.

    Of variables that come at the same time the later ones wait. Branches of forks are written as
    `name[0]`. Lines after the first are indented. On a terminal names stand out.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bold = stream.isatty()
        self._turns: deque[tuple[str, list[Piece]]] = deque()  # the first one is being written
        self._begun = False  # whether its name is written
        self.shown: set[str] = set()

    def take(self, piece: Piece) -> None:
        """Write a piece of a variable, now or when it is its turn."""
        if piece.name is None:
            return
        self.shown.add(piece.name)
        label = piece.name + "".join(f"[{index}]" for index in piece.branch)
        for waiting, pieces in self._turns:
            if waiting == label and not (pieces and pieces[-1].finish_reason):
                pieces.append(piece)
                break
        else:
            self._turns.append((label, [piece]))
        self._write()

    def end(self) -> None:
        """Write what still waits: the run is over."""
        while self._turns:
            self._write(last=True)

    def _write(self, *, last: bool = False) -> None:
        while self._turns:
            label, pieces = self._turns[0]
            if not self._begun:
                say(f"\x1b[1;36m{label}\x1b[0m: " if self._bold else f"{label}: ", self._stream)
                self._begun = True
            text = "".join(piece.text for piece in pieces)
            done = last or any(piece.finish_reason for piece in pieces)
            pieces.clear()
            say(text.replace("\n", "\n  ") + "\n" * done, self._stream)
            if not done:
                return
            self._turns.popleft()
            self._begun = False
