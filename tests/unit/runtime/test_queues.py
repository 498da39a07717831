"""Who takes part in the steps under way, and who must make way; the rest by way of the engine."""

from __future__ import annotations

import numpy as np

from lmc.errors import Cancelled
from lmc.params import GenParams
from lmc.runtime.device_memory import DeviceMemoryError
from lmc.runtime.flights import Flights, Part
from lmc.runtime.job import Job, Stage
from lmc.runtime.request import GenRequest, Outcome, PrefillRequest, Step
from lmc.runtime.scheduler import Scheduler
from lmc.runtime.work import PrefillWork, Vocabulary

VOCABULARY = Vocabulary(100, [None] * 100, frozenset())


def part(arrival: int) -> Part:
    request = PrefillRequest(np.array([2, 4], np.int64))
    job = Job(request, arrival)
    job.work = PrefillWork()
    return Part(job, job.work, 0, 1, 2)


def test_who_takes_part_in_a_step_that_continues_is_in_flight_when_the_first_has_landed() -> None:
    flights = Flights()
    ends, rides, joins = part(0), part(1), part(2)
    flights.launch([ends, rides], 1)
    flights.launch([rides, joins], 1)
    assert flights.land_oldest() == [ends, rides]
    assert [p.job.in_flight for p in (ends, rides, joins)] == [False, True, True]
    flights.land_newest()
    assert not any(p.job.in_flight for p in (ends, rides, joins))
    assert not flights


def test_whose_request_is_over_is_not_held_by_a_step_that_continues() -> None:
    flights = Flights()
    over = part(0)
    flights.launch([over], 1)
    flights.launch([over], 1)
    over.job.work = PrefillWork()
    flights.land_oldest()
    assert not over.job.in_flight


def test_those_that_arrived_last_make_way_when_steps_get_smaller() -> None:
    """Four decode when the device has no memory for the prompt of a fifth."""
    scheduler = Scheduler(VOCABULARY, kv_tokens=500, context_length=200, max_batch_tokens=64)
    params = GenParams(max_tokens=20, ignore_eos=True)
    jobs = [
        scheduler.submit(GenRequest(np.array([2 * n, 2], np.int64), (), params)) for n in range(4)
    ]
    finish(scheduler, scheduler.next())
    assert {job.stage for job in jobs} == {Stage.DECODE}
    step = scheduler.next()
    assert step is not None
    late = scheduler.submit(PrefillRequest(np.arange(0, 8, 2, dtype=np.int64) + 100))
    second = scheduler.next()
    assert second is not None
    assert late.in_flight
    scheduler.put_back(second, DeviceMemoryError("no room"), kept=1)
    finish(scheduler, step)
    scheduler.next()
    running = [job for job in [*jobs, late] if job.stage is not Stage.WAITING]
    assert running == jobs[:2], "a step has two tokens now"
    scheduler.audit()
    scheduler.abandon([*jobs, late], lambda: Cancelled("the test is over"))


def finish(scheduler: Scheduler, step: Step | None) -> None:
    assert step is not None
    count = len(step.segments)
    scheduler.finish(step, Outcome((5,) * count, (0.0,) * count, ((),) * count))
