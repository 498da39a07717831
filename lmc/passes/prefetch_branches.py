"""Let the model read what comes after a branch while it is not known yet which way is taken."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import calls_on_ways, released
from lmc.ir.core import Const, Node, Op, Operand, Program, Region, Value
from lmc.ir.ops import MODEL_CALLS, Extend, HostCall, If, Prefill, Role
from lmc.ir.types import STATE
from lmc.passes.hoist_prefix import ROLE_CHARACTERS
from lmc.passes.rewrite import region_of

__all__ = ["PrefetchBranches"]

MOST_PROMPTS = 8  # that are computed ahead at one branch: only some of them will be needed


@dataclass(frozen=True)
class PrefetchBranches:
    """Prefill the prompts of both ways of a branch while its condition is decided.

        %v = host.call %x {fn = "search"}         %v = host.call %x {fn = "search"}
        %b = value.truth %v                       %b = value.truth %v
        flow.if %b {                         =>   %s1 = lm.extend %s0, "Found. "
          %s1 = lm.extend %s0, "Found. "          %s2 = lm.prefill %s1 {ahead = true}
          %s2, %a = lm.gen %s1 {...}              flow.if %b {
          ...                                       %s3, %a = lm.gen %s2 {...}
        }                                           ...

    It fires where the condition waits for a tool or a model call that the prompts do not wait for:
    a tool, or a call of another branch of a fork. What is appended is moved in front of the branch
    as far as it does not wait either. After a select on the same state nothing can be done ahead,
    since its choice is a part of the prompt.

    Tokens stay the same: appending is pure, and what fails on a way that is not taken is not seen.
    A prefill is advice; one that is ahead waits for all other work, and is dropped when the way is
    known.

    Running it again changes nothing.

    Attributes:
        min_characters: a prefill must compute at least so many characters, as far as known.
    """

    name: ClassVar[str] = "prefetch-branches"
    min_characters: int = 16

    def run(self, program: Program) -> Program:
        """The program with prefills in front of its branches, or `program` itself."""
        if released(program.body):  # places of last uses may not move
            return program
        prefetch = _Prefetch(program, max(self.min_characters, 1))
        return program.with_body(prefetch.region(program.body, frozenset(), frozenset()))


class _Prefetch:
    """One walk through a program, outer branches first."""

    def __init__(self, program: Program, least: int) -> None:
        self.least = least
        self.calls = calls_on_ways(program.body)
        self.waits: dict[Value, frozenset[Value]] = {p: frozenset() for p in program.params}
        self.maker: dict[Value, Op] = {}
        for node in program.walk():
            self.note(node)

    def note(self, node: Node) -> None:
        """Note which calls the results of a node wait for."""
        if not node.results:
            return
        waits = frozenset[Value]().union(*(self.waits[v] for v in node.op.value_operands()))
        if isinstance(node.op, (*MODEL_CALLS, HostCall)):
            waits |= {node.results[0]}
        for value in node.results:
            self.waits[value] = waits
            self.maker[value] = node.op

    def region(self, region: Region, decided: frozenset[Value], read: frozenset[Value]) -> Region:
        """The region with prefills.

        Args:
            decided: calls that have ended when it is entered.
            read: states that calls in front of it read, and those before them.
        """
        *nodes, last = region.nodes
        if not isinstance(last.op, If):
            return region
        op = last.op
        waited = frozenset() if isinstance(op.condition, Const) else self.waits[op.condition]
        read |= self.read_by(nodes)
        if waited - decided:
            op, moved = self.ahead(op, waited - decided, read)
            nodes += moved
            read |= self.read_by(moved)
        then = self.region(op.then, decided | waited, read)
        orelse = self.region(op.orelse, decided | waited, read)
        if then is not op.then or orelse is not op.orelse:
            op = If(op.condition, then, orelse)
        last = last if op is last.op else dataclasses.replace(last, op=op)
        return region_of([*nodes, last], region)

    def read_by(self, nodes: Iterable[Node]) -> frozenset[Value]:
        """The states that calls and prefills among the nodes read, and those before them."""
        found: set[Value] = set()
        for node in nodes:
            if isinstance(node.op, (*MODEL_CALLS, Prefill)):
                for state in self.chain(node.op.state):
                    if state in found:
                        break
                    found.add(state)
        return frozenset(found)

    def chain(self, state: Value) -> Iterator[Value]:
        """A state and those that it was made of by appending, the last one first."""
        yield state
        while isinstance(op := self.maker[state], (Extend, Role, Prefill)):
            state = op.state
            yield state

    def unread(self, state: Value, read: frozenset[Value]) -> float:
        """Characters of a state that no call has read, as far as known."""
        count = 0.0
        for one in itertools.takewhile(lambda s: s not in read, self.chain(state)):
            match self.maker[one]:
                case Extend(_, parts):
                    count += sum(_characters(part) for part in parts)
                case Role():
                    count += ROLE_CHARACTERS
        return count

    def ahead(
        self, op: If, undecided: frozenset[Value], read: frozenset[Value]
    ) -> tuple[If, list[Node]]:
        """The branch, and the nodes to stand in front of it."""
        inside = {value for node in _inside(op) for value in node.results}
        movable: dict[Value, Node] = {}
        for node in _inside(op):
            if isinstance(node.op, (Extend, Role)) and not any(
                (value in inside and value not in movable) or self.waits[value] & undecided
                for value in node.op.value_operands()
            ):
                movable[node.results[0]] = node
        fixed = inside - movable.keys()
        wanted: dict[Value, Node] = {}
        for node in _inside(op):
            if not self.leads_on(node) or any(value in movable for value in node.results):
                continue
            for state in node.op.value_operands():
                if state.type != STATE or state in fixed or self.waits[state] & undecided:
                    continue
                if self.unread(state, read) >= self.least:
                    wanted.setdefault(state, node)
        within = {before for state in wanted for before in list(self.chain(state))[1:]}
        ends = {state: node for state, node in wanted.items() if state not in within}
        if not 0 < len(ends) <= MOST_PROMPTS:
            return op, []
        needed = {state for end in ends for state in self.chain(end) if state in movable}
        moved = [node for value, node in movable.items() if value in needed]
        new: dict[Value, Operand] = {}
        for state, reader in ends.items():
            new[state] = made = Value(STATE, state.hint)
            place = movable[state].at if state in movable else reader.at
            moved.append(Node(Prefill(state, ahead=True), (made,), place))
            self.note(moved[-1])
        then, orelse = (_moved_out(region, needed, new) for region in (op.then, op.orelse))
        return If(op.condition, then, orelse), moved

    def leads_on(self, node: Node) -> bool:
        """Whether a node is a model call, or makes a state that one reads."""
        return isinstance(node.op, MODEL_CALLS) or any(self.calls.get(v) for v in node.results)


def _characters(part: Operand) -> float:
    return len(str(part.value)) if isinstance(part, Const) else math.inf


def _inside(op: Op) -> Iterator[Node]:
    """The nodes of both ways of a branch, at all depths."""
    for region in op.regions():
        yield from region.walk()


def _moved_out(region: Region, moved: set[Value], new: dict[Value, Operand]) -> Region:
    """The region without the nodes that were moved, reading the prefilled states instead."""
    nodes: list[Node] = []
    for node in region.nodes:
        if any(value in moved for value in node.results):
            continue
        op = node.op
        if isinstance(op, If):
            held = op.condition
            then, orelse = (_moved_out(r, moved, new) for r in op.regions())
            node = dataclasses.replace(node, op=If(held, then, orelse))
        else:
            node = node.substitute(new)
        nodes.append(node)
    return Region(tuple(nodes))
