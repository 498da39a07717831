"""What the parts of the runtime say to each other. Plain data, no tensors.

    executor --Request--> engine/scheduler --Step--> model runner --Outcome--> scheduler --Result-->

Token keys
    Inside the runtime a sequence is an int64 array of *keys*, `2 * token + made`, where `made` is 1
    for tokens that a model call made (generated, forced, selected) and 0 for tokens of a span. A
    runner may compute the two kinds with different kernels, so that the KV entry of a position is
    a function of the keys up to it and of nothing else: neither of the batch, nor of how a prompt
    was cut into chunks, nor of what was cached. The radix cache stores keys.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lmc.constraints.automaton import Automaton
from lmc.constraints.token_classes import TokenState
from lmc.params import GenParams
from lmc.runtime.adjustment import Adjustment

__all__ = [
    "AHEAD",
    "Constraint",
    "Finish",
    "Flight",
    "GenRequest",
    "GenResult",
    "IntArray",
    "KeyArray",
    "MaskArray",
    "Outcome",
    "PrefillRequest",
    "Request",
    "Runner",
    "Sampling",
    "ScoreRequest",
    "ScoreResult",
    "Segment",
    "Step",
    "Timings",
    "TopTokens",
    "keys_of",
    "tokens_of",
]

AHEAD = 2**62
"""The first number of a priority behind all others: of what may turn out to be of no use."""

KeyArray = npt.NDArray[np.int64]
IntArray = npt.NDArray[np.int32]
MaskArray = npt.NDArray[np.bool_]

TopTokens = tuple[tuple[int, float], ...]
"""Token ids and their log-probabilities in nats, the most likely first, equals by id."""


def keys_of(tokens: npt.ArrayLike, *, made: bool) -> KeyArray:
    """Token ids as keys."""
    return np.asarray(tokens, dtype=np.int64) * 2 + int(made)


def tokens_of(keys: KeyArray) -> KeyArray:
    """The token ids of keys."""
    return keys >> 1


class Finish(enum.StrEnum):
    """Why a gen ended."""

    STOP = "stop"  # a stop string or pattern
    EOS = "eos"  # an end token of the model
    LENGTH = "length"  # max_tokens, or the end of the model's context
    CONSTRAINT = "constraint"  # matched, and nothing can follow
    CANCELLED = "cancelled"


class Constraint(Protocol):
    """A request's place in its automaton (`lmc.constraints` makes them)."""

    def mask(self) -> MaskArray:
        """Which tokens may come next, shape (vocabulary,); end tokens where matched."""

    def mask_within(self, tokens: int) -> MaskArray:
        """Like `mask`, without tokens after which `tokens` in all are not enough to complete."""

    def shortest_tokens(self, most: int | None = None) -> int:
        """How many tokens the shortest text that completes it from here has.

        Some number above `most` if it is clear without counting that it has more than these.
        """

    def reserve(self, there: int = 0, least: int = 0) -> int:
        """How many tokens the shortest end may take after whatever comes next, or more.

        With more left, `mask_within` is `mask`. At least `least` where that is not sure.
        `there` is how many are left: where it is plenty, nothing exact is asked for.
        """

    def want_states(self) -> None:
        """Say that `state` would be of use."""

    def state(self) -> TokenState | None:
        """Where it stands in tables that say what `mask` does; None while it has none there."""

    def advance(self, token: int) -> None:
        """Take an allowed token; raises ValueError for any other."""

    def forced(self) -> list[int]:
        """Tokens that must come next, by the tokenizer's own segmentation; may be empty."""

    def remaining(self, most: int) -> str | None:
        """The only text that can follow, if nothing can come after it.

        None if there are more, or if it has more than `most` bytes.
        """

    def is_complete(self) -> bool:
        """Whether the text so far matches: the end token is allowed."""

    def is_finished(self) -> bool:
        """Whether the text so far matches and nothing can follow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw one token. The random numbers depend on these fields and `position` alone."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    row: int = 0
    draw: int = 0


@dataclass(slots=True)
class Request:
    """Something to be computed after a prompt. Subclasses say what.

    Attributes:
        keys: the prompt, int64 keys, at least one.
        priority: requests with a smaller one run first; ties go to the longer cached prefix.
        arrival: set by the engine, in order of submission.
    """

    keys: KeyArray
    priority: tuple[int, ...] = ()


@dataclass(slots=True)
class GenRequest(Request):
    """Generate after the prompt.

    Attributes:
        stop_automata: those of `params.stop_regex`.
        bias: `params.logit_bias`, by token ids.
        closing: the end of what the constraint matches, fixed text. Where nothing but an end of it
            can follow, the gen is complete: that end is not generated, and becomes a part of `rest`
            in the result.
        extra_tokens: more than `params.max_tokens`, for what is known of the text.
        closing_tokens: of the closing text; they are not generated, but ending in time reckons with
            them.
        follow: called with the result when the gen has ended by itself; gives what goes on from its
            tokens in the same place, or None. Only the result of the last request is handed over.
    """

    params: GenParams = field(default_factory=GenParams)
    sampling: Sampling = field(default_factory=Sampling)
    constraint: Constraint | None = None
    stop_automata: tuple[Automaton, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    closing: str = ""
    extra_tokens: int = 0
    closing_tokens: int = 0
    follow: Callable[[GenResult], GenRequest | None] | None = None


@dataclass(slots=True)
class ScoreRequest(Request):
    """Log-probabilities of several continuations of one prompt, each a list of token ids.

    Attributes:
        continuations: of at least one token each.
        top: how many of the most likely tokens are wanted at each place.
    """

    continuations: list[list[int]] = field(default_factory=list)
    top: int = 0


@dataclass(slots=True)
class PrefillRequest(Request):
    """Only put the prompt's KV into the cache.

    One whose priority begins with `AHEAD` may turn out to be of no use: it waits for all others,
    however often they overtake it.
    """


@dataclass(frozen=True, slots=True)
class Timings:
    """When things happened, in seconds after the request was submitted; None if never.

    Attributes:
        started: its first tokens were scheduled.
        first_token: its first token was made.
        finished: it ended.
    """

    started: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(slots=True)
class GenResult:
    """What a gen gave.

    Attributes:
        tokens: all tokens that were made, the end token left out.
        kept: how many leading tokens belong to the state; the rest was cut at a stop.
        text: what the variable holds.
        rest: the part of `text` after the kept tokens; it begins the next span.
        finish: why it ended.
        stop: the stop string or pattern, or the stop token, that ended it; or None.
        logprobs: of each token of `tokens`, in nats; NaN for forced ones, unless all were wanted.
        top_logprobs: per token, the ids and log-probabilities of the most likely ones, if wanted.
        cached_tokens, prompt_tokens, forced_tokens: counts of this request.
        timings: of this request.
    """

    tokens: list[int]
    kept: int
    text: str
    rest: str
    finish: Finish
    stop: str | int | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopTokens] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    forced_tokens: int = 0
    timings: Timings = field(default_factory=Timings, compare=False)


@dataclass(slots=True)
class ScoreResult:
    """Log-probabilities, in nats, of each token of each continuation.

    With `ScoreRequest.top`, `tops` has the most likely tokens in the place of each.
    """

    logprobs: list[list[float]]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tops: list[list[TopTokens]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence to compute in a step.

    Attributes:
        tokens: int32, shape (n,), n at least 1.
        start: position of the first of them.
        slots: int32, shape (start + n,): the KV slot of every position up to the last; the last n
            are written in this step, the others hold the context. In a step that is repeated, the
            slots of the tokens drawn meanwhile follow: `repeats - 1` more. Contexts may lie in
            segments of the same step: a runner stores the new keys and values of all segments
            before any attention of the layer.
        made: whether these are tokens that a model call made (see the module's text).
        sample: draw the token after the last one, or None.
        position: how many tokens the gen has made so far: the counter of the random draw.
        mask: allowed tokens for that draw, bool (vocabulary,), or None for all.
        state: the same as a state of tables; instead of `mask`, and only for a runner that
            `follows_states`.
        banned: token ids that may not be drawn (`ignore_eos`, `min_tokens`).
        adjustment: changes of the logits before that draw, or None.
        top: how many of the most likely tokens are wanted with it.
        targets: for row i of the segment, token ids whose log-probabilities after that row are
            wanted; empty, or one tuple per row.
    """

    tokens: IntArray
    start: int
    slots: IntArray
    made: bool = False
    sample: Sampling | None = None
    position: int = 0
    mask: MaskArray | None = None
    banned: tuple[int, ...] = ()
    adjustment: Adjustment | None = None
    top: int = 0
    state: TokenState | None = None
    targets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over a flat batch of segments, or several in a row.

    Attributes:
        repeats: how many. Each one after the first computes the tokens that the one before has
            given, at the next positions, and draws the next. All segments then have a sample, and
            nothing else that is wanted. A segment with a `state` moves along its tables: after the
            first pass, a token that they say is forced is given instead of a draw; where they are
            at an end, what is given means nothing, and may be -1. One with a mask keeps it.
        after: empty, or for each segment the one of the step started before this one whose last
            draw is its token; what stands in `Segment.tokens` says nothing then. -1 if its tokens
            are known. One whose token is not has a sample, and no `state`.
    """

    segments: tuple[Segment, ...]
    repeats: int = 1
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gave, one entry per segment.

    Attributes:
        tokens: the sampled token, or -1 where none was asked for.
        logprobs: log-probability of the sampled token, in nats: the log softmax of the model's own
            logits, before adjustments, temperature, filters and masks; 0.0 where none was asked
            for.
        scores: like `Segment.targets`, their log-probabilities.
        tops: the `Segment.top` most likely tokens of the same distribution; left out if no segment
            wanted any.
        later: what the repeats of the step gave, in order; may wait for the device.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    scores: tuple[tuple[tuple[float, ...], ...], ...]
    tops: tuple[TopTokens, ...] = ()
    later: Iterable[Outcome] = field(default=(), compare=False)


class Flight(Protocol):
    """A step that a device computes meanwhile."""

    def ready(self) -> bool:
        """Whether `outcome` would not wait."""

    def outcome(self) -> Outcome:
        """Wait for the step; raises what `Runner.run` would. Called once."""


class Runner(Protocol):
    """Computes steps and decides nothing: the device's side of the engine.

    A runner may have a method `start(step) -> Flight` as well; then other things are done while the
    device computes.
    """

    vocab_size: int
    context_length: int
    kv_tokens: int
    most_repeats: int  # of a step
    step_positions: int  # that take as long as a step does, beside those it has
    follows_states: bool  # of constraints, in place of masks; see `Segment.state` and `Step`

    def run(self, step: Step) -> Outcome:
        """Compute one step."""

    def close(self) -> None:
        """Free the device's memory."""
