"""What passes share: changing the nodes of regions at all depths, and keeping what is the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Sequence

from lmc.ir.core import Node, Region, Value
from lmc.ir.ops import If

__all__ = ["drop_nodes", "map_regions", "region_of"]


def region_of(nodes: Sequence[Node], old: Region) -> Region:
    """A region of these nodes; `old` itself if they are its own."""
    if len(nodes) == len(old.nodes) and all(a is b for a, b in zip(nodes, old.nodes, strict=True)):
        return old
    return Region(tuple(nodes))


def map_regions(region: Region, change: Callable[[Region], Region]) -> Region:
    """The region with `change` applied to it and to all inside it, inner ones first."""
    *nodes, last = region.nodes
    if isinstance(last.op, If):
        then = map_regions(last.op.then, change)
        orelse = map_regions(last.op.orelse, change)
        if then is not last.op.then or orelse is not last.op.orelse:
            op = dataclasses.replace(last.op, then=then, orelse=orelse)
            last = dataclasses.replace(last, op=op)
    return change(region_of([*nodes, last], region))


def drop_nodes(region: Region, values: Container[Value]) -> Region:
    """The region without the nodes that define any of these values, at all depths."""
    return map_regions(
        region,
        lambda r: region_of([n for n in r.nodes if not any(v in values for v in n.results)], r),
    )
