"""Running rows: one, or many at a time, with a bounded number of them in flight.

    rows ──► window of rows in flight ──► results, in order or as they are done

Rows that are all there already (a list, a file) are handed over many at a time, so that those that
begin alike can run together; rows that come one by one are started as they come.

Owns        the rows in flight, and the results that wait for earlier ones.
Promises    every row read gives one result; memory is bounded by the window, however many rows
            there are and however slowly results are taken; closing cancels what still runs.
Costs       the source of rows is read on the thread that takes results.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lmc.errors import Cancelled, LmcError, RunError, UsageError, told
from lmc.result import Result

if TYPE_CHECKING:
    from lmc.runtime.feed import Feed
    from lmc.runtime.results import RowResult

__all__ = ["PLANNED", "WINDOW", "Batch", "Job", "PlanningJob", "checked", "refused", "run_one"]

WINDOW = 512  # rows of a batch in flight: bounds the memory of a long one
PLANNED = 4096  # rows that are known together at most; of these, too, few are in flight at a time


class Job(Protocol):
    """A way to run rows of a program."""

    def start(
        self,
        index: int,
        given: Mapping[str, object],
        done: Callable[[RowResult], None],
        feed: Feed | None = None,
    ) -> Callable[[], None]:
        """Start a row; `done` is called once. Gives a function that cancels it.

        With a `feed`, what the row says goes there as it comes.

        Raises:
            LmcError: the row cannot start.
        """

    def close(self) -> None:
        """No more rows will start."""


@runtime_checkable
class PlanningJob(Job, Protocol):
    """A job that makes use of knowing many rows before it starts the first."""

    def expect(self, rows: Iterable[object]) -> None:
        """All rows, which can be read more than once, before any of them is started."""

    def start_together(
        self,
        rows: Sequence[tuple[int, Mapping[str, object]]],
        done: Callable[[int, RowResult], None],
    ) -> dict[int, Callable[[], None]]:
        """Start rows that are known together, each with its number, in whatever order is best.

        `done` is called once for each, with its number. Gives functions that cancel them; there is
        none for a row that could not start.
        """


def refused(error: Exception) -> RowResult:
    """The result of a row that could not start."""
    from lmc.runtime.results import RowResult

    if isinstance(error, LmcError):
        return RowResult(error=error)
    fault = RunError(told(error))
    fault.__cause__ = error
    return RowResult(error=fault)


def run_one(job: Job, given: Mapping[str, object]) -> Result:
    """Run a single row and wait for it."""
    done: Future[RowResult] = Future()
    try:
        cancel = job.start(0, given, done.set_result)
        try:
            return Result(done.result())
        except BaseException:
            cancel()
            raise
    finally:
        job.close()


class Batch:
    """Rows in flight. Iterate over it once; closing that iterator cancels what still runs.

    Args:
        job: how to run a row.
        rows: read as there is room for more; a sequence, or another iterable with an attribute
            `repeatable`, `PLANNED` at a time, else one by one. What all rows of such a one have in
            common is found before.
        ordered: give results in the order of the rows, not as they are done.
        skip: indices of rows that are not run and have no result.
        early: is told each result that has to wait for an earlier row, when it is there.
    """

    def __init__(
        self,
        job: Job,
        rows: Iterable[Mapping[str, object]],
        *,
        ordered: bool = True,
        skip: Container[int] = (),
        early: Callable[[Result], None] | None = None,
    ) -> None:
        self._job = job
        there = isinstance(rows, Sequence) or getattr(rows, "repeatable", False)
        self._planning = job if there and isinstance(job, PlanningJob) else None
        if self._planning is not None:
            self._planning.expect(rows)
        try:
            self._source = enumerate(rows)
        except TypeError:
            raise UsageError(
                f"rows is {rows!r}", hint="give a list, or another iterable, of dictionaries"
            ) from None
        self._ordered = ordered
        self._skip = skip
        self._early = early
        self._finished: queue.SimpleQueue[tuple[int, RowResult] | None] = queue.SimpleQueue()
        self._waiting: dict[int, Result] = {}
        self._cancels: dict[int, Callable[[], None]] = {}
        self._due = 0  # with `ordered`, the next row to give
        self._more = True
        self._cancelled = False
        self._results = self._run()

    def __iter__(self) -> Generator[Result]:
        return self._results

    def cancel(self) -> None:
        """Have the iterator raise `Cancelled`. Safe from any thread."""
        self._cancelled = True
        self._finished.put(None)

    def _run(self) -> Generator[Result]:
        try:
            while self._more or self._cancels or self._waiting:
                room = self._more and len(self._cancels) + len(self._waiting) < WINDOW
                if room and self._planning is not None:
                    self._start_many(self._planning)
                elif room:
                    self._start_next()
                self._collect(wait=not room and bool(self._cancels))
                yield from self._given()
        finally:
            self._close()

    def _start_next(self) -> None:
        item = next(self._source, None)
        if item is None:
            self._more = False
            return
        index, row = item
        if index in self._skip:
            return
        try:
            self._cancels[index] = self._job.start(
                index, _checked_row(index, row), lambda result: self._done(index, result)
            )
        except Exception as error:  # an argument may do anything when it is looked at
            self._done(index, refused(error))

    def _start_many(self, job: PlanningJob) -> None:
        taken = list(itertools.islice(self._source, PLANNED))
        self._more = len(taken) == PLANNED
        rows: list[tuple[int, Mapping[str, object]]] = []
        for index, row in taken:
            if index in self._skip:
                continue
            try:
                rows.append((index, _checked_row(index, row)))
            except UsageError as error:
                self._done(index, refused(error))
        self._cancels.update(job.start_together(rows, self._done))

    def _done(self, index: int, result: RowResult) -> None:
        """Take a result, from any thread."""
        self._finished.put((index, result))

    def _collect(self, *, wait: bool) -> None:
        """Take the results that are there, waiting for one if told so."""
        while wait or not self._finished.empty():
            item = self._finished.get()
            if self._cancelled:
                raise Cancelled("the batch was cancelled")
            if item is not None:
                self._take(*item)
            wait = False

    def _take(self, index: int, row: RowResult) -> None:
        self._cancels.pop(index, None)
        self._waiting[index] = result = Result(row, index)
        if self._ordered and self._early is not None and index != self._next_due():
            self._early(result)

    def _next_due(self) -> int:
        while self._due in self._skip:
            self._due += 1
        return self._due

    def _given(self) -> Iterator[Result]:
        if not self._ordered:
            while self._waiting:
                yield self._waiting.pop(next(iter(self._waiting)))
            return
        while (due := self._next_due()) in self._waiting:
            self._due += 1
            yield self._waiting.pop(due)

    def _close(self) -> None:
        """Cancel what runs; what has just ended is not lost."""
        if self._early is not None and not self._cancelled:
            while not self._finished.empty():
                item = self._finished.get()
                if item is not None:
                    self._take(*item)
            if (due := self._next_due()) in self._waiting:
                self._early(self._waiting[due])
        for cancel in self._cancels.values():
            with contextlib.suppress(RunError):  # the engine may be closed already
                cancel()
        self._job.close()


def _checked_row(index: int, row: object) -> Mapping[str, object]:
    if not isinstance(row, Mapping):
        raise UsageError(f"row {index} is not a dictionary of arguments")
    return row


def checked(
    results: Iterable[Result], on_error: str = "record", max_errors: int | None = None
) -> Generator[Result]:
    """The results, until too many of them are errors.

    Raises:
        UsageError: `on_error` or `max_errors` is wrong.
        RunError: more than `max_errors` rows failed; the last one's error is the cause.
        LmcError: with `on_error="raise"` the error of the first row that failed.
    """
    if on_error not in ("record", "raise"):
        raise UsageError(f"on_error={on_error!r}", hint='use "record" or "raise"')
    if max_errors is not None and (type(max_errors) is not int or max_errors < 0):
        raise UsageError(f"max_errors={max_errors!r}", hint="give 0 or more, or None for no limit")
    return _checked(results, on_error, max_errors)


def _checked(results: Iterable[Result], on_error: str, max_errors: int | None) -> Generator[Result]:
    failed = 0
    iterator = iter(results)
    try:
        for result in iterator:
            if result.error is not None:
                if on_error == "raise":
                    raise result.error
                failed += 1
            yield result
            if max_errors is not None and failed > max_errors:
                raise RunError(
                    f"{failed} rows failed, more than max_errors={max_errors}; the last one is "
                    f"row {result.index}: {result.error.problem if result.error else ''}",
                    result.error.where if result.error else None,
                ) from result.error
    finally:
        if isinstance(iterator, Generator):
            iterator.close()
