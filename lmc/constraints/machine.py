"""The automaton of an expression, made state by state as it is walked.

A state is a term (and the trackers of look-behinds, while any can still be asked): what may follow
from here. Its row says, for each class of characters, the next state. Bytes of one character are
walked in the alphabet's spelling tree; a *place* is a state and a node of that tree, and all that
the outside sees are places: `place = state * nodes + node`.

Owns        the states and rows of one constraint; they only grow.
Promises    a place that exists is alive: some text can still be completed from it. Any number of
            threads may use one machine: rows are filled under a lock and never change after.
Costs       about ten microseconds a new state; asking for life or distance costs more where the
            expression has conjunctions or complements, since those have to be searched.
Not here    tokens (`tables`), the meaning of patterns (`regex`), automata as a whole (`dfa`).
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import INVALID, LEAF, bits
from lmc.constraints.build import Builder
from lmc.constraints.expression import Expression
from lmc.constraints.terms import Arena, Kind, Term
from lmc.errors import ConstraintError

__all__ = ["DEAD", "UNKNOWN", "Machine"]

DEAD = -1
UNKNOWN = -2
_MOST_SEARCHED = 200_000  # states looked at to find out whether anything can match

_Key = tuple[Term, tuple[Term, ...]]


class Machine:
    """See the module's text.

    Attributes:
        alphabet: classes of characters and their spelling.
        nodes: how many nodes the spelling tree has.
        rows: int32, shape (capacity, classes): next states, `DEAD` or `UNKNOWN`.
        filled: uint8, shape (capacity,): which rows are known.
        alive: uint64, shape (capacity, words): the classes that lead to a state, of filled rows.
        below: uint64, shape (nodes, words): the classes that can still come of each node.
        start: the first place, or None if nothing matches.
    """

    def __init__(self, expression: Expression) -> None:
        self.alphabet = Builder.alphabet(expression)
        self.arena = Arena(self.alphabet)
        builder = Builder(self.arena)
        term = builder.build(expression)
        self._trackers = tuple(builder.trackers)
        self._lock = threading.RLock()
        self._keys: list[_Key] = []
        self._numbers: dict[_Key, int] = {}
        self._accepting: list[bool] = []
        self._live: dict[_Key, bool] = {}
        self._least: dict[int, int] = {}
        self._widening: dict[int, Callable[[Term], Term]] = {}
        self.nodes = len(self.alphabet.spelling.below)
        self._words = (self.alphabet.size + 63) // 64
        self.below = np.array(
            [self._in_words(mask) for mask in self.alphabet.spelling.below], dtype=np.uint64
        )
        self.rows = np.full((16, self.alphabet.size), UNKNOWN, dtype=np.int32)
        self.filled = np.zeros(16, dtype=np.uint8)
        self.alive = np.zeros((16, self._words), dtype=np.uint64)
        first = self._settled(term, self._trackers)
        self.start = self._number(first) * self.nodes if self._is_live(first) else None

    def __len__(self) -> int:
        """States met so far."""
        return len(self._keys)

    def _in_words(self, mask: int) -> list[int]:
        return [mask >> (64 * word) & 0xFFFFFFFFFFFFFFFF for word in range(self._words)]

    # -- states ------------------------------------------------------------------------------

    def _settled(self, term: Term, trackers: tuple[Term, ...]) -> _Key:
        """The state after a character: what look-behinds ask for is known now."""
        if not trackers:
            return term, ()
        arena = self.arena
        known: dict[Term, Term] = {}
        settled = []
        for number, tracker in enumerate(trackers):
            here = arena.front(tracker, known)
            settled.append(here)
            known[arena.behind(number)] = arena.at_mark(here)
        term = arena.front(term, known)
        return (term, tuple(settled)) if term.open else (term, ())

    def _number(self, key: _Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = len(self._keys)
            if number == len(self.filled):
                self._grow()
            self._keys.append(key)
            self._accepting.append(self.arena.nullable(key[0]))
            self._numbers[key] = number
        return number

    def _grow(self) -> None:
        def doubled(old: npt.NDArray, fill: int) -> npt.NDArray:  # type: ignore[type-arg]
            new = np.full((2 * len(old), *old.shape[1:]), fill, dtype=old.dtype)
            new[: len(old)] = old
            return new

        # `filled` last: who sees a row as filled finds it in `rows` and `alive`.
        self.rows = doubled(self.rows, UNKNOWN)
        self.alive = doubled(self.alive, 0)
        self.filled = doubled(self.filled, 0)

    def _moves(self, key: _Key) -> list[tuple[int, _Key]]:
        """Disjoint sets of classes and the states they lead to, dead ones too."""
        term, trackers = key
        arena = self.arena
        if not trackers:
            return [(mask, (t, ())) for mask, t in arena.moves(term)]
        found: list[tuple[int, Term, tuple[Term, ...]]] = [
            (mask, t, ()) for mask, t in arena.moves(term)
        ]
        for tracker in trackers:
            ahead = list(arena.moves(tracker))
            rest = self.alphabet.full
            for mask, _ in ahead:
                rest &= ~mask
            if rest:
                ahead.append((rest, arena.empty))
            found = [
                (common, t, (*before, after))
                for mask, t, before in found
                for n, after in ahead
                if (common := mask & n)
            ]
        return [(mask, self._settled(t, after)) for mask, t, after in found]

    def fill(self, state: int) -> None:
        """Make a state's row known."""
        with self._lock:
            if self.filled[state]:
                return
            row = np.full(self.alphabet.size, DEAD, dtype=np.int32)
            alive = 0
            for mask, key in self._moves(self._keys[state]):
                if self._is_live(key):
                    target = self._number(key)
                    alive |= mask
                    if mask & (mask - 1):
                        row[list(bits(mask))] = target
                    else:
                        row[mask.bit_length() - 1] = target
            self.rows[state] = row
            self.alive[state] = self._in_words(alive)
            self.filled[state] = 1

    def _is_live(self, key: _Key) -> bool:
        """Whether any text can follow."""
        term = key[0]
        if term.plain:
            return term.kind != Kind.EMPTY
        known = self._live.get(key)
        if known is None:
            known = self._search_life(key)
        return known

    def _search_life(self, key: _Key) -> bool:
        # Shortest-first: a state that ends soon is tried before one that only starts.
        came_from: dict[_Key, _Key | None] = {key: None}
        heap: list[tuple[int, int, _Key]] = [(key[0].least, 0, key)]
        ticket = 0
        while heap:
            _, _, state = heapq.heappop(heap)
            known = True if self._obviously_live(state) else self._live.get(state)
            if known is False:
                continue
            if known or self.arena.nullable(state[0]):
                at: _Key | None = state
                while at is not None:
                    self._live[at] = True
                    at = came_from[at]
                return True
            for _, after in self._moves(state):
                if after not in came_from and after[0].kind != Kind.EMPTY:
                    came_from[after] = state
                    ticket += 1
                    heapq.heappush(heap, (after[0].least, ticket, after))
            if len(came_from) > _MOST_SEARCHED:
                raise ConstraintError(
                    "it takes too long to find out whether this pattern can match anything",
                    hint="use fewer look-arounds, or smaller counts beside them",
                )
        for state in came_from:
            self._live[state] = False
        return False

    @staticmethod
    def _obviously_live(key: _Key) -> bool:
        return key[0].plain and key[0].kind != Kind.EMPTY

    # -- places ------------------------------------------------------------------------------

    def step(self, place: int, byte: int) -> int:
        """The place after one more byte, or `DEAD`."""
        state, node = divmod(place, self.nodes)
        target = self.alphabet.spelling.step(node, byte)
        if target == INVALID:
            return DEAD
        if not self.filled[state]:
            self.fill(state)
        if target <= LEAF:
            after = int(self.rows[state, LEAF - target])
            return after if after == DEAD else after * self.nodes
        below = self.alphabet.spelling.below[target]
        return state * self.nodes + target if below & self.moves_mask(state) else DEAD

    def run(self, place: int, text: bytes) -> int:
        """The place after `text`, or `DEAD`."""
        for byte in text:
            place = self.step(place, byte)
            if place == DEAD:
                break
        return place

    def accepts(self, place: int) -> bool:
        """Whether the text may end here."""
        state, node = divmod(place, self.nodes)
        return node == 0 and self._accepting[state]

    def moves_mask(self, state: int) -> int:
        """The classes that may come next."""
        if not self.filled[state]:
            self.fill(state)
        return sum(int(word) << (64 * i) for i, word in enumerate(self.alive[state]))

    def is_final(self, place: int) -> bool:
        """Whether the text may end here and nothing can follow."""
        return self.accepts(place) and not self.moves_mask(place // self.nodes)

    def targets(self, state: int) -> Iterator[tuple[int, int]]:
        """The states that may follow, each once, with the classes that lead there."""
        if not self.filled[state]:
            self.fill(state)
        masks: dict[int, int] = {}
        for c, target in enumerate(self.rows[state].tolist()):
            if target != DEAD:
                masks[target] = masks.get(target, 0) | 1 << c
        yield from ((mask, target) for target, mask in masks.items())

    def least_bytes(self, place: int) -> int:
        """The length in bytes of the shortest text that can follow."""
        state, node = divmod(place, self.nodes)
        if node == 0:
            return self._least_of(state)
        spelling = self.alphabet.spelling
        best: int | None = None
        seen = {node}
        layer, depth = [node], 1
        while layer:
            after: list[int] = []
            for at in layer:
                for target in set(spelling.later[at].tolist()) - {INVALID}:
                    if target <= LEAF:
                        end = int(self.rows[state, LEAF - target]) if self.filled[state] else DEAD
                        if end != DEAD:
                            total = depth + self._least_of(end)
                            best = total if best is None else min(best, total)
                    elif target not in seen:
                        seen.add(target)
                        after.append(target)
            layer, depth = after, depth + 1
        assert best is not None, "a place that exists can be completed"
        return best

    def _least_of(self, state: int) -> int:
        term = self._keys[state][0]
        if term.plain:
            return term.least
        if state not in self._least:
            with self._lock:
                self._least[state] = self._search_least(state)
        return self._least[state]

    def _search_least(self, state: int) -> int:
        best = {state: 0}
        heap = [(0, state)]
        while heap:
            length, at = heapq.heappop(heap)
            if length > best[at]:
                continue
            if self._accepting[at]:
                return length
            for mask, target in self.targets(at):
                total = length + self.alphabet.least_bytes(mask)
                if total < best.get(target, total + 1):
                    best[target] = total
                    heapq.heappush(heap, (total, target))
        raise AssertionError("a state that exists can be completed")

    def widened(self, place: int, limit: int) -> int:
        """A place from which the same next `limit` bytes are possible, the same for many places.

        Counters further than `limit` from their bounds are taken for unbounded; see
        `Arena.saturate`. The two places may differ in whether the text may end.
        """
        state, node = divmod(place, self.nodes)
        term = self._keys[state][0]
        if not term.plain:
            return place
        with self._lock:
            rewrite = self._widening.setdefault(limit, self.arena.saturate(limit))
            wide = self._number((rewrite(term), ()))
        return wide * self.nodes + node
