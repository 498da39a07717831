"""The KV pool: which slots of the KV cache are free.

    take ──► the caller owns the slots ──► give

Owns        the free list. No tensors: a slot is a row number that the runner understands.
Promises    a slot is given out once until it comes back; giving back a free slot raises.
Costs       take and give O(slots moved); a large take sorts a short free list first, so that
            prompts get neighbouring slots (a runner reads those fastest).
"""

from __future__ import annotations

import numpy as np

from lmc.errors import InternalError
from lmc.runtime.request import IntArray

__all__ = ["KVPool"]

_SORT_FROM = 16  # slots: a take this large is worth ordering the free list
_SORT_UP_TO = 32_768  # free slots: beyond, ordering takes longer than a step can spare


class KVPool:
    """The free slots among `capacity`, numbered from 0; a page is one slot."""

    def __init__(self, capacity: int) -> None:
        """Raises InternalError unless `capacity` is at least 1."""
        if capacity < 1:
            raise InternalError(f"a KV pool of {capacity} slots cannot hold anything")
        self.capacity = capacity
        # A stack whose top is its end, so the smallest numbers go out first.
        self._stack: IntArray = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self._free = capacity
        self._is_free = np.ones(capacity, dtype=np.bool_)
        self._place = np.zeros(capacity, dtype=np.int32)  # scratch of `give`
        self._ordered = True

    def __len__(self) -> int:
        """Free slots."""
        return self._free

    def take(self, count: int) -> IntArray | None:
        """`count` slots, int32, shape (count,), ascending where cheap; None if fewer are free."""
        if count > self._free:
            return None
        if count >= _SORT_FROM and not self._ordered and self._free <= _SORT_UP_TO:
            self._stack[: self._free] = np.sort(self._stack[: self._free])[::-1]
            self._ordered = True
        end = self._free
        self._free = end - count
        slots = self._stack[self._free : end][::-1].copy()
        self._is_free[slots] = False
        return slots

    def give(self, slots: IntArray) -> None:
        """Take `slots` back.

        Raises:
            InternalError: one of them is free already, or is given twice; nothing is changed.
        """
        count = len(slots)
        if not count:
            return
        if self._is_free[slots].any():
            raise InternalError(f"KV slots freed twice: {slots[self._is_free[slots]].tolist()}")
        places = np.arange(count, dtype=np.int32)
        self._place[slots] = places
        if (self._place[slots] != places).any():  # a later mention overwrote an earlier one
            raise InternalError(f"KV slots occur twice in what is freed: {sorted(slots.tolist())}")
        self._is_free[slots] = True
        self._stack[self._free : self._free + count] = slots[::-1]
        self._free += count
        self._ordered = False

    def audit(self) -> None:
        """Check the free list against the marks; raises InternalError."""
        listed = np.sort(self._stack[: self._free])
        if not np.array_equal(listed, np.flatnonzero(self._is_free)):
            raise InternalError("the KV pool's free list and its marks differ")

    def free_slots(self) -> IntArray:
        """The free slots, ascending."""
        return np.flatnonzero(self._is_free).astype(np.int32)

    def statistics(self) -> dict[str, int]:
        """Sizes: `capacity` and `free`."""
        return {"capacity": self.capacity, "free": self._free}
