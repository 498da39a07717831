"""The row-wise layers of a transformer: their definitions in torch, and who computes them.

Every function here treats each row by itself. `row_ops` gives the compiled kernels where there is a
team to run them and the sizes suit them, else `TorchRowOps`, which is also what they are tested
against.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import torch

from lmc.errors import ModelError
from lmc.runtime.config import ModelConfig, RopeScaling

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.kernels.parallel import Team

SMALL = 20_000  # numbers: less is done before a second thread has looked

__all__ = ["KernelRowOps", "Rotary", "RowOps", "TorchRowOps", "rms_norm", "rotate", "row_ops"]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`x / sqrt(mean(x**2) + epsilon) * weight` over the last axis, float32.

    Source: Zhang and Sennrich, 2019.
    """
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate pairs (i, i + d/2) of the last axis by their angles.

    Args:
        x: float32, shape (rows, heads, d).
        cosines, sines: float32, shape (rows, d / 2).

    Source: RoFormer (Su et al., 2021), with the halves as pairs.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cosines[:, None], sines[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Rotary:
    """Cosines and sines of the rotary embedding, float32, shape (positions, head_dim / 2)."""

    def __init__(self, config: ModelConfig) -> None:
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequencies = 1.0 / (config.rope_theta**exponents)
        if config.rope_scaling is not None:
            frequencies = _stretch(frequencies, config.rope_scaling)
        angles = torch.arange(config.context_length, dtype=torch.float32)[:, None] * frequencies
        self.cosines, self.sines = angles.cos(), angles.sin()


def _stretch(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Lower the frequencies for contexts longer than those of the training.

    "llama3" keeps the high ones, divides the low ones and blends between. Source: the Llama 3.1
    release (Grattafiori et al., 2024).
    """
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind != "llama3":
        raise ModelError(
            f"rotary scaling {scaling.kind!r} is not supported",
            hint='supported are "linear" and "llama3"',
        )
    turns = scaling.original_context * frequencies / (2 * math.pi)  # in the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


class RowOps(Protocol):
    """Row-wise layers."""

    name: str

    def embed(self, tokens: Tensor, table: Tensor, out: Tensor) -> None:
        """`out = table[tokens]`; tokens int32, out float32."""

    def norm(self, residual: Tensor, weight: Tensor, out: Tensor) -> None:
        """`out = rms_norm(residual)`; residual float32."""

    def rotate_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
    ) -> None:
        """Split rows of queries, keys and values; norm and rotate; store keys and values.

        Args:
            qkv: float32, shape (rows, (heads + 2 * kv_heads) * head_dim).
            positions, slots: int32, shape (rows,).
            queries: float32, shape (rows, heads, head_dim); overwritten.
            keys, values: the pool of the layer, (slots, kv_heads, head_dim); the rows' slots are
                overwritten.
            q_norm, k_norm: float32 weights of norms over head_dim, or None.
        """


class TorchRowOps:
    """The definitions, on any device."""

    name = "torch"

    def __init__(self, config: ModelConfig, rotary: Rotary) -> None:
        self._config, self._rotary = config, rotary

    def embed(self, tokens: Tensor, table: Tensor, out: Tensor) -> None:
        out.copy_(table[tokens.long()])

    def norm(self, residual: Tensor, weight: Tensor, out: Tensor) -> None:
        out.copy_(rms_norm(residual, weight, self._config.rms_eps))

    def rotate_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
    ) -> None:
        config, rows = self._config, len(queries)
        heads, kv_heads = config.heads, config.kv_heads
        split = qkv.view(rows, heads + 2 * kv_heads, config.head_dim)
        q, k, v = torch.split(split, [heads, kv_heads, kv_heads], dim=1)
        if q_norm is not None and k_norm is not None:
            q = rms_norm(q, q_norm, config.rms_eps)
            k = rms_norm(k, k_norm, config.rms_eps)
        places = positions.long()
        cosines, sines = self._rotary.cosines[places], self._rotary.sines[places]
        queries.copy_(rotate(q, cosines, sines))
        keys[slots.long()] = rotate(k, cosines, sines).to(keys.dtype)
        values[slots.long()] = v.to(values.dtype)


class KernelRowOps:
    """The compiled kernels of `lmc.runtime.kernels.rows`, on the CPU.

    Sums have a fixed order.
    """

    name = "kernels"

    def __init__(self, config: ModelConfig, rotary: Rotary, team: Team, *, half: bool) -> None:
        from lmc.runtime.kernels.parallel import bits_of
        from lmc.runtime.kernels.rows import row_kernel

        self._config, self._rotary = config, rotary
        self._epsilon = bits_of(config.rms_eps)
        self._embed = row_kernel("embed", half, team)
        self._norm = row_kernel("norm", half, team)
        self._rotate_store = row_kernel("rotate_store", half, team)

    @staticmethod
    def supports(config: ModelConfig) -> bool:
        """Whether all sizes are multiples of a vector."""
        sizes = (config.hidden_size, config.head_dim // 2)
        return all(size % 16 == 0 for size in sizes) and config.head_dim % 2 == 0

    def embed(self, tokens: Tensor, table: Tensor, out: Tensor) -> None:
        rows, columns = out.shape
        self._embed(
            tokens.data_ptr(), table.data_ptr(), out.data_ptr(), rows, columns,
            small=rows * columns < SMALL,
        )  # fmt: skip

    def norm(self, residual: Tensor, weight: Tensor, out: Tensor) -> None:
        rows, columns = out.shape
        self._norm(
            residual.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, columns, self._epsilon,
            small=rows * columns < SMALL,
        )  # fmt: skip

    def rotate_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
    ) -> None:
        config, rows = self._config, len(queries)
        self._rotate_store(
            qkv.data_ptr(), positions.data_ptr(),
            slots.data_ptr(), self._rotary.cosines.data_ptr(), self._rotary.sines.data_ptr(),
            queries.data_ptr(), keys.data_ptr(), values.data_ptr(), rows, config.heads,
            config.kv_heads, config.head_dim, 0 if q_norm is None else q_norm.data_ptr(),
            0 if k_norm is None else k_norm.data_ptr(), self._epsilon,
            small=rows * qkv.shape[1] < SMALL,
        )  # fmt: skip


def row_ops(config: ModelConfig, team: Team | None, *, dtype: torch.dtype) -> RowOps:
    """The fastest row-wise layers there are for a model on the CPU; torch's without a team."""
    rotary = Rotary(config)
    if team is not None and KernelRowOps.supports(config):
        return KernelRowOps(config, rotary, team, half=dtype == torch.bfloat16)
    return TorchRowOps(config, rotary)
