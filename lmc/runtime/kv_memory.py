"""KV memory: the pool and the cache together, and the slots of sequences that run.

Owns        the pool and the cache. The slots of a sequence are its own from `take` to `let_go`, or
            the cache's under its lease.
Promises    a slot is in one place: free, held by one sequence, or held by the cache.
Costs       an array operation or two a call; eviction as the cache says.
Not here    which sequence gets memory, and when (`admission`, `placing`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lmc.errors import InternalError
from lmc.runtime.kv_pool import KVPool
from lmc.runtime.radix_cache import RadixCache
from lmc.runtime.request import IntArray, KeyArray
from lmc.runtime.sequence import TokenSequence
from lmc.runtime.stats import EngineStats

__all__ = ["KVMemory"]

_NO_SLOTS: IntArray = np.empty(0, np.int32)


class KVMemory:
    """`capacity` KV slots, free, cached or in use."""

    def __init__(self, capacity: int, stats: EngineStats) -> None:
        self.capacity = capacity
        self.pool = KVPool(capacity)
        self.cache = RadixCache()
        self._stats = stats

    @property
    def available(self) -> int:
        """Slots that are free or can be made free."""
        return len(self.pool) + self.cache.evictable

    def take(self, count: int) -> IntArray:
        """`count` of the available slots, int32; evicts as many as are missing.

        Raises:
            InternalError: fewer are available.
        """
        short = count - len(self.pool)
        if short > 0:
            gone = self.cache.evict(short)
            self._stats.evicted_tokens += len(gone)
            self.pool.give(gone)
        slots = self.pool.take(count)
        if slots is None:
            raise InternalError(f"{count} KV slots were available and could not be taken")
        return slots

    def begin(self, sequence: TokenSequence, limit: int) -> None:
        """Let a sequence have what the cache holds of its first `limit` keys."""
        sequence.hold(self.cache.acquire(sequence.keys, limit))

    def catch_up(self, sequence: TokenSequence, limit: int) -> int:
        """Let a sequence have what others have put into the cache since; tokens gained."""
        start = sequence.placed
        if not sequence.leased == start < limit:
            return 0
        gained = sequence.need_lease().extend(sequence.keys[start:limit])
        if len(gained):
            sequence.place(gained)
            sequence.leased = sequence.computed = sequence.placed
        return len(gained)

    def place_prompt(self, sequence: TokenSequence, slots: IntArray) -> None:
        """Place the next tokens of a prompt, and let the cache hold them from now on."""
        start, end = sequence.placed, sequence.placed + len(slots)
        sequence.place(slots)
        lease = sequence.need_lease()
        # If the last token is held already, it is computed again for what follows it, into a slot
        # of its own; `share_last` gives that back.
        if not lease.continues(int(sequence.keys[start])):
            lease.grow(sequence.keys[start:end], slots, fresh=True)
            sequence.leased = end

    def share_last(self, sequence: TokenSequence) -> None:
        """Let the cache hold the last tokens, which were computed in slots of the sequence's own.

        Where it has them, the sequence uses the slots that the cache holds before its own are free.
        """
        start, end = sequence.leased, sequence.computed
        own = sequence.slots[start:end]
        kept = sequence.need_lease().grow(sequence.keys[start:end], own)
        sequence.leased = end
        held = kept != own
        if held.any():
            sequence.replace_slots(start, kept)
            self.pool.give(own[held])

    def keep_paths(
        self, sequence: TokenSequence, paths: Iterable[tuple[KeyArray, IntArray]]
    ) -> set[int]:
        """Let the cache hold continuations of a prompt that it holds, each as keys and slots.

        Returns:
            The slots that the cache owns now; the others are still the caller's.
        """
        lease = sequence.need_lease()
        if lease.length != sequence.total:
            raise InternalError("a prompt is continued in the cache that does not hold all of it")
        given: set[int] = set()
        for keys, slots in paths:
            known = lease.insert(keys, slots)
            given.update(slots[known:].tolist())
        return given

    def cut(self, sequence: TokenSequence, end: int) -> None:
        """Take the slots of what lies behind `end`, and let the cache hold what is before it."""
        cut = min(end, sequence.computed)
        self.pool.give(sequence.slots[cut : sequence.placed])
        sequence.computed = sequence.placed = cut
        if sequence.leased < cut:
            self.share_last(sequence)

    def rewind(self, sequence: TokenSequence, count: int) -> None:
        """Take the slots of the last `count` positions, which are its own and were not computed."""
        end = sequence.placed - count
        self.pool.give(sequence.slots[end : sequence.placed])
        sequence.placed = end

    def take_back(self, sequence: TokenSequence, end: int) -> None:
        """Take the slots of what a running sequence has behind `end`, which are its own."""
        self.pool.give(sequence.slots[end : sequence.placed])
        sequence.computed = sequence.placed = end

    def let_go(self, sequence: TokenSequence, end: int, others: IntArray = _NO_SLOTS) -> None:
        """Take a sequence's slots: the cache gets what is computed up to `end`.

        Args:
            others: slots beside the sequence, which are free from now on.
        """
        lease = sequence.need_lease()
        low = sequence.leased
        cut = max(low, min(end, sequence.computed))
        own = sequence.slots[low:cut]
        kept = lease.grow(sequence.keys[low:cut], own)
        free = np.concatenate([own[kept != own], sequence.slots[cut : sequence.placed], others])
        lease.release()
        sequence.forget_slots()
        self.pool.give(free)

    def forget(self) -> None:
        """Empty the cache, except for what is leased."""
        self.pool.give(self.cache.evict(self.cache.evictable))

    def launched(self) -> None:
        """A step is under way: prompts placed from now on belong to the next one."""
        self.cache.launched()

    def settle(self) -> None:
        """The oldest step under way is done: prompts placed for it are held like the rest."""
        self.cache.settle()

    def uses_fresh(self, sequence: TokenSequence, kept: int) -> bool:
        """Whether a sequence that runs holds what `drop_fresh` would free."""
        return self.cache.is_fresh(sequence.need_lease(), kept)

    def drop_fresh(self, kept: int) -> None:
        """The steps under way failed, but for the `kept` oldest: what was placed is free again."""
        self.pool.give(self.cache.drop_fresh(kept))

    def note_peak(self) -> None:
        """Count the slots in use."""
        in_use = self.capacity - self.available
        self._stats.peak_kv_tokens = max(self._stats.peak_kv_tokens, in_use)

    def audit(self, running: Iterable[TokenSequence], others: Iterable[IntArray]) -> None:
        """Check that every slot is in exactly one place; raises InternalError.

        Args:
            running: the sequences that have slots.
            others: slots held beside sequences.
        """
        self.pool.audit()
        self.cache.audit()
        places = [self.pool.free_slots(), self.cache.slots(), *others]
        for sequence in running:
            places.append(sequence.slots[sequence.leased : sequence.placed])
            if not np.array_equal(sequence.slots[: sequence.leased], sequence.need_lease().slots):
                raise InternalError("a request and its lease disagree on where its prefix lies")
        slots = np.sort(np.concatenate(places))
        if not np.array_equal(slots, np.arange(self.capacity)):
            missing = np.setdiff1d(np.arange(self.capacity), slots).tolist()
            values, counts = np.unique(slots, return_counts=True)
            raise InternalError(
                f"KV slots lost: {missing}; in two places: {values[counts > 1].tolist()}"
            )
