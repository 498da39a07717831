"""Masks of allowed tokens on the device, each brought there once.

Owns        an arena of packed rows, and which mask lies in which.
Promises    a mask is packed and copied when it is first used; equal arrays of a constraint are one
            object, so in a long run nothing is copied any more.
Costs       a bit a token and mask; a dictionary look-up for a mask that is known.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from lmc.errors import CapacityError
from lmc.runtime.cuda.staging import Staging
from lmc.runtime.request import MaskArray

__all__ = ["MaskArena"]

_Key = tuple[int, tuple[int, ...]]


class MaskArena:
    """Packed masks; word w of a row holds the tokens 32 w to 32 w + 31, the lowest bit first."""

    def __init__(self, vocab_size: int, rows: int, device: torch.device) -> None:
        self.words = -(-vocab_size // 32)
        self.bits = torch.zeros(rows, self.words, dtype=torch.int32, device=device)
        self._vocab_size = vocab_size
        self._places: dict[_Key, int] = {}
        self._held: list[MaskArray | None] = []  # kept alive, so that no id is used again

    def places(
        self, wanted: list[tuple[MaskArray | None, tuple[int, ...]] | None], staging: Staging
    ) -> npt.NDArray[np.int32]:
        """The arena's row for each mask with its banned tokens; -1 for None.

        Raises:
            CapacityError: more different masks than rows.
        """
        found = np.full(len(wanted), -1, np.int32)
        new: list[tuple[_Key, MaskArray | None]] = []
        for i, one in enumerate(wanted):
            if one is None or (one[0] is None and not one[1]):
                continue
            key = (id(one[0]), one[1])
            place = self._places.get(key)
            if place is None:
                if len(self._held) + len(new) >= len(self.bits):
                    return self._afresh(wanted, staging)
                place = self._places[key] = len(self._held) + len(new)
                new.append((key, one[0]))
            found[i] = place
        if new:
            self._copy(new, staging)
        return found

    def _afresh(
        self, wanted: list[tuple[MaskArray | None, tuple[int, ...]] | None], staging: Staging
    ) -> npt.NDArray[np.int32]:
        """Forget all masks and begin anew."""
        different = {(id(one[0]), one[1]) for one in wanted if one is not None}
        if len(different) > len(self.bits):
            raise CapacityError(
                f"a step has {len(different)} different masks, the device holds {len(self.bits)}"
            )
        self.forget()
        return self.places(wanted, staging)

    def forget(self) -> None:
        """Have no masks: each is packed and copied again."""
        self._places.clear()
        self._held.clear()

    def _copy(self, new: list[tuple[_Key, MaskArray | None]], staging: Staging) -> None:
        start = len(self._held)
        rows = np.zeros((len(new), self.words * 32), np.bool_)
        for row, ((_, banned), mask) in zip(rows, new, strict=True):
            row[: self._vocab_size] = True if mask is None else mask
            row[list(banned)] = False
            self._held.append(mask)
        packed = np.packbits(rows, axis=1, bitorder="little").view(np.int32)
        staging.copy(packed.ravel(), self.bits[start : start + len(new)].view(-1))
