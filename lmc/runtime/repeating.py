"""How often a runner may repeat a decode step by itself: as long as no decision is needed.

A decision is needed where a request ends, where only the CPU knows what may be drawn, and where
there are no slots for more tokens. What is computed for a request beyond its end is dropped.

Promises    numbers only; nothing is changed.
Costs       O(requests), and sorting them.
Not here    whether anybody waits for a place in the next step (`scheduler`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lmc.runtime.job import Job
from lmc.runtime.work import GenWork

__all__ = ["repeats_after", "repeats_of"]

_REPEATS_BEYOND = 4  # repeats that are made although a request ends before
_LEFT_BEHIND = 8  # one of so many requests may take part in the first of several repeats only
_ROWS_WORTH_A_PASS = 32  # requests from which on forced tokens are as well computed one by one


def repeats_of(
    decoding: Sequence[Job], counts: Sequence[int], most: int, context: int, available: int
) -> int:
    """How often a step may be repeated; 1 is once.

    Args:
        decoding: all that takes part in it, at least one.
        counts: how many tokens of each it computes at first.
        most: what the runner allows.
        context: most positions that the model knows.
        available: slots that are free or can be made free.
    """
    rows, likely = len(decoding), 0
    aheads: list[int] = []
    ends: list[int] = []
    for job, count in zip(decoding, counts, strict=True):
        work = job.need_work()
        if not isinstance(work, GenWork) or job.sequence.placed + count < job.sequence.total:
            return 1
        if work.jumps and rows < _ROWS_WORTH_A_PASS:
            return 1
        most = min(most, context - job.sequence.total + 1)
        aheads.append(work.ahead())
        ends.append(work.to_make())
        likely = max(likely, work.likely())
    if not all(aheads):
        return 1
    return max(1, min(
        most,
        sorted(aheads)[rows // _LEFT_BEHIND],
        max(min(*ends, likely), _REPEATS_BEYOND),
        1 + (available - sum(counts)) // rows,
    ))  # fmt: skip


def repeats_after(live: Sequence[Job], left: int, most: int, context: int, available: int) -> int:
    """How often a step may be repeated that continues another one; 0 if there must be none.

    Args:
        live: all that takes part in both, at least one.
        left: how many repeats of the first are not done yet.
        most, context, available: as for `repeats_of`.
    """
    first_end = context
    for job in live:
        work, sequence = job.need_work(), job.sequence
        if not isinstance(work, GenWork) or work.constrained:
            return 0
        if sequence.placed + 1 != sequence.total + left:
            return 0
        most = min(most, work.ahead(), context - sequence.total - left + 1)
        first_end = min(first_end, work.to_make() - left)
    repeats = min(most, max(first_end, _REPEATS_BEYOND), available // len(live))
    return repeats if first_end > 0 and repeats > 1 else 0
