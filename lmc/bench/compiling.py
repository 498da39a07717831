"""What compiling costs: a program of 100 operations, and finding it compiled again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from lmc.api import jit
from lmc.bench.cpu import Figure
from lmc.frontend.dsl import State, gen

__all__ = ["compile_figures"]

RUNS = 9
AGAIN = 200


@jit
def hundred(s: State, topic: str) -> None:
    """Twenty rounds of a text, a gen, and what was generated in capital letters."""
    for n in range(20):
        s += f"{n}: {topic} "
        s += gen(f"part_{n}", max_tokens=4)
        s += s[f"part_{n}"].upper()


def compile_figures() -> list[Figure]:
    """CPU time of this thread: other work on the machine does not count."""
    compiled = hundred.compile(topic="rain")
    operations = sum(1 for _ in compiled.traced.walk())

    def anew() -> None:
        hundred.cache_clear()
        hundred.compile(topic="rain")

    def again() -> None:
        for _ in range(AGAIN):
            hundred.compile(topic="snow")

    first = statistics.median(_cpu_seconds(anew) for _ in range(RUNS))
    second = statistics.median(_cpu_seconds(again) for _ in range(RUNS)) / AGAIN
    note = f"a program of {operations} operations: traced, all passes of level 2, and lowered"
    return [
        Figure("compile", "ms", first * 1e3, note=note),
        Figure("compile again", "µs", second * 1e6, note="the same program, found compiled"),
    ]


def _cpu_seconds(call: Callable[[], None]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started
