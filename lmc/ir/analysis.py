"""Facts about a graph that passes, exports and reports share. Each is computed in one walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from lmc.ir.core import Const, Node, Op, Program, Region, Value
from lmc.ir.ops import MODEL_CALLS, Extend, Gen, If, Match, Prefill, Release, Role
from lmc.ir.types import STATE
from lmc.params import GenParams

__all__ = [
    "Cost", "calls_on_ways", "cost", "definitions", "gens", "released", "state_tree", "uses",
]  # fmt: skip


def definitions(program: Program) -> dict[Value, Node]:
    """The node that defines each value; parameters have none."""
    return {value: node for node in program.walk() for value in node.results}


def uses(region: Region) -> Counter[Value]:
    """How often each value is an operand in a region and the regions inside it."""
    return Counter(value for node in region.walk() for value in node.op.value_operands())


def released(region: Region) -> set[Value]:
    """The states that are released in a region or inside it: their uses may not move."""
    return {node.op.state for node in region.walk() if isinstance(node.op, Release)}


def state_tree(program: Program) -> dict[Value, tuple[Value, ...]]:
    """The states that were made directly from each state, in printed order.

    This tree is the shape that the radix cache will have: a state with several children is a fork.
    """
    children: dict[Value, list[Value]] = {}
    for node in program.walk():
        made = [v for v in node.results if v.type == STATE]
        for value in made:
            children.setdefault(value, [])
        for state in node.op.value_operands():
            if state.type == STATE:
                children.setdefault(state, []).extend(made)
    return {state: tuple(made) for state, made in children.items()}


def calls_on_ways(region: Region) -> dict[Value, int]:
    """How many uses of each state lead to a model call, on the way where they are most.

    A use leads to a model call if it is one, or if what it makes is used in one. Two or more are a
    fork: its prompt is read that often. The two ways of a `flow.if` do not add up.
    """
    return _calls_on_ways(region.nodes)


def _calls_on_ways(nodes: tuple[Node, ...]) -> dict[Value, int]:
    # the last node may hold regions; from there backward, every use of a result is known
    found: Counter[Value] = Counter()
    for node in reversed(nodes):
        if isinstance(node.op, If):
            then, orelse = (_calls_on_ways(r.nodes) for r in node.op.regions())
            found = Counter({v: max(then.get(v, 0), orelse.get(v, 0)) for v in {**then, **orelse}})
            continue
        if isinstance(node.op, MODEL_CALLS) or any(found[v] for v in node.results):
            found.update(v for v in node.op.value_operands() if v.type == STATE)
    return dict(found)


@dataclass(frozen=True, slots=True)
class Cost:
    """Bounds on the work of one row, over all ways through the program.

    Attributes:
        ways: how many there are.
        calls: fewest and most model calls on a way.
        generated_tokens: most tokens that the gens of a way can generate.
        known_characters: fewest and most characters of constant text that the prompts of a way
            hold, each state's own text counted once: what a perfect cache would read.
        repeated_characters: the same, but counted for every model call that reads it: what would
            be read without a cache.
    """

    ways: int
    calls: tuple[int, int]
    generated_tokens: int
    known_characters: tuple[int, int]
    repeated_characters: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Way:
    calls: int = 0
    tokens: int = 0
    known: int = 0
    repeated: int = 0


def cost(program: Program) -> Cost:
    """Bounds on the work of one row of a program."""
    ways = list(_ways(program.body, {}, _Way()))
    return Cost(
        ways=len(ways),
        calls=_bounds([w.calls for w in ways]),
        generated_tokens=max(w.tokens for w in ways),
        known_characters=_bounds([w.known for w in ways]),
        repeated_characters=_bounds([w.repeated for w in ways]),
    )


def gens(op: Op) -> tuple[tuple[str, GenParams], ...]:
    """The gens of an op, each with its name: of a template there may be several."""
    match op:
        case Gen():
            return ((op.name, op.params),)
        case Match():
            return tuple(zip(op.names, op.gens, strict=True))
        case _:
            return ()


def _bounds(numbers: list[int]) -> tuple[int, int]:
    return min(numbers), max(numbers)


def _ways(region: Region, lengths: Mapping[Value, int], way: _Way) -> list[_Way]:
    """The ways that begin with `way` and go through a region; `lengths` are those of the states."""
    lengths = dict(lengths)
    for node in region.nodes:
        op = node.op
        before = sum(lengths.get(v, 0) for v in op.value_operands() if v.type == STATE)
        if isinstance(op, If):
            return [w for r in op.regions() for w in _ways(r, lengths, way)]
        if isinstance(op, Extend):
            own = sum(len(str(p.value)) for p in op.parts if isinstance(p, Const))
            way = _Way(way.calls, way.tokens, way.known + own, way.repeated)
            lengths[node.results[0]] = before + own
        elif isinstance(op, MODEL_CALLS):
            tokens = sum(params.max_tokens for _, params in gens(op))
            way = _Way(way.calls + 1, way.tokens + tokens, way.known, way.repeated + before)
            lengths[node.results[0]] = before
        elif isinstance(op, (Role, Prefill)):
            lengths[node.results[0]] = before
    return [way]
