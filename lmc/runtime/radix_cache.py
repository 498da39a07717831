"""The radix cache: which KV slots hold which prefixes of keys.

    acquire ──► Lease (pinned) ──► grow ──► release
    insert  ──► the cache owns the slots ──► evict ──► the caller owns them again

Owns        every slot passed to `insert` or `Lease.grow` that `evict` has not yet returned.
Promises    a slot under a lease is never evicted; the prefixes held are closed under truncation;
            of one prefix one copy is kept.
Costs       acquire and insert: one array comparison an edge; evict: O(log edges) a leaf let go;
            release: O(edges of the path).
Not here    which slots are free (`kv_pool`), who runs next (`admission`), any tensor.
Source      Zheng et al., SGLang, arXiv:2312.07104, section 3, RadixAttention.

Victims go leaf first, in this order: dead by the plan (`mark_dead`); then those of whose next use
nothing is known, least recently used first; then those with a known next use (`expect`), the
furthest first. Any walk through an edge forgets both hints: they were about the past.
"""

from __future__ import annotations

import heapq
import itertools
import warnings
import weakref
from collections.abc import Iterator

import numpy as np

from lmc.errors import InternalError
from lmc.runtime.request import IntArray, KeyArray

__all__ = ["Lease", "RadixCache"]

_NO_KEYS: KeyArray = np.empty(0, np.int64)
_NO_SLOTS: IntArray = np.empty(0, np.int32)

_Rank = tuple[int, float]  # where an edge stands among the victims; the smallest goes first


class _Node:
    """An edge of the tree and the node at its lower end.

    Attributes:
        pins: leases that end here or below; above 0 the edge cannot go.
        used: logical time of the last walk through this edge.
        dead: the plan does not use it again.
        next_use: when the plan uses it next, in any unit that grows; None if unknown.
        fresh: the number of the step that writes its KV entries, while that is put together or
            under way; else 0. Not less than that of the node above, unless it is 0.
        queued: the rank under which it stands in the heap of victims, or None.
    """

    __slots__ = (
        "children",
        "dead",
        "fresh",
        "keys",
        "next_use",
        "parent",
        "pins",
        "queued",
        "slots",
        "used",
    )

    def __init__(self, keys: KeyArray, slots: IntArray, parent: _Node | None, used: int) -> None:
        self.keys = keys
        self.slots = slots
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.pins = 0
        self.used = used
        self.dead = False
        self.next_use: float | None = None
        self.fresh = 0
        self.queued: _Rank | None = None

    def path(self) -> Iterator[_Node]:
        """This node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def rank(self) -> _Rank:
        if self.dead:
            return 0, self.used
        if self.next_use is None:
            return 1, self.used
        return 2, -self.next_use

    def evictable(self) -> bool:
        return not self.pins and not self.children and self.parent is not None


class Lease:
    """The right to read the slots of one prefix, until it is released.

    Attributes:
        length: keys of the prefix.
    """

    __slots__ = ("_cache", "_node", "length")

    def __init__(self, cache: RadixCache, node: _Node, length: int) -> None:
        self._cache = weakref.ref(cache)
        self._node: _Node | None = node
        self.length = length
        cache._pin(node, None)

    @property
    def slots(self) -> IntArray:
        """The slots of the prefix, int32, shape (length,)."""
        edges = [n.slots for n in self._end().path()]
        return np.concatenate(edges[::-1]) if edges else _NO_SLOTS.copy()

    def extend(self, keys: KeyArray) -> IntArray:
        """Lease also what is held of `keys`, which follow the prefix; the slots gained."""
        node, known = self._tree()._walk(self._end(), keys, len(keys))
        return self._move(node, known)

    def continues(self, key: int) -> bool:
        """Whether `key` is held as a continuation of the prefix."""
        return key in self._end().children

    def grow(self, keys: KeyArray, slots: IntArray, *, fresh: bool = False) -> IntArray:
        """Hold `keys`, which follow the prefix and lie in `slots`, and lease them.

        Args:
            keys: int64, shape (n,).
            slots: int32, shape (n,). The cache becomes the owner of those that it returns.
            fresh: the entries are being computed: `RadixCache.drop_fresh` takes them out again
                unless `RadixCache.settle` has been called.

        Returns:
            The slots that hold the keys now, shape (n,). Where they differ from `slots`, an entry
            was held already, and the caller still owns its own.
        """
        node, known = self._tree()._walk(self._end(), keys, len(keys))
        if known < len(keys):
            node = self._tree()._attach(node, keys[known:], slots[known:], fresh=fresh)
        return self._move(node, len(keys))

    def insert(self, keys: KeyArray, slots: IntArray) -> int:
        """Have the cache hold `keys`, which follow the prefix, without leasing them.

        Returns:
            As `RadixCache.insert`.
        """
        return self._tree()._insert(self._end(), keys, slots)

    def release(self) -> None:
        """Give the right up.

        Raises:
            InternalError: it was given up before.
        """
        self._tree()._unpin(self._end())
        self._node = None

    def abandon(self) -> None:
        """Forget the lease, since its cache is given up as a whole."""
        self._node = None

    def _move(self, node: _Node, gained: int) -> IntArray:
        """Make the lease end at `node`, `gained` keys further down."""
        old = self._end()
        if node is old:
            return _NO_SLOTS
        self._tree()._pin(node, old)
        self._node = node
        self.length += gained
        if node.parent is old:
            return node.slots
        edges = [n.slots for n in itertools.takewhile(lambda n: n is not old, node.path())]
        return np.concatenate(edges[::-1])

    def _tree(self) -> RadixCache:
        cache = self._cache()
        if cache is None:
            raise InternalError("a lease outlived its cache")
        return cache

    def _end(self) -> _Node:
        if self._node is None:
            raise InternalError(f"a lease on {self.length} slots was released before")
        return self._node

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        # When the cache goes with its leases, nothing is lost.
        if self._node is not None and self._cache() is not None:
            warnings.warn(
                f"a lease on {self.length} slots was never released", ResourceWarning, stacklevel=1
            )


class RadixCache:
    """A map from prefixes of keys to KV slots that can lease what it holds and evict the rest."""

    def __init__(self) -> None:
        self._root = _Node(_NO_KEYS, _NO_SLOTS, None, 0)
        self._clock = 0
        self._serial = itertools.count()
        self._victims: list[tuple[_Rank, int, _Node]] = []
        self._fresh: list[_Node] = []
        self._building = 1  # number of the step that is put together
        self._done = 0  # that of the last one that was settled
        self._held = 0
        self._pinned = 0
        self._evicted = 0
        self.version = 0  # changes whenever a match may give another answer

    def __len__(self) -> int:
        """Slots held, leased or not."""
        return self._held

    @property
    def evictable(self) -> int:
        """Slots that `evict` could let go of now."""
        return self._held - self._pinned

    def acquire(self, keys: KeyArray, limit: int | None = None) -> Lease:
        """Lease the longest prefix of `keys[:limit]` that is held, which may be the empty one."""
        node, depth = self._walk(self._root, keys, len(keys) if limit is None else limit)
        return Lease(self, node, depth)

    def match(self, keys: KeyArray, limit: int | None = None) -> int:
        """The length of the prefix that `acquire` would lease; changes nothing."""
        end = len(keys) if limit is None else limit
        depth = 0
        for _, shared in self._trail(self._root, keys, end):
            depth += shared
        return depth

    def insert(self, keys: KeyArray, slots: IntArray) -> int:
        """Hold `keys`, whose KV entries lie in `slots`, one slot for each key.

        Returns:
            How many leading keys were held before: the cache keeps its own slots for those, and
            the caller still owns `slots[:returned]`.

        Raises:
            InternalError: the lengths differ.
        """
        if len(keys) != len(slots):
            raise InternalError(f"{len(keys)} keys need as many slots, not {len(slots)}")
        return self._insert(self._root, keys, slots)

    def _insert(self, below: _Node, keys: KeyArray, slots: IntArray) -> int:
        """Hold `keys` below a node; how many were held before."""
        node, known = self._walk(below, keys, len(keys))
        if known < len(keys):
            self._queue(self._attach(node, keys[known:], slots[known:], fresh=False))
        return known

    def evict(self, wanted: int) -> IntArray:
        """Let go of `wanted` slots, or of as many as no lease holds if those are fewer.

        Returns:
            The slots let go of, int32: the caller's again. An edge is cut from its end, so no
            more than wanted go.
        """
        freed: list[IntArray] = []
        missing = wanted
        while missing > 0 and self._victims:
            rank, _, node = heapq.heappop(self._victims)
            if node.queued != rank:
                continue  # it was queued again, with a smaller rank, or has gone
            node.queued = None
            if not node.evictable():
                continue  # it is queued again when it becomes a free leaf
            if node.rank() > rank:
                self._queue(node)
                continue
            missing -= len(node.slots)
            if missing < 0:
                kept = -missing
                freed.append(node.slots[kept:])
                node.keys, node.slots = node.keys[:kept], node.slots[:kept]
                self._queue(node)
            else:
                freed.append(node.slots)
                self._detach(node)
        if not freed:
            return _NO_SLOTS
        gone = np.concatenate(freed)
        self._held -= len(gone)
        self._evicted += len(gone)
        self.version += 1
        return gone

    def mark_dead(self, keys: KeyArray, keep: int = 0) -> None:
        """Advice: `keys` is not used again as a whole, so what only it holds may go first.

        Marks the edges of its path from the end up to the first `keep` keys, or up to where
        something that is not dead branches off. A later walk through an edge revives it.
        """
        trail, depth = [], 0
        for node, shared in self._trail(self._root, keys, len(keys)):
            if shared < len(node.keys):
                break  # the edge goes on to something else
            trail.append(node)
            depth += shared
        for node in reversed(trail):
            depth -= len(node.keys)
            if depth < keep or not all(child.dead for child in node.children.values()):
                return
            node.dead = True
            self._queue(node)

    def expect(self, keys: KeyArray, next_use: float) -> None:
        """Advice: the prefix `keys` is used again at `next_use`, a time that grows."""
        for node, _ in self._trail(self._root, keys, len(keys)):
            node.next_use, node.dead = next_use, False
            self._queue(node)

    def launched(self) -> None:
        """A step is under way: what is held as fresh from now on belongs to the next one."""
        self._building += 1

    def settle(self) -> None:
        """The oldest step under way is done: what was fresh for it is held like the rest."""
        self._done += 1
        self._building = max(self._building, self._done + 1)
        for node in self._fresh:
            if node.fresh <= self._done:
                node.fresh = 0
        self._fresh = [node for node in self._fresh if node.fresh]

    def is_fresh(self, lease: Lease, kept: int = 0) -> bool:
        """Whether `drop_fresh(kept)` would take out what a lease holds."""
        return lease._end().fresh > self._done + kept

    def drop_fresh(self, kept: int = 0) -> IntArray:
        """The steps under way failed, but for the `kept` oldest: take out what is fresh for them.

        Returns:
            Its slots, which are the caller's again.

        Raises:
            InternalError: something of it is leased.
        """
        gone: list[IntArray] = []
        since = self._done + kept + 1
        tops = [
            node
            for node in self._fresh
            if node.fresh >= since and node.parent is not None and node.parent.fresh < since
        ]
        for top in tops:
            if top.pins:
                raise InternalError("KV entries of a failed step are still leased")
            below = list(self._nodes(top))
            self._detach(top)
            for node in below:
                gone.append(node.slots)
                node.parent = node.queued = None
                node.children.clear()
        self._fresh = [n for n in self._fresh if n.fresh < since]
        self._building = since
        slots = np.concatenate(gone) if gone else _NO_SLOTS
        self._held -= len(slots)
        self.version += 1
        return slots

    def slots(self) -> IntArray:
        """Every slot held, in no order."""
        return np.concatenate([_NO_SLOTS, *(n.slots for n in self._nodes(self._root))])

    def audit(self) -> None:
        """Check the tree's invariants; raises InternalError."""
        faults: list[str] = []
        held = pinned = 0
        for node in self._nodes(self._root):
            held += len(node.slots)
            pinned += len(node.slots) if node.pins else 0
            if node is not self._root and not len(node.keys):
                faults.append("an edge is empty")
            if len(node.keys) != len(node.slots):
                faults.append(f"{len(node.keys)} keys in {len(node.slots)} slots")
            for key, child in node.children.items():
                if child.parent is not node or child.keys[0] != key:
                    faults.append("an edge hangs in the wrong place")
            below = sum(child.pins for child in node.children.values())
            if node is not self._root and node.pins < below:
                faults.append("an edge has fewer pins than those below it")
            if node.evictable() and node.queued is None:
                faults.append("a leaf that could go is not among the victims")
        if (held, pinned) != (self._held, self._pinned):
            faults.append(f"{held} held, {pinned} pinned; counted {self._held}, {self._pinned}")
        slots = self.slots()
        if len(np.unique(slots)) != len(slots):
            faults.append("a slot occurs twice")
        if faults:
            raise InternalError("the radix cache is damaged: " + "; ".join(faults))

    def statistics(self) -> dict[str, int]:
        """Sizes: slots `held`, `pinned` and `evicted` so far; `edges` of the tree."""
        edges = sum(1 for _ in self._nodes(self._root)) - 1
        return {
            "held": self._held,
            "pinned": self._pinned,
            "evicted": self._evicted,
            "edges": edges,
        }

    def _trail(self, node: _Node, keys: KeyArray, end: int) -> Iterator[tuple[_Node, int]]:
        """The edges below `node` along `keys[:end]`, each with how many keys it shares."""
        depth = 0
        while depth < end:
            child = node.children.get(int(keys[depth]))
            if child is None:
                return
            edge = child.keys
            length = min(len(edge), end - depth)
            shared = length
            if length > 1:
                differ = edge[:length] != keys[depth : depth + length]
                first = int(differ.argmax())
                if differ[first]:
                    shared = first
            yield child, shared
            if shared < len(edge):
                return
            node, depth = child, depth + shared

    def _walk(self, node: _Node, keys: KeyArray, end: int) -> tuple[_Node, int]:
        """The deepest node below `node` along `keys[:end]`, split off if need be; its depth."""
        self._clock = now = self._clock + 1
        depth = 0
        for child, shared in self._trail(node, keys, end):
            node = child if shared == len(child.keys) else self._split(child, shared)
            node.used, node.dead = now, False
            if node.next_use is not None:
                node.next_use = None
                self._queue(node)  # it stands further back than it should now
            depth += shared
        return node, depth

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut the edge after `at` keys and return the new upper node.

        Every lease below goes through both halves, so both have the pins; the leases that end at
        this edge hold the lower half, which stays the same object.
        """
        parent = node.parent
        if parent is None:
            raise InternalError("the root has no edge to cut")
        upper = _Node(node.keys[:at], node.slots[:at], parent, node.used)
        upper.pins, upper.dead, upper.next_use = node.pins, node.dead, node.next_use
        if node.fresh:
            upper.fresh = node.fresh
            self._fresh.append(upper)
        parent.children[int(upper.keys[0])] = upper
        node.keys, node.slots, node.parent = node.keys[at:], node.slots[at:], upper
        upper.children[int(node.keys[0])] = node
        return upper

    def _attach(self, parent: _Node, keys: KeyArray, slots: IntArray, *, fresh: bool) -> _Node:
        """A new leaf with its own copies of the arrays; the caller pins or queues it.

        What hangs below something fresh is fresh, too.
        """
        leaf = _Node(keys.copy(), slots.copy(), parent, self._clock)
        parent.children[int(leaf.keys[0])] = leaf
        self._held += len(leaf.keys)
        leaf.fresh = self._building if fresh else parent.fresh
        if leaf.fresh:
            self._fresh.append(leaf)
        self.version += 1
        return leaf

    def _detach(self, node: _Node) -> None:
        """Take the node and all below it out of the tree; the caller counts the slots."""
        parent = node.parent
        if parent is None:
            raise InternalError("the root cannot be taken out")
        del parent.children[int(node.keys[0])]
        node.parent = node.queued = None
        self._queue(parent)

    def _pin(self, node: _Node, old: _Node | None) -> None:
        """Pin `node` and its ancestors below `old`."""
        while node is not old and node.parent is not None:
            if not node.pins:
                self._pinned += len(node.slots)
            node.pins += 1
            node = node.parent

    def _unpin(self, end: _Node) -> None:
        self._clock = now = self._clock + 1
        for node in end.path():
            node.pins -= 1
            node.used = now
            if not node.pins:
                self._pinned -= len(node.slots)
        self._queue(end)

    def _queue(self, node: _Node) -> None:
        """Put a node that can go among the victims, unless it stands there rightly."""
        if node.evictable():
            rank = node.rank()
            if node.queued is None or rank < node.queued:
                node.queued = rank
                heapq.heappush(self._victims, (rank, next(self._serial), node))

    def _nodes(self, top: _Node) -> Iterator[_Node]:
        stack = [top]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()
