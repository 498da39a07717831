"""Facts about a graph that passes, exports and reports share. Each is computed in one walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from lmc.ir.core import Const, Node, Op, Operand, Program, Region, Value
from lmc.ir.ops import MODEL_CALLS, Chain, Extend, Gen, If, Match, Prefill, Pure, Release, Role
from lmc.ir.types import STATE
from lmc.params import GenParams

__all__ = [
    "Cost", "Parts", "calls_on_ways", "cost", "definitions", "gens", "known_characters", "released",
    "uses",
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


class Parts:
    """The texts that a program's extends append, with joined texts taken apart."""

    def __init__(self, program: Program) -> None:
        self._made_by = {
            node.results[0]: node.op for node in program.walk() if isinstance(node.op, Pure)
        }

    def of(self, op: Extend) -> list[Operand]:
        """Constants, and values that are not joined from others."""
        found: list[Operand] = []
        todo = list(reversed(op.parts))
        while todo:
            part = todo.pop()
            made = self._made_by.get(part) if isinstance(part, Value) else None
            if made is not None and made.mnemonic == "text.concat":
                todo += reversed(made.args)
            else:
                found.append(part)
        return found


def known_characters(
    program: Program, given: Mapping[Value, str] | None = None
) -> dict[Value, int]:
    """How many characters each state appends to the one before it, as far as they are known.

    Args:
        program: whose states.
        given: the texts of parameters that are known.
    """
    given, parts = given or {}, Parts(program)
    return {
        node.results[0]: sum(
            len(str(p.value)) if isinstance(p, Const) else len(given.get(p, ""))
            for p in parts.of(node.op)
        )
        for node in program.walk()
        if isinstance(node.op, Extend)
    }


def cost(program: Program, own: Mapping[Value, int] | None = None) -> Cost:
    """Bounds on the work of one row of a program.

    Args:
        program: what is run, without chains (`lmc.ir.chains.unchained`).
        own: what each state adds to the prompt, if not its constant characters.
    """
    own = known_characters(program) if own is None else own
    ways = list(_ways(program.body, own, {}, _Way()))
    return Cost(
        ways=len(ways),
        calls=_bounds([w.calls for w in ways]),
        generated_tokens=max(w.tokens for w in ways),
        known_characters=_bounds([w.known for w in ways]),
        repeated_characters=_bounds([w.repeated for w in ways]),
    )


def gens(op: Op) -> tuple[tuple[str, GenParams], ...]:
    """The gens of an op, each with its name: of a template or a chain there may be several."""
    match op:
        case Gen():
            return ((op.name, op.params),)
        case Match() | Chain():
            return tuple(zip(op.names, op.gens, strict=True))
        case _:
            return ()


def _bounds(numbers: list[int]) -> tuple[int, int]:
    return min(numbers), max(numbers)


def _ways(
    region: Region, own: Mapping[Value, int], lengths: Mapping[Value, int], way: _Way
) -> list[_Way]:
    """The ways that begin with `way` and go through a region; `lengths` are those of the states."""
    lengths = dict(lengths)
    for node in region.nodes:
        op = node.op
        before = sum(lengths.get(v, 0) for v in op.value_operands() if v.type == STATE)
        if isinstance(op, If):
            return [w for r in op.regions() for w in _ways(r, own, lengths, way)]
        if isinstance(op, (Extend, Role, Prefill)):
            added = own.get(node.results[0], 0)
            way = _Way(way.calls, way.tokens, way.known + added, way.repeated)
            lengths[node.results[0]] = before + added
        elif isinstance(op, MODEL_CALLS):
            tokens = sum(params.max_tokens for _, params in gens(op))
            way = _Way(way.calls + 1, way.tokens + tokens, way.known, way.repeated + before)
            lengths[node.results[0]] = before
    return [way]
