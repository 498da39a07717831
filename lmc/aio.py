"""Runs for coroutines: in any running loop, several loops and threads at once, in notebooks.

Everything happens on the engine's own thread; the caller's loop is only told of it. What takes a
while before a run begins (tracing, compiling, loading the default model) is done on a worker thread
with the caller's context variables, so that the loop never waits. There is no global state.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lmc.errors import Cancelled, RunError
from lmc.result import Result
from lmc.runtime.feed import Feed, Piece
from lmc.stream import Channel, rest_of

if TYPE_CHECKING:
    from lmc.batch import Batch, Job
    from lmc.runtime.results import RowResult

__all__ = ["AsyncStream", "results", "run"]

Row = Mapping[str, object]


class _Cancel:
    """Cancels what may not have begun yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._called = False

    def begun(self, cancel: Callable[[], None]) -> None:
        """It has begun, and `cancel` cancels it."""
        with self._lock:
            self._cancel = cancel
            late = self._called
        if late:
            self()

    def __call__(self) -> None:
        with self._lock:
            self._called = True
            cancel = self._cancel
        if cancel is not None:
            with contextlib.suppress(RunError):  # the engine may be closed already
                cancel()


async def run(make_job: Callable[[], Job], given: Row) -> Result:
    """Run a single row; cancelling the awaiting task cancels it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[RowResult] = loop.create_future()
    cancel = _Cancel()

    def settle(row: RowResult) -> None:
        if not ended.done():
            ended.set_result(row)

    def start() -> None:
        job = make_job()

        def done(row: RowResult) -> None:
            job.close()
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(settle, row)

        try:
            cancel.begun(job.start(0, given, done))
        except BaseException:
            job.close()
            raise

    try:
        await asyncio.to_thread(start)
        return Result(await ended)
    except asyncio.CancelledError:
        cancel()
        raise


class AsyncStream:
    """A run in progress, read by coroutines: `Stream` with `async for`. Of one event loop.

    The run begins when it is first read. It is cancelled by `aclose`, and when it is not done and
    the last open iterator is closed, or its task is cancelled.
    """

    def __init__(self, begin: Callable[[], tuple[Feed, Callable[[], None]]]) -> None:
        self._begin = begin
        self._beginning: asyncio.Task[Feed] | None = None
        self._stop = _Cancel()
        self._open = 0
        weakref.finalize(self, self._stop).atexit = False

    def __aiter__(self) -> AsyncGenerator[str]:
        return self._texts((None, ()))

    def text(self, name: str, *branch: int) -> AsyncGenerator[str]:
        """The text of one variable, piece by piece: as `Stream.text`."""
        return self._texts((name, branch))

    async def _texts(self, channel: Channel) -> AsyncGenerator[str]:
        said: list[str] = []
        async with contextlib.aclosing(self._read()) as items:
            async for item in items:
                if not isinstance(item, Piece):
                    rest = rest_of(item, channel, said)
                    if rest:
                        yield rest
                elif (item.name, item.branch) == channel:
                    said.append(item.text)
                    if item.text:
                        yield item.text

    async def pieces(self) -> AsyncGenerator[Piece]:
        """The pieces of all variables and of the prompt (whose name is None), as they come.

        Raises:
            LmcError: after the last piece, if the run failed.
        """
        async with contextlib.aclosing(self._read()) as items:
            async for item in items:
                if isinstance(item, Piece):
                    yield item
                elif item.error is not None:
                    raise item.error

    async def result(self) -> Result:
        """The result, waiting for it. An error of the run is in it, not raised."""
        async with contextlib.aclosing(self._read()) as items:
            async for item in items:
                if not isinstance(item, Piece):
                    return Result(item)
        raise AssertionError("a feed ends with its result")

    async def _feed(self) -> Feed:
        """The pieces of the run, which is begun if this is the first reader."""
        if self._beginning is None:
            stop, begin = self._stop, self._begin

            def start() -> Feed:
                feed, cancel = begin()
                stop.begun(cancel)
                return feed

            self._beginning = asyncio.ensure_future(asyncio.to_thread(start))
        return await asyncio.shield(self._beginning)

    async def _read(self) -> AsyncGenerator[Piece | RowResult]:
        """All pieces, and the result."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        feed: Feed | None = None
        self._open += 1
        try:
            feed = await self._feed()
            feed.listen(tell)
            at = 0
            while True:
                changed.clear()
                item = feed.look(at)
                if item is None:
                    await changed.wait()
                    continue
                yield item
                if not isinstance(item, Piece):
                    return
                at += 1
        finally:
            self._open -= 1
            if feed is not None:
                with contextlib.suppress(ValueError):  # cancelled before it listened
                    feed.unlisten(tell)
            if not self._open and (feed is None or not feed.done):
                self._stop()

    async def aclose(self) -> None:
        """Cancel the run, if it is not done."""
        self._stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose()


class _Awaited(Iterator[Row]):
    """Rows that come asynchronously, for a thread that waits for them."""

    def __init__(self, rows: AsyncIterable[Row], loop: asyncio.AbstractEventLoop) -> None:
        self._rows: AsyncIterator[Row] = aiter(rows)
        self._loop = loop
        self._next: concurrent.futures.Future[Row] | None = None
        self._stopped = False

    def __next__(self) -> Row:
        if self._stopped:
            raise Cancelled("the batch was cancelled")
        self._next = asyncio.run_coroutine_threadsafe(_awaited(anext(self._rows)), self._loop)
        try:
            return self._next.result()
        except StopAsyncIteration:
            raise StopIteration from None
        except concurrent.futures.CancelledError:
            raise Cancelled("the batch was cancelled") from None

    def stop(self) -> None:
        """Wait for no more rows."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()


async def _awaited(row: Awaitable[Row]) -> Row:
    return await row


async def results(
    start: Callable[[Iterable[Row]], tuple[Batch, Generator[Result]]],
    rows: Iterable[Row] | AsyncIterable[Row],
) -> AsyncGenerator[Result]:
    """The results of a batch, which a thread of its own drives.

    Args:
        start: makes the batch of its rows, and the iterator of its results.
        rows: of arguments.
    """
    loop = asyncio.get_running_loop()
    awaited = _Awaited(rows, loop) if isinstance(rows, AsyncIterable) else None
    given = awaited if awaited is not None else rows
    assert not isinstance(given, AsyncIterable), "those were wrapped"
    pool = ThreadPoolExecutor(1, thread_name_prefix="lmc-batch")
    context = contextvars.copy_context()

    def on_thread(call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # noqa: ANN401
        return loop.run_in_executor(pool, context.run, call, *args)

    batch: Batch | None = None
    iterator: Generator[Result] | None = None
    try:
        batch, iterator = await on_thread(start, given)
        while (result := await on_thread(next, iterator, None)) is not None:
            yield result
    finally:
        if awaited is not None:
            awaited.stop()
        if batch is not None and iterator is not None:
            batch.cancel()  # the thread may wait for a row
            pool.submit(context.run, iterator.close)
        pool.shutdown(wait=False)
