"""A step that is put together: its segments, and the slots of their tokens.

Owns        what is in the step so far, until it is given.
Promises    nothing that the cache holds is computed again.
Costs       O(tokens) copies and a call of the memory for each prompt, one for all that decode.
Not here    whose tokens are placed, and how many (`composing`, `admission`).

Sharing inside a step. The prompt tokens of a step are put into the cache when the step is put
together, not when it is done. So of two requests that begin alike, the second finds the first's
slots even in the same step (the runner stores all new KV entries before any attention), and
nothing is computed twice. If the step fails, they are taken out again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lmc.runtime.flights import Part
from lmc.runtime.job import Job
from lmc.runtime.queues import Queues
from lmc.runtime.request import IntArray, Segment, Step

__all__ = ["Draft"]


class Draft:
    """A step that is put together.

    Attributes:
        parts: who takes part in it.
        slack: tokens beyond a budget that may complete a prompt.
    """

    __slots__ = ("_after", "_memory", "_queues", "_repeats", "_segments", "parts", "slack")

    def __init__(self, queues: Queues) -> None:
        """Args: queues: of those that take part."""
        self.parts: list[Part] = []
        self.slack = 0
        self._queues = queues
        self._memory = queues.memory
        self._segments: list[Segment] = []
        self._repeats = 1
        self._after: tuple[int, ...] = ()  # of the first segments, as in `Step.after`

    def __bool__(self) -> bool:
        """Whether anything is in it."""
        return bool(self._segments)

    def step(self) -> Step:
        """What has been put together."""
        after = self._after
        if after:
            after += (-1,) * (len(self._segments) - len(after))
        return Step(tuple(self._segments), self._repeats, after)

    def place_riding(self, riding: list[Part], left: int, repeats: int) -> None:
        """Place, first in the step, those that go on from a token that is not known yet.

        Args:
            left: how many draws beyond what is known that token is.
            repeats: how often the step is repeated; 1 is once.
        """
        self._repeats = repeats
        slots = self._memory.take(repeats * len(riding))
        unknown = np.zeros(1, np.int32)
        for nth, part in enumerate(riding):
            sequence = part.job.sequence
            start = sequence.placed
            sequence.place(slots[nth * repeats : (nth + 1) * repeats])
            segment = part.work.last_segment(
                unknown, start, sequence.slots[: start + repeats], True
            )
            self._segments.append(replace(segment, position=segment.position + left))
            self.parts.append(Part(part.job, part.work, nth, nth + 1, sequence.placed, repeats))
        self._after = tuple(part.last - 1 for part in riding)

    def place_decodes(self, decoding: list[Job], counts: list[int], repeats: int) -> None:
        """Place the newest tokens of those that decode, `counts` of each; `repeats` as above."""
        self._repeats = repeats
        later = repeats - 1
        slots = self._memory.take(sum(counts) + later * len(decoding))
        at = 0
        for job, count in zip(decoding, counts, strict=True):
            sequence = job.sequence
            start = sequence.placed
            sequence.place(slots[at : at + count + later])
            at += count + later
            end = start + count
            tokens, context = sequence.tokens[start:end], sequence.slots[: end + later]
            if end == sequence.total:
                segment = job.need_work().last_segment(tokens, start, context, True)
            else:
                segment = Segment(tokens, start, context, True)
            self._segments.append(segment)
            last = len(self._segments)
            self.parts.append(Part(job, job.need_work(), last - 1, last, sequence.placed))

    def place_prompt(self, job: Job, budget: int) -> int:
        """Place as many of the job's tokens as budget and memory allow; how many.

        It ends if it can not go on, or if all of them were cached and nothing is asked about them.
        """
        if budget <= 0:
            return 0
        sequence, work = job.sequence, job.need_work()
        start = sequence.placed
        if self._memory.catch_up(sequence, job.match_limit()):
            self._queues.count_cached(job, start)
        wanted = job.unplaced()
        if not wanted:
            self._queues.complete(job)
            return 0
        count = min(wanted, self._memory.available)
        if count > budget + self.slack:
            count = budget
        self.slack -= max(count - budget, 0)
        start = sequence.placed
        end = min(start + count, sequence.total)
        if count <= 0 or (end == sequence.total and not self._queues.prepared(job)):
            return 0
        slots = self._memory.take(count)
        first = len(self._segments)
        if end > start:
            self._place_keys(job, slots[: end - start])
        if count > end - start:
            self._segments += work.place_branches(sequence, slots[end - start :])
        self.parts.append(Part(job, work, first, len(self._segments), sequence.placed))
        return count

    def _place_keys(self, job: Job, slots: IntArray) -> None:
        """Place the next tokens of a prompt; those that a model made are segments of their own."""
        sequence = job.sequence
        start, end = sequence.placed, sequence.placed + len(slots)
        self._memory.place_prompt(sequence, slots)
        for low, high, made in sequence.runs(start, end):
            tokens, context = sequence.tokens[low:high], sequence.slots[:high]
            if high == sequence.total:
                segment = job.need_work().last_segment(tokens, low, context, made)
            else:
                segment = Segment(tokens, low, context, made)
            self._segments.append(segment)
