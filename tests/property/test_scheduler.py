"""The order of admission: by priority, and nobody is overtaken for ever."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.runtime.job import MOVES, Job, Stage
from lmc.runtime.request import Outcome, PrefillRequest
from lmc.runtime.scheduler import Scheduler
from lmc.runtime.work import Vocabulary

VOCABULARY = Vocabulary(100, [None] * 100, frozenset())


@given(
    waves=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=12),
    max_overtaken=st.integers(0, 6),
)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_nobody_is_overtaken_more_often_than_agreed(
    waves: list[list[int]], max_overtaken: int
) -> None:
    """One request runs at a time; before each step a wave of others arrives."""
    scheduler = Scheduler(
        VOCABULARY,
        kv_tokens=1000,
        context_length=100,
        max_running=1,
        max_batch_tokens=2,
        max_overtaken=max_overtaken,
    )
    jobs: list[Job] = []
    admitted: list[Job] = []
    waiting: dict[int, set[int]] = {}  # at each admission, who waited
    for number in range(1000):
        for priority in waves[number] if number < len(waves) else ():
            keys = np.array([2 * len(jobs), 2], np.int64)  # no prefix in common
            jobs.append(scheduler.submit(PrefillRequest(keys, (priority,))))
        before = {job.arrival for job in jobs if job.stage is Stage.WAITING}
        step = scheduler.next()
        if step is None:
            if number >= len(waves):
                break
            continue
        (job,) = scheduler.finish(step, Outcome((-1,), (0.0,), ((),)))
        assert job.stage is Stage.DONE, "its two tokens fit into a step"
        admitted.append(job)
        waiting[job.arrival] = before
    assert len(admitted) == len(jobs) < 100
    by_arrival = {job.arrival: job for job in jobs}
    for job in admitted:
        before_it = admitted[: admitted.index(job)]
        overtakers = [other for other in before_it if other.arrival > job.arrival]
        assert len(overtakers) <= max_overtaken
        passed_over = [by_arrival[arrival] for arrival in waiting[job.arrival]]
        if any(other.request.priority < job.request.priority for other in passed_over):
            assert job.arrival == min(waiting[job.arrival]), "only age comes before priority"
            assert len(overtakers) == max_overtaken


def test_what_has_ended_stays_so() -> None:
    for stage in (Stage.DONE, Stage.ABORTED):
        assert not MOVES[stage]
    assert set(MOVES) == set(Stage)
