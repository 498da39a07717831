"""Automata as a whole: minimal deterministic automata over bytes.

Where `machine` makes states as they are met, this has all of them, so it can answer questions
about the whole set of texts: is it finite, how long are its texts, are two sets equal, can a
concatenation be taken apart in one way only. `algebra` combines them.

Owns        nothing; immutable.
Promises    minimal, every state reachable and alive, numbered in breadth-first order: two automata
            with the same texts are the same object (while one of them is alive).
Costs       O(states) to make, and O(n log n) to minimise.
"""

from __future__ import annotations

import hashlib
import random
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import INVALID, LEAF
from lmc.constraints.budget import BudgetError
from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.minimise import equal_states
from lmc.errors import ConstraintError

__all__ = ["Dfa", "explored", "made"]

_interned: weakref.WeakValueDictionary[str, Dfa] = weakref.WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Dfa:
    """See the module's text. Made by `made`, `explored` and the functions of `algebra`.

    Attributes:
        class_of: uint8, shape (256,): the class of each byte; classes are those bytes that no
            state can tell apart.
        table: int32, shape (states, classes): next states; -1 where nothing can follow.
        accepting: bool, shape (states,). State 0 is the start.
        digest: a name of the set of texts, the same in every process.
    """

    class_of: npt.NDArray[np.uint8]
    table: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.bool_]
    digest: str

    def __len__(self) -> int:
        return len(self.accepting)

    def __repr__(self) -> str:
        return f"Dfa({len(self)} states, {self.digest[:12]})"

    def step(self, state: int, byte: int) -> int:
        """The next state, or -1."""
        return int(self.table[state, self.class_of[byte]])

    def run(self, text: bytes, state: int = 0) -> int:
        """The state after `text`, or -1."""
        for byte in text:
            state = self.step(state, byte)
            if state < 0:
                break
        return state

    def matches(self, text: bytes) -> bool:
        """Whether `text` is in the set."""
        state = self.run(text)
        return state >= 0 and bool(self.accepting[state])

    def is_empty(self) -> bool:
        """Whether there is no text at all."""
        return not bool(self.accepting.any())

    def is_finite(self) -> bool:
        """Whether there are finitely many texts."""
        return self._order is not None

    @cached_property
    def _order(self) -> list[int] | None:
        """The states, each before those that follow it; None if some follow themselves."""
        arrivals = np.zeros(len(self), dtype=np.int64)
        targets = [set(row.tolist()) - {-1} for row in self.table]
        for following in targets:
            for t in following:
                arrivals[t] += 1
        ready = [s for s in range(len(self)) if arrivals[s] == 0]
        order: list[int] = []
        while ready:
            state = ready.pop()
            order.append(state)
            for t in targets[state]:
                arrivals[t] -= 1
                if arrivals[t] == 0:
                    ready.append(t)
        return order if len(order) == len(self) else None

    @cached_property
    def _widths(self) -> npt.NDArray[np.int64]:
        """How many bytes each class has."""
        return np.bincount(self.class_of, minlength=self.table.shape[1])

    def count(self) -> int | None:
        """How many texts there are; None if there is no end of them."""
        if self._order is None:
            return None
        ways = [0] * len(self)
        for state in reversed(self._order):
            ways[state] = int(self.accepting[state]) + sum(
                int(width) * ways[target]
                for width, target in zip(self._widths, self.table[state].tolist(), strict=True)
                if target >= 0
            )
        return ways[0]

    @cached_property
    def distances(self) -> npt.NDArray[np.int64]:
        """For each state, the length in bytes of the shortest text from there."""
        sources: list[set[int]] = [set() for _ in range(len(self))]
        for state, row in enumerate(self.table):
            for target in set(row.tolist()) - {-1}:
                sources[target].add(state)
        found = np.where(self.accepting, 0, -1).astype(np.int64)
        queue = deque(np.flatnonzero(self.accepting).tolist())
        while queue:
            state = queue.popleft()
            for source in sources[state]:
                if found[source] < 0:
                    found[source] = found[state] + 1
                    queue.append(source)
        return found

    def lengths(self) -> tuple[int, int | None]:
        """The lengths in bytes of the shortest text and of the longest, None for no bound.

        Raises:
            ConstraintError: there is no text.
        """
        if self.is_empty():
            raise ConstraintError("an empty set has no shortest text")
        if self._order is None:
            return int(self.distances[0]), None
        longest = [0] * len(self)
        for state in reversed(self._order):
            following = set(self.table[state].tolist()) - {-1}
            longest[state] = max((longest[t] + 1 for t in following), default=0)
        return int(self.distances[0]), longest[0]

    def shortest(self) -> bytes:
        """The shortest text, the first of them in the order of bytes.

        Raises:
            ConstraintError: there is none.
        """
        for text in self.texts():
            return text
        raise ConstraintError("an empty set has no shortest text")

    def texts(self) -> Iterator[bytes]:
        """All texts, shortest first, then in the order of bytes; endless if there are endless."""
        if self.is_empty():
            return
        steps = [self._steps(s) for s in range(len(self))]
        _, longest = self.lengths()
        length = int(self.distances[0])
        while longest is None or length <= longest:
            # Depth first through all texts of one length, never where it cannot be met.
            reach = self._reach(length)
            stack: list[tuple[int, bytes]] = [(0, b"")]
            while stack:
                state, text = stack.pop()
                left = length - len(text)
                if left == 0:
                    yield text
                    continue
                stack.extend(
                    (target, text + bytes([byte]))
                    for byte, target in reversed(steps[state])
                    if reach[left - 1][target]
                )
            length += 1

    def _steps(self, state: int) -> list[tuple[int, int]]:
        row = self.table[state]
        return [(b, int(row[c])) for b, c in enumerate(self.class_of) if row[c] >= 0]

    def _reach(self, length: int) -> list[npt.NDArray[np.bool_]]:
        """For each number of bytes up to `length`, the states that accept after just as many."""
        found = [self.accepting]
        for _ in range(length):
            before = np.append(found[-1], False)
            found.append(np.asarray(before[self.table].any(axis=1)))
        return found if found[-1][0] else [np.zeros(len(self), dtype=np.bool_)] * (length + 1)

    def sample(self, draw: random.Random, about: int = 20) -> bytes:
        """A random text, which ends soon after `about` bytes where it may.

        Raises:
            ConstraintError: there is none.
        """
        if self.is_empty():
            raise ConstraintError("an empty set has no texts to draw")
        state, text = 0, bytearray()
        while True:
            steps = self._steps(state)
            if self.accepting[state] and (not steps or draw.random() * about < len(text) / 2 + 1):
                return bytes(text)
            if len(text) >= about:
                nearest = min(self.distances[t] for _, t in steps)
                steps = [(b, t) for b, t in steps if self.distances[t] == nearest]
            byte, state = draw.choice(steps)
            text.append(byte)


def made(
    class_of: npt.NDArray[np.uint8],
    table: npt.NDArray[np.int32],
    accepting: npt.NDArray[np.bool_],
) -> Dfa:
    """The minimal automaton of any deterministic one; -1 in `table` for nowhere, start is 0."""
    class_of, table, accepting = _trimmed(class_of, table, accepting)
    class_of, table = _fewest_classes(class_of, table)
    table, accepting = _merged(table, accepting)
    table, accepting = _in_order(table, accepting)
    class_of, table = _fewest_classes(class_of, table)
    # Classes are numbered by their first byte, so that equal automata have equal tables.
    key = hashlib.sha256()
    for part in (class_of, np.array(table.shape, dtype=np.int64), table, accepting):
        key.update(np.ascontiguousarray(part).tobytes())
    digest = key.hexdigest()
    known = _interned.get(digest)
    if known is None:
        for part in (class_of, table, accepting):
            part.flags.writeable = False
        known = _interned.setdefault(digest, Dfa(class_of, table, accepting, digest))
    return known


_Parts = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.bool_]]


def _trimmed(
    class_of: npt.NDArray[np.uint8],
    table: npt.NDArray[np.int32],
    accepting: npt.NDArray[np.bool_],
) -> _Parts:
    """Without states that cannot be reached, or from which no text can be completed."""
    states = len(accepting)
    targets = [set(row) - {-1} for row in table.tolist()]
    reached = np.zeros(states, dtype=np.bool_)
    reached[0] = True
    stack = [0]
    sources: list[list[int]] = [[] for _ in range(states)]
    while stack:
        state = stack.pop()
        for target in targets[state]:
            sources[target].append(state)
            if not reached[target]:
                reached[target] = True
                stack.append(target)
    alive = accepting & reached
    stack = np.flatnonzero(alive).tolist()
    while stack:
        for source in sources[stack.pop()]:
            if not alive[source]:
                alive[source] = True
                stack.append(source)
    if not alive[0]:
        nothing = np.full((1, 1), -1, dtype=np.int32)
        return np.zeros(256, dtype=np.uint8), nothing, np.zeros(1, dtype=np.bool_)
    number = np.full(states + 1, -1, dtype=np.int32)
    number[:states][alive] = np.arange(int(alive.sum()))
    return class_of, number[table[alive]], accepting[alive]


def _merged(
    table: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """With states of the same future made one."""
    states = len(accepting)
    whole = np.vstack([table, np.full((1, table.shape[1]), -1, dtype=np.int32)])
    whole[whole < 0] = states  # the state of no return
    block_of = equal_states(whole, np.append(accepting, False))
    sink = block_of[states]
    blocks, first = np.unique(block_of[:states], return_index=True)
    number = np.full(states + 1, -1, dtype=np.int32)
    number[blocks] = np.arange(len(blocks))
    # Nothing alive is equal to the state of no return, except in the empty automaton.
    if sink in blocks:
        return table[:1], accepting[:1]
    after = np.where(table[first] < 0, -1, number[block_of[table[first]]])
    start = number[block_of[0]]
    order = np.arange(len(blocks))
    order[[0, start]] = order[[start, 0]]
    back = np.append(np.argsort(order), -1).astype(np.int32)
    return back[after[order]], accepting[first][order]


def _in_order(
    table: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """With states numbered as a breadth-first walk meets them."""
    order, number = [0], {0: 0}
    rows = table.tolist()
    for state in order:
        for target in rows[state]:
            if target >= 0 and target not in number:
                number[target] = len(order)
                order.append(target)
    back = np.full(len(order) + 1, -1, dtype=np.int32)
    back[:-1] = np.argsort(order)
    return back[table[order]], accepting[order]


def _fewest_classes(
    class_of: npt.NDArray[np.uint8], table: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """With bytes that no state tells apart in one class, classes numbered by their first byte."""
    known: dict[bytes, int] = {}
    columns: list[npt.NDArray[np.int32]] = []
    merged = []
    by_class: dict[int, int] = {}
    for c in class_of.tolist():
        if c not in by_class:
            column = np.ascontiguousarray(table[:, c])
            key = column.tobytes()
            if key not in known:
                known[key] = len(columns)
                columns.append(column)
            by_class[c] = known[key]
        merged.append(by_class[c])
    return np.array(merged, dtype=np.uint8), np.stack(columns, axis=1)


def explored(machine: Machine, most: int = 50_000) -> Dfa:
    """The whole automaton of a machine.

    Args:
        most: how many states over bytes may be made before minimising.

    Raises:
        BudgetError: there are more.
    """
    if machine.start is None:
        return made(
            np.zeros(256, dtype=np.uint8),
            np.full((1, 1), -1, dtype=np.int32),
            np.zeros(1, dtype=np.bool_),
        )
    spelling, nodes = machine.alphabet.spelling, machine.nodes
    class_of, samples = _byte_classes(machine)
    numbers: dict[int, int] = {machine.start: 0}
    places = [machine.start]
    rows: list[list[int]] = []
    for place in places:
        state, node = divmod(place, nodes)
        hope = machine.moves_mask(state)
        row = machine.rows[state].tolist()
        reached = []
        for byte in samples:
            target = spelling.step(node, byte)
            if target == INVALID:
                after = DEAD
            elif target <= LEAF:
                after = row[LEAF - target]
                after = after if after == DEAD else after * nodes
            else:
                after = state * nodes + target if spelling.below[target] & hope else DEAD
            if after == DEAD:
                reached.append(-1)
                continue
            number = numbers.setdefault(after, len(places))
            if number == len(places):
                places.append(after)
            reached.append(number)
        rows.append(reached)
        if len(places) > most:
            raise BudgetError(
                f"the automaton has more than {most} states",
                hint="lower the counts of its repeats, or split the pattern",
            )
    accepting = np.array([machine.accepts(place) for place in places], dtype=np.bool_)
    return made(class_of, np.array(rows, dtype=np.int32), accepting)


def _byte_classes(machine: Machine) -> tuple[npt.NDArray[np.uint8], Sequence[int]]:
    """Classes of bytes that the spelling does not tell apart, and one byte of each."""
    spelling = machine.alphabet.spelling
    known: dict[tuple[int, bytes], int] = {}
    samples: list[int] = []
    class_of = []
    for byte in range(256):
        inner = spelling.later[:, byte & 63].tobytes() if byte & 0xC0 == 0x80 else b""
        key = (int(spelling.first[byte]), inner)
        if key not in known:
            known[key] = len(samples)
            samples.append(byte)
        class_of.append(known[key])
    return np.array(class_of, dtype=np.uint8), samples
