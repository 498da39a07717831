"""The compiled forms of a program that are kept, by all that they depend on.

    (arguments' shape and static values, options, what is read from outside) ──► Compiled

Owns        the forms of one program; methods of all objects, and `bind`, share it.
Promises    nothing is compiled twice while it is kept; bounded, the form that was used longest ago
            goes first; safe from any thread.
Costs       about a microsecond and the hash of the key, a look-up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lmc.driver import Compiled

__all__ = ["KEPT", "CacheInfo", "JitCache"]

KEPT = 256  # forms of a program


class CacheInfo(NamedTuple):
    """As of `functools.lru_cache`: a miss is a compilation."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


class JitCache:
    """Compiled forms by key; each also holds the objects whose ids are in its key."""

    def __init__(self, size: int = KEPT) -> None:
        self._size = size
        self._held: OrderedDict[Hashable, tuple[Compiled, object]] = OrderedDict()
        self._hits = self._misses = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Compiled], alive: object) -> Compiled:
        """The form of `key`, made if it is not there; `alive` is held as long as it is.

        Two threads may make the same form at the same time; both get the one that was first.
        """
        with self._lock:
            known = self._held.get(key)
            if known is not None:
                self._hits += 1
                self._held.move_to_end(key)
                return known[0]
            self._misses += 1
        made = make()
        with self._lock:
            while len(self._held) >= self._size:
                self._held.popitem(last=False)
            return self._held.setdefault(key, (made, alive))[0]

    def missed(self) -> None:
        """Count a form that cannot be kept."""
        with self._lock:
            self._misses += 1

    def info(self) -> CacheInfo:
        """How often a form was there, how often it was made, and how many are kept."""
        with self._lock:
            return CacheInfo(self._hits, self._misses, self._size, len(self._held))

    def clear(self) -> None:
        """Forget all forms and counts."""
        with self._lock:
            self._held.clear()
            self._hits = self._misses = 0
