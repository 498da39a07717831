"""Which model serves which family."""

from __future__ import annotations

from collections.abc import Callable

from lmc.errors import ModelError
from lmc.runtime.models.base import Model
from lmc.runtime.models.llama import Llama

__all__ = ["FAMILIES", "model_class"]

FAMILIES: dict[str, Callable[..., Model]] = {
    "llama": Llama,
    "mistral": Llama,
    "qwen2": Llama,
    "qwen3": Llama,
}


def model_class(family: str) -> Callable[..., Model]:
    """The class of a family's models.

    Raises:
        ModelError: there is none.
    """
    if family not in FAMILIES:
        raise ModelError(
            f"models of the family {family!r} are not supported",
            hint=f"supported are {', '.join(FAMILIES)}",
        )
    return FAMILIES[family]
