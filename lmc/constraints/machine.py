"""The automaton of an expression, made state by state as it is walked.

A state is a term: what may follow from here. Its row says, for each class of characters, the next
state. Bytes of one character are walked in the alphabet's spelling tree; a *place* is a state and a
node of that tree, and all that the outside sees are places: `place = state * nodes + node`.

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
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import INVALID, LEAF, bits
from lmc.constraints.budget import BudgetError
from lmc.constraints.build import Builder
from lmc.constraints.charset import CharSet
from lmc.constraints.derivatives import Derivatives
from lmc.constraints.expression import Expression
from lmc.constraints.lengths import SMALLER, Lengths
from lmc.constraints.roaming import Roaming
from lmc.constraints.terms import Arena, Kind, Term
from lmc.constraints.widening import Widening

__all__ = ["DEAD", "FAR", "UNKNOWN", "Machine"]

_T = TypeVar("_T")

DEAD = -1
UNKNOWN = -2
_WIDE_LOOP = 12  # bytes; of fewer characters so few tokens are made that a walk is as fast
FAR = 256  # bytes; hardly any vocabulary has longer tokens
_MOST_AT_ONCE = 6_000  # terms that are made with a machine; more are made when met
_WIDE_UNION = 24  # arms; what follows such unions is made with a machine too
_MOST_ARMS = 250  # of them
_MOST_SEARCHED = 200_000  # states looked at to find out whether anything can match
_MOST_WORK = 2_000_000  # ways out of states in a search, each times the parts of its state


class Machine:
    """See the module's text.

    Attributes:
        alphabet: classes of characters and their spelling.
        nodes: how many nodes the spelling tree has.
        rows: int32, shape (capacity, classes): next states, `DEAD` or `UNKNOWN`.
        filled: uint8, shape (capacity,): which rows are known.
        alive: uint64, shape (capacity, words): the classes that lead to a state, of filled rows.
        loops: int32, shape (capacity,): for filled rows, the name of the set of first bytes that
            the state loops over (`loop_sets`), 0 if there are none to speak of.
        roams: int32, shape (capacity,): for all states, the name of a set of first bytes of which
            any text may come next, 0 if there are none to speak of; see `Roaming`.
        below: uint64, shape (nodes, words): the classes that can still come of each node.
        start: the first place, or None if nothing matches.
    """

    def __init__(self, expression: Expression) -> None:
        self.alphabet = Builder.alphabet(expression)
        self._derivatives = Derivatives(Arena(self.alphabet))
        first = Builder(self._derivatives).build(expression)
        self._lock = threading.RLock()
        self._terms: list[Term] = []
        self._numbers: dict[Term, int] = {}
        self._accepting: list[bool] = []
        self._live: dict[Term, bool] = {}
        self._next_bytes: dict[int, int] = {}
        myself = weakref.proxy(self)  # no cycle: a machine goes as soon as nobody holds it

        def is_live(term: Term) -> bool:
            return bool(myself._is_live(term))

        self._widening = Widening(self._derivatives, is_live, FAR)
        self._lengths = Lengths(self._derivatives, is_live)
        self.nodes = len(self.alphabet.spelling.below)
        self._words = (self.alphabet.size + 63) // 64
        self.below = np.array(
            [self._in_words(mask) for mask in self.alphabet.spelling.below], dtype=np.uint64
        )
        self.rows = np.full((16, self.alphabet.size), UNKNOWN, dtype=np.int32)
        self.filled = np.zeros(16, dtype=np.uint8)
        self.alive = np.zeros((16, self._words), dtype=np.uint64)
        self.loops = np.zeros(16, dtype=np.int32)
        self.roams = np.zeros(16, dtype=np.int32)
        self.loop_sets = [0]
        self._loop_names: dict[int, int] = {}
        self._indices: dict[int, npt.NDArray[np.int64]] = {}
        self._roaming = Roaming(self.alphabet.weight, is_live)
        self.start = self._number(first) * self.nodes if self._is_live(first) else None
        self._derivatives.arena.make_bodies(_MOST_AT_ONCE)
        if self.start is not None:
            self._derivatives.make_wide(_WIDE_UNION, _MOST_ARMS)

    def __del__(self) -> None:
        if hasattr(self, "_derivatives"):
            self._derivatives.arena.dissolve()

    def __len__(self) -> int:
        """States met so far."""
        return len(self._terms)

    def _in_words(self, mask: int) -> list[int]:
        return [mask >> (64 * word) & 0xFFFFFFFFFFFFFFFF for word in range(self._words)]

    # -- states ------------------------------------------------------------------------------

    def _number(self, term: Term) -> int:
        number = self._numbers.get(term)
        if number is None:
            number = len(self._terms)
            if number == len(self.filled):
                self._grow()
            self._terms.append(term)
            self._accepting.append(self._derivatives.nullable(term))
            mask = self._roaming.of(term)
            if mask:
                self.roams[number] = self._loop_name(mask)
            self._numbers[term] = number
        return number

    def _grow(self) -> None:
        def doubled(old: npt.NDArray, fill: int) -> npt.NDArray:  # type: ignore[type-arg]
            new = np.full((2 * len(old), *old.shape[1:]), fill, dtype=old.dtype)
            new[: len(old)] = old
            return new

        # `filled` last: who sees a row as filled finds it in `rows` and `alive`.
        self.rows = doubled(self.rows, UNKNOWN)
        self.alive = doubled(self.alive, 0)
        self.loops = doubled(self.loops, 0)
        self.roams = doubled(self.roams, 0)
        self.filled = doubled(self.filled, 0)

    def fill(self, state: int) -> None:
        """Make a state's row known."""
        with self._lock:
            if self.filled[state]:
                return
            targets: list[tuple[int, int]] = []
            alive = 0
            term = self._terms[state]
            for mask, after in self._derivatives.moves(term):
                if after is term:
                    self.loops[state] = self._loop_name(mask)
                if self._is_live(after):
                    targets.append((mask, self._number(after)))
                    alive |= mask
            row = self.rows[state]
            row[:] = DEAD
            for mask, target in targets:
                if mask & (mask - 1):
                    row[self._members(mask)] = target
                else:
                    row[mask.bit_length() - 1] = target
            if self._words == 1:
                self.alive[state, 0] = alive
            else:
                self.alive[state] = self._in_words(alive)
            self.filled[state] = 1

    def _members(self, mask: int) -> npt.NDArray[np.int64]:
        found = self._indices.get(mask)
        if found is None:
            found = self._indices[mask] = np.array(list(bits(mask)), dtype=np.int64)
        return found

    def most(self, state: int) -> tuple[int, int]:
        """The state that most ASCII characters lead to, and the classes that lead there."""
        with self._lock:
            moves = self._derivatives.moves(self._terms[state])
            weight = self.alphabet.weight
            mask, after = max(moves, key=lambda move: weight(move[0]), default=(0, None))
            if after is None or not self._is_live(after):
                return state, 0
            return self._number(after), mask

    def _loop_name(self, mask: int) -> int:
        name = self._loop_names.get(mask)
        if name is None:
            firsts = self.alphabet.firsts(mask)
            if firsts.bit_count() < _WIDE_LOOP:
                name = 0
            elif firsts in self.loop_sets:
                name = self.loop_sets.index(firsts)
            else:
                name = len(self.loop_sets)
                self.loop_sets.append(firsts)
            self._loop_names[mask] = name
        return name

    def _is_live(self, term: Term) -> bool:
        """Whether any text can follow."""
        if term.plain:
            return term.kind != Kind.EMPTY
        known = self._live.get(term)
        if known is None:
            known = self._life_of_parts(term)
        return self._search_life(term) if known is None else known

    def _life_of_parts(self, term: Term) -> bool | None:
        """Life as far as it is a matter of the parts alone; None if they must be looked at as one.

        It keeps the search for an end inside the conjunction that asks for it.
        """
        if term.open:
            return None
        match term.kind:
            case Kind.CAT:
                chain: list[Term] = []  # in a loop: hundreds of members in a row must not recurse
                rest = term
                while rest.kind == Kind.CAT and not (rest.plain or rest.open):
                    if rest in self._live:
                        break
                    chain.append(rest)
                    rest = rest.args[1]
                found = self._is_live(rest)
                for part in reversed(chain):
                    found = found and self._is_live(part.args[0])
                    self._live[part] = found
            case Kind.ALT:
                found = any(self._is_live(t) for t in term.args)
            case Kind.REP:
                found = term.args[1] == 0 or self._is_live(term.args[0])
            case Kind.AND if self._widening.fits(term):
                found = True
            case _:
                return None
        self._live[term] = found
        return found

    def _search_life(self, start: Term) -> bool:
        # What seems next to its end first: a term that only begins is tried after it.
        came_from: dict[Term, Term | None] = {start: None}
        heap: list[tuple[int, int, Term]] = [(_hope(start), 0, start)]
        work = 0
        while heap:
            _, _, term = heapq.heappop(heap)
            known = True if term.plain else self._live.get(term)
            if known is False:
                continue
            if known or self._derivatives.nullable(term):
                at: Term | None = term
                while at is not None:
                    self._live[at] = True
                    at = came_from[at]
                return True
            moves = self._derivatives.moves(term)
            work += len(moves) * len(term.args)
            for _, after in moves:
                if after not in came_from:
                    came_from[after] = term
                    heapq.heappush(heap, (_hope(after), len(came_from), after))
            if len(came_from) > _MOST_SEARCHED or work > _MOST_WORK:
                raise BudgetError(
                    "it takes too long to find out whether this can match anything", hint=SMALLER
                )
        self._live.update(dict.fromkeys(came_from, False))
        return False

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

    def next_bytes(self, place: int) -> int:
        """The bytes that can come next, a bit for each."""
        known = self._next_bytes.get(place)
        if known is None:
            state, node = divmod(place, self.nodes)
            moves = self.moves_mask(state)
            known = self.alphabet.spelling.bytes_of(node, moves)
            self._next_bytes[place] = known
        return known

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

    def chars_of(self, mask: int) -> CharSet:
        """The characters of a set of classes."""
        return CharSet.of(r for c in bits(mask) for r in self.alphabet.classes[c].ranges())

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
        term = self._terms[state]
        known = self._lengths.known(term)
        if known is None:
            with self._lock:
                known = self._lengths.of(term)
        return known

    def measured(self, state: int, measure: Callable[[Term], _T]) -> _T:
        """What `measure` says of the term of a state, which it may take apart."""
        with self._lock:
            return measure(self._terms[state])

    def room(self, state: int, classes: int, limit: int) -> tuple[int, int, int, int] | None:
        """How many characters of `classes` may follow in a row, surely and at most.

        See `Widening.room`; instead of classes, the bytes with which their characters begin.
        """
        with self._lock:
            found = self._widening.room(self._terms[state], classes, limit)
        if found is None:
            return None
        sure, most, ones, out = found
        return sure, most, self.alphabet.firsts(ones), self.alphabet.spelling.bytes_of(0, out)

    def roams_after(self, place: int, text: bytes) -> bool:
        """Whether after `text` surely any text of some characters may follow; see `Roaming`."""
        state, node = divmod(place, self.nodes)
        firsts = 0 if node else self.loop_sets[self.roams[state]]
        return firsts != 0 and all(firsts >> byte & 1 or 0x80 <= byte < 0xC0 for byte in text)

    def fits(self, state: int, text: bytes, chars: int) -> bool | None:
        """Whether a counter, of which `room` was asked, has room for `text` and an end.

        Args:
            chars: how many characters it has, all of the counted part, and none leads out.

        Returns:
            None if that is not clear from how many bytes the shortest end has.
        """
        with self._lock:
            found = self._widening.counted_front(self._terms[state])
            if found is None:
                return None
            member, high = found
            place = self.run(self._number(member) * self.nodes, text)
            if place == DEAD or (chars >= high and not self.accepts(place)):
                return False
            # Terms without conjunctions say exactly how many bytes, and so characters, are enough.
            after, node = divmod(place, self.nodes)
            fits = node == 0 and chars + self._terms[after].least <= high
            return True if fits else None

    def widened(self, place: int, limit: int) -> int:
        """A place from which the same next `limit` bytes are possible, the same for many places.

        Counters further than `limit` from their bounds are taken for unbounded; see `widening`.
        The two places may differ in whether the text may end.
        """
        state, node = divmod(place, self.nodes)
        with self._lock:
            term = self._terms[state]
            if not self._widening.counts(term, limit):
                return place
            wide = self._number(self._widening.widened(term, limit))
        return wide * self.nodes + node


def _hope(term: Term) -> int:
    """About how many bytes are missing: each part of a conjunction may want its own."""
    if term.kind == Kind.CAT:
        first, rest = term.args
        return _hope(first) + int(rest.least)
    return sum(part.least for part in term.args) if term.kind == Kind.AND else term.least
