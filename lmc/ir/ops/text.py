"""Pure ops on texts, numbers, lists and other values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from lmc.errors import IRError
from lmc.ir.attributes import spell, suggestion
from lmc.ir.core import Const, Op, Operand, check_type
from lmc.ir.types import INT, STATE, TEXT, VALUE, Type, list_of, parse_type
from lmc.textops import PURE

__all__ = ["PARTIAL", "Attempt", "MakeList", "Pack", "Pick", "Pure"]

PARTIAL = frozenset({"text.at", "list.get", "text.split", "int.text", "value.get", "value.text"})
"""The functions that raise on some arguments: no pass drops them unless they surely do not."""


@dataclass(frozen=True)
class Pure(Op):
    """A function of `lmc.textops.PURE`; its name is the mnemonic.

    %t0 = text.concat "Dear ", %name, ","
    """

    op: ClassVar[str] = "pure"
    fn: str
    args: tuple[Operand, ...]

    @property
    def mnemonic(self) -> str:
        return self.fn

    def attributes(self) -> dict[str, Any]:
        return {}

    @classmethod
    def read(cls, operands: list[Any], attributes: dict[str, Any]) -> Self:
        # the parser hands over the mnemonic, since one class stands for all functions
        held = dict(attributes)
        fn = held.pop("fn")
        if held:
            raise IRError(f"{fn}: takes no attributes, found `{next(iter(held))}`")
        return cls(fn, tuple(operands))

    def result_types(self) -> tuple[Type, ...]:
        return (parse_type(PURE[self.fn].gives),) if self.fn in PURE else ()

    def verify(self) -> None:
        if self.fn not in PURE:
            raise IRError(f"there is no function `{self.fn}`", hint=suggestion(self.fn, PURE))
        takes = PURE[self.fn].takes
        fixed = [t for t in takes if not t.endswith("*")]
        repeated = [t[:-1] for t in takes if t.endswith("*")]
        extra = len(self.args) - len(fixed)
        if extra < 0 or (extra > 0 and not repeated):
            raise IRError(
                f"{self.fn}: takes ({', '.join(takes)}), found "
                f"({', '.join(str(a.type) for a in self.args)})"
            )
        for nth, (arg, wanted) in enumerate(
            zip(self.args, fixed + repeated * extra, strict=True), 1
        ):
            if wanted != "any":
                check_type(self, f"argument {nth}", arg, parse_type(wanted))
            elif arg.type == STATE:
                raise IRError(f"{self.fn}: argument {nth} is a state")


@dataclass(frozen=True)
class MakeList(Op):
    """A list of the items: `list<T>` when all are of type T, else `list<value>`.

    %list = list.make %a, "b"

    The empty list is a `list<text>`.
    """

    op: ClassVar[str] = "list.make"
    items: tuple[Operand, ...]

    def result_types(self) -> tuple[Type, ...]:
        kinds = {item.type for item in self.items}
        if not kinds:
            return (list_of(TEXT),)
        return (list_of(kinds.pop() if len(kinds) == 1 else VALUE),)

    def verify(self) -> None:
        _no_states(self, self.items)


@dataclass(frozen=True)
class Pack(Op):
    r"""A Python structure whose leaves `{"$": n}` are the items.

    %v0 = value.pack %a, %b {template = "[{\"$\": 0}, {\"$\": 1}]"}

    The template is JSON text in which dictionaries are written `{"dict": [[key, value], ...]}` and
    tuples `{"tuple": [...]}`.
    """

    op: ClassVar[str] = "value.pack"
    items: tuple[Operand, ...]
    template: str

    def result_types(self) -> tuple[Type, ...]:
        return (VALUE,)

    def verify(self) -> None:
        _no_states(self, self.items)
        try:
            holes = set(_holes(json.loads(self.template)))
        except (ValueError, TypeError, RecursionError) as error:
            raise IRError(f"value.pack: the template cannot be read: {error}") from error
        if missing := sorted(n for n in holes if not 0 <= n < len(self.items)):
            raise IRError(
                f"value.pack: the template {spell(self.template)} uses item {missing[0]}, "
                f"there are {len(self.items)}"
            )


@dataclass(frozen=True)
class Pick(Op):
    """Item number `index`, which may be a state; of the others not even a failure shows.

    %picked = value.pick 1, %a, %b
    """

    op: ClassVar[str] = "value.pick"
    index: Operand
    items: tuple[Operand, ...]

    def result_types(self) -> tuple[Type, ...]:
        kinds = {item.type for item in self.items}
        return (kinds.pop() if len(kinds) == 1 else VALUE,)

    def verify(self) -> None:
        check_type(self, "the index", self.index, INT)
        if not self.items:
            raise IRError("value.pick: there are no items to pick from")
        kinds = {item.type for item in self.items}
        if STATE in kinds and len(kinds) > 1:
            raise IRError("value.pick: the items are states and others")
        if isinstance(self.index, Const) and not 0 <= int(str(self.index.value)) < len(self.items):
            raise IRError(
                f"value.pick: there is no item {self.index.value}, there are {len(self.items)}"
            )


@dataclass(frozen=True)
class Attempt(Op):
    """The item, or the error with which it failed.

    %held = value.attempt %a
    """

    op: ClassVar[str] = "value.attempt"
    item: Operand

    def result_types(self) -> tuple[Type, ...]:
        return (VALUE,)

    def verify(self) -> None:
        _no_states(self, (self.item,))


def _no_states(op: Op, items: tuple[Operand, ...]) -> None:
    for nth, item in enumerate(items, 1):
        if item.type == STATE:
            raise IRError(f"{op.mnemonic}: item {nth} is a state, which no value can hold")


def _holes(template: Any) -> Iterator[int]:  # noqa: ANN401 - JSON values
    """The item numbers in a template.

    Raises:
        ValueError: it has an object that is neither a leaf, nor a dictionary, nor a tuple.
    """
    if isinstance(template, list):
        for item in template:
            yield from _holes(item)
    elif isinstance(template, dict):
        match template:
            case {"$": int(n), **rest} if not rest and not isinstance(n, bool):
                yield n
            case {"tuple": list(items), **rest} if not rest:
                yield from _holes(items)
            case {"dict": list(pairs), **rest} if not rest:
                if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                    raise ValueError('"dict" takes a list of [key, value]')
                yield from _holes(pairs)
            case _:
                raise ValueError(f'an object has one key "$", "tuple" or "dict", not {template}')
