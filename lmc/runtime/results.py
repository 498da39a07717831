"""What rows give: variables, text, and what is known about each model call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmc.errors import LmcError
from lmc.runtime.request import GenResult, Timings, TopTokens

if TYPE_CHECKING:
    from lmc.params import GenParams
    from lmc.runtime.context import Context

__all__ = ["CallMeta", "KnownCall", "MadePart", "RowResult"]


@dataclass(frozen=True, slots=True)
class CallMeta:
    """Facts about one model call.

    Attributes:
        finish_reason: "stop", "eos", "length", "constraint" or "cancelled"; "select" for selects
            and "score" for scores.
        matched_stop: the stop string or pattern, or the stop token, that ended it; or None.
        token_ids: the tokens that were made (of a select: of the choice taken; of a score: of
            its text).
        prompt_tokens, cached_tokens: of the prompt, and how many of them the cache held.
        completion_tokens: tokens made; `forced_tokens` of them without asking the model.
        logprobs: of these tokens, in nats: the log softmax of the model's own logits, before
            penalties, biases, temperature, filters and masks; NaN for forced ones, unless the gen
            asked for all.
        scored: whether the gen asked for log-probabilities.
        top_logprobs: per token, if asked for, the most likely ones: (token id, log-probability).
        timings: in seconds after the call was submitted.
        method: of a select.
        scores: per choice of a select, its score by the method; the greatest one wins.
        choice_logprobs: per choice of a select, the log-probabilities of its tokens.
        unconditional_logprobs: the same after the empty prompt, for unconditional_normalized.
        parts: of a template, what each of its gens wrote.
        type: what a gen's text is read back as, as in `lmc.typed`; or None.
    """

    finish_reason: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    matched_stop: str | int | None = None
    forced_tokens: int = 0
    logprobs: tuple[float, ...] = ()
    scored: bool = False
    top_logprobs: tuple[TopTokens, ...] = ()
    timings: Timings = field(default_factory=Timings, compare=False)
    method: str | None = None
    scores: dict[str, float] | None = None
    choice_logprobs: dict[str, tuple[float, ...]] | None = None
    unconditional_logprobs: dict[str, tuple[float, ...]] | None = None
    parts: tuple[MadePart, ...] = ()
    type: str | None = None

    @property
    def completion_tokens(self) -> int:
        """How many tokens were made."""
        return len(self.token_ids)

    @staticmethod
    def of_gen(result: GenResult, params: GenParams | None = None) -> CallMeta:
        """The facts about a gen with these parameters."""
        return CallMeta(
            finish_reason=str(result.finish),
            token_ids=tuple(result.tokens),
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            matched_stop=result.stop,
            forced_tokens=result.forced_tokens,
            logprobs=tuple(result.logprobs),
            scored=params is not None and params.scored,
            top_logprobs=tuple(result.top_logprobs),
            timings=result.timings,
            type=None if params is None else params.type,
        )


@dataclass(frozen=True, slots=True)
class MadePart:
    """What one gen of a template wrote, and the facts about it.

    Its tokens are those that spell a part of it; one that runs over a seam belongs to both sides.
    """

    text: str
    meta: CallMeta


@dataclass(frozen=True, slots=True)
class KnownCall:
    """The result of a model call that a resumed program has made already."""

    state: Context
    value: Any
    meta: CallMeta | None


@dataclass(slots=True)
class RowResult:
    """What a row gave: variables by name, their meta, the final text, the function's value."""

    variables: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    value: Any = None
    error: LmcError | None = None
