"""A runner without a model: deterministic, no torch. For tests, examples and `--model fake`.

Every KV slot holds a number that depends on the token, its position, its `made` flag and the
numbers of all positions before it, read through the slots of its segment. The logits of a row
depend on the same. So whatever the bookkeeping gets wrong (a stale slot, a wrong order, a lost
flag) changes what is generated, and everything else (batch, chunks, cache) does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lmc.constraints.token_classes import TokenState
from lmc.errors import InternalError
from lmc.runtime.request import MaskArray, Outcome, Sampling, Segment, Step, TopTokens

__all__ = ["CONTEXT", "FakeRunner"]

CONTEXT = 4096  # positions, where no other number is wanted

_Words = npt.NDArray[np.uint64]
_Logits = npt.NDArray[np.float64]

_WORD = 2**64 - 1
_OFFSETS = 1 << 15  # rows of a fake distribution table: two are added, so 2**30 distributions
_END_EVERY = 24  # contexts of which one ends the text, on average
_END_LOGIT = 30.0  # above anything else


def _mix(word: int) -> int:
    """A well mixed 64-bit word: the finalizer of SplitMix64 (Steele et al., OOPSLA 2014)."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def _mix_all(words: _Words) -> _Words:
    """`_mix` of every word."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _uniform(words: _Words) -> _Logits:
    """Words as numbers in (0, 1)."""
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


class FakeRunner:
    """Computes steps from hashes.

    Args:
        vocab_size, kv_tokens, context_length: as of a model.
        token_bytes: readable tokens are made likelier; without it all are alike.
        eos_ids: made certain in one context of 24 or so, and unlikely in all others.
    """

    def __init__(
        self,
        vocab_size: int,
        kv_tokens: int,
        context_length: int = CONTEXT,
        token_bytes: Sequence[bytes | None] | None = None,
        eos_ids: frozenset[int] = frozenset(),
        most_repeats: int = 1,
        follows_states: bool = False,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.kv_tokens = kv_tokens
        self.most_repeats = most_repeats
        self.step_positions = 0
        self.follows_states = follows_states
        self.steps = 0
        self._drawn: Sequence[int] = ()  # by the last pass
        self._kv: _Words = np.zeros(kv_tokens, np.uint64)  # 0: never written
        self._weights = _mix_all(np.arange(context_length, dtype=np.uint64)) | np.uint64(1)
        noise = _uniform(_mix_all(np.arange(vocab_size + _OFFSETS, dtype=np.uint64)))
        self._table: _Logits = 4.0 * noise
        self._bias: _Logits = np.array(
            [_readability(raw) for raw in (token_bytes or [])][:vocab_size], np.float64
        )
        self._bias = np.pad(self._bias, (0, vocab_size - len(self._bias)))
        self._ends = np.array(sorted(eos_ids), np.int64)
        self._ids = np.arange(vocab_size, dtype=np.uint64)

    def run(self, step: Step) -> Outcome:
        """Compute one step.

        Raises:
            InternalError: a segment reads a slot that was never written, or is malformed.
        """
        if step.after:
            segments = [
                dataclasses.replace(segment, tokens=np.array([self._drawn[which]], np.int32))
                if which >= 0 else segment
                for segment, which in zip(step.segments, step.after, strict=True)
            ]  # fmt: skip
            step = dataclasses.replace(step, segments=tuple(segments), after=())
        if step.repeats == 1:
            outcome = self._run(step.segments)
            self._drawn = outcome.tokens
            return outcome
        first, *later = self._repeated(step)
        self._drawn = later[-1].tokens
        return dataclasses.replace(first, later=later)

    def _repeated(self, step: Step) -> Iterator[Outcome]:
        """Each pass of a step that is repeated."""
        segments = [
            dataclasses.replace(s, slots=s.slots[: s.start + len(s.tokens)]) for s in step.segments
        ]
        for number in range(1, step.repeats + 1):
            outcome = self._run(segments)
            if number > 1:
                forced = map(_forced, segments, outcome.tokens)
                outcome = dataclasses.replace(outcome, tokens=tuple(forced))
            yield outcome
            segments = [
                dataclasses.replace(
                    segment,
                    tokens=np.array([token], np.int32),
                    start=segment.start + len(segment.tokens),
                    slots=whole.slots[: segment.start + len(segment.tokens) + 1],
                    position=segment.position + 1,
                    state=_after(segment.state, token),
                )
                for segment, whole, token in zip(
                    segments, step.segments, outcome.tokens, strict=True
                )
                if number < step.repeats
            ]

    def _run(self, segments: Sequence[Segment]) -> Outcome:
        """One pass."""
        self.steps += 1
        tokens: list[int] = []
        logprobs: list[float] = []
        scores: list[tuple[tuple[float, ...], ...]] = []
        tops: list[TopTokens] = []
        for segment in segments:
            contexts = self._write(segment)
            token, logprob = -1, 0.0
            tops.append(())
            if segment.sample is not None:
                logits = self.logits(contexts[-1])
                token = _draw(logits, segment.sample, segment, self._ids)
                own = _log_softmax(logits)
                logprob = float(own[token])
                if segment.top:
                    best = np.argsort(-own, kind="stable")[: segment.top]
                    tops[-1] = tuple((int(t), float(own[t])) for t in best)
            tokens.append(token)
            logprobs.append(logprob)
            scores.append(
                tuple(
                    self._scores(context, targets)
                    for context, targets in zip(contexts, segment.targets, strict=False)
                )
            )
        return Outcome(
            tuple(tokens), tuple(logprobs), tuple(scores), tuple(tops) if any(tops) else ()
        )

    def close(self) -> None:
        """Nothing to free."""

    def _write(self, segment: Segment) -> list[int]:
        """Write the segment's KV entries; what each of its rows knows of its context."""
        start, count = segment.start, len(segment.tokens)
        if len(segment.slots) != start + count or not count:
            raise InternalError(
                f"a segment of {count} tokens at {start} has {len(segment.slots)} slots"
            )
        before = self._kv[segment.slots[:start]]
        if not before.all():
            raise InternalError("a segment reads a KV slot that nothing was written to")
        known = int((before * self._weights[:start]).sum(dtype=np.uint64))
        contexts: list[int] = []
        places = segment.slots[start:].tolist()
        weights = self._weights[start : start + count].tolist()
        made = int(segment.made)
        for token, slot, weight in zip(segment.tokens.tolist(), places, weights, strict=True):
            entry = _mix(_mix(2 * token + made) ^ known ^ weight) or 1
            self._kv[slot] = entry
            known = (known + entry * weight) & _WORD
            contexts.append(known)
        return contexts

    def logits(self, context: int) -> _Logits:
        """The distribution after a context, shape (vocabulary,)."""
        word = _mix(context)
        first, second = word % _OFFSETS, (word >> 20) % _OFFSETS
        size = self.vocab_size
        logits = self._table[first : first + size] + self._table[second : second + size]
        logits += self._bias
        if len(self._ends):
            logits[self._ends] = -_END_LOGIT
            if (word >> 40) % _END_EVERY == 0:
                logits[self._ends[(word >> 50) % len(self._ends)]] = _END_LOGIT
        return logits

    def _scores(self, context: int, targets: tuple[int, ...]) -> tuple[float, ...]:
        if not targets:
            return ()
        logprobs = _log_softmax(self.logits(context))
        return tuple(float(logprobs[target]) for target in targets)


def _forced(segment: Segment, token: int) -> int:
    """What a repeat gives in place of the token that was drawn."""
    state = segment.state
    forced = -1 if state is None else int(state.classes.forced[state.number])
    return token if forced < 0 else forced


def _after(state: TokenState | None, token: int) -> TokenState | None:
    """The state after a token; None if the tables do not have it."""
    if state is None:
        return None
    number = state.classes.step(state.number, token)
    return None if number < 0 else TokenState(state.classes, number)


def _readability(raw: bytes | None) -> float:
    """How much likelier a token is for being readable."""
    if not raw:
        return -8.0
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return -4.0
    if not text.isprintable() or not text.isascii():
        return -3.0
    word = text[1:] if text[0] == " " else text
    return 1.5 if word.isalpha() and word[1:].islower() else 0.0


def _log_softmax(logits: _Logits) -> _Logits:
    top = logits.max()
    total: np.float64 = np.exp(logits - top).sum()
    return np.asarray(logits - (top + np.log(total)))


def _draw(logits: _Logits, sampling: Sampling, segment: Segment, ids: _Words) -> int:
    """A token: the most likely one, or by the Gumbel-max trick with counter-based noise."""
    allowed: MaskArray = np.ones(len(logits), np.bool_) if segment.mask is None else segment.mask
    if segment.state is not None:
        allowed = segment.state.classes.mask(segment.state.number)
    if segment.banned:
        allowed = allowed.copy()
        allowed[list(segment.banned)] = False
    if segment.adjustment is not None:
        logits = segment.adjustment.apply(logits)
    logits = np.where(allowed, logits, -np.inf)
    if sampling.temperature == 0:
        return int(logits.argmax())
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        allowed = logits >= logits.max() + np.log(sampling.min_p)
    kept = np.flatnonzero(allowed)
    if sampling.top_k > 0 or sampling.top_p < 1:
        kept = kept[np.argsort(-logits[kept], kind="stable")]
        kept = kept[: sampling.top_k] if sampling.top_k > 0 else kept
        mass = np.cumsum(np.exp(_log_softmax(logits[kept])))
        kept = kept[: int((mass < sampling.top_p).sum()) + 1]
    word = 0
    for field in (sampling.seed, sampling.row, sampling.draw, segment.position):
        word = _mix(word ^ (field & _WORD))
    noise = -np.log(-np.log(_uniform(_mix_all(ids[kept] ^ np.uint64(word)))))
    return int(kept[(logits[kept] + noise).argmax()])
