"""A vocabulary as constraints see it: the bytes that each token stands for.

Owns        the bytes of all tokens and, once asked for, their trie.
Promises    special tokens and end tokens are never text, whatever their bytes spell.
Costs       the trie of 49,000 tokens takes about 100 ms and 3 MB.
Not here    where the bytes come from (`tokenizer`), which tokens are allowed when (`tables`).
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lmc.constraints.rows import Rows

if TYPE_CHECKING:
    from lmc.constraints.machine import Machine
    from lmc.constraints.slices import Slice
    from lmc.constraints.tables import TokenTable

__all__ = ["Trie", "Vocabulary"]

_MOST_SLICES = 64


@dataclass(frozen=True)
class Trie:
    """The beginnings of all tokens, in depth-first order, without the empty one.

    Attributes:
        byte: uint8, shape (nodes,): the last byte of each beginning.
        depth: int32, shape (nodes,): its length.
        skip: int32, shape (nodes,): the first node after those that go on from it.
        parent: int32, shape (nodes,): the beginning one byte shorter, or -1.
        height: int32, shape (nodes,): the length of the longest token that begins so.
        node_of: int32, shape (vocabulary,): where each token ends; `nodes` for those without text.
        tokens: int32: all tokens that are text, ordered by node.
        tokens_at: int32, shape (nodes + 1,): `tokens[tokens_at[n]:tokens_at[n + 1]]` end at n.
        longest: length of the longest token, in bytes.
    """

    byte: npt.NDArray[np.uint8]
    depth: npt.NDArray[np.int32]
    skip: npt.NDArray[np.int32]
    parent: npt.NDArray[np.int32]
    height: npt.NDArray[np.int32]
    node_of: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    tokens_at: npt.NDArray[np.int32]
    longest: int

    def __len__(self) -> int:
        return len(self.byte)

    @cached_property
    def levels(self) -> list[npt.NDArray[np.int64]]:
        """The nodes of each depth, from 1 on."""
        order = np.argsort(self.depth, kind="stable")
        counts = np.bincount(self.depth, minlength=self.longest + 1)[1:]
        return np.split(order, np.cumsum(counts)[:-1]) if len(order) else []


class Vocabulary:
    """See the module's text.

    Args:
        token_bytes: for each token id its text as bytes; None (or nothing) for tokens that are
            not text: control tokens, unused ids.
        eos: ids of the end tokens; they are not text either.
        encode: the tokenizer's own tokens of a text that stands in the middle of a sequence,
            without special tokens, and without recognizing any in it.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos: Iterable[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.eos = tuple(sorted(set(eos)))
        ends = set(self.eos)
        if any(not 0 <= e < len(token_bytes) for e in ends):
            raise ValueError(f"end tokens {self.eos} are not all in 0..{len(token_bytes) - 1}")
        self.token_bytes: tuple[bytes | None, ...] = tuple(
            (b or None) if i not in ends else None for i, b in enumerate(token_bytes)
        )
        self.encode = encode
        self._lock = threading.Lock()
        self._tables: weakref.WeakKeyDictionary[Machine, TokenTable] = weakref.WeakKeyDictionary()
        self._slices: OrderedDict[int, Slice] = OrderedDict()
        self._longer: dict[int, npt.NDArray[np.int32]] = {}
        self.rows = Rows(len(token_bytes))

    def __len__(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def trie(self) -> Trie:
        """The trie of all tokens that are text."""
        return _build(self.token_bytes)

    def prepare(self) -> None:
        """Make beforehand what the first masks would wait for; costs a second at most, once."""
        from lmc.constraints.walking import prepare_kernels

        prepare_kernels(self.trie)
        _ = self.sizes, self.byte_tokens, self.all_bytes

    @cached_property
    def digest(self) -> str:
        """A name of its tokens and end tokens, the same in every process."""
        found = hashlib.sha256(repr(self.eos).encode())
        for text in self.token_bytes:
            found.update(b"-" if text is None else b"%d " % len(text) + text)
        return found.hexdigest()

    @cached_property
    def sizes(self) -> npt.NDArray[np.int32]:
        """How many bytes each token has, int32, shape (vocabulary,)."""
        return np.array([len(b or b"") for b in self.token_bytes], dtype=np.int32)

    @cached_property
    def byte_tokens(self) -> frozenset[int]:
        """The bytes that have a token of their own."""
        return frozenset(b[0] for b in self.token_bytes if b and len(b) == 1)

    @cached_property
    def all_bytes(self) -> frozenset[int]:
        """The bytes that occur in any token."""
        return frozenset().union(*(b for b in self.token_bytes if b))

    def table(self, machine: Machine) -> TokenTable:
        """The token table of an automaton over this vocabulary, shared by all who ask.

        It lives as long as the machine does, or as long as someone holds it.
        """
        from lmc.constraints.tables import TokenTable

        with self._lock:
            table = self._tables.get(machine)
            if table is None:
                table = self._tables[machine] = TokenTable(machine, self)
            return table

    def slice(self, firsts: int) -> Slice:
        """The tokens made of characters that begin with certain bytes (a bit for each)."""
        from lmc.constraints.walking import slice_by

        with self._lock:
            found = self._slices.get(firsts)
            if found is None:
                found = self._slices[firsts] = slice_by(self.trie, firsts)
                if len(self._slices) > _MOST_SLICES:
                    self._slices.popitem(last=False)
            else:
                self._slices.move_to_end(firsts)
            return found

    def longer_than(self, size: int) -> npt.NDArray[np.int32]:
        """The tokens of more than `size` bytes."""
        found = self._longer.get(size)
        if found is None:
            found = self._longer[size] = np.flatnonzero(self.sizes > size).astype(np.int32)
        return found


def _build(token_bytes: Sequence[bytes | None]) -> Trie:
    ordered = sorted((b, i) for i, b in enumerate(token_bytes) if b)
    texts = np.array([token for _, token in ordered], dtype=np.int32)
    lengths = np.array([len(b) for b, _ in ordered], dtype=np.int64)
    longest = int(lengths.max(initial=0))
    # How much of each text the one before it has too: one padded row a text, compared.
    padded = np.frombuffer(b"".join(b.ljust(longest, b"\0") for b, _ in ordered), dtype=np.uint8)
    padded = padded.reshape(len(ordered), longest)
    shared = np.zeros(len(ordered), dtype=np.int64)
    if len(ordered) > 1:
        same = np.logical_and.accumulate(padded[1:] == padded[:-1], axis=1).sum(axis=1)
        shared[1:] = np.minimum(same, np.minimum(lengths[1:], lengths[:-1]))
    # Each text adds one node a byte beyond what it shares, and these are numbered in order.
    added = lengths - shared
    ends = np.cumsum(added)
    count = int(ends[-1]) if len(ordered) else 0
    text_of = np.repeat(np.arange(len(ordered)), added)
    depth = np.arange(count) - np.repeat(ends - added, added) + np.repeat(shared, added) + 1
    byte = padded[text_of, depth - 1]
    # A text that adds nothing is the same as the one before.
    node_of = np.full(len(token_bytes), count, dtype=np.int32)
    node_of[texts] = ends - 1
    parent = np.arange(count) - 1
    skip = np.full(count, count, dtype=np.int32)
    height = np.zeros(count + 1, dtype=np.int64)
    at_depth = [np.flatnonzero(depth == d) for d in range(longest + 1)]
    firsts = (ends - added)[added > 0]
    for d in range(1, longest + 1):
        here = at_depth[d]
        closes = np.flatnonzero(depth <= d)
        after = np.searchsorted(closes, here, side="right")
        inside = after < len(closes)
        skip[here[inside]] = closes[after[inside]]
        turns = firsts[depth[firsts] == d + 1] if d < longest else firsts[:0]
        parent[turns] = here[np.searchsorted(here, turns) - 1]
    parent[at_depth[1] if longest else []] = -1
    for d in range(longest, 0, -1):
        here = at_depth[d]
        height[here] = np.maximum(height[here], d)
        np.maximum.at(height, parent[here], height[here])
    return Trie(
        byte=byte,
        depth=depth.astype(np.int32),
        skip=skip,
        parent=parent.astype(np.int32),
        height=height[:count].astype(np.int32),
        node_of=node_of,
        tokens=texts,
        tokens_at=np.concatenate(
            [[0], np.cumsum(np.bincount(node_of[texts], minlength=count))]
        ).astype(np.int32),
        longest=longest,
    )
