"""What the variables of a program hold, and what was appended to its prompt.

    made by a model call    the recorder's own name for it
    gathered by a join      a list
    `s.set("x", value)`     Given(value)
    `with s.var("x"):`      Row(parts), the texts in a row that were appended inside

Owns        the shapes of these; nothing here waits, and nothing knows a model.
Costs       appending to a log O(1), reading it O(its entries).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Entry", "Given", "Made", "Row", "copied", "entries_since"]


@dataclass(frozen=True, eq=False)
class Given:
    """A value that the program has set itself; its containers are copies of its own."""

    value: Any


@dataclass(frozen=True, eq=False)
class Made:
    """A text that a model call made, as one of several parts; `ref` is the recorder's name."""

    ref: Any


@dataclass(frozen=True, eq=False)
class Row:
    """Texts one after the other, given ones and made ones."""

    parts: tuple[str | Made, ...]


@dataclass(frozen=True, eq=False)
class Entry:
    """One thing that was appended to a prompt, after all those before it.

    Attributes:
        before: the entry before, or None.
        kind: a piece of text, or an edge of a message.
        held: the text (a `str` or a `Made`), or the role.
    """

    before: Entry | None
    kind: Literal["text", "begin", "end"]
    held: Any


def entries_since(start: Entry | None, end: Entry | None) -> Iterator[Entry]:
    """The entries after `start` up to `end`, oldest first."""
    found: list[Entry] = []
    while end is not start:
        assert end is not None, "a log is read from one of its own entries on"
        found.append(end)
        end = end.before
    return reversed(found)


def copied(value: Any) -> Any:
    """The value with its lists, tuples and dictionaries copied, at all depths."""
    if type(value) is list:
        return [copied(item) for item in value]
    if type(value) is tuple:
        return tuple(copied(item) for item in value)
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return value
