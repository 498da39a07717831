"""What penalties and biases do to the logits of some tokens, before a token is drawn.

In this order: the repetition penalty divides positive logits of tokens that were seen, and
multiplies negative ones (Keskar et al., CTRL, arXiv:1909.05858, as vLLM has it: seen in the prompt
or generated); then the frequency penalty, times how often the token was generated, and the presence
penalty are taken away, and the bias is added (as in OpenAI's interface). All in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lmc.params import GenParams

__all__ = ["Adjuster", "Adjustment"]

Float = TypeVar("Float", bound=np.floating[Any])


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Changes of the logits of some tokens.

    Attributes:
        ids: int64, shape (n,): the tokens, each once.
        factor: the repetition penalty.
        seen: bool, shape (n,): the tokens that it applies to.
        added: float32, shape (n,): what is added afterwards.
    """

    ids: npt.NDArray[np.int64]
    factor: float
    seen: npt.NDArray[np.bool_]
    added: npt.NDArray[np.float32]

    def apply(self, logits: npt.NDArray[Float]) -> npt.NDArray[Float]:
        """A changed copy of logits, float, shape (vocabulary,)."""
        changed = logits.copy()
        some = changed[self.ids]
        factor = np.float32(self.factor)
        scaled = np.where(some > 0, some / factor, some * factor)
        changed[self.ids] = np.where(self.seen, scaled, some) + self.added
        return changed


class Adjuster:
    """The adjustment of one gen, which changes with each token that it makes."""

    def __init__(
        self, params: GenParams, bias: Iterable[tuple[int, float]], prompt: npt.NDArray[np.int64]
    ) -> None:
        """Args:
        params: with the penalties.
        bias: token ids and what is added to their logits.
        prompt: token ids.
        """
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._factor = params.repetition_penalty
        self._bias = dict(bias)
        self._prompt = np.unique(prompt).tolist() if self._factor != 1 else []
        self._counts: dict[int, int] = {}
        self._penalizes = self._factor != 1 or self._frequency != 0 or self._presence != 0

    @property
    def active(self) -> bool:
        """Whether it ever changes anything."""
        return self._penalizes or bool(self._bias)

    def add(self, token: int) -> None:
        """A token was made."""
        self._counts[token] = self._counts.get(token, 0) + 1

    def current(self) -> Adjustment | None:
        """What is to be changed before the next token is drawn."""
        counts = self._counts if self._penalizes else {}
        ids = list(dict.fromkeys([*self._prompt, *counts, *self._bias]))
        if not ids:
            return None
        seen = {*self._prompt, *counts}
        added = [
            self._bias.get(t, 0.0)
            - (self._frequency * counts[t] + self._presence if t in counts else 0.0)
            for t in ids
        ]
        return Adjustment(
            np.array(ids, np.int64),
            self._factor,
            np.array([t in seen for t in ids], np.bool_),
            np.array(added, np.float32),
        )
