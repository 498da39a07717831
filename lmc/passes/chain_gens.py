"""Let an engine go on from gen to gen by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from lmc.errors import Location
from lmc.ir.analysis import released
from lmc.ir.core import Const, Node, Op, Operand, Program, Region, Value
from lmc.ir.ops import (
    Attempt,
    Chain,
    Extend,
    Gen,
    Match,
    Pick,
    Prefill,
    Pure,
    Race,
    Role,
    Score,
    Select,
)
from lmc.ir.types import TEXT
from lmc.params import GenParams
from lmc.passes.dce import may_raise
from lmc.passes.rewrite import map_regions, region_of

__all__ = ["ChainGens"]

_GOES_ON = (Extend, Role, Gen, Match, Select, Score, Prefill)  # what makes a prompt longer


@dataclass(frozen=True)
class ChainGens:
    r"""Make one request of gens that follow each other on one state.

        %s1, %a = lm.gen %s0 {name = "a"}         %s1, %a, %s3, %b = lm.chain %s0, " so ", %x {
        %s2 = lm.extend %s1, " so ", %a, %x   =>        links = ["gen", "text", "made 0", "text",
        %s3, %b = lm.gen %s2 {name = "b"}                        "gen"], names = ["a", "b"], ...}

    A chain goes on where nothing else continues the state, and through texts that are surely known
    when its first gen starts, or were written by earlier gens of it: a first gen neither waits for
    a text that only a later one needs, nor fails with it. Functions that cannot raise are moved
    before the chain. Message edges are links, too. Selects and templates end a chain, since what
    the engine does for them is another kind of request.

    Results stay the same: the links are the ops that they were, with their draws and places, and
    each result is there as soon as its gen has ended.

    Running it again changes nothing.
    """

    name: ClassVar[str] = "chain-gens"

    def run(self, program: Program) -> Program:
        """The program with chains, or `program` itself if no gens follow each other."""
        facts = _Facts(program)
        return program.with_body(map_regions(program.body, facts.chained))


@dataclass
class _Links:
    """A chain that grows."""

    at: Location | None
    state: Value
    nodes: list[Node]
    links: list[str] = field(default_factory=list)
    texts: list[Operand] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    gens: list[GenParams] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    places: list[Location | None] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)

    def add_gen(self, node: Node, op: Gen) -> None:
        self.add_link("gen", node.at)
        self.names.append(op.name)
        self.gens.append(op.params)
        self.draws.append(op.draw)
        self.results += node.results

    def add_link(self, link: str, at: Location | None) -> None:
        self.links.append(link)
        self.places.append(at)

    def add_text(self, part: Operand, at: Location | None) -> None:
        if isinstance(part, Value) and part in self.results:
            self.add_link(f"made {self.results.index(part) // 2}", at)
        else:
            self.add_link("text", at)
            self.texts.append(part)

    def node(self) -> Node:
        """All of it as one node."""
        op = Chain(
            self.state,
            tuple(self.texts),
            tuple(self.links),
            tuple(self.names),
            tuple(self.gens),
            tuple(self.draws),
            tuple(self.places),
        )
        return Node(op, tuple(self.results), self.at)


class _Facts:
    """What is known of a program's values."""

    def __init__(self, program: Program) -> None:
        self.params = frozenset(program.params)
        self.makers = {value: node for node in program.walk() for value in node.results}
        self.users: dict[Value, list[Node]] = {}
        for node in program.walk():
            for value in node.op.value_operands():
                self.users.setdefault(value, []).append(node)
        self.released = released(program.body)

    def chained(self, region: Region) -> Region:
        """A region with its gens in chains."""
        inside = {id(node) for node in region.nodes}
        chains: dict[int, Node] = {}  # by first node
        gone: set[int] = set()
        for node in region.nodes:
            if isinstance(node.op, Gen) and id(node) not in gone:
                found = self.chain_from(node, node.op, inside)
                if len(found.gens) > 1:
                    chains[id(node)] = found.node()
                    gone.update(map(id, found.nodes))
        if not chains:
            return region
        return region_of(list(self.placed(region, chains, gone)), region)

    def placed(self, region: Region, chains: dict[int, Node], gone: set[int]) -> Iterator[Node]:
        """The nodes of a region, each chain in the place of its first gen, texts before it."""
        left = {id(node) for node in region.nodes} - gone | set(chains)
        for node in region.nodes:
            if id(node) not in left:
                continue
            if (chain := chains.get(id(node))) is None:
                left.discard(id(node))
                yield node
                continue
            todo = [self.makers[v] for v in chain.op.value_operands() if v in self.makers]
            earlier: list[Node] = []  # functions of what is known; the last ones come first
            while todo:
                maker = todo.pop()
                if id(maker) in left and isinstance(maker.op, Pure):
                    earlier.append(maker)
                    operands = maker.op.value_operands()
                    todo += [self.makers[v] for v in operands if v in self.makers]
            for maker in reversed(earlier):
                if id(maker) in left:
                    left.discard(id(maker))
                    yield maker
            left.discard(id(node))
            yield chain

    def chain_from(self, node: Node, op: Gen, inside: set[int]) -> _Links:
        """The longest chain that begins with a gen."""
        chain = _Links(node.at, op.state, [node])
        chain.add_gen(node, op)
        sure = self.before(op.state)
        while (more := self.next_gen(chain, inside, sure)) is not None:
            between, (last, gen) = more
            for link in between:
                match link.op:
                    case Extend(_, parts):
                        for part in parts:
                            chain.add_text(part, link.at)
                    case Role(_, role, edge):
                        chain.add_link(f"{edge} {role}", link.at)
            chain.nodes += [*between, last]
            chain.add_gen(last, gen)
        return chain

    def next_gen(
        self, chain: _Links, inside: set[int], sure: set[Value]
    ) -> tuple[list[Node], tuple[Node, Gen]] | None:
        """The next gen of a chain and what stands before it; None where the chain ends."""
        state, between = chain.results[-2], list[Node]()
        while True:
            users = self.users.get(state, [])
            if between and len(users) != 1:
                return None
            following = [node for node in users if isinstance(node.op, _GOES_ON)]
            if state in self.released or len(following) != 1 or id(following[0]) not in inside:
                return None
            node = following[0]
            match node.op:
                case Gen():
                    return between, (node, node.op)
                case Extend(_, parts):
                    if not all(self.is_known(part, chain, sure) for part in parts):
                        return None
                case Role():
                    pass
                case _:
                    return None
            between.append(node)
            state = node.results[0]

    def is_known(self, part: Operand, chain: _Links, sure: set[Value]) -> bool:
        """Whether a text is there in time, and has not failed, if the chain begins."""
        todo = [part]
        while todo:
            value = todo.pop()
            if isinstance(value, Const) or value in sure or value in self.params:
                continue
            if value is part and value in chain.results and value.type == TEXT:
                continue
            maker = self.makers[value]
            if not isinstance(maker.op, Pure) or may_raise(maker.op):
                return False
            todo += maker.op.operands()
        return True

    def before(self, state: Value) -> set[Value]:
        """The values without which a state is not there: they are known, and none has failed."""
        found: set[Value] = set()
        todo = [state]
        while todo:
            value = todo.pop()
            maker = self.makers.get(value)
            if value in found or maker is None:
                continue
            made = maker.results
            if isinstance(maker.op, Chain):  # what comes later in it is not known yet
                made = made[: made.index(value) // 2 * 2 + 2]
            found.update(made)
            todo += _needed(maker.op)
        return found


def _needed(op: Op) -> list[Value]:
    """The operands that must be there, and must not have failed, for an op to give its results."""
    match op:
        case Attempt() | Race():
            return []
        case Pick(index):
            return [index] if isinstance(index, Value) else []
    return list(op.value_operands())
