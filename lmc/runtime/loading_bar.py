"""How far a download or the reading of a model is: told to a function, or as a bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["Progress", "Shown", "shown"]

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Shown = Progress | bool
"""A function to call, True for a bar on standard error if that is a terminal, or False."""


@contextlib.contextmanager
def shown(title: str, total: int, how: Shown) -> Iterator[Progress]:
    """A function to call with how far it is; the bar is gone when the block ends.

    Args:
        title: before the bar.
        total: bytes in all.
    """
    if callable(how):
        yield how
    elif not how or not sys.stderr.isatty():
        yield lambda _done, _total: None
    else:
        with _bar(title, total) as report:
            yield report


@contextlib.contextmanager
def _bar(title: str, total: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, _total: bar.update(task, completed=done)
