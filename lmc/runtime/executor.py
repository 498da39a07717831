"""The graph executor: runs plans for many rows on one loop thread, without a thread per row.

    row --instructions--> executor --Request--> engine core --result--> registers --> next ones

A row has a register file; an instruction runs when the registers it reads are set. Compiled rows
hand over whole blocks, eager rows one instruction at a time: after that there is no difference.

Owns        the rows in flight, their registers, and the thread that steps the engine.
Promises    an error stays in its row: what depends on it fails with it, everything else goes on;
            after a row ends nothing of it runs any more.
Costs       a few microseconds an instruction; model calls wait in the engine, not here.
Not here    what a request does (`scheduler`), what Python functions mean (`frontend`).
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from lmc.constraints.automaton import Automaton
from lmc.errors import Cancelled, InternalError, LmcError, RunError
from lmc.plan import Block, Instr, Plan, Reg
from lmc.runtime.instructions import HANDLERS, Failure, Unset
from lmc.runtime.results import CallMeta, KnownCall, RowResult
from lmc.runtime.target import Target

__all__ = ["EagerRow", "Executor", "ResumeFn", "RowHandle"]

MAX_RESUMED = 64  # threads that run the rest of a program eagerly, at most


class ResumeFn(Protocol):
    """Goes on eagerly, given the row and the results of the model calls made so far.

    Called on a thread of the executor's pool; it may wait for registers.
    """

    def __call__(self, row: EagerRow, calls: list[KnownCall]) -> None: ...


class _Pending:
    """An instruction of a row and how many registers it still waits for."""

    __slots__ = ("instr", "missing", "reads", "writes")

    def __init__(self, instr: Instr) -> None:
        self.instr = instr
        self.reads = tuple(dict.fromkeys(instr.reads()))
        self.writes = tuple(instr.writes())
        self.missing = 0

    def again(self) -> _Pending:
        """A fresh copy for another row."""
        copy = _Pending.__new__(_Pending)
        copy.instr, copy.reads, copy.writes, copy.missing = self.instr, self.reads, self.writes, 0
        return copy


class Row:
    """One run of a program: registers, what waits for them, and the requests in flight."""

    __slots__ = (
        "constraints", "done", "error", "finished", "handles", "index", "meta", "order", "regs",
        "resume", "seed", "value", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        order: int,
        seed: int,
        index: int,
        registers: int,
        constraints: list[Automaton],
        done: Callable[[RowResult], None],
        resume: ResumeFn | None,
    ) -> None:
        self.order = order
        self.seed = seed
        self.index = index
        self.regs: list[Any] = [Unset] * registers
        self.constraints = constraints
        self.done = done
        self.resume = resume
        self.meta: dict[int, Any] = {}
        self.waiters: dict[int, list[_Pending]] = {}
        self.handles: set[Any] = set()
        self.finished = False
        self.value: Any = None
        self.error: LmcError | None = None


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

    def __init__(self, target: Target) -> None:
        self.target = target
        self.core = target.core
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._ready: deque[tuple[Row, _Pending]] = deque()
        self._rows: set[Row] = set()
        self._orders = itertools.count()
        self._blocks: dict[int, tuple[Block, tuple[_Pending, ...]]] = {}
        self._deadlines: list[tuple[float, int, Row]] = []
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    # ------------------------------------------------------------------ from any thread

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop thread call `call` soon."""
        with self._wake:
            if self._closed:
                raise RunError("the engine is closed", hint="run inside its `with` block")
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
    ) -> RowHandle:
        """Run `plan` on one row of arguments (in the order of `plan.params`).

        `done` is called once, on the loop thread. `deadline` is in seconds from now.
        """
        constraints = self.target.automata(plan)
        row = Row(next(self._orders), seed, index, plan.registers, constraints, done, resume)

        def begin() -> None:
            self._admit(row, deadline)
            for param, text in zip(plan.params, arguments, strict=True):
                row.regs[param.into.index] = text
            self.emit_block(row, plan.body)

        self.post(begin)
        return RowHandle(self, row)

    def open_row(
        self, *, seed: int, index: int, deadline: float | None = None
    ) -> tuple[EagerRow, Future[RowResult]]:
        """A row whose instructions come one by one, and the future of its result."""
        future: Future[RowResult] = Future()
        row = Row(next(self._orders), seed, index, 0, [], future.set_result, None)
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
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ the loop thread

    def _ensure_thread(self) -> None:
        if self._thread is None:
            with self._start_lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._loop, name="lmc", daemon=True)
                    self._thread.start()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._closed or self.core.has_work):
                    self._wake.wait(self._until_deadline())
                    if self._deadlines and self._deadlines[0][0] <= time.monotonic():
                        break
                calls, self._inbox = self._inbox, deque()
                closing = self._closed
            try:
                for call in calls:
                    call()
                self._expire()
                self._drain()
                if self.core.has_work:
                    self.core.step()
                    self._drain()
            except Exception as error:  # the last line: nobody may wait for ever
                self._break(error)
            if closing and not self._inbox:
                return

    def _until_deadline(self) -> float | None:
        return max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            _, _, row = heapq.heappop(self._deadlines)
            if not row.finished:
                self.fail_row(row, Cancelled("the deadline passed before the row was done"))

    def _break(self, error: Exception) -> None:
        """A fault of ours: every row fails with the cause, so that nobody waits for ever."""
        cause = error if isinstance(error, LmcError) else InternalError(f"{error!r}")
        if cause is not error:
            cause.__cause__ = error
        self._ready.clear()
        for row in list(self._rows):
            self.fail_row(row, cause)

    def _abort_all(self) -> None:
        for row in list(self._rows):
            self.fail_row(row, Cancelled("the engine was closed"))

    def _admit(self, row: Row, deadline: float | None) -> None:
        self._rows.add(row)
        if deadline is not None:
            heapq.heappush(self._deadlines, (time.monotonic() + deadline, row.order, row))

    def _drain(self) -> None:
        ready = self._ready
        while ready:
            row, pending = ready.popleft()
            if not row.finished:
                self._run(row, pending)
            elif isinstance(pending.instr, _Reader):
                pending.instr.future.set_exception(row.error or _over())

    def _run(self, row: Row, pending: _Pending) -> None:
        regs = row.regs
        instr = pending.instr
        if instr.op not in ("ret", "read"):  # a failed operand fails what depends on it, only
            for index in pending.reads:
                if type(regs[index]) is Failure:
                    self._fail(row, pending, regs[index].error)
                    return
        try:
            HANDLERS[instr.op](self, row, instr)
        except LmcError as error:
            self._fail(row, pending, error.at(instr.at))
        except Exception as error:  # a fault of ours in one row must not reach the others
            fault = InternalError(f"{instr.op}: {error!r}", instr.at)
            fault.__cause__ = error
            self._fail(row, pending, fault)

    def _fail(self, row: Row, pending: _Pending, error: LmcError) -> None:
        if not pending.writes:  # if, resume: the row cannot go on
            self.fail_row(row, error)
        for index in pending.writes:
            self.set(row, index, Failure(error))

    def emit(self, row: Row, pending: _Pending) -> None:
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
            known = self._blocks[id(block)] = (block, tuple(map(_Pending, block.instrs)))
        for pending in known[1]:
            self.emit(row, pending.again())

    def set(self, row: Row, index: int, value: object) -> None:
        """Give a register its value and wake what waits for it."""
        if row.finished:
            return
        row.regs[index] = value
        for pending in row.waiters.pop(index, ()):
            pending.missing -= 1
            if not pending.missing:
                self._ready.append((row, pending))

    def fail_row(self, row: Row, error: LmcError) -> None:
        """End a row with an error; its registers that are not set fail with it."""
        if row.finished:
            return
        for index, waiting in list(row.waiters.items()):
            if row.regs[index] is Unset:
                row.regs[index] = Failure(error)
            for pending in waiting:
                if isinstance(pending.instr, _Reader):
                    pending.instr.future.set_exception(error)
        row.waiters.clear()
        self.finish(row, RowResult(error=error))

    def resume(self, row: Row, calls: list[KnownCall]) -> None:
        """Run the rest of a row's program eagerly, on a thread of the pool."""
        assert row.resume is not None, "checked by the instruction"
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MAX_RESUMED, thread_name_prefix="lmc-resume")
        self._pool.submit(row.resume, EagerRow(self, row), calls)

    def finish(self, row: Row, result: RowResult) -> None:
        """End a row: cancel what still runs for it and hand over its result."""
        if row.finished:
            return
        row.finished = True
        row.error = result.error
        self._rows.discard(row)
        for handle in list(row.handles):
            self.core.cancel(handle)
        row.handles.clear()
        row.done(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader(Instr):
    """Not part of plans: hands a register's value to a thread that waits for it."""

    op = "read"
    register: Reg
    future: Future[Any]


def _read(_: Executor, row: Row, instr: _Reader) -> None:
    instr.future.set_result(row.regs[instr.register.index])


def _over() -> LmcError:
    return Cancelled("the row is over; its values cannot be read any more")


class EagerRow:
    """A row seen from the thread that runs its Python function.

    Instructions are handed over as they are met; `read` waits for a register.
    """

    def __init__(self, executor: Executor, row: Row) -> None:
        self._executor = executor
        self._row = row
        self._next = len(row.regs)
        self._automata: dict[int, int] = {}

    @property
    def target(self) -> Target:
        """The engine's tokenizer, chat template and core."""
        return self._executor.target

    def new_register(self) -> Reg:
        """A register that nothing has set yet."""
        reg = Reg(self._next)
        self._next += 1
        return reg

    def preset(self, value: object, meta: CallMeta | None = None) -> Reg:
        """A register that holds `value`, and what is known about the call that gave it."""
        reg = self.new_register()

        def put() -> None:
            if meta is not None:
                self._row.meta[reg.index] = meta
            self._executor.set(self._row, reg.index, value)

        self._post(put)
        return reg

    def constraint(self, automaton: Automaton) -> int:
        """The index of an automaton for `Gen.constraint`."""
        known = self._automata.get(id(automaton))
        if known is None:
            known = self._automata[id(automaton)] = len(self._row.constraints)
            self._row.constraints.append(automaton)
        return known

    def emit(self, instr: Instr) -> None:
        """Hand over one instruction."""
        pending = _Pending(instr)
        self._post(lambda: self._executor.emit(self._row, pending))

    def read(self, reg: Reg) -> Any:  # noqa: ANN401 - a register holds any value
        """The value of a register, waiting for it.

        Raises:
            LmcError: what the register depends on failed, or the row was cancelled.
        """
        future: Future[Any] = Future()
        pending = _Pending(_Reader(register=reg, future=future))

        def ask() -> None:
            if self._row.finished:
                future.set_exception(self._row.error or _over())
            else:
                self._executor.emit(self._row, pending)

        self._post(ask, always=True)
        value = future.result()
        if type(value) is Failure:
            raise value.error
        return value

    def give(self, value: object) -> None:
        """Set what the function returned; before the final `Ret`."""
        self._row.value = value

    def fail(self, error: LmcError, names: Sequence[str], registers: Sequence[Reg]) -> None:
        """End the row with an error; the variables that are known by then are kept."""
        row = self._row
        held = list(zip(names, registers, strict=True))

        def run() -> None:
            result = RowResult(error=error)
            for name, reg in held:
                value = row.regs[reg.index]
                if value is not Unset and type(value) is not Failure:
                    result.variables[name] = value
                    if reg.index in row.meta:
                        result.meta[name] = row.meta[reg.index]
            self._executor.finish(row, result)

        self._post(run)

    def _post(self, call: Callable[[], None], *, always: bool = False) -> None:
        size = self._next

        def run() -> None:
            row = self._row
            if row.finished and not always:
                return
            if len(row.regs) < size:
                row.regs.extend([Unset] * (size - len(row.regs)))
            call()

        self._executor.post(run)


HANDLERS["read"] = _read
