"""Fold what is known, and write every prompt in the fewest extends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from lmc.ir.analysis import released, uses
from lmc.ir.core import Const, Node, Op, Operand, Program, Region, Value
from lmc.ir.ops import Extend, If, MakeList, Pick, Pure
from lmc.passes.rewrite import drop_nodes, region_of
from lmc.textops import PURE

__all__ = ["Canonicalize"]


@dataclass(frozen=True)
class Canonicalize:
    r"""Fold constants, join texts, and merge adjacent extends into spans.

        %t0 = text.upper "a"
        %t1 = text.concat "b", %x
        %s1 = lm.extend %s0, %t0, %t1      =>    %s2 = lm.extend %s0, "Ab", %x, "c"
        %s2 = lm.extend %s1, "", "c"

        flow.if true { A } else { B }      =>    A

    An extend is merged into the next one only if nothing else uses its state: a fork stays where
    it is. Nothing is merged across roles, model calls and prefills. The runtime tokenizes the
    whole text between two model outputs at once, so how it is cut into extends never shows. A
    function that raises on its arguments is left for the run.

    Running it again changes nothing.
    """

    name: ClassVar[str] = "canonicalize"

    def run(self, program: Program) -> Program:
        """The program in canonical form; `program` itself if it is already."""
        while True:
            body = _Round(program.body).run()
            if body is program.body:
                return program
            program = program.with_body(body)


_MOST_PARTS = 16  # up to here a text that is used several times is copied into its uses

_WHEN_SAME = {"text.eq": True, "text.le": True, "text.ne": False, "text.lt": False,
              "int.eq": True, "int.le": True, "int.ne": False, "int.lt": False}  # fmt: skip


class _Round:
    """One walk through a program; `uses` never falls below the true number while it rewrites."""

    def __init__(self, body: Region) -> None:
        self.body = body
        self.uses = uses(body)
        self.user = {v: n.op for n in body.walk() for v in n.op.value_operands()}  # a last one
        self.fixed = released(body)
        self.ops: dict[Value, Op] = {}  # what defines each value that has been met
        self.new: dict[Value, Operand] = {}
        self.dropped: set[Value] = set()

    def run(self) -> Region:
        return drop_nodes(self.region(self.body), self.dropped)

    def region(self, region: Region) -> Region:
        return region_of(list(self.nodes(region)), region)

    def nodes(self, region: Region) -> Iterator[Node]:
        for old in region.nodes:
            if isinstance(old.op, If):
                yield from self.branch(old, old.op)
                continue
            # substitution does not change how often anything is used: `put` has counted it
            node = old.substitute(self.new)
            found = self.simplified(node)
            if isinstance(found, Op):
                if found is not node.op:
                    self.recount(node.op, found)
                    node = replace(node, op=found)
                self.ops.update((value, found) for value in node.results)
                yield node
            else:
                self.put(node, found)

    def branch(self, node: Node, op: If) -> Iterator[Node]:
        condition = self.renamed(op.condition)
        if isinstance(condition, Const):
            # the uses in the other way go on counting until the next round: that is only careful
            yield from self.nodes(op.then if condition.value else op.orelse)
            return
        then, orelse = self.region(op.then), self.region(op.orelse)
        after = tuple(map(self.renamed, op.after))
        if (condition, *after) != (op.condition, *op.after) or (then, orelse) != op.regions():
            node = replace(node, op=If(condition, then, orelse, after))
        yield node

    def renamed(self, operand: Operand) -> Operand:
        return self.new.get(operand, operand) if isinstance(operand, Value) else operand

    def put(self, node: Node, operand: Operand) -> None:
        """Let an operand stand for the only result of a node that goes."""
        (value,) = node.results
        self.new[value] = operand
        self.uses.subtract(node.op.value_operands())
        if isinstance(operand, Value):
            self.uses[operand] += self.uses[value]

    def recount(self, old: Op, new: Op) -> None:
        self.uses.subtract(old.value_operands())
        self.uses.update(new.value_operands())

    def consume(self, values: list[Value]) -> None:
        """Drop the nodes of values whose last uses are replaced by their operands.

        To be called when all of them are known: until then, the counts must include them.
        """
        self.dropped.update(values)
        for value in values:
            self.uses.subtract(self.ops[value].value_operands())

    # ------------------------------------------------------------------------- the rules

    def simplified(self, node: Node) -> Op | Operand:
        """A simpler op, an operand that the node's result equals, or the op itself."""
        op = node.op
        match op:
            case Extend():
                return self.extend(op, node.results[0])
            case Pick(Const(int(index)), items):
                # one name for both would be used after its release
                return op if {node.results[0], items[index]} & self.fixed else items[index]
            case Pure(_, args) if all(isinstance(arg, Const) for arg in args):
                return _folded(op)
            case Pure("text.concat", args):
                user = self.only_user(node.results[0])
                if isinstance(user, Extend) or (isinstance(user, Pure) and user.fn == op.mnemonic):
                    return op  # it is taken in there, and a chain is in one go
                consumed: list[Value] = []
                parts = self.joined(args, consumed, copy=False)
                self.consume(consumed)
                return _concat(op, parts)
            case Pure("text.join" | "text.unordered", (separator, *items)):
                return _concat(op, _between(separator, items))
            case Pure("bool.not", (Value() as arg,)):
                before = self.ops.get(arg)
                if isinstance(before, Pure) and before.fn == "bool.not":
                    return before.args[0]
            case Pure(fn, (Value() as a, Value() as b)) if a is b and fn in _WHEN_SAME:
                return Const(_WHEN_SAME[fn])
            case Pure(fn, args) if fn.startswith("list."):
                return self.of_list(op)
        return op

    def extend(self, op: Extend, result: Value) -> Op | Operand:
        user = self.only_user(result)
        if isinstance(user, Extend) and user.state is result and op.state not in self.fixed:
            return op  # the last of a chain takes in all others, in time linear in its length
        state = op.state
        consumed: list[Value] = []
        runs = [self.joined(op.parts, consumed, copy=True)]
        while True:
            before = self.ops.get(state)
            if not isinstance(before, Extend) or self.uses[state] != 1:
                break
            if before.state in self.fixed:
                break
            consumed.append(state)
            runs.append(self.joined(before.parts, consumed, copy=True))
            state = before.state
        self.consume(consumed)
        parts = _merged(itertools.chain.from_iterable(reversed(runs)))
        if not parts and not {state, result} & self.fixed:
            return state
        fresh = Extend(state, parts)
        return op if fresh == op else fresh

    def joined(
        self, parts: tuple[Operand, ...], consumed: list[Value], *, copy: bool
    ) -> tuple[Operand, ...]:
        """The parts with concats replaced by what they join.

        A concat that nothing else uses is added to `consumed`. Others stay, and are copied only on
        demand and where that stays small.
        """
        flat: list[Operand] = []
        left = list(reversed(parts))
        while left:
            part = left.pop()
            inner = self.concat(part)
            if inner is None:
                flat.append(part)
            elif isinstance(part, Value) and self.uses[part] == 1:
                consumed.append(part)
                left.extend(reversed(inner.args))
            elif copy and len(flat) + len(inner.args) + len(left) <= _MOST_PARTS:
                flat.extend(inner.args)
            else:
                flat.append(part)
        return _merged(flat)

    def only_user(self, value: Value) -> Op | None:
        """The op that uses a value, as it was before this round, if nothing else does."""
        return self.user.get(value) if self.uses[value] == 1 else None

    def concat(self, operand: Operand) -> Pure | None:
        """The concat that defines an operand, if one does."""
        op = self.ops.get(operand) if isinstance(operand, Value) else None
        return op if isinstance(op, Pure) and op.fn == "text.concat" else None

    def of_list(self, op: Pure) -> Op | Operand:
        """A function of a list whose items are seen."""
        made = self.ops.get(op.args[-1 if op.fn == "list.join" else 0])  # type: ignore[arg-type]
        if not isinstance(made, MakeList):
            return op
        match op:
            case Pure("list.length"):
                return Const(len(made.items))
            case Pure("list.get", (_, Const(int(index)))):
                if -len(made.items) <= index < len(made.items):
                    return made.items[index]
            case Pure("list.join", (separator, _)):
                return _concat(op, _between(separator, made.items))
        return op


def _folded(op: Pure) -> Op | Operand:
    """The result of a function whose arguments are all known; the op itself if it raises."""
    try:
        value = PURE[op.fn].compute(*(arg.value for arg in op.args if isinstance(arg, Const)))
    except (LookupError, ValueError, TypeError):
        return op
    return MakeList(tuple(map(Const, value))) if isinstance(value, list) else Const(value)


def _concat(op: Op, parts: tuple[Operand, ...]) -> Op | Operand:
    """The simplest op or operand that joins the parts; `op` if it is that already."""
    parts = _merged(parts)
    if len(parts) < 2:
        return parts[0] if parts else Const("")
    fresh = Pure("text.concat", parts)
    return op if fresh == op else fresh


def _between(separator: Operand, items: Iterable[Operand]) -> tuple[Operand, ...]:
    """The items with a separator between each two."""
    pairs = itertools.chain.from_iterable((separator, item) for item in items)
    return tuple(pairs)[1:]


def _merged(parts: Iterable[Operand]) -> tuple[Operand, ...]:
    """The parts with adjacent constants joined and empty ones dropped."""
    merged: list[Operand] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Const) and isinstance(last, Const):
            merged[-1] = Const(f"{last.value}{part.value}")
        elif part != Const(""):
            merged.append(part)
    return tuple(merged)
