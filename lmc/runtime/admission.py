"""Which of the requests that wait begin.

Promises    at most `max_overtaken` later requests are admitted before one; those that run keep the
            slots that they are going to want soon.
Costs       a look-up for each of the first `_WINDOW` waiting requests whose answer may have
            changed.
Not here    how many tokens a step has for them (`composing`), the order of those that wait
            (`waiting`).
Source      longest cached prefix first: Zheng et al., SGLang, arXiv:2312.07104, section 3.
"""

from __future__ import annotations

from lmc.runtime.job import Job, Stage
from lmc.runtime.placing import Draft
from lmc.runtime.queues import Queues

__all__ = ["Admission"]

_WINDOW = 64  # waiting requests among which the longest cached prefix is looked for


class Admission:
    """Lets requests begin, those with the longest cached prefix first."""

    def __init__(self, queues: Queues, headroom: int) -> None:
        """Args: headroom: slots left for each running request to grow."""
        self._queues = queues
        self._memory = queues.memory
        self._headroom = headroom

    def has_prompts(self, tokens: int) -> bool:
        """Whether so many prompt tokens, or a whole step of them, wait to be computed.

        It is looked for among those that run and are in no step, and the first that wait. What one
        of them can take over from another is not known yet: of those with the same first number of
        their priority, which branches of a row have, the longest counts.
        """
        tokens = min(tokens, self._queues.room.tokens)
        longest: dict[int, int] = {}
        found = 0
        for job in self._queues.running:
            if job.stage is Stage.PREFILL and not job.in_flight:
                found += _gain(longest, job, job.unplaced())
        for job in self.candidates():
            if found >= tokens:
                break
            found += _gain(longest, job, job.unplaced() - self.matched(job))
        return found >= tokens

    def candidates(self) -> list[Job]:
        """The first of those that wait; none if there is no place for one more."""
        return self._queues.waiting.first(_WINDOW) if self._queues.others_wait() else []

    def admit(self, draft: Draft, budget: int) -> int:
        """Start waiting requests while budget, memory and `max_running` allow; what is left."""
        queues = self._queues
        if budget <= 0 or not queues.others_wait():
            return budget
        promised = sum(self._claim(job) for job in queues.running)
        ranked: list[Job] = []
        while budget > 0 and queues.others_wait():
            if queues.running and self._memory.available <= promised:
                return budget
            job = queues.waiting.overdue()
            if job is None:
                ranked = ranked or self._ranked()
                job = ranked.pop()
                if job.stage is not Stage.WAITING:
                    continue
            if not self._start(job, promised):
                return budget
            budget -= draft.place_prompt(job, budget)
            if not job.ended:
                promised += self._claim(job)
        return budget

    def matched(self, job: Job) -> int:
        """How many tokens of a waiting request the cache holds now."""
        cache = self._memory.cache
        if job.seen_version != cache.version:
            job.matched = cache.match(job.sequence.keys, job.match_limit())
            job.seen_version = cache.version
        return job.matched

    def _ranked(self) -> list[Job]:
        """Waiting requests of the first priority, the best last: longest prefix, then oldest."""
        window = self._queues.waiting.front(_WINDOW)
        window.sort(key=lambda job: (self.matched(job), -job.arrival))
        return window

    def _claim(self, job: Job) -> int:
        """Slots that a job is going to want soon."""
        return job.unplaced() + min(job.need_work().to_make(), self._headroom)

    def _start(self, job: Job, promised: int) -> bool:
        """Let a waiting job run, unless memory beyond what is `promised` is too short for it.

        If nothing runs, any job may: all that the pool has can be its own.
        """
        sequence = job.sequence
        self._memory.begin(sequence, job.match_limit())
        if self._queues.running and self._memory.available < promised + self._claim(job):
            self._memory.let_go(sequence, 0)
            return False
        self._queues.start(job)
        return True


def _gain(longest: dict[int, int], job: Job, tokens: int) -> int:
    """How much longer a job makes the longest one of its row."""
    row = job.request.priority[0] if job.request.priority else -1 - job.arrival
    gain = max(tokens - longest.get(row, 0), 0)
    longest[row] = longest.get(row, 0) + gain
    return gain
