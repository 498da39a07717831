"""Branches of a fork that race: those that make the fewest tokens win, the others are stopped.

Which branches win is a fact about the program and its arguments: the number of tokens that the
model calls of a branch make, and fork order where they are equal, whatever else runs at the same
time and whatever is cached. Only how soon that is known depends on the schedule: a branch loses as
soon as it has made more tokens than enough others in all.

Owns        what the branches of one `Race` instruction have made so far.
Promises    the same winners as if every branch ran to its end.
Costs       O(calls of the branches) a step of the engine while a race goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.errors import Cancelled, LmcError
from lmc.runtime.handling import fail
from lmc.runtime.row import Failure, Row, Unset

if TYPE_CHECKING:
    from lmc.runtime.executor import Executor

__all__ = ["Race", "race", "refuse_dropped", "tokens_made"]


def race(executor: Executor, row: Row, instr: p.Race) -> None:
    """Handle `Race`."""
    running = Race(executor, row, instr)
    if not running.check():
        executor.races.append(running)


class Race:
    """A race that goes on."""

    def __init__(self, executor: Executor, row: Row, instr: p.Race) -> None:
        self._executor = executor
        self.row = row
        self._instr = instr

    def check(self) -> bool:
        """Look whether it is decided, and if so end it; whether it is over."""
        row, instr = self.row, self._instr
        if row.finished:
            return True
        ended: list[tuple[int, int]] = []  # (tokens, branch) of those that are done
        going: list[tuple[int, int]] = []  # the same of others: tokens so far
        failed: list[LmcError] = []
        for branch, calls in enumerate(instr.groups):
            held = [row.regs[call.index] for call in calls]
            error = next((h.error for h in held if type(h) is Failure), None)
            made = sum(self._made(call) for call in calls)
            if error is not None:
                failed.append(error)
            elif any(h is Unset for h in held):
                going.append((made, branch))
            else:
                ended.append((made, branch))
        ended.sort()
        if len(ended) >= instr.k:
            last = ended[instr.k - 1]
            if all(other > last for other in going):
                self._end(ended[: instr.k])
                return True
        elif not going:
            fail(self._executor, row, instr, failed[0])
            return True
        return False

    def _made(self, call: p.Reg) -> int:
        """Tokens that a call has made so far."""
        row = self.row
        value = row.regs[call.index]
        if type(value) is int:  # of a race inside of the branch
            return value
        if value is not Unset:
            return tokens_made(row.meta.get(call.index))
        return sum(handle.made for handle, key in row.handles.items() if key == call.index)

    def _end(self, first: Sequence[tuple[int, int]]) -> None:
        row, instr = self.row, self._instr
        winners = sorted(branch for _, branch in first)
        self._executor.set(row, instr.into_tokens.index, sum(tokens for tokens, _ in first))
        for index, branch in zip(instr.into, winners, strict=True):
            self._executor.set(row, index.index, branch)
        for branch, calls in enumerate(instr.stops):
            if branch not in winners:
                self._stop({call.index for call in calls})

    def _stop(self, calls: set[int]) -> None:
        row = self.row
        row.dropped |= calls
        for handle, key in list(row.handles.items()):
            if key in calls:
                self._executor.core.cancel(handle)


def tokens_made(meta: Any) -> int:  # noqa: ANN401 - a CallMeta, nested lists of them, or None
    """How many tokens the model calls behind a value have made."""
    if isinstance(meta, list):
        return sum(map(tokens_made, meta))
    return 0 if meta is None else meta.completion_tokens


def refuse_dropped(executor: Executor, row: Row, instr: p.Instr) -> bool:
    """Fail a model call of a branch that has lost; whether it is one."""
    if not row.dropped or isinstance(instr, p.Chain):  # whose gens are asked about one by one
        return False
    if row.dropped.isdisjoint(instr.writes()):
        return False
    fail(executor, row, instr, Cancelled("its branch was not among the first to finish"))
    return True
