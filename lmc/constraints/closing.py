"""Ending in time: which tokens leave enough of a token budget to complete the constraint.

A mask alone never ends a text: with a limit on tokens the model may stand inside a string when the
limit comes. Here a token is allowed only if the shortest text from where it leads, as the
tokenizer cuts it, still fits. A model that begins with enough tokens for the shortest text
therefore always completes the constraint.

Costs       a place met for the first time is a walk with numpy, a few milliseconds; so a caller
            asks for this when the budget comes near, not at every step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.reserve import Reserve
from lmc.constraints.texts import shortest_text
from lmc.constraints.vocabulary import Vocabulary
from lmc.constraints.walking import places_after

__all__ = ["Closer"]


class Closer:
    """Knows how many tokens it takes to complete a constraint."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        self.machine = machine
        self.vocabulary = vocabulary
        self._reserve = Reserve(machine, vocabulary.encode)
        self._reserve_bytes = Reserve(machine)
        self._costs: dict[int, int] = {}
        self._most: dict[int, int] = {}

    def cost(self, place: int, most: int | None = None) -> int:
        """How many tokens the tokenizer makes of the shortest text from `place`.

        Where that is more than `most` whatever they are, the text is not written out (it may have
        a million characters) and its length in bytes is given.
        """
        if most is not None:
            least = self.machine.least_bytes(place)
            if least > most * self.vocabulary.trie.longest:
                return least
        known = self._costs.get(place)
        if known is None:
            state, node = divmod(place, self.machine.nodes)
            if node:  # inside a character: byte by byte
                known = self.machine.least_bytes(place)
            else:
                known = len(self.vocabulary.encode(shortest_text(self.machine, state)))
            self._costs[place] = known
        return known

    def reserve(self, place: int, there: int) -> tuple[int, bool]:
        """How many tokens an end may take after whatever comes next, and whether that is sure.

        Bytes instead, where these are few enough for the tokens that are `there`.
        """
        state = place // self.machine.nodes
        found = self._reserve_bytes.after(state)
        return found if 2 * found[0] < there else self._reserve.after(state)

    def fitting(self, place: int, row: npt.NDArray[np.bool_], tokens: int) -> npt.NDArray[np.bool_]:
        """The tokens of `row` after which `tokens - 1` more are enough.

        If there is none: the end tokens where the constraint is complete, else the tokens after
        which the fewest are needed.
        """
        known = self._most.get(place)
        if known is not None and known < tokens:
            return row
        after = places_after(self.machine, self.vocabulary.trie, place)
        reached = np.unique(after[row & (after != DEAD)])
        if not len(reached):
            return row
        # Bytes are an upper bound of tokens, and cost nothing to ask for.
        bounds = np.array([self.machine.least_bytes(p) for p in reached.tolist()])
        self._most[place] = int(bounds.max())
        if self._most[place] < tokens:
            return row
        near = np.flatnonzero(bounds >= tokens).tolist()
        for i in near:
            bounds[i] = min(int(bounds[i]), self.cost(int(reached[i]), tokens))
        allowed = bounds < tokens
        if not allowed.any() and not self.machine.accepts(place):
            allowed = bounds == bounds.min()
        ends = np.zeros_like(row)
        ends[list(self.vocabulary.eos)] = True
        return row & (np.isin(after, reached[allowed]) | ends)
