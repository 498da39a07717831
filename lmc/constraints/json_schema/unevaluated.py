"""`unevaluatedProperties` and `unevaluatedItems`: what the other keywords did not look at.

Which properties and items were looked at depends on which of the schemas in place are met (`anyOf`,
`if`, ..). So a schema is taken apart into cases: shapes, each with what is surely looked at in it.
More having been looked at never makes a value invalid; so it is enough that the cases cover all
values, and that each value lies in the one in which most was looked at.

Source      JSON Schema 2020-12, core, sections 7.7 and 11; 2019-09 differs in `contains`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lmc.constraints.json_schema.document import Node, refusal
from lmc.constraints.json_schema.formulas import Formula
from lmc.constraints.json_schema.objects import classes
from lmc.constraints.json_schema.shapes import ArrayRow, Member, ObjectRow, Shape

if TYPE_CHECKING:
    from lmc.constraints.json_schema.meaning import Meaning

__all__ = ["UNEVALUATED", "shape_of_cases"]

UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_MOST_CASES = 128


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was looked at.

    Attributes:
        names, patterns: properties, by name and by the patterns of their names.
        every_name: all properties.
        items: so many of the first items.
        kinds: the items that are in one of these.
        every_item: all items.
    """

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    every_name: bool = False
    items: int = 0
    kinds: frozenset[Formula] = frozenset()
    every_item: bool = False

    def __or__(self, other: _Seen) -> _Seen:
        return _Seen(
            self.names | other.names,
            self.patterns | other.patterns,
            self.every_name or other.every_name,
            max(self.items, other.items),
            self.kinds | other.kinds,
            self.every_item or other.every_item,
        )


_Case = tuple[Shape, _Seen]
_NOTHING = _Seen()


def shape_of_cases(node: Node, meaning: Meaning) -> Shape:
    """What is valid under a schema that speaks of what is not evaluated.

    Raises:
        ConstraintError: there are too many cases, or one of its schemas cannot be honoured.
    """
    return meaning.algebra.either(shape for shape, _ in _Cases(node, meaning).of(node))


class _Cases:
    """Takes the schemas apart that stand in the place of `root`."""

    def __init__(self, root: Node, meaning: Meaning) -> None:
        self.root = root
        self.meaning = meaning
        self.open: set[Node] = set()

    def of(self, node: Node) -> list[_Case]:
        algebra = self.meaning.algebra
        if isinstance(node.value, bool):
            return [(algebra.everything if node.value else algebra.nothing, _NOTHING)]
        if node in self.open:
            raise refusal(node, "", "the schema refers to itself with nothing in between")
        self.open.add(node)
        plain = self.meaning.without_branches(node)
        cases = [(plain, self._own(node))]
        for keyword in node.value:
            if keyword in self.meaning.branching:
                cases = self._both(cases, self._branches(node, keyword))
        for keyword in UNEVALUATED:
            if keyword in node.value and not self.meaning.waives(keyword):
                cases = self._joined(
                    (algebra.both(shape, self._rest(node, keyword, seen)), self._all(keyword, seen))
                    for shape, seen in cases
                )
        self.open.remove(node)
        return cases

    def _own(self, node: Node) -> _Seen:
        """What the keywords of a schema by themselves look at."""
        value, below = node.value, self.meaning.document.below
        items = value.get("items")
        listed = value.get("prefixItems") if node.draft > 2019 else None
        if listed is None and isinstance(items, list):
            listed = items
        kinds: frozenset[Formula] = frozenset()
        if "contains" in value and node.draft > 2019:
            kinds = frozenset({self.meaning.formula(below(node, "contains"))})
        return _Seen(
            frozenset(value.get("properties", ())),
            frozenset(value.get("patternProperties", ())),
            "additionalProperties" in value,
            len(listed) if isinstance(listed, list) else 0,
            kinds,
            isinstance(items, dict | bool)
            or (isinstance(items, list) and "additionalItems" in value),
        )

    def _all(self, keyword: str, seen: _Seen) -> _Seen:
        if keyword == "unevaluatedProperties":
            return replace(seen, names=frozenset(), patterns=frozenset(), every_name=True)
        return replace(seen, items=0, kinds=frozenset(), every_item=True)

    def _rest(self, node: Node, keyword: str, seen: _Seen) -> Shape:
        """The values of which all that was not looked at is as the keyword says."""
        meaning = self.meaning
        everything, true = meaning.algebra.everything, meaning.formulas.true
        said = meaning.formula(meaning.document.below(node, keyword))
        if keyword == "unevaluatedItems":
            if seen.every_item:
                return everything
            rest = meaning.formulas.either(said, *seen.kinds)
            return replace(everything, arrays=(ArrayRow((true,) * seen.items, rest),))
        if seen.every_name:
            return everything
        boxes = [(meaning.pattern(node, keyword, p), true) for p in sorted(seen.patterns)]
        names = tuple((name, Member(true)) for name in sorted(seen.names))
        groups = tuple(classes(node, boxes, said, meaning))
        return replace(everything, objects=(ObjectRow(names, groups),))

    # -- schemas in place --------------------------------------------------------------------

    def _branches(self, node: Node, keyword: str) -> list[_Case]:
        meaning, below = self.meaning, self.meaning.document.below
        algebra, value = meaning.algebra, node.value
        match keyword:
            case "$ref" | "$dynamicRef" | "$recursiveRef":
                return self.of(meaning.document.target(node, keyword))
            case "allOf":
                cases: list[_Case] = [(algebra.everything, _NOTHING)]
                for part in meaning.parts(node, keyword):
                    cases = self._both(cases, self.of(part))
                return cases
            case "anyOf":
                return self._any_of(meaning.parts(node, keyword))
            case "oneOf":
                parts = meaning.parts(node, keyword)
                alone = meaning.exclusive(node, [meaning.formula(part) for part in parts])
                return self._joined(
                    (algebra.both(shape, only), seen)
                    for part, only in zip(parts, alone, strict=True)
                    for shape, seen in self.of(part)
                )
            case "if":
                condition = below(node, "if")
                yes = self.of(condition)
                no: list[_Case] = [(meaning.complement_of(condition), _NOTHING)]
                if "then" in value:
                    yes = self._both(yes, self.of(below(node, "then")))
                if "else" in value:
                    no = self._both(no, self.of(below(node, "else")))
                return self._joined([*yes, *no])
            case _:
                cases = [(algebra.everything, _NOTHING)]
                for name in value[keyword]:
                    absent, there = meaning.without_name(name), meaning.with_name(name)
                    then = self._both([(there, _NOTHING)], self.of(below(node, keyword, name)))
                    cases = self._both(cases, [(absent, _NOTHING), *then])
                return cases

    def _any_of(self, parts: list[Node]) -> list[_Case]:
        """One case for each choice of schemas that are met; others may be met besides."""
        none: list[_Case] = [(self.meaning.algebra.everything, _NOTHING)]
        found: list[_Case] = []
        for part in parts:
            here = self.of(part)
            found = self._joined([*found, *self._both([*none, *found], here)])
        return found

    def _both(self, a: list[_Case], b: list[_Case]) -> list[_Case]:
        both = self.meaning.algebra.both
        return self._joined((both(x, y), s | t) for x, s in a for y, t in b)

    def _joined(self, cases: Iterable[_Case]) -> list[_Case]:
        """The cases in which the same was looked at as one."""
        by_seen: dict[_Seen, list[Shape]] = {}
        nothing = self.meaning.algebra.nothing
        for shape, seen in cases:
            if shape != nothing:
                shapes = by_seen.setdefault(seen, [])
                if shape not in shapes:
                    shapes.append(shape)
        if len(by_seen) > _MOST_CASES:
            raise refusal(
                self.root, "", "what is evaluated depends on too many conditions",
                hint=f"waive={UNEVALUATED} compiles the schema without these keywords",
            )  # fmt: skip
        return [(self.meaning.algebra.either(s), seen) for seen, s in by_seen.items()]
