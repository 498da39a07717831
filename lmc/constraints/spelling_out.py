"""Whether a vocabulary can spell what a constraint allows.

Most vocabularies have a token for every byte (or for every byte that occurs), and then every
place from which a text can be completed can be completed with tokens. Others, such as small ones
and those without byte tokens, have dead ends: a place is good only if some row of tokens leads
from it to an end, and a token is allowed only if it leads to a good place.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import INVALID, LEAF
from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.texts import shortest_text
from lmc.constraints.vocabulary import Vocabulary
from lmc.constraints.walking import places_after

__all__ = ["Speller", "spells_all"]

_MOST_SEARCHED = 20_000  # places looked at before an end is taken for reachable


def spells_all(machine: Machine, vocabulary: Vocabulary) -> bool:
    """Whether single-byte tokens lead on from every place that tokens can lead to."""
    spelling = machine.alphabet.spelling
    have = vocabulary.byte_tokens
    met = vocabulary.all_bytes
    tails = [b & 63 for b in have if 0x80 <= b < 0xC0]
    met_tails = [b & 63 for b in met if 0x80 <= b < 0xC0]
    reach: dict[int, int] = {}

    def classes_from(targets: Iterable[int]) -> int:
        found = 0
        for target in targets:
            if target <= LEAF:
                found |= 1 << (LEAF - target)
            elif target != INVALID:
                found |= reach_of(target)
        return found

    def reach_of(node: int) -> int:
        if node not in reach:
            row = spelling.later[node]
            reach[node] = (
                spelling.below[node] if len(tails) == 64 else classes_from(set(row[tails].tolist()))
            )
        return reach[node]

    if classes_from({int(spelling.first[b]) for b in have}) != machine.alphabet.full:
        return False
    stack = [t for t in {int(spelling.first[b]) for b in met} if t > 0]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if reach_of(node) != spelling.below[node]:
            return False
        for target in set(spelling.later[node][met_tails].tolist()):
            if target > 0 and target not in seen:
                seen.add(target)
                stack.append(target)
    return True


class Speller:
    """Finds out from which places an end can be reached with tokens."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        self.machine = machine
        self.vocabulary = vocabulary
        self._good: dict[int, bool] = {}

    def allowed(self, place: int) -> npt.NDArray[np.bool_]:
        """The tokens that may come at `place`, bool, shape (vocabulary,)."""
        after = places_after(self.machine, self.vocabulary.trie, place)
        places = [p for p in np.unique(after).tolist() if p != DEAD and self.is_good(p)]
        return np.isin(after, places)

    def is_good(self, place: int) -> bool:
        """Whether an end can be reached from `place` with tokens."""
        known = self._good.get(place)
        return self._search(place) if known is None else known

    def _search(self, start: int) -> bool:
        machine = self.machine
        came_from: dict[int, int | None] = {start: None}
        heap = [(machine.least_bytes(start), start)]
        while heap:
            _, place = heapq.heappop(heap)
            known = self._good.get(place)
            if known is False:
                continue
            if known or machine.accepts(place) or len(came_from) > _MOST_SEARCHED:
                at: int | None = place
                while at is not None:
                    self._good[at] = True
                    at = came_from[at]
                return True
            for after in np.unique(
                places_after(self.machine, self.vocabulary.trie, place)
            ).tolist():
                if after != DEAD and after not in came_from:
                    came_from[after] = place
                    heapq.heappush(heap, (machine.least_bytes(after), after))
        self._good.update(dict.fromkeys(came_from, False))
        return False

    def reason(self, place: int) -> str:
        """Why nothing can be spelled from `place`, for a message."""
        example = shortest_text(self.machine, place // self.machine.nodes)
        missing = sorted({c for c in example if not set(c.encode()) <= self.vocabulary.all_bytes})
        if missing:
            return f"no token has the bytes of {', '.join(map(repr, missing))}"
        return f"its tokens cannot be joined to {example[:60]!r} or any other text that matches"
