"""Attributes of ops as JSON values, both ways, and how literals are spelled."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from lmc.errors import IRError

__all__ = ["read_attribute", "spell", "spell_key", "suggestion", "written"]

_SCALARS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def written(value: Any) -> Any:  # noqa: ANN401 - JSON values
    """An attribute as a JSON value: tuples become lists."""
    return [written(item) for item in value] if isinstance(value, tuple) else value


def read_attribute(what: str, annotation: str, value: Any) -> Any:  # noqa: ANN401 - JSON values
    """The attribute that a JSON value stands for, checked against its field's annotation.

    Annotations other than scalars, `tuple[T, ...]` and unions of these are not checked.

    Raises:
        IRError: the value does not fit; `what` begins the message.
    """
    options = annotation.split(" | ")
    if value is None and "None" in options:
        return None
    for option in options:
        if option.startswith("tuple["):
            item = option.removeprefix("tuple[").partition(",")[0]
            if isinstance(value, list):
                return tuple(read_attribute(what, item, v) for v in value)
        elif option in _SCALARS:
            if isinstance(value, bool) and option != "bool":
                continue
            if isinstance(value, _SCALARS[option]) or (
                option == "float" and isinstance(value, int)
            ):
                return value
        elif option != "None":
            return written_back(value)
    raise IRError(f"{what} must be {annotation}, found {spell(value)}")


def written_back(value: Any) -> Any:  # noqa: ANN401 - JSON values
    """The inverse of `written`."""
    return tuple(written_back(item) for item in value) if isinstance(value, list) else value


def spell(value: Any) -> str:  # noqa: ANN401 - JSON values
    r"""A JSON value as the textual form spells it: on one line, whatever its texts hold.

    >>> print(spell(["a\u2028", 1.5, None]))
    ["a\u2028", 1.5, null]
    """
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def spell_key(name: str) -> str:
    """A name as the textual form spells it: quoted unless it is an ASCII identifier."""
    return name if _KEY.fullmatch(name) else spell(name)


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint for a name that does not exist: the nearest known ones, or all if none is near."""
    import difflib  # slow to import, and only needed for messages

    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(f'`{n}`' for n in near)}?"
    return f"known are {', '.join(known)}" if known else "none is known here"
