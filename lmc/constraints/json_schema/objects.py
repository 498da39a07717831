"""Objects: what the keywords say, whether anything is left, and the automaton of members.

Properties with a place come in the order of the schema. Behind them stand, in any order, the
properties that are only asked for by name, and further ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from lmc.constraints.budget import BudgetError
from lmc.constraints.json_schema.document import Node, refusal
from lmc.constraints.json_schema.formulas import Formula
from lmc.constraints.json_schema.shapes import KeyClass, Member, ObjectRow, Order
from lmc.constraints.json_schema.strings import ANY_TEXT, TextBox, disjoint

if TYPE_CHECKING:
    from lmc.constraints.json_schema.meaning import Meaning

__all__ = ["Key", "Members", "State", "classes", "is_empty_object", "members", "object_rows"]

_MOST_FREE = 4  # properties whose order is left open
_MOST_PLACES = 200  # where several orders may stand together
_MOST_CLASSES = 64
_MOST_STATES = 4000


def object_rows(node: Node, meaning: Meaning) -> list[ObjectRow]:
    """The objects that the keywords for objects allow."""
    value, document, formulas = node.value, meaning.document, meaning.formulas
    properties = _mapping(node, "properties")
    patterns = _mapping(node, "patternProperties")
    other = formulas.true
    if "additionalProperties" in value:
        other = meaning.formula(document.below(node, "additionalProperties"))
    boxes = [
        (meaning.pattern(node, f"patternProperties/{p}", p),
         meaning.formula(document.below(node, "patternProperties", p)))
        for p in patterns
    ]  # fmt: skip

    def by_pattern(name: str) -> list[Formula]:
        return [formula for box, formula in boxes if box.holds(name)]

    needed = _required(node)
    names: dict[str, Member] = {}
    for name in properties:
        own = meaning.formula(document.below(node, "properties", name))
        names[name] = Member(formulas.both(own, *by_pattern(name)), name in needed)
    for name in needed:
        if name not in names:
            found = by_pattern(name)
            formula = formulas.both(*found) if found else other
            names[name] = Member(formula, required=True)
    if node.draft == 3:
        for name, said in properties.items():
            if isinstance(said, dict) and said.get("required") is True:
                names[name] = replace(names[name], required=True)
    rest = classes(node, boxes, other, meaning)
    if "propertyNames" in value and node.draft > 4:
        allowed = disjoint(
            meaning.shape(meaning.formula(document.below(node, "propertyNames"))).strings
        )
        for name, member in names.items():
            if not any(box.holds(name) for box in allowed):
                names[name] = replace(member, formula=formulas.false)
        rest = [
            KeyClass(keys, group.formula)
            for group in rest
            for box in allowed
            if not (keys := group.keys & box).is_empty()
        ]
    rest = _listed(rest, names)
    row = ObjectRow(
        tuple(names.items()), tuple(rest), meaning.bound(node, "minProperties") or 0,
        meaning.bound(node, "maxProperties"), orders=_orders(properties, needed),
    )  # fmt: skip
    return meaning.algebra.both_objects(row, meaning.algebra.any_object)


def _orders(properties: Mapping[str, object], needed: Sequence[str]) -> tuple[Order, ...]:
    """As the properties are written; or as `required` lists them, if it lists all of them."""
    if not properties:
        return ()
    written = tuple(properties)
    listed = tuple(dict.fromkeys(name for name in needed if name in properties))
    return ((written, listed) if listed != written and len(listed) == len(written) else (written,),)


def _mapping(node: Node, keyword: str) -> dict[str, object]:
    found = node.value.get(keyword, {})
    if not isinstance(found, dict):
        raise refusal(node, keyword, "it is not an object")
    return found


def _required(node: Node) -> list[str]:
    said = node.value.get("required", [])
    if isinstance(said, bool) and node.draft <= 4:
        return []  # draft 3 writes it into the property; see `object_rows`
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise refusal(node, "required", f"it must be a list of names, not {said!r}")
    return said


def classes(
    node: Node, boxes: list[tuple[TextBox, Formula]], other: Formula, meaning: Meaning
) -> list[KeyClass]:
    """Further names by which of the patterns they match."""
    formulas = meaning.formulas
    groups: list[tuple[TextBox, list[Formula]]] = [(ANY_TEXT, [])]
    for box, formula in boxes:
        split = []
        for keys, found in groups:
            split += [(keys & box, [*found, formula])]
            split += [(keys & rest, found) for rest in box.complement()]
        groups = [(keys, found) for keys, found in split if not keys.is_empty()]
        if len(groups) > _MOST_CLASSES:
            raise refusal(
                node, "patternProperties", "the patterns overlap in too many ways",
                hint="use fewer patterns, or such that exclude each other",
            )  # fmt: skip
    classes = [KeyClass(keys, formulas.both(*found) if found else other) for keys, found in groups]
    return [group for group in classes if group.formula is not formulas.false]


def _listed(rest: list[KeyClass], names: dict[str, Member]) -> list[KeyClass]:
    """Classes without those that are but a list of names; these join `names`."""
    kept = []
    for group in rest:
        if group.keys.only is None:
            kept.append(group)
        else:
            for name in sorted(group.keys.only - names.keys()):
                names[name] = Member(group.formula)
    return kept


def is_empty_object(row: ObjectRow, meaning: Meaning) -> bool:
    """Whether no finite object is in a row."""
    if any(m.required and meaning.is_empty(m.formula) for _, m in row.names):
        return True
    needed = sum(m.required for _, m in row.names)
    if row.high is not None and needed > row.high:
        return True
    if row.some:
        return not members(row, meaning).reaches_end()
    if row.low <= needed:
        return False
    if any(not meaning.is_empty(group.formula) for group in row.rest):
        return False  # a class without a list has more names than anyone asks for
    possible = sum(not meaning.is_empty(m.formula) for _, m in row.names)
    return possible < row.low


@dataclass(frozen=True, slots=True)
class Key:
    """How a member begins: just this name, or any of a class."""

    name: str | None
    keys: TextBox | None


Place = tuple[int, int]
"""Where an order stands: the sequence that is followed (-1: none yet), and how far it came."""

State = tuple[tuple[Place, ...], frozenset[int], frozenset[int], int]


class Members:
    """The automaton of a row. A state is (places in the orders, free names used, kinds met, count).

    Attributes:
        orders: the properties with a place: for each order its sequences.
        free: those without one.
        moves: from each state, the members that may come, and the state after them.
    """

    def __init__(self, row: ObjectRow, meaning: Meaning) -> None:
        self.row = row
        self.meaning = meaning
        names = {n: m for n, m in row.names if not meaning.is_empty(m.formula)}
        self.orders = list(_sequences(row.orders, names))
        placed = {name for order in self.orders for name, _ in order[0]}
        self.free = [(n, m) for n, m in names.items() if n not in placed]
        if len(self.free) > _MOST_FREE:
            if len(self.orders) != 1:
                self.orders.append([[]])
            self.orders[-1] = [sequence + self.free for sequence in self.orders[-1]]
            self.free = []
        while len(self.orders) > 1 and prod(map(_size, self.orders)) > _MOST_PLACES:
            last = self.orders.pop()
            self.orders[-1] = [self.orders[-1][0] + last[0]]
        taken = frozenset(n for n, _ in row.names)
        self.rest = [
            (group.keys.excluding(taken), group.formula)
            for group in row.rest
            if not meaning.is_empty(group.formula)
        ]
        needed = sum(m.required for m in names.values())
        self.counts = row.low > needed or row.high is not None
        self.most = max(row.low, 1) if row.high is None else row.high
        places = tuple((-1 if len(order) > 1 else 0, 0) for order in self.orders)
        self._ends = tuple((0, len(order[0])) for order in self.orders)
        self.start: State = (places, frozenset(), frozenset(), 0)
        self.moves: dict[State, list[tuple[Key, Formula, State]]] = {}

    @property
    def chain(self) -> list[tuple[str, Member]] | None:
        """The properties, if their order leaves nothing to remember but who came before."""
        if self.free or self.row.some or self.counts or len(self.orders) > 1:
            return None
        if not self.orders:
            return []
        return self.orders[0][0] if len(self.orders[0]) == 1 else None

    def explore(self) -> None:
        """Fill `moves`."""
        stack = [self.start]
        while stack:
            state = stack.pop()
            if state in self.moves:
                continue
            if len(self.moves) > _MOST_STATES:
                raise BudgetError(
                    "counting its properties takes too many states", hint="lower the counts"
                )
            self.moves[state] = list(self._moves(state))
            stack.extend(after for _, _, after in self.moves[state])

    def _moves(self, state: State) -> Iterator[tuple[Key, Formula, State]]:
        places, used, met, count = state
        row, formulas = self.row, self.meaning.formulas
        if row.high is not None and count >= row.high:
            return
        after = min(count + 1, self.most) if self.counts else 1
        for n, place in enumerate(places):
            for name, member, next_place in self._next(n, place):
                moved = (*places[:n], next_place, *places[n + 1 :])
                yield Key(name, None), member.formula, (moved, used, met, after)
        if self._is_owed(places):
            return
        end = self._ends
        for i, (name, member) in enumerate(self.free):
            if i not in used:
                yield Key(name, None), member.formula, (end, used | {i}, met, after)
        for keys, formula in self.rest:
            found = [(keys, formula, met)]
            # One property may be of several kinds at once.
            for i, some in enumerate(row.some):
                if i in met:
                    continue
                for names, value, kinds in list(found):
                    both = formulas.both(value, some.formula)
                    common = names & some.keys
                    if not common.is_empty() and not self.meaning.is_empty(both):
                        found.append((common, both, kinds | {i}))
            for names, value, kinds in found:
                yield Key(None, names), value, (end, used, kinds, after)

    def _next(self, n: int, place: Place) -> Iterator[tuple[str, Member, Place]]:
        """The properties that order number `n` lets come next, and where it stands after each."""
        order, (which, at) = self.orders[n], place
        for number in range(len(order)) if which < 0 else (which,):
            sequence = order[number]
            for i in range(at, len(sequence)):
                name, member = sequence[i]
                # Where nothing else is left than in the first sequence, that one is followed.
                same = number and sequence[i + 1 :] == order[0][i + 1 :]
                yield name, member, (0 if same else number, i + 1)
                if member.required:
                    break

    def _is_owed(self, places: tuple[Place, ...]) -> bool:
        """Whether a property that is required has not come, out of those with a place."""
        return any(
            member.required
            for order, (which, at) in zip(self.orders, places, strict=True)
            for _, member in order[max(which, 0)][at:]
        )

    def accepts(self, state: State) -> bool:
        """Whether an object may end here."""
        places, used, met, count = state
        return (
            not self._is_owed(places)
            and all(i in used or not m.required for i, (_, m) in enumerate(self.free))
            and len(met) == len(self.row.some)
            and (not self.counts or count >= self.row.low)
        )

    def reaches_end(self) -> bool:
        """Whether there is any object."""
        self.explore()
        return any(self.accepts(state) for state in self.moves)


def _sequences(
    orders: tuple[Order, ...], names: dict[str, Member]
) -> Iterator[list[list[tuple[str, Member]]]]:
    """The orders with the members of those names that are left; each sequence once."""
    for order in orders:
        kept = dict.fromkeys(tuple(n for n in sequence if n in names) for sequence in order)
        found = [[(n, names[n]) for n in sequence] for sequence in kept]
        if found[0]:
            yield found


def _size(order: list[list[tuple[str, Member]]]) -> int:
    """How many places an order has."""
    return sum(map(len, order)) + 1


def members(row: ObjectRow, meaning: Meaning) -> Members:
    """The automaton of a row."""
    return Members(row, meaning)
