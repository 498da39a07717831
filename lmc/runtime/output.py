"""From tokens to text: stop strings, what may be streamed, and where a state may be cut.

Works on bytes: tokens end inside characters, and stop strings begin and end inside tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["TextAssembler", "open_character"]


class TextAssembler:
    """The text of one gen, token by token.

    The text ends before the first stop string in it: of those that a token completes, the one that
    begins first counts, and of two that begin at the same place the one listed first. Bytes that
    are no UTF-8 read as U+FFFD, as tokenizers decode them.

    Attributes:
        stop: the stop string that ended the text, or None.
    """

    __slots__ = (
        "_bytes",
        "_cut",
        "_data",
        "_decoder",
        "_ends",
        "_head",
        "_longest",
        "_stops",
        "_streamed",
        "stop",
    )

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        stops: Sequence[str] = (),
        head: bytes = b"",
    ) -> None:
        """Args:
        token_bytes: what each token id stands for; None for special tokens, which have no text.
        stops: strings that end the text; the sequence is not kept and not changed.
        head: the first bytes of a character that the prompt left open (`open_character`); the text
            begins with that character if the first token goes on with it.
        """
        self._bytes = token_bytes
        self._stops = tuple((stop, stop.encode()) for stop in stops if stop)
        self._longest = max((len(raw) for _, raw in self._stops), default=0)
        self._head = head
        self._data = bytearray()
        self._ends: list[int] = []  # where each token ends in the data
        self._cut: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._streamed = 0
        self.stop: str | None = None

    def push(self, token: int) -> bool:
        """Add a token; returns whether the text has ended at a stop string."""
        raw = self._bytes[token] if token < len(self._bytes) else None
        if raw:
            if self._head and not self._data:
                if raw[0] & 0xC0 == 0x80:
                    self._data += self._head
                else:
                    self._head = b""
            before = len(self._data)
            self._data += raw
            if self._stops:
                self._search(max(0, before - self._longest + 1))
        self._ends.append(len(self._data))
        return self._cut is not None

    def _search(self, start: int) -> None:
        """Look for stop strings from `start` on, where none could have begun and ended before."""
        best = len(self._data)
        for stop, raw in self._stops:
            at = self._data.find(raw, start)
            if 0 <= at < best:
                best, self.stop = at, stop
        if self.stop is not None:
            self._cut = best

    @property
    def text(self) -> str:
        """The text so far, without the stop string."""
        return self._data[: self._cut].decode(errors="replace")

    def split(self) -> tuple[int, str]:
        """How many leading tokens lie wholly before the cut, and the text after them.

        Without a stop string all tokens count, even if the last one ends inside a character. At a
        cut the tokens kept end between two characters.
        """
        if self._cut is None:
            return len(self._ends), ""
        kept = len(self._ends)
        while kept and not self._is_boundary(self._ends[kept - 1]):
            kept -= 1
        begin = self._ends[kept - 1] if kept else min(len(self._head), self._cut)
        return kept, self._data[begin : self._cut].decode(errors="replace")

    def _is_boundary(self, at: int) -> bool:
        """Whether `at` lies before the cut and not inside a character."""
        assert self._cut is not None, "only a cut text is split"
        return at == self._cut or (at < self._cut and self._data[at] & 0xC0 != 0x80)

    def delta(self, *, final: bool = False) -> str:
        """The text that is settled since the last call: whole characters, no part of a stop string.

        Args:
            final: no more tokens come, so nothing is held back. All deltas, the final one
                included, are `text`.
        """
        if self._cut is not None:
            end = self._cut
        elif final:
            end = len(self._data)
        else:
            end = len(self._data) - self._held_back()
        piece = bytes(self._data[self._streamed : end])
        self._streamed = max(self._streamed, end)
        return self._decoder.decode(piece, final)

    def _held_back(self) -> int:
        """The length of the longest end of the data that begins a stop string."""
        tail = bytes(self._data[-(self._longest - 1) :]) if self._longest > 1 else b""
        for length in range(len(tail), 0, -1):
            end = tail[-length:]
            if any(raw.startswith(end) for _, raw in self._stops):
                return length
        return 0


def open_character(raw: bytes) -> bytes:
    """The first bytes of a UTF-8 character at the end of `raw` that is not complete, or nothing.

    >>> open_character("aé".encode()[:-1])
    b'\\xc3'
    """
    tail = raw[-3:]
    for length in range(1, len(tail) + 1):
        lead = tail[-length]
        if lead & 0xC0 == 0x80:
            continue
        wanted = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
        return tail[-length:] if length < wanted else b""
    return b""
