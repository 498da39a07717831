"""Rows for programs whose arguments nobody has given: what `lmc check` runs them on.

A missing text is made up: a sentence, nothing at all, and whatever the program compares it with, so
that the ways that depend on arguments are taken, too.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmc.commands.given import annotation_of, options_of
from lmc.errors import LmcError

if TYPE_CHECKING:
    from lmc.api import Program

__all__ = ["made_up_rows", "missing_arguments"]

MOST_ROWS = 8
_TEXT = "The old bridge was closed in the spring, and nobody knows when it will open again."
_TEXTS = ["one", "two", "three", "four"]
_COMPARING = ("text.eq", "text.ne", "text.startswith", "text.endswith", "text.contains")


def missing_arguments(program: Program, given: Mapping[str, object]) -> list[str]:
    """The arguments without a value that one can be made up for; a text if nothing is said."""
    flat = {**program._bound, **given}
    parameters = list(inspect.signature(program.function).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        p.name
        for p in parameters
        if p.kind in kinds and p.default is p.empty and p.name not in flat
    ]


def made_up_rows(program: Program, given: Mapping[str, object]) -> list[dict[str, object]]:
    """Rows in which each missing argument has a value that its annotation allows."""
    missing = missing_arguments(program, given)
    if not missing:
        return [dict(given)]
    values = {name: _values(annotation_of(program, name)) for name in missing}
    first = {**given, **{name: held[0] for name, held in values.items()}}
    rows = [first]
    for name, held in values.items():
        rows += [{**first, name: value} for value in held[1:]]
    for path, text in _compared(program, first):
        if path[0] in values:
            rows.append(_with(first, path, text))
    distinct = {repr(row): row for row in rows}
    return list(distinct.values())[:MOST_ROWS]


def _values(annotation: Any) -> Sequence[object]:  # noqa: ANN401 - any annotation
    option = options_of(annotation)[0]
    origin = typing.get_origin(option) or option
    if origin is typing.Literal:
        return typing.get_args(option)
    if origin in (list, tuple, Sequence):
        inner = next(iter(typing.get_args(option)), str)
        several = [_values(inner)[0]] * len(_TEXTS)
        return [_as(_TEXTS if several[0] == _TEXT else several, origin)]
    known: dict[Any, Sequence[object]] = {
        int: (2, 0), float: (0.5,), bool: (True, False), dict: ({},), type(None): (None,)
    }  # fmt: skip
    return known.get(origin, (_TEXT, ""))


def _as(items: list[Any], kind: Any) -> object:  # noqa: ANN401 - a class
    """The items as a tuple where one is wanted."""
    return tuple(items) if kind is tuple else list(items)


def _compared(
    program: Program, row: Mapping[str, object]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Texts that the program compares its arguments with, and where those lie."""
    from lmc.ir.core import Const
    from lmc.ir.ops.text import Pure

    try:
        graph = program.trace(**row)
    except LmcError:  # it is told of when the program is compiled
        return
    paths = dict(zip(graph.params, graph.paths, strict=True))
    for node in graph.walk():
        op = node.op
        if isinstance(op, Pure) and op.fn in _COMPARING:
            constants = [str(arg.value) for arg in op.args if isinstance(arg, Const)]
            places = [paths[arg] for arg in op.args if not isinstance(arg, Const) and arg in paths]
            if constants and places:
                yield places[0], constants[0]


def _with(row: Mapping[str, object], path: tuple[str | int, ...], text: str) -> dict[str, object]:
    """The row with another text at a place."""

    def changed(node: Any, rest: tuple[str | int, ...]) -> Any:  # noqa: ANN401 - nested values
        if not rest:
            return text
        if isinstance(node, dict):
            return {k: changed(v, rest[1:]) if k == rest[0] else v for k, v in node.items()}
        items = [changed(v, rest[1:]) if n == rest[0] else v for n, v in enumerate(node)]
        return _as(items, type(node))

    made = changed(dict(row), path)
    assert isinstance(made, dict), "a row is a dictionary"
    return made
