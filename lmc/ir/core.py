"""Programs as graphs: values, ops, nodes and regions. Everything here is immutable.

    Program -- params, body: Region -- nodes: Node -- op: Op -- operands: Value | Const

A value is defined once, by a parameter or a node, and is visible after its definition in the same
region and in the regions inside it. A region is straight-line code that ends in a terminator:
`ret`, `flow.resume`, or a `flow.if` whose two regions end likewise. Ways that parted never meet
again, so there are no jumps and no phis.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from lmc.errors import IRError, Location
from lmc.ir.attributes import read_attribute, suggestion, written
from lmc.ir.types import BOOL, FLOAT, INT, TEXT, VALUE, Type

__all__ = [
    "Const",
    "Effect",
    "Node",
    "Op",
    "Operand",
    "Program",
    "Region",
    "Value",
    "check_type",
]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One SSA value. Compared by identity; `hint` only helps the printer to name it."""

    type: Type
    hint: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A literal operand. Equal only to a literal of the same Python type: `1` is not `True`."""

    value: str | int | float | bool | None

    @property
    def type(self) -> Type:
        """`text`, `bool`, `int` or `float`; `value` for None."""
        if isinstance(self.value, str):
            return TEXT
        if isinstance(self.value, bool):
            return BOOL
        if isinstance(self.value, int):
            return INT
        return FLOAT if isinstance(self.value, float) else VALUE

    def _key(self) -> tuple[str, object]:
        # repr tells -0.0 from 0.0 and lets one NaN equal another
        held = repr(self.value) if isinstance(self.value, float) else self.value
        return self.value.__class__.__name__, held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


Operand = Value | Const


class Effect(enum.Enum):
    """What a pass may do with a node."""

    PURE = "pure"  # drop, move or merge it
    IO = "io"  # neither, and keep its order among its like


_KINDS: dict[type[Op], dict[str, str]] = {}


def _fields_by_kind(cls: type[Op]) -> dict[str, str]:
    """For each field of an op class: `operand`, `operands`, `region` or `attribute`.

    The annotation decides, not what a field holds: an empty tuple would not tell.
    """
    if cls in _KINDS:
        return _KINDS[cls]
    kinds = _KINDS[cls] = {}
    for f in dataclasses.fields(cls):
        annotation = str(f.type)
        if "Region" in annotation:
            kinds[f.name] = "region"
        elif "Operand" in annotation or "Value" in annotation:
            kinds[f.name] = "operands" if "tuple" in annotation else "operand"
        else:
            kinds[f.name] = "attribute"
    return kinds


def _leaves(held: object) -> Iterator[Operand]:
    if type(held) is tuple:  # asked very often
        for item in held:
            yield from _leaves(item)
    else:
        assert isinstance(held, (Value, Const)), f"an operand is a Value or a Const, not {held!r}"
        yield held


def _replaced(held: Any, new: Mapping[Value, Operand]) -> Any:  # noqa: ANN401 - any nesting
    if isinstance(held, tuple):
        return tuple(_replaced(item, new) for item in held)
    return new.get(held, held) if isinstance(held, Value) else held


@dataclass(frozen=True)
class Op:
    """Base of all ops.

    Fields annotated with `Value`, `Operand` or tuples of them are operands, fields annotated with
    `Region` are bodies, and all others are attributes. A subclass says what it takes and gives in
    `verify` and `result_types`.
    """

    op: ClassVar[str]
    terminator: ClassVar[bool] = False

    @property
    def mnemonic(self) -> str:
        """The name of the op in the textual form."""
        return self.op

    @property
    def effect(self) -> Effect:
        """What a pass may do with it."""
        return Effect.PURE

    def operands(self) -> tuple[Operand, ...]:
        """All operands in the order of the textual form, literals too."""
        return tuple(
            leaf
            for name, kind in _fields_by_kind(type(self)).items()
            if kind.startswith("operand")
            for leaf in _leaves(getattr(self, name))
        )

    def value_operands(self) -> Iterator[Value]:
        """The operands that are values. Those that its regions use are not among them."""
        return (operand for operand in self.operands() if isinstance(operand, Value))

    def regions(self) -> tuple[Region, ...]:
        """The bodies, in declared order."""
        kinds = _fields_by_kind(type(self))
        return tuple(getattr(self, name) for name, kind in kinds.items() if kind == "region")

    def attributes(self) -> dict[str, Any]:
        """The attributes that differ from their defaults, as JSON values, in declared order."""
        kinds = _fields_by_kind(type(self))
        return {
            f.name: written(value)
            for f in dataclasses.fields(self)
            if kinds[f.name] == "attribute" and (value := getattr(self, f.name)) != f.default
        }

    def result_types(self) -> tuple[Type, ...]:
        """The types of the values that it defines."""
        return ()

    def result_hints(self) -> tuple[str, ...]:
        """Names for these values; empty where there is none to propose."""
        return ("",) * len(self.result_types())

    def substitute(self, new: Mapping[Value, Operand]) -> Self:
        """The op with values replaced, in its regions too; the op itself if it uses none."""
        changed: dict[str, Any] = {}
        for name, kind in _fields_by_kind(type(self)).items():
            held = getattr(self, name)
            if kind == "region":
                fresh = held.substitute(new)
                if fresh is not held:
                    changed[name] = fresh
            elif kind != "attribute" and any(leaf in new for leaf in _leaves(held)):
                changed[name] = _replaced(held, new)
        return dataclasses.replace(self, **changed) if changed else self

    def verify(self) -> None:
        """Check operand types and attributes.

        Raises:
            IRError: one of them is wrong.
        """

    @classmethod
    def read(cls, operands: list[Any], attributes: dict[str, Any]) -> Self:
        """Make the op from the operands and attributes of its textual form.

        Args:
            operands: values and literals, or tuples of them where the textual form groups them.
            attributes: JSON values by name.

        Raises:
            IRError: there are too few or too many operands, or an attribute is missing, unknown
                or of the wrong type.
        """
        held: dict[str, Any] = {}
        left, rest = list(operands), dict(attributes)
        for f in dataclasses.fields(cls):
            kind = _fields_by_kind(cls)[f.name]
            if kind == "operands":
                held[f.name], left = tuple(left), []
            elif kind == "operand" and left:
                held[f.name] = left.pop(0)
            elif kind == "attribute" and f.name in rest:
                held[f.name] = read_attribute(f"{cls.op}: {f.name}", str(f.type), rest.pop(f.name))
            elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
                what = "operand" if kind == "operand" else "attribute"
                raise IRError(f"{cls.op}: the {what} `{f.name}` is missing")
        if left:
            raise IRError(f"{cls.op}: has {len(left)} operand{'s'[: len(left) > 1]} too many")
        if rest:
            known = [n for n, kind in _fields_by_kind(cls).items() if kind == "attribute"]
            name = next(iter(rest))
            raise IRError(f"{cls.op}: there is no attribute `{name}`", hint=suggestion(name, known))
        return cls(**held)


def check_type(op: Op, what: str, operand: Operand, *wanted: Type) -> None:
    """Check the type of an operand; `what` says in the message which one it is.

    Raises:
        IRError: it is none of `wanted`.
    """
    if operand.type not in wanted:
        names = " or ".join(map(str, wanted))
        raise IRError(f"{op.mnemonic}: {what} must be of type {names}, found {operand.type}")


@dataclass(frozen=True, slots=True)
class Node:
    """An op at its place, the values it defines, and the user's line that it came from."""

    op: Op
    results: tuple[Value, ...] = ()
    at: Location | None = field(default=None, compare=False)

    def substitute(self, new: Mapping[Value, Operand]) -> Node:
        """The node with the operands of its op replaced; itself if it uses none of them."""
        op = self.op.substitute(new)
        return self if op is self.op else Node(op, self.results, self.at)


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes in an order in which every value is defined before it is used; the last one ends it."""

    nodes: tuple[Node, ...]

    @property
    def terminator(self) -> Node:
        """The last node."""
        return self.nodes[-1]

    def walk(self) -> Iterator[Node]:
        """All nodes in printed order: each before those of its regions."""
        stack = [iter(self.nodes)]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            yield node
            stack.extend(iter(region.nodes) for region in reversed(node.op.regions()))

    def substitute(self, new: Mapping[Value, Operand]) -> Region:
        """The region with values replaced at all depths; itself if it uses none of them."""
        if not new:
            return self
        nodes = tuple(node.substitute(new) for node in self.nodes)
        same = all(a is b for a, b in zip(nodes, self.nodes, strict=True))
        return self if same else Region(nodes)


@dataclass(frozen=True)
class Program:
    """A program as a graph.

    Attributes:
        name: of the program.
        params: the texts that are known only when it runs.
        body: what it does.
        static: JSON text of an object: the arguments that were known when it was traced.
        paths: per parameter, where its text lies in the arguments, as in `("choices", 0)`; when
            empty, each parameter is the argument named by its hint.
        source: file and line of the function.
        known: per parameter, its text if it is the same in all rows that the program is for, else
            None; empty if nothing is known.
        tools: the Python functions that its host calls name, as far as they are at hand; not a part
            of the textual form.
    """

    name: str
    params: tuple[Value, ...]
    body: Region
    static: str = "{}"
    paths: tuple[tuple[str | int, ...], ...] = ()
    source: Location | None = field(default=None, compare=False)
    known: tuple[str | None, ...] = ()
    tools: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.paths:
            object.__setattr__(self, "paths", tuple((p.hint,) for p in self.params))

    def __str__(self) -> str:
        from lmc.ir.printer import print_program  # the printer imports this module

        return print_program(self)

    def with_body(self, body: Region) -> Program:
        """The program with another body; itself if it is the same object."""
        return self if body is self.body else dataclasses.replace(self, body=body)

    def walk(self) -> Iterator[Node]:
        """All nodes in printed order."""
        return self.body.walk()
