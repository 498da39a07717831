"""What penalties and biases do to the logits of some tokens, before a token is drawn.

In this order: the repetition penalty divides positive logits of tokens that were seen, and
multiplies negative ones (Keskar et al., CTRL, arXiv:1909.05858, as vLLM has it: seen in the prompt
or generated); then the frequency penalty, times how often the token was generated, and the presence
penalty are taken away, and the bias is added (as in OpenAI's interface). All in float32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lmc.params import GenParams

__all__ = ["Adjuster", "Adjustment"]

_ROOM = 16  # tokens that come in before the arrays grow

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
        self, params: GenParams, bias: Collection[tuple[int, float]], prompt: npt.NDArray[np.int64]
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
        self._penalizes = self._factor != 1 or self._frequency != 0 or self._presence != 0
        seen = np.unique(prompt) if self._factor != 1 else np.empty(0, np.int64)
        first = np.union1d(seen, np.array(list(self._bias), np.int64))
        # The first `_count` places count; each token has one.
        self._count = len(first)
        self._ids = np.concatenate((first, np.zeros(_ROOM, np.int64)))
        self._seen = np.isin(self._ids, seen)
        self._added = np.array([self._bias.get(t, 0.0) for t in first.tolist()] + [0.0] * _ROOM)
        self._place = {token: place for place, token in enumerate(first.tolist())}
        self._made: dict[int, int] = {}

    @staticmethod
    def wanted(params: GenParams, bias: Collection[tuple[int, float]]) -> bool:
        """Whether these parameters and this bias ever change anything."""
        penalties = params.frequency_penalty or params.presence_penalty
        return bool(penalties or bias) or params.repetition_penalty != 1

    def add(self, token: int) -> None:
        """A token was made."""
        if not self._penalizes:
            return
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = self._count
            if place == len(self._ids):
                self._ids, self._seen, self._added = (
                    np.concatenate((held, np.zeros_like(held)))
                    for held in (self._ids, self._seen, self._added)
                )
            self._ids[place] = token
            self._count += 1
        times = self._made[token] = self._made.get(token, 0) + 1
        self._seen[place] = True
        penalty = self._frequency * times + self._presence
        self._added[place] = self._bias.get(token, 0.0) - penalty

    def current(self) -> Adjustment | None:
        """What is to be changed before the next token is drawn."""
        count = self._count
        if not count:
            return None
        return Adjustment(
            self._ids[:count].copy(),
            self._factor,
            self._seen[:count].copy(),
            self._added[:count].astype(np.float32),
        )
