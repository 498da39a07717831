"""What happened in a run, for traces and reports: who was at work when, and what a step computed.

    executor, engine --Observer--> Recorder --Recording--> a trace, a page

The executor and the engine know an observer only if somebody asked for one; without it they pay for
a look at an attribute a request, a row and a step.

Owns        what was seen so far.
Promises    nothing that runs is changed or waited for; what never ended ends with the recording.
Costs       some 10 us a request and less a step; memory grows with both.
Not here    file formats (`lmc.commands.trace`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lmc.errors import LmcError, Location
from lmc.plan import Instr
from lmc.runtime.request import GenRequest, GenResult, Request, ScoreRequest, ScoreResult, Step
from lmc.runtime.row import Row

if TYPE_CHECKING:
    from lmc.runtime.engine import EngineCore
    from lmc.runtime.load import LocalEngine
    from lmc.runtime.results import RowResult

__all__ = ["Observer", "Recorder", "Recording", "RowSpan", "StepSpan", "WorkSpan", "record"]

Done = Callable[[Any], None]


class Observer(Protocol):
    """Is told, on the executor's thread, what the executor and the engine do."""

    def row_begins(self, row: Row) -> None:
        """A row is in flight from now on."""

    def row_ends(self, row: Row, result: RowResult) -> None:
        """A row is over."""

    def request(self, row: Row, instr: Instr | None, request: Request, done: Done) -> Done:
        """A request is submitted; gives what is to be called at its end instead of `done`."""

    def tool(self, row: Row, name: str, at: Location | None, done: Done) -> Done:
        """A tool is called; gives what is to be called at its end instead of `done`."""

    def step_begins(self, step: Step, requests: int) -> None:
        """The runner computes a step for so many requests."""

    def step_ends(self, core: EngineCore, step: Step, failed: bool) -> None:
        """What came of a step that had begun has been taken."""


@dataclass(slots=True)
class RowSpan:
    """A row in flight; times are seconds since the recording began, `end` None if it goes on."""

    order: int
    index: int
    begin: float
    end: float | None = None
    error: str | None = None


@dataclass(slots=True)
class WorkSpan:
    """A model call, a prefill or a call of a tool.

    Attributes:
        row: the order of its row, which is unique in a recording.
        kind: "gen", "score", "prefill" or "tool".
        name: of the variable or of the tool; the op where there is none.
        at: the line of the program.
        begin, end: seconds since the recording began; `end` is None if it goes on.
        started: the first of its tokens was scheduled.
        first_token: its first token was made.
        facts: counts of tokens, and how it ended.
    """

    row: int
    kind: str
    name: str
    at: Location | None
    begin: float
    end: float | None = None
    started: float | None = None
    first_token: float | None = None
    facts: dict[str, int | str] = field(default_factory=dict)


@dataclass(slots=True)
class StepSpan:
    """A step of the model.

    Attributes:
        begin, end: seconds since the recording began.
        requests: how many took part.
        prompt_tokens: positions of prompts that it computed.
        made_tokens: positions of tokens that model calls made; each repeat of the step counts.
        repeats: forward passes.
        failed: the runner raised.
        cached_tokens, evicted_tokens, generated_tokens, forced_tokens: of the engine until then.
        held, free: KV slots that the cache holds, and that are free, after it.
    """

    begin: float
    requests: int
    prompt_tokens: int
    made_tokens: int
    repeats: int
    end: float | None = None
    failed: bool = False
    cached_tokens: int = 0
    evicted_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    held: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """All that was seen, each list in order of beginning; `seconds` is how long it took."""

    rows: list[RowSpan]
    work: list[WorkSpan]
    steps: list[StepSpan]
    seconds: float


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._zero = clock()
        self._rows: dict[int, RowSpan] = {}
        self._work: list[WorkSpan] = []
        self._steps: list[StepSpan] = []
        self._open: dict[int, StepSpan] = {}  # of steps under way, by the id of each

    def _now(self) -> float:
        return self._clock() - self._zero

    def row_begins(self, row: Row) -> None:
        self._rows[row.order] = RowSpan(row.order, row.index, self._now())

    def row_ends(self, row: Row, result: RowResult) -> None:
        span = self._rows.get(row.order)
        if span is not None:
            span.end = self._now()
            span.error = None if result.error is None else result.error.problem

    def request(self, row: Row, instr: Instr | None, request: Request, done: Done) -> Done:
        kind = "prefill"
        if isinstance(request, GenRequest):
            kind = "gen"
        elif isinstance(request, ScoreRequest):
            kind = "score"
        name = getattr(instr, "name", None) or "+".join(getattr(instr, "names", ())) or kind
        at = None if instr is None else instr.at
        span = WorkSpan(row.order, kind, name, at, self._now())
        span.facts["prompt_tokens"] = len(request.keys)
        self._work.append(span)

        def end(result: Any) -> None:  # noqa: ANN401 - of any request
            self._end(span, result)
            done(result)

        return end

    def tool(self, row: Row, name: str, at: Location | None, done: Done) -> Done:
        span = WorkSpan(row.order, "tool", name, at, self._now())
        self._work.append(span)

        def end(result: Any) -> None:  # noqa: ANN401 - of any tool
            self._end(span, result)
            done(result)

        return end

    def _end(self, span: WorkSpan, result: Any) -> None:  # noqa: ANN401 - of any request or tool
        span.end = self._now()
        facts = span.facts
        if isinstance(result, LmcError):
            facts["error"] = result.problem
        elif isinstance(result, GenResult):
            facts["cached_tokens"] = result.cached_tokens
            facts["made_tokens"] = len(result.tokens)
            facts["forced_tokens"] = result.forced_tokens
            facts["finish_reason"] = str(result.finish)
            times = result.timings
            span.started = _after(span.begin, times.started, span.end)
            span.first_token = _after(span.begin, times.first_token, span.end)
        elif isinstance(result, ScoreResult):
            facts["cached_tokens"] = result.cached_tokens
            facts["scored_texts"] = len(result.logprobs)

    def step_begins(self, step: Step, requests: int) -> None:
        made = sum(len(s.tokens) for s in step.segments if s.made)
        prompt = sum(len(s.tokens) for s in step.segments) - made
        more = (step.repeats - 1) * len(step.segments)
        span = StepSpan(self._now(), requests, prompt, made + more, step.repeats)
        self._steps.append(span)
        self._open[id(step)] = span

    def step_ends(self, core: EngineCore, step: Step, failed: bool) -> None:
        span, stats = self._open.pop(id(step)), core.stats
        span.end = self._now()
        span.failed = failed
        span.cached_tokens, span.evicted_tokens = stats.cached_tokens, stats.evicted_tokens
        span.generated_tokens, span.forced_tokens = stats.generated_tokens, stats.forced_tokens
        span.held, span.free = core.kv_slots

    def recording(self) -> Recording:
        """What was seen until now; nothing may run any more."""
        return Recording(list(self._rows.values()), self._work, self._steps, self._now())


def _after(begin: float, later: float | None, end: float) -> float | None:
    return None if later is None else min(begin + later, end)


def record(engine: LocalEngine) -> Recorder:
    """Record all that an engine does from now on; to be called before anything runs on it."""
    recorder = Recorder()
    engine.executor.observer = engine.core.observer = recorder
    return recorder
