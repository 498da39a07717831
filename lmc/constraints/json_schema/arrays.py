"""Arrays: what the keywords say, whether anything is left, and the automaton of items.

Where some items must, or must not, be of a kind (`contains`), an array is a small automaton whose
states count: how many items there were, and how many of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from lmc.constraints.budget import BudgetError
from lmc.constraints.json_schema.document import Node, refusal
from lmc.constraints.json_schema.formulas import Formula
from lmc.constraints.json_schema.shapes import ArrayRow, Some, item_of

if TYPE_CHECKING:
    from lmc.constraints.json_schema.meaning import Meaning

__all__ = ["Counting", "array_rows", "counting", "is_empty_array"]

_MOST_STATES = 2000


def array_rows(node: Node, meaning: Meaning) -> list[ArrayRow]:
    """The arrays that the keywords for arrays allow."""
    value, document = node.value, meaning.document
    true = meaning.formulas.true
    prefix: tuple[Formula, ...] = ()
    rest = true
    items = value.get("items")
    first = "prefixItems" if node.draft > 7 and "prefixItems" in value else None
    if first is None and isinstance(items, list):
        first = "items"
    if first is not None:
        if not isinstance(value[first], list):
            raise refusal(node, first, "it is not a list of schemas")
        places = range(len(value[first]))
        prefix = tuple(meaning.formula(document.below(node, first, i)) for i in places)
    last = "items" if items is not None and first != "items" else None
    if first == "items" and "additionalItems" in value:
        last = "additionalItems"
    if last is not None:
        rest = meaning.formula(document.below(node, last))
    low, high = meaning.bound(node, "minItems") or 0, meaning.bound(node, "maxItems")
    some: tuple[Some, ...] = ()
    if "contains" in value and node.draft > 4:
        least = meaning.bound(node, "minContains") if node.draft > 7 else None
        most = meaning.bound(node, "maxContains") if node.draft > 7 else None
        kind = meaning.formula(document.below(node, "contains"))
        if least != 0 or most is not None:
            some = (Some(0, kind, 1 if least is None else least, most),)
    row = ArrayRow(prefix, rest, low, high, some)
    found = meaning.algebra.both_arrays(row, meaning.algebra.any_array)
    if value.get("uniqueItems") is True:
        found = [r for r in found if _check_unique(node, meaning, r)]
    return found


def _check_unique(node: Node, meaning: Meaning, row: ArrayRow) -> bool:
    """Whether no two items can be equal anyway; refuses what would have to be checked."""
    if (row.high is not None and row.high <= 1) or meaning.waives("uniqueItems"):
        return True
    raise refusal(
        node, "uniqueItems", "items that all differ are not supported",
        hint='waive=("uniqueItems",) compiles the schema without it',
    )  # fmt: skip


def is_empty_array(row: ArrayRow, meaning: Meaning) -> bool:
    """Whether no finite array is in a row."""
    if row.high is not None and row.low > row.high:
        return True
    if row.some:
        return not counting(row, meaning).reaches_end()
    if row.low == 0:
        return False
    if any(meaning.is_empty(f) for f in row.prefix[: row.low]):
        return True
    return row.low > len(row.prefix) and meaning.is_empty(row.rest)


State = tuple[int, tuple[int, ...]]


class Counting:
    """The automaton of a row with kinds of items. A state is (items, items of each kind)."""

    def __init__(self, row: ArrayRow, meaning: Meaning) -> None:
        self.row = row
        self.meaning = meaning
        self.start: State = (0, (0,) * len(row.some))
        starts = [some.start for some in row.some]
        top = row.low if row.high is None else row.high + 1
        self._most = max(1, len(row.prefix), *starts, top)
        self.moves: dict[State, list[tuple[Formula, State]]] = {}
        stack = [self.start]
        while stack:
            state = stack.pop()
            if state in self.moves:
                continue
            if len(self.moves) > _MOST_STATES:
                raise BudgetError(
                    "counting its items takes too many states", hint="lower the counts"
                )
            self.moves[state] = list(self._moves(state))
            stack.extend(after for _, after in self.moves[state])

    def _moves(self, state: State) -> Iterator[tuple[Formula, State]]:
        count, kinds = state
        row, formulas = self.row, self.meaning.formulas
        if row.high is not None and count >= row.high:
            return
        item = item_of(row, count)
        asked = [i for i, some in enumerate(row.some) if count >= some.start]
        for answer in product((True, False), repeat=len(asked)):
            label, after = item, list(kinds)
            for i, yes in zip(asked, answer, strict=True):
                some = row.some[i]
                if yes:
                    label = formulas.both(label, some.formula)
                    after[i] += 1
                    if some.high is None:
                        after[i] = min(after[i], some.low)
                elif some.high is not None or some.formula is formulas.true:
                    # Without an upper bound an item that is of the kind need not be counted.
                    label = formulas.both(label, formulas.neg(some.formula))
            if any(s.high is not None and n > s.high for s, n in zip(row.some, after, strict=True)):
                continue
            if label is not formulas.false and not self.meaning.is_empty(label):
                yield label, (min(count + 1, self._most), tuple(after))

    def accepts(self, state: State) -> bool:
        """Whether an array may end here."""
        count, kinds = state
        enough = all(n >= some.low for some, n in zip(self.row.some, kinds, strict=True))
        return enough and count >= self.row.low

    def reaches_end(self) -> bool:
        """Whether there is any array."""
        return any(self.accepts(state) for state in self.moves)


def counting(row: ArrayRow, meaning: Meaning) -> Counting:
    """The automaton of a row."""
    return Counting(row, meaning)
