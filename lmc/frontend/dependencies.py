"""What a program reads from outside of its arguments: globals, closures, helpers.

A trace is kept and used again, so it must be found by everything that it depends on. `snapshot`
gives that as one value, which changes when one of them changes. Containers, the objects of the
user's own classes, and what is named of the user's own modules and classes are read through;
objects of libraries count by identity, since nobody can know what of them a program reads.
"""

from __future__ import annotations

import enum
import functools
import random
import sys
import types
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from typing import Any

from lmc.frontend import putting
from lmc.frontend.location import is_library, is_own
from lmc.frontend.tools import Tool

__all__ = ["SHARED", "Same", "Snapshot", "fixed", "snapshot"]

Snapshot = tuple[object, ...]
"""Names, each before what it stands for."""

SHARED = "(shared)"
"""Stands in a snapshot for the name of an object that is shared."""

_PLAIN = (str, int, float, bool, complex, bytes, type(None), type(Ellipsis), type(NotImplemented))
_CONTAINERS = (list, tuple, set, frozenset, dict, deque, defaultdict, OrderedDict, Counter)
_HOLDERS = (UserDict, UserList, types.SimpleNamespace)  # of libraries, but read through
_MOST_ITEMS = 20_000  # read of containers in one snapshot; what is beyond counts by identity


def snapshot(
    function: Callable[..., Any],
    shared: tuple[object, ...] = (),
    undo: list[Callable[[], None]] | None = None,
) -> Snapshot:
    """A hashable value of all that a function reads from outside, its helpers included.

    With `shared`, of these objects, too. To `undo` is added what puts all of it back as it is now;
    to be called in reverse order.

    Costs microseconds a name and as much again for each item of the containers it reads.
    """
    found: list[object] = []
    reader = _Reader(found, undo)
    try:
        reader.function(function)
        for held in shared:
            reader.named(SHARED, held, ())
    except RecursionError:  # too deep to read: equal to no other snapshot
        found.append(object())
    return tuple(found)


def fixed(value: object) -> bool:
    """Whether an argument that is kept by identity can never change behind the program's back."""
    kinds = (enum.Enum, type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType, Tool)
    return isinstance(value, kinds)


class Same:
    """An object that equals only itself; held, so that its place in memory is no other's."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class _Reader:
    def __init__(self, found: list[object], undo: list[Callable[[], None]] | None = None) -> None:
        self._found = found
        self._undo = undo
        self._seen: set[int] = set()
        self._containers: set[int] = set()  # so that one that holds itself is read once
        self._holders: set[int] = set()  # objects, and classes, whose attributes were read
        self._items = 0

    def function(self, function: object) -> None:
        """Add what a function reads, if it is the user's own."""
        if isinstance(function, types.MethodType):
            self.owner(function.__self__)
            function = function.__func__
        if type(function) is not types.FunctionType or id(function) in self._seen:
            self._found.append(Same(function))
            return
        code = function.__code__
        self._seen.add(id(function))
        self._found.append(code)
        helper = len(self._seen) > 1
        if is_library(code.co_filename) or (helper and is_own(code.co_filename)):
            return
        space, names = function.__globals__, _names(code)
        for name in names:
            if name in space:
                self._keep(putting.name, space, name, space[name])
                self.named(name, space[name], names)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._keep(putting.cell, cell, cell.cell_contents)
                self.named(name, cell.cell_contents, names)
            except ValueError:  # not set yet
                self._found.append((name, "empty"))
        self._keep(putting.attributes, function, dict(function.__dict__))
        for name, held in list(function.__dict__.items()):
            if not name.startswith("__"):
                self.named(name, held, ())
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.value(default)

    def named(self, name: str, value: Any, names: tuple[str, ...]) -> None:
        """Add a value by its name; of one of the user's own modules, what `names` read there."""
        self._found.append(name)
        self.value(value)
        if type(value) is types.ModuleType and id(value) not in self._seen and not _library(value):
            self._seen.add(id(value))
            for inner in names:
                if inner in value.__dict__:
                    self._keep(putting.name, value.__dict__, inner, value.__dict__[inner])
                    self.named(inner, value.__dict__[inner], names)
            self._seen.discard(id(value))  # another function may read more of it
        elif isinstance(value, type) and id(value) not in self._seen and not _fixed_class(value):
            self._seen.add(id(value))
            for cls in value.__mro__:
                for inner in names:
                    if inner in cls.__dict__ and not _library(sys.modules.get(cls.__module__)):
                        held = cls.__dict__[inner]
                        self._keep(putting.attribute, cls, inner, held)
                        of_class = isinstance(held, (classmethod, staticmethod))
                        self.named(inner, held.__func__ if of_class else held, names)
            self._seen.discard(id(value))

    def owner(self, owner: Any) -> None:
        """Add what a method may read of its object, or of its class: the attributes."""
        self._found.append(Same(owner))
        classes = (owner if isinstance(owner, type) else type(owner)).__mro__
        for cls in classes:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not isinstance(owner, type) and hasattr(owner, name):
                    self._keep(putting.attribute, owner, name, getattr(owner, name))
                    self._found.append(name)
                    self.value(getattr(owner, name))
        for holder in (owner, *classes):
            held = getattr(holder, "__dict__", None)
            if held is None or id(holder) in self._holders:
                continue
            if isinstance(holder, type) and _library(sys.modules.get(holder.__module__)):
                continue
            if self._items + len(held) > _MOST_ITEMS:
                continue
            self._holders.add(id(holder))
            self._items += len(held)
            self._keep(putting.attributes, holder, dict(held))
            for name, value in list(held.items()):
                if not (name.startswith("__") and name.endswith("__")):
                    self._found.append(name)
                    self.value(value)

    def value(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self._found.append((type(value), value))
        elif type(value) in _CONTAINERS:
            self.items(value)
        elif type(value) is bytearray:
            self._keep(putting.items, value, bytes(value))
            self._found.append((bytearray, bytes(value)))
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            self.function(value)
        elif isinstance(value, Tool):  # what a tool reads is of no concern to a trace
            self._found.append(Same(value))
        elif isinstance(
            held := getattr(value, "function", None), (types.FunctionType, types.MethodType)
        ):
            self.function(held)  # another program
            self.value(getattr(value, "_bound", None))
        elif (
            fixed(value)
            or id(value) in self._seen
            or (_library(sys.modules.get(type(value).__module__)) and type(value) not in _HOLDERS)
        ):
            self._found.append(Same(value))
            if type(value) is random.Random:
                state = value.getstate()
                self._keep(value.setstate, state)
                self._found.append(state)
        else:
            self._seen.add(id(value))
            self.owner(value)
            if isinstance(value, _CONTAINERS):
                self.items(value)

    def items(self, container: Any) -> None:
        """Add what a container holds, if that is not too much."""
        if not self._reads(container):
            return
        held = container
        if isinstance(container, dict):
            held = [part for pair in list(container.items()) for part in pair]
        for item in sorted(held, key=repr) if isinstance(held, (set, frozenset)) else list(held):
            self.value(item)

    def _reads(self, container: Any) -> bool:
        """Whether to read the items of a container; notes what kind and size it has."""
        self._found.append((type(container), len(container)))
        if id(container) in self._containers or self._items + len(container) > _MOST_ITEMS:
            return False
        self._containers.add(id(container))
        self._items += len(container)
        if not isinstance(container, (tuple, frozenset)):
            held = dict.items(container) if isinstance(container, dict) else container
            self._keep(putting.items, container, list(held))
        return True

    def _keep(self, put: Callable[..., None], *what: object) -> None:
        """Note how to put something back as it is now."""
        if self._undo is not None:
            self._undo.append(functools.partial(put, *what))


def _fixed_class(cls: type) -> bool:
    """Whether a class is none of the user's, or one whose attributes are what they are."""
    return issubclass(cls, enum.Enum) or _library(sys.modules.get(cls.__module__))


def _library(module: types.ModuleType | None) -> bool:
    """Whether a module is lmc, Python's own or an installed one; those without a file may be."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return module is not None and module.__name__ in sys.builtin_module_names
    return is_library(file) or is_own(file)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names that a code and those inside of it read, in a fixed order."""
    names = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(dict.fromkeys(_names(inner)))
    return tuple(names)
