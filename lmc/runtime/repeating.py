"""How often a runner may repeat a decode step by itself: as long as no decision is needed.

A decision is needed where a request ends, where only the CPU knows what may be drawn, and where
there are no slots for more tokens. What is computed for a request beyond its end is dropped.

Promises    numbers only; nothing is changed.
Costs       O(requests), and sorting them.
Not here    whether anybody waits for a place in the next step (`composing`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lmc.runtime.job import Job
from lmc.runtime.work import GenWork

__all__ = ["ends", "repeats_after", "repeats_of", "rides"]

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


def repeats_after(riding: Sequence[Job], left: int, most: int, context: int, available: int) -> int:
    """How often a step may be repeated that continues another one; 1 is once.

    Args:
        riding: all that takes part in it, at least one; see `rides`.
        left: how many draws of the first are not known yet.
        most, context, available: as for `repeats_of`.
    """
    first_end = context
    for job in riding:
        work = job.need_work()
        assert isinstance(work, GenWork), "others do not ride"
        most = min(most, work.ahead(), context - job.sequence.total - left + 1)
        first_end = min(first_end, work.to_make() - left)
    return max(1, min(most, max(first_end, _REPEATS_BEYOND), available // len(riding)))


def rides(job: Job, left: int) -> bool:
    """Whether a job whose step is under way can go on in the next one, from a token not known yet.

    Nothing may be needed to draw the token after that but the token itself.

    Args:
        left: how many draws of the step are not known yet.
    """
    work, sequence = job.need_work(), job.sequence
    return (
        isinstance(work, GenWork)
        and sequence.placed + 1 == sequence.total + left
        and not work.constrained
        and work.to_make() > left
        and work.ahead() > 0
    )


def ends(job: Job, left: int) -> bool:
    """Whether a job whose step is under way certainly ends with it; `left` as for `rides`."""
    work = job.need_work()
    return isinstance(work, GenWork) and not work.constrained and work.to_make() <= left
