"""Which texts all rows of a batch have in common, found before the first of them runs.

Owns        nothing; rows are only looked at.
Promises    a text that is given here was equal in all rows when they were looked at. Who relies on
            it compares again, since rows may be changed meanwhile.
Costs       a look-up for each row and text that may still be common; rows that have none in common
            are left after the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lmc.frontend.arguments import Arguments, Path

__all__ = ["Shared", "known_texts", "shared_texts"]

Shared = Mapping[Path, str]
"""The texts that all rows have in common, by where they lie in the arguments."""

_LEAST_ROWS = 2


def shared_texts(rows: Iterable[object], first: Mapping[str, object], flat: Arguments) -> Shared:
    """The texts that all rows have in common; none if there is only one row.

    Args:
        rows: dictionaries of arguments; what is none of these is passed over.
        first: one of them.
        flat: all arguments of that row, defaults filled in, flattened.
    """
    left = dict(zip(flat.paths, flat.texts, strict=True))
    by_name: dict[str, list[Path]] = {}
    for path in left:
        by_name.setdefault(str(path[0]), []).append(path)
    count = 0
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        count += 1
        for name, paths in list(by_name.items()):
            value, here = row.get(name, _MISSING), first.get(name, _MISSING)
            if value is here:
                continue
            by_name[name] = paths = [p for p in paths if _text_at(value, p[1:]) == left[p]]
            if not paths:
                del by_name[name]
        if not by_name:
            return {}
    kept = {path for paths in by_name.values() for path in paths}
    return {path: left[path] for path in left if path in kept} if count >= _LEAST_ROWS else {}


def known_texts(flat: Arguments, shared: Shared) -> tuple[str | None, ...]:
    """Per text of a row, the text itself if all rows have it, else None; empty if none is.

    A row that has another text than it should gets none at all: it is run like any other.
    """
    if not shared:
        return ()
    known = tuple(map(shared.get, flat.paths))
    pairs = zip(known, flat.texts, strict=True)
    return known if any(known) and all(k is None or k == t for k, t in pairs) else ()


_MISSING: Any = object()


def _text_at(value: Any, path: Path) -> str | None:
    """The text that lies there in plain containers, or None."""
    for key in path:
        if type(value) is dict:
            value = value.get(key)
        elif type(value) in (list, tuple) and type(key) is int and key < len(value):
            value = value[key]
        else:
            return None
    return value if type(value) is str else None
