"""What attention is asked: a flat batch of rows, and the protocol of those who answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lmc.runtime.request import IntArray, Segment, Step

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AttentionBackend", "Batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a step, one after another: row i is one token of one segment.

    Attributes:
        segments: as in the step.
        first: of each segment, its first row.
        tokens, positions: int32, shape (rows,).
        slots: int32, shape (rows,): the KV slot that each row writes.
    """

    segments: tuple[Segment, ...]
    first: tuple[int, ...]
    tokens: IntArray
    positions: IntArray
    slots: IntArray

    @staticmethod
    def of(step: Step) -> Batch:
        """Lay out a step, or the first pass of one that is repeated."""
        segments = step.segments
        sizes = [len(s.tokens) for s in segments]
        starts = np.repeat(np.array([s.start for s in segments], np.int32), sizes)
        ends = np.cumsum([0, *sizes], dtype=np.int32)
        inside = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends[:-1], sizes)
        return Batch(
            segments=segments,
            first=tuple(ends[:-1].tolist()),
            tokens=np.concatenate([s.tokens for s in segments]).astype(np.int32, copy=False),
            positions=starts + inside,
            slots=np.concatenate(
                [s.slots[s.start : s.start + len(s.tokens)] for s in segments]
            ).astype(np.int32, copy=False),
        )

    @property
    def rows(self) -> int:
        return len(self.tokens)


class AttentionBackend(Protocol):
    """Causal attention over slots of the KV pool, for one step at a time.

    Row i of a segment sees the positions 0 to start + i, at the slots of the segment's table; with
    a sliding window of w, only the last w of them. A backend promises that a row's result depends
    on its query and its context alone (and on `made`, if it says so), bit by bit. The reference
    does not promise it: it only says what is to be computed.
    """

    name: str

    def begin(self, batch: Batch) -> None:
        """Prepare for the rows of a step; called once, before its layers."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """Attend in one layer.

        Args:
            queries: float32, shape (rows, heads, head_dim), rotated, not scaled.
            keys: shape (slots, kv_heads, head_dim), those of this step included.
            values: like `keys`.
            out: in the type of `keys`, shape (rows, heads * head_dim); overwritten.
        """
