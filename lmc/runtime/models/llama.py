"""Llama and its kin: Mistral, Qwen2 and Qwen3 differ from it by switches of the configuration.

Owns: packed weights, and the buffers of the rows of one step.
Promises: a row's result does not depend on the other rows (with an attention backend that promises
    it too).
Costs: four products and five small kernels a layer. Rows are padded and cut as the products' rule
    says; buffers grow to the largest step seen.
Source: Touvron et al., 2023. The residual stream stays in float32 whatever the weights are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lmc.runtime.linear import Linear, LinearKind, respects
from lmc.runtime.models.base import KVTensors, take_weight

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.attention.base import AttentionBackend, Batch
    from lmc.runtime.config import ModelConfig
    from lmc.runtime.layers import RowOps

__all__ = ["Llama"]


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
        kind: how to compute products.
        ops: who computes the row-wise layers.
        dtype: of weights and activations.

    Raises:
        ModelError: a weight is missing or has the wrong shape.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        kind: LinearKind,
        ops: RowOps,
        dtype: torch.dtype,
    ) -> None:
        self._config, self._kind, self._ops, self._dtype = config, kind, ops, dtype
        self._table = (
            take_weight(weights, "model.embed_tokens.weight", config.vocab_size, config.hidden_size)
            .to(dtype)
            .contiguous()
        )
        self._layers = [self._read_layer(weights, i) for i in range(config.layers)]
        norm = take_weight(weights, "model.norm.weight", config.hidden_size)
        self._norm = norm.float().contiguous()
        head = self._table
        if not config.tied:
            head = take_weight(weights, "lm_head.weight", config.vocab_size, config.hidden_size)
        self._head = kind.pack(head.to(dtype), None)
        self._buffers: dict[str, Tensor] = {}
        self._room = 0

    def _read_layer(self, weights: Mapping[str, Tensor], index: int) -> _Layer:
        config = self._config
        hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
        prefix = f"model.layers.{index}."

        def matrix(name: str, rows: int, columns: int) -> Tensor:
            return take_weight(weights, f"{prefix}{name}.weight", rows, columns).to(self._dtype)

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
            bias = torch.cat(biases).to(self._dtype)
        gate_up = [matrix(f"mlp.{name}_proj", inner, hidden) for name in ("gate", "up")]
        pack, norm = self._kind.pack, config.qk_norm
        return _Layer(
            attention_norm=vector("input_layernorm.weight", hidden),
            qkv=pack(qkv, bias),
            q_norm=vector("self_attn.q_norm.weight", size) if norm else None,
            k_norm=vector("self_attn.k_norm.weight", size) if norm else None,
            output=pack(matrix("self_attn.o_proj", hidden, config.heads * size), None),
            mlp_norm=vector("post_attention_layernorm.weight", hidden),
            gate_up=pack(torch.cat(gate_up), None),
            down=pack(matrix("mlp.down_proj", hidden, inner), None),
        )

    def keeps_rule(self) -> bool:
        """Whether the products of the first layer and the head keep the rule of their kind."""
        config, rule, layer = self._config, self._kind.rule, self._layers[0]
        products = [
            (layer.qkv, config.hidden_size),
            (layer.output, config.heads * config.head_dim),
            (layer.gate_up, config.hidden_size),
            (layer.down, config.intermediate_size),
            (self._head, config.hidden_size),
        ]
        return all(respects(linear, rule, columns, self._dtype) for linear, columns in products)

    def forward(self, batch: Batch, kv: KVTensors, attention: AttentionBackend) -> Tensor:
        ops, rows, rule = self._ops, batch.rows, self._kind.rule
        buffers = self._grown(rule.padded(rows))
        tokens, positions, slots = (
            torch.from_numpy(a) for a in (batch.tokens, batch.positions, batch.slots)
        )
        cuts = rule.cuts(rows)
        # per cut: padded inputs of products, and the true rows of everything else
        hidden_in, attended_in, inner_in = (
            [buffers[name][a:b] for a, b in cuts] for name in ("hidden", "attended", "inner")
        )
        true = [(a, min(b, rows)) for a, b in cuts]
        residual, hidden, inner, queries, position, slot = (
            [tensor[a:b] for a, b in true]
            for tensor in (
                buffers["residual"], buffers["hidden"], buffers["inner"], buffers["queries"],
                positions, slots,
            )
        )  # fmt: skip
        all_queries, attended = buffers["queries"][:rows], buffers["attended"][:rows]
        pieces = range(len(cuts))

        ops.embed(tokens, self._table, buffers["residual"][:rows])
        first = self._layers[0].attention_norm
        ops.add_norm(None, buffers["residual"][:rows], first, buffers["hidden"][:rows])
        next_norms = [*(layer.attention_norm for layer in self._layers[1:]), self._norm]
        for layer, (keys, values), next_norm in zip(self._layers, kv, next_norms, strict=True):
            for i in pieces:
                qkv = layer.qkv(hidden_in[i])
                ops.rotate_store(
                    qkv, position[i], slot[i], queries[i], keys, values, layer.q_norm, layer.k_norm
                )
            attention.attend(all_queries, keys, values, attended)
            for i in pieces:
                delta = layer.output(attended_in[i])
                ops.add_norm(delta, residual[i], layer.mlp_norm, hidden[i])
                ops.silu_mul(layer.gate_up(hidden_in[i]), inner[i])
                ops.add_norm(layer.down(inner_in[i]), residual[i], next_norm, hidden[i])
        return buffers["hidden"][:rows]

    def logits(self, hidden: Tensor) -> Tensor:
        rows, rule = len(hidden), self._kind.rule
        padded = hidden.new_zeros(rule.padded(rows), hidden.shape[1])
        padded[:rows] = hidden
        pieces = [self._head(padded[a:b]).float() for a, b in rule.cuts(rows)]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces))[:rows]

    def _grown(self, rows: int) -> dict[str, Tensor]:
        """Buffers for `rows` rows; zeros at first, so that padding is never uninitialized."""
        if rows > self._room:
            config, self._room = self._config, max(rows, 2 * self._room)
            wide = config.heads * config.head_dim

            def zeros(*shape: int, dtype: torch.dtype = self._dtype) -> Tensor:
                return torch.zeros(self._room, *shape, dtype=dtype)

            self._buffers = {
                "residual": zeros(config.hidden_size, dtype=torch.float32),
                "hidden": zeros(config.hidden_size),
                "queries": zeros(config.heads, config.head_dim, dtype=torch.float32),
                "attended": zeros(wide),
                "inner": zeros(config.intermediate_size),
            }
        return self._buffers
