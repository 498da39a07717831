"""Running rows: one, or many at a time with results in order."""

from __future__ import annotations

import contextlib
import queue
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from lmc.errors import LmcError, RunError, UsageError
from lmc.result import Result

if TYPE_CHECKING:
    from lmc.runtime.results import RowResult

__all__ = ["Job", "progress_bar", "run_in_order", "run_one"]

WINDOW = 512  # rows of a batch in flight: bounds the memory of a long one


class Job(Protocol):
    """A way to run rows of a program."""

    def start(
        self, index: int, given: Mapping[str, object], done: Callable[[RowResult], None]
    ) -> Callable[[], None]:
        """Start a row; `done` is called once. Gives a function that cancels it.

        Raises:
            LmcError: the row cannot start.
        """

    def close(self) -> None:
        """No more rows will start."""


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


def run_in_order(job: Job, rows: Iterable[Mapping[str, object]]) -> Generator[Result]:
    """Run rows, a window of them in flight, and give their results in order.

    Closing the iterator cancels what still runs.
    """
    from lmc.runtime.results import RowResult

    finished: queue.SimpleQueue[tuple[int, RowResult]] = queue.SimpleQueue()
    waiting: dict[int, RowResult] = {}
    cancels: dict[int, Callable[[], None]] = {}
    source = enumerate(rows)
    due = 0
    more = True
    try:
        while True:
            while more and len(cancels) + len(waiting) < WINDOW:
                item = next(source, None)
                if item is None:
                    more = False
                    break
                index, row = item
                try:
                    if not isinstance(row, Mapping):
                        raise UsageError(f"row {index} is not a dictionary of arguments")

                    def done(result: RowResult, index: int = index) -> None:
                        finished.put((index, result))

                    cancels[index] = job.start(index, row, done)
                except LmcError as error:
                    waiting[index] = RowResult(error=error)
                except Exception as error:  # an argument may do anything when it is looked at
                    fault = RunError(f"{type(error).__name__}: {error}")
                    fault.__cause__ = error
                    waiting[index] = RowResult(error=fault)
            while due in waiting:
                yield Result(waiting.pop(due), due)
                due += 1
            if cancels:
                index, result = finished.get()
                cancels.pop(index, None)
                waiting[index] = result
            elif not more and not waiting:
                return
    finally:
        for cancel in cancels.values():
            with contextlib.suppress(RunError):  # the engine may be closed already
                cancel()
        job.close()


@contextlib.contextmanager
def progress_bar(name: str, total: int | None, wanted: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, if it is wanted and a terminal is there."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task(name, total=total)
        yield lambda: bar.advance(task)
