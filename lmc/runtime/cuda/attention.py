"""What is asked of attention on a device.

A step is planned once, on the CPU, which gives a function; every layer calls it, and that only
puts work into the device's queue. All backends are held to one definition,
`lmc.runtime.attention.reference`, by the same tests.

Not here    who there is to answer (`backends`), attention on the CPU (`lmc.runtime.attention`),
            steps replayed from graphs, which only `UnitAttention` serves (`runner`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lmc.runtime.cuda.flight import Tables
from lmc.runtime.cuda.staging import Staging

__all__ = ["Attend", "DeviceAttention", "StepRows"]


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step: the last ones of each segment's context, segment after segment.

    Attributes:
        tables: of all segments, on the host.
        slots: the same slots, int32, on the device.
        positions: int32, (rows,), on the device: each row sees the positions up to its own.
    """

    tables: Tables
    slots: Tensor
    positions: Tensor


class Attend(Protocol):
    """Attention of a planned step, in one layer."""

    def __call__(self, qkv: Tensor, keys: Tensor, values: Tensor, out: Tensor, /) -> None:
        """Put it into the device's queue.

        Args:
            qkv: (rows, (heads + 2 * kv_heads) * head_dim); rotated queries come first, the rest is
                not read.
            keys, values: (slots, kv_heads, head_dim), those of this step included.
            out: (rows, heads * head_dim); overwritten.
        """


class DeviceAttention(Protocol):
    """Causal attention over slots of the KV pool; with a sliding window if the model has one."""

    name: str

    def plan(self, step: StepRows, staging: Staging) -> Attend:
        """Prepare for a step. What it gives may be called until the next plan.

        Args:
            staging: memory from which copies to the device can be made; reset when the device is
                done with the step.
        """
