"""Llama and its kin on a CUDA device: packed weights, buffers, and the launches of a forward pass.

Owns        weights in the model's type (queries, keys and values as one matrix, gates and ups as
            one), the KV tensors, buffers for the rows of a step.
Promises    a forward pass touches fixed addresses only, so it can be captured in a graph.
Costs       four products and four small kernels a layer, and attention; with one row, the four
            products hold the norms and the gate, and there is one small kernel. The residual
            stream has the model's type, and the products before it add to it as they store: in a
            long step a third of the memory traffic of a float32 stream with sums of its own.
Not here    attention (`attention`), drawing (`sampler`).
Source      Touvron et al., 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmc.errors import UsageError
from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda.attention import Attend
from lmc.runtime.cuda.layout import RowFields
from lmc.runtime.cuda.one_row_kernel import one_row_product
from lmc.runtime.cuda.product_kernel import fixed_product
from lmc.runtime.cuda.row_kernels import norm_rows, rotate_store, silu_mul
from lmc.runtime.layers import Rotary
from lmc.runtime.models.base import head_weight, take_weight

if TYPE_CHECKING:
    from lmc.runtime.tensor_parallel.group import Group

__all__ = ["DeviceModel"]


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def _blocks_of_one(inner: int, gated: bool, normed: bool) -> tuple[int, int, int]:
    """Columns and positions of a block of one row's product, and warps.

    They are what was fastest with an 8B model's matrices.
    """
    if inner > 8192:
        return 4, 2048, 4
    return (8, 512, 2) if gated else (2, 2048, 8) if normed else (4, 2048, 8)


def _power(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


class DeviceModel:
    """See the module.

    Args:
        config: sizes and switches.
        weights: by Hugging Face name; those of layers are taken out when they are packed.
        dtype: of weights, activations and KV entries.
        rows: most rows of a step.
        fixed: add every sum in an order that does not depend on the step.
        group: of all parts of the model, if `config` and `weights` are those of one.

    Raises:
        ModelError: a weight is missing or has the wrong shape.
        UsageError: sizes that the kernels cannot serve.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device,
        rows: int,
        fixed: bool = False,
        group: Group | None = None,
    ) -> None:
        if config.head_dim % 2:
            raise UsageError(f"heads of {config.head_dim} numbers cannot be rotated in halves")
        self.config, self.dtype, self.device, self.fixed = config, dtype, device, fixed
        self._ranks = group
        self._table = self._matrix(
            weights, "model.embed_tokens.weight", config.vocab_size, config.hidden_size
        )
        self._layers = [self._read_layer(weights, i) for i in range(config.layers)]
        self._norm = self._vector(weights, "model.norm.weight", config.hidden_size)
        head = head_weight(weights, config, self._table, group)
        self._head = head.to(self.device, self.dtype).contiguous()
        rotary = Rotary(config)
        self._cosines, self._sines = rotary.cosines.to(device), rotary.sines.to(device)
        self._make_buffers(rows)
        self._kv: list[tuple[Tensor, Tensor]] = []
        self._ieee = dtype == torch.float32

    # Weights

    def _matrix(self, weights: Mapping[str, Tensor], name: str, *shape: int) -> Tensor:
        return take_weight(weights, name, *shape).to(self.device, self.dtype).contiguous()

    def _vector(self, weights: Mapping[str, Tensor], name: str, length: int) -> Tensor:
        return take_weight(weights, name, length).to(self.device, torch.float32).contiguous()

    def _read_layer(self, weights: dict[str, Tensor], index: int) -> _Layer:
        config = self.config
        hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
        prefix = f"model.layers.{index}."

        def matrix(name: str, rows: int, columns: int) -> Tensor:
            return self._matrix(weights, f"{prefix}{name}.weight", rows, columns)

        def vector(name: str, length: int) -> Tensor:
            return self._vector(weights, prefix + name, length)

        projections = [
            ("self_attn.q_proj", config.heads * size),
            ("self_attn.k_proj", config.kv_heads * size),
            ("self_attn.v_proj", config.kv_heads * size),
        ]
        bias = None
        if config.qkv_bias:
            biases = [vector(f"{name}.bias", rows) for name, rows in projections]
            bias = torch.cat(biases).to(self.dtype)
        norm = config.qk_norm
        layer = _Layer(
            attention_norm=vector("input_layernorm.weight", hidden),
            qkv=torch.cat([matrix(name, rows, hidden) for name, rows in projections]),
            qkv_bias=bias,
            q_norm=vector("self_attn.q_norm.weight", size) if norm else None,
            k_norm=vector("self_attn.k_norm.weight", size) if norm else None,
            output=matrix("self_attn.o_proj", hidden, config.heads * size),
            mlp_norm=vector("post_attention_layernorm.weight", hidden),
            gate_up=torch.cat(
                [matrix(f"mlp.{name}_proj", inner, hidden) for name in ("gate", "up")]
            ),
            down=matrix("mlp.down_proj", hidden, inner),
        )
        for name in [name for name in weights if name.startswith(prefix)]:
            del weights[name]
        return layer

    # Memory

    def _make_buffers(self, rows: int) -> None:
        config = self.config
        wide = (config.heads + 2 * config.kv_heads) * config.head_dim

        def zeros(columns: int) -> Tensor:
            return torch.zeros(rows, columns, dtype=self.dtype, device=self.device)

        self._residual = zeros(config.hidden_size)
        self._hidden = zeros(config.hidden_size)
        self._qkv = zeros(wide)
        self._attended = zeros(config.heads * config.head_dim)
        self._gate_up = zeros(2 * config.intermediate_size)
        self._inner = zeros(config.intermediate_size)
        self._rows = torch.arange(rows, dtype=torch.int32, device=self.device)

    def make_pool(self, slots: int) -> None:
        """Make the KV tensors. Zeros: what masked positions hold is read, and must be finite."""
        config = self.config
        pool = torch.zeros(
            config.layers, 2, slots, config.kv_heads, config.head_dim,
            dtype=self.dtype, device=self.device,
        )  # fmt: skip
        self._kv = [(layer[0], layer[1]) for layer in pool]

    # Computing

    def forward(
        self, rows: int, fields: RowFields, attend: Attend, wanted: Tensor | None = None
    ) -> None:
        """Compute rows and store their keys and values.

        What comes after the attention of the last layer is of use for rows with logits only.

        Args:
            fields: the step, on the device.
            attend: its attention in a layer.
            wanted: int32, the rows with logits, to compute the end of the last layer for these
                alone. They are the first ones afterwards.
        """
        if rows == 1 and not self.fixed:
            self._forward_one(fields, attend)
            return
        config = self.config
        hidden, residual = self._hidden[:rows], self._residual[:rows]
        self._norm_rows(rows, fields.tokens, self._layers[0].attention_norm, embed=True)
        following = [layer.attention_norm for layer in self._layers[1:]] + [self._norm]
        for layer, (keys, values), norm in zip(self._layers, self._kv, following, strict=True):
            qkv, attended = self._qkv[:rows], self._attended[:rows]
            self._product(hidden, layer.qkv, qkv, layer.qkv_bias)
            self._rotate_store(rows, fields, layer, keys, values)
            if wanted is not None and not len(wanted) and layer is self._layers[-1]:
                return
            attend(qkv, keys, values, attended)
            if wanted is not None and layer is self._layers[-1]:
                rows = len(wanted)
                attended = attended.index_select(0, wanted)
                self._residual[:rows] = self._residual.index_select(0, wanted)
                hidden, residual = self._hidden[:rows], self._residual[:rows]
            self._add_product(attended, layer.output, residual)
            self._norm_rows(rows, fields.tokens, layer.mlp_norm)
            gate_up, inner = self._gate_up[:rows], self._inner[:rows]
            self._product(hidden, layer.gate_up, gate_up)
            columns = config.intermediate_size
            silu_mul[(rows, -(-columns // 1024))](gate_up, inner, columns, BLOCK=1024, num_warps=4)
            self._add_product(inner, layer.down, residual)
            self._norm_rows(rows, fields.tokens, norm)

    def _forward_one(self, fields: RowFields, attend: Attend) -> None:
        """The same for a single row."""
        qkv, attended, inner = self._qkv[:1], self._attended[:1], self._inner[:1]
        residual = self._residual[:1]
        self._norm_rows(1, fields.tokens, self._norm, embed=True)  # for the entry alone
        for layer, (keys, values) in zip(self._layers, self._kv, strict=True):
            norm = layer.attention_norm
            self._product_of_one(residual, layer.qkv, qkv, norm=norm, bias=layer.qkv_bias)
            self._rotate_store(1, fields, layer, keys, values)
            attend(qkv, keys, values, attended)
            self._product_of_one(attended, layer.output, residual)
            self._product_of_one(residual, layer.gate_up, inner, norm=layer.mlp_norm)
            self._product_of_one(inner, layer.down, residual)
        self._norm_rows(1, fields.tokens, self._norm)

    def try_sizes(self, rows: int, logits: Tensor) -> None:
        """Compute products of many sizes, up to `rows` rows and as many as `logits` has.

        The matrix library loads a kernel when it is first used, and waits for the device then. Of
        few rows, such as those with logits at the end of the last layer, every number is tried.
        """
        layer, few = self._layers[0], min(rows, len(logits))
        for count in (*range(1, few), *range(few, rows, 16), rows):
            self._product(self._hidden[:count], layer.qkv, self._qkv[:count], layer.qkv_bias)
            self._product(
                self._attended[:count], layer.output, self._residual[:count], add=self._adds
            )
            self._product(self._hidden[:count], layer.gate_up, self._gate_up[:count])
            self._product(self._inner[:count], layer.down, self._residual[:count], add=self._adds)
        for count in range(1, len(logits) + 1):
            self.logits(self._rows[:count], logits)

    def first_rows(self, low: int, high: int) -> Tensor:
        """The numbers of rows from `low` to `high`, less `high`; int32."""
        return self._rows[low:high]

    def logits(self, rows: Tensor, out: Tensor) -> Tensor:
        """Scores of all next tokens after some rows of the last step; float32, into `out`."""
        hidden, out = self._hidden.index_select(0, rows), out[: len(rows)]
        if self._ranks is None:
            self._product(hidden, self._head, out)
            return out
        part = torch.empty(len(rows), len(self._head), dtype=out.dtype, device=self.device)
        self._product(hidden, self._head, part)
        low = 0
        for piece in self._ranks.gather(part):
            columns = out[:, low : low + len(self._head)]
            columns.copy_(piece[:, : columns.shape[1]])
            low += len(self._head)
        return out

    @property
    def _adds(self) -> bool:
        """Whether products here are added to the residual stream: in one part of the model."""
        return self._ranks is None or self._ranks.shard.rank == 0

    def _add_product(self, x: Tensor, weight: Tensor, residual: Tensor) -> None:
        """`residual += x weight^T`; of all parts of the model, which all have the sum then."""
        self._product(x, weight, residual, add=self._adds)
        if self._ranks is not None:
            self._ranks.add_up(residual)

    def _product_of_one(
        self, x: Tensor, weight: Tensor, out: Tensor, *, norm: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Products of one row: what `_product`, `_add_product` and the kernels around them give.

        Args:
            norm: of `x` before; without it, the product is added to the residual stream, `out`.
        """
        columns, inner = out.shape[1], weight.shape[1]
        gated = len(weight) == 2 * columns
        blocks = _blocks_of_one(inner, gated, norm is not None)
        one_row_product[(-(-columns // blocks[0]),)](
            x, weight, out, x if norm is None else norm, x if bias is None else bias,
            self.config.rms_eps, COLUMNS=columns, INNER=inner, BLOCK_N=blocks[0],
            BLOCK_K=blocks[1], NORM=norm is not None, BIAS=bias is not None, GATED=gated,
            ADD=norm is None and self._adds, num_warps=blocks[2],
        )  # fmt: skip
        if norm is None and self._ranks is not None:
            self._ranks.add_up(out)

    def _norm_rows(self, rows: int, tokens: Tensor, weight: Tensor, *, embed: bool = False) -> None:
        columns = self.config.hidden_size
        norm_rows[(rows,)](
            self._residual, self._table, tokens, weight, self._hidden,
            self.config.rms_eps, COLUMNS=columns, BLOCK=_power(columns), EMBED=embed,
            num_warps=8 if columns > 1024 else 4,
        )  # fmt: skip

    def _rotate_store(
        self, rows: int, fields: RowFields, layer: _Layer, keys: Tensor, values: Tensor
    ) -> None:
        config = self.config
        heads, half = config.heads + 2 * config.kv_heads, config.head_dim // 2
        norm = layer.q_norm is not None
        rotate_store[(rows, -(-heads // 16))](
            self._qkv, fields.positions, fields.slots, self._cosines, self._sines, keys, values,
            layer.q_norm if norm else self._cosines, layer.k_norm if norm else self._cosines,
            config.rms_eps, HEADS=config.heads, KV_HEADS=config.kv_heads, DIM=config.head_dim,
            HALF=half, NORM=norm, BLOCK_H=16, BLOCK_D=_power(half), num_warps=4,
        )  # fmt: skip

    def _product(
        self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None, *,
        add: bool = False,
    ) -> None:  # fmt: skip
        """`out = x weight^T + bias`, or `out += x weight^T` with `add`."""
        if self.fixed:
            columns, inner = weight.shape
            fixed_product[(-(-columns // 128), -(-len(x) // 64))](
                x, weight, out, len(x), COLUMNS=columns, INNER=inner, BLOCK_M=64, BLOCK_N=128,
                BLOCK_K=32 if self._ieee else 64, IEEE=self._ieee, ADD=add, num_warps=4,
                num_stages=2 if self._ieee else 4,
            )  # fmt: skip
            if bias is not None:
                out += bias
        elif add:
            out.addmm_(x, weight.t())
        elif out.dtype != x.dtype and x.is_cuda:
            torch.mm(x, weight.t(), out_dtype=out.dtype, out=out)
        elif out.dtype != x.dtype:
            out.copy_(x.to(out.dtype) @ weight.t().to(out.dtype))
        elif bias is not None:
            torch.addmm(bias, x, weight.t(), out=out)
        else:
            torch.mm(x, weight.t(), out=out)
