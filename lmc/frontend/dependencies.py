"""What a program reads from outside of its arguments: globals, closures, helpers.

A trace is kept and used again, so it must be found by everything that it depends on. `snapshot`
gives that as one value, which changes when one of them changes. Containers are read through;
objects of other classes count by identity, since nobody can know what of them a program reads.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any

from lmc.frontend.location import is_library
from lmc.frontend.tools import Tool

__all__ = ["fixed", "snapshot"]

_PLAIN = (str, int, float, bool, complex, bytes, type(None), type(Ellipsis), type(NotImplemented))
_MOST_ITEMS = 20_000  # read of containers in one snapshot; what is beyond counts by identity


def snapshot(function: Callable[..., Any]) -> tuple[object, ...]:
    """A hashable value of all that a function reads from outside, its helpers included.

    Costs microseconds a name and as much again for each item of the containers it reads.
    """
    found: list[object] = []
    try:
        _Reader(found).function(function)
    except RecursionError:  # too deep to read: equal to no other snapshot
        found.append(object())
    return tuple(found)


def fixed(value: object) -> bool:
    """Whether an argument that is kept by identity can never change behind the program's back."""
    kinds = (enum.Enum, type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType, Tool)
    return isinstance(value, kinds)


class _Reader:
    def __init__(self, found: list[object]) -> None:
        self._found = found
        self._seen: set[int] = set()
        self._containers: set[int] = set()  # so that one that holds itself is read once
        self._items = 0

    def function(self, function: object) -> None:
        """Add what a function reads, if it is the user's own."""
        if isinstance(function, types.MethodType):
            self.owner(function.__self__)
            function = function.__func__
        if type(function) is not types.FunctionType or id(function.__code__) in self._seen:
            self._found.append(id(function))
            return
        code = function.__code__
        self._seen.add(id(code))
        self._found.append(code)
        if is_library(code.co_filename):
            return
        space = function.__globals__
        for name in _names(code):
            if name in space:
                self._found.append(name)
                self.value(space[name])
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._found.append(name)
            try:
                self.value(cell.cell_contents)
            except ValueError:  # not set yet
                self._found.append("empty")
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.value(default)

    def owner(self, owner: Any) -> None:
        """Add what a method may read of its object, or of its class: the attributes."""
        self._found.append(id(owner))
        for holder in (owner, *(owner if isinstance(owner, type) else type(owner)).__mro__):
            held = getattr(holder, "__dict__", None)
            if held is None or id(holder) in self._containers or holder is object:
                continue
            self._containers.add(id(holder))
            for name, value in list(held.items()):
                if not (name.startswith("__") and name.endswith("__")):
                    self._found.append(name)
                    self.value(value)

    def value(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self._found.append((type(value), value))
        elif type(value) in (list, tuple, set, frozenset, dict) and self._reads(value):
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            for item in items:
                self.value(item)
                if type(value) is dict:
                    self.value(value[item])
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            self.function(value)
        elif isinstance(value, Tool):  # what a tool reads is of no concern to a trace
            self._found.append(id(value))
        elif isinstance(
            held := getattr(value, "function", None), (types.FunctionType, types.MethodType)
        ):
            self.function(held)  # another program
            self.value(getattr(value, "_bound", None))
        else:
            self._found.append(id(value))

    def _reads(self, container: Any) -> bool:
        """Whether to read the items of a container; notes what kind and size it has."""
        self._found.append((type(container), len(container)))
        if id(container) in self._containers or self._items + len(container) > _MOST_ITEMS:
            return False
        self._containers.add(id(container))
        self._items += len(container)
        return True


def _names(code: types.CodeType) -> list[str]:
    """The global names that a code and those inside of it read, in a fixed order."""
    names = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(dict.fromkeys(_names(inner)))
    return list(names)
