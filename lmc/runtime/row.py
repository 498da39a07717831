"""One run of a program: its registers, what waits for them, and the requests in flight.

Owns        the state of a row; the loop thread (`executor`) is the only one that changes it.
Not here    what instructions do (`instructions`), when they run (`executor`), the view of a thread
            that runs a Python function (`eager_row`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lmc.constraints.automaton import Automaton
from lmc.errors import Cancelled, LmcError
from lmc.plan import Instr, Operand, Reg
from lmc.runtime.results import KnownCall, RowResult

if TYPE_CHECKING:
    from lmc.runtime.eager_row import EagerRow
    from lmc.runtime.host_calls import RowTools
    from lmc.runtime.planned_rows import Place
    from lmc.runtime.row_stream import RowStream

__all__ = ["Fail", "Failure", "Pending", "Reader", "ResumeFn", "Row", "Unset"]


class _UnsetType:
    __slots__ = ()

    def __repr__(self) -> str:
        return "Unset"


Unset = _UnsetType()
"""What a register holds before it is set."""


class Failure:
    """What a register holds when its instruction, or one it depends on, failed."""

    __slots__ = ("error",)

    def __init__(self, error: LmcError) -> None:
        self.error = error


class ResumeFn(Protocol):
    """Goes on eagerly, given the row and what the model calls and tools so far have given.

    Called on a thread of the executor's pool; it may wait for registers.
    """

    def __call__(self, row: EagerRow, calls: list[KnownCall], tools: list[Any]) -> None: ...


class Pending:
    """An instruction of a row and how many registers it still waits for."""

    __slots__ = ("instr", "missing", "reads", "writes")

    def __init__(self, instr: Instr) -> None:
        self.instr = instr
        self.reads = tuple(dict.fromkeys(instr.waits()))
        self.writes = tuple(instr.writes())
        self.missing = 0

    def again(self) -> Pending:
        """A fresh copy for another row."""
        copy = Pending.__new__(Pending)
        copy.instr, copy.reads, copy.writes, copy.missing = self.instr, self.reads, self.writes, 0
        return copy


class Row:
    """One run of a program: registers, what waits for them, and the requests in flight."""

    __slots__ = (
        "constraints", "done", "dropped", "error", "finished", "handles", "index", "meta", "order",
        "place", "regs", "resume", "seed", "stream", "tools", "value", "waiters",
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
        stream: RowStream | None,
        tools: RowTools,
        place: Place | None = None,
    ) -> None:
        self.order = order
        self.seed = seed
        self.index = index
        self.regs: list[Any] = [Unset] * registers
        self.constraints = constraints
        self.done = done
        self.resume = resume
        self.stream = stream
        self.tools = tools
        self.place = place  # among the rows of its batch, if they are known together
        self.meta: dict[int, Any] = {}
        self.waiters: dict[int, list[Pending]] = {}
        self.handles: dict[Any, int | None] = {}  # in flight, and the register of its result
        self.dropped: set[int] = set()  # results of model calls that nobody waits for any more
        self.finished = False
        self.value: Any = None
        self.error: LmcError | None = None

    def is_set(self, index: int) -> bool:
        """Whether a register has its value."""
        return self.regs[index] is not Unset

    def wake_readers(self) -> None:
        """Nobody waits for a row that is over."""
        waiting = [pending for some in self.waiters.values() for pending in some]
        self.waiters.clear()
        for pending in waiting:
            if isinstance(pending.instr, Reader):
                pending.instr.refuse(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Instr):
    """Not part of plans: hands a register's value to a thread that waits for it."""

    op = "read"
    tolerant = True
    register: Reg
    future: Future[Any]

    def refuse(self, row: Row) -> None:
        """The row is over: there is nothing to read any more."""
        over = Cancelled("the row is over; its values cannot be read any more")
        self.future.set_exception(row.error or over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame(Instr):
    """Not part of plans: ends a row whose condition failed, with the error of what came first."""

    op = "blame"
    tolerant = True
    error: LmcError
    after: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Instr):
    """Not part of plans: ends a row with an error, once the variables set before are known.

    So what a failed row gives depends on its program alone, not on what was done by then.
    """

    op = "fail"
    tolerant = True
    error: LmcError
    names: tuple[str, ...]
    values: tuple[Reg, ...]
