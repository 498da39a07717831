"""The types of the IR: `state`, `text`, `bool`, `int`, `float`, `value` and `list<T>`."""

from __future__ import annotations

from dataclasses import dataclass

from lmc.errors import IRError

__all__ = ["BOOL", "FLOAT", "INT", "STATE", "TEXT", "VALUE", "Type", "list_of", "parse_type"]


@dataclass(frozen=True, slots=True)
class Type:
    """A type; `item` is the type of the items of a list, else None.

    >>> str(list_of(list_of(TEXT)))
    'list<list<text>>'
    """

    name: str
    item: Type | None = None

    def __str__(self) -> str:
        return f"{self.name}<{self.item}>" if self.item else self.name


STATE = Type("state")  # a prompt: everything that the model has read so far
TEXT = Type("text")
BOOL = Type("bool")
INT = Type("int")
FLOAT = Type("float")
VALUE = Type("value")  # any other Python value: None, a structure, an unknown one

_NAMED = {t.name: t for t in (STATE, TEXT, BOOL, INT, FLOAT, VALUE)}


def list_of(item: Type) -> Type:
    """The type of lists whose items are `item`."""
    return Type("list", item)


def parse_type(text: str) -> Type:
    """Read a type as `str` writes it.

    Raises:
        IRError: there is no such type.
    """
    if text in _NAMED:
        return _NAMED[text]
    if text.startswith("list<") and text.endswith(">"):
        return list_of(parse_type(text[len("list<") : -1]))
    raise IRError(f"there is no type `{text}`", hint=f"types are {', '.join(_NAMED)} and list<T>")
