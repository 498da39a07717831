"""A JSON Schema document: its places, their dialect, and where its references lead.

Owns        the document and the index of its identifiers.
Promises    a node is met under one name only: its JSON pointer from the root of the document.
Not here    what keywords mean (`keywords`).
Source      JSON Schema drafts 4 to 2020-12, "core"; RFC 6901 (pointers), RFC 3986 (references).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from lmc.errors import ConstraintError

__all__ = ["Document", "Node", "fraction", "refusal"]

_LATEST = 2020
_DRAFTS = {
    "draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7,
    "draft/2019-09": 2019, "draft/2020-12": 2020,
}  # fmt: skip

# Where schemas stand in schemas: under the keyword itself, in a list, or by name.
_ONE = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "items", "prefixItems")
_MAPS = (
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A schema at one place of a document.

    Attributes:
        value: what stands there.
        pointer: where, as a JSON pointer.
        base: the URI against which its references are resolved.
        draft: 3, 4, 6, 7, 2019 or 2020.
    """

    value: Any
    pointer: str
    base: str
    draft: int


def refusal(
    node: Node | str, keyword: str, problem: str, *, hint: str | None = None
) -> ConstraintError:
    """The error that a keyword cannot be honoured; it names the place."""
    where = node if isinstance(node, str) else node.pointer
    place = f"{where}/{keyword}" if keyword else where
    return ConstraintError(f"the schema at {place or '/'}: {problem}", hint=hint)


def fraction(value: object) -> Fraction | None:
    """A JSON number as it is written, exactly; None if it is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, float):
        return Fraction(Decimal(repr(value))) if value - value == 0 else None
    return Fraction(value) if isinstance(value, Decimal) and value.is_finite() else None


class Document:
    """See the module's text.

    Raises:
        ConstraintError: it is no JSON Schema at all.
    """

    def __init__(self, source: object) -> None:
        value = _value_of(source)
        self._nodes: dict[str, Node] = {}
        self.draft_is_said = isinstance(value, dict) and isinstance(value.get("$schema"), str)
        base = ""
        if isinstance(value, dict):
            base = _identifier(value, _draft(value, _LATEST)) or ""
        self.root = self._node(value, "", base, _draft(value, _LATEST))

    def _node(self, value: Any, pointer: str, base: str, draft: int) -> Node:  # noqa: ANN401
        node = self._nodes.get(pointer)
        if node is None:
            if not isinstance(value, dict | bool):
                raise refusal(pointer, "", f"a schema is an object or true or false, not {value!r}")
            node = self._nodes[pointer] = Node(value, pointer, base, draft)
        return node

    def below(self, node: Node, *path: str | int) -> Node:
        """The schema that stands below a node."""
        value, pointer, base, draft = node.value, node.pointer, node.base, node.draft
        for step in path:
            value = value[step]
            pointer += "/" + str(step).replace("~", "~0").replace("/", "~1")
        if isinstance(value, dict):
            draft = _draft(value, draft)
            name = _identifier(value, draft)
            if name:
                base = urljoin(base, name)
        return self._node(value, pointer, base, draft)

    def made(self, value: Any, pointer: str, node: Node) -> Node:  # noqa: ANN401 - JSON
        """A schema that stands nowhere, but came of what stands at `pointer`."""
        return self._node(value, pointer, node.base, node.draft)

    def target(self, node: Node, keyword: str = "$ref") -> Node:
        """Where a reference leads.

        Args:
            node: where it stands.
            keyword: "$ref", "$dynamicRef" or "$recursiveRef". The latter two may lead elsewhere
                each time they are met, if several resources hold their anchor.

        Raises:
            ConstraintError: nowhere, or out of this document, or that is only known at run time.
        """
        found = self._target(node, keyword)
        if keyword == "$ref":
            return found
        anchor = "$dynamicAnchor" if keyword == "$dynamicRef" else "$recursiveAnchor"
        name = found.value.get(anchor) if isinstance(found.value, dict) else None
        fragment = urldefrag(node.value[keyword]).fragment
        if not name or (keyword == "$dynamicRef" and name != fragment):
            return found
        self._index  # noqa: B018 - so that all places are known
        several = [
            n for n in self._nodes.values()
            if n is not found and isinstance(n.value, dict) and n.value.get(anchor) == name
        ]  # fmt: skip
        if several:
            raise refusal(
                node, keyword, f"what it leads to depends on the way to it: {anchor} stands at "
                f"{found.pointer or '/'} and at {several[0].pointer or '/'}",
                hint=f'waive=("{keyword}",) compiles the schema without it',
            )  # fmt: skip
        return found

    def _target(self, node: Node, keyword: str) -> Node:
        reference = node.value[keyword]
        if not isinstance(reference, str):
            raise refusal(node, keyword, "a reference is a text")
        whole = (
            urljoin(node.base, reference)
            if not reference.startswith("#")
            else (urldefrag(node.base).url + reference)
        )
        uri, fragment = urldefrag(whole)
        resources, anchors = self._index
        resource = resources.get(uri.rstrip("#"))
        if resource is None:
            raise refusal(
                node, keyword, f"{reference!r} leads out of this schema",
                hint="put what it refers to under $defs",
            )  # fmt: skip
        fragment = unquote(fragment)
        if fragment == "":
            return resource
        if not fragment.startswith("/"):
            found = anchors.get((uri, fragment))
            if found is None:
                raise refusal(node, keyword, f"there is no anchor {fragment!r}")
            return found
        return self._walk(resource, fragment, node, keyword)

    def _walk(self, start: Node, fragment: str, node: Node, keyword: str) -> Node:
        at = start
        path: list[str | int] = []
        value = start.value
        for part in fragment[1:].split("/"):
            step: str | int = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and str(step).isdigit() and int(step) < len(value):
                step = int(step)
            elif not isinstance(value, dict) or step not in value:
                raise refusal(node, keyword, f"{node.value[keyword]!r} leads nowhere")
            value = value[step]
            path.append(step)
            if isinstance(value, dict) and not isinstance(step, int):
                # Identifiers on the way move the base of what lies below.
                at, path = self.below(at, *path), []
        return self.below(at, *path) if path else at

    @cached_property
    def _index(self) -> tuple[dict[str, Node], dict[tuple[str, str], Node]]:
        """Resources by URI, and anchors by URI and name."""
        resources = {"": self.root, urldefrag(self.root.base).url: self.root}
        anchors: dict[tuple[str, str], Node] = {}
        stack = [self.root]
        while stack:
            node = stack.pop()
            if not isinstance(node.value, dict):
                continue
            uri, fragment = urldefrag(node.base)
            if fragment and node.draft <= 7:
                anchors.setdefault((uri, fragment), node)
            elif _identifier(node.value, node.draft):
                resources.setdefault(uri, node)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.value.get(keyword), str):
                    anchors.setdefault((uri, node.value[keyword]), node)
            stack.extend(self._children(node))
        return resources, anchors

    def _children(self, node: Node) -> Iterator[Node]:
        value = node.value
        for keyword in _ONE:
            if isinstance(value.get(keyword), dict):
                yield self.below(node, keyword)
        for keyword in _LISTS:
            if isinstance(value.get(keyword), list):
                for i, item in enumerate(value[keyword]):
                    if isinstance(item, dict):
                        yield self.below(node, keyword, i)
        for keyword in _MAPS:
            if isinstance(value.get(keyword), dict):
                for name, item in value[keyword].items():
                    if isinstance(item, dict):
                        yield self.below(node, keyword, name)


def _value_of(source: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(source, str | bytes):
        try:
            # Decimals keep what is written: 0.1 is a tenth.
            return json.loads(source, parse_float=Decimal)
        except ValueError as error:
            raise ConstraintError(f"the schema is not JSON: {error}") from None
    if isinstance(source, type):
        for method in ("model_json_schema", "__pydantic_model_json_schema__"):
            if hasattr(source, method):
                return getattr(source, method)()
        from pydantic import PydanticUserError, TypeAdapter

        try:
            return TypeAdapter(source).json_schema()
        except PydanticUserError as error:
            raise ConstraintError(f"{source.__name__} has no JSON schema: {error}") from None
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, bool):
        return source
    raise ConstraintError(
        f"a JSON schema is a dictionary, JSON text or a pydantic model, not {type(source).__name__}"
    )


def _draft(value: Any, inherited: int) -> int:  # noqa: ANN401 - JSON
    said = value.get("$schema") if isinstance(value, dict) else None
    if not isinstance(said, str):
        return inherited
    for name, draft in _DRAFTS.items():
        if name in said:
            return draft
    return inherited


def _identifier(value: dict[str, Any], draft: int) -> str | None:
    name = value.get("id" if draft <= 4 else "$id")
    return name if isinstance(name, str) else None
