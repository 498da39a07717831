"""Putting things back as they were: what a program changes outside of itself while it is traced.

Objects are told apart by identity, since to compare may run a program of the user's. Names,
attributes and dictionaries that are as they were are not written to.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from types import CellType
from typing import Any

__all__ = ["attribute", "attributes", "cell", "items", "name"]


def name(space: dict[str, Any], name: str, value: object) -> None:
    """A name of a module."""
    if space.get(name) is not value or name not in space:
        space[name] = value


def cell(held: CellType, value: object) -> None:
    """A variable of an outer function."""
    held.cell_contents = value


def attribute(owner: Any, name: str, value: object) -> None:
    """An attribute in a slot, or one of a class, as it stands in its `__dict__`."""
    now = owner.__dict__.get(name) if isinstance(owner, type) else getattr(owner, name, None)
    if now is not value:
        (type if isinstance(owner, type) else object).__setattr__(owner, name, value)


def attributes(owner: Any, held: dict[str, Any]) -> None:
    """All attributes in the `__dict__` of an object, a function or a class."""
    if isinstance(owner, type):
        for name, value in held.items():
            if not (name.startswith("__") and name.endswith("__")):
                attribute(owner, name, value)
        for name in set(owner.__dict__) - set(held):
            type.__delattr__(owner, name)
    elif not _alike(list(owner.__dict__.items()), list(held.items())):
        owner.__dict__.clear()
        owner.__dict__.update(held)


def items(container: Any, held: Any) -> None:
    """What a list, deque, set, dictionary (as pairs) or byte array holds."""
    if isinstance(container, dict):
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        if not _alike(list(kind.items(container)), held):
            kind.clear(container)
            for key, value in held:
                kind.__setitem__(container, key, value)
    elif isinstance(container, bytearray):
        container[:] = held
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), held)
    elif isinstance(container, deque):
        deque.clear(container)
        deque.extend(container, held)
    else:
        set.clear(container)
        set.update(container, held)


def _alike(now: list[tuple[Any, Any]], before: list[tuple[Any, Any]]) -> bool:
    return len(now) == len(before) and all(
        a is c and b is d for (a, b), (c, d) in zip(now, before, strict=True)
    )
