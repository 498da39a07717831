"""Page-locked memory from which copies to the device run on their own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Staging"]


class Staging:
    """Memory handed out piece by piece; `reset` when no copy is under way any more."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._memory = torch.empty(size, dtype=torch.int32, pin_memory=self._pinned)
        self._array = self._memory.numpy()
        self._at = 0
        self._more: list[torch.Tensor] = []

    def reset(self) -> None:
        """All pieces may be used again."""
        self._at = 0
        self._more.clear()

    def piece(self, size: int) -> tuple[npt.NDArray[np.int32], torch.Tensor]:
        """Memory for `size` int32, as an array and as a tensor."""
        start, end = self._at, self._at + size
        if end > len(self._memory):
            tensor = torch.empty(size, dtype=torch.int32, pin_memory=self._pinned)
            self._more.append(tensor)
            return tensor.numpy(), tensor
        self._at = -(-end // 16) * 16
        return self._array[start:end], self._memory[start:end]

    def copy(self, values: npt.NDArray[np.int32], target: torch.Tensor) -> None:
        """Copy int32 to the device, without waiting."""
        array, tensor = self.piece(len(values))
        array[:] = values
        target[: len(values)].copy_(tensor, non_blocking=True)
