"""Say where the KV of a branch is dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import uses
from lmc.ir.core import Node, Program, Region
from lmc.ir.ops import MODEL_CALLS, Release
from lmc.ir.types import STATE
from lmc.passes.rewrite import map_regions, region_of

__all__ = ["KVLiveness"]


@dataclass(frozen=True)
class KVLiveness:
    """Release the states that a branch ends in, once their model call is done.

        %s2, %a = lm.gen %s1 {...}                 %s2, %a = lm.gen %s1 {...}
        %s3 = lm.extend %s1, "..."           =>    lm.release %s2
        %s4, %b = lm.gen %s3 {...}                 %s3 = lm.extend %s1, "..."
        ret %s4, {a = %a, b = %b}                  %s4, %b = lm.gen %s3 {...}
                                                   ret %s4, {a = %a, b = %b}

    Only the ends need it: the cache takes for dead whatever a released state alone holds, up to
    where something living branches off. The state that a program returns is never released, since
    the next run may go on from there.

    Outputs stay the same: a release is advice about what to evict first.

    Running it again changes nothing.
    """

    name: ClassVar[str] = "kv-liveness"

    def run(self, program: Program) -> Program:
        """The program with releases, or `program` itself if no branch ends."""
        used = uses(program.body)

        def released(region: Region) -> Region:
            nodes: list[Node] = []
            for node in region.nodes:
                nodes.append(node)
                if isinstance(node.op, MODEL_CALLS):
                    states = [value for value in node.results if value.type == STATE]
                    if not used[states[-1]]:  # those before it, in a chain, lead to it
                        nodes.append(Node(Release(states[-1]), (), node.at))
            return region_of(nodes, region)

        return program.with_body(map_regions(program.body, released))
