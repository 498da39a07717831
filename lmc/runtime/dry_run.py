"""A dry run: the real executor and scheduler on a runner that computes nothing.

What a batch costs (tokens sent, cached and computed, steps, memory) is decided by the scheduler
and the cache, and these see of a model only how many tokens it makes and which way a program goes
on. So the cost is found by running them, twice: once as if every text ended as soon as it may and
every unknown choice were the smaller one, once the other way round. Where nothing is unknown, both
runs do exactly what the real one will do.

    plans ──► DryEngine (shortest) ──► least ┐
          └─► DryEngine (longest)  ──► most  ┴──► Prediction, and the reasons why it is not exact

Owns        nothing of the engine that it stands in for; tables of constraints are shared with it.
Promises    no model, no tool and no Python of the program runs. Without `reasons`, the counters are
            those of the run, for rows that start on an empty cache and have no deadline.
Costs       what the executor, the scheduler and the tokenizer cost for these rows; the first two
            twice where something is unknown.
Not here    which reasons there are (`unknowns`), the form of the answer (`prediction`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from lmc.constraints.matcher import TokenMatcher
from lmc.runtime.dry_runner import DryRunner
from lmc.runtime.engine import EngineCore, Handle, OnDone, OnText
from lmc.runtime.executor import Executor
from lmc.runtime.kv_pool import KVPool
from lmc.runtime.limits import Limits
from lmc.runtime.request import (
    Constraint,
    GenRequest,
    GenResult,
    IntArray,
    PrefillRequest,
    Request,
    ScoreRequest,
)
from lmc.runtime.scheduler import Scheduler
from lmc.runtime.target import Target
from lmc.runtime.unknowns import Unknowns

if TYPE_CHECKING:
    from lmc.plan import Instr
    from lmc.runtime.planned_rows import Place, RowSpec
    from lmc.runtime.row import Row
    from lmc.runtime.row_stream import RowStream
    from lmc.runtime.stats import EngineStats

__all__ = ["DryEngine", "Rehearsal"]

_MOST_PLACES = 256  # of a constraint that are looked at to find that its texts are of one length
_MOST_SLOTS = 2**31
_MOST_TOKENS = 64  # that may follow at one of them


@dataclass(frozen=True)
class Rehearsal:
    """What a dry run takes of an engine, or of a model that is not loaded."""

    target: Target
    limits: Limits
    seed: int
    tokenizer_fingerprint: str
    template_fingerprint: str

    def engine(self, *, longest: bool) -> DryEngine:
        """An engine with an empty cache."""
        return DryEngine(self, longest=longest)


class DryEngine:
    """As much of `lmc.Engine` as jobs need."""

    def __init__(self, rehearsal: Rehearsal, *, longest: bool) -> None:
        limits, tokenizer = rehearsal.limits, rehearsal.target.tokenizer
        self.seed = rehearsal.seed
        self.tokenizer_fingerprint = rehearsal.tokenizer_fingerprint
        self.template_fingerprint = rehearsal.template_fingerprint
        self.unknowns = Unknowns(longest=longest)
        self.core = _DryCore(
            DryRunner(limits, tokenizer.token_bytes, tokenizer.eos_ids, longest=longest),
            tokenizer.token_bytes,
            tokenizer.eos_ids,
            max_batch_tokens=limits.max_batch_tokens,
            max_running=limits.max_running,
            check=False,  # there are no slots to be lost
        )
        self.core.unknowns = self.unknowns
        target = replace(rehearsal.target, core=self.core, _prefills={})
        self.executor = _DryExecutor(target, self.unknowns)

    @property
    def stats(self) -> EngineStats:
        return self.core.stats

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the counters of the real run may be others."""
        reasons = self.unknowns.reasons
        if self.unknowns.sampled and self.stats.evicted_tokens:
            reasons = (*reasons, "how many tokens samples of one prompt share is not known")
        return reasons

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.executor.close()


class _DryExecutor(Executor):
    """Runs plans as far as they are known; see `Unknowns`."""

    def __init__(self, target: Target, unknowns: Unknowns) -> None:
        super().__init__(target)
        self.handlers = unknowns.handlers(self.handlers)
        self._unknowns = unknowns

    def _row_of(
        self, spec: RowSpec, stream: RowStream | None = None, place: Place | None = None
    ) -> Row:
        self._unknowns.learn(spec.plan)
        return super()._row_of(spec, stream, place)


class _CountingPool(KVPool):
    """A pool that counts slots and gives each number once: nobody writes to what it gives.

    After 2**31 slots it begins anew; a slot that is still held then is not told from its double.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = self._free = capacity
        self._next = 0

    def take(self, count: int) -> IntArray | None:
        if count > self._free:
            return None
        self._free -= count
        if self._next + count > _MOST_SLOTS:
            self._next = 0
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.int32)

    def give(self, slots: IntArray) -> None:
        self._free += len(slots)


class _DryCore(EngineCore):
    """Decides how long texts become before they are asked for."""

    unknowns: Unknowns

    def _new_scheduler(self) -> Scheduler:
        scheduler = super()._new_scheduler()
        scheduler.memory.pool = _CountingPool(scheduler.memory.capacity)
        return scheduler

    def submit(self, request: Request, on_done: OnDone, on_text: OnText | None = None) -> Handle:
        if isinstance(request, GenRequest):
            request = self._told(request, self.unknowns.calls())
        elif not isinstance(request, (ScoreRequest, PrefillRequest)):
            self.unknowns.note_length(self.unknowns.calls()[0])
        return super().submit(request, on_done, on_text)

    def _told(self, request: GenRequest, calls: Sequence[Instr | None]) -> GenRequest:
        """The request for a text of a length that is decided; `calls` are it and its chain's."""
        follow = request.follow
        if follow is not None:

            def go_on(result: GenResult) -> GenRequest | None:
                following = follow(result)
                return following and self._told(following, calls[1:])

            request = replace(request, follow=go_on)
        self.unknowns.sampled = self.unknowns.sampled or request.sampling.temperature > 0
        if _has_one_length(request):
            return request
        self.unknowns.note_length(calls[0])
        params, longest = request.params, self.unknowns.longest
        if request.constraint is not None:
            if longest:
                return request
            return _shortest(request, request.constraint)
        stops = bool(params.stop or params.stop_regex or params.stop_token_ids)
        told = replace(params, stop=(), stop_regex=(), stop_token_ids=())
        if longest:
            told = replace(told, ignore_eos=True)
        elif stops and params.ignore_eos:
            told = replace(told, max_tokens=min(max(params.min_tokens, 1), params.max_tokens))
        return replace(request, params=told, stop_automata=())


def _has_one_length(request: GenRequest) -> bool:
    """Whether the text has so many tokens whatever the model prefers."""
    params = request.params
    if params.max_tokens == 0 and not request.extra_tokens:
        return True
    if params.stop or params.stop_regex or params.stop_token_ids:
        return False
    if request.constraint is None:
        return params.ignore_eos or params.min_tokens >= params.max_tokens
    if params.scored or params.min_tokens or not isinstance(request.constraint, TokenMatcher):
        return False
    pattern = _Lengths(request).of(request.constraint.fork())
    if pattern is None:
        return False
    return sum(pattern) + len(pattern) - 1 <= params.max_tokens + request.extra_tokens


def _shortest(request: GenRequest, constraint: Constraint) -> GenRequest:
    """The request for the shortest text that its constraint takes."""
    params = request.params
    there = params.max_tokens + request.extra_tokens
    needed = constraint.shortest_tokens(there + request.closing_tokens)
    most = min(there, max(needed - request.closing_tokens, params.min_tokens, 1))
    return replace(request, params=replace(params, max_tokens=most), extra_tokens=0)


class _Lengths:
    """Finds whether all texts of a constraint are drawn and forced in one pattern of tokens."""

    def __init__(self, request: GenRequest) -> None:
        self._closing = request.closing
        self._jump = request.params.jump_forward
        self._left = _MOST_PLACES
        self._known: dict[object, tuple[int, ...] | None] = {}

    def of(self, matcher: TokenMatcher) -> tuple[int, ...] | None:
        """How many tokens are forced before, between and after the draws, if always the same.

        Args:
            matcher: where to begin; it is moved.
        """
        forced = 0
        while self._jump and not self._ended(matcher) and (run := matcher.forced()):
            for token in run:
                matcher.advance(token)
                forced += 1
                if self._ended(matcher):
                    break
        if self._ended(matcher):
            return (forced,)
        place = matcher.place
        if place not in self._known:
            self._left -= 1
            self._known[place] = None  # as long as it is looked at: a loop has no one length
            self._known[place] = self._drawn(matcher)
        rest = self._known[place]
        return None if rest is None else (forced, *rest)

    def _drawn(self, matcher: TokenMatcher) -> tuple[int, ...] | None:
        allowed = matcher.mask().nonzero()[0].tolist()
        if matcher.is_complete() or self._left < 0 or len(allowed) > _MOST_TOKENS:
            return None
        found: set[tuple[int, ...] | None] = set()
        for token in allowed:
            after = matcher.fork()
            after.advance(token)
            found.add(self.of(after))
            if len(found) > 1 or None in found:
                return None
        return found.pop() if found else None

    def _ended(self, matcher: TokenMatcher) -> bool:
        if matcher.is_finished():
            return True
        left = matcher.remaining(len(self._closing.encode())) if self._closing else None
        return left is not None and self._closing.endswith(left)
