"""What the runner asks of a model, and which model serves which family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from lmc.errors import ModelError
from lmc.runtime.request import IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.attention.base import AttentionBackend, Batch

__all__ = ["KVTensors", "Model", "take_weight"]

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
