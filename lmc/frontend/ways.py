"""The ways through a program while it is traced: regions that grow, part, and are cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmc.errors import Location
from lmc.ir.core import Node, Op, Region, Value
from lmc.ir.ops.flow import If

__all__ = ["Cut", "PathOver", "Way"]


@dataclass
class Way:
    """A region while it is traced."""

    nodes: list[Node] = field(default_factory=list)
    end: Op | None = None
    end_at: Location | None = None
    branch: tuple[Value, Way, Way] | None = None
    after: tuple[Value, ...] = ()  # what had to succeed before the branch

    def freeze(self) -> Region:
        """The finished region."""
        if self.branch is not None:
            condition, then, orelse = self.branch
            end: Op = If(condition, then.freeze(), orelse.freeze(), self.after)
        else:
            assert self.end is not None, "every way ends"
            end = self.end
        return Region((*self.nodes, Node(end, (), self.end_at)))


@dataclass(frozen=True)
class Cut:
    """Where a way is to end, and why."""

    way: Way
    index: int
    calls: int
    tools: int
    reason: str
    at: Location | None
    error: BaseException | None = None  # that an exception of this kind was met, if one was


class PathOver(BaseException):
    """The way that this run follows ended earlier than the run: nothing more to record."""
