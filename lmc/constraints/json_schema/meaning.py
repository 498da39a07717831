"""What schemas mean: formulas become shapes, one level at a time.

Owns        the shapes of one compilation.
Promises    every keyword that asserts something is honoured, or refused with its place, or waived
            by name. What asserts nothing (`title`, `default`, unknown words) is passed over, as
            the specification says.
Costs       a shape is made once a formula, when someone asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from lmc.constraints.json_schema.arrays import array_rows, is_empty_array
from lmc.constraints.json_schema.document import Document, Node, fraction, refusal
from lmc.constraints.json_schema.formats import format_atom, format_range, is_free_format
from lmc.constraints.json_schema.formulas import Formula, Formulas
from lmc.constraints.json_schema.numbers import NumberBox
from lmc.constraints.json_schema.objects import is_empty_object, object_rows
from lmc.constraints.json_schema.shapes import Algebra, ArrayRow, KeyClass, Member, ObjectRow, Shape
from lmc.constraints.json_schema.strings import ANY_TEXT, TextBox, pattern_atom
from lmc.constraints.json_schema.unevaluated import UNEVALUATED, shape_of_cases
from lmc.errors import ConstraintError

__all__ = ["Meaning"]

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_SILENT = frozenset(
    {
        "$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema",
        "$vocabulary",
        "default", "definitions", "deprecated", "description", "discriminator", "examples", "id",
        "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
_MOST_BRANCHES = 256


class Meaning:
    """See the module's text.

    Args:
        document: whose schemas they are.
        waive: keywords that are dropped where they cannot be honoured, or one of them.

    Raises:
        ConstraintError: one of `waive` is no keyword.
    """

    def __init__(self, document: Document, waive: Collection[str] = ()) -> None:
        self.document = document
        self.waive = frozenset((waive,) if isinstance(waive, str) else waive)
        for name in sorted(self.waive - _KEYWORDS):
            raise _no_keyword(name)
        self.formulas = Formulas()
        self.algebra = Algebra(self.formulas, self.is_empty)
        self._shapes: dict[Formula, Shape] = {}
        self._opened: dict[Node, None] = {}
        self._empty: dict[Formula, bool] = {}
        self._asking: dict[Formula, int] = {}
        self._lowest_asked = 0

    # -- formulas ----------------------------------------------------------------------------

    def formula(self, node: Node) -> Formula:
        """What is valid at a place; places that only refer to another are that other one."""
        seen = set()
        while isinstance(node.value, dict) and "$ref" in node.value:
            others = node.value.keys() - _SILENT - {"$ref"}
            if (others and node.draft > 7) or node in seen:
                break
            seen.add(node)
            node = self.document.target(node)
        if node.value is False:
            return self.formulas.false
        if node.value is True or not (node.value.keys() - _SILENT):
            return self.formulas.true
        return self.formulas.schema(node)

    def constant(self, value: Any, node: Node, pointer: str) -> Formula:  # noqa: ANN401 - JSON
        """Just one value."""
        return self.formulas.schema(self.document.made({"const": value}, pointer, node))

    def shape(self, formula: Formula) -> Shape:
        """What is in a formula, one level deep."""
        found = self._shapes.get(formula)
        if found is None:
            found = self._shapes[formula] = self._shape(formula)
        return found

    def is_open(self, formula: Formula) -> bool:
        """Whether it is a schema whose shape is being made just now."""
        return formula.kind == "schema" and formula.node in self._opened

    def _shape(self, formula: Formula) -> Shape:
        algebra = self.algebra
        match formula.kind:
            case "true":
                return algebra.everything
            case "false":
                return algebra.nothing
            case "schema":
                return self._shape_of_schema(formula.node)
            case "and":
                shape = algebra.everything
                for part in formula.parts:
                    shape = algebra.both(shape, self.shape(part))
                return shape
            case "or":
                return algebra.either([self.shape(part) for part in formula.parts])
            case _:
                return algebra.complement(self.shape(formula.parts[0]))

    # -- emptiness ---------------------------------------------------------------------------

    def is_empty(self, formula: Formula) -> bool:
        """Whether no finite value is in a formula."""
        known = self._empty.get(formula)
        if known is not None:
            return known
        depth = len(self._asking)
        if formula in self._asking:
            # A value inside itself: not to be counted on, and neither is what rests on it.
            self._lowest_asked = min(self._lowest_asked, self._asking[formula])
            return True
        above, self._lowest_asked = self._lowest_asked, depth
        self._asking[formula] = depth
        try:
            empty = self.is_empty_shape(self.shape(formula))
        finally:
            del self._asking[formula]
        rests_on = self._lowest_asked
        self._lowest_asked = min(above, rests_on)
        if not empty or rests_on >= depth:
            self._empty[formula] = empty
        return empty

    def is_empty_shape(self, shape: Shape) -> bool:
        """Whether no finite value is in a shape."""
        return not (
            shape.literals
            or shape.numbers
            or shape.strings
            or any(not is_empty_array(row, self) for row in shape.arrays)
            or any(not is_empty_object(row, self) for row in shape.objects)
        )

    # -- schemas -----------------------------------------------------------------------------

    def _shape_of_schema(self, node: Node) -> Shape:
        if node in self._opened:
            raise refusal(node, "", "the schema refers to itself with nothing in between")
        self._opened[node] = None
        try:
            return self._conjunction(node)
        finally:
            del self._opened[node]

    def _conjunction(self, node: Node) -> Shape:
        value = node.value
        if isinstance(value, bool):
            return self.algebra.everything if value else self.algebra.nothing
        if "$ref" in value and node.draft <= 7:
            return self.shape(self.formula(self.document.target(node)))
        if node.draft > 7 and any(
            value.get(word, True) not in (True, {}) and not self.waives(word)
            for word in UNEVALUATED
        ):
            return shape_of_cases(node, self)
        return self._with_keywords(self._own(node), node, value)

    def _with_keywords(self, shape: Shape, node: Node, keywords: Iterable[str]) -> Shape:
        for keyword in keywords:
            if keyword in _IN_PLACE:
                more = _IN_PLACE[keyword](self, node)
                if more is not None:
                    shape = self.algebra.both(shape, more)
        return shape

    branching = frozenset(
        {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if",
         "dependentSchemas"}
    )  # fmt: skip
    """The keywords that bring in other schemas, which look at properties and items."""

    def without_branches(self, node: Node) -> Shape:
        """What is valid by all keywords but those of `branching`."""
        words = [word for word in node.value if word not in self.branching]
        return self._with_keywords(self._own(node), node, words)

    def waives(self, keyword: str) -> bool:
        """Whether a keyword may be dropped."""
        return keyword in self.waive

    def _own(self, node: Node) -> Shape:
        """What the keywords without subschemas in place say, each for its type."""
        shape = self._types(node)
        if "enum" in node.value:
            shape = self.algebra.both(shape, self._listed(node, "enum"))
        if "const" in node.value:
            shape = self.algebra.both(shape, self._listed(node, "const"))
        if shape.numbers and not node.value.keys().isdisjoint(_NUMBER_WORDS):
            shape = self.algebra.both(
                shape, replace(self.algebra.everything, numbers=(self._number(node),))
            )
        if shape.strings and not node.value.keys().isdisjoint(_STRING_WORDS):
            box = self._text(node)
            boxes = () if box.is_empty() else (box,)
            shape = self.algebra.both(shape, replace(self.algebra.everything, strings=boxes))
        if shape.arrays and not node.value.keys().isdisjoint(_ARRAY_WORDS):
            rows = tuple(array_rows(node, self))
            shape = self.algebra.both(shape, replace(self.algebra.everything, arrays=rows))
        if shape.objects and not node.value.keys().isdisjoint(_OBJECT_WORDS):
            rows_ = tuple(object_rows(node, self))
            shape = self.algebra.both(shape, replace(self.algebra.everything, objects=rows_))
        return shape

    def _types(self, node: Node) -> Shape:
        everything = self.algebra.everything
        said = node.value.get("type")
        if said is None:
            return everything
        types = said if isinstance(said, list) else [said]
        literals: set[str] = set()
        shapes: list[Shape] = []
        for one in types:
            if one == "any" and node.draft == 3:
                return everything
            if one not in _TYPES:
                raise refusal(
                    node, "type", f"there is no type {one!r}", hint=f"types are {', '.join(_TYPES)}"
                )
            match one:
                case "null":
                    literals.add("null")
                case "boolean":
                    literals |= {"true", "false"}
                case "number":
                    shapes.append(Shape(numbers=everything.numbers))
                case "integer":
                    # Up to draft 4 `1.0` is no integer; it is kept to where that is said.
                    box = NumberBox(step=Fraction(1), pointless=node.draft <= 4)
                    shapes.append(Shape(numbers=(box,)))
                case "string":
                    shapes.append(Shape(strings=everything.strings))
                case "array":
                    shapes.append(Shape(arrays=everything.arrays))
                case _:
                    shapes.append(Shape(objects=everything.objects))
        return self.algebra.either([Shape(literals=frozenset(literals)), *shapes])

    def _listed(self, node: Node, keyword: str) -> Shape:
        said = node.value[keyword]
        if keyword == "const":
            return self._value(said, node, f"{node.pointer}/const")
        if not isinstance(said, list):
            raise refusal(node, "enum", "it is not a list")
        texts = frozenset(v for v in said if isinstance(v, str))
        shapes = [Shape(strings=(TextBox.just(texts),))] if texts else []
        shapes += [
            self._value(v, node, f"{node.pointer}/enum/{i}")
            for i, v in enumerate(said)
            if not isinstance(v, str)
        ]
        return self.algebra.either([Shape(), *shapes])

    def _value(self, value: Any, node: Node, pointer: str) -> Shape:  # noqa: ANN401 - JSON
        """One value as a shape."""
        if value is None or isinstance(value, bool):
            return Shape(literals=frozenset({{None: "null", True: "true", False: "false"}[value]}))
        if isinstance(value, str):
            return Shape(strings=(TextBox.just([value]),))
        if isinstance(value, list):
            items = tuple(self.constant(v, node, f"{pointer}/{i}") for i, v in enumerate(value))
            row = ArrayRow(items, self.formulas.false, len(items), len(items))
            return Shape(arrays=(row,))
        if isinstance(value, dict):
            names = tuple(
                (k, Member(self.constant(v, node, f"{pointer}/{k}"), required=True))
                for k, v in value.items()
            )
            return Shape(objects=(ObjectRow(names, orders=((tuple(value),),)),))
        number = fraction(value)
        if number is None:
            raise refusal(pointer, "", f"{value!r} is no JSON value")
        return Shape(numbers=(NumberBox.just(number),))

    def bound(self, node: Node, keyword: str) -> int | None:
        """The value of a keyword that counts something."""
        said = node.value.get(keyword)
        if said is None:
            return None
        number = fraction(said)
        if number is None or number.denominator != 1 or number < 0:
            raise refusal(node, keyword, f"it must be a whole number from 0 on, not {said!r}")
        return int(number)

    def _number(self, node: Node) -> NumberBox:
        value = node.value

        def number(keyword: str) -> Fraction | None:
            said = value.get(keyword)
            if said is None:
                return None
            found = fraction(said)
            if found is None:
                raise refusal(node, keyword, f"it must be a number, not {said!r}")
            return found

        box = NumberBox()
        for keyword, exclusive, side in (
            ("minimum", "exclusiveMinimum", "low"), ("maximum", "exclusiveMaximum", "high"),
        ):  # fmt: skip
            flag = value.get(exclusive)
            bound = number(keyword)
            if bound is not None:
                open_ = flag is True
                box &= (
                    NumberBox(low=bound, low_open=open_)
                    if side == "low"
                    else NumberBox(high=bound, high_open=open_)
                )
            if flag is not None and not isinstance(flag, bool):
                bound = number(exclusive)
                box &= (
                    NumberBox(low=bound, low_open=True)
                    if side == "low"
                    else NumberBox(high=bound, high_open=True)
                )
        for keyword in ("multipleOf", "divisibleBy"):
            step = number(keyword)
            if step is not None:
                if step <= 0:
                    raise refusal(node, keyword, "it must be more than 0")
                box &= NumberBox(step=step)
        limits = format_range(value.get("format"))
        if limits is not None:
            box &= NumberBox(Fraction(limits[0]), Fraction(limits[1]))
        return box

    def _text(self, node: Node) -> TextBox:
        box = TextBox(low=self.bound(node, "minLength") or 0, high=self.bound(node, "maxLength"))
        pattern = node.value.get("pattern")
        if pattern is not None:
            box &= self.pattern(node, "pattern", pattern)
        said = node.value.get("format")
        if said is not None and not is_free_format(said) and format_range(said) is None:
            atom = format_atom(said) if isinstance(said, str) else None
            if atom is not None:
                box &= TextBox(inside=frozenset({atom}))
            elif not self.waives("format"):
                raise refusal(
                    node, "format", f"the format {said!r} is not known",
                    hint='waive=("format",) drops formats that are not known',
                )  # fmt: skip
        return box

    def pattern(self, node: Node, keyword: str, pattern: object) -> TextBox:
        """The texts in which a pattern is found."""
        if not isinstance(pattern, str):
            raise refusal(node, keyword, "a pattern is a text")
        try:
            atom = pattern_atom(pattern)
        except ConstraintError as error:
            if self.waives("pattern"):
                return ANY_TEXT
            raise refusal(node, keyword, error.problem, hint=error.hint) from None
        return TextBox(inside=frozenset({atom}))

    # -- keywords with subschemas in place ---------------------------------------------------

    def _part(self, node: Node, *path: str | int) -> Shape:
        return self.shape(self.formula(self.document.below(node, *path)))

    def parts(self, node: Node, keyword: str) -> list[Node]:
        """The schemas that a keyword lists."""
        said = node.value[keyword]
        if not isinstance(said, list) or not said:
            raise refusal(node, keyword, "it must be a list of at least one schema")
        return [self.document.below(node, keyword, i) for i in range(len(said))]

    def _parts(self, node: Node, keyword: str) -> list[Formula]:
        return [self.formula(part) for part in self.parts(node, keyword)]

    def _ref(self, node: Node, keyword: str = "$ref") -> Shape | None:
        if keyword != "$ref" and self.waives(keyword):
            return None
        return self.shape(self.formula(self.document.target(node, keyword)))

    def _all_of(self, node: Node) -> Shape:
        shape = self.algebra.everything
        for part in self._parts(node, "allOf"):
            shape = self.algebra.both(shape, self.shape(part))
        return shape

    def _any_of(self, node: Node, keyword: str = "anyOf") -> Shape:
        return self.algebra.either([self.shape(f) for f in self._parts(node, keyword)])

    def _one_of(self, node: Node) -> Shape:
        parts = self._parts(node, "oneOf")
        return self.algebra.either(self.exclusive(node, parts))

    def exclusive(self, node: Node, parts: list[Formula]) -> list[Shape]:
        """Of each alternative of a `oneOf`, what is in no other."""
        if len(parts) > _MOST_BRANCHES:
            if self.waives("oneOf"):
                return [self.shape(part) for part in parts]
            raise refusal(
                node, "oneOf", f"there are more than {_MOST_BRANCHES} alternatives",
                hint='use anyOf, or waive=("oneOf",) to take it as anyOf',
            )  # fmt: skip
        shapes = [self.shape(part) for part in parts]
        found = []
        for i, shape in enumerate(shapes):
            for j, other in enumerate(shapes):
                if i == j:
                    continue
                if parts[i] is parts[j]:
                    shape = self.algebra.nothing
                    break
                if not _may_meet(shape, other):
                    continue
                common = self.algebra.both(shape, other)
                if not self.is_empty_shape(common):
                    shape = self.algebra.both(shape, self.algebra.complement(other))
            found.append(shape)
        return found

    def complement_of(self, node: Node) -> Shape:
        """What is not valid at a place."""
        return self.algebra.complement(self.shape(self.formula(node)))

    def _not(self, node: Node) -> Shape:
        return self.algebra.complement(self._part(node, "not"))

    def _if(self, node: Node) -> Shape | None:
        if node.draft < 7 or node.value.keys().isdisjoint({"then", "else"}):
            return None
        condition = self._part(node, "if")
        true = self._part(node, "then") if "then" in node.value else self.algebra.everything
        false = self._part(node, "else") if "else" in node.value else self.algebra.everything
        return self.algebra.either(
            [
                self.algebra.both(true, condition),
                self.algebra.both(false, self.algebra.complement(condition)),
            ]
        )

    def _dependencies(self, node: Node, keyword: str) -> Shape | None:
        said = node.value[keyword]
        if not isinstance(said, dict):
            raise refusal(node, keyword, "it is not an object")
        if keyword == "dependencies" and node.draft > 7 and self.document.draft_is_said:
            return None  # the later drafts do not know it
        shape = self.algebra.everything
        for name, needed in said.items():
            without = self.without_name(name)
            if isinstance(needed, list | str):
                needs = [needed] if isinstance(needed, str) else needed
                if not needs:
                    continue
                there = Member(self.formulas.true, required=True)
                then = self._objects([self._row(dict.fromkeys(needs, there))])
            else:
                then = self._part(node, keyword, name)
                then = self.algebra.both(then, self.with_name(name))
            shape = self.algebra.both(shape, self.algebra.either([without, then]))
        return shape

    def without_name(self, name: str) -> Shape:
        """All but the objects with a property of that name."""
        return self._objects([self._row({name: Member(self.formulas.false)})])

    def with_name(self, name: str) -> Shape:
        """All but the objects without a property of that name."""
        return self._objects([self._row({name: Member(self.formulas.true, required=True)})])

    def _row(self, names: dict[str, Member]) -> ObjectRow:
        return ObjectRow(tuple(names.items()), (KeyClass(ANY_TEXT, self.formulas.true),))

    def _objects(self, rows: Iterable[ObjectRow]) -> Shape:
        return replace(self.algebra.everything, objects=tuple(rows))

    def _refused(self, node: Node, keyword: str) -> Shape | None:
        said = node.value[keyword]
        if self.waives(keyword) or said is True or said == {}:
            return None
        raise refusal(
            node, keyword, f"{keyword} is not supported",
            hint=f'waive=("{keyword}",) compiles the schema without it',
        )  # fmt: skip


def _may_meet(a: Shape, b: Shape) -> bool:
    """Whether two shapes may have common values, as far as a glance tells."""
    if a.literals & b.literals or (a.numbers and b.numbers):
        return True
    if (a.arrays and b.arrays) or (a.objects and b.objects):
        return True
    return any(
        x.only is None or y.only is None or not x.only.isdisjoint(y.only)
        for x in a.strings
        for y in b.strings
    )


def _with(keyword: str) -> Callable[[Meaning, Node], Shape | None]:
    return lambda meaning, node: meaning._dependencies(node, keyword)


def _refusing(keyword: str) -> Callable[[Meaning, Node], Shape | None]:
    return lambda meaning, node: meaning._refused(node, keyword)


_NUMBER_WORDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "divisibleBy",
     "format"}
)  # fmt: skip
_STRING_WORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
_ARRAY_WORDS = frozenset(
    {"additionalItems", "contains", "items", "maxItems", "minItems", "prefixItems", "uniqueItems"}
)
_OBJECT_WORDS = frozenset(
    {"additionalProperties", "maxProperties", "minProperties", "patternProperties", "properties",
     "propertyNames", "required"}
)  # fmt: skip
_IN_PLACE: dict[str, Callable[[Meaning, Node], Shape | None]] = {
    "$ref": Meaning._ref,
    "$dynamicRef": lambda meaning, node: meaning._ref(node, "$dynamicRef"),
    "$recursiveRef": lambda meaning, node: meaning._ref(node, "$recursiveRef"),
    "allOf": Meaning._all_of,
    "anyOf": Meaning._any_of,
    "oneOf": Meaning._one_of,
    "not": Meaning._not,
    "if": Meaning._if,
    "dependencies": _with("dependencies"),
    "dependentRequired": _with("dependentRequired"),
    "dependentSchemas": _with("dependentSchemas"),
    **{
        keyword: _refusing(keyword)
        for keyword in ("disallow", "extends")
    },
}  # fmt: skip
_KEYWORDS = _SILENT.union(
    _NUMBER_WORDS, _STRING_WORDS, _ARRAY_WORDS, _OBJECT_WORDS, _IN_PLACE, UNEVALUATED,
    ("const", "else", "enum", "maxContains", "minContains", "then", "type"),
    ("contentEncoding", "contentMediaType", "contentSchema"),
)  # fmt: skip


def _no_keyword(name: str) -> ConstraintError:
    by_letters = {keyword.lower(): keyword for keyword in sorted(_KEYWORDS)}
    near = get_close_matches(name.replace("_", "").lower(), by_letters, n=1)
    return ConstraintError(
        f"waive names {name!r}, which is no keyword of JSON schemas",
        hint=f"did you mean {by_letters[near[0]]!r}?"
        if near
        else "give keywords as they are written",
    )
