"""The requests that wait: in order of priority, and so that none waits for ever.

Owns        which requests wait, and the count of admissions.
Costs       add and admit O(log waiting) comparisons and a move in a list; `overdue` amortized
            O(log waiting).
"""

from __future__ import annotations

import bisect
import heapq

from lmc.runtime.job import Job
from lmc.runtime.request import AHEAD

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """Jobs by priority, then arrival; one that was overtaken too often comes first of all."""

    def __init__(self, max_overtaken: int) -> None:
        """Args: max_overtaken: how many later jobs may be admitted before one."""
        self._max_overtaken = max_overtaken
        self._sorted: list[tuple[tuple[int, ...], int, Job]] = []
        self._by_arrival: dict[int, Job] = {}
        self._arrivals: list[int] = []  # heap of those waiting, and of some that wait no more
        self._admissions = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, job: Job, *, again: bool = False) -> None:
        """Let a job wait, `again` if it was admitted before."""
        if not again:
            # All that wait now arrived earlier: they do not overtake it.
            job.before = self._admissions + len(self._sorted)
        bisect.insort(self._sorted, (job.request.priority, job.arrival, job))
        self._by_arrival[job.arrival] = job
        if job.request.priority[:1] != (AHEAD,):
            heapq.heappush(self._arrivals, job.arrival)

    def remove(self, job: Job) -> None:
        """The job waits no more."""
        del self._sorted[bisect.bisect_left(self._sorted, (job.request.priority, job.arrival))]
        del self._by_arrival[job.arrival]

    def admit(self, job: Job) -> None:
        """The job waits no more, since it runs."""
        self.remove(job)
        self._admissions += 1

    def overdue(self) -> Job | None:
        """The job that has waited longest, if `max_overtaken` later ones went before it."""
        while self._arrivals and self._arrivals[0] not in self._by_arrival:
            heapq.heappop(self._arrivals)
        if not self._arrivals:
            return None
        job = self._by_arrival[self._arrivals[0]]
        return job if self._admissions - job.before >= self._max_overtaken else None

    def front(self, most: int) -> list[Job]:
        """The first `most` jobs, as far as they share the priority of the first."""
        head = self._sorted[:most]
        return [job for priority, _, job in head if priority == head[0][0]]

    def first(self, most: int) -> list[Job]:
        """The first `most` jobs, whatever their priority."""
        return [job for _, _, job in self._sorted[:most]]
