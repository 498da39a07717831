"""Put what varies from row to row behind what does not, where the program leaves the order open."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.core import Const, Node, Operand, Program, Region, Value
from lmc.ir.ops import MODEL_CALLS, HostCall, If, Pure, Race
from lmc.passes.rewrite import region_of

__all__ = ["ReorderUnordered"]

_SAME, _ROW, _MADE = range(3)  # the same in all rows; given by a row; made while it runs


@dataclass(frozen=True)
class ReorderUnordered:
    """Put the texts of `lmc.unordered` in the order in which most of the prompt is shared.

        %t0 = text.unordered " ", %note, "Be kind."  =>  %t0 = text.concat "Be kind.", " ", %note

    First those that are the same in all rows, then those that a row gives, then those that are made
    while it runs; texts of a kind stay in the order in which the program has them.

    It changes the prompt, and with it what the model writes: the program has said that it does not
    mind. So it runs only where it is asked for by name.

    Running it again changes nothing.
    """

    name: ClassVar[str] = "reorder-unordered"

    def run(self, program: Program) -> Program:
        """The program with these texts in order, or `program` itself if there are none."""
        known = program.known or (None,) * len(program.params)
        ranks = {
            param: _ROW if text is None else _SAME
            for param, text in zip(program.params, known, strict=True)
        }
        return program.with_body(_reordered(program.body, ranks))


def _reordered(region: Region, ranks: dict[Value, int]) -> Region:
    nodes: list[Node] = []
    for node in region.nodes:
        op = node.op
        if isinstance(op, If):
            then, orelse = _reordered(op.then, ranks), _reordered(op.orelse, ranks)
            if then is not op.then or orelse is not op.orelse:
                node = dataclasses.replace(node, op=If(op.condition, then, orelse))
        elif isinstance(op, Pure) and op.fn == "text.unordered":
            node = dataclasses.replace(node, op=_concat(op, ranks))
        nodes.append(node)
        if isinstance(op, (*MODEL_CALLS, HostCall, Race)):
            rank = _MADE
        else:
            rank = max((_rank(operand, ranks) for operand in op.operands()), default=_SAME)
        ranks.update((value, rank) for value in node.results)
    return region_of(nodes, region)


def _concat(op: Pure, ranks: dict[Value, int]) -> Pure:
    separator, *texts = op.args
    texts.sort(key=lambda text: _rank(text, ranks))
    parts = itertools.chain.from_iterable((separator, text) for text in texts)
    return Pure("text.concat", tuple(parts)[1:])


def _rank(operand: Operand, ranks: dict[Value, int]) -> int:
    return _SAME if isinstance(operand, Const) else ranks[operand]
