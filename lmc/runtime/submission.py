"""The rows of a batch on their way to the executor: together, or part by part as they are made.

    a row's spec ──► part ──► the executor's rows that wait for their turn

Which order is best is known when all rows are. But where a device computes meanwhile, and all rows
fit into the KV cache in any order, it need not wait for the last row to be made.

Owns        the rows that are made and not handed over yet.
Promises    rows start in the order in which they are handed over, whatever the parts; if making
            them is interrupted, those that run already are cancelled.
Costs       a look at each row's texts, see `room`.
Not here    which row starts when (`executor`), in which order (`planned_rows`).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from lmc.errors import RunError
from lmc.runtime.planned_rows import Ample, places_of

if TYPE_CHECKING:
    from types import TracebackType

    from lmc.runtime.executor import Executor, PlannedRow, RowHandle
    from lmc.runtime.planned_rows import Place, RowSpec
    from lmc.runtime.results import RowResult

__all__ = ["Submission"]

FIRST_PART, LARGEST_PART = 8, 128
"""Rows that are handed over early at once: few of the first, as a device waits for these.

After each part the thread that makes them lets the loop thread start them: two threads that both
have Python to run take turns of 5 ms, and a device would wait meanwhile.
"""


class Submission:
    """Rows that are known together; a context that ends when all of them are made.

    Args:
        executor: runs them.
        count: how many there are going to be, at most.
        refused: the result of a row that cannot run because of an error.

    Attributes:
        handles: of the rows handed over, by their index.
    """

    def __init__(
        self, executor: Executor, count: int, refused: Callable[[Exception], RowResult]
    ) -> None:
        self.handles: dict[int, RowHandle] = {}
        self._executor = executor
        self._refused = refused
        self._to_come = count
        self._made: list[RowSpec] = []
        self._part = FIRST_PART
        self._line: deque[PlannedRow] = deque()  # those of its rows that have not started
        self._ample: Ample | None = None
        if executor.core.overlaps:
            self._ample = Ample(executor.target, executor.ledger)

    def add(self, spec: RowSpec) -> None:
        """Take a row; it may start at once."""
        self._made.append(spec)
        self._to_come -= 1
        if self._ample is not None and self._to_come and len(self._made) >= self._part:
            placed = self._ample.places(self._made, self._to_come)
            if placed is None:
                self._ample = None
                return
            self._executor.awaited.add(self)
            self._hand_over(lambda _: placed)
            self._executor.give_way()
            self._part = min(2 * self._part, LARGEST_PART)

    def _hand_over(self, place: Callable[[list[RowSpec]], list[tuple[RowSpec, Place]]]) -> None:
        made, self._made = self._made, []
        try:
            self.handles.update(self._executor.plan(place(made), self._line))
        except Exception as error:  # the engine is closed, or has stopped
            for spec in made:
                spec.done(self._refused(error))

    def __enter__(self) -> Submission:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                for handle in self.handles.values():
                    with contextlib.suppress(RunError):
                        handle.cancel()
            elif self._made:
                executor = self._executor
                self._hand_over(lambda rows: places_of(rows, executor.target, executor.ledger))
        finally:
            self._executor.awaited.discard(self)
