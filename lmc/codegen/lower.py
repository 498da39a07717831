"""Lowering: an optimized graph becomes a plan. One function an op.

Values become registers, regions become blocks, constraints become automata that equal ones share.
The order of nodes becomes the priority of model calls: what stands first runs first.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lmc import plan as p
from lmc.constraints.known import automaton_for
from lmc.errors import InternalError, LmcError, Location
from lmc.ir.core import Const, Node, Op, Operand, Program, Region, Value
from lmc.ir.ops import flow, host, lm, text, typed
from lmc.params import Constraint

__all__ = ["lower"]


def lower(program: Program, level: int) -> p.Plan:
    """The plan of a program.

    Raises:
        ConstraintError: a constraint is malformed or nothing can match it.
    """
    lowering = _Lowering(_Users(program))
    params = tuple(
        p.Param(path, lowering.define(value))
        for path, value in zip(program.paths, program.params, strict=True)
    )
    body = lowering.block(program.body)
    return p.Plan(
        name=program.name,
        params=params,
        static=_template(program),
        registers=lowering.registers,
        body=body,
        constraints=tuple(lowering.automata),
        source=program.source,
        level=level,
    )


def _template(program: Program) -> str:
    """The arguments as a template; the tracer leaves it out where they are texts by name."""
    if program.static != "{}":
        return program.static
    return json.dumps({"dict": [[path[0], {"$": n}] for n, path in enumerate(program.paths)]})


class _Users:
    """Which nodes use and which make each value; looked up when a race needs it."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @cached_property
    def _nodes(self) -> tuple[dict[Value, list[Node]], dict[Value, Node]]:
        users: dict[Value, list[Node]] = {}
        makers: dict[Value, Node] = {}
        for node in self._program.walk():
            for value in node.op.value_operands():
                users.setdefault(value, []).append(node)
            makers.update((value, node) for value in node.results)
        return users, makers

    def of(self, value: Value) -> list[Node]:
        """The nodes that use a value."""
        return self._nodes[0].get(value, [])

    def maker(self, value: Value) -> Op | None:
        """The op that makes a value; None for a parameter."""
        node = self._nodes[1].get(value)
        return None if node is None else node.op

    def siblings(self, value: Value) -> tuple[Value, ...]:
        """All results of the call that makes a value, and of what follows it in its chain."""
        node = self._nodes[1].get(value)
        if node is None:
            return (value,)
        if isinstance(node.op, lm.Chain):
            return node.results[node.results.index(value) // 2 * 2 :]
        return node.results


@dataclass
class _Lowering:
    """Registers and automata given out so far."""

    users: _Users
    registers: int = 0
    calls: int = 0
    automata: list[dict[str, Any]] = field(default_factory=list)
    _of: dict[Value, p.Reg] = field(default_factory=dict)
    _constraints: dict[Constraint, int] = field(default_factory=dict)

    def define(self, value: Value) -> p.Reg:
        self._of[value] = reg = self.register()
        return reg

    def register(self) -> p.Reg:
        """One that no value of the graph is in."""
        self.registers += 1
        return p.Reg(self.registers - 1)

    def operand(self, operand: Operand) -> p.Operand:
        return p.Const(operand.value) if isinstance(operand, Const) else self._of[operand]

    def operands(self, operands: tuple[Operand, ...]) -> tuple[p.Operand, ...]:
        return tuple(map(self.operand, operands))

    def state(self, value: Value) -> p.Reg:
        return self._of[value]

    def priority(self) -> int:
        """The next place in the order of model calls."""
        self.calls += 1
        return self.calls

    def calls_in(self, group: tuple[Operand, ...]) -> tuple[Value, ...]:
        """The results of the model calls of a branch, those in races inside of it included."""
        found: dict[Value, None] = {}
        todo = list(group)
        while todo:
            value = todo.pop()
            maker = self.users.maker(value) if isinstance(value, Value) else None
            if isinstance(maker, lm.Race):
                todo += maker.calls[: sum(maker.sizes)]
            elif isinstance(value, Value):
                found[value] = None
        return tuple(found)

    def stoppable(self, call: Value, race: lm.Race, branch: int) -> bool:
        """Whether nothing needs a call's results once its branch has lost a race."""
        others = (group for n, group in enumerate(race.groups()) if n != branch)
        if any(call in self.calls_in(group) for group in others):
            return False
        todo = list(self.users.siblings(call))
        seen = set(todo)
        while todo:
            value = todo.pop()
            for node in self.users.of(value):
                if node.op is race:
                    if value in race.read_before():
                        return False
                elif isinstance(node.op, (flow.Ret, flow.If)):
                    return False
                elif not isinstance(node.op, flow.Resume) and not self._picks(node.op, race):
                    new = [result for result in node.results if result not in seen]
                    seen.update(new)
                    todo += new
        return True

    def _picks(self, op: Op, race: lm.Race) -> bool:
        """Whether an op takes the results of those branches only that have won a race."""
        return (
            isinstance(op, text.Pick)
            and isinstance(op.index, Value)
            and self.users.maker(op.index) is race
        )

    def block(self, region: Region) -> p.Block:
        return p.Block(tuple(self.node(node) for node in region.nodes))

    def node(self, node: Node) -> p.Instr:
        rule = _RULES.get(type(node.op))
        if rule is None:
            raise InternalError(f"there is no lowering of {node.op.mnemonic}", node.at)
        instr: p.Instr = rule(self, node.op, node.results, node.at)
        return instr

    def constraint(self, constraint: Constraint, at: Location | None) -> int:
        if constraint not in self._constraints:
            try:
                data = _stored(constraint)
            except LmcError as error:
                raise error.at(at) from None
            if data in self.automata:
                self._constraints[constraint] = self.automata.index(data)
            else:
                self._constraints[constraint] = len(self.automata)
                self.automata.append(data)
        return self._constraints[constraint]


@functools.lru_cache(maxsize=256)
def _stored(constraint: Constraint) -> dict[str, Any]:
    """The automaton of a constraint as a plan holds it; the same object for the same constraint."""
    return automaton_for(constraint).to_json()


Results = tuple[Value, ...]
At = Location | None


def _start(low: _Lowering, _: lm.Start, results: Results, at: At) -> p.Instr:
    return p.Start(into=low.define(results[0]), at=at)


def _extend(low: _Lowering, op: lm.Extend, results: Results, at: At) -> p.Instr:
    return p.Extend(
        into=low.define(results[0]), state=low.state(op.state), parts=low.operands(op.parts), at=at
    )


def _role(low: _Lowering, op: lm.Role, results: Results, at: At) -> p.Instr:
    return p.Role(
        into=low.define(results[0]), state=low.state(op.state), role=op.role, edge=op.edge, at=at
    )


def _gen(low: _Lowering, op: lm.Gen, results: Results, at: At) -> p.Gen:
    constraint = op.params.constraint
    return p.Gen(
        into=low.define(results[0]),
        into_text=low.define(results[1]),
        state=low.state(op.state),
        name=op.name,
        params=op.params,
        draw=op.draw,
        constraint=None if constraint is None else low.constraint(constraint, at),
        stops=tuple(low.constraint(stop, at) for stop in op.params.stop_constraints),
        priority=low.priority(),
        at=at,
    )


def _match(low: _Lowering, op: lm.Match, results: Results, at: At) -> p.Instr:
    constraints = [gen.constraint for gen in op.gens]
    return p.Match(
        into=low.define(results[0]),
        into_text=low.define(results[1]),
        into_texts=tuple(map(low.define, results[2:])),
        state=low.state(op.state),
        texts=low.operands(op.texts),
        names=op.names,
        gens=op.gens,
        constraints=tuple(low.constraint(c, at) for c in constraints if c is not None),
        heal=op.heal,
        draw=op.draw,
        priority=low.priority(),
        at=at,
    )


def _chain(low: _Lowering, op: lm.Chain, results: Results, at: At) -> p.Instr:
    links: list[p.Instr] = []
    state, texts, gens = low.state(op.state), iter(op.texts), iter(range(len(op.gens)))
    places = op.places or (at,) * len(op.links)
    for link, place in zip(op.links, places, strict=True):
        kind, _, what = link.partition(" ")
        if kind == "gen":
            nth = next(gens)
            gen = lm.Gen(op.state, op.names[nth], op.gens[nth], op.draws[nth])
            lowered = _gen(low, gen, results[2 * nth : 2 * nth + 2], place)
            links.append(dataclasses.replace(lowered, state=state))
            state = lowered.into
            continue
        into = low.register()
        if kind in lm.EDGES:
            links.append(p.Role(into=into, state=state, role=what, edge=kind, at=place))
        else:
            part = next(texts) if kind == "text" else results[2 * int(what) + 1]
            parts = (low.operand(part),)
            links.append(p.Extend(into=into, state=state, parts=parts, at=place))
        state = into
    return p.Chain(links=tuple(links), at=at)


def _select(low: _Lowering, op: lm.Select, results: Results, at: At) -> p.Instr:
    return p.Select(
        into=low.define(results[0]),
        into_text=low.define(results[1]),
        state=low.state(op.state),
        name=op.name,
        choices=low.operands(op.choices),
        method=op.method,
        draw=op.draw,
        temperature=op.temperature,
        priority=low.priority(),
        at=at,
    )


def _score(low: _Lowering, op: lm.Score, results: Results, at: At) -> p.Instr:
    return p.Score(
        into=low.define(results[0]),
        into_value=low.define(results[1]),
        state=low.state(op.state),
        name=op.name,
        text=low.operand(op.text),
        top_logprobs=op.top_logprobs,
        priority=low.priority(),
        at=at,
    )


def _race(low: _Lowering, op: lm.Race, results: Results, at: At) -> p.Instr:
    groups = [[call for call in group if isinstance(call, Value)] for group in op.groups()]
    *into, tokens = map(low.define, results)
    return p.Race(
        into=tuple(into),
        into_tokens=tokens,
        groups=tuple(tuple(map(low.state, group)) for group in groups),
        stops=tuple(
            tuple(low.state(call) for call in calls if low.stoppable(call, op, branch))
            for branch, calls in enumerate(map(low.calls_in, op.groups()))
        ),
        k=op.k,
        at=at,
    )


def _pick(low: _Lowering, op: text.Pick, results: Results, at: At) -> p.Instr:
    return p.Pick(
        into=low.define(results[0]),
        index=low.operand(op.index),
        items=low.operands(op.items),
        at=at,
    )


def _attempt(low: _Lowering, op: text.Attempt, results: Results, at: At) -> p.Instr:
    return p.Attempt(into=low.define(results[0]), item=low.operand(op.item), at=at)


def _text(low: _Lowering, op: lm.StateText, results: Results, at: At) -> p.Instr:
    return p.StateText(into=low.define(results[0]), state=low.state(op.state), at=at)


def _prefill(low: _Lowering, op: lm.Prefill, results: Results, at: At) -> p.Instr:
    return p.Prefill(
        into=low.define(results[0]),
        state=low.state(op.state),
        ahead=op.ahead,
        priority=low.priority(),
        at=at,
    )


def _release(low: _Lowering, op: lm.Release, _: Results, at: At) -> p.Instr:
    return p.Release(state=low.state(op.state), at=at)


def _pure(low: _Lowering, op: text.Pure, results: Results, at: At) -> p.Instr:
    return p.Compute(into=low.define(results[0]), fn=op.fn, args=low.operands(op.args), at=at)


def _host_call(low: _Lowering, op: host.HostCall, results: Results, at: At) -> p.Instr:
    return p.HostCall(
        into=low.define(results[0]),
        fn=op.fn,
        args=low.operands(op.args),
        names=op.names,
        gives=op.gives,
        pure=op.pure,
        after=low.operands(op.after),
        at=at,
    )


def _typed(low: _Lowering, op: typed.Typed, results: Results, at: At) -> p.Instr:
    return p.Typed(
        into=low.define(results[0]),
        text=low.operand(op.text),
        type=op.type,
        name=op.name,
        at=at,
    )


def _make_list(low: _Lowering, op: text.MakeList, results: Results, at: At) -> p.Instr:
    return p.MakeList(into=low.define(results[0]), items=low.operands(op.items), at=at)


def _pack(low: _Lowering, op: text.Pack, results: Results, at: At) -> p.Instr:
    return p.Pack(
        into=low.define(results[0]), template=op.template, items=low.operands(op.items), at=at
    )


def _if(low: _Lowering, op: flow.If, _: Results, at: At) -> p.Instr:
    return p.If(
        condition=low.operand(op.condition),
        then=low.block(op.then),
        orelse=low.block(op.orelse),
        after=low.operands(op.after),
        at=at,
    )


def _resume(low: _Lowering, op: flow.Resume, _: Results, at: At) -> p.Instr:
    calls = tuple((low.operand(state), low.operand(text_)) for state, text_ in op.calls)
    return p.Resume(calls=calls, tools=low.operands(op.after), reason=op.reason, at=at)


def _ret(low: _Lowering, op: flow.Ret, _: Results, at: At) -> p.Instr:
    return p.Ret(
        state=low.state(op.state),
        names=op.names,
        values=low.operands(op.values),
        value=low.operand(op.value),
        after=low.operands(op.after),
        at=at,
    )


_RULES: dict[type[Op], Callable[..., p.Instr]] = {
    lm.Start: _start,
    lm.Extend: _extend,
    lm.Role: _role,
    lm.Gen: _gen,
    lm.Match: _match,
    lm.Chain: _chain,
    lm.Select: _select,
    lm.Score: _score,
    lm.Race: _race,
    lm.StateText: _text,
    lm.Prefill: _prefill,
    lm.Release: _release,
    text.Pure: _pure,
    host.HostCall: _host_call,
    typed.Typed: _typed,
    text.MakeList: _make_list,
    text.Pack: _pack,
    text.Pick: _pick,
    text.Attempt: _attempt,
    flow.If: _if,
    flow.Resume: _resume,
    flow.Ret: _ret,
}
