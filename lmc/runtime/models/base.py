"""What the runner asks of a model, and which model serves which family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from lmc.errors import ModelError
from lmc.runtime.request import IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.attention.base import AttentionBackend, Batch
    from lmc.runtime.config import ModelConfig
    from lmc.runtime.tensor_parallel.group import Group

__all__ = ["KVTensors", "Model", "head_weight", "take_weight"]

KVTensors = list[tuple["Tensor", "Tensor"]]  # keys and values of each layer


class Model(Protocol):
    """The tensors of a decoder, and its forward pass."""

    def forward(self, batch: Batch, kv: KVTensors, attention: AttentionBackend) -> None:
        """Compute the rows of a batch and store their keys and values."""

    def logits(self, rows: IntArray) -> Tensor:
        """Scores of all next tokens after some rows of the last batch.

        Returns float32 on the CPU, (rows, vocab_size), valid until the next call.
        """


def take_weight(weights: Mapping[str, Tensor], name: str, *shape: int) -> Tensor:
    """A weight by its Hugging Face name, checked.

    Raises:
        ModelError: there is none, or it has another shape.
    """
    try:
        weight = weights[name]
    except KeyError:
        raise ModelError(
            f"the model has no weight {name!r}",
            hint="the file may be incomplete, or of a family that is not supported",
        ) from None
    if tuple(weight.shape) != shape:
        raise ModelError(
            f"weight {name!r} has shape {tuple(weight.shape)}, expected {shape}",
            hint="the weights do not fit the configuration",
        )
    return weight


def head_weight(
    weights: Mapping[str, Tensor], config: ModelConfig, table: Tensor, group: Group | None
) -> Tensor:
    """The output matrix, (tokens, hidden): `table`, the embedding, if they are tied.

    Of one part of a model, a run of tokens, with zeros up to the length of the longest run.

    Raises:
        ModelError: see `take_weight`.
    """
    import torch

    name, hidden = "lm_head.weight", config.hidden_size
    if group is None:
        return table if config.tied else take_weight(weights, name, config.vocab_size, hidden)
    run, most = group.shard.vocabulary(config.vocab_size)
    tokens = run.stop - run.start
    head = table[run] if config.tied else take_weight(weights, name, tokens, hidden)
    return torch.nn.functional.pad(head, (0, 0, 0, most - tokens))
