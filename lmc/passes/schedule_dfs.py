"""Order the nodes so that one branch of the state tree ends before the next begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.core import Effect, Node, Program, Region, Value
from lmc.ir.ops.lm import Release
from lmc.passes.rewrite import map_regions, region_of

__all__ = ["ScheduleDFS"]


@dataclass(frozen=True)
class ScheduleDFS:
    """Put nodes in depth-first order of the state tree.

        %s1 = lm.extend %s0, "A"                  %s1 = lm.extend %s0, "A"
        %s2 = lm.extend %s0, "B"                  %s3, %a = lm.gen %s1 {...}
        %s3, %a = lm.gen %s1 {...}          =>    %s2 = lm.extend %s0, "B"
        %s4, %b = lm.gen %s2 {...}                %s4, %b = lm.gen %s2 {...}

    Depth-first order of a radix tree reads each edge once with a cache that holds one way from the
    root to a leaf (Zheng et al., SGLang, arXiv:2312.07104, section 3 and appendix A.3); breadth
    first would need all ways at once. The order is only a preference: codegen turns it into
    priorities, and what is ready runs when there is room.

    Kept are: every value before its uses, ops with effects in their order, and a release after all
    other uses of its state. Branches keep the order in which the program has them.

    Running it again changes nothing.
    """

    name: ClassVar[str] = "schedule-dfs"

    def run(self, program: Program) -> Program:
        """The reordered program, or `program` itself if it is in this order."""
        return program.with_body(map_regions(program.body, _ordered))


def _ordered(region: Region) -> Region:
    *nodes, last = region.nodes
    followers, waiting = _dependencies(nodes)
    # A stack makes the walk depth-first: what a node has just made possible comes next.
    stack = [n for n in reversed(range(len(nodes))) if not waiting[n]]
    order: list[Node] = []
    while stack:
        current = stack.pop()
        order.append(nodes[current])
        for follower in reversed(followers[current]):
            waiting[follower] -= 1
            if not waiting[follower]:
                stack.append(follower)
    assert len(order) == len(nodes), "the nodes of a valid region have no cycles"
    return region_of([*order, last], region)


def _dependencies(nodes: list[Node]) -> tuple[list[list[int]], list[int]]:
    """For each node, by index: the nodes that must follow it, and how many it follows."""
    before: list[set[int]] = []
    maker: dict[Value, int] = {}
    users: dict[Value, list[int]] = {}
    last_io: int | None = None
    for index, node in enumerate(nodes):
        needs = {maker[v] for v in node.op.value_operands() if v in maker}
        if isinstance(node.op, Release):  # it marks a point in time for the state that it names
            needs.update(user for v in node.op.value_operands() for user in users.get(v, ()))
        if node.op.effect is Effect.IO:
            needs.update(() if last_io is None else (last_io,))
            last_io = index
        before.append(needs)
        for value in node.op.value_operands():
            users.setdefault(value, []).append(index)
        maker.update((value, index) for value in node.results)
    followers: list[list[int]] = [[] for _ in nodes]
    for index, needs in enumerate(before):
        for need in needs:
            followers[need].append(index)
    return followers, [len(needs) for needs in before]
