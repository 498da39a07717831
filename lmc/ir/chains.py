"""Chains taken apart: for reports, which tell of single calls and of the text before each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lmc.ir.core import Node, Program, Region, Value
from lmc.ir.ops import Chain, Extend, Gen, If, Role
from lmc.ir.ops.lm import EDGES
from lmc.ir.types import STATE

__all__ = ["unchained"]


def unchained(program: Program) -> Program:
    """The same program with the links of its chains as nodes; itself if it has none.

    The results of chains are the same values there.
    """
    if not any(isinstance(node.op, Chain) for node in program.walk()):
        return program
    return program.with_body(_region(program.body))


def _region(region: Region) -> Region:
    nodes: list[Node] = []
    for node in region.nodes:
        if isinstance(node.op, Chain):
            nodes += _links(node, node.op)
        elif isinstance(node.op, If):
            op = dataclasses.replace(
                node.op, then=_region(node.op.then), orelse=_region(node.op.orelse)
            )
            nodes.append(dataclasses.replace(node, op=op))
        else:
            nodes.append(node)
    return Region(tuple(nodes))


def _links(node: Node, op: Chain) -> Iterator[Node]:
    state, gens, texts = op.state, iter(range(len(op.gens))), iter(op.texts)
    places = op.places or (node.at,) * len(op.links)
    for link, place in zip(op.links, places, strict=True):
        kind, _, what = link.partition(" ")
        if kind == "gen":
            nth = next(gens)
            gen = Gen(state, op.names[nth], op.gens[nth], op.draws[nth])
            results = node.results[2 * nth : 2 * nth + 2]
            yield Node(gen, results, place)
            state = results[0]
            continue
        after = Value(STATE)
        if kind in EDGES:
            yield Node(Role(state, what, kind), (after,), place)
        else:
            part = next(texts) if kind == "text" else node.results[2 * int(what) + 1]
            yield Node(Extend(state, (part,)), (after,), place)
        state = after
