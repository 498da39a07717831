"""Arrays: what the keywords say, whether anything is left, and the automaton of items.

Where some items must, or must not, be of a kind (`contains`), an array is a small automaton whose
states count: how many items there were, and how many of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from lmc.constraints.budget import BudgetError
from lmc.constraints.json_schema.document import Node, refusal
from lmc.constraints.json_schema.formulas import Formula
from lmc.constraints.json_schema.shapes import ArrayRow, Some, item_of

if TYPE_CHECKING:
    from lmc.constraints.json_schema.meaning import Meaning

__all__ = ["Counting", "array_rows", "counting", "is_empty_array"]

_MOST_STATES = 2000
_MOST_VALUES = 8  # of items that all differ


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
    if value.get("uniqueItems") is True and not meaning.waives("uniqueItems"):
        found = [
            r if r.high is not None and r.high <= 1
            else replace(r, some=(*r.some, *_each_once(node, r, meaning)))
            for r in found
        ]  # fmt: skip
    return found


def _each_once(node: Node, row: ArrayRow, meaning: Meaning) -> Iterator[Some]:
    """That no value is an item twice; refuses items of which there are too many values."""
    values: dict[tuple[type, object], object] = {}
    for formula in (*row.prefix, row.rest):
        listed = _values(formula, meaning)
        values.update({(type(value), value): value for value in listed or ()})
        if listed is None or len(values) > _MOST_VALUES:
            raise refusal(
                node, "uniqueItems", "items that all differ are supported only where there are "
                f"{_MOST_VALUES} values for them at most, none of them an array or object",
                hint='waive=("uniqueItems",) compiles the schema without it',
            )  # fmt: skip
    for i, value in enumerate(values.values()):
        pointer = f"{node.pointer}/uniqueItems/{i}"
        yield Some(0, meaning.constant(value, node, pointer), 0, 1)


def _values(formula: Formula, meaning: Meaning) -> list[object] | None:
    """The values of a formula, if they are few and no arrays or objects; else None."""
    if meaning.is_open(formula):
        return None
    shape = meaning.shape(formula)
    if shape.arrays or shape.objects:
        return None
    found: list[object] = [{"null": None, "true": True, "false": False}[t] for t in shape.literals]
    for text in shape.strings:
        if text.only is None:
            return None
        found += sorted(text.only)
    for box in shape.numbers:
        numbers = box.listed(_MOST_VALUES)
        if numbers is None:
            return None
        found += (Decimal(n.numerator) / n.denominator for n in numbers)
    return found


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
        self._known: dict[
            tuple[Formula, tuple[int, ...]], list[tuple[Formula, tuple[int, ...]]]
        ] = {}
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
        row = self.row
        if row.high is not None and count >= row.high:
            return
        item = item_of(row, count)
        asked = tuple(i for i, some in enumerate(row.some) if count >= some.start)
        for label, of_kind in self._answers(item, asked):
            after = list(kinds)
            for i in of_kind:
                after[i] += 1
                if row.some[i].high is None:
                    after[i] = min(after[i], row.some[i].low)
            if any(s.high is not None and n > s.high for s, n in zip(row.some, after, strict=True)):
                continue
            yield label, (min(count + 1, self._most), tuple(after))

    def _answers(
        self, item: Formula, asked: tuple[int, ...]
    ) -> list[tuple[Formula, tuple[int, ...]]]:
        """An item by which of the kinds that are asked for it is of."""
        found = self._known.get((item, asked))
        if found is None:
            formulas = self.meaning.formulas
            found = [(item, ())]
            for i in asked:
                some, split = self.row.some[i], []
                for label, of_kind in found:
                    other = label
                    if some.high is not None or some.formula is formulas.true:
                        # Without an upper bound an item of the kind need not be counted.
                        other = formulas.both(label, formulas.neg(some.formula))
                    split += [
                        (formulas.both(label, some.formula), (*of_kind, i)), (other, of_kind),
                    ]  # fmt: skip
                found = [s for s in split if not self.meaning.is_empty(s[0])]
            self._known[item, asked] = found
        return found

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
