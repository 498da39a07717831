"""Arguments of programs: which texts a row supplies, and what must be known when tracing.

As in JAX, an argument is a tree: dictionaries, lists and tuples are its shape, texts are its
symbolic leaves, everything else is static. A program is traced once per shape and static values;
`flatten` gives both as one text, the template (in the notation of `lmc.plan.Pack`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmc.errors import Location, UsageError
from lmc.frontend.owning import own_values

__all__ = ["Arguments", "Path", "bind", "flatten", "unflatten"]

Path = tuple[str | int, ...]
_KEYS = (str, int)  # of a path; their subclasses would come back as these


@dataclass(frozen=True)
class Arguments:
    """Flattened arguments of one row.

    Attributes:
        template: JSON text of the tree, texts replaced by `{"$": n}`.
        texts: the texts, in order.
        paths: where each text lies.
        opaque: static values that JSON cannot hold, as copies of the row's own where they can be
            copied, else kept by identity; `template` names them.
    """

    template: str
    texts: tuple[str, ...]
    paths: tuple[Path, ...]
    opaque: tuple[object, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What a trace of the program depends on."""
        return (self.template, *map(id, self.opaque))


def flatten(arguments: Mapping[str, object]) -> Arguments:
    """Separate the texts of arguments from their shape and static values.

    Raises:
        UsageError: a number is too long, or containers are too deep.
    """
    try:
        return _flatten(arguments)
    except (RecursionError, ValueError) as error:
        raise UsageError(f"an argument cannot be read: {error}") from error


def _flatten(arguments: Mapping[str, object]) -> Arguments:
    texts: list[str] = []
    paths: list[Path] = []
    opaque: list[object] = []

    def walk(value: object, path: Path) -> object:
        if type(value) is str:
            texts.append(value)
            paths.append(path)
            return {"$": len(texts) - 1}
        if value is None or type(value) in (bool, int, float):
            return value
        if type(value) is list:
            return [walk(item, (*path, i)) for i, item in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": [walk(item, (*path, i)) for i, item in enumerate(value)]}
        if type(value) is dict and all(type(k) in _KEYS for k in value):
            return {"dict": [[k, walk(item, (*path, k))] for k, item in value.items()]}
        opaque.append(value)
        return {"opaque": f"{type(value).__name__} {len(opaque) - 1}"}

    tree = {"dict": [[name, walk(value, (name,))] for name, value in arguments.items()]}
    held = own_values(tuple(opaque)) if opaque else ()
    return Arguments(json.dumps(tree), tuple(texts), tuple(paths), held)


def unflatten(arguments: Arguments, leaf: Callable[[int], Any]) -> dict[str, Any]:
    """The arguments again, with `leaf(n)` in the place of text n; the caller may change them."""
    opaque = own_values(arguments.opaque) if arguments.opaque else ()

    def build(node: Any) -> Any:
        if isinstance(node, list):
            return [build(item) for item in node]
        if isinstance(node, dict):
            if "$" in node:
                return leaf(node["$"])
            if "tuple" in node:
                return tuple(build(item) for item in node["tuple"])
            if "opaque" in node:
                return opaque[int(node["opaque"].rpartition(" ")[2])]
            return {key: build(item) for key, item in node["dict"]}
        return node

    built = build(json.loads(arguments.template))
    assert isinstance(built, dict)
    return built


def bind(
    signature: inspect.Signature,
    name: str,
    given: Mapping[str, object],
    where: Location | None,
    *,
    symbolic: bool = False,
    partial: bool = False,
) -> dict[str, object]:
    """The arguments of a program by name, defaults filled in; the state is not among them.

    With `symbolic`, a missing argument that may be a text is given as an empty one, to trace with;
    with `partial`, arguments may be missing.

    Raises:
        UsageError: an argument is missing, or there is one that the program does not take.
    """
    state, *parameters = signature.parameters.values()
    takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters) and state.name not in given
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [key for key in given if key not in named]
    if unknown and not takes_more:
        raise UsageError(
            f"{name}() takes no argument {unknown[0]!r}",
            where,
            hint=f"its arguments are: {', '.join(named) or 'none'}",
        )
    bound: dict[str, object] = {}
    for key, parameter in named.items():
        if key in given:
            bound[key] = given[key]
        elif parameter.default is not parameter.empty:
            bound[key] = parameter.default
        elif symbolic and parameter.annotation in (parameter.empty, str, "str"):
            bound[key] = ""
        elif not partial:
            kind = parameter.annotation
            kind = kind if isinstance(kind, str) else inspect.formatannotation(kind)
            of = f" ({kind})" if symbolic else ""
            raise UsageError(
                f"the argument {key!r}{of} of {name}() is missing",
                where,
                hint=f"give it as {key}=..., on the command line as --arg {key}=...",
            )
    bound.update((key, given[key]) for key in unknown)
    return bound
