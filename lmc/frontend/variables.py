"""What the variables of a program hold, and what was appended to its prompt.

    made by a model call    the recorder's own name for it
    gathered by a join      a list
    `s.set("x", value)`     Given(value)
    `with s.var("x"):`      Row(parts), the texts in a row that were appended inside

Owns        the shapes of these; nothing here waits, and nothing knows a model.
Costs       appending to a log O(1), reading it O(its entries).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from lmc.errors import Location, UsageError

__all__ = [
    "Entry", "Given", "Life", "Made", "Row", "check_known", "copied", "entries_since", "plain",
    "texts_since",
]  # fmt: skip


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
    kind: Literal["text", "begin", "end", "unknown"]
    held: Any


def entries_since(start: Entry | None, end: Entry | None) -> list[Entry]:
    """The entries after `start` up to `end`, oldest first.

    Raises:
        ValueError: `start` is not on the way to `end`: the prompt went back to before it.
    """
    found: list[Entry] = []
    while end is not start:
        if end is None:
            raise ValueError("the prompt went back")
        found.append(end)
        end = end.before
    return found[::-1]


def texts_since(
    start: Entry | None, end: Entry | None, at: Location | None
) -> tuple[str | Made, ...]:
    """The texts that were appended after `start` up to `end`, without the edges of messages.

    Raises:
        UsageError: they are not known one by one.
    """
    entries = entries_since(start, end)
    for entry in entries:
        check_known(entry, at)
    return tuple(entry.held for entry in entries if entry.kind == "text")


def check_known(entry: Entry, at: Location | None) -> None:
    """Raise UsageError if an entry stands for what was appended to branches of several shapes."""
    if entry.kind == "unknown":
        raise UsageError(
            f"the messages since {entry.held} differ from branch to branch",
            at,
            hint="use text(), or build all branches alike",
        )


class Life:
    """The model calls that a state has made since it was copied, and whether it may go on."""

    def __init__(self, parent: Life | None = None) -> None:
        self.calls: list[Any] = []  # the recorder's names of their results
        self._children: list[Life] = []
        self._losing: list[Life] = []
        self._parent = parent
        self._ended: str | None = None

    def child(self) -> Life:
        """The life of a copy: it ends with this one."""
        made = Life(self)
        self._children.append(made)
        return made

    def end(self, by: str) -> None:
        """End this and the copies of it, for good: their calls may be cancelled."""
        self._ended = by

    @property
    def ended(self) -> str | None:
        """What has ended it, if anything has."""
        life: Life | None = self
        while life is not None:
            if life._ended is not None:
                return life._ended
            life = life._parent
        return None

    def raced(self, tokens: Any, branches: list[Life]) -> None:
        """Some copies of it have raced: of their calls, those of the winners count, as `tokens`."""
        self.calls.append(tokens)
        self._losing += branches

    def calls_that_count(self) -> list[Any]:
        """Its calls and those of its copies; of those that raced, the tokens of the first ones."""
        return self._collect(lambda life: (c for c in life._children if c not in life._losing))

    def all_calls(self) -> list[Any]:
        """Its calls and those of all copies of it."""
        return self._collect(lambda life: life._children)

    def _collect(self, more: Callable[[Life], Iterable[Life]]) -> list[Any]:
        found: list[Any] = []
        todo = [self]
        while todo:
            life = todo.pop()
            found += life.calls
            todo += more(life)
        return found


def plain(text: str) -> str:
    """A text of an own class of texts, by its characters; `str()` may give others.

    >>> class Kind(str, __import__("enum").Enum):
    ...     A = "a"
    >>> plain(Kind.A), str(Kind.A), "" + Kind.A
    ('a', 'Kind.A', 'a')
    """
    return str.__str__(text)


def copied(value: Any) -> Any:
    """The value with its lists, tuples and dictionaries copied, at all depths."""
    if type(value) is list:
        return [copied(item) for item in value]
    if type(value) is tuple:
        return tuple(copied(item) for item in value)
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return value
