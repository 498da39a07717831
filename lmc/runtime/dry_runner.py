"""A runner that computes nothing: for finding out what a run would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lmc.runtime.limits import Limits
from lmc.runtime.request import IntArray, MaskArray, Outcome, Sampling, Segment, Step

__all__ = ["DryRunner"]

_SPACE = ord(" ")
_MOST_MASKS = 4096  # that are known at a time, of a bit a token


def _is_word(raw: bytes) -> bool:
    """Whether a token is a space and two small letters or more."""
    return raw[0] == _SPACE and len(raw) > 2 and raw[1:].isalpha() and raw.islower()


class DryRunner:
    """Answers every step at once, with tokens that depend on their place and draw alone.

    Args:
        limits: of the engine that is stood in for.
        token_bytes, eos_ids: of its tokenizer.
        longest: texts go on as long as they may; else they end as soon as they may.
    """

    def __init__(
        self,
        limits: Limits,
        token_bytes: Sequence[bytes | None],
        eos_ids: frozenset[int],
        *,
        longest: bool,
    ) -> None:
        self.vocab_size = limits.vocab_size
        self.kv_tokens = limits.kv_tokens
        self.context_length = limits.context_length
        self.most_repeats = limits.most_repeats
        self.step_positions = limits.step_positions
        self.follows_states = False
        self._longest = longest
        self._ends = sorted(eos_ids)
        words = [n for n, raw in enumerate(token_bytes) if raw and _is_word(raw)]
        self._words = words or [n for n in range(limits.vocab_size) if n not in eos_ids]
        self._best: dict[tuple[bytes, tuple[int, ...]], IntArray] = {}
        self._sizes = np.fromiter((len(raw or b"") for raw in token_bytes), np.int64)

    def run(self, step: Step) -> Outcome:
        """Answer a step."""
        first = self._outcome(step, 0)
        return replace(first, later=self._later(step)) if step.repeats > 1 else first

    def _later(self, step: Step) -> Iterator[Outcome]:
        for ahead in range(1, step.repeats):
            yield self._outcome(step, ahead)

    def _outcome(self, step: Step, ahead: int) -> Outcome:
        tokens = tuple(
            [-1 if s.sample is None else self._token(s, s.sample, ahead) for s in step.segments]
        )
        scores = tuple(
            [
                tuple([(0.0,) * len(t) for t in s.targets]) if s.targets else ()
                for s in step.segments
            ]
        )
        return Outcome(tokens, (0.0,) * len(tokens), scores)

    def close(self) -> None:
        """Nothing to free."""

    def _token(self, segment: Segment, sampling: Sampling, ahead: int) -> int:
        place = segment.start + len(segment.tokens) + ahead
        if segment.mask is not None:
            return self._allowed(segment.mask, segment.banned, place)
        if not self._longest:
            for end in self._ends:
                if end not in segment.banned:
                    return end
        if sampling.temperature:  # other draws from one prompt are other texts
            place = hash((sampling.seed, sampling.row, sampling.draw, place))
        for more in range(len(self._words)):
            token = self._words[(place + more) % len(self._words)]
            if token not in segment.banned:
                return token
        return self._words[0]

    def _allowed(self, mask: MaskArray, banned: tuple[int, ...], place: int) -> int:
        """A token that a mask allows."""
        key = np.packbits(mask).tobytes(), banned
        best = self._best.get(key)
        if best is None:
            if len(self._best) >= _MOST_MASKS:
                self._best.clear()
            best = self._best[key] = self._best_of(mask, banned)
        return int(best[place % len(best)])

    def _best_of(self, mask: MaskArray, banned: tuple[int, ...]) -> IntArray:
        """The tokens that a mask allows and that keep a text as long, or as short, as they can."""
        left = mask.astype(bool)
        left[list(banned)] = False
        ends = [end for end in self._ends if left[end]]
        left[ends] = False
        texts = np.flatnonzero(left)
        if ends and (not self._longest or not len(texts)):
            return np.array(ends[:1])
        sizes = self._sizes[texts]
        best: IntArray = texts[sizes == (sizes.min() if self._longest else sizes.max())]
        return best
