"""A progress bar with what a batch is doing: rows, rows a second, tokens a second, cache hits."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmc.runtime.stats import EngineStats

__all__ = ["progress_bar", "rates"]


def rates(rows: int, tokens: int, hit_rate: float, seconds: float) -> str:
    """Rows and tokens a second, and the share of prompt tokens found in the cache.

    >>> rates(10, 400, 0.5, 4.0)
    '2.5 rows/s, 100 tokens/s, 50% cached'
    """
    seconds = max(seconds, 1e-9)
    return f"{rows / seconds:.1f} rows/s, {tokens / seconds:.0f} tokens/s, {hit_rate:.0%} cached"


@contextlib.contextmanager
def progress_bar(
    name: str, total: int | None, wanted: bool, stats: EngineStats | None = None, done: int = 0
) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, if it is wanted and a terminal is there.

    Args:
        name: shown before the bar.
        total: rows of the batch; None if that is not known.
        wanted: whether to show it at all.
        stats: counters of the engine, for tokens and cache hits.
        done: rows that were done before.

    Gives a function to call after each row.
    """
    if not (wanted and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    started = time.monotonic()
    first_token = stats.generated_tokens if stats is not None else 0
    rows = 0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rates]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task(name, total=total, completed=done, rates="")

        def advance() -> None:
            nonlocal rows
            rows += 1
            tokens = stats.generated_tokens - first_token if stats is not None else 0
            hits = stats.hit_rate if stats is not None else 0.0
            seconds = time.monotonic() - started
            bar.update(task, advance=1, rates=rates(rows, tokens, hits, seconds))

        yield advance
