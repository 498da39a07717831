"""The scheduler: which tokens of which requests are computed next. Pure decisions, no device.

    submit ──► waiting ──► prefill ──► decode ──► done
                  ▲            │           │
                  └────────────┴───────────┘ retracted: no memory left, here or on the device

Owns        the queues and each request's stage.
Promises    nothing that the cache holds is computed again; results do not depend on what else runs;
            every request ends, and at most `max_overtaken` later ones are admitted before it; a
            long prompt leaves a part of each step to those that came after it.
            A request takes part in one of the steps under way at most, apart from steps that
            continue the one before.
Costs       a step: O(running requests); admitting: a look-up for each of the first `_WINDOW`
            waiting requests whose answer may have changed.
Not here    slots (`kv_memory`), how often a step is repeated (`repeating`), texts and constraints
            (`work`), the order of those that wait (`waiting`), the model (`Runner`), callbacks
            (`engine`).
Source      chunked prefill beside decode: Agrawal et al., Sarathi-Serve, arXiv:2403.02310;
            longest cached prefix first: Zheng et al., SGLang, arXiv:2312.07104, section 3.

Sharing inside a step. The prompt tokens of a step are put into the cache when the step is put
together, not when it is done. So of two requests that begin alike, the second finds the first's
slots even in the same step (the runner stores all new KV entries before any attention), and
nothing is computed twice. If the step fails, they are taken out again.

Two steps under way. While a device computes one step, `next` gives another, of requests that take
no part in the first: where many prompts wait, the device then never waits for this. Steps are done
in the order in which they were given, so the second may read what the first writes.

Steps that continue. Where a step is repeated and all that run go on beyond its end, the next one is
given before its last tokens are known: they go from draw to draw on the device. So they do where a
step is not repeated and another one is given while it is under way: those that draw a token take
part in both. What is computed for one that has ended meanwhile is not looked at.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from lmc.errors import Cancelled, CapacityError, InternalError, LmcError, RunError
from lmc.runtime.device_memory import DeviceMemoryError, StepRoom
from lmc.runtime.job import MOVES, Job, Stage
from lmc.runtime.kv_memory import KVMemory
from lmc.runtime.repeating import ends, repeats_after, repeats_of, rides
from lmc.runtime.request import GenRequest, GenResult, IntArray, Outcome, Request, Segment, Step
from lmc.runtime.score_work import ScoreWork
from lmc.runtime.sequence import TokenSequence
from lmc.runtime.stats import EngineStats
from lmc.runtime.waiting import WaitingQueue
from lmc.runtime.work import GenWork, Result, Vocabulary, Work, work_of

__all__ = ["SPREAD", "WORTHWHILE", "Scheduler"]

WORTHWHILE = 2048
"""Prompt tokens for which a device that has nothing to do starts before all rows have had a turn.

A forward pass of so many costs hardly more a token than a longer one.
"""
SPREAD = 2048
"""Prompt tokens at least of a step, where they are spread over the steps of those that decode."""
_WINDOW = 64  # waiting requests among which the longest cached prefix is looked for
_OTHERS_SHARE = 0.25  # of a step, for those that came after a long prompt
_NO_SLOTS: IntArray = np.empty(0, np.int32)
_ENDS_SHARE = 0.25  # of those that run may end with a step before the next one is given
_LEAD = 4  # repeats that are not done when the next step is given
_FIRST_ROOM = 64  # tokens that a sequence can grow by before its buffers are moved


@dataclass(slots=True)
class _Part:
    """A job's segments in a step: `segments[first:last]`; `placed` positions have slots then.

    The last `added` of these are those of a step that continues another one.
    """

    job: Job
    work: Work
    first: int
    last: int
    placed: int
    added: int = 0

    @property
    def over(self) -> bool:
        """Whether the job has ended, or goes on with another request."""
        return self.job.ended or self.job.work is not self.work


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step under way."""

    parts: list[_Part]
    repeats: int


class Scheduler:
    """Continuous batching over one KV pool.

    `next` gives a step, `finish`, `fail` or `put_back` takes its outcome; in between another one
    may be asked for. Jobs that ended are collected in `ended` until the owner takes them.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        kv_tokens: int,
        context_length: int,
        max_batch_tokens: int = 256,
        max_running: int = 64,
        max_overtaken: int = 256,
        headroom: int = 16,
        most_repeats: int = 1,
        follows_states: bool = False,
        stats: EngineStats | None = None,
    ) -> None:
        """Args:
        kv_tokens: slots of the KV pool.
        context_length: most positions that the model knows.
        max_batch_tokens: most tokens of a step, prompts and decodes together, at least 1.
        max_running: most requests that run at once; never more than `max_batch_tokens`.
        max_overtaken: how many later requests may be admitted before one.
        headroom: slots left for each running request to grow when another is admitted.
        most_repeats: how often the runner may repeat a step by itself.
        follows_states: whether it then moves along tables of constraints.
        """
        if max_batch_tokens < 1 or max_running < 1 or max_overtaken < 0:
            raise InternalError("a step needs room for at least one token of one request")
        self.stats = stats or EngineStats()
        self.memory = KVMemory(kv_tokens, self.stats)
        self.ended: list[Job] = []
        self._vocabulary = vocabulary
        self._context = context_length
        self._room = StepRoom(max_batch_tokens)
        self._most_running = max_running
        self._headroom = headroom
        self._most_repeats = most_repeats
        self._follows_states = follows_states
        self._repeats = 1  # of the step that is put together
        self._slack = 0  # tokens beyond its budget that may complete a prompt
        self._running: list[Job] = []  # in order of admission
        self._waiting = WaitingQueue(max_overtaken)
        self._arrivals = 0
        self._turns = 0
        self._flights: deque[_Flight] = deque()  # steps under way, the oldest first
        self._parts: list[_Part] = []
        self._segments: list[Segment] = []
        self._after: tuple[int, ...] = ()  # of the first segments, as in `Step.after`
        self._cancelled: list[Job] = []  # that take part in a step under way
        self._finished: deque[Job] = deque()  # whose requests have all they want

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self._running and not self._waiting

    @property
    def short_of_memory(self) -> bool:
        """Whether the device had no memory for a step not long ago."""
        return self._room.short

    @property
    def _max_running(self) -> int:
        return min(self._most_running, self._room.tokens)

    @property
    def in_flight(self) -> int:
        """How many requests take part in the step that was given last."""
        return len(self._flights[-1].parts) if self._flights else 0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def submit(self, request: Request) -> Job:
        """Take a request. One that cannot be served, or needs no model, ends at once."""
        job = Job(request, self._arrivals)
        self._arrivals += 1
        following: Request | None = request
        while following is not None:
            try:
                work, forced = self._open(following)
            except LmcError as error:
                self._end(job, Stage.ABORTED, error)
                return job
            job.go_on(following, work)
            if not work.finished:
                room = min(work.to_make(), _FIRST_ROOM) + len(forced)
                job.sequence = TokenSequence(following.keys, room)
                job.sequence.append_made(forced)
                self._waiting.add(job)
                return job
            self.stats.requests += 1
            following = _following(job)
        self._complete(job)
        return job

    def _open(self, request: Request) -> tuple[Work, list[int]]:
        """The work of a request, and the tokens that are forced at once.

        Raises:
            LmcError: it is malformed, too large, or its constraint fails.
        """
        prompt = len(request.keys)
        work = work_of(
            request, self._vocabulary, self._context - prompt, tables=self._follows_states
        )
        deepest = prompt
        needed = prompt
        if isinstance(work, ScoreWork):
            deepest += work.depth
            needed += work.size
        if deepest > self._context:
            raise _too_large(deepest, self._context, "positions", "the model")
        forced: list[int] = []
        if isinstance(work, GenWork):
            forced = work.begin()
            needed += len(forced)
            self.stats.forced_tokens += len(forced)
        if not work.finished and needed > self.memory.capacity:
            raise _too_large(needed, self.memory.capacity, "KV slots", "the pool")
        return work, forced

    def cancel(self, job: Job) -> None:
        """End a request now, or with the step that is under way; nothing if it has ended."""
        if job.ended:
            return
        if job.in_flight:
            if job not in self._cancelled:
                self._cancelled.append(job)
            return
        self._stop(job)

    def has_prompts(self, tokens: int) -> bool:
        """Whether so many prompt tokens, or a whole step of them, wait to be computed.

        It is looked for among those that run and are in no step, and the first that wait. What one
        of them can take over from another is not known yet: of those with the same first number of
        their priority, which branches of a row have, the longest counts.
        """
        tokens = min(tokens, self._room.tokens)
        longest: dict[int, int] = {}
        found = 0
        for job in self._running:
            if job.stage is Stage.PREFILL and not job.in_flight:
                found += _gain(longest, job, job.unplaced())
        if self._waiting and len(self._running) < self._max_running:
            for job in self._waiting.first(_WINDOW):
                if found >= tokens:
                    break
                found += _gain(longest, job, job.unplaced() - self._matched(job))
        return found >= tokens

    def goes_on(self) -> bool:
        """Whether nothing is gained by waiting for the step under way before the next one is given.

        All that run can take part in it, some from tokens that are not known yet, or end before,
        which must be few, as they may go on with prompts that those who decode could have joined.
        Or all of that step end with it and nothing follows, and others are left.
        """
        if len(self._flights) != 1 or self._room.short or self._cancelled:
            return False
        busy = [job for job in self._running if job.in_flight]
        riding = self._riding()
        if riding:
            return not self._others_wait() and self._few_end(busy, len(riding), left=1)
        others = self._others_wait() or len(busy) < len(self._running)
        return others and all(ends(job, 1) and not _comes_back(job) for job in busy)

    def _few_end(self, busy: list[Job], riding: int, left: int) -> bool:
        """Whether all that do not ride end before the next step, and are few."""
        over = sum(ends(job, left) for job in busy)
        return riding + over == len(busy) and over <= _ENDS_SHARE * len(self._running)

    def _riding(self) -> list[_Part]:
        """Parts of the one step under way whose jobs can go on in the next one."""
        if len(self._flights) != 1 or self._room.short or self._most_repeats == 1:
            return []
        flight = self._flights[0]
        if flight.repeats > 1:
            return []
        return self._riders(flight.parts, left=1)

    def _riders(self, parts: list[_Part], left: int) -> list[_Part]:
        cancelled = self._cancelled
        return [
            part for part in parts
            if not part.over and part.job not in cancelled and rides(part.job, left)
        ]  # fmt: skip

    def next(self) -> Step | None:
        """The next step, or None: nothing is left to compute, or all that is takes part in a step.

        Raises:
            InternalError: two steps are under way already.
        """
        if len(self._flights) > 1:
            raise InternalError("a third step was asked for before the first one was finished")
        self._parts, self._segments, self._after = [], [], ()
        while True:
            self._repeats = 1
            self._thin_out()
            # Those that take part in a step, or are to be gone on with, may free what is missing.
            if self._build() or self._flights or self._finished:
                break
            if self._running:
                self._make_way()
            elif not self._waiting:
                break
        if not self._segments:
            return None
        return self._launched()

    def _launched(self) -> Step:
        """The step that has been put together is under way."""
        after = self._after
        if after:
            after += (-1,) * (len(self._segments) - len(after))
        step = Step(tuple(self._segments), self._repeats, after)
        for part in self._parts:
            part.job.in_flight = True
        self._flights.append(_Flight(self._parts, step.repeats))
        self.memory.launched()
        self.stats.model_steps += step.repeats
        self.stats.computed_tokens += sum(len(s.tokens) for s in step.segments)
        self.stats.computed_tokens += (step.repeats - 1) * len(step.segments)
        self.memory.note_peak()
        return step

    def finish(
        self, step: Step, outcome: Outcome, launch: Callable[[Step], None] | None = None
    ) -> list[Job]:
        """Take the outcome of the oldest step under way; the jobs that took part in it.

        Args:
            launch: is given a step that continues this one, if there is one, before the last
                repeats of this are waited for; or one of those that have been gone on with, if it
                is worthwhile, before the others are.
        """
        if not self._flights:
            raise InternalError("a step was finished that was not under way")
        parts = self._landed(self._flights.popleft())
        self.memory.settle()
        self._room.went_well()
        live = [p for p in parts if p.job not in self._cancelled and not p.over]
        for part in live:
            self._take(part, step, outcome, step.repeats - 1)
        if step.repeats > 1:
            self._follow_all()
            self._take_later(live, step, outcome.later, launch)
        self._follow_all(launch)
        self._stop_cancelled()
        return [part.job for part in parts]

    def _take_later(
        self,
        live: list[_Part],
        step: Step,
        outcomes: Iterable[Outcome],
        launch: Callable[[Step], None] | None,
    ) -> None:
        """Take what the repeats of a step gave; jobs that end meanwhile have no use for the rest.

        What is computed for them beyond their end lies in slots that are free again: nothing that
        is computed later can be done before it.
        """
        ahead = step.repeats - 1
        lead = min(_LEAD, step.repeats // 2)
        try:
            for outcome in outcomes:
                ahead -= 1
                live = [
                    part for part in live
                    if not part.over and self._take_next(part, step, outcome, ahead)
                ]  # fmt: skip
                if ahead:
                    self._follow_all()
                if ahead == lead and launch is not None:
                    following = self._continuing(live, ahead)
                    if following is not None:
                        launch(following)
        except Exception as cause:  # the runner's, as in `fail`
            for part in live:
                if not part.over:
                    error = RunError(f"a step of the model failed: {cause or type(cause).__name__}")
                    error.__cause__ = cause
                    self._abort(part.job, error)

    def _take_next(self, part: _Part, step: Step, outcome: Outcome, ahead: int) -> bool:
        """Take what a repeat gave for one job; whether it is a token that the job has.

        Where a constraint forces another one, or wants a draw that the runner cannot know how to
        make, what lies beyond is of no use, and the job goes on from here with the next step.
        """
        job, sequence, work = part.job, part.job.sequence, part.work
        assert isinstance(work, GenWork), "only draws are repeated"
        end = part.placed - ahead
        try:
            if sequence.total > end:  # forced, and known already
                sequence.computed = end
                if int(sequence.tokens[end]) == outcome.tokens[part.first]:
                    return True
            elif work.goes_on():
                self._take(part, step, outcome, ahead)
                return True
        except LmcError as error:
            self._abort(job, error)
            return False
        # Who has no token to go on from computes the last one again.
        self.memory.take_back(sequence, min(end, sequence.total - 1))
        return False

    def fail(self, make_error: Callable[[], LmcError], cause: BaseException, kept: int = 0) -> None:
        """The steps under way raised, but for the `kept` oldest.

        Their requests fail with the cause, and their KV entries are dropped.
        """
        while len(self._flights) > kept:
            for part in self._landed(self._flights.pop()):
                if part.over:
                    continue
                error = make_error()
                error.__cause__ = cause
                self._abort(part.job, error)
        self._drop_fresh(kept)

    def put_back(self, step: Step, cause: DeviceMemoryError, kept: int = 0) -> None:
        """The device had no memory for `step`, the oldest of those under way but for `kept`.

        All of these are undone, and their requests wait again, for smaller steps. One whose step of
        a single token is too much, with nothing beside it, fails.
        """
        rows = sum(len(segment.tokens) for segment in step.segments)
        hopeless = len(self._flights) == 1 and rows == step.repeats == 1
        self.stats.steps_put_back += len(self._flights) - kept
        while len(self._flights) > kept:
            for part in self._landed(self._flights.pop()):
                if part.over:
                    continue
                if hopeless:
                    self._abort(part.job, _no_memory(cause))
                elif part.added:  # more of the step that this one continues may be to come
                    self.memory.rewind(part.job.sequence, part.added)
                else:
                    self._retract(part.job)
        if hopeless:
            self._room.restore()
        else:
            self._room.shrink(rows, step.repeats)
        self._drop_fresh(kept)

    def _drop_fresh(self, kept: int) -> None:
        """Free what was placed for steps that were not computed."""
        # Who else has a lease on such entries found them in place of its own.
        for job in [job for job in self._running if not job.in_flight]:
            if self.memory.uses_fresh(job.sequence, kept):
                self._retract(job)
        self.memory.drop_fresh(kept)
        self._stop_cancelled()

    def _landed(self, flight: _Flight) -> list[_Part]:
        """The jobs of a step take part in it no more, and in none if no other continues it."""
        for part in flight.parts:
            part.job.in_flight = False
        for other in self._flights:
            for part in other.parts:
                part.job.in_flight = not part.over
        return flight.parts

    def abandon(self, jobs: Iterable[Job], make_error: Callable[[], LmcError]) -> None:
        """End all of `jobs`, whatever state this is in; nothing else may be called afterwards."""
        for job in jobs:
            lease, job.sequence.lease = job.sequence.lease, None
            if lease is not None:
                lease.abandon()
            if not job.ended:
                self._end(job, Stage.ABORTED, make_error())

    def audit(self) -> None:
        """Check that every slot is in exactly one place; raises InternalError."""
        scores = [job.work for job in self._running if isinstance(job.work, ScoreWork)]
        self.memory.audit(
            [job.sequence for job in self._running], [work.own_slots() for work in scores]
        )

    # Putting a step together

    def _thin_out(self) -> None:
        """Retract those that arrived last, if more run than a step has room for now."""
        excess = len(self._running) - self._max_running
        if excess > 0:
            free = [job for job in self._running if not job.in_flight]
            for job in sorted(free, key=lambda job: -job.arrival)[:excess]:
                self._retract(job)

    def _build(self) -> bool:
        """Fill the step; returns whether anything is in it."""
        budget = self._room.tokens
        free = [job for job in self._running if not job.in_flight]
        decoding = [job for job in free if job.stage is Stage.DECODE]
        decoding = [job for job in decoding if self._prepared(job)]
        counts = self._decode_counts(decoding)
        wanted = sum(counts)
        riding = self._riding()
        if wanted > self.memory.available:
            return False
        if riding and wanted + len(riding) <= self.memory.available:
            if len(riding) == len(self._running) and not self._others_wait():
                self._repeats = self._repeats_after(riding, left=1)
            self._place_riding(riding, left=1)
            budget -= len(riding)
        if decoding:
            self._repeats = self._repeats_of(decoding, counts)
            self._place_decodes(decoding, counts)
            budget -= wanted
        prefills = [job for job in free if job.stage is Stage.PREFILL]
        going_on = [part.job for part in riding] + decoding
        spread = self._spread(prefills, going_on, budget)
        self._slack, budget = budget - spread, spread
        self._admit(self._go_on_with_prompts(prefills, budget))
        return bool(self._segments)

    def _spread(self, prefills: list[Job], going_on: list[Job], budget: int) -> int:
        """How many tokens of prompts a step takes; more only to complete one.

        Those that decode want steps anyway, so prompts are spread over these: a step of
        `SPREAD` tokens costs little more than its share of a longer one, and less than one that
        only decodes. But those that begin late end late. So there must be many prompts for each
        step that is wanted, or those that decode must come back with prompts.
        """
        if budget <= SPREAD:
            return budget
        waiting = self._waiting.first(_WINDOW) if self._others_wait() else []
        decoding = going_on or prefills or waiting
        if not decoding:
            return budget
        wanted = sum(map(_steps_left, decoding)) / len(decoding)
        prompts: float = sum(job.unplaced() for job in prefills)
        if waiting:
            room = min(len(self._waiting), self._max_running - len(self._running))
            found = sum(job.unplaced() - self._matched(job) for job in waiting)
            prompts += found * room / len(waiting)
        spread = int(prompts / max(wanted, 1))
        if spread >= SPREAD:
            return min(budget, spread)
        return SPREAD if 2 * sum(map(_comes_back, decoding)) >= len(decoding) else budget

    def _go_on_with_prompts(self, prefills: list[Job], budget: int) -> int:
        """Place prompts of those that run; what is left of the budget.

        Those that wait longest go first, but leave a part of each step to the shortest of the
        others, and to those that have not begun: a long prompt holds up nobody.
        """
        if not prefills:
            return budget
        prefills.sort(key=lambda job: job.turn)
        least = int(budget * _OTHERS_SHARE)
        first, sizes = 0, 0
        while first < len(prefills) and sizes < budget - least:
            sizes += prefills[first].unplaced()
            first += 1
        part = max(least, budget - sizes)
        left = self._admit(part)
        for job in sorted(prefills[first:], key=Job.unplaced):
            left -= self._place_prefill(job, left)
        budget -= part - left
        for job in prefills[:first]:
            budget -= self._place_prefill(job, budget)
        return budget

    def _prepared(self, job: Job) -> bool:
        """Whether the job can go on; if not, it has been ended."""
        try:
            job.need_work().prepare()
        except LmcError as error:
            self._abort(job, error)
            return False
        return True

    def _decode_counts(self, decoding: list[Job]) -> list[int]:
        """How many of its newest tokens each computes: at least one, forced runs as far as fits."""
        spare = max(0, self._room.tokens - len(self._running))  # one is kept for each prefill, too
        counts: list[int] = []
        for job in decoding:
            extra = min(job.sequence.total - job.sequence.placed - 1, spare)
            spare -= extra
            counts.append(1 + extra)
        return counts

    def _others_wait(self) -> bool:
        """Whether a request waits that could be admitted."""
        return bool(self._waiting) and len(self._running) < self._max_running

    def _repeats_of(self, decoding: list[Job], counts: list[int]) -> int:
        """How often the runner may repeat the step before a decision is needed.

        Only where nobody waits for a place in the next one, and hardly beyond the first end.
        """
        more = len(decoding) < len(self._running) or self._others_wait()
        if self._most_repeats == 1 or not decoding or more or self._room.short:
            return 1
        return repeats_of(
            decoding, counts, self._most_repeats, self._context, self.memory.available
        )

    def _continuing(self, live: list[_Part], left: int) -> Step | None:
        """A step that goes on from the last of the `left` repeats that are not done yet.

        None if a decision may be needed first: one of those that run has a constraint or takes part
        in no step; many end before; another waits for a place; memory is short.
        """
        riding = self._riders(live, left)
        if not riding or self._flights or self._room.short or len(live) != len(self._running):
            return None
        if self._others_wait() or self._cancelled:
            return None
        if not self._few_end([part.job for part in live], len(riding), left):
            return None
        self._parts, self._segments = [], []
        self._repeats = self._repeats_after(riding, left) if len(riding) == len(live) else 1
        if self._repeats * len(riding) > self.memory.available:
            return None
        self._place_riding(riding, left)
        return self._launched()

    def _repeats_after(self, live: list[_Part], left: int) -> int:
        """How often a step may be repeated in which all that run go on; at least once."""
        jobs = [part.job for part in live]
        return repeats_after(jobs, left, self._most_repeats, self._context, self.memory.available)

    def _place_riding(self, riding: list[_Part], left: int) -> None:
        """Place, first in the step, those that go on from a token that is not known yet.

        Args:
            left: how many draws beyond what is known that token is.
        """
        repeats = self._repeats
        slots = self.memory.take(repeats * len(riding))
        unknown = np.zeros(1, np.int32)
        for nth, part in enumerate(riding):
            sequence = part.job.sequence
            start = sequence.placed
            sequence.place(slots[nth * repeats : (nth + 1) * repeats])
            segment = part.work.last_segment(
                unknown, start, sequence.slots[: start + repeats], True
            )
            self._segments.append(replace(segment, position=segment.position + left))
            self._parts.append(_Part(part.job, part.work, nth, nth + 1, sequence.placed, repeats))
        self._after = tuple(part.last - 1 for part in riding)

    def _place_decodes(self, decoding: list[Job], counts: list[int]) -> None:
        later = self._repeats - 1
        slots = self.memory.take(sum(counts) + later * len(decoding))
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
            self._parts.append(_Part(job, job.need_work(), last - 1, last, sequence.placed))

    def _place_prefill(self, job: Job, budget: int) -> int:
        """Place as many of the job's tokens as budget and memory allow; how many."""
        if budget <= 0:
            return 0
        sequence, work = job.sequence, job.need_work()
        start = sequence.placed
        if self.memory.catch_up(sequence, job.match_limit()):
            self._count_cached(job, start)
        wanted = job.unplaced()
        if not wanted:
            self._complete(job)  # all of it was cached, and nothing is asked about it
            return 0
        count = min(wanted, self.memory.available)
        if count > budget + self._slack:
            count = budget
        self._slack -= max(count - budget, 0)
        start = sequence.placed
        end = min(start + count, sequence.total)
        if count <= 0 or (end == sequence.total and not self._prepared(job)):
            return 0
        slots = self.memory.take(count)
        first = len(self._segments)
        if end > start:
            self._place_prompt(job, slots[: end - start])
        if count > end - start:
            self._segments += work.place_branches(sequence, slots[end - start :])
        self._parts.append(_Part(job, work, first, len(self._segments), sequence.placed))
        return count

    def _place_prompt(self, job: Job, slots: IntArray) -> None:
        sequence = job.sequence
        start, end = sequence.placed, sequence.placed + len(slots)
        self.memory.place_prompt(sequence, slots)
        for low, high, made in sequence.runs(start, end):
            tokens, context = sequence.tokens[low:high], sequence.slots[:high]
            if high == sequence.total:
                segment = job.need_work().last_segment(tokens, low, context, made)
            else:
                segment = Segment(tokens, low, context, made)
            self._segments.append(segment)

    # Admission

    def _admit(self, budget: int) -> int:
        """Start waiting requests while budget, memory and `max_running` allow; what is left."""
        if not self._waiting or budget <= 0 or len(self._running) >= self._max_running:
            return budget
        promised = sum(self._claim(job) for job in self._running)
        ranked: list[Job] = []
        while budget > 0 and self._waiting and len(self._running) < self._max_running:
            if self._running and self.memory.available <= promised:
                return budget
            job = self._waiting.overdue()
            if job is None:
                ranked = ranked or self._ranked()
                job = ranked.pop()
                if job.stage is not Stage.WAITING:
                    continue
            if not self._start(job, promised):
                return budget
            budget -= self._place_prefill(job, budget)
            if not job.ended:
                promised += self._claim(job)
        return budget

    def _claim(self, job: Job) -> int:
        """Slots that a job is going to want soon."""
        return job.unplaced() + min(job.need_work().to_make(), self._headroom)

    def _start(self, job: Job, promised: int) -> bool:
        """Let a waiting job run, unless memory beyond what is `promised` is too short for it.

        If nothing runs, any job may: all that the pool has can be its own.
        """
        sequence = job.sequence
        self.memory.begin(sequence, job.match_limit())
        if self._running and self.memory.available < promised + self._claim(job):
            self.memory.let_go(sequence, 0, _NO_SLOTS)
            return False
        self._waiting.admit(job)
        self._move(job, Stage.PREFILL)
        self._next_turn(job)
        self._running.append(job)
        job.started = job.started or time.monotonic()
        if not job.retracted:
            self.stats.requests += 1
            self.stats.prompt_tokens += sequence.prompt
        self._count_cached(job, 0)
        return True

    def _next_turn(self, job: Job) -> None:
        job.turn = self._turns
        self._turns += 1

    def _count_cached(self, job: Job, start: int) -> None:
        """Count the prompt tokens from `start` on that were found in the cache."""
        if not job.retracted:
            found = min(job.sequence.placed, job.sequence.prompt) - start
            job.cached_tokens += max(found, 0)
            self.stats.cached_tokens += max(found, 0)

    def _ranked(self) -> list[Job]:
        """Waiting requests of the first priority, the best last: longest prefix, then oldest."""
        window = self._waiting.front(_WINDOW)
        window.sort(key=lambda job: (self._matched(job), -job.arrival))
        return window

    def _matched(self, job: Job) -> int:
        """How many tokens of a waiting request the cache holds now."""
        cache = self.memory.cache
        if job.seen_version != cache.version:
            job.matched = cache.match(job.sequence.keys, job.match_limit())
            job.seen_version = cache.version
        return job.matched

    # Memory

    def _make_way(self) -> None:
        """Retract the running request that arrived last; if there is only one, it is too large."""
        job = max(self._running, key=lambda job: job.arrival)
        if len(self._running) > 1:
            self._retract(job)
            return
        needed = job.sequence.total + (job.work.size if isinstance(job.work, ScoreWork) else 0)
        self._abort(job, _too_large(needed, self.memory.capacity, "KV slots", "the pool"))

    def _retract(self, job: Job) -> None:
        """Put a running job back in the queue; its tokens stay, its memory can be used by others.

        What is computed goes to the cache, so that only what others need is computed again.
        """
        self._let_go(job, job.sequence.computed)
        self._move(job, Stage.WAITING)
        self._waiting.add(job, again=True)
        job.retracted = True
        self.stats.retracted_requests += 1

    def _let_go(self, job: Job, end: int) -> None:
        """Take a running job's slots: the cache gets what is computed up to `end`."""
        self.memory.let_go(job.sequence, end, job.need_work().retract())
        self._running.remove(job)

    # Life

    def _take(self, part: _Part, step: Step, outcome: Outcome, ahead: int = 0) -> None:
        """Take what a step gave for one job; it places `ahead` positions beyond what it gave."""
        job = part.job
        sequence, work = job.sequence, job.need_work()
        sequence.computed = part.placed - ahead
        if job.stage is Stage.PREFILL and sequence.leased < sequence.computed:
            self.memory.share_last(sequence)
        drawn = False
        for at in range(part.first, part.last):
            segment = step.segments[at]
            try:
                added = work.take(
                    segment,
                    outcome.tokens[at],
                    outcome.logprobs[at],
                    outcome.scores[at],
                    outcome.tops[at] if outcome.tops else (),
                )
            except LmcError as error:
                self._abort(job, error)
                return
            drawn = drawn or segment.sample is not None
            if added:
                job.first_token = job.first_token or time.monotonic()
                sequence.append_made(added)
                self.stats.generated_tokens += 1
                self.stats.forced_tokens += len(added) - 1
        if work.finished:
            job.in_flight = True  # until it is followed
            self._finished.append(job)
        elif drawn and work.to_make() and job.stage is Stage.PREFILL:
            self._move(job, Stage.DECODE)

    def _follow_all(self, launch: Callable[[Step], None] | None = None) -> None:
        """Go on with those whose requests have all they want.

        Args:
            launch: is given a step as soon as there are enough prompts for one, if none is under
                way: the others are gone on with while it is computed.
        """
        found = 0
        try:
            while self._finished:
                job = self._finished.popleft()
                job.in_flight = False
                if job in self._cancelled:  # by one that was gone on with before
                    self._stop(job)
                else:
                    self._follow(job)
                if launch is None or self._flights or job.ended:
                    continue
                found += job.unplaced()
                if found >= WORTHWHILE and self._finished:
                    found = 0  # if memory is short, it is not tried anew for each
                    step = self.next()
                    if step is not None:
                        launch(step)
        finally:
            if self._finished:  # interrupted: nobody may be left behind
                self._follow_all()

    def _follow(self, job: Job) -> None:
        """The job has all that its request wants: go on with the next one, or complete it."""
        while not job.ended and job.need_work().finished:
            following = _following(job)
            if job.ended:  # who was asked what follows has cancelled it
                return
            if following is None:
                self._complete(job)
                return
            try:
                work, forced = self._open(following)
            except LmcError as error:
                self._abort(job, error)
                return
            self._go_on(job, following, work, forced)

    def _go_on(self, job: Job, request: Request, work: Work, forced: list[int]) -> None:
        """Let a running job be another request, which goes on from its tokens."""
        job.in_flight = False  # a step that continues the last one may hold it; it is over there
        sequence = job.sequence
        end = sequence.prompt + job.need_work().kept()
        keys = request.keys
        computed = min(end, sequence.computed)
        if (
            sequence.leased <= end
            and computed < len(keys)
            and np.array_equal(keys[:computed], sequence.keys[:computed])
        ):
            self.memory.cut(sequence, end)
            sequence.go_on(keys)
            job.go_on(request, work)
        else:  # it has been retracted, or nothing is new, or it is another prompt
            self.memory.let_go(sequence, end, _NO_SLOTS)
            job.go_on(request, work)
            sequence = job.sequence = TokenSequence(keys, min(work.to_make(), _FIRST_ROOM))
            self.memory.begin(sequence, job.match_limit())
        if job.stage is not Stage.PREFILL:
            self._move(job, Stage.PREFILL)
        self._next_turn(job)
        sequence.append_made(forced)
        self.stats.requests += 1
        if not work.finished:
            self.stats.prompt_tokens += sequence.prompt
            self._count_cached(job, 0)

    def _complete(self, job: Job) -> None:
        """The job has all it wants."""
        work = job.need_work()
        if job.stage is not Stage.WAITING:
            if isinstance(work, ScoreWork):
                work.give_away(self.memory.keep_paths(job.sequence, work.paths()))
            self._let_go(job, job.sequence.prompt + work.kept())
        self._end(job, Stage.DONE, work.result(job.cached_tokens))

    def _abort(self, job: Job, error: LmcError) -> None:
        """The job fails."""
        if job.stage is Stage.WAITING:
            self._waiting.remove(job)
        else:
            self._let_go(job, 0)
        self._end(job, Stage.ABORTED, error)

    def _stop(self, job: Job) -> None:
        """The job was cancelled: a gen gives what it has, anything else an error."""
        work = job.need_work()
        if job.stage is Stage.WAITING:
            self._waiting.remove(job)
        else:
            self._let_go(job, job.sequence.prompt + work.kept())
        outcome: Result | LmcError = Cancelled("the request was cancelled")
        if isinstance(work, GenWork):
            outcome = work.result(job.cached_tokens)
        self._end(job, Stage.ABORTED, outcome)

    def _stop_cancelled(self) -> None:
        for job in self._cancelled:
            if not job.ended and not job.in_flight:
                self._stop(job)
        self._cancelled = [job for job in self._cancelled if job.in_flight]

    def _end(self, job: Job, stage: Stage, outcome: Result | LmcError) -> None:
        self._move(job, stage)
        if isinstance(outcome, GenResult):
            outcome.timings = job.timings()
        job.outcome = outcome
        self.ended.append(job)

    def _move(self, job: Job, stage: Stage) -> None:
        """The only place where a stage changes."""
        if stage not in MOVES[job.stage]:
            raise InternalError(f"a request cannot go from {job.stage.value} to {stage.value}")
        job.stage = stage


def _steps_left(job: Job) -> float:
    """In how many more steps a token is likely to be drawn."""
    work = job.need_work()
    if not isinstance(work, GenWork):
        return 1
    return work.likely() / (1 + work.constrained)  # then about every other token is forced


def _comes_back(job: Job) -> bool:
    """Whether another request follows the one that runs."""
    return isinstance(job.request, GenRequest) and job.request.follow is not None


def _gain(longest: dict[int, int], job: Job, tokens: int) -> int:
    """How much longer a job makes the longest one of its row."""
    row = job.request.priority[0] if job.request.priority else -1 - job.arrival
    gain = max(tokens - longest.get(row, 0), 0)
    longest[row] = longest.get(row, 0) + gain
    return gain


def _following(job: Job) -> GenRequest | None:
    """The request that follows the one that has ended, if there is one."""
    request, work = job.request, job.need_work()
    if not isinstance(request, GenRequest) or request.follow is None:
        return None
    result = work.result(job.cached_tokens)
    assert isinstance(result, GenResult), "a gen request gives a GenResult"
    result.timings = job.timings()
    return request.follow(result)


def _too_large(needed: int, there: int, unit: str, whose: str) -> CapacityError:
    return CapacityError(
        f"the request needs {needed} {unit}, {whose} has {there}",
        hint="shorten the prompt" + (", or give the engine more kv_tokens" * (unit != "positions")),
    )


def _no_memory(cause: DeviceMemoryError) -> CapacityError:
    error = CapacityError(
        f"the device has no memory even for one token of this request: {cause.problem}",
        hint=cause.hint,
    )
    error.__cause__ = cause
    return error
