"""The requests that wait and those that run, and the stages of their lives.

Owns        the queues, and each request's stage; who was cancelled while a step had it; who has
            all that its request wants; how many may run.
Promises    a stage changes here only, and slots go with it: who does not run has none. What was
            computed for one that ends or must make way goes to the cache.
Costs       O(1) a move beside `kv_memory` and `waiting`; to leave, a look through those that run.
Not here    who is to begin (`admission`), what is computed (`composing`), slots (`kv_memory`), the
            order of those that wait (`waiting`).
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from lmc.errors import Cancelled, CapacityError, InternalError, LmcError
from lmc.runtime.device_memory import StepRoom
from lmc.runtime.job import MOVES, Job, Stage
from lmc.runtime.kv_memory import KVMemory
from lmc.runtime.request import GenResult, Request
from lmc.runtime.score_work import ScoreWork
from lmc.runtime.sequence import TokenSequence
from lmc.runtime.stats import EngineStats
from lmc.runtime.waiting import WaitingQueue
from lmc.runtime.work import GenWork, Result, Work

__all__ = ["Queues", "too_large"]

_FIRST_ROOM = 64  # tokens that a sequence can grow by before its buffers are moved


class Queues:
    """All requests that have not ended.

    Attributes:
        memory, stats: of the engine; what a move takes or gives and what it counts.
        room: how many tokens a step may have now.
        waiting: those that wait.
        running: those that run, in order of admission.
        finished: of these, those whose requests have all they want, until they are gone on with.
        cancelled: of these, those that were cancelled while they took part in a step.
        ended: those that ended, until the owner takes them.
    """

    def __init__(
        self,
        memory: KVMemory,
        stats: EngineStats,
        *,
        max_batch_tokens: int,
        max_running: int,
        max_overtaken: int,
    ) -> None:
        """Args: see `Scheduler`."""
        self.memory = memory
        self.stats = stats
        self.room = StepRoom(max_batch_tokens)
        self.waiting = WaitingQueue(max_overtaken)
        self.running: list[Job] = []
        self.finished: deque[Job] = deque()
        self.cancelled: list[Job] = []
        self.ended: list[Job] = []
        self._most_running = max_running
        self._turns = 0

    @property
    def max_running(self) -> int:
        """How many may run at once."""
        return min(self._most_running, self.room.tokens)

    def others_wait(self) -> bool:
        """Whether a request waits that could be admitted."""
        return bool(self.waiting) and len(self.running) < self.max_running

    # To run, and to go on

    def add(self, job: Job, forced: list[int]) -> None:
        """Let a new job wait, with the tokens that are forced at once."""
        room = min(job.need_work().to_make(), _FIRST_ROOM) + len(forced)
        job.sequence = TokenSequence(job.request.keys, room)
        job.sequence.append_made(forced)
        self.waiting.add(job)

    def start(self, job: Job) -> None:
        """Let a waiting job run, which holds what the cache has of it."""
        self.waiting.admit(job)
        self._move(job, Stage.PREFILL)
        self._next_turn(job)
        self.running.append(job)
        job.started = job.started or time.monotonic()
        if not job.retracted:
            self.stats.requests += 1
            self.stats.prompt_tokens += job.sequence.prompt
        self.count_cached(job, 0)

    def decode(self, job: Job) -> None:
        """All that was known of a job is computed, and a token has been drawn."""
        self._move(job, Stage.DECODE)

    def go_on(self, job: Job, request: Request, work: Work, forced: list[int]) -> None:
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
            self.memory.let_go(sequence, end)
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
            self.count_cached(job, 0)

    def prepared(self, job: Job) -> bool:
        """Whether the job can go on; if not, it has been ended."""
        try:
            job.need_work().prepare()
        except LmcError as error:
            self.abort(job, error)
            return False
        return True

    def count_cached(self, job: Job, start: int) -> None:
        """Count the prompt tokens from `start` on that were found in the cache."""
        if not job.retracted:
            found = min(job.sequence.placed, job.sequence.prompt) - start
            job.cached_tokens += max(found, 0)
            self.stats.cached_tokens += max(found, 0)

    def _next_turn(self, job: Job) -> None:
        job.turn = self._turns
        self._turns += 1

    # To make way

    def thin_out(self) -> None:
        """Retract those that arrived last, if more run than a step has room for now."""
        excess = len(self.running) - self.max_running
        if excess > 0:
            free = [job for job in self.running if not job.in_flight]
            for job in sorted(free, key=lambda job: -job.arrival)[:excess]:
                self.retract(job)

    def make_way(self) -> None:
        """Retract the running request that arrived last; if there is only one, it is too large."""
        job = max(self.running, key=lambda job: job.arrival)
        if len(self.running) > 1:
            self.retract(job)
            return
        needed = job.sequence.total + (job.work.size if isinstance(job.work, ScoreWork) else 0)
        self.abort(job, too_large(needed, self.memory.capacity, "KV slots", "the pool"))

    def retract(self, job: Job) -> None:
        """Put a running job back in the queue; its tokens stay, its memory can be used by others.

        What is computed goes to the cache, so that only what others need is computed again.
        """
        self._let_go(job, job.sequence.computed)
        self._move(job, Stage.WAITING)
        self.waiting.add(job, again=True)
        job.retracted = True
        self.stats.retracted_requests += 1

    # To end

    def cancel(self, job: Job) -> None:
        """End a request now, or with the step that is under way; nothing if it has ended."""
        if job.ended:
            return
        if job.in_flight:
            if job not in self.cancelled:
                self.cancelled.append(job)
            return
        self.stop(job)

    def complete(self, job: Job) -> None:
        """The job has all it wants."""
        work = job.need_work()
        if job.stage is not Stage.WAITING:
            if isinstance(work, ScoreWork):
                work.give_away(self.memory.keep_paths(job.sequence, work.paths()))
            self._let_go(job, job.sequence.prompt + work.kept())
        self.end(job, Stage.DONE, work.result(job.cached_tokens))

    def abort(self, job: Job, error: LmcError) -> None:
        """The job fails."""
        if job.stage is Stage.WAITING:
            self.waiting.remove(job)
        else:
            self._let_go(job, 0)
        self.end(job, Stage.ABORTED, error)

    def stop(self, job: Job) -> None:
        """The job was cancelled: a gen gives what it has, anything else an error."""
        work = job.need_work()
        if job.stage is Stage.WAITING:
            self.waiting.remove(job)
        else:
            self._let_go(job, job.sequence.prompt + work.kept())
        outcome: Result | LmcError = Cancelled("the request was cancelled")
        if isinstance(work, GenWork):
            outcome = work.result(job.cached_tokens)
        self.end(job, Stage.ABORTED, outcome)

    def stop_cancelled(self) -> None:
        """Stop those that were cancelled and take part in no step any more."""
        for job in self.cancelled:
            if not job.ended and not job.in_flight:
                self.stop(job)
        self.cancelled = [job for job in self.cancelled if job.in_flight]

    def end(self, job: Job, stage: Stage, outcome: Result | LmcError) -> None:
        """The job has its outcome, and waits for the owner in `ended`; it has no slots any more."""
        self._move(job, stage)
        if isinstance(outcome, GenResult):
            outcome.timings = job.timings()
        job.outcome = outcome
        self.ended.append(job)

    def _let_go(self, job: Job, end: int) -> None:
        """Take a running job's slots: the cache gets what is computed up to `end`."""
        self.memory.let_go(job.sequence, end, job.need_work().retract())
        self.running.remove(job)

    def _move(self, job: Job, stage: Stage) -> None:
        """The only place where a stage changes."""
        if stage not in MOVES[job.stage]:
            raise InternalError(f"a request cannot go from {job.stage.value} to {stage.value}")
        job.stage = stage


def too_large(needed: int, there: int, unit: str, whose: str) -> CapacityError:
    """The error of a request that can never be served: `whose` has only `there`."""
    return CapacityError(
        f"the request needs {needed} {unit}, {whose} has {there}",
        hint="shorten the prompt" + (", or give the engine more kv_tokens" * (unit != "positions")),
    )
