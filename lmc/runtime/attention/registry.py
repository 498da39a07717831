"""Which attention backends there are, and which one a model gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmc.errors import UsageError
from lmc.runtime.attention.base import AttentionBackend

if TYPE_CHECKING:
    from lmc.runtime.config import ModelConfig
    from lmc.runtime.kernels.parallel import Team

__all__ = ["ATTENTION", "choose_attention"]

ATTENTION = ("tiles", "torch", "reference")  # the fastest first


def choose_attention(
    name: str, config: ModelConfig, team: Team | None, *, dtype: torch.dtype
) -> AttentionBackend:
    """The backend `name`, or with "auto" the fastest that can serve the model.

    Raises:
        UsageError: there is no such backend, or it cannot serve the model.
    """
    if name not in ("auto", *ATTENTION):
        raise UsageError(
            f"there is no attention backend {name!r}",
            hint=f"give one of auto, {', '.join(ATTENTION)}",
        )
    if name in ("auto", "tiles") and team is not None:
        from lmc.runtime.attention.tiles_numba import TileAttention

        if TileAttention.supports(config):
            return TileAttention(config, team, half=dtype == torch.bfloat16)
    if name == "tiles":
        raise UsageError(
            "attention='tiles' needs numba and heads of a multiple of 16",
            hint="give attention='auto'",
        )
    if name == "reference":
        from lmc.runtime.attention.reference import ReferenceAttention

        return ReferenceAttention(config)
    from lmc.runtime.attention.tiles_torch import TorchAttention

    return TorchAttention(config)
