"""The scheduler: which tokens of which requests are computed next. Pure decisions, no device.

    submit ──► waiting ──► prefill ──► decode ──► done
                  ▲            │           │
                  └────────────┴───────────┘ retracted: no memory left, here or on the device

    here: submit, finish, fail ──► queues ◄── composing, admission, placing: next

Owns        what comes of a step: tokens, ends, what follows a request, what a failed step undoes.
Promises    results do not depend on what else runs; every request ends.
Costs       a step: O(running requests), and see `composing` and `admission`.
Not here    the queues and each request's stage (`queues`), how a step is put together
            (`composing`), texts and constraints (`work`), the model (`Runner`), callbacks
            (`engine`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from lmc.errors import CapacityError, InternalError, LmcError, RunError
from lmc.runtime.admission import Admission
from lmc.runtime.composing import Composer
from lmc.runtime.device_memory import DeviceMemoryError
from lmc.runtime.flights import Flights, Part
from lmc.runtime.job import Job, Stage
from lmc.runtime.kv_memory import KVMemory
from lmc.runtime.queues import Queues, too_large
from lmc.runtime.request import GenRequest, GenResult, Outcome, Request, Step
from lmc.runtime.score_work import ScoreWork
from lmc.runtime.stats import EngineStats
from lmc.runtime.work import GenWork, Vocabulary, Work, work_of

__all__ = ["WORTHWHILE", "Scheduler"]

WORTHWHILE = 2048
"""Prompt tokens for which a device that has nothing to do starts before all rows have had a turn.

A forward pass of so many costs hardly more a token than a longer one.
"""
_LEAD = 4  # repeats that are not done when the next step is given


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
        self._vocabulary = vocabulary
        self._context = context_length
        self._follows_states = follows_states
        self._arrivals = 0
        self._queues = Queues(
            self.memory,
            self.stats,
            max_batch_tokens=max_batch_tokens,
            max_running=max_running,
            max_overtaken=max_overtaken,
        )
        self._flights = Flights()
        self._admission = Admission(self._queues, headroom)
        self._composer = Composer(
            self._queues,
            self._flights,
            self._admission,
            context_length=context_length,
            most_repeats=most_repeats,
        )

    @property
    def ended(self) -> list[Job]:
        """Requests that have ended, until the owner takes them out of it."""
        return self._queues.ended

    @ended.setter
    def ended(self, jobs: list[Job]) -> None:
        self._queues.ended = jobs

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self._queues.running and not self._queues.waiting

    @property
    def short_of_memory(self) -> bool:
        """Whether the device had no memory for a step not long ago."""
        return self._queues.room.short

    @property
    def in_flight(self) -> int:
        """How many requests take part in the step that was given last."""
        newest = self._flights.newest
        return len(newest.parts) if newest else 0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._queues.waiting)

    def submit(self, request: Request) -> Job:
        """Take a request. One that cannot be served, or needs no model, ends at once."""
        job = Job(request, self._arrivals)
        self._arrivals += 1
        following: Request | None = request
        while following is not None:
            try:
                work, forced = self._open(following)
            except LmcError as error:
                self._queues.end(job, Stage.ABORTED, error)
                return job
            job.go_on(following, work)
            if not work.finished:
                self._queues.add(job, forced)
                return job
            self.stats.requests += 1
            following = _following(job)
        self._queues.complete(job)
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
            raise too_large(deepest, self._context, "positions", "the model")
        forced: list[int] = []
        if isinstance(work, GenWork):
            forced = work.begin()
            needed += len(forced)
            self.stats.forced_tokens += len(forced)
        if not work.finished and needed > self.memory.capacity:
            raise too_large(needed, self.memory.capacity, "KV slots", "the pool")
        return work, forced

    def cancel(self, job: Job) -> None:
        """End a request now, or with the step that is under way; nothing if it has ended."""
        self._queues.cancel(job)

    def has_prompts(self, tokens: int) -> bool:
        """Whether so many prompt tokens wait to be computed; see `Admission`."""
        return self._admission.has_prompts(tokens)

    def goes_on(self) -> bool:
        """Whether the next step need not wait for the one under way; see `Composer`."""
        return self._composer.goes_on()

    def next(self) -> Step | None:
        """The next step, or None: nothing is left to compute, or all that is takes part in a step.

        Raises:
            InternalError: two steps are under way already.
        """
        return self._composer.next()

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
        parts = self._flights.land_oldest()
        self.memory.settle()
        self._queues.room.went_well()
        live = [p for p in parts if p.job not in self._queues.cancelled and not p.over]
        for part in live:
            self._take(part, step, outcome, step.repeats - 1)
        if step.repeats > 1:
            self._follow_all()
            self._take_later(live, step, outcome.later, launch)
        self._follow_all(launch)
        self._queues.stop_cancelled()
        return [part.job for part in parts]

    def _take(self, part: Part, step: Step, outcome: Outcome, ahead: int = 0) -> None:
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
                self._queues.abort(job, error)
                return
            drawn = drawn or segment.sample is not None
            if added:
                job.first_token = job.first_token or time.monotonic()
                sequence.append_made(added)
                self.stats.generated_tokens += 1
                self.stats.forced_tokens += len(added) - 1
        if work.finished:
            job.in_flight = True  # until it is followed
            self._queues.finished.append(job)
        elif drawn and work.to_make() and job.stage is Stage.PREFILL:
            self._queues.decode(job)

    def _take_later(
        self,
        live: list[Part],
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
                    following = self._composer.continuing(live, ahead)
                    if following is not None:
                        launch(following)
        except Exception as cause:  # the runner's, as in `fail`
            for part in live:
                if not part.over:
                    error = RunError(f"a step of the model failed: {cause or type(cause).__name__}")
                    error.__cause__ = cause
                    self._queues.abort(part.job, error)

    def _take_next(self, part: Part, step: Step, outcome: Outcome, ahead: int) -> bool:
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
            self._queues.abort(job, error)
            return False
        # Who has no token to go on from computes the last one again.
        self.memory.take_back(sequence, min(end, sequence.total - 1))
        return False

    def _follow_all(self, launch: Callable[[Step], None] | None = None) -> None:
        """Go on with those whose requests have all they want.

        Args:
            launch: is given a step as soon as there are enough prompts for one, if none is under
                way: the others are gone on with while it is computed.
        """
        found = 0
        try:
            while self._queues.finished:
                job = self._queues.finished.popleft()
                job.in_flight = False
                if job in self._queues.cancelled:  # by one that was gone on with before
                    self._queues.stop(job)
                else:
                    self._follow(job)
                if launch is None or self._flights or job.ended:
                    continue
                found += job.unplaced()
                if found >= WORTHWHILE and self._queues.finished:
                    found = 0  # if memory is short, it is not tried anew for each
                    step = self.next()
                    if step is not None:
                        launch(step)
        finally:
            if self._queues.finished:  # interrupted: nobody may be left behind
                self._follow_all()

    def _follow(self, job: Job) -> None:
        """The job has all that its request wants: go on with the next one, or complete it."""
        while not job.ended and job.need_work().finished:
            following = _following(job)
            if job.ended:  # who was asked what follows has cancelled it
                return
            if following is None:
                self._queues.complete(job)
                return
            try:
                work, forced = self._open(following)
            except LmcError as error:
                self._queues.abort(job, error)
                return
            self._queues.go_on(job, following, work, forced)

    def fail(self, make_error: Callable[[], LmcError], cause: BaseException, kept: int = 0) -> None:
        """The steps under way raised, but for the `kept` oldest.

        Their requests fail with the cause, and their KV entries are dropped.
        """
        while len(self._flights) > kept:
            for part in self._flights.land_newest():
                if part.over:
                    continue
                error = make_error()
                error.__cause__ = cause
                self._queues.abort(part.job, error)
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
            for part in self._flights.land_newest():
                if part.over:
                    continue
                if hopeless:
                    self._queues.abort(part.job, _no_memory(cause))
                elif part.added:  # more of the step that this one continues may be to come
                    self.memory.rewind(part.job.sequence, part.added)
                else:
                    self._queues.retract(part.job)
        if hopeless:
            self._queues.room.restore()
        else:
            self._queues.room.shrink(rows, step.repeats)
        self._drop_fresh(kept)

    def _drop_fresh(self, kept: int) -> None:
        """Free what was placed for steps that were not computed."""
        # Who else has a lease on such entries found them in place of its own.
        for job in [job for job in self._queues.running if not job.in_flight]:
            if self.memory.uses_fresh(job.sequence, kept):
                self._queues.retract(job)
        self.memory.drop_fresh(kept)
        self._queues.stop_cancelled()

    def abandon(self, jobs: Iterable[Job], make_error: Callable[[], LmcError]) -> None:
        """End all of `jobs`, whatever state this is in; nothing else may be called afterwards."""
        for job in jobs:
            lease, job.sequence.lease = job.sequence.lease, None
            if lease is not None:
                lease.abandon()
            if not job.ended:
                self._queues.end(job, Stage.ABORTED, make_error())

    def audit(self) -> None:
        """Check that every slot is in exactly one place; raises InternalError."""
        scores = [job.work for job in self._queues.running if isinstance(job.work, ScoreWork)]
        self.memory.audit(
            [job.sequence for job in self._queues.running], [work.own_slots() for work in scores]
        )


def _following(job: Job) -> GenRequest | None:
    """The request that follows the one that has ended, if there is one."""
    request, work = job.request, job.need_work()
    if not isinstance(request, GenRequest) or request.follow is None:
        return None
    result = work.result(job.cached_tokens)
    assert isinstance(result, GenResult), "a gen request gives a GenResult"
    result.timings = job.timings()
    return request.follow(result)


def _no_memory(cause: DeviceMemoryError) -> CapacityError:
    error = CapacityError(
        f"the device has no memory even for one token of this request: {cause.problem}",
        hint=cause.hint,
    )
    error.__cause__ = cause
    return error
