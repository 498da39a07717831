"""The graph executor: runs plans for many rows on one loop thread, without a thread per row.

    row --instructions--> executor --Request--> engine core --result--> registers --> next ones

A row has a register file; an instruction runs when the registers it reads are set. Compiled rows
hand over whole blocks, eager rows one instruction at a time: after that there is no difference.

Owns        the rows in flight, their registers, and the thread that steps the engine.
Promises    an error stays in its row: what depends on it fails with it, everything else goes on;
            after a row ends nothing of it runs any more, and nobody waits for it.
Costs       a few microseconds an instruction; model calls wait in the engine, not here.
Not here    what a request does (`scheduler`), what instructions do (`instructions`), what Python
            functions mean (`frontend`).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from lmc.errors import Cancelled, InternalError, LmcError, RunError
from lmc.plan import Block, If, Instr, Plan
from lmc.runtime.eager_row import EagerRow
from lmc.runtime.host_calls import RowTools
from lmc.runtime.instructions import HANDLERS
from lmc.runtime.planned_rows import Ledger, RowSpec
from lmc.runtime.race import Race, refuse_dropped
from lmc.runtime.results import KnownCall, RowResult
from lmc.runtime.row import Blame, Failure, Pending, Reader, ResumeFn, Row, Unset
from lmc.runtime.row_stream import RowStream
from lmc.runtime.target import Target
from lmc.runtime.tool_pool import DEFAULT_TOOL_WORKERS, ToolPool

if TYPE_CHECKING:
    from lmc.runtime.planned_rows import Place
    from lmc.runtime.recording import Observer
    from lmc.runtime.submission import Submission

__all__ = ["Executor", "PlannedRow", "RowHandle"]

_log = logging.getLogger("lmc.executor")

GLANCE = 0.0003  # seconds between looks whether a device is done, while nothing else comes
PATIENCE = 0.0005  # the same while there is something else
TURN = 0.02  # seconds that a thread which makes rows waits for some of them to start, at most
MOST_SPARE = 4096  # calls for when a device computes; the oldest are dropped
MAX_STARTED = 512  # rows in flight beyond which none is started of those that are planned
MAX_RESUMED = 64  # threads that run the rest of a program eagerly, at most

PlannedRow = tuple[Row, Callable[[], None]]
"""A row that waits for its turn, and what begins it."""


class RowHandle:
    """A submitted row, as its submitter sees it."""

    def __init__(self, executor: Executor, row: Row) -> None:
        self._executor = executor
        self._row = row

    def cancel(self, error: LmcError | None = None) -> None:
        """Stop the row; it ends with `error`, or with `Cancelled`. Safe from any thread."""
        reason = error or Cancelled("the run was cancelled")
        self._executor.post(lambda: self._executor.fail_row(self._row, reason))


class Executor:
    """Steps an engine core and the rows that use it, on a thread of its own."""

    def __init__(self, target: Target, tool_workers: int = DEFAULT_TOOL_WORKERS) -> None:
        self.target = target
        self.core = target.core
        self.handlers = HANDLERS
        self.tool_pool = ToolPool(tool_workers)
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._ready: deque[tuple[Row, Pending]] = deque()
        self._spare: deque[Callable[[], None]] = deque(maxlen=MOST_SPARE)
        self._rows: set[Row] = set()
        self._planned: deque[deque[PlannedRow]] = deque()  # not yet started
        self.ledger = Ledger()  # of the planned rows in flight
        self.awaited: set[Submission] = set()  # of which more rows are to come
        self._orders = itertools.count()
        self._blocks: dict[int, tuple[Block, tuple[Pending, ...]]] = {}
        self._inside: dict[int, tuple[If, tuple[int, ...]]] = {}
        self._deadlines: list[tuple[float, int, Row]] = []
        self.races: list[Race] = []  # that go on
        self.observer: Observer | None = None  # set before anything runs
        self._closed = False
        self._stopped: LmcError | None = None  # why the loop thread is no more
        self._pool: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    # ------------------------------------------------------------------ from any thread

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop thread call `call` soon.

        Raises:
            RunError: the engine is closed, or has stopped because of a fault.
        """
        with self._wake:
            if self._closed:
                raise RunError("the engine is closed", hint="run inside its `with` block")
            if self._stopped is not None:
                raise RunError(
                    f"the engine has stopped: {self._stopped.problem}", hint="make another one"
                ) from self._stopped
            self._inbox.append(call)
            self._wake.notify()
        self._ensure_thread()

    def submit_row(
        self,
        plan: Plan,
        arguments: list[str],
        *,
        seed: int,
        index: int,
        done: Callable[[RowResult], None],
        resume: ResumeFn | None = None,
        deadline: float | None = None,
        stream: RowStream | None = None,
        tools: RowTools | None = None,
    ) -> RowHandle:
        """Run `plan` on one row of arguments (in the order of `plan.params`).

        `done` is called once, on the loop thread. `deadline` is in seconds from now.
        """
        return self.submit(
            RowSpec(plan, arguments, seed, index, done, resume, deadline, tools), stream
        )

    def submit(self, spec: RowSpec, stream: RowStream | None = None) -> RowHandle:
        """Run one row; see `submit_row`."""
        row = self._row_of(spec, stream=stream)
        self.post(lambda: self._begin(row, spec))
        return RowHandle(self, row)

    def plan(
        self, placed: Sequence[tuple[RowSpec, Place]], line: deque[PlannedRow]
    ) -> dict[int, RowHandle]:
        """Have rows start in their order, after those of `line`; see `Submission`.

        They are started one by one, as the engine has room for requests. Which are, and when, does
        not depend on the time that anything takes, unless other rows run beside them or a device
        computes meanwhile.

        Args:
            placed: rows with their places.
            line: belongs to the loop thread from now on.

        Returns:
            The handles, by the rows' indices.

        Raises:
            RunError: as `post`.
        """
        rows = [(self._row_of(spec, place=place), spec) for spec, place in placed]
        planned = [(row, partial(self._begin, row, spec)) for row, spec in rows]

        def join() -> None:
            if not line:
                self._planned.append(line)
            line.extend(planned)

        self.post(join)
        return {row.index: RowHandle(self, row) for row, _ in rows}

    def give_way(self) -> None:
        """Let the loop thread do what there is to do, and wait for it, but not long."""
        done = threading.Event()
        with contextlib.suppress(RunError):
            self.post(lambda: self._inbox.append(done.set))  # when it comes round again
            done.wait(TURN)

    def _row_of(
        self, spec: RowSpec, stream: RowStream | None = None, place: Place | None = None
    ) -> Row:
        return Row(
            next(self._orders),
            spec.seed,
            spec.index,
            spec.plan.registers,
            self.target.automata(spec.plan),
            spec.done,
            spec.resume,
            stream,
            spec.tools or RowTools(),
            place,
        )

    def open_row(
        self,
        *,
        seed: int,
        index: int,
        deadline: float | None = None,
        stream: RowStream | None = None,
        tools: RowTools | None = None,
    ) -> tuple[EagerRow, Future[RowResult]]:
        """A row whose instructions come one by one, and the future of its result."""
        future: Future[RowResult] = Future()
        order, tools = next(self._orders), tools or RowTools()
        row = Row(order, seed, index, 0, [], future.set_result, None, stream, tools)
        self.post(lambda: self._admit(row, deadline))
        return EagerRow(self, row), future

    def close(self) -> None:
        """End all rows with `Cancelled` and stop the loop thread."""
        with self._wake:
            if self._closed:
                return
            self._inbox.append(self._abort_all)
            self._closed = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.tool_pool.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ the loop thread

    def _ensure_thread(self) -> None:
        if self._thread is None:
            with self._start_lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._loop, name="lmc-loop", daemon=True)
                    self._thread.start()

    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # not even the rows could be ended in order
            self._stop(error)

    def _turn(self) -> bool:
        """Wait for something to do and do it; False when the engine is closed."""
        with self._wake:
            while not (self._inbox or self._closed or self.core.has_work or self._may_start()):
                self._wake.wait(self._until_deadline())
                if self._deadlines and self._deadlines[0][0] <= time.monotonic():
                    break
            if not (self._inbox or self._closed or self._ready) and self.core.computing:
                if not self.awaited:
                    self.core.settle_for_few()
                if self.core.computing and not self._spare:
                    self._wake.wait(GLANCE)
            calls, self._inbox = self._inbox, deque()
            closing = self._closed
        try:
            while calls:
                calls.popleft()()
            self._expire()
            self._drain()
            self._start_planned()
            self._use_spare_time()
            if self.core.has_work and not self.core.computing:
                self.core.step()
                self._drain()
            if self.races:
                self.races = [race for race in self.races if self._goes_on(race)]
                self._drain()
        except BaseException as error:  # the last line: nobody may wait for ever
            with self._wake:
                self._inbox.extendleft(reversed(calls))
            self._break(error)
        return not closing or bool(self._inbox)

    def in_spare_time(self, call: Callable[[], None]) -> None:
        """Do something that need not be done while a device computes and nothing else is to do."""
        if self.core.overlaps:
            self._spare.append(call)

    def _use_spare_time(self) -> None:
        until = time.perf_counter() + PATIENCE
        while self._spare and not self._ready and self.core.computing:
            self._spare.popleft()()
            if time.perf_counter() > until:
                return

    def _goes_on(self, race: Race) -> bool:
        try:
            return not race.check()
        except Exception as error:
            self.fault(race.row, error)
            return False

    def _until_deadline(self) -> float | None:
        return max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            _, _, row = heapq.heappop(self._deadlines)
            if not row.finished:
                self.fail_row(row, Cancelled("the deadline passed before the row was done"))

    def _break(self, error: BaseException) -> None:
        """A fault of ours: every row fails with the cause, so that nobody waits for ever."""
        cause = _cause(error)
        self._set_aside()
        again: BaseException | None = None
        for row in self._unfinished():
            try:
                self.fail_row(row, cause)
            except BaseException as other:
                again = again or other
        if again is not None:
            raise again

    def _stop(self, error: BaseException) -> None:
        """The loop ends: fail what is there and refuse what comes."""
        _log.error("the engine has stopped", exc_info=error)
        cause = _cause(error)
        with self._wake:
            self._stopped = cause
            calls, self._inbox = self._inbox, deque()
        for call in calls:  # may admit rows, and ask for values
            with contextlib.suppress(BaseException):
                call()
        with contextlib.suppress(BaseException):
            self._break(cause)
        self._set_aside()

    def _abort_all(self) -> None:
        for row in self._unfinished():
            self.fail_row(row, Cancelled("the engine was closed"))

    def _begin(self, row: Row, spec: RowSpec) -> None:
        self._admit(row, spec.deadline)
        try:
            for param, text in zip(spec.plan.params, spec.arguments, strict=True):
                row.regs[param.into.index] = text
            self.emit_block(row, spec.plan.body)
        except Exception as error:
            self.fault(row, error)

    def _may_start(self) -> bool:
        """Whether one of the planned rows is to start: there must be room for it."""
        if not self._planned or not self.core.wants_more or len(self._rows) >= MAX_STARTED:
            return False
        place = self._planned[0][0][0].place
        held = self.ledger.claimed
        if place is None or not held or self.ledger.fits(place, self.core.runner):
            return True
        return not self.core.has_work  # those in flight wait for tools: better than nothing

    def _start_planned(self) -> None:
        """Start planned rows while the engine wants more; batches take turns."""
        while self._may_start() and not self.core.pressing:
            rows = self._planned.popleft()
            row, begin = rows.popleft()
            if rows:
                self._planned.append(rows)
            if not row.finished:  # cancelled before it began
                if row.place is not None:
                    row.place.start()
                begin()
                self._drain()

    def _unfinished(self) -> list[Row]:
        """All rows that are not done; those not yet started will not be."""
        waiting = [row for rows in self._planned for row, _ in rows if not row.finished]
        while self._planned:
            self._planned.popleft().clear()  # one that is empty may be gone on with
        return [*self._rows, *waiting]

    def _admit(self, row: Row, deadline: float | None) -> None:
        self._rows.add(row)
        if self.observer is not None:
            self.observer.row_begins(row)
        if deadline is not None:
            if len(self._deadlines) > 2 * len(self._rows) + 64:  # rows that ended long before
                self._deadlines = [entry for entry in self._deadlines if not entry[2].finished]
                heapq.heapify(self._deadlines)
            seconds = min(deadline, threading.TIMEOUT_MAX)  # for what lies further off nobody waits
            heapq.heappush(self._deadlines, (time.monotonic() + seconds, row.order, row))

    def _drain(self) -> None:
        """Run the instructions that are ready, until a device that waits comes first."""
        ready = self._ready
        glance = time.perf_counter() + PATIENCE
        while ready:
            if time.perf_counter() > glance:
                if self.core.pressing:
                    return
                glance = time.perf_counter() + PATIENCE
            row, pending = ready.popleft()
            if not row.finished:
                self._run(row, pending)
            elif isinstance(pending.instr, Reader):
                pending.instr.refuse(row)

    def _set_aside(self) -> None:
        """Forget the instructions that are ready; those that read wait for their row's end."""
        while self._ready:
            row, pending = self._ready.popleft()
            if isinstance(pending.instr, Reader):
                row.waiters.setdefault(pending.instr.register.index, []).append(pending)
            if row.finished:
                row.wake_readers()

    def _run(self, row: Row, pending: Pending) -> None:
        regs = row.regs
        instr = pending.instr
        if refuse_dropped(self, row, instr):
            return
        if not instr.tolerant:  # a failed operand fails what depends on it, only
            for index in pending.reads:
                if type(regs[index]) is Failure:
                    self._fail(row, pending, regs[index].error)
                    return
        try:
            self.handlers[instr.op](self, row, instr)
        except LmcError as error:
            self._fail(row, pending, error.at(instr.at))
        except Exception as error:  # a fault of ours in one row must not reach the others
            fault = InternalError(f"{instr.op}: {error!r}", instr.at)
            fault.__cause__ = error
            self._fail(row, pending, fault)

    def _fail(self, row: Row, pending: Pending, error: LmcError) -> None:
        if not pending.writes:  # if, resume: the row cannot go on
            if isinstance(pending.instr, If) and pending.instr.after:
                blame = Blame(error=error, after=pending.instr.after, at=pending.instr.at)
                self.emit(row, Pending(blame))
                return
            self.fail_row(row, error)
        for index in pending.writes:
            self.set(row, index, Failure(error))

    def emit(self, row: Row, pending: Pending) -> None:
        """Take one instruction: run it when its registers are set."""
        missing = 0
        for index in pending.reads:
            if row.regs[index] is Unset:
                row.waiters.setdefault(index, []).append(pending)
                missing += 1
        pending.missing = missing
        if not missing:
            self._ready.append((row, pending))

    def emit_block(self, row: Row, block: Block) -> None:
        """Take all instructions of a block."""
        known = self._blocks.get(id(block))
        if known is None:
            if len(self._blocks) > 4096:
                self._blocks.clear()
            known = self._blocks[id(block)] = (block, tuple(map(Pending, block.instrs)))
        if row.stream is not None:
            row.stream.enter_block(row, block)
        for pending in known[1]:
            self.emit(row, pending.again())

    def still_read(self, row: Row) -> set[int]:
        """The registers that instructions of a row are going to read, those inside of them too."""
        waiting = {id(one): one.instr for some in row.waiters.values() for one in some}
        waiting.update((id(one), one.instr) for whose, one in self._ready if whose is row)
        return {index for instr in waiting.values() for index in self._all_reads(instr)}

    def _all_reads(self, instr: Instr) -> tuple[int, ...]:
        if not isinstance(instr, If):
            return tuple(instr.reads())
        known = self._inside.get(id(instr))
        if known is None:
            if len(self._inside) > 4096:
                self._inside.clear()
            ways = (*instr.then.instrs, *instr.orelse.instrs)
            inside = dict.fromkeys(index for one in ways for index in self._all_reads(one))
            known = self._inside[id(instr)] = (instr, tuple(inside))
        return known[1]

    def set(self, row: Row, index: int, value: object) -> None:
        """Give a register its value and wake what waits for it."""
        if row.finished:
            return
        row.regs[index] = value
        if row.stream is not None:
            row.stream.is_set(row, index, value)
        for pending in row.waiters.pop(index, ()):
            pending.missing -= 1
            if not pending.missing:
                self._ready.append((row, pending))

    def fail_row(self, row: Row, error: LmcError) -> None:
        """End a row with an error; who waits for one of its registers gets it, too."""
        self.finish(row, RowResult(error=error))

    def fault(self, row: Row, error: Exception) -> None:
        """End a row because of a fault of ours in something that was done for it alone."""
        self.fail_row(row, _cause(error))

    def resume(self, row: Row, calls: list[KnownCall], tools: list[Any]) -> None:
        """Run the rest of a row's program eagerly, on a thread of the pool."""
        assert row.resume is not None, "checked by the instruction"
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MAX_RESUMED, thread_name_prefix="lmc-resume")
        self._pool.submit(row.resume, EagerRow(self, row), calls, tools)

    def finish(self, row: Row, result: RowResult) -> None:
        """End a row: cancel what still runs for it, wake its readers, hand over its result."""
        if row.finished:
            return
        row.finished = True
        row.error = result.error
        if row.place is not None:
            row.place.leave()
        self._rows.discard(row)
        if not self._rows:
            self._spare.clear()  # of rows that are over: nothing may keep these
        if self.observer is not None:
            self.observer.row_ends(row, result)
        try:
            for handle in list(row.handles):
                self.core.cancel(handle)
        finally:
            row.handles.clear()
            row.tools.cancel()
            row.wake_readers()
            if row.stream is not None and result.error is None:
                row.stream.end()
            try:
                row.done(result)
            except BaseException:  # a fault of who asked for the row, and of nobody else
                _log.exception("what was to be called at the end of a row failed")


def _cause(error: BaseException) -> LmcError:
    """An error of ours; any other exception becomes the cause of an `InternalError`."""
    if isinstance(error, LmcError):
        return error
    cause = InternalError(f"{error!r}")
    cause.__cause__ = error
    return cause
