"""A runner that computes nothing: for finding out what a run would cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lmc.runtime.limits import Limits
from lmc.runtime.request import MaskArray, Outcome, Sampling, Segment, Step

__all__ = ["DryRunner"]

_WORD = re.compile(rb" [a-z]{2,}")


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
        words = [n for n, raw in enumerate(token_bytes) if raw and _WORD.fullmatch(raw)]
        self._words = words or [n for n in range(limits.vocab_size) if n not in eos_ids]
        self._sizes = np.array([len(raw or b"") for raw in token_bytes], np.int64)

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
        allowed = np.setdiff1d(np.flatnonzero(mask), np.array(banned, np.int64))
        ends = np.intersect1d(allowed, self._ends)
        texts = np.setdiff1d(allowed, ends)
        if len(ends) and (not self._longest or not len(texts)):
            return int(ends[0])
        sizes = self._sizes[texts]
        best = texts[sizes == (sizes.min() if self._longest else sizes.max())]
        return int(best[place % len(best)])
