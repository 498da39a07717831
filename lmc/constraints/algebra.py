"""Operations on whole automata: sets of texts combined, compared, taken apart.

All results are minimal `Dfa`s; with those, equality of sets is equality of objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from lmc.constraints.budget import BudgetError
from lmc.constraints.dfa import Dfa, explored, made
from lmc.constraints.expression import ALL, EPSILON, NEVER, Expression, one_of
from lmc.constraints.machine import Machine
from lmc.errors import ConstraintError

__all__ = [
    "all_texts",
    "complement",
    "concatenation",
    "cuts",
    "difference",
    "empty_text",
    "intersection",
    "literal",
    "nothing",
    "repeat",
    "star",
    "two_cuts",
    "union",
]

MOST_STATES = 50_000

_Stage = tuple[int, int, int]


@cache
def all_texts() -> Dfa:
    """Every text, that is: every string of bytes that is valid UTF-8."""
    return _of(ALL)


@cache
def empty_text() -> Dfa:
    """The empty text alone."""
    return _of(EPSILON)


@cache
def nothing() -> Dfa:
    """No text."""
    return _of(NEVER)


def literal(*texts: str) -> Dfa:
    """Just these texts."""
    return _of(one_of(texts))


def _of(expression: Expression) -> Dfa:
    return explored(Machine(expression))


def union(*automata: Dfa) -> Dfa:
    """Texts that are in one of the automata."""
    return _folded(automata, lambda a, b: a or b, nothing())


def intersection(*automata: Dfa) -> Dfa:
    """Texts that are in all of the automata."""
    return _folded(automata, lambda a, b: a and b, all_texts())


def difference(first: Dfa, second: Dfa) -> Dfa:
    """Texts of `first` that are not in `second`."""
    return _product(first, second, lambda a, b: a and not b)


def complement(automaton: Dfa) -> Dfa:
    """All texts that are not in the automaton."""
    return difference(all_texts(), automaton)


def _folded(automata: Sequence[Dfa], keep: Callable[[bool, bool], bool], unit: Dfa) -> Dfa:
    found = unit
    for nth, automaton in enumerate(automata):
        found = automaton if nth == 0 else _product(found, automaton, keep)
    return found


def _joint_classes(automata: Sequence[Dfa]) -> tuple[npt.NDArray[np.uint8], list[tuple[int, ...]]]:
    """Classes of bytes that none of several automata tells apart, and each one's own for them."""
    known: dict[tuple[int, ...], int] = {}
    rows = zip(*(a.class_of.tolist() for a in automata), strict=True)
    class_of = [known.setdefault(row, len(known)) for row in rows]
    return np.array(class_of, dtype=np.uint8), list(known)


def _product(first: Dfa, second: Dfa, keep: Callable[[bool, bool], bool]) -> Dfa:
    class_of, own = _joint_classes((first, second))
    left = first.table[:, [a for a, _ in own]].tolist()
    right = second.table[:, [b for _, b in own]].tolist()
    numbers = {(0, 0): 0}
    pairs = [(0, 0)]
    rows: list[list[int]] = []
    gone = [-1] * len(own)
    for p, q in pairs:
        row = []
        targets_p = gone if p < 0 else left[p]
        targets_q = gone if q < 0 else right[q]
        for pair in zip(targets_p, targets_q, strict=True):
            if pair == (-1, -1) or (pair[0] < 0 and not keep(False, True)):
                row.append(-1)
                continue
            number = numbers.setdefault(pair, len(pairs))
            if number == len(pairs):
                pairs.append(pair)
            row.append(number)
        rows.append(row)
        _check(len(pairs))
    accepting = [
        keep(p >= 0 and bool(first.accepting[p]), q >= 0 and bool(second.accepting[q]))
        for p, q in pairs
    ]
    return made(class_of, np.array(rows, dtype=np.int32), np.array(accepting, dtype=np.bool_))


def _check(states: int) -> None:
    if states > MOST_STATES:
        raise BudgetError(
            f"the combined automaton has more than {MOST_STATES} states",
            hint="combine smaller patterns",
        )


@dataclass(frozen=True, slots=True)
class _Copies:
    """Automata one behind the other: from the end of one the next may begin at once.

    Attributes:
        parts: the automata, in order.
        follow: for each, those that may begin where it ends.
        final: those at whose end the whole may end.
        start: those with which the whole may begin.
    """

    parts: tuple[Dfa, ...]
    follow: tuple[tuple[int, ...], ...]
    final: frozenset[int]
    start: tuple[int, ...]
    accepts_empty: bool

    def determinised(self) -> Dfa:
        """One deterministic automaton, by the subset construction."""
        class_of, own = _joint_classes(self.parts)
        tables = [part.table[:, [o[i] for o in own]].tolist() for i, part in enumerate(self.parts)]
        accepting = [part.accepting.tolist() for part in self.parts]
        closure: dict[tuple[int, int], frozenset[tuple[int, int]]] = {}

        def closed(items: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
            found: set[tuple[int, int]] = set()
            for item in items:
                if item not in closure:
                    reached, stack = {item}, [item]
                    while stack:
                        part, state = stack.pop()
                        if accepting[part][state]:
                            for after in self.follow[part]:
                                if (after, 0) not in reached:
                                    reached.add((after, 0))
                                    stack.append((after, 0))
                    closure[item] = frozenset(reached)
                found |= closure[item]
            return frozenset(found)

        start = closed((part, 0) for part in self.start)
        numbers = {start: 0}
        subsets = [start]
        rows: list[list[int]] = []
        for subset in subsets:
            row = []
            for c in range(len(own)):
                after = {(p, t) for p, s in subset if (t := tables[p][s][c]) >= 0}
                if not after:
                    row.append(-1)
                    continue
                target = closed(after)
                number = numbers.setdefault(target, len(subsets))
                if number == len(subsets):
                    subsets.append(target)
                row.append(number)
            rows.append(row)
            _check(len(subsets))
        ends = [any(p in self.final and accepting[p][s] for p, s in subset) for subset in subsets]
        if self.accepts_empty and not ends[0]:
            # The start may be met again, where the empty text is not meant: give it a double.
            rows.append(list(rows[0]))
            ends.append(True)
            rows[0], rows[-1] = rows[-1], rows[0]
            last = len(rows) - 1
            rows = [[last if t == 0 else t for t in row] for row in rows]
            ends[0], ends[-1] = True, False
        return made(class_of, np.array(rows, dtype=np.int32), np.array(ends, dtype=np.bool_))


def concatenation(*automata: Dfa) -> Dfa:
    """A text of the first automaton, then one of the second, and so on."""
    if not automata:
        return empty_text()
    last = len(automata) - 1
    follow = tuple((i + 1,) if i < last else () for i in range(len(automata)))
    return _Copies(automata, follow, frozenset({last}), (0,), False).determinised()


def star(automaton: Dfa) -> Dfa:
    """Texts of the automaton one after the other, any number of them."""
    return repeat(automaton, 0, None)


def repeat(automaton: Dfa, low: int, high: int | None) -> Dfa:
    """At least `low` and at most `high` texts of the automaton, one after the other."""
    if high is not None and high < low:
        raise ConstraintError(f"cannot repeat at least {low} and at most {high} times")
    if high == 0:
        return empty_text()
    copies = max(low, 1) if high is None else high
    last = copies - 1
    follow = tuple(
        (i + 1,) if i < last else ((last,) if high is None else ()) for i in range(copies)
    )
    final = frozenset(range(max(low, 1) - 1, copies))
    return _Copies((automaton,) * copies, follow, final, (0,), low == 0).determinised()


def two_cuts(first: Dfa, second: Dfa) -> bytes | None:
    """A text of `first` then `second` that can be cut between them at two places, or None.

    None means that in every text of the concatenation one sees where the first part ends. Then
    `first` and `second` matched one after the other, or as one, are the same.
    """
    # Such a text is u v w with u and u v in `first`, v w and w in `second`, v not empty. Walk it
    # in three stages; a stage is left where it has seen what it needs.
    class_of, own = _joint_classes((first, second))
    byte_of = [int(np.flatnonzero(class_of == c)[0]) for c in range(len(own))]
    left = first.table[:, [a for a, _ in own]].tolist()
    right = second.table[:, [b for _, b in own]].tolist()
    start = (1, 0, -1)
    came: dict[_Stage, tuple[_Stage | None, int]] = {start: (None, -1)}
    queue = deque([start])

    def visit(state: _Stage, source: _Stage, byte: int) -> None:
        if state not in came:
            came[state] = (source, byte)
            queue.append(state)

    while queue:
        state = queue.popleft()
        stage, p, q = state
        if stage == 1 and first.accepting[p]:
            visit((2, p, 0), state, -1)
        elif stage == 3 and second.accepting[p] and second.accepting[q]:
            text = bytearray()
            at: _Stage | None = state
            while at is not None:
                at, byte = came[at]
                if byte >= 0:
                    text.append(byte)
            return bytes(reversed(text))
        for c in range(len(own)):
            if stage == 1:
                if left[p][c] >= 0:
                    visit((1, left[p][c], -1), state, byte_of[c])
            elif stage == 2:
                a, b = left[p][c], right[q][c]
                if a >= 0 and b >= 0:
                    visit((2, a, b), state, byte_of[c])
                    if first.accepting[a]:
                        visit((3, b, 0), state, byte_of[c])
            else:
                a, b = right[p][c], right[q][c]
                if a >= 0 and b >= 0:
                    visit((3, a, b), state, byte_of[c])
    return None


def cuts(parts: Sequence[Dfa], text: bytes) -> list[int] | None:
    """Where `text` is cut into texts of `parts`: each earlier part as long as it can be.

    Returns:
        The end of each part, the last one being the end of the text; None if it is no
        concatenation of such texts.
    """
    # From behind: the places from which the parts from here on match the rest.
    size = len(text)
    possible = [np.zeros(size + 1, dtype=np.bool_) for _ in range(len(parts) + 1)]
    possible[-1][size] = True
    for i in range(len(parts) - 1, -1, -1):
        for begin in range(size + 1):
            possible[i][begin] = any(possible[i + 1][e] for e in _ends(parts[i], text, begin))
    if not possible[0][0]:
        return None
    found, begin = [], 0
    for i, part in enumerate(parts):
        begin = max(e for e in _ends(part, text, begin) if possible[i + 1][e])
        found.append(begin)
    return found


def _ends(part: Dfa, text: bytes, begin: int) -> Iterable[int]:
    state, at = 0, begin
    while True:
        if part.accepting[state]:
            yield at
        if at == len(text):
            return
        state = part.step(state, text[at])
        if state < 0:
            return
        at += 1
