"""From tokens to text: stop strings, what may be streamed, and where a state may be cut.

Works on bytes: tokens end inside characters, and stops begin and end inside tokens. What a stop is
and which of several counts is said in `lmc.constraints.stopping`.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator, Sequence

from lmc.constraints.stopping import Stops, StopSearch

__all__ = ["TextAssembler", "open_character"]


class TextAssembler:
    """The text of one gen, token by token.

    The text ends before the first stop in it, wherever the tokens end. Bytes that are no UTF-8 read
    as U+FFFD, as tokenizers decode them, and are searched as such.

    Attributes:
        stop: the stop string, or the pattern, that ended the text; None before.
    """

    __slots__ = (
        "_bytes",
        "_cut",
        "_data",
        "_ends",
        "_head",
        "_search",
        "_searched",
        "_streamed",
        "_unsearched",
        "stop",
    )

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        stops: Stops | None = None,
        head: bytes = b"",
        unsearched: int = 0,
    ) -> None:
        """Args:
        token_bytes: what each token id stands for; None for special tokens, which have no text.
        stops: what ends the text.
        head: the first bytes of a character that the prompt left open (`open_character`); the text
            begins with that character if the first token goes on with it.
        unsearched: so many tokens at the beginning are not searched for stops.
        """
        self._bytes = token_bytes
        self._search = None if stops is None else StopSearch(stops)
        self._unsearched = unsearched
        self._head = head
        self._data = bytearray()
        self._ends: list[int] = []  # where each token ends in the data
        self._searched: int | None = None  # up to where in the data; None before the search begins
        self._cut: int | None = None
        self._streamed = 0
        self.stop: str | None = None

    def push(self, token: int) -> bool:
        """Add a token; returns whether the text has ended at a stop."""
        raw = self._bytes[token] if token < len(self._bytes) else None
        before = len(self._data)
        if raw:
            if self._head and not self._data:
                if raw[0] & 0xC0 == 0x80:
                    self._data += self._head
                else:
                    self._head = b""
            self._data += raw
        end = len(self._data)
        search = self._search
        if search is not None and self._cut is None and len(self._ends) >= self._unsearched:
            if raw and self._searched == before and search.skip_bytes(raw, end):
                self._searched = end
            else:
                self._look(search, before, raw)
        self._ends.append(end)
        return self._cut is not None

    def _look(self, search: StopSearch, before: int, raw: bytes | None) -> None:
        """Search the whole characters that have not been searched yet."""
        if self._searched is None:
            self._searched = before
            search.start(before)
        whole = self._searched == before  # no character was open
        for text, ends in _pieces(self._data, self._searched):
            if search.skip(text, ends[-1]):
                self._searched = ends[-1]
                if raw and whole and ends[-1] - before == len(raw):
                    search.remember(raw)
                whole = False
                continue
            whole = False
            for char, end in zip(text, ends, strict=True):
                self._searched = end
                if search.feed(char, end):
                    self._cut = begin = search.begin
                    stop = self._data[begin:end].decode(errors="replace")
                    self.stop = stop if search.name is None else search.name
                    return

    @property
    def text(self) -> str:
        """The text so far, without the stop."""
        return self._data[: self._cut].decode(errors="replace")

    def split(self) -> tuple[int, str]:
        """How many leading tokens lie wholly before the cut, and the text after them.

        Without a stop all tokens count, even if the last one ends inside a character. At a
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
        """The text that is settled since the last call: whole characters, no part of a stop.

        Args:
            final: no more tokens come, so nothing is held back. All deltas, the final one
                included, are `text`.
        """
        if self._cut is not None:
            end = self._cut
        elif final:
            end = len(self._data)
        elif self._searched is None or self._search is None:
            end = len(self._data) - len(open_character(bytes(self._data[-3:])))
        else:
            end = self._search.earliest(self._searched)
        piece = self._data[self._streamed : end]
        self._streamed = max(self._streamed, end)
        return piece.decode(errors="replace")


def _pieces(data: bytearray, start: int) -> Iterator[tuple[str, Sequence[int]]]:
    """The whole characters from `start` on, and where each ends; U+FFFD for bytes that are none."""
    while start < len(data):
        skipped = 0
        try:
            text, _ = codecs.utf_8_decode(data[start:], "strict", False)
        except UnicodeDecodeError as error:
            text = data[start : start + error.start].decode()
            skipped = error.end - error.start
        if text.isascii():
            ends: Sequence[int] = range(start + 1, start + len(text) + 1)
        else:
            ends = list(itertools.accumulate((len(c.encode()) for c in text), initial=start))[1:]
        if text:
            start = ends[-1]
            yield text, ends
        if not skipped:
            return
        start += skipped
        yield "\ufffd", (start,)


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
