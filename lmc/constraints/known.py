"""The automata of constraints that programs name: made once a process, and kept on disk.

Reading an automaton takes a third of the time of making it, and needs no parser to be imported; see
docs/constraints.md for figures. What is kept is the automaton as plans store it, by all that it
depends on: kind, source and options, and this package as it is installed, so that another version
of lmc never finds it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from lmc.constraints.loading import load
from lmc.disk_cache import DiskCache, is_on
from lmc.errors import PlanError

if TYPE_CHECKING:
    from lmc.constraints.automaton import Automaton
    from lmc.params import Constraint

__all__ = ["automaton_for"]

_CACHE = DiskCache("automata")
_PLAIN = "choices"  # as quickly made as read


@functools.lru_cache(maxsize=1024)
def automaton_for(constraint: Constraint) -> Automaton:
    """The automaton of a constraint, as `automaton_of` makes it.

    Raises:
        ConstraintError: it is malformed, not supported, or nothing can match it.
    """
    key = None
    if constraint.kind != _PLAIN and is_on():
        key = _key(constraint)
        kept = _CACHE.get(key)
        if kept is not None:
            try:
                return load(json.loads(kept))
            except (ValueError, PlanError):  # of a faulty build; made anew
                pass
    from lmc.constraints import automaton_of

    made = automaton_of(constraint.kind, constraint.source, **constraint.options)
    if key is not None:
        _CACHE.put(key, json.dumps(made.to_json(), separators=(",", ":")).encode())
    return made


def _key(constraint: Constraint) -> str:
    parts = (_package(), constraint.kind, constraint.source, sorted(constraint.options.items()))
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def _package() -> str:
    """A name of this package as it is on disk: its files, their sizes and times."""
    from lmc import __version__

    folder = Path(__file__).parent
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".lark"))
    stats = [(str(path.relative_to(folder)), path.stat()) for path in files]
    held = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(repr((__version__, held)).encode()).hexdigest()
