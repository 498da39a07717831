"""Which tokens may come at each place of an automaton, kept as they are asked for.

Owns        the masks, steps and forced tokens of one automaton over one vocabulary.
Promises    equal rows are one array, shared with all other constraints of the vocabulary. Safe for
            threads: entries are computed under the machine's lock or are the same whoever makes
            them.
Costs       a mask that is kept is a dictionary look-up; a new one is a walk of the trie.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmc.constraints.closing import Closer
from lmc.constraints.forcing import Forced, Path, forced_text, forced_tokens, last, settled
from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.spelling_out import Speller, spells_all
from lmc.constraints.walking import walk

if TYPE_CHECKING:
    from lmc.constraints.vocabulary import Vocabulary

__all__ = ["MaskArray", "TokenTable"]

MaskArray = npt.NDArray[np.bool_]

_MOST_ROWS = 2048  # different rows that one table keeps; at 49,000 tokens a row is 49 KB
_MOST_STEPS = 200_000
_RECENT = 3  # tokens before a place that decide how what follows is cut
_ORDINARY = 16  # bytes; hardly one token of a hundred is longer


class TokenTable:
    """See the module's text. Made by `Vocabulary.table`."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        # Not to keep the machine alive: it is what keeps the table alive, see `Vocabulary.table`.
        # Who calls holds the machine.
        self.machine: Machine = weakref.proxy(machine)
        self.vocabulary = vocabulary
        self._masks: dict[int, MaskArray] = {}
        self._short: dict[int, MaskArray] = {}
        self._held: dict[int, MaskArray] = {}
        self._steps: dict[tuple[int, int], int] = {}
        self._forced: dict[int, Forced] = {}
        self._remaining: dict[int, str | None] = {}
        self._forced_after: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        whole = spells_all(machine, vocabulary)
        self.speller = None if whole else Speller(self.machine, vocabulary)
        self.closer = Closer(self.machine, vocabulary)
        self.nothing = vocabulary.shared_row(np.zeros(len(vocabulary), dtype=np.bool_))

    def mask(self, place: int) -> MaskArray:
        """The tokens that may come next, bool, shape (vocabulary,), read-only."""
        row = self._masks.get(place)
        if row is None:
            row = self._text_row(place)
            if self.machine.accepts(place) and self.vocabulary.eos:
                row = row.copy()
                row[list(self.vocabulary.eos)] = True
                row = self.vocabulary.shared_row(row)
            self._held[id(row)] = row
            if len(self._held) > _MOST_ROWS:
                self._held.clear()
                self._masks.clear()
                self._short.clear()
            self._masks[place] = row
        return row

    def _text_row(self, place: int) -> MaskArray:
        """The tokens that are text and may come next."""
        trie = self.vocabulary.trie
        if self.speller is not None:
            return self.vocabulary.shared_row(self.speller.allowed(place))
        # Far from the bounds of counters, what tokens of ordinary length may come does not depend
        # on the count; the few that are longer are walked for every count.
        wide = self.machine.widened(place, _ORDINARY)
        if wide == place:
            return self.vocabulary.shared_row(walk(self.machine, trie, place))
        short = self._short.get(wide)
        if short is None:
            short = self._short[wide] = walk(self.machine, trie, wide, up_to=_ORDINARY)
        longer = walk(self.machine, trie, place, above=_ORDINARY)
        return self.vocabulary.shared_row(short | longer)

    def mask_within(self, place: int, tokens: int) -> MaskArray:
        """The mask, without tokens after which the constraint needs more than `tokens` in all."""
        return self.vocabulary.shared_row(self.closer.fitting(place, self.mask(place), tokens))

    def step(self, place: int, token: int) -> int:
        """The place after a token that is text, or `DEAD`."""
        after = self._steps.get((place, token))
        if after is None:
            text = self.vocabulary.token_bytes[token]
            after = self.machine.run(place, text) if text else DEAD
            if after != DEAD and self.speller is not None and not self.speller.is_good(after):
                after = DEAD
            _make_room(self._steps)
            self._steps[place, token] = after
        return after

    def forced(self, place: int, path: Path | None) -> tuple[int, ...]:
        """The tokens that must come next after the tokens of `path`; see `forcing`."""
        found = self._forced.get(place)
        if found is None:
            found = self._forced[place] = forced_tokens(self.machine, self.vocabulary, place)
        if not found.tokens or path is None:
            return found.tokens
        key = (place, last(path, _RECENT))
        after = self._forced_after.get(key)
        if after is None:
            _make_room(self._forced_after)
            after = self._forced_after[key] = settled(self.vocabulary, found, path)
        return after

    def remaining(self, place: int) -> str | None:
        """The only text that can follow, if the constraint ends with it; else None."""
        if place not in self._remaining:
            text, end = forced_text(self.machine, place)
            ends = not end % self.machine.nodes and self.machine.is_final(end)
            _make_room(self._remaining)
            self._remaining[place] = text if ends else None
        return self._remaining[place]


def _make_room(kept: dict[Any, Any]) -> None:
    """Forget all, if it has become too much: what is needed again is soon there again."""
    if len(kept) >= _MOST_STEPS:
        kept.clear()
