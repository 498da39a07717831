"""Which tokens may come at each place of an automaton, kept as they are asked for.

Owns        the masks, steps and forced tokens of one automaton over one vocabulary.
Promises    equal rows are one array, shared with all other constraints of the vocabulary. Safe for
            threads: entries are computed under the machine's lock or are the same whoever makes
            them.
Costs       a mask that is kept is a dictionary look-up; a new one is a walk of the trie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.walking import walk

if TYPE_CHECKING:
    from lmc.constraints.vocabulary import Vocabulary

__all__ = ["MaskArray", "TokenTable"]

MaskArray = npt.NDArray[np.bool_]


class TokenTable:
    """See the module's text. Made by `Vocabulary.table`."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        # The vocabulary holds its tables weakly by machine, and the table is held by matchers.
        self.machine = machine
        self.vocabulary = vocabulary
        self._masks: dict[int, MaskArray] = {}
        self._texts: dict[int, tuple[MaskArray, int]] = {}
        self._steps: dict[tuple[int, int], int] = {}
        self._forced: dict[int, tuple[int, ...]] = {}
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
            self._masks[place] = row
        return row

    def _text_row(self, place: int) -> MaskArray:
        """The tokens that are text and may come next."""
        # Far from the bounds of counters the mask does not depend on the count: look first
        # without bounds, then only as near as the longest token that this allows.
        nearest = self.machine.widened(place, 1)
        if nearest == place:
            return self._walked(place)[0]
        row, deepest = self._walked(nearest)
        wide = self.machine.widened(place, deepest)
        return row if wide == nearest else self._walked(wide)[0]

    def _walked(self, place: int) -> tuple[MaskArray, int]:
        known = self._texts.get(place)
        if known is None:
            reached = walk(self.machine, self.vocabulary.trie, place)
            known = (self.vocabulary.shared_row(reached.row), reached.deepest)
            self._texts[place] = known
        return known

    def step(self, place: int, token: int) -> int:
        """The place after a token that is text, or `DEAD`."""
        after = self._steps.get((place, token))
        if after is None:
            text = self.vocabulary.token_bytes[token]
            after = self.machine.run(place, text) if text else DEAD
            self._steps[place, token] = after
        return after

    def forced(self, place: int) -> tuple[int, ...]:
        """The tokens that must come next; see `forcing`."""
        from lmc.constraints.forcing import forced_tokens

        found = self._forced.get(place)
        if found is None:
            found = self._forced[place] = forced_tokens(self.machine, self.vocabulary, place)
        return found
