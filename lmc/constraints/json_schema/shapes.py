"""Sets of JSON values, one level deep: what is allowed of each type, and formulas for the inside.

A shape is a union of rows for each type. Rows are conjunctions, closed under intersection; the
complement of a row is a few rows. So all of JSON Schema's logic (`allOf`, `oneOf`, `not`, `if`, ..)
is done here, on one level at a time, and what remains to be written down is unions only.

Source      the translation of JSON Schema into tree automata is folklore; see Pezoa et al.,
            Foundations of JSON Schema, WWW 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeVar

from lmc.constraints.budget import BudgetError
from lmc.constraints.json_schema.formulas import Formula, Formulas
from lmc.constraints.json_schema.numbers import ANY_NUMBER, NumberBox
from lmc.constraints.json_schema.strings import ANY_TEXT, TextBox, disjoint

__all__ = [
    "Algebra",
    "ArrayRow",
    "KeyClass",
    "Member",
    "ObjectRow",
    "Order",
    "Shape",
    "Some",
    "SomeKey",
]

_MOST_ROWS = 400


@dataclass(frozen=True, slots=True)
class Some:
    """From `low` to `high` of the items from number `start` on are in `formula`."""

    start: int
    formula: Formula
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class ArrayRow:
    """Arrays: the first items, the others, how many there are, and how many of some kinds."""

    prefix: tuple[Formula, ...]
    rest: Formula
    low: int = 0
    high: int | None = None
    some: tuple[Some, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """A property by name.

    Attributes:
        formula: its value; "false" if it may not occur.
        required: it must occur.
    """

    formula: Formula
    required: bool = False


Order = tuple[tuple[str, ...], ...]
"""The names to which one schema gives a place: the sequences in which they may come."""


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Further properties: their names, and their values."""

    keys: TextBox
    formula: Formula


@dataclass(frozen=True, slots=True)
class SomeKey:
    """There is a further property with such a name and such a value."""

    keys: TextBox
    formula: Formula


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """Objects: properties by name, further ones, how many there are in all.

    Attributes:
        rest: classes of further names without common names; names that are in `names` are never
            meant. What is in no class may not occur.
        some: kinds of further properties of which there is one at least.
        orders: how each schema that had a part in it orders the names that no other did before;
            names of different orders stand among each other as they like, and names in no order
            behind all that are in one.
    """

    names: tuple[tuple[str, Member], ...] = ()
    rest: tuple[KeyClass, ...] = ()
    low: int = 0
    high: int | None = None
    some: tuple[SomeKey, ...] = ()
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A set of JSON values; each field is the part of one type."""

    literals: frozenset[str] = frozenset()  # out of "null", "true", "false"
    numbers: tuple[NumberBox, ...] = ()
    strings: tuple[TextBox, ...] = ()
    arrays: tuple[ArrayRow, ...] = ()
    objects: tuple[ObjectRow, ...] = ()


_Row = TypeVar("_Row", ArrayRow, ObjectRow)
_T = TypeVar("_T")
_LITERALS = frozenset({"null", "true", "false"})


@dataclass(slots=True)
class Algebra:
    """Combines shapes. `is_empty` says whether nothing is in a formula, as far as that is known."""

    formulas: Formulas
    is_empty: Callable[[Formula], bool]
    any_array: ArrayRow = field(init=False)
    any_object: ObjectRow = field(init=False)
    everything: Shape = field(init=False)
    nothing: Shape = field(init=False)

    def __post_init__(self) -> None:
        true = self.formulas.true
        self.any_array = ArrayRow((), true)
        self.any_object = ObjectRow(rest=(KeyClass(ANY_TEXT, true),))
        self.nothing = Shape()
        self.everything = Shape(
            _LITERALS, (ANY_NUMBER,), (ANY_TEXT,), (self.any_array,), (self.any_object,)
        )

    # -- shapes ------------------------------------------------------------------------------

    def both(self, a: Shape, b: Shape) -> Shape:
        """What is in both shapes."""
        if a == self.everything or b == self.everything:
            return b if a == self.everything else a
        return Shape(
            a.literals & b.literals,
            _unique(n for x, y in product(a.numbers, b.numbers) if not (n := x & y).is_empty()),
            _unique(s for x, y in product(a.strings, b.strings) if not (s := x & y).is_empty()),
            self._rows(a.arrays, b.arrays, self.any_array, self.both_arrays),
            self._rows(a.objects, b.objects, self.any_object, self.both_objects),
        )

    def _rows(
        self,
        a: Sequence[_Row],
        b: Sequence[_Row],
        unit: _Row,
        join: Callable[[_Row, _Row], list[_Row]],
    ) -> tuple[_Row, ...]:
        if tuple(a) == (unit,) or tuple(b) == (unit,):
            return tuple(b if tuple(a) == (unit,) else a)
        found: dict[_Row, None] = {}
        for x, y in product(a, b):
            found.update(dict.fromkeys(join(x, y)))
            if len(found) > _MOST_ROWS:
                raise BudgetError(
                    "its conditions multiply to too many cases",
                    hint="split it into fewer alternatives",
                )
        return tuple(found)

    def either(self, shapes: Iterable[Shape]) -> Shape:
        """What is in one of the shapes."""
        all_of = list(shapes)
        if len(all_of) == 1:
            return all_of[0]
        numbers = _unique(n for s in all_of for n in s.numbers)
        strings = _unique(t for s in all_of for t in s.strings)
        listed = [t for t in strings if t.only is not None]
        if len(listed) > 1:
            joined = TextBox.just(t for box in listed for t in box.only or ())
            strings = (joined, *(t for t in strings if t.only is None))
        arrays = _unique(r for s in all_of for r in s.arrays)
        objects = _unique(r for s in all_of for r in s.objects)
        return Shape(
            frozenset().union(*(s.literals for s in all_of)),
            (ANY_NUMBER,) if ANY_NUMBER in numbers else numbers,
            (ANY_TEXT,) if ANY_TEXT in strings else strings,
            (self.any_array,) if self.any_array in arrays else arrays,
            (self.any_object,) if self.any_object in objects else objects,
        )

    def complement(self, shape: Shape) -> Shape:
        """What is not in a shape."""
        found = Shape(
            _LITERALS - shape.literals,
            (ANY_NUMBER,),
            (ANY_TEXT,),
            (self.any_array,),
            (self.any_object,),
        )
        for number in shape.numbers:
            found = self.both(found, replace(self.everything, numbers=tuple(number.complement())))
        for text in shape.strings:
            found = self.both(found, replace(self.everything, strings=tuple(text.complement())))
        for array in shape.arrays:
            others = tuple(self.other_arrays(array))
            found = self.both(found, replace(self.everything, arrays=others))
        for row in shape.objects:
            found = self.both(
                found, replace(self.everything, objects=tuple(self.other_objects(row)))
            )
        return found

    # -- arrays ------------------------------------------------------------------------------

    def both_arrays(self, a: ArrayRow, b: ArrayRow) -> list[ArrayRow]:
        """The arrays that are in both rows, as at most one row."""
        size = max(len(a.prefix), len(b.prefix))
        prefix = tuple(self.formulas.both(item_of(a, i), item_of(b, i)) for i in range(size))
        rest = self.formulas.both(a.rest, b.rest)
        highs = [h for h in (a.high, b.high) if h is not None]
        low, high = max(a.low, b.low), min(highs, default=None)
        return self._tidy(ArrayRow(prefix, rest, low, high, _unique((*a.some, *b.some))))

    def _tidy(self, row: ArrayRow) -> list[ArrayRow]:
        """The row with what can never be left out; nothing if no array is in it."""
        prefix, rest, high = row.prefix, row.rest, row.high
        false = self.formulas.false
        for i, formula in enumerate(prefix):
            if formula is false and (high is None or high > i):
                high = i
        if rest is false and (high is None or high > len(prefix)):
            high = len(prefix)
        if high is not None:
            prefix = prefix[:high]
            if high <= len(prefix):
                rest = false
        if high is not None and row.low > high:
            return []
        return [ArrayRow(prefix, rest, row.low, high, row.some)]

    def other_arrays(self, row: ArrayRow) -> list[ArrayRow]:
        """The arrays that are not in a row."""
        true, neg = self.formulas.true, self.formulas.neg
        found = []
        if row.low:
            found.append(ArrayRow((), true, high=row.low - 1))
        if row.high is not None:
            found.append(ArrayRow((), true, low=row.high + 1))
        for i, formula in enumerate(row.prefix):
            if formula is not true:
                found.append(ArrayRow((*(true,) * i, neg(formula)), true, low=i + 1))
        if row.rest is not true:
            start = len(row.prefix)
            if row.rest is self.formulas.false:
                found.append(ArrayRow((), true, low=start + 1))
            else:
                found.append(ArrayRow((), true, some=(Some(start, neg(row.rest), 1, None),)))
        for some in row.some:
            if some.low:
                found.append(ArrayRow((), true, some=(replace(some, low=0, high=some.low - 1),)))
            if some.high is not None:
                more = replace(some, low=some.high + 1, high=None)
                found.append(ArrayRow((), true, some=(more,)))
        return [r for row_ in found for r in self._tidy(row_)]

    # -- objects -----------------------------------------------------------------------------

    def value_of(self, row: ObjectRow, name: str) -> Formula:
        """The values of a property that a row does not name."""
        for group in row.rest:
            if group.keys.holds(name):
                return group.formula
        return self.formulas.false

    def both_objects(self, a: ObjectRow, b: ObjectRow) -> list[ObjectRow]:
        """The objects that are in both rows."""
        names = self._both_names(a, b)
        if names is None:
            return []
        rest = []
        for x, y in product(a.rest, b.rest):
            formula = self.formulas.both(x.formula, y.formula)
            if formula is self.formulas.false:
                continue
            keys = x.keys & y.keys
            if not keys.is_empty():
                rest.append(KeyClass(keys, formula))
        highs = [h for h in (a.high, b.high) if h is not None]
        row = ObjectRow(
            names, tuple(rest), max(a.low, b.low), min(highs, default=None),
            _unique((*a.some, *b.some)), _both_orders(a.orders, b.orders),
        )  # fmt: skip
        return self._settled(row)

    def _both_names(self, a: ObjectRow, b: ObjectRow) -> tuple[tuple[str, Member], ...] | None:
        mine, theirs = dict(a.names), dict(b.names)
        names: dict[str, Member] = {}
        for name in dict.fromkeys((*mine, *theirs)):
            x, y = mine.get(name), theirs.get(name)
            formula = self.formulas.both(
                x.formula if x else self.value_of(a, name),
                y.formula if y else self.value_of(b, name),
            )
            required = bool((x and x.required) or (y and y.required))
            if required and formula is self.formulas.false:
                return None
            names[name] = Member(formula, required)
        return tuple(names.items())

    def _settled(self, row: ObjectRow) -> list[ObjectRow]:
        """Rows in which what there must be some of is none of the named properties."""
        if row.high is not None and row.low > row.high:
            return []
        if row.high is not None and sum(m.required for _, m in row.names) > row.high:
            return []
        if not row.rest:
            possible = sum(m.formula is not self.formulas.false for _, m in row.names)
            if row.low > possible:
                return []
        for n, some in enumerate(row.some):
            for name, member in row.names:
                if some.keys.holds(name):
                    others = (*row.some[:n], *row.some[n + 1 :])
                    here = self.formulas.both(member.formula, some.formula)
                    found = []
                    if here is not self.formulas.false:
                        names = dict(row.names)
                        names[name] = replace(member, formula=here, required=True)
                        found += self._settled(
                            replace(row, names=tuple(names.items()), some=others)
                        )
                    less = replace(some, keys=some.keys.excluding(frozenset({name})))
                    if not less.keys.is_empty():
                        kept = (*row.some[:n], less, *row.some[n + 1 :])
                        found += self._settled(replace(row, some=kept))
                    return found
        return [row]

    def other_objects(self, row: ObjectRow) -> list[ObjectRow]:
        """The objects that are not in a row."""
        true, false, neg = self.formulas.true, self.formulas.false, self.formulas.neg
        free = (KeyClass(ANY_TEXT, true),)
        found = []
        for name, member in row.names:
            if member.required:
                absent = Member(false)
                found.append(ObjectRow(((name, absent),), free))
            if member.formula is not true:
                other = Member(neg(member.formula), required=True)
                found.append(ObjectRow(((name, other),), free))
        names = frozenset(name for name, _ in row.names)
        outside = [ANY_TEXT.excluding(names)]
        for group in row.rest:
            outside = disjoint(
                part for box in outside for other in group.keys.complement()
                if not (part := box & other).is_empty()
            )  # fmt: skip
            keys = group.keys.excluding(names)
            if group.formula is not true and not keys.is_empty():
                found.append(ObjectRow((), free, some=(SomeKey(keys, neg(group.formula)),)))
        found += [ObjectRow((), free, some=(SomeKey(keys, true),)) for keys in outside]
        if row.low:
            found.append(ObjectRow((), free, high=row.low - 1))
        if row.high is not None:
            found.append(ObjectRow((), free, low=row.high + 1))
        for some in row.some:
            rest = [KeyClass(some.keys, neg(some.formula))]
            rest += [KeyClass(keys, true) for keys in some.keys.complement()]
            rest = [group for group in rest if group.formula is not false]
            found.append(ObjectRow((), tuple(rest)))
        return found


def _both_orders(a: tuple[Order, ...], b: tuple[Order, ...]) -> tuple[Order, ...]:
    """The orders of `a`, and those of `b` for the names that have no place in `a`."""
    if not a or not b:
        return a or b
    placed = {name for order in a for name in order[0]}
    rest = (_unique(tuple(n for n in s if n not in placed) for s in order) for order in b)
    return (*a, *(order for order in rest if order[0]))


def item_of(row: ArrayRow, index: int) -> Formula:
    """The values of the item with that number."""
    return row.prefix[index] if index < len(row.prefix) else row.rest


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))
