"""Runs the tools of programs: plain Python functions and coroutines, off the executor's thread.

    executor --ToolCall--> event loop --slot free--> worker thread, or the loop itself --> done(...)

One event loop on a thread of its own watches over all calls: it counts the slots, waits out pauses
and time limits, and runs coroutines. Plain functions run on worker threads.

Owns        the loop thread, the worker threads, the calls in flight.
Promises    `done` is called once a call, on the loop thread, unless the call was cancelled; at most
            `size` calls of one depth run at a time. A function that runs too long is given up and
            its slot is free again, though Python cannot end its thread.
Costs       about 0.1 ms a call; worker threads are made on demand and kept.
Not here    which calls run, and in which order (`host_calls`); what a tool is (`frontend.tools`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmc.errors import ToolError, told

__all__ = ["DEFAULT_TOOL_WORKERS", "HostFunction", "ToolCall", "ToolPool", "copied", "depth"]

DEFAULT_TOOL_WORKERS = 32
LONGEST_PAUSE = 60.0  # seconds between two attempts, at most
CLOSING = 1.0  # seconds that coroutines have to end when the engine is closed

depth: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)
"""How many tools the current code runs inside of: a tool may run programs that call tools.

Calls of each depth have slots of their own, so that a tool that waits for another one cannot keep
the slot that the other one needs.
"""


class HostFunction(Protocol):
    """A function that plans may call, and how.

    Attributes:
        name: for messages.
        key: the same for functions that are the same.
        timeout: seconds that one attempt may take, or None.
        retries: how often it is tried again after a failure.
        backoff: seconds before the second attempt; each later pause is twice as long.
        gives: the type of its results, as the IR writes it.
        is_async: it is a coroutine function, called on the event loop.
    """

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> Hashable: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def retries(self) -> int: ...
    @property
    def backoff(self) -> float: ...
    @property
    def gives(self) -> str: ...
    @property
    def is_async(self) -> bool: ...

    def invoke(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any function
        """Call it, as plain Python."""


@dataclass(eq=False)
class ToolCall:
    """One call; `context` is its own."""

    function: HostFunction
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    context: contextvars.Context
    depth: int
    task: asyncio.Task[Any] | None = None
    cancelled: bool = False


class ToolPool:
    """Runs tool calls; safe to use from any thread."""

    def __init__(self, size: int = DEFAULT_TOOL_WORKERS) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        # of the loop thread
        self._slots: dict[int, asyncio.Semaphore] = {}
        self._running: set[ToolCall] = set()
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._workers: list[queue.SimpleQueue[Callable[[], None] | None]] = []

    def start(self, call: ToolCall, done: Callable[[Any], None]) -> None:
        """Run a call; `done` gets its result, or a `ToolError`."""
        with self._lock:
            if self._closed:
                return
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._work, args=(self._loop,), name="lmc-tools", daemon=True
                )
                self._thread.start()
            self._loop.call_soon_threadsafe(self._begin, call, done)

    def cancel(self, call: ToolCall) -> None:
        """Give a call up; its `done` is not called any more."""
        call.cancelled = True
        with self._lock:
            if self._loop is not None and not self._closed:
                self._loop.call_soon_threadsafe(self._drop, call)

    def close(self) -> None:
        """Give everything up and end the threads that can be ended."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loop, thread = self._loop, self._thread
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * CLOSING)  # a coroutine that blocks the loop must not block the caller

    # ------------------------------------------------------------------ the loop thread

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        for call in self._running:
            call.cancelled = True
        tasks = [call.task for call in self._running if call.task is not None]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(BaseException):
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSING))
            loop.run_until_complete(loop.shutdown_asyncgens())
        for worker in self._workers:  # those that are busy end after what they do
            worker.put(None)
        loop.close()

    def _begin(self, call: ToolCall, done: Callable[[Any], None]) -> None:
        if call.cancelled:
            return
        assert self._loop is not None
        call.task = self._loop.create_task(self._serve(call), context=call.context)
        self._running.add(call)
        call.task.add_done_callback(lambda task: self._ended(call, task, done))

    def _ended(self, call: ToolCall, task: asyncio.Task[Any], done: Callable[[Any], None]) -> None:
        self._running.discard(call)
        if task.cancelled() or call.cancelled:
            return
        error = task.exception()
        if error is None:
            done(task.result())
        elif isinstance(error, ToolError):
            done(error)
        else:
            done(_failed(call.function, error, 1))

    def _drop(self, call: ToolCall) -> None:
        if call.task is not None:
            call.task.cancel()

    async def _serve(self, call: ToolCall) -> Any:  # noqa: ANN401 - what the tool gives
        function = call.function
        slots = self._slots.setdefault(call.depth, asyncio.Semaphore(self.size))
        pause = function.backoff
        for attempt in range(1, function.retries + 2):
            scope = asyncio.timeout(function.timeout)
            try:
                async with slots, scope:
                    value = await self._once(call)
            except BaseException as error:
                if call.cancelled:
                    raise
                if scope.expired():
                    failure = ToolError(
                        f"{function.name}() took longer than {function.timeout:g} s",
                        hint="give it a longer timeout=",
                    )
                else:
                    failure = _failed(function, error, attempt)
                if attempt > function.retries:
                    raise failure from (None if scope.expired() else error)
                await asyncio.sleep(min(pause, LONGEST_PAUSE))
                pause *= 2
            else:
                return value
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, call: ToolCall) -> Any:  # noqa: ANN401 - what the tool gives
        depth.set(call.depth)  # the task has the call's context
        function = call.function
        if function.is_async:
            value = function.invoke(*call.args, **call.kwargs)
        else:
            value = await self._on_thread(call)
        if inspect.isawaitable(value):
            value = await value
        return checked(value, function.gives, function.name)

    def _on_thread(self, call: ToolCall) -> asyncio.Future[Any]:
        """Run a plain function on a worker thread."""
        loop = self._loop
        assert loop is not None
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            value: Any = None
            failure: BaseException | None = None
            try:
                value = context.run(call.function.invoke, *call.args, **call.kwargs)
            except BaseException as error:
                # asyncio has a meaning of its own for this one
                failure = RuntimeError("StopIteration") if type(error) is StopIteration else error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, future, value, failure)

        worker = self._idle.pop() if self._idle else self._new_worker(loop)
        worker.put(work)
        return future

    def _new_worker(
        self, loop: asyncio.AbstractEventLoop
    ) -> queue.SimpleQueue[Callable[[], None] | None]:
        """A thread that runs what comes; daemons, since one may be stuck for ever."""
        tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

        def run() -> None:
            while (task := tasks.get()) is not None:
                task()
                del task
                try:
                    loop.call_soon_threadsafe(self._idle.append, tasks)
                except RuntimeError:  # the loop is closed
                    return

        self._workers.append(tasks)
        threading.Thread(target=run, name="lmc-tool", daemon=True).start()
        return tasks


def _settle(future: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:  # noqa: ANN401
    """Hand a thread's result over, unless nobody waits any more."""
    if future.done():
        return
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(failure)


def _failed(function: HostFunction, error: BaseException, attempts: int) -> ToolError:
    if isinstance(error, ToolError) and error.where is None and error.__cause__ is None:
        return error  # of `checked`
    times = f" {attempts} times, at last" if attempts > 1 else ""
    failure = ToolError(f"{function.name}() failed{times}: {told(error)}")
    failure.__cause__ = error
    return failure


# ---------------------------------------------------------------------------------- results

_TYPES: dict[str, type] = {"text": str, "int": int, "bool": bool, "float": float}


def checked(value: Any, gives: str, name: str) -> Any:  # noqa: ANN401 - a JSON-like value
    """A copy of what a tool returned, if programs can hold it.

    Args:
        value: None, truth values, numbers, texts, and lists, tuples and dictionaries of these.
        gives: the type that the tool is said to give.
        name: of the tool.

    Raises:
        ToolError: it is of another type.
    """
    kind = type(value).__name__
    try:
        value = copied(value)
    except (TypeError, RecursionError) as error:
        raise ToolError(
            f"{name}() returned {error if isinstance(error, TypeError) else 'a knot'}",
            hint="return texts, numbers, truth values, None, and lists and dictionaries of these",
        ) from None
    if gives == "float" and type(value) is int:
        value = float(value)
    if gives == "list<text>":
        fits = type(value) is list and all(type(item) is str for item in value)
    else:
        fits = gives == "value" or type(value) is _TYPES[gives]
    if not fits:
        raise ToolError(
            f"{name}() returned a {kind}, not what its annotation says",
            hint="correct the annotation of what it returns",
        )
    return value


def copied(value: Any) -> Any:  # noqa: ANN401 - a JSON-like value
    """A copy made of plain types.

    Raises:
        TypeError: something in it is of no such type.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {_copied_key(key): copied(item) for key, item in value.items()}
    for plain in (str, bool, int, float):  # their subclasses, such as enums of texts
        if isinstance(value, plain):
            return plain(value) if plain is not str else str.__str__(value)
    raise TypeError(f"a {type(value).__name__}, which a program cannot hold")


def _copied_key(key: Any) -> Any:  # noqa: ANN401 - a plain value
    if isinstance(key, (list, tuple, dict)):
        raise TypeError(f"a dictionary with a {type(key).__name__} as a key")
    return copied(key)
