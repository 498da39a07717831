"""What each kind of request wants of the model, and what it makes of the answers.

`GenWork`, `ScoreWork` and `PrefillWork` know neither queues nor memory: the scheduler computes a
request's tokens and calls `take`. All three have the methods of `Work`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from lmc.errors import UsageError
from lmc.params import TEMPERATURES, TOP_K
from lmc.runtime.gen_work import GenWork, Vocabulary
from lmc.runtime.request import (
    GenRequest,
    GenResult,
    IntArray,
    PrefillRequest,
    Request,
    Sampling,
    ScoreRequest,
    ScoreResult,
    Segment,
    TopTokens,
)
from lmc.runtime.score_work import ScoreWork
from lmc.runtime.sequence import TokenSequence

__all__ = ["GenWork", "PrefillWork", "Result", "ScoreWork", "Vocabulary", "Work", "work_of"]

Result = GenResult | ScoreResult | None


class Work(Protocol):
    """The part of a request that is not the same for all.

    Attributes:
        finished: nothing more is wanted; `result` may be called.
        computes_last: whether the last token must be computed even if it is cached, because
            something is asked about what follows it.
        branches: tokens to compute beside the sequence, after it, that have no slot yet.
    """

    @property
    def finished(self) -> bool: ...
    @property
    def computes_last(self) -> bool: ...
    @property
    def branches(self) -> int: ...

    def to_make(self) -> int:
        """Most tokens that may still be appended to the sequence."""

    def prepare(self) -> None:
        """Work out what `last_segment` needs; raises LmcError if that fails."""

    def last_segment(self, tokens: IntArray, start: int, slots: IntArray, made: bool) -> Segment:
        """The segment that ends with the last known token of the sequence."""

    def place_branches(self, sequence: TokenSequence, slots: IntArray) -> list[Segment]:
        """Segments for the next `len(slots)` branch tokens."""

    def take(
        self,
        segment: Segment,
        token: int,
        logprob: float,
        scores: tuple[tuple[float, ...], ...],
        top: TopTokens = (),
    ) -> list[int]:
        """Take what came of a segment that this made; the tokens to append to the sequence."""

    def retract(self) -> IntArray:
        """Forget the branches computed so far; their slots."""

    def kept(self) -> int:
        """How many made tokens belong to the state."""

    def result(self, cached_tokens: int) -> Result:
        """What the caller gets."""


class PrefillWork:
    """Wants the prompt computed, and that is all."""

    computes_last = False
    branches = 0

    def __init__(self) -> None:
        self.finished = False
        self._last: Segment | None = None

    def to_make(self) -> int:
        return 0

    def prepare(self) -> None:
        pass

    def last_segment(self, tokens: IntArray, start: int, slots: IntArray, made: bool) -> Segment:
        self._last = Segment(tokens, start, slots, made)
        return self._last

    def place_branches(self, sequence: TokenSequence, slots: IntArray) -> list[Segment]:
        del sequence, slots
        return []

    def take(
        self,
        segment: Segment,
        token: int,
        logprob: float,
        scores: tuple[tuple[float, ...], ...],
        top: TopTokens = (),
    ) -> list[int]:
        del token, logprob, scores, top
        self.finished = segment is self._last
        return []

    def retract(self) -> IntArray:
        return np.empty(0, np.int32)

    def kept(self) -> int:
        return 0

    def result(self, cached_tokens: int) -> None:
        del cached_tokens


def work_of(
    request: Request, vocabulary: Vocabulary, limit: int, *, tables: bool = False
) -> GenWork | ScoreWork | PrefillWork:
    """The work of a request; `limit` is the room left in the model's context.

    Args:
        tables: whether the runner follows states of constraints.

    Raises:
        UsageError: the request is malformed.
    """
    if not len(request.keys):
        raise UsageError("a model call needs at least one token of prompt", hint="append some text")
    if int(request.keys.min()) < 0 or int(request.keys.max()) >= 2 * vocabulary.size:
        raise UsageError(f"the prompt holds token ids outside of 0..{vocabulary.size - 1}")
    if isinstance(request, GenRequest):
        _check_sampling(request.sampling)
        for what, ids in (
            ("stop_token_ids", request.params.stop_token_ids),
            ("logit_bias", [token for token, _ in request.bias]),
        ):
            wrong = [token for token in ids if not 0 <= token < vocabulary.size]
            if wrong:
                raise UsageError(
                    f"{what} holds the token id {wrong[0]}",
                    hint=f"the model's tokens are 0 to {vocabulary.size - 1}",
                )
        return GenWork(request, vocabulary, limit, tables=tables)
    if isinstance(request, ScoreRequest):
        if not request.continuations or not all(request.continuations):
            raise UsageError(
                "a continuation to score is empty", hint="give choices of at least one token"
            )
        low = min(map(min, request.continuations))
        high = max(map(max, request.continuations))
        if low < 0 or high >= vocabulary.size:
            raise UsageError(f"a continuation holds token ids outside of 0..{vocabulary.size - 1}")
        return ScoreWork(request)
    if isinstance(request, PrefillRequest):
        return PrefillWork()
    raise UsageError(f"{type(request).__name__} is no request that an engine knows")


def _check_sampling(sampling: Sampling) -> None:
    """Refuse what would fail a whole step when the token is drawn.

    Raises:
        UsageError: a field is of the wrong type or out of its range.
    """
    for name in ("seed", "row", "draw", "top_k"):
        value = getattr(sampling, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(
                f"{name} is {value!r}, must be an integer", hint=f"give {name}= an int"
            )
    low, high = TEMPERATURES
    for name, least, most in (
        ("temperature", 0.0, high), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0),
    ):  # fmt: skip
        value = getattr(sampling, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"{name} is {value!r}, must be a number")
        if not least <= value <= most:
            raise UsageError(f"{name} is {value}, which is out of its range")
    if 0 < sampling.temperature < low or sampling.top_k > TOP_K:
        name = "temperature" if sampling.top_k <= TOP_K else "top_k"
        raise UsageError(f"{name} is {getattr(sampling, name)}, which is out of its range")
