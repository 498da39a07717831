"""Types of generated values: what text a gen of a type may write, and how it is read back.

A type has a text of its own, which parameters, graphs and plans carry:

    int, float, bool                    written as in JSON, without exponents
    literal:["a", 3]                    one of these; texts without quotes
    enum:Colour:["red", "blue"]         the same, read back as members of a class
    json:list[int]                      JSON, read as Python's own lists, dictionaries, ...
    object:Person                       JSON, read back as objects of classes

The classes themselves are remembered in this process, by the texts of their types. Elsewhere (in an
artifact) the last forms are read as what JSON makes of them.

Owns        the table of types that were used in this process; it only grows.
Costs       a type is looked at once; reading simple ones takes microseconds.
"""

from __future__ import annotations

import enum
import json
import threading
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmc.errors import LmcError, RunError, UsageError

__all__ = [
    "TypeSpec",
    "closed",
    "gives",
    "lookup",
    "plain_value",
    "spec_of",
    "typed_value",
]

_INT = r"0|-?[1-9][0-9]{0,14}"
_FLOAT = r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?"
_MOST = 10**15 - 1  # of integers: with a point and a zero, too, they are read back exactly


@dataclass(frozen=True)
class TypeSpec:
    """A type of generated values.

    Attributes:
        text: its own text; see above.
        constraint: the parameter of a gen that holds it to the type, by name.
        read: the value that a text stands for; raises ValueError for one that stands for none.
        values: of types with few values, each by its text.
    """

    text: str
    constraint: Mapping[str, Any]
    read: Callable[[str], Any]
    values: Mapping[str, Any] = field(default_factory=dict)


_specs: dict[str, TypeSpec] = {}
_texts: dict[Any, str] = {}  # of types that were looked at
_lock = threading.Lock()


def spec_of(wanted: Any) -> TypeSpec | None:  # noqa: ANN401 - anything that annotations may name
    """What a type asks of a gen; None for `str`, which asks nothing.

    Raises:
        UsageError: it is no type whose values can be written and read back.
    """
    if wanted is str:
        return None
    try:
        known = _texts.get(wanted)
    except TypeError:
        raise _refused(wanted, "it is not hashable") from None
    if known is not None:
        return _specs[known]
    made = _simple(wanted) or _few(wanted) or _json(wanted)
    with _lock:
        text, n = made.text, 2
        while text in _specs and not made.text.startswith("literal:"):  # of another class
            text, n = f"{made.text} #{n}", n + 1
        spec = TypeSpec(text, made.constraint, made.read, made.values)
        _specs[text] = spec
        _texts[wanted] = text
    return spec


def lookup(text: str) -> TypeSpec | None:
    """The type of a text, if it was used in this process or needs no class."""
    if text in ("int", "float", "bool"):
        return spec_of({"int": int, "float": float, "bool": bool}[text])
    if text.startswith("literal:") and text not in _specs:
        return _of_values(text, json.loads(text.partition(":")[2]))
    return _specs.get(text)


def gives(text: str) -> str | None:
    """The type of what a program reads, as the IR writes it; None if it is the text of no type.

    Where there are few values it is `text`: their text, from which the program's own way follows.
    """
    kind = text.partition(":")[0]
    if kind in ("bool", "literal", "enum"):
        return "text"
    return {"int": "int", "float": "float", "json": "value", "object": "value"}.get(kind)


def typed_value(text: str, value: Any, finish_reason: str | None, name: str) -> Any:  # noqa: ANN401
    """The value that a gen's text is read back as.

    Args:
        text: of the type.
        value: the text of the gen; an error in its place stays what it is.
        finish_reason: why the gen ended.
        name: of the variable, for messages.

    Raises:
        RunError: the text is not complete, or no value of the type.
    """
    if isinstance(value, LmcError):
        return value
    shown = text.split(":")[1] if text.startswith(("enum:", "json:", "object:")) else text
    if finish_reason == "length":
        raise RunError(
            f"the variable {name!r} is no complete {shown}: its tokens ran out at {value!r}",
            hint="give its gen a larger max_tokens",
        )
    spec = lookup(text)
    try:
        if spec is None:
            return value if text.startswith("enum:") else json.loads(value)
        return spec.read(value)
    except ValueError as error:
        told = str(error).splitlines()[0]
        raise RunError(
            f"the variable {name!r} is no {shown}: {told}",
            hint="without a stop= of its own, a gen writes what its type wants",
        ) from error


def plain_value(text: str, value: Any) -> Any:  # noqa: ANN401 - a JSON value
    """The same as a JSON value; the text itself where it is not complete."""
    if not isinstance(value, str):
        return value
    kind = text.partition(":")[0]
    try:
        if kind == "literal":
            held = _of_values(text, json.loads(text.partition(":")[2])).values
            return held.get(value, value)
        return value if kind == "enum" else json.loads(value)
    except ValueError:
        return value


# ---------------------------------------------------------------------------------- kinds


def _simple(wanted: Any) -> TypeSpec | None:  # noqa: ANN401
    if wanted is int:
        return TypeSpec("int", {"regex": _INT}, int)
    if wanted is float:
        return TypeSpec("float", {"regex": _FLOAT}, float)
    if wanted is bool:
        return _of_choices("bool", {"true": True, "false": False})
    return None


def _few(wanted: Any) -> TypeSpec | None:  # noqa: ANN401
    """The type of a Literal, an Enum, or None."""
    if wanted is None or wanted is type(None):
        return _of_values("literal:[null]", [None])
    if typing.get_origin(wanted) is typing.Literal:
        values = list(typing.get_args(wanted))
        if all(value is None or type(value) in (str, int, bool) for value in values):
            return _of_values(f"literal:{json.dumps(values)}", values)
        return _of_members(wanted, values)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return _of_members(wanted, list(wanted))
    return None


def _of_members(wanted: Any, members: list[Any]) -> TypeSpec:  # noqa: ANN401
    texts: dict[str, Any] = {}
    for member in members:
        value = member.value if isinstance(member, enum.Enum) else member
        plain = value is None or isinstance(value, (str, int, float, bool))
        text = _text_of(value) if plain else member.name
        if text in texts:
            raise _refused(wanted, f"two of its members are written {text!r}")
        texts[text] = member
    if not texts:
        raise _refused(wanted, "it has no members")
    return _of_choices(f"enum:{_named(wanted)}:{json.dumps(list(texts))}", texts)


def _of_values(text: str, values: list[Any]) -> TypeSpec:
    texts: dict[str, Any] = {}
    for value in values:
        written = _text_of(value)
        if written in texts and (type(texts[written]), texts[written]) != (type(value), value):
            raise _refused(text, f"two of its values are written {written!r}")
        texts[written] = value
    return _of_choices(text, texts)


def _text_of(value: Any) -> str:  # noqa: ANN401
    return str.__str__(value) if isinstance(value, str) else json.dumps(value)


def _of_choices(text: str, values: dict[str, Any]) -> TypeSpec:
    def read(written: str) -> Any:  # noqa: ANN401
        if written not in values:
            raise ValueError(f"{written!r} is none of {', '.join(map(repr, values))}")
        return values[written]

    return TypeSpec(text, {"choices": tuple(values)}, read, values)


def _json(wanted: Any) -> TypeSpec:  # noqa: ANN401
    """Any other type, by the JSON that pydantic reads for it."""
    import pydantic  # slow to import, and not needed for simple types

    try:
        adapter: Any = pydantic.TypeAdapter(wanted)
        schema = _bounded(closed(adapter.json_schema()))
    except pydantic.PydanticSchemaGenerationError:
        raise _refused(wanted, "pydantic has no schema for it") from None
    except Exception as error:  # pydantic raises many kinds, and runs code of the class
        raise _refused(wanted, str(error).splitlines()[0]) from error
    kind = "json" if _plain(wanted) else "object"
    return TypeSpec(
        f"{kind}:{_named(wanted)}",
        {"json_schema": json.dumps(schema)},
        lambda text: adapter.validate_json(text),
    )


def _plain(wanted: Any) -> bool:  # noqa: ANN401
    """Whether the values of a type are what JSON makes of their texts."""
    origin = typing.get_origin(wanted)
    if origin is typing.Literal:
        return all(v is None or type(v) in (str, int, bool) for v in typing.get_args(wanted))
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(map(_plain, typing.get_args(wanted)))
    return wanted in (str, int, float, bool, list, dict, type(None), None)


def closed(schema: Any) -> Any:  # noqa: ANN401 - JSON values
    """The schema of a class: its objects have the fields that were declared, and no others."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def _bounded(schema: Any) -> Any:  # noqa: ANN401 - JSON values
    """The schema with an end to integers that have none."""
    if isinstance(schema, list):
        return [_bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _bounded(value) for key, value in schema.items()}
    if schema.get("type") == "integer":
        if not {"minimum", "exclusiveMinimum"} & schema.keys():
            made["minimum"] = -_MOST
        if not {"maximum", "exclusiveMaximum"} & schema.keys():
            made["maximum"] = _MOST
    return made


def _named(wanted: Any) -> str:  # noqa: ANN401
    name = wanted.__qualname__ if isinstance(wanted, type) and not _args(wanted) else str(wanted)
    return name.replace("typing.", "").rpartition("<locals>.")[2].replace(":", "")


def _args(wanted: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return typing.get_args(wanted)


def _refused(wanted: Any, why: str) -> UsageError:  # noqa: ANN401
    shown = wanted.__name__ if isinstance(wanted, type) else repr(wanted)
    return UsageError(
        f"type is {shown[:80]}, whose values cannot be written and read back: {why}",
        hint="use int, float, bool, str, Literal, Enum, a dataclass, a pydantic model, "
        "or lists and unions of these",
    )
