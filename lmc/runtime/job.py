"""A request in the scheduler's hands, and the stages of its life."""

from __future__ import annotations

import enum
import time

from lmc.errors import InternalError, LmcError
from lmc.runtime.request import Request, Timings
from lmc.runtime.sequence import TokenSequence
from lmc.runtime.work import Result, Work

__all__ = ["MOVES", "Job", "Stage"]


class Stage(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"  # has no slots; also after it was retracted
    PREFILL = "prefill"  # its known tokens are being computed, chunk by chunk
    DECODE = "decode"  # all known tokens but the newest ones, drawn or forced, are computed
    DONE = "done"
    ABORTED = "aborted"  # cancelled or failed


MOVES: dict[Stage, frozenset[Stage]] = {
    Stage.WAITING: frozenset({Stage.PREFILL, Stage.DONE, Stage.ABORTED}),
    Stage.PREFILL: frozenset({Stage.DECODE, Stage.WAITING, Stage.DONE, Stage.ABORTED}),
    Stage.DECODE: frozenset({Stage.PREFILL, Stage.WAITING, Stage.DONE, Stage.ABORTED}),
    Stage.DONE: frozenset(),
    Stage.ABORTED: frozenset(),
}


class Job:
    """A request in the scheduler's hands, or a chain of them; others only read it.

    Attributes:
        request, work: what is wanted; in a chain, what is wanted now.
        arrival: its number in order of submission.
        stage: where it stands.
        cached_tokens: of its prompt, how many were found in the cache.
        submitted, started, first_token: when, by the monotonic clock; None if not yet.
        turn: its number among those that began to run or to go on, in the order in which they did.
        in_flight: whether it takes part in a step that is under way, or has all that its request
            wants and has not been gone on with.
        outcome: the result, or the error, once the stage is DONE or ABORTED.
    """

    __slots__ = (
        "arrival",
        "before",
        "cached_tokens",
        "first_token",
        "in_flight",
        "matched",
        "outcome",
        "request",
        "retracted",
        "seen_version",
        "sequence",
        "stage",
        "started",
        "submitted",
        "turn",
        "work",
    )

    def __init__(self, request: Request, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.stage = Stage.WAITING
        self.cached_tokens = 0
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.first_token: float | None = None
        self.turn = 0
        self.in_flight = False
        self.outcome: Result | LmcError = None
        self.work: Work | None = None
        self.sequence = TokenSequence(request.keys, 0)
        self.retracted = False  # ever: its prompt has been counted and computed
        self.before = 0  # admissions that may come first without overtaking it
        self.matched = 0  # cached prefix when the cache had `seen_version`
        self.seen_version = -1

    def go_on(self, request: Request, work: Work) -> None:
        """Be the request that follows the one that has ended, from now on."""
        self.request, self.work = request, work
        self.cached_tokens = 0
        self.submitted = time.monotonic()
        self.started = None if self.stage is Stage.WAITING else self.submitted
        self.first_token = None
        self.retracted = False
        self.seen_version = -1

    @property
    def ended(self) -> bool:
        return self.stage in (Stage.DONE, Stage.ABORTED)

    def timings(self) -> Timings:
        """When it was started and so on; it ends now."""

        def after(moment: float | None) -> float | None:
            return None if moment is None else moment - self.submitted

        return Timings(after(self.started), after(self.first_token), after(time.monotonic()))

    def need_work(self) -> Work:
        if self.work is None:
            raise InternalError("a request was refused and still scheduled")
        return self.work

    def unplaced(self) -> int:
        """Known tokens that have no slot yet."""
        return self.sequence.total - self.sequence.placed + self.need_work().branches

    def match_limit(self) -> int:
        """How many of its keys may be taken from the cache."""
        return self.sequence.total - int(self.need_work().computes_last)
