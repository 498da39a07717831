"""Formulas: schemas combined by and, or and not, before anything is known of what they mean.

Equal formulas are the same object. They are what items and properties hold, so that a schema that
refers to itself is a formula that occurs below itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmc.constraints.json_schema.document import Node

__all__ = ["Formula", "Formulas"]


class Formula:
    """Made by a `Formulas` only; compared by identity.

    Attributes:
        kind: "true", "false", "schema", "and", "or" or "not".
        args: a node of the document, or formulas.
        number: order of making; sorts the members of sets.
    """

    __slots__ = ("args", "kind", "number")

    def __init__(self, kind: str, args: tuple[Node | Formula, ...], number: int) -> None:
        self.kind = kind
        self.args = args
        self.number = number

    @property
    def node(self) -> Node:
        """The place of a formula that is a schema."""
        node = self.args[0]
        assert isinstance(node, Node)
        return node

    @property
    def parts(self) -> tuple[Formula, ...]:
        """What a formula is combined of."""
        return tuple(a for a in self.args if isinstance(a, Formula))

    def __repr__(self) -> str:
        if self.kind == "schema":
            return self.node.pointer or "/"
        return f"{self.kind}({', '.join(map(repr, self.args))})" if self.args else self.kind


class Formulas:
    """Makes the formulas of one compilation."""

    def __init__(self) -> None:
        self._made: dict[tuple[str | Node | Formula, ...], Formula] = {}
        self.true = self._make("true", ())
        self.false = self._make("false", ())

    def _make(self, kind: str, args: Sequence[Node | Formula]) -> Formula:
        key = (kind, *args)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Formula(kind, tuple(args), len(self._made))
        return found

    def schema(self, node: Node) -> Formula:
        """What is valid at a place of the document."""
        return self._make("schema", (node,))

    def both(self, *formulas: Formula) -> Formula:
        """What is in all of them."""
        return self._joined("and", self.true, self.false, formulas)

    def either(self, *formulas: Formula) -> Formula:
        """What is in one of them."""
        return self._joined("or", self.false, self.true, formulas)

    def _joined(
        self, kind: str, unit: Formula, zero: Formula, formulas: Iterable[Formula]
    ) -> Formula:
        members: set[Formula] = set()
        for formula in formulas:
            if formula is zero:
                return zero
            if formula.kind == kind:
                members.update(formula.parts)
            elif formula is not unit:
                members.add(formula)
        if any(f.kind == "not" and f.parts[0] in members for f in members):
            return zero
        if not members:
            return unit
        if len(members) == 1:
            return members.pop()
        ordered = sorted(members, key=_number)
        return self._make(kind, ordered)

    def neg(self, formula: Formula) -> Formula:
        """What is not in it."""
        if formula.kind == "not":
            return formula.parts[0]
        if formula is self.true:
            return self.false
        if formula is self.false:
            return self.true
        return self._make("not", (formula,))


def _number(formula: Formula) -> int:
    return formula.number
