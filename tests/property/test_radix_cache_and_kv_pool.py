"""Any history of calls must agree with a dictionary of prefixes, and no slot may be lost."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from lmc.errors import InternalError
from lmc.runtime.kv_pool import KVPool
from lmc.runtime.radix_cache import Lease, RadixCache
from lmc.runtime.request import IntArray, KeyArray

Keys = tuple[int, ...]

# Two keys and short prompts: most prompts share, split or extend one another.
PROMPTS = st.lists(st.integers(0, 1), max_size=6).map(tuple)
TAILS = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple)

CAPACITY = 40


def array(keys: Keys) -> KeyArray:
    return np.array(keys, np.int64)


class CacheMachine(RuleBasedStateMachine):
    """A pool and a cache; between the calls every slot is in one of the two."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool(CAPACITY)
        self.cache = RadixCache()
        self.slot_of: dict[Keys, int] = {}  # the model: a prefix and the slot of its last key
        self.live: dict[int, tuple[Lease, Keys]] = {}
        self.fresh: set[Keys] = set()
        self.numbers = itertools.count()

    def held(self, keys: Keys) -> list[int]:
        prefixes = (keys[:end] for end in range(1, len(keys) + 1))
        known = itertools.takewhile(self.slot_of.__contains__, prefixes)
        return [self.slot_of[prefix] for prefix in known]

    def leased(self) -> set[Keys]:
        paths = (keys for _, keys in self.live.values())
        return {keys[:end] for keys in paths for end in range(1, len(keys) + 1)}

    def take(self, count: int) -> IntArray | None:
        short = count - len(self.pool)
        if short > 0:
            self.evict(short)
        return self.pool.take(count)

    @rule(keys=PROMPTS)
    def insert(self, keys: Keys) -> None:
        slots = self.take(len(keys))
        if slots is None:
            return
        held = self.held(keys)  # after `take`, which may evict
        known = self.cache.insert(array(keys), slots)
        assert known == len(held)
        for end in range(known + 1, len(keys) + 1):
            self.slot_of[keys[:end]] = int(slots[end - 1])
            if keys[: end - 1] in self.fresh:
                self.fresh.add(keys[:end])
        self.pool.give(slots[:known])

    @rule(target=leases, keys=PROMPTS, limit=st.integers(0, 6))
    def acquire(self, keys: Keys, limit: int) -> int:
        limit = min(limit, len(keys))
        lease = self.cache.acquire(array(keys), limit)
        held = self.held(keys[:limit])
        assert lease.slots.tolist() == held
        assert lease.length == len(held)
        number = next(self.numbers)
        self.live[number] = lease, keys[: len(held)]
        return number

    @rule(number=leases, tail=TAILS)
    def extend(self, number: int, tail: Keys) -> None:
        lease, keys = self.live[number]
        gained = lease.extend(array(tail))
        assert lease.slots.tolist() == self.held(keys + tail)
        assert gained.tolist() == lease.slots.tolist()[len(keys) :]
        self.live[number] = lease, (keys + tail)[: lease.length]

    @rule(number=leases, tail=TAILS, fresh=st.booleans())
    def grow(self, number: int, tail: Keys, fresh: bool) -> None:
        lease, keys = self.live[number]
        slots = self.take(len(tail))
        if slots is None:
            return
        held = self.held(keys + tail)[len(keys) :]
        assert lease.continues(tail[0]) == bool(held)
        kept = lease.grow(array(tail), slots, fresh=fresh)
        assert kept.tolist() == [*held, *slots.tolist()[len(held) :]]
        self.live[number] = lease, keys + tail
        for end in range(len(held) + 1, len(tail) + 1):
            prefix = keys + tail[:end]
            self.slot_of[prefix] = int(slots[end - 1])
            if fresh or prefix[:-1] in self.fresh:
                self.fresh.add(prefix)
        self.pool.give(slots[kept != slots])

    @rule(number=consumes(leases))
    def release(self, number: int) -> None:
        if self.live[number][1] in self.fresh:
            self.settle()  # a lease on what is being computed ends after the step
        lease, _ = self.live.pop(number)
        lease.release()
        with pytest.raises(InternalError, match="released before"):
            lease.release()

    @precondition(lambda self: self.fresh)
    @rule()
    def settle(self) -> None:
        self.cache.settle()
        self.fresh.clear()

    @precondition(lambda self: self.fresh)
    @rule()
    def drop_fresh(self) -> None:
        """A failed step: whoever leases what it wrote lets go first."""
        for number, (lease, keys) in self.live.items():
            safe = next(end for end in range(len(keys), -1, -1) if keys[:end] not in self.fresh)
            if safe < len(keys):
                lease.release()
                again = self.cache.acquire(array(keys), safe)
                self.live[number] = again, keys[:safe]
        gone = self.cache.drop_fresh()
        assert sorted(gone.tolist()) == sorted(self.slot_of.pop(keys) for keys in self.fresh)
        self.fresh.clear()
        self.pool.give(gone)

    @rule(wanted=st.integers(0, 8))
    def evict(self, wanted: int) -> None:
        can_go = len(self.slot_of) - len(self.leased())
        assert self.cache.evictable == can_go
        gone = self.cache.evict(wanted).tolist()
        assert len(gone) == min(wanted, can_go)
        leased = {self.slot_of[keys] for keys in self.leased()}
        assert leased.isdisjoint(gone), "evicted under a lease"
        self.slot_of = {keys: slot for keys, slot in self.slot_of.items() if slot not in gone}
        self.fresh &= self.slot_of.keys()
        self.pool.give(np.array(gone, np.int32))

    @rule(keys=PROMPTS, keep=st.integers(0, 4))
    def mark_dead(self, keys: Keys, keep: int) -> None:
        self.cache.mark_dead(array(keys), keep)

    @rule(keys=PROMPTS, when=st.integers(0, 9))
    def expect(self, keys: Keys, when: int) -> None:
        self.cache.expect(array(keys), when)

    @rule(keys=PROMPTS, limit=st.integers(0, 6))
    def match(self, keys: Keys, limit: int) -> None:
        limit = min(limit, len(keys))
        assert self.cache.match(array(keys), limit) == len(self.held(keys[:limit]))

    @invariant()
    def every_slot_is_in_one_place(self) -> None:
        self.pool.audit()
        self.cache.audit()
        assert len(self.pool) + len(self.cache) == CAPACITY
        places = [*self.pool.free_slots().tolist(), *self.cache.slots().tolist()]
        assert sorted(places) == list(range(CAPACITY))

    @invariant()
    def the_cache_holds_what_the_model_holds(self) -> None:
        assert sorted(self.cache.slots().tolist()) == sorted(self.slot_of.values())
        for keys in self.slot_of:
            assert self.cache.match(array(keys)) == len(keys), "a prefix lost its beginning"
        for lease, keys in self.live.values():
            assert lease.slots.tolist() == self.held(keys)

    def teardown(self) -> None:
        self.cache.settle()
        for lease, _ in self.live.values():
            lease.release()
        self.pool.give(self.cache.evict(len(self.cache)))
        assert len(self.cache) == 0, "a pin outlived its lease"
        assert len(self.pool) == CAPACITY


TestRadixCache = CacheMachine.TestCase
TestRadixCache.settings = settings(
    max_examples=100, stateful_step_count=40, derandomize=True, deadline=None
)


def filled(*prompts: str) -> RadixCache:
    """A cache that was given the prompts one after the other, each letter a key."""
    cache, slots = RadixCache(), itertools.count()
    for prompt in prompts:
        places = np.array(list(itertools.islice(slots, len(prompt))), np.int32)
        cache.insert(array(tuple(prompt.encode())), places)
    return cache


def letters(text: str) -> KeyArray:
    return array(tuple(text.encode()))


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = filled("aa", "bb", "cc")
    cache.acquire(letters("aa")).release()
    cache.evict(2)
    assert [cache.match(letters(p)) for p in ("aa", "bb", "cc")] == [2, 0, 2]
    cache.evict(2)
    assert [cache.match(letters(p)) for p in ("aa", "bb", "cc")] == [2, 0, 0]


def test_a_leaf_is_cut_from_its_end_by_no_more_than_wanted_b_84() -> None:
    cache = filled("abcd")
    assert cache.evict(1).tolist() == [3]
    assert cache.evict(2).tolist() == [1, 2]
    assert cache.match(letters("abcd")) == 1


def test_the_dead_go_first_and_those_needed_soonest_last() -> None:
    cache = filled("aa", "bb", "cc", "dd", "ee")
    cache.expect(letters("aa"), 10)
    cache.expect(letters("bb"), 20)
    cache.mark_dead(letters("ee"))
    gone = []
    for _ in range(5):
        left = {p for p in ("aa", "bb", "cc", "dd", "ee") if cache.match(letters(p))}
        cache.evict(2)
        gone += left - {p for p in left if cache.match(letters(p))}
    assert gone == ["ee", "cc", "dd", "bb", "aa"]


def test_what_another_state_goes_on_from_does_not_die_with_the_one_released() -> None:
    cache = filled("xx", "xxab", "xxcd", "yy")
    cache.mark_dead(letters("xxab"))
    cache.evict(2)
    assert cache.match(letters("xxab")) == 2
    assert cache.match(letters("xxcd")) == 4


def test_what_is_kept_of_a_released_state_stays_alive() -> None:
    for keep, left in ((2, ["xx"]), (0, ["yy"])):
        cache = filled("yy", "xx", "xxcd")
        cache.mark_dead(letters("xxcd"), keep)
        cache.evict(4)
        assert [p for p in ("xx", "yy") if cache.match(letters(p))] == left


def test_releasing_a_part_of_an_edge_says_nothing_about_the_rest() -> None:
    cache = filled("yy", "xx", "xxcd")
    cache.mark_dead(letters("xxc"))
    cache.evict(2)
    assert [cache.match(letters(p)) for p in ("yy", "xxcd")] == [0, 4]


def test_inserting_again_counts_as_use() -> None:
    cache = filled("aa", "bb")
    assert cache.insert(letters("aa"), np.array([8, 9], np.int32)) == 2
    cache.evict(2)
    assert [cache.match(letters(p)) for p in ("aa", "bb")] == [2, 0]


def test_a_walk_revives_what_was_dead() -> None:
    cache = filled("aa", "bb")
    cache.mark_dead(letters("bb"))
    cache.acquire(letters("bb")).release()
    cache.evict(2)
    assert [cache.match(letters(p)) for p in ("aa", "bb")] == [0, 2]


def test_a_walk_forgets_what_was_expected() -> None:
    cache = filled("aa", "bb", "cc")
    cache.expect(letters("aa"), 5)
    cache.expect(letters("bb"), 50)
    cache.evict(2)
    cache.insert(letters("aa"), np.array([8, 9], np.int32))
    cache.evict(2)
    assert [cache.match(letters(p)) for p in ("aa", "bb")] == [0, 2]


def test_pins_follow_a_split_and_end_with_the_lease_b_79() -> None:
    cache = filled("abcd")
    lease = cache.acquire(letters("abcd"))
    cache.insert(letters("abxy"), np.array([10, 11, 12, 13], np.int32))
    assert cache.evict(100).tolist() == [12, 13]
    lease.release()
    assert sorted(cache.evict(100).tolist()) == [0, 1, 2, 3]


def test_a_lease_that_is_dropped_without_release_warns() -> None:
    cache = filled("ab")
    lease = cache.acquire(letters("ab"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lease
    assert [w.category for w in caught] == [ResourceWarning]


def test_the_heap_of_victims_stays_small() -> None:
    cache = filled("ab", "cd")
    for _ in range(1000):
        cache.acquire(letters("ab")).release()
        cache.mark_dead(letters("cd"))
        cache.acquire(letters("cd")).release()
    assert len(cache._victims) < 20


def test_a_slot_is_given_out_once_and_taken_back_once_b_82() -> None:
    pool = KVPool(8)
    first = pool.take(5)
    assert first is not None
    assert first.tolist() == [0, 1, 2, 3, 4]
    assert pool.take(4) is None
    pool.give(first[:2])
    for twice in ([0], [2, 2]):
        with pytest.raises(InternalError, match="twice"):
            pool.give(np.array(twice, np.int32))
    pool.audit()
    assert len(pool) == 5


def test_a_large_take_finds_neighbours_after_slots_came_back_in_any_order() -> None:
    pool = KVPool(100)
    slots = pool.take(100)
    assert slots is not None
    for slot in np.random.default_rng(0).permutation(slots):
        pool.give(np.array([slot], np.int32))
    again = pool.take(50)
    assert again is not None
    assert again.tolist() == list(range(50))
