"""Llama and its kin: Mistral, Qwen2 and Qwen3 differ from it by switches of the configuration.

Owns: packed weights, and the buffers of the rows of one step.
Promises: a row's result does not depend on the other rows (with an attention backend that promises
    it too).
Costs: four products, three small kernels and the attention's a layer. Buffers grow to the largest
    step seen.
Source: Touvron et al., 2023. The residual stream stays in float32 whatever the weights are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from lmc.runtime.linear import Linear, LinearKind, rows_read
from lmc.runtime.models.base import KVTensors, head_weight, take_weight
from lmc.runtime.request import IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.attention.base import AttentionBackend, Batch
    from lmc.runtime.config import ModelConfig
    from lmc.runtime.layers import RowOps
    from lmc.runtime.tensor_parallel.group import Group

__all__ = ["Llama"]

LAYERS_TRIED = 6  # by which it is decided how weights are best held: more than caches hold


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights."""

    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """See the module; a `Model`.

    Args:
        config: sizes and switches.
        weights: by Hugging Face name, in any floating type.
        kinds: ways to compute products; a weight gets the first one that supports its shape.
        ops: who computes the row-wise layers.
        dtype: of weights and activations.
        group: of all parts of the model, if `config` and `weights` are those of one.

    Raises:
        ModelError: a weight is missing or has the wrong shape.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        kinds: list[LinearKind],
        ops: RowOps,
        dtype: torch.dtype,
        group: Group | None = None,
    ) -> None:
        self._config, self._kinds, self._ops, self._dtype = config, kinds, ops, dtype
        self._group = group
        table = take_weight(
            weights, "model.embed_tokens.weight", config.vocab_size, config.hidden_size
        )
        self._table = table.to(dtype).contiguous()
        self._layers: list[_Layer] = []
        for i in range(config.layers):
            self._layers.append(self._read_layer(weights, i))
            if i + 1 == min(LAYERS_TRIED, config.layers):
                self._settle()
        norm = take_weight(weights, "model.norm.weight", config.hidden_size)
        self._norm = norm.float().contiguous()
        head = head_weight(weights, config, table, group)
        self._head_rows = len(head)
        self._head = self._pack(head.float())
        self._buffers: dict[str, Tensor] = {}
        self._room = 0
        self._scored, self._scores = torch.zeros(0, 0), torch.zeros(0, 0)

    def _settle(self) -> None:
        held = [(x.qkv, x.output, x.gate_up, x.down) for x in self._layers]
        for kind in self._kinds:
            kind.settle([linear for layer in held for linear in layer])

    def _pack(self, weight: Tensor, bias: Tensor | None = None, gated: bool = False) -> Linear:
        kind = next(k for k in self._kinds if k.supports(*weight.shape))
        return kind.pack(weight, bias, gated)

    def _read_layer(self, weights: Mapping[str, Tensor], index: int) -> _Layer:
        config = self._config
        hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
        prefix = f"model.layers.{index}."

        def matrix(name: str, rows: int, columns: int) -> Tensor:
            return take_weight(weights, f"{prefix}{name}.weight", rows, columns).float()

        def vector(name: str, length: int) -> Tensor:
            return take_weight(weights, prefix + name, length).float().contiguous()

        projections = [
            ("self_attn.q_proj", config.heads * size),
            ("self_attn.k_proj", config.kv_heads * size),
            ("self_attn.v_proj", config.kv_heads * size),
        ]
        qkv = torch.cat([matrix(name, rows, hidden) for name, rows in projections])
        bias = None
        if config.qkv_bias:
            biases = [vector(f"{name}.bias", rows) for name, rows in projections]
            bias = torch.cat(biases)
        gate_up = [matrix(f"mlp.{name}_proj", inner, hidden) for name in ("gate", "up")]
        pack, norm = self._pack, config.qk_norm
        return _Layer(
            attention_norm=vector("input_layernorm.weight", hidden),
            qkv=pack(qkv, bias),
            q_norm=vector("self_attn.q_norm.weight", size) if norm else None,
            k_norm=vector("self_attn.k_norm.weight", size) if norm else None,
            output=pack(matrix("self_attn.o_proj", hidden, config.heads * size)),
            mlp_norm=vector("post_attention_layernorm.weight", hidden),
            gate_up=pack(torch.cat(gate_up), gated=True),
            down=pack(matrix("mlp.down_proj", hidden, inner)),
        )

    def forward(self, batch: Batch, kv: KVTensors, attention: AttentionBackend) -> None:
        ops, rows = self._ops, batch.rows
        buffers = {name: buffer[:rows] for name, buffer in self._grown(rows).items()}
        residual, hidden, queries = buffers["residual"], buffers["hidden"], buffers["queries"]
        qkv, attended, inner = buffers["qkv"], buffers["attended"], buffers["inner"]
        tokens, positions, slots = (
            torch.from_numpy(a) for a in (batch.tokens, batch.positions, batch.slots)
        )
        ops.embed(tokens, self._table, residual)
        for layer, (keys, values) in zip(self._layers, kv, strict=True):
            ops.norm(residual, layer.attention_norm, hidden)
            layer.qkv.write(hidden, qkv)
            ops.rotate_store(
                qkv, positions, slots, queries, keys, values, layer.q_norm, layer.k_norm
            )
            attention.attend(queries, keys, values, attended)
            self._add(layer.output, attended, residual)
            ops.norm(residual, layer.mlp_norm, hidden)
            layer.gate_up.gate(hidden, inner)
            self._add(layer.down, inner, residual)
        ops.norm(residual, self._norm, hidden)

    def _add(self, linear: Linear, x: Tensor, residual: Tensor) -> None:
        """`residual += x W^T`, summed over all parts of the model."""
        if self._group is None:
            linear.add(x, residual)
            return
        delta = torch.empty_like(residual)
        linear.write(x, delta)
        self._group.add_up(delta)
        residual += delta

    def logits(self, rows: IntArray) -> Tensor:
        count = len(rows)
        if count > len(self._scores):  # kept, as getting so much memory anew costs a page at a time
            width = self._config.hidden_size
            self._scored = torch.zeros(rows_read(count), width, dtype=self._dtype)
            self._scores = torch.zeros(count, self._head_rows)
        # by numpy: torch would wake its own threads for this, and wait for them
        np.take(_words(self._buffers["hidden"]), rows, axis=0, out=_words(self._scored)[:count])
        self._head.write(self._scored, self._scores[:count])
        if self._group is None:
            return self._scores[:count]
        every = self._group.gather(self._scores[:count])
        whole = every.transpose(0, 1).reshape(count, -1)
        return whole[:, : self._config.vocab_size].contiguous()

    def _grown(self, rows: int) -> dict[str, Tensor]:
        """Buffers for `rows` rows; zeros at first, so that padding is never uninitialized."""
        if rows > self._room:
            config, self._room = self._config, rows_read(max(rows, 2 * self._room))
            wide = config.heads * config.head_dim

            def zeros(*shape: int, dtype: torch.dtype = self._dtype) -> Tensor:
                return torch.zeros(self._room, *shape, dtype=dtype)

            self._buffers = {
                "residual": zeros(config.hidden_size, dtype=torch.float32),
                "hidden": zeros(config.hidden_size),
                "qkv": zeros(wide + 2 * config.kv_heads * config.head_dim, dtype=torch.float32),
                "queries": zeros(config.heads, config.head_dim, dtype=torch.float32),
                "attended": zeros(wide),
                "inner": zeros(config.intermediate_size),
            }
        return self._buffers


def _words(tensor: Tensor) -> npt.NDArray[np.generic]:
    """A tensor's memory as numbers that numpy knows."""
    array: npt.NDArray[np.generic] = tensor.view(
        torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32
    ).numpy()
    return array
