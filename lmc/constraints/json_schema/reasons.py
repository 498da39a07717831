"""Why nothing is valid under a schema: the few keywords that exclude each other.

Found by trying: keywords are added until nothing is left, and those taken away again that make no
difference. This is asked only when an error is to be told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmc.constraints.json_schema.document import Node
from lmc.constraints.json_schema.formulas import Formula
from lmc.errors import ConstraintError

if TYPE_CHECKING:
    from lmc.constraints.json_schema.meaning import Meaning

__all__ = ["reason"]


def reason(meaning: Meaning, formula: Formula, inside: tuple[Formula, ...] = ()) -> str:
    """Why nothing is in a formula, in a few words with the place; `inside` is what holds it."""
    if formula in inside:
        return "it would have to hold itself without end"
    inside = (*inside, formula)
    if formula.kind != "schema":
        return "the schema is false" if formula.kind == "false" else "its parts exclude each other"
    node = formula.node
    place = f"at {node.pointer or '/'} "
    culprits = _culprits(meaning, node)
    if culprits == ["$ref"]:
        return reason(meaning, meaning.formula(meaning.document.target(node)), inside)
    if "required" in culprits and "properties" in node.value:
        for name in node.value["required"]:
            if name in node.value["properties"]:
                inner = meaning.formula(meaning.document.below(node, "properties", name))
                if meaning.is_empty(inner):
                    return f"{place}{name!r} is required, but {reason(meaning, inner, inside)}"
    if len(culprits) == 1:
        return f"{place}{culprits[0]} leaves nothing"
    return f"{place}{', '.join(culprits[:-1])} and {culprits[-1]} exclude each other"


def _culprits(meaning: Meaning, node: Node) -> list[str]:
    """A small set of keywords of a node that leaves nothing."""

    def leaves_nothing(keywords: list[str]) -> bool:
        value = {k: v for k, v in node.value.items() if k in keywords}
        try:
            return meaning.is_empty(meaning.formulas.schema(replace(node, value=value)))
        except ConstraintError:  # some keywords are supported only beside others
            return False

    kept = list(node.value)
    for keyword in list(kept):
        fewer = [k for k in kept if k != keyword]
        if leaves_nothing(fewer):
            kept = fewer
    return kept
