"""One step on the device: what its rows want, and what came of them.

Owns        the copies that bring results to the host.
Promises    an outcome is made of what was copied when the device was done with it; who reads it
            waits for that and for nothing else.
Not here    who computes (`runner`), how tokens are drawn (`sampler`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmc.errors import InternalError, RunError
from lmc.runtime.attention.base import Batch
from lmc.runtime.cuda.sampler import Drawn
from lmc.runtime.request import IntArray, Outcome, Segment, Step, TopTokens
from lmc.runtime.sampler import Wish

__all__ = [
    "Answer",
    "DrawnTokens",
    "Pending",
    "Started",
    "Tables",
    "Wanted",
    "greatest",
    "next_batch",
    "to_host",
]

POLL = 2e-5  # seconds between two looks at a device that may wait for another one


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows of a step whose logits are needed.

    Attributes:
        rows: int32, rows of the batch.
        segments: of each, its segment, and its row in that.
        wishes: of each, what is drawn after it.
        positions: of each, the counter of the draw.
        target_rows, target_ids: int32, the pairs of a place in `rows` and a token that are asked
            for, in the order of the segments.
    """

    rows: IntArray
    segments: list[tuple[int, int]]
    wishes: list[Wish | None]
    positions: npt.NDArray[np.int64]
    target_rows: IntArray
    target_ids: IntArray

    @staticmethod
    def of(batch: Batch) -> Wanted:
        segments: list[tuple[int, int]] = []
        wishes: list[Wish | None] = []
        places: list[int] = []
        ids: list[int] = []
        for i, segment in enumerate(batch.segments):
            last = len(segment.tokens) - 1
            for r, targets in enumerate(segment.targets):
                if targets:
                    places += [len(segments)] * len(targets)
                    ids += targets
                    segments.append((i, r))
                    wishes.append(None)
            if segment.sample is not None:
                wish = Wish(
                    segment.sample, segment.position, segment.mask, segment.banned,
                    segment.adjustment, segment.state,
                )  # fmt: skip
                if segments and segments[-1] == (i, last):
                    wishes[-1] = wish
                else:
                    segments.append((i, last))
                    wishes.append(wish)
        rows = np.array([batch.first[i] + r for i, r in segments], np.int32)
        positions = np.array([batch.segments[i].position for i, _ in segments], np.int64)
        return Wanted(
            rows, segments, wishes, positions, np.array(places, np.int32), np.array(ids, np.int32)
        )

    def next(self) -> Wanted:
        """The same segments, a token later; each has one row then."""
        rows = np.arange(len(self.rows), dtype=np.int32)
        return replace(self, rows=rows, positions=self.positions + 1)

    def with_top(self, batch: Batch, low: int, high: int) -> list[tuple[int, int]]:
        """The places from `low` to `high`, less `low`, whose draws want the most likely tokens."""
        return [
            (nth, i)
            for nth, ((i, _), wish) in enumerate(
                zip(self.segments[low:high], self.wishes[low:high], strict=True)
            )
            if wish is not None and batch.segments[i].top
        ]

    def asked(self, low: int, high: int) -> tuple[IntArray, IntArray] | None:
        """The pairs with a place from `low` to `high`."""
        if not len(self.target_rows):
            return None
        first, last = np.searchsorted(self.target_rows, [low, high])
        if first == last:
            return None
        return self.target_rows[first:last], self.target_ids[first:last]


@dataclass(slots=True)
class Answer:
    """Copies on their way to the host: int32 bits of tokens, log-probabilities, normalizers.

    If the device computes with others, `lost` says whether one of them is gone.
    """

    numbers: Tensor
    scores: Tensor | None
    ready: torch.cuda.Event | None
    lost: Callable[[], bool] | None = None

    def wait(self) -> None:
        """Wait for the device.

        Raises:
            RunError: it may wait for another one for ever.
        """
        if self.ready is None:
            return
        if self.lost is None:
            self.ready.synchronize()
            return
        while not self.ready.query():  # type: ignore[no-untyped-call]
            if self.lost():
                raise RunError("another process of the model is gone")
            time.sleep(POLL)


def to_host(
    drawn: list[Drawn],
    scores: list[Tensor],
    device: torch.device,
    lost: Callable[[], bool] | None = None,
) -> Answer:
    """Begin to copy what was drawn and scored; for `lost` see `Answer`."""
    if not drawn:
        nothing = torch.empty(3, 0, dtype=torch.int32)
        return Answer(nothing, None, _event() if device.type == "cuda" else None, lost)
    rows = [
        torch.cat([d.tokens for d in drawn]),
        torch.cat([d.logprobs for d in drawn]).view(torch.int32),
        torch.cat([d.normalizers for d in drawn]).view(torch.int32),
    ]
    numbers = torch.stack(rows)
    asked = torch.cat(scores) if scores else None
    if not numbers.is_cuda:
        return Answer(numbers, asked, None)
    held = torch.empty(numbers.shape, dtype=torch.int32, pin_memory=True)
    held.copy_(numbers, non_blocking=True)
    held_scores = None
    if asked is not None:
        held_scores = torch.empty(asked.shape, dtype=torch.float32, pin_memory=True)
        held_scores.copy_(asked, non_blocking=True)
    return Answer(held, held_scores, _event(), lost)


def _event() -> torch.cuda.Event:
    """Comes when all that is in the device's queue is done."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


@dataclass(slots=True)
class Started:
    """A step that was started; a `Flight`."""

    pending: list[Pending]
    outcomes: Iterator[Outcome]

    def ready(self) -> bool:
        ready = self.pending[0].answer.ready
        return ready is None or bool(ready.query())  # type: ignore[no-untyped-call]

    def outcome(self) -> Outcome:
        first = next(self.outcomes)
        return first if len(self.pending) == 1 else replace(first, later=self.outcomes)


@dataclass(slots=True)
class Pending:
    """A step in the device's queue."""

    batch: Batch
    wanted: Wanted
    answer: Answer
    tops: list[tuple[Tensor, Tensor]]
    repeat: bool = False  # then rows may be where nothing is known to come next

    def outcome(self) -> Outcome:
        """Wait, and say what came of it."""
        batch, wanted = self.batch, self.wanted
        count = len(batch.segments)
        tokens, logprobs = [-1] * count, [0.0] * count
        scores: list[list[tuple[float, ...]]] = [[()] * len(s.targets) for s in batch.segments]
        self.answer.wait()
        numbers = self.answer.numbers.numpy()
        normalizers = numbers[2].view(np.float32)
        if not np.isfinite(normalizers).all():
            culprit = wanted.segments[int(np.flatnonzero(~np.isfinite(normalizers))[0])][0]
            raise RunError(
                f"the model's scores are not finite (segment {culprit} of the step)",
                hint="the weights may be damaged; or try dtype='float32'",
            )
        values = numbers[1].view(np.float32).tolist()
        found = numbers[0].tolist()
        for (i, _), wish, token, value in zip(
            wanted.segments, wanted.wishes, found, values, strict=True
        ):
            if wish is not None:
                if token < 0 and not self.repeat:
                    raise InternalError("a mask allows no token at all")
                tokens[i], logprobs[i] = token, value
        if self.answer.scores is not None:
            asked = iter(self.answer.scores.tolist())
            for i, r in wanted.segments:
                if batch.segments[i].targets and batch.segments[i].targets[r]:
                    scores[i][r] = tuple(next(asked) for _ in batch.segments[i].targets[r])
        return Outcome(
            tuple(tokens),
            tuple(logprobs),
            tuple(tuple(rows) for rows in scores),
            self._tops() if self.tops else (),
        )

    def _tops(self) -> tuple[TopTokens, ...]:
        found: list[TopTokens] = [()] * len(self.batch.segments)
        wanted = self.wanted.with_top(self.batch, 0, len(self.wanted.segments))
        for (_, i), (ids, logprobs) in zip(wanted, self.tops, strict=True):
            found[i] = tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Tokens that only the device knows, int32, and the rows that compute them, int64.

    Without `rows` they are those of the first rows.
    """

    tokens: Tensor
    rows: Tensor | None = None

    def write(self, tokens: Tensor) -> None:
        """Write them among the tokens of a step; -1 stands for a row without finite logits."""
        known = self.tokens.clamp(min=0)
        if self.rows is None:
            tokens[: len(known)].copy_(known)
        else:
            tokens.index_copy_(0, self.rows, known)


def greatest(logits: Tensor, normalizer: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most likely tokens after a row and their log-probabilities, equals by id."""
    ranked, ids = torch.sort(logits, descending=True, stable=True)
    return ids[:count], ranked[:count] - normalizer


@dataclass(frozen=True, slots=True)
class Tables:
    """The contexts of a step, as attention sees them: slots, and who sees how many of them.

    A text that ends in what a model call made comes as two segments, whose keys differ; the second
    one goes on where the first one ends. Attention is the same for both, so they are one here, and
    long prompts stand together as what they are.

    Attributes:
        slots: of all contexts.
        sizes: of each context, its rows, which are its last positions.
        lengths: of each, its slots.
        offsets: of each, where its slots begin.
    """

    slots: IntArray
    sizes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @staticmethod
    def of(step: Step) -> Tables:
        sizes = np.array([len(s.tokens) for s in step.segments], np.int64)
        segments: Sequence[Segment] = step.segments
        if step.repeats == 1:
            last = np.array([not _goes_on(a, b) for a, b in pairwise(segments)] + [True])
            first = np.concatenate([[True], last[:-1]])
            sizes = np.add.reduceat(sizes, np.flatnonzero(first))
            segments = list(compress(segments, last.tolist()))
        whole = np.array([len(s.slots) for s in segments], np.int64)
        return Tables(
            np.concatenate([s.slots for s in segments]).astype(np.int32, copy=False),
            sizes,
            whole - (step.repeats - 1),
            np.cumsum(whole) - whole,
        )

    def after(self, number: int) -> Tables:
        """After so many repeats."""
        if not number:
            return self
        return replace(self, lengths=self.lengths + number, sizes=np.ones_like(self.sizes))


def _goes_on(segment: Segment, other: Segment) -> bool:
    """Whether another segment is what comes next of the same sequence."""
    start = other.start
    # a slot holds the entry of one prefix
    return len(segment.slots) == start > 0 and bool(segment.slots[-1] == other.slots[start - 1])


def next_batch(batch: Batch, step: Step, number: int) -> Batch:
    """Repeat `number` of a step; its tokens are known to the device only."""
    ends = np.array([s.start + len(s.tokens) - 1 + number for s in step.segments], np.int32)
    slots = [s.slots[end] for s, end in zip(step.segments, ends.tolist(), strict=True)]
    return Batch(
        step.segments,
        tuple(range(len(ends))),
        batch.tokens[: len(ends)],
        ends,
        np.array(slots, np.int32),
    )
