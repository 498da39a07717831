"""How a step is put together: who takes part in it, with how much, and how often it is repeated.

Promises    a long prompt leaves a part of each step to those that came after it; all that decode
            take part in every step that they can, as long as there is memory.
Costs       a step: O(running requests) beside what is placed and admitted.
Not here    slots and segments (`placing`), who begins (`admission`), numbers of repeats
            (`repeating`), the steps that are under way (`flights`), what comes of them
            (`scheduler`).
Source      chunked prefill beside decode: Agrawal et al., Sarathi-Serve, arXiv:2403.02310.

Steps that continue. Where a step is repeated and all that run go on beyond its end, the next one is
given before its last tokens are known: they go from draw to draw on the device. So they do where a
step is not repeated and another one is given while it is under way: those that draw a token take
part in both. What is computed for one that has ended meanwhile is not looked at.
"""

from __future__ import annotations

from lmc.errors import InternalError
from lmc.runtime.admission import Admission
from lmc.runtime.flights import Flights, Part
from lmc.runtime.job import Job, Stage
from lmc.runtime.placing import Draft
from lmc.runtime.queues import Queues
from lmc.runtime.repeating import ends, repeats_after, repeats_of, rides
from lmc.runtime.request import GenRequest, Step
from lmc.runtime.work import GenWork

__all__ = ["MANY", "SPREAD", "Composer"]

SPREAD = 2048
"""Prompt tokens at least of a step, where they are spread over the steps of those that decode."""
MANY = 32
"""Requests from which on a step in which they decode takes more than what a step more costs."""
_OTHERS_SHARE = 0.25  # of a step, for those that came after a long prompt
_ENDS_SHARE = 0.25  # of those that run may end with a step before the next one is given


class Composer:
    """Puts steps together from those that run and those that wait."""

    def __init__(
        self,
        queues: Queues,
        flights: Flights,
        admission: Admission,
        *,
        context_length: int,
        most_repeats: int,
    ) -> None:
        """Args: see `Scheduler`."""
        self._queues = queues
        self._memory = queues.memory
        self._flights = flights
        self._admission = admission
        self._context = context_length
        self._most_repeats = most_repeats

    def goes_on(self) -> bool:
        """Whether nothing is gained by waiting for the step under way before the next one is given.

        All that run can take part in it, some from tokens that are not known yet, or end before,
        which must be few, as they may go on with prompts that those who decode could have joined.
        Or all of that step end with it and nothing follows, and others are left.
        """
        queues = self._queues
        if len(self._flights) != 1 or queues.room.short or queues.cancelled:
            return False
        busy = [job for job in queues.running if job.in_flight]
        riding = self._riding()
        if riding:
            return not queues.others_wait() and self._few_end(busy, len(riding), left=1)
        others = queues.others_wait() or len(busy) < len(queues.running)
        return others and all(ends(job, 1) and not _comes_back(job) for job in busy)

    def next(self) -> Step | None:
        """The next step, or None: nothing is left to compute, or all that is takes part in a step.

        Raises:
            InternalError: two steps are under way already.
        """
        queues = self._queues
        if len(self._flights) > 1:
            raise InternalError("a third step was asked for before the first one was finished")
        while True:
            draft = Draft(queues)
            queues.thin_out()
            # Those that take part in a step, or are to be gone on with, may free what is missing.
            if self._build(draft) or self._flights or queues.finished:
                break
            if queues.running:
                queues.make_way()
            elif not queues.waiting:
                break
        return self._launched(draft) if draft else None

    def continuing(self, live: list[Part], left: int) -> Step | None:
        """A step that goes on from the last of the `left` repeats that are not done yet.

        None if a decision may be needed first: one of those that run has a constraint or takes part
        in no step; many end before; another waits for a place; memory is short.
        """
        queues = self._queues
        riding = self._riders(live, left)
        if not riding or self._flights or queues.room.short or len(live) != len(queues.running):
            return None
        if queues.others_wait() or queues.cancelled:
            return None
        if not self._few_end([part.job for part in live], len(riding), left):
            return None
        repeats = self._repeats_after(riding, left) if len(riding) == len(live) else 1
        if repeats * len(riding) > self._memory.available:
            return None
        draft = Draft(queues)
        draft.place_riding(riding, left, repeats)
        return self._launched(draft)

    def _launched(self, draft: Draft) -> Step:
        """The step that has been put together is under way."""
        step, stats = draft.step(), self._queues.stats
        self._flights.launch(draft.parts, step.repeats)
        self._memory.launched()
        stats.model_steps += step.repeats
        stats.computed_tokens += sum(len(s.tokens) for s in step.segments)
        stats.computed_tokens += (step.repeats - 1) * len(step.segments)
        self._memory.note_peak()
        return step

    def _build(self, draft: Draft) -> bool:
        """Fill the step; returns whether anything is in it."""
        queues = self._queues
        budget = queues.room.tokens
        free = [job for job in queues.running if not job.in_flight]
        decoding = [job for job in free if job.stage is Stage.DECODE]
        decoding = [job for job in decoding if queues.prepared(job)]
        counts = self._decode_counts(decoding)
        wanted = sum(counts)
        riding = self._riding()
        if wanted > self._memory.available:
            return False
        if riding and wanted + len(riding) <= self._memory.available:
            all_ride = len(riding) == len(queues.running) and not queues.others_wait()
            repeats = self._repeats_after(riding, left=1) if all_ride else 1
            draft.place_riding(riding, left=1, repeats=repeats)
            budget -= len(riding)
        if decoding:
            draft.place_decodes(decoding, counts, self._repeats_of(decoding, counts))
            budget -= wanted
        prefills = [job for job in free if job.stage is Stage.PREFILL]
        going_on = [part.job for part in riding] + decoding
        spread = self._spread(prefills, going_on, budget)
        draft.slack, budget = budget - spread, spread
        self._admission.admit(draft, self._go_on_with_prompts(draft, prefills, budget))
        return bool(draft)

    def _spread(self, prefills: list[Job], going_on: list[Job], budget: int) -> int:
        """How many tokens of prompts a step takes; more only to complete one.

        Those that decode want steps anyway, so prompts are spread over these: a step of
        `SPREAD` tokens costs little more than its share of a longer one, and less than one that
        only decodes. But those that begin late end late. So there must be many prompts for each
        step that is wanted, or those that decode must come back with prompts; and none so long that
        it fills steps by itself.
        """
        queues = self._queues
        if budget <= SPREAD:
            return budget
        waiting = self._admission.candidates()
        room = min(len(queues.waiting), queues.max_running - len(queues.running)) if waiting else 0
        decoding = going_on or prefills or waiting
        if not decoding or len(queues.running) + room < MANY:
            return budget
        sizes = [job.unplaced() for job in prefills]
        waiting_sizes = [job.unplaced() - self._admission.matched(job) for job in waiting]
        if max((*sizes, *waiting_sizes), default=0) > budget:
            return budget
        prompts = sum(sizes) + sum(waiting_sizes) * room / max(len(waiting), 1)
        wanted = sum(map(_steps_left, decoding)) / len(decoding)
        spread = int(prompts / max(wanted, 1))
        if spread >= SPREAD:
            return min(budget, spread)
        return SPREAD if 2 * sum(map(_comes_back, decoding)) >= len(decoding) else budget

    def _go_on_with_prompts(self, draft: Draft, prefills: list[Job], budget: int) -> int:
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
        left = self._admission.admit(draft, part)
        for job in sorted(prefills[first:], key=Job.unplaced):
            left -= draft.place_prompt(job, left)
        budget -= part - left
        for job in prefills[:first]:
            budget -= draft.place_prompt(job, budget)
        return budget

    def _decode_counts(self, decoding: list[Job]) -> list[int]:
        """How many of its newest tokens each computes: at least one, forced runs as far as fits."""
        queues = self._queues
        # one is kept for each prefill, too
        spare = max(0, queues.room.tokens - len(queues.running))
        counts: list[int] = []
        for job in decoding:
            extra = min(job.sequence.total - job.sequence.placed - 1, spare)
            spare -= extra
            counts.append(1 + extra)
        return counts

    def _riding(self) -> list[Part]:
        """Parts of the one step under way whose jobs can go on in the next one."""
        if len(self._flights) != 1 or self._queues.room.short or self._most_repeats == 1:
            return []
        flight = self._flights.newest
        if flight is None or flight.repeats > 1:
            return []
        return self._riders(flight.parts, left=1)

    def _riders(self, parts: list[Part], left: int) -> list[Part]:
        """Those of `parts` whose jobs can go on from a token that is not known yet."""
        cancelled = self._queues.cancelled
        return [
            part for part in parts
            if not part.over and part.job not in cancelled and rides(part.job, left)
        ]  # fmt: skip

    def _few_end(self, busy: list[Job], riding: int, left: int) -> bool:
        """Whether all that do not ride end before the next step, and are few."""
        over = sum(ends(job, left) for job in busy)
        return riding + over == len(busy) and over <= _ENDS_SHARE * len(self._queues.running)

    def _repeats_of(self, decoding: list[Job], counts: list[int]) -> int:
        """How often the runner may repeat the step before a decision is needed.

        Only where nobody waits for a place in the next one, and hardly beyond the first end.
        """
        more = len(decoding) < len(self._queues.running) or self._queues.others_wait()
        if self._most_repeats == 1 or not decoding or more or self._queues.room.short:
            return 1
        return repeats_of(
            decoding, counts, self._most_repeats, self._context, self._memory.available
        )

    def _repeats_after(self, live: list[Part], left: int) -> int:
        """How often a step may be repeated in which all that run go on; at least once."""
        jobs = [part.job for part in live]
        return repeats_after(jobs, left, self._most_repeats, self._context, self._memory.available)


def _steps_left(job: Job) -> float:
    """In how many more steps a token is likely to be drawn."""
    work = job.need_work()
    if not isinstance(work, GenWork):
        return 1
    return work.likely() / (1 + work.constrained)  # then about every other token is forced


def _comes_back(job: Job) -> bool:
    """Whether another request follows the one that runs."""
    return isinstance(job.request, GenRequest) and job.request.follow is not None
