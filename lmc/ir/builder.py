"""The only way to make nodes: types inferred, everything checked as soon as it is added.

Owns        the nodes of regions and programs that are still being built.
Promises    what `freeze` and `build` give is valid, save for draws and releases, which only
            `lmc.ir.verifier` sees as a whole.
Costs       adding a node takes time in the number of its operands.
"""

from __future__ import annotations

from collections.abc import Iterable

from lmc.errors import IRError, Location
from lmc.ir.core import Node, Op, Program, Region, Value
from lmc.ir.types import TEXT, Type

__all__ = ["ProgramBuilder", "RegionBuilder"]


class RegionBuilder:
    """A region that grows node by node.

    >>> from lmc.ir.ops import Ret, Start
    >>> region = RegionBuilder()
    >>> (s,) = region.add(Start())
    >>> region.terminate(Ret(s))
    >>> [node.op.mnemonic for node in region.freeze().nodes]
    ['lm.start', 'ret']

    Attributes:
        nodes: those added so far; read it, but add through `add`.
        outer: the region around it, whose values are visible here, or None.
    """

    def __init__(self, outer: RegionBuilder | None = None, params: Iterable[Value] = ()) -> None:
        self.nodes: list[Node] = []
        self.outer = outer
        self._own = set(params)

    @property
    def terminated(self) -> bool:
        """Whether the region has its end, so that nothing can be added."""
        return bool(self.nodes) and self.nodes[-1].op.terminator

    def sees(self, value: Value) -> bool:
        """Whether the value is defined here or in a region around this one."""
        region: RegionBuilder | None = self
        while region is not None:
            if value in region._own:
                return True
            region = region.outer
        return False

    def add(
        self, op: Op, at: Location | None = None, hints: tuple[str, ...] | None = None
    ) -> tuple[Value, ...]:
        """Append a node and give the values it defines.

        Args:
            op: not a terminator.
            at: the user's line it came from.
            hints: names for the results, instead of those that the op proposes.

        Raises:
            IRError: the op is wrong, uses a value that is not visible here, or the region has
                ended; placed at `at`.
        """
        if op.terminator:
            raise IRError(f"{op.mnemonic} ends a region: give it to `terminate`", at)
        return self._append(op, at, hints).results

    def terminate(self, op: Op, at: Location | None = None) -> None:
        """End the region with `ret`, `flow.resume` or `flow.if`.

        Raises:
            IRError: as `add`, or the op is no terminator.
        """
        if not op.terminator:
            raise IRError(f"{op.mnemonic} does not end a region: give it to `add`", at)
        self._append(op, at, None)

    def inner(self) -> RegionBuilder:
        """A new region that sees the values of this one."""
        return RegionBuilder(self)

    def freeze(self) -> Region:
        """The region as it is now.

        Raises:
            IRError: it has no end yet.
        """
        if not self.terminated:
            raise IRError("the region has no end: terminate it with ret, flow.resume or flow.if")
        return Region(tuple(self.nodes))

    def _append(self, op: Op, at: Location | None, hints: tuple[str, ...] | None) -> Node:
        if self.terminated:
            raise IRError(f"{op.mnemonic} comes after the end of the region", at)
        try:
            op.verify()
        except IRError as error:
            error.at(at)
            raise
        for value in op.value_operands():
            if not self.sees(value):
                name = f" `{value.hint}`" if value.hint else ""
                raise IRError(f"{op.mnemonic} uses a value{name} that is not visible here", at)
        types = op.result_types()
        names = op.result_hints() if hints is None else hints
        if len(names) != len(types):
            raise IRError(f"{op.mnemonic} gives {len(types)} values, found {len(names)} hints", at)
        node = Node(op, tuple(map(Value, types, names)), at)
        self.nodes.append(node)
        self._own.update(node.results)
        return node


class ProgramBuilder:
    """A program that is still being built: parameters first, then the body.

    >>> from lmc.ir.ops import Extend, Ret, Start
    >>> program = ProgramBuilder("greet")
    >>> name = program.param("name")
    >>> (s,) = program.body.add(Start())
    >>> (s,) = program.body.add(Extend(s, (name,)))
    >>> program.body.terminate(Ret(s))
    >>> print(program.build(), end="")
    program @greet(%name: text) {
      %s0 = lm.start
      %s1 = lm.extend %s0, %name
      ret %s1
    }
    """

    def __init__(self, name: str, *, static: str = "{}", source: Location | None = None) -> None:
        self.name = name
        self.static = static
        self.source = source
        self.body = RegionBuilder()
        self._params: dict[Value, tuple[str | int, ...]] = {}

    @property
    def params(self) -> tuple[Value, ...]:
        """The parameters so far."""
        return tuple(self._params)

    def param(
        self, hint: str, type: Type = TEXT, path: tuple[str | int, ...] | None = None
    ) -> Value:
        """A new parameter; `path` says where its text lies in the arguments: `(hint,)` if None."""
        value = Value(type, hint)
        self._params[value] = path or (hint,)
        self.body._own.add(value)
        return value

    def build(self, body: Region | None = None) -> Program:
        """The program, with the given body or the one that was built.

        Raises:
            IRError: the body has no end yet.
        """
        return Program(
            self.name,
            self.params,
            body or self.body.freeze(),
            self.static,
            tuple(self._params.values()),
            self.source,
        )
