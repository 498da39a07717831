"""Copies of arguments, so that what a program changes is its own.

    row of arguments ──► the same values, as objects of the row's own

A program runs several times on one row: when it is traced, and where its graph ends. Each of these
runs is given copies; so is each row, and none sees what another has changed.

Owns        which objects are data, and are copied, and which are not, and are shared: modules,
            classes, functions, tensors, files, locks, objects of libraries, objects that are to be
            closed, and marks, which have nothing but their identity.
Promises    objects that are one stay one, also as keys, inside of what is copied with one memo;
            nothing of the program's runs, but for `__deepcopy__` and `__hash__` of its own classes.
Costs       about a microsecond an object; nothing for texts and numbers.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import random
import sys
import types
from collections import Counter, OrderedDict, UserDict, UserList, UserString, defaultdict, deque
from collections.abc import Mapping
from typing import Any

from lmc.errors import UsageError
from lmc.frontend.location import is_library, is_own

__all__ = ["Memo", "of_library", "own", "own_values"]

Memo = dict[int, Any]
"""The copies so far, by the `id` of what they were copied from, as `copy.deepcopy` has them."""

_PLAIN = frozenset({str, int, float, bool, complex, bytes, type(None)})
_LISTS = (list, deque, bytearray)
_DICTS = (defaultdict, OrderedDict, Counter, dict)  # before the classes that they are made of
_SETS = (set, frozenset)
_PYTHONS = (UserDict, UserList, UserString, types.SimpleNamespace)  # their state is a `__dict__`
_WITHOUT_STATE = ("typing", "abc", "collections.abc", "pydantic.main", "pydantic.root_model")
_ANNOTATIONS = ("__annotations__", "__annotate__", "__annotate_func__")
_TO_BE_CLOSED = ("__del__", "__enter__", "__aenter__")


def own(arguments: Mapping[str, object]) -> dict[str, Any]:
    """The arguments of one row, as its own.

    As for `flatten`, lists, tuples and dictionaries are a tree: one that is there twice is copied
    twice. What is no part of this tree is copied with one memo.

    Raises:
        UsageError: containers are too deep.
    """
    memo: Memo = {}

    def tree(value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return [tree(item) for item in value]
        if kind is tuple:
            return tuple([tree(item) for item in value])
        if kind is dict and all(type(key) is str or type(key) is int for key in value):
            return {key: tree(item) for key, item in value.items()}
        return _try(value, memo)

    try:
        return {name: tree(value) for name, value in arguments.items()}
    except RecursionError as error:
        raise UsageError(f"an argument cannot be read: {error}") from error


def own_values(values: tuple[object, ...]) -> tuple[Any, ...]:
    """Values of one row, as its own; what several of them hold is still one object.

    Raises:
        RecursionError: they are too deep.
    """
    memo: Memo = {}
    return tuple([_try(value, memo) for value in values])


def _try(value: object, memo: Memo) -> Any:
    try:
        return _owned(value, memo)
    except RecursionError:
        raise
    except Exception:  # of a key's `__hash__`, say: the value stays shared
        return value


def _owned(value: Any, memo: Memo) -> Any:
    """A value as the row's own, or the value itself where it is no data."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    known = memo.get(id(value), memo)
    if known is not memo:
        return known
    if kind is tuple or kind is frozenset:
        items = [_owned(item, memo) for item in value]
        same = all(a is b for a, b in zip(value, items, strict=True))
        # it may hold itself, by way of a list
        return memo.setdefault(id(value), value if same else kind(items))
    if kind is list:  # these two as any others below, but there are many of them
        made: Any = []
        memo[id(value)] = made
        made += [item if type(item) in _PLAIN else _owned(item, memo) for item in value]
        return made
    if kind is dict:
        made = {}
        memo[id(value)] = made
        for key, held in list(value.items()):
            made[_owned(key, memo)] = held if type(held) in _PLAIN else _owned(held, memo)
        return made
    if kind is types.MethodType:
        return types.MethodType(value.__func__, _owned(value.__self__, memo))
    way = _way(kind)
    if way == "shared":
        return value
    if way == "hook":
        try:
            return copy.deepcopy(value, memo)
        except Exception:  # it cannot be copied, whatever its class says
            return value
    return _shell(value, kind, memo)


def _shell(value: Any, kind: type, memo: Memo) -> Any:
    """An object of the same class, with its items and attributes copied."""
    state = _attributes(value)
    slots = [(slot, held) for slot in _slots(kind) if (held := _held(slot, value)) is not _UNSET]
    if not state and not slots and not _base(kind) and _is_mark(kind):
        return value
    made = _begun(value, kind, memo)
    memo[id(value)] = made
    for slot, held in slots:
        slot.__set__(made, _owned(held, memo))
    if state:
        _attributes(made).update({name: _owned(held, memo) for name, held in state.items()})
    base = _base(kind)
    if base in _DICTS:
        put = OrderedDict.__setitem__ if base is OrderedDict else dict.__setitem__
        pairs = OrderedDict.items if base is OrderedDict else dict.items
        for key, held in list(pairs(value)):
            put(made, _owned(key, memo), _owned(held, memo))
    elif base is list or base is deque:
        items = base.__iter__(value)
        base.extend(made, [i if type(i) in _PLAIN else _owned(i, memo) for i in items])
    elif base is set:
        set.update(made, [_owned(item, memo) for item in set.__iter__(value)])
    return made


def _begun(value: Any, kind: type, memo: Memo) -> Any:
    """An object of the class without its attributes; one that cannot change has its items."""
    base: Any = _base(kind)
    if base is None:
        new = types.SimpleNamespace if issubclass(kind, types.SimpleNamespace) else object
        return new.__new__(kind)
    if base is tuple or base is frozenset:
        return base.__new__(kind, [_owned(item, memo) for item in base.__iter__(value)])
    made = base.__new__(kind)
    if base is deque:
        deque.__init__(made, (), value.maxlen)
    elif base is defaultdict:
        defaultdict.__init__(made, value.default_factory)
    elif base is bytearray:
        bytearray.__init__(made, value)
    return made


@functools.lru_cache(maxsize=4096)
def _way(kind: type) -> str:
    """How objects of a class are taken: "shell", "hook" (by their own method) or "shared"."""
    if kind in (*_LISTS, *_DICTS, *_SETS, *_PYTHONS):
        return "shell"
    if kind is random.Random:
        return "hook"
    if kind is object or issubclass(kind, (type, enum.Enum)) or not _is_data(kind):
        return "shared"
    for cls in kind.__mro__:
        if "__deepcopy__" in cls.__dict__ and not of_library(cls):
            return "hook"
    return "shared" if any(hasattr(kind, name) for name in _TO_BE_CLOSED) else "shell"


def _is_data(kind: type) -> bool:
    """Whether all that an object of a class can hold is in its attributes and its items."""
    bases = (object, tuple, *_LISTS, *_DICTS, *_SETS, *_PYTHONS)
    for cls in kind.__mro__:
        if cls in bases or cls.__module__ in _WITHOUT_STATE:
            continue
        if _own(cls):
            return False
        data = dataclasses.is_dataclass(cls) or "__attrs_attrs__" in cls.__dict__
        if of_library(cls) and not data:
            return False
    return True


@functools.lru_cache(maxsize=4096)
def _base(kind: type) -> type | None:
    """The kind of container that a class is derived from, if any."""
    for base in (tuple, *_LISTS, *_DICTS, *_SETS):
        if issubclass(kind, base):
            return base
    return None


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> tuple[Any, ...]:
    """What reads and sets the attributes of a class that have a slot."""
    return tuple(
        held
        for cls in kind.__mro__
        if "__slots__" in cls.__dict__
        for held in cls.__dict__.values()
        if type(held) is types.MemberDescriptorType
    )


def _is_mark(kind: type) -> bool:
    """Whether objects of a class without attributes have none to come, as far as it says."""
    if kind is types.SimpleNamespace:
        return False
    for cls in kind.__mro__[:-1]:
        if len(cls.__dict__.get("__slots__", ())):
            return False
        for name, value in cls.__dict__.items():
            if name in _ANNOTATIONS or not (name.startswith("__") or callable(value)):
                return False
    return True


_UNSET: Any = object()


def _attributes(value: object) -> Any:
    """Those that have no slot, whatever its class does when it is asked for them; or nothing."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _held(slot: Any, value: object) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _UNSET


def of_library(cls: type) -> bool:
    """Whether a class is lmc's, Python's own or of an installed library."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return module is not None and module.__name__ in sys.builtin_module_names
    return is_library(file) or is_own(file)


def _own(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return isinstance(file, str) and is_own(file)
