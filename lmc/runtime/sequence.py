"""One request's tokens, and where their KV entries lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from lmc.errors import InternalError
from lmc.runtime.radix_cache import Lease
from lmc.runtime.request import IntArray, KeyArray

__all__ = ["TokenSequence"]


class TokenSequence:
    """A prompt and the tokens made after it, with the slot of every position that has one.

        0 ......... leased ........ computed ........ placed ........ total
        the cache's slots | own slots, computed | own slots, in flight | no slot yet

    Attributes:
        keys, tokens, slots: buffers; the first `total` keys and tokens and the first `placed`
            slots count. A slot once handed to a step is not overwritten in its buffer.
        prompt: length of the prompt.
        lease: on the first `leased` positions; None while the request is not running.
    """

    __slots__ = (
        "computed",
        "keys",
        "lease",
        "leased",
        "placed",
        "prompt",
        "slots",
        "tokens",
        "total",
    )

    def __init__(self, keys: KeyArray, room: int) -> None:
        """A sequence of the prompt `keys`, with space for `room` more tokens before it grows."""
        self.prompt = self.total = len(keys)
        self.keys = np.empty(self.total + room, np.int64)
        self.keys[: self.total] = keys
        self.tokens = (self.keys >> 1).astype(np.int32)
        self.slots = np.empty(self.total + room, np.int32)
        self.leased = self.computed = self.placed = 0
        self.lease: Lease | None = None

    def append_made(self, tokens: Sequence[int]) -> None:
        """Append tokens that a model call made."""
        end = self.total + len(tokens)
        if end > len(self.keys):
            self._grow(end)
        for at, token in enumerate(tokens, self.total):
            self.keys[at] = 2 * token + 1
            self.tokens[at] = token
        self.total = end

    def go_on(self, keys: KeyArray) -> None:
        """Become the prompt `keys`, which begins with what is computed."""
        end = len(keys)
        if end > len(self.keys):
            self._grow(end)
        begin = self.computed
        self.keys[begin:end] = keys[begin:]
        self.tokens[begin:end] = keys[begin:] >> 1
        self.prompt = self.total = end

    def _grow(self, wanted: int) -> None:
        size = max(wanted, 2 * len(self.keys))
        for name in ("keys", "tokens", "slots"):
            old = getattr(self, name)
            new = np.empty(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def hold(self, lease: Lease) -> None:
        """Begin to run with what the cache holds."""
        self.lease = lease
        self.leased = self.computed = self.placed = lease.length
        self.slots[: lease.length] = lease.slots

    def place(self, slots: IntArray) -> None:
        """Give slots to the next positions."""
        end = self.placed + len(slots)
        if end > len(self.slots):  # tokens that are drawn while a step is repeated
            self._grow(end)
        self.slots[self.placed : end] = slots
        self.placed = end

    def replace_slots(self, start: int, slots: IntArray) -> None:
        """Let other slots hold the positions from `start` on; steps keep the arrays they have."""
        self.slots = self.slots.copy()
        self.slots[start : start + len(slots)] = slots

    def forget_slots(self) -> None:
        """Have no slots and no lease any more."""
        self.leased = self.computed = self.placed = 0
        self.lease = None

    def need_lease(self) -> Lease:
        """The lease; a running sequence has one."""
        if self.lease is None:
            raise InternalError("a sequence that does not run has no lease")
        return self.lease

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """The longest pieces of positions `start..end` that are uniform in `made`."""
        made = self.keys[start:end] & 1
        if not made.any():  # most prompts are not made
            yield start, end, False
            return
        edges = [start, *(np.flatnonzero(made[1:] != made[:-1]) + (start + 1)).tolist(), end]
        for low, high in itertools.pairwise(edges):
            yield low, high, bool(made[low - start])
