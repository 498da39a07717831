"""A run whose text is read while it comes."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lmc.errors import RunError, UsageError
from lmc.result import Result
from lmc.runtime.feed import Feed, Piece

if TYPE_CHECKING:
    from lmc.batch import Job
    from lmc.runtime.results import RowResult

__all__ = ["Channel", "Stream", "begin"]

Channel = tuple[str | None, tuple[int, ...]]
"""The name of a variable, or None for the whole prompt; and the branch of a fork."""


def begin(job: Job, given: Mapping[str, object]) -> tuple[Feed, Callable[[], None]]:
    """Start a row that is streamed; its feed, and a function that cancels it, at any time.

    Raises:
        LmcError: it cannot start.
    """
    feed = Feed()

    def done(result: RowResult) -> None:
        feed.close(result)
        job.close()

    try:
        stop = job.start(0, given, done, feed)
    except BaseException:
        job.close()
        raise

    def cancel() -> None:
        with contextlib.suppress(RunError):  # the engine may be closed already
            stop()

    return feed, cancel


def rest_of(held: RowResult, channel: Channel, said: list[str]) -> str:
    """What a channel is given at the end of a run, after what was `said` in it.

    Nothing, as a rule: all the rest of a prompt that went on in a branch, and the values of
    variables that no model call made.

    Raises:
        LmcError: the run failed, or there is no such variable.
    """
    result = Result(held)
    name, branch = channel
    if name is None:
        if result.error is not None:
            raise result.error
        before = "".join(said)
        return result.text[len(before) :] if result.text.startswith(before) else ""
    if said:
        if result.error is not None:
            raise result.error
        return ""
    if result.error is not None or name not in result:
        value = result[name]  # raises
    else:
        value = result.variables[name]  # as far as it goes: what was written may not be complete
    for index in branch:
        if not isinstance(value, (list, tuple)) or index >= len(value):
            raise UsageError(f"the variable {name!r} has no branch {'.'.join(map(str, branch))}")
        value = value[index]
    if isinstance(value, (list, tuple)):
        raise UsageError(
            f"the variable {name!r} is a list of {len(value)}",
            hint=f"say which branch: .text({name!r}, 0)",
        )
    return value if isinstance(value, str) else str(value)


class Stream:
    """A run in progress. Iterating gives the text of the whole prompt, piece by piece.

    Any number of iterators read it, each from the beginning, also after the run has ended. They
    end with the run; if it failed, its error is raised after the last piece. The run is cancelled
    by `close`, and when it is not done and the last open iterator is closed, or nothing refers to
    the stream and its iterators any more.
    """

    def __init__(self, feed: Feed, cancel: Callable[[], None]) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self._open = 0
        self._cancel = weakref.finalize(self, cancel)
        self._cancel.atexit = False

    def __iter__(self) -> Generator[str]:
        return self._texts((None, ()))

    def text(self, name: str, *branch: int) -> Generator[str]:
        """The text of one variable, piece by piece.

        Args:
            name: of the variable. If it is set several times, each text comes in turn.
            branch: of a fork, by its index; for a fork within a fork, both.

        Raises:
            UsageError: at the end of the run, if there was no such variable.
        """
        return self._texts((name, branch))

    def _texts(self, channel: Channel) -> Generator[str]:
        said: list[str] = []
        with contextlib.closing(self._read()) as items:
            for item in items:
                if not isinstance(item, Piece):
                    rest = rest_of(item, channel, said)
                    if rest:
                        yield rest
                elif (item.name, item.branch) == channel:
                    said.append(item.text)
                    if item.text:
                        yield item.text

    def pieces(self) -> Generator[Piece]:
        """The pieces of all variables and of the prompt (whose name is None), as they come.

        Raises:
            LmcError: after the last piece, if the run failed.
        """
        with contextlib.closing(self._read()) as items:
            for item in items:
                if isinstance(item, Piece):
                    yield item
                elif item.error is not None:
                    raise item.error

    def _read(self) -> Generator[Piece | RowResult]:
        """All pieces, and the result."""
        with self._lock:
            self._open += 1
        at = 0
        try:
            while isinstance(item := self._feed.wait(at), Piece):
                yield item
                at += 1
            yield item
        finally:
            with self._lock:
                self._open -= 1
                abandoned = not self._open
            if abandoned and not self._feed.done:
                self.close()

    def result(self) -> Result:
        """The result, waiting for it. An error of the run is in it, not raised."""
        return Result(self._feed.result())

    def close(self) -> None:
        """Cancel the run, if it is not done."""
        self._cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()
