"""Rows of allowed tokens, kept small: what a slice of the vocabulary does not say, and no more.

A row as an array costs a byte a token; written as a slice and the tokens beside it, it mostly costs
a few hundred bytes. The arrays of the rows asked for last are kept, up to a number of bytes for the
whole vocabulary; others are made again when they are asked for.

Owns        the rows of one vocabulary.
Promises    rows that are written alike are one `Row`; while its array is kept, it is one array.
            Arrays are read-only. Safe for threads.
Costs       a few microseconds to make an array.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lmc.constraints.slices import Slice

__all__ = ["MaskArray", "Row", "Rows"]

MaskArray = npt.NDArray[np.bool_]

_NONE = np.empty(0, dtype=np.int32)
_KEPT_BYTES = 64 << 20  # of arrays, for one vocabulary


class Row:
    """A set of tokens: those of `base` with at most `chars` characters, `tokens`, not `without`.

    Attributes:
        tokens: int32; or, if they are many, uint8: a bit for each token of the vocabulary.
        array: the row as an array, while it is kept.
        used: whether it was asked for since it was last looked at, to find out which to forget.
    """

    __slots__ = ("__weakref__", "array", "base", "chars", "tokens", "used", "without")

    def __init__(
        self,
        base: Slice | None,
        chars: int,
        tokens: npt.NDArray[Any],
        without: npt.NDArray[np.int32],
    ) -> None:
        self.base = base
        self.chars = chars
        self.tokens = tokens
        self.without = without
        self.array: MaskArray | None = None
        self.used = True

    @property
    def size(self) -> int:
        """The bytes that it takes without its array, about."""
        return self.tokens.nbytes + self.without.nbytes + 400


class Rows:
    """See the module's text."""

    def __init__(self, tokens: int) -> None:
        self._count = tokens
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[tuple[int, int, bytes, bytes], Row] = (
            weakref.WeakValueDictionary()
        )
        self._kept: list[weakref.ref[Row]] = []
        self._hand = 0

    def row(
        self,
        base: Slice | None,
        chars: int,
        tokens: npt.NDArray[np.int32],
        *,
        also: Sequence[int] = (),
        without: npt.NDArray[np.int32] = _NONE,
    ) -> Row:
        """The row of a slice's tokens with at most `chars` characters, `tokens`, and `also`.

        Args:
            without: what is left out of these.
        """
        if also:
            tokens = np.concatenate((tokens, np.array(also, dtype=np.int32)))
        kept: npt.NDArray[Any] = tokens
        if 32 * len(tokens) > self._count:
            every = np.zeros(self._count, dtype=np.bool_)
            every[tokens] = True
            kept = np.packbits(every)
        key = (id(base), chars, kept.tobytes(), without.tobytes())
        row = self._known.get(key)
        if row is None:
            row = self._known.setdefault(key, Row(base, chars, kept, without))
        return row

    def array(self, row: Row) -> MaskArray:
        """A row as an array, bool, shape (vocabulary,), read-only."""
        array = row.array
        if array is None:
            if row.base is None:
                array = np.zeros(self._count, dtype=np.bool_)
            elif row.chars < row.base.most_chars:
                array = row.base.row & (row.base.chars <= row.chars)
            else:
                array = row.base.row.copy()
            if row.tokens.dtype == np.uint8:
                array |= np.unpackbits(row.tokens, count=self._count).view(np.bool_)
            else:
                array[row.tokens] = True
            array[row.without] = False
            array.flags.writeable = False
            with self._lock:
                if row.array is None:
                    row.array = array
                    self._keep(row)
                array = row.array
        row.used = True
        return array

    def _keep(self, row: Row) -> None:
        """Find a place for a row's array: where none is, or one that was not used of late."""
        most = max(16, _KEPT_BYTES // max(1, self._count))
        if len(self._kept) < most:
            self._kept.append(weakref.ref(row))
            return
        while True:
            self._hand = (self._hand + 1) % len(self._kept)
            other = self._kept[self._hand]()
            if other is None or not other.used:
                break
            other.used = False
        if other is not None:
            other.array = None
        self._kept[self._hand] = weakref.ref(row)
