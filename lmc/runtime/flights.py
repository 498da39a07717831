"""The steps under way: at most two, and who takes part in them.

Owns        the steps under way, and each job's `in_flight` while it takes part in one.
Promises    a job takes part in one of them at most, apart from a step that continues the one
            before.
Costs       O(jobs in the steps under way) where a step starts or ends.
Not here    which steps there are (`composing`), what came of them (`scheduler`).

Two steps under way. While a device computes one step, another is given, of requests that take no
part in the first, and of those that continue it: the device then never waits for this. Steps are
done in the order in which they were given, so the second may read what the first writes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lmc.runtime.job import Job
from lmc.runtime.work import Work

__all__ = ["Flight", "Flights", "Part"]


@dataclass(slots=True)
class Part:
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
class Flight:
    """A step under way."""

    parts: list[Part]
    repeats: int


class Flights:
    """The steps under way, in the order in which they were given."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def newest(self) -> Flight | None:
        """The step that was given last."""
        return self._flights[-1] if self._flights else None

    def launch(self, parts: list[Part], repeats: int) -> None:
        """A step is under way from now on."""
        for part in parts:
            part.job.in_flight = True
        self._flights.append(Flight(parts, repeats))

    def land_oldest(self) -> list[Part]:
        """The oldest step is done; its parts."""
        return self._landed(self._flights.popleft())

    def land_newest(self) -> list[Part]:
        """The step that was given last is not computed; its parts."""
        return self._landed(self._flights.pop())

    def _landed(self, flight: Flight) -> list[Part]:
        """The jobs of a step take part in it no more, and in none if no other continues it."""
        for part in flight.parts:
            part.job.in_flight = False
        for other in self._flights:
            for part in other.parts:
                part.job.in_flight = not part.over
        return flight.parts
