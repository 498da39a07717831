"""The engine core: takes requests, steps the model, hands results back. No tensors.

    submit(Request) ──► scheduler ──Step──► runner ──Outcome──► scheduler ──► on_text, on_done

Owns        the requests in flight and their callbacks.
Promises    `on_done` is called exactly once a request, and only from `step`; whatever fails, no
            request is left waiting, and the core can be used again.
Costs       see `scheduler`; texts are put together only for requests that stream.
Not here    threads: all methods are called from one (`executor`).
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lmc.errors import Cancelled, InternalError, LmcError, RunError
from lmc.runtime.device_memory import DeviceMemoryError
from lmc.runtime.job import Job
from lmc.runtime.limits import Limits
from lmc.runtime.request import (
    Flight,
    GenResult,
    KeyArray,
    Outcome,
    Request,
    Runner,
    ScoreResult,
    Step,
)
from lmc.runtime.scheduler import WORTHWHILE, Scheduler
from lmc.runtime.stats import EngineStats
from lmc.runtime.work import GenWork, Vocabulary

if TYPE_CHECKING:
    from lmc.runtime.recording import Observer

__all__ = ["EngineCore", "Handle", "OnDone", "OnText"]

_log = logging.getLogger("lmc.engine")

OnDone = Callable[[GenResult | ScoreResult | LmcError | None], None]
OnText = Callable[[str], None]
Given = TypeVar("Given")

FEW = 1024
"""Prompt tokens for a second step behind one that is computed, if nothing else could join it now.

It takes longer than what is to be done between two steps.
"""


@dataclass(frozen=True, slots=True)
class _Done:
    """The outcome of a runner that computes at once."""

    _outcome: Outcome

    def ready(self) -> bool:
        return True

    def outcome(self) -> Outcome:
        return self._outcome


class Handle:
    """A submitted request, for `cancel`. Compares by identity."""

    __slots__ = ("_job", "_on_done", "_on_text")

    def __init__(self, job: Job, on_done: OnDone, on_text: OnText | None) -> None:
        self._job = job
        self._on_done = on_done
        self._on_text = on_text

    @property
    def made(self) -> int:
        """How many tokens a gen has made so far; 0 for other requests."""
        return len(getattr(self._job.work, "made", ()))

    @property
    def ended(self) -> bool:
        """Whether it has a result or an error, perhaps not yet handed over."""
        return self._job.ended


class EngineCore:
    """Serves requests with one runner, from one thread.

    Args:
        runner: computes the steps; its `kv_tokens` slots are managed here.
        token_bytes: the bytes of each token id, None for special tokens.
        eos_ids: the model's end tokens.
        max_batch_tokens: most tokens of a step, prompts and decodes together.
        max_running: most requests that run at once.
        max_overtaken: most later requests that are admitted before one.
        headroom: KV slots left for each running request to grow when another is admitted; more
            make it rarer that one must be put back for want of memory.
        check: audit all slots after every step; by default if LMC_CHECK is 2.
    """

    def __init__(
        self,
        runner: Runner,
        token_bytes: Sequence[bytes | None],
        eos_ids: frozenset[int],
        *,
        max_batch_tokens: int = 256,
        max_running: int = 64,
        max_overtaken: int = 256,
        headroom: int = 16,
        check: bool | None = None,
    ) -> None:
        self.runner = runner
        self.stats = EngineStats()
        self._vocabulary = Vocabulary(runner.vocab_size, token_bytes, eos_ids)
        self._limits = {
            "max_batch_tokens": max_batch_tokens,
            "max_running": max_running,
            "max_overtaken": max_overtaken,
            "headroom": headroom,
        }
        self._check = os.environ.get("LMC_CHECK") == "2" if check is None else check
        self._handles: dict[Job, Handle] = {}
        self._deltas: deque[Handle] = deque()
        self._scheduler = self._new_scheduler()
        self._closed = False
        self.overlaps = hasattr(runner, "start")  # a device computes while other things are done
        self._start: Callable[[Step], Flight] = getattr(runner, "start", self._run_now)
        self._flights: deque[tuple[Step, Flight]] = deque()  # under way, the oldest first
        self._looked_ahead = False  # in vain, and nothing has changed since
        self._settled = False  # nothing is to be done until a step ends
        self._half = max_batch_tokens // 2  # prompt tokens for a second step
        self.observer: Observer | None = None  # set before anything runs

    def _run_now(self, step: Step) -> Flight:
        return _Done(self.runner.run(step))

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            self._vocabulary,
            kv_tokens=self.runner.kv_tokens,
            context_length=self.runner.context_length,
            most_repeats=self.runner.most_repeats,
            follows_states=self.runner.follows_states,
            stats=self.stats,
            **self._limits,
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._handles)

    @property
    def limits(self) -> Limits:
        """What decides how it schedules."""
        return Limits(
            vocab_size=self.runner.vocab_size,
            kv_tokens=self.runner.kv_tokens,
            context_length=self.runner.context_length,
            max_batch_tokens=self._limits["max_batch_tokens"],
            max_running=self._limits["max_running"],
            most_repeats=self.runner.most_repeats,
            step_positions=self.runner.step_positions,
        )

    @property
    def wants_more(self) -> bool:
        """Whether fewer requests wait than could be admitted at once: more could be of use."""
        return self._scheduler.waiting < self._limits["max_running"]

    def submit(self, request: Request, on_done: OnDone, on_text: OnText | None = None) -> Handle:
        """Take a request.

        Args:
            on_done: gets the result, or the error that ended the request: a malformed request and
                one that can never fit end with an error, too. A cancelled gen gives a `GenResult`
                with what it had, other cancelled requests `Cancelled`.
            on_text: gets the text of a gen piece by piece: whole characters, and nothing that may
                turn out to belong to a stop string. The pieces together are `GenResult.text`.

        Raises:
            RunError: the engine is closed.
        """
        if self._closed:
            raise RunError("the engine is closed", hint="run inside its `with` block")
        self._looked_ahead = self._settled = False
        job = self._scheduler.submit(request)
        handle = self._handles[job] = Handle(job, on_done, on_text)
        return handle

    def cancel(self, handle: Handle) -> None:
        """End a request; its slots are free when the current step ends. Nothing if it has ended."""
        self._scheduler.cancel(handle._job)

    def release(self, keys: KeyArray, keep: int = 0) -> None:
        """Advice: the state `keys` is not used again, but for its first `keep` keys."""
        self._scheduler.memory.cache.mark_dead(keys, keep)

    def expect(self, keys: KeyArray, next_use: float) -> None:
        """Advice: the prefix `keys` is used again at `next_use`, a time that grows."""
        self._scheduler.memory.cache.expect(keys, next_use)

    def forget(self) -> None:
        """Empty the cache, except for what running requests hold."""
        self._scheduler.memory.forget()

    @property
    def computing(self) -> bool:
        """Whether a step is under way whose outcome `step` would wait for."""
        return bool(self._flights) and not self._flights[0][1].ready() and not self._ahead()

    @property
    def pressing(self) -> bool:
        """Whether `step` should be called before more requests are made ready.

        A step has ended, or a device has nothing to do and there is enough to do for it.
        """
        if not self._flights:
            return self.overlaps and self.has_work and self._scheduler.has_prompts(WORTHWHILE)
        return self._flights[0][1].ready() or self._ahead()

    def _ahead(self) -> bool:
        """Whether a second step should be started, since many prompts wait."""
        if len(self._flights) > 1 or self._looked_ahead or self._closed:
            return False
        if self._scheduler.short_of_memory:
            return False
        scheduler = self._scheduler
        if self._settled:
            found = scheduler.goes_on() or scheduler.has_prompts(min(FEW, self._half))
        else:
            found = scheduler.has_prompts(self._half)
        self._looked_ahead = not found
        return found

    def settle_for_few(self) -> None:
        """Start a second step for less, as nothing else is to be done until a step ends.

        It is for fewer prompts, or for all that run. As long as nothing is submitted and no step
        starts or ends.
        """
        if not self._settled and len(self._flights) == 1:
            self._looked_ahead, self._settled = False, True

    def step(self) -> bool:
        """Compute one step and hand over what ended; returns whether there was anything to do.

        If the runner can compute while other things are done, a call either starts a step or takes
        what came of the oldest under way. Requests may be submitted and cancelled in between.

        An exception of the runner fails the requests of its step, but if its memory was short they
        are put back and smaller steps are tried; a fault in the bookkeeping fails
        all of them. Only exceptions that are no `Exception` (Ctrl-C), and those that callbacks
        raise, come out.
        """
        busy = self.has_work
        try:
            self._compute()
        except Exception as error:  # nobody may wait for ever
            _log.exception("the engine's bookkeeping failed; all requests are given up")
            self._give_up(error)
        self._deliver()
        return busy

    def _compute(self) -> None:
        scheduler, flights = self._scheduler, self._flights
        if not flights or (not flights[0][1].ready() and self._ahead()):
            begin = time.perf_counter()
            step = scheduler.next()
            self.stats.seconds["schedule"] += time.perf_counter() - begin
            if step is not None:
                flight = self._launch(step)
                if flight is not None:
                    flights.append((step, flight))
            self._looked_ahead = step is None
            if step is not None:  # in vain for few is in vain until something changes
                self._settled = False
            if self.overlaps:
                return
        if flights:
            step, flight = flights.popleft()
            self._looked_ahead = self._settled = False
            failed = True
            try:
                outcome = self._runner_gives(flight.outcome, step, 0)
                if outcome is not None:
                    self._take(step, outcome)
                    failed = False
            finally:
                self._tell_end(step, failed)
        if self._check:
            scheduler.audit()

    def _launch_next(self, step: Step) -> None:
        """Start a step while the outcome of the one before is taken; see `Scheduler.finish`."""
        flight = self._launch(step)
        if flight is not None:
            self._flights.append((step, flight))

    def _launch(self, step: Step) -> Flight | None:
        """Give a step to the runner; None if that failed."""
        if self.observer is not None:
            self.observer.step_begins(step, self._scheduler.in_flight)
        flight = None
        try:
            flight = self._runner_gives(partial(self._start, step), step, len(self._flights))
        finally:
            if flight is None:
                self._tell_end(step, failed=True)
        return flight

    def _tell_end(self, step: Step, failed: bool) -> None:
        if self.observer is not None:
            self.observer.step_ends(self, step, failed)

    def _runner_gives(self, call: Callable[[], Given], step: Step, kept: int) -> Given | None:
        """What the runner gives; None if it failed, and with it all steps but for `kept`."""
        start = time.perf_counter()
        try:
            return call()
        except DeviceMemoryError as error:
            if not self._scheduler.short_of_memory:
                _log.warning("smaller steps from now on: %s", error.problem)
            self._forget_flights(kept)
            self._scheduler.put_back(step, error, kept)
            return None
        except Exception as error:  # a runner may raise anything
            problem = f"a step of the model failed: {error or type(error).__name__}"
            self._lose(kept, lambda: RunError(problem), error)
            return None
        except BaseException as error:
            self._lose(kept, lambda: Cancelled("the run was interrupted"), error)
            raise
        finally:
            self.stats.seconds["model"] += time.perf_counter() - start

    def _lose(self, kept: int, make_error: Callable[[], LmcError], cause: BaseException) -> None:
        """All steps under way but for the `kept` oldest have failed."""
        self._forget_flights(kept)
        self._scheduler.fail(make_error, cause, kept)

    def _forget_flights(self, kept: int) -> None:
        """What is under way is of no use: it may have read what an older step did not write."""
        while len(self._flights) > kept:
            self._tell_end(self._flights.pop()[0], failed=True)

    def _take(self, step: Step, outcome: Outcome) -> None:
        """Take what a step gave."""
        seconds, scheduler, computed = self.stats.seconds, self._scheduler, time.perf_counter()
        launch = self._launch_next if self.overlaps and not self._closed else None
        for job in scheduler.finish(step, outcome, launch):
            handle = self._handles.get(job)
            if handle is not None and handle._on_text is not None and not job.ended:
                self._deltas.append(handle)
        seconds["finish"] += time.perf_counter() - computed

    def _deliver(self) -> None:
        """Call back. A callback may submit and cancel; if it raises, the rest waits for a step."""
        while self._deltas:
            handle = self._deltas.popleft()
            if not handle._job.ended:
                self._stream(handle, final=False)
        ended = self._scheduler.ended
        while ended:
            job = ended.pop(0)
            handle = self._handles.pop(job)
            self._stream(handle, final=True)
            handle._on_done(job.outcome)

    def _stream(self, handle: Handle, *, final: bool) -> None:
        work = handle._job.work
        if handle._on_text is not None and isinstance(work, GenWork):
            piece = work.text.delta(final=final)
            if piece:
                handle._on_text(piece)

    def _give_up(self, cause: Exception) -> None:
        """Fail every request and begin anew with an empty cache."""

        def make_error() -> LmcError:
            error = InternalError(f"the engine failed: {cause or type(cause).__name__}")
            error.__cause__ = cause
            return error

        while self._flights:
            self._tell_end(self._flights.pop()[0], failed=True)
        self._scheduler.abandon(self._handles, make_error)
        ended = self._scheduler.ended
        self._scheduler = self._new_scheduler()
        self._scheduler.ended = ended

    def audit(self) -> None:
        """Check that every KV slot is in exactly one place.

        Raises:
            InternalError: it is not.
        """
        self._scheduler.audit()

    def statistics(self) -> dict[str, int]:
        """Sizes of the pool and the cache now."""
        memory = self._scheduler.memory
        pool, cache = memory.pool.statistics(), memory.cache.statistics()
        return {**pool, **{f"cache_{name}": value for name, value in cache.items()}}

    @property
    def kv_slots(self) -> tuple[int, int]:
        """How many slots the cache holds, and how many are free; at no cost."""
        memory = self._scheduler.memory
        return len(memory.cache), len(memory.pool)

    def close(self) -> None:
        """End all requests with `Cancelled`, call back, and close the runner. Once is enough."""
        if self._closed:
            return
        self._closed = True
        while self._flights:
            self.step()
        for handle in list(self._handles.values()):
            self.cancel(handle)
        self._deliver()
        self.runner.close()
