"""What is compiled once and kept, what is compiled again, and what compiling costs."""

from __future__ import annotations

import cProfile
import pstats
import threading
from typing import Any

import pytest

import lmc
from lmc.driver import Compiled, Options
from lmc.frontend.dsl import State
from lmc.jit_cache import CacheInfo, JitCache


@lmc.jit
def greet(s: State, x: str, n: int = 1, how: Any = None) -> None:
    for _ in range(n):
        s += x + lmc.gen("a", max_tokens=2)


@pytest.fixture(autouse=True)
def empty() -> None:
    greet.cache_clear()


def test_a_second_call_compiles_nothing(fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert greet.cache_info() == CacheInfo(0, 0, 256, 0)
    first = greet.compile(x="a")
    monkeypatch.setattr("lmc.api.compile_function", None)
    assert greet.compile(x="another") is first
    assert greet.run(x="b").text.startswith("b")
    assert greet.run_batch([{"x": "c"}, {"x": "d"}])[1].error is None
    assert lmc.compile(greet, x="e") is first
    assert greet.lower(x="f").compile() is first
    assert greet.bind(n=1).compile(x="g") is first
    assert greet.cache_info() == CacheInfo(hits=7, misses=1, maxsize=256, currsize=1)


def test_another_shape_static_value_or_level_is_another_form() -> None:
    for n in (1, 2, 2, 1):
        greet.compile(x="a", n=n)
    assert greet.cache_info()[:2] == (2, 2)
    greet.compile(Options(level=0), x="a")
    greet.compile(Options(passes="cse"), x="a")
    greet.compile(Options(defaults=(("temperature", 0.5),)), x="a")
    greet.compile(x="a", how=["b"])
    greet.compile(x="a", how=["c"])
    assert greet.cache_info() == CacheInfo(3, 6, 256, 6)


def test_clearing_forgets_forms_and_counts() -> None:
    first = greet.compile(x="a")
    greet.cache_clear()
    assert greet.cache_info() == CacheInfo(0, 0, 256, 0)
    assert greet.compile(x="a") is not first


def test_what_may_change_unseen_is_never_kept() -> None:
    for _ in range(2):
        greet.compile(x="a", how={1})
    assert greet.cache_info() == CacheInfo(0, 2, 256, 0)


def test_the_form_used_longest_ago_goes_first() -> None:
    cache = JitCache(size=2)

    def form(key: str) -> Compiled:
        made: Any = object()
        return cache.get(key, lambda: made, None)

    a, b = form("a"), form("b")
    assert form("a") is a
    form("c")
    assert form("a") is a
    assert form("b") is not b
    assert cache.info() == CacheInfo(hits=2, misses=4, maxsize=2, currsize=2)


def test_threads_that_ask_at_the_same_time_get_one_form() -> None:
    cache, both = JitCache(), threading.Barrier(2, timeout=20)
    got: list[Any] = []

    def make() -> Any:
        both.wait()
        return object()

    threads = [
        threading.Thread(target=lambda: got.append(cache.get("a", make, None))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got[0] is got[1]


@lmc.jit
def hundred(s: State, x: str) -> None:
    for n in range(20):
        s += f"{n}: {x} "
        s += lmc.gen(f"a{n}", max_tokens=4)
        s += s[f"a{n}"].upper()


def calls_of(profile: cProfile.Profile) -> int:
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls


def test_compiling_costs_so_many_calls_an_operation() -> None:
    nodes = sum(1 for _ in hundred.compile(x="a").traced.walk())
    hundred.cache_clear()
    with cProfile.Profile() as profile:
        hundred.compile(x="a")
    assert nodes == 102
    assert calls_of(profile) < 1300 * nodes


def test_finding_a_compiled_form_costs_a_few_calls() -> None:
    greet.compile(x="a")
    with cProfile.Profile() as profile:
        greet.compile(x="a")
    assert calls_of(profile) < 250


def test_programs_are_traced_in_many_threads_at_once() -> None:
    alone = {n: str(greet.compile(x="a", n=n).traced) for n in range(1, 5)}
    other = str(hundred.compile(x="a").traced)
    together = threading.Barrier(8, timeout=20)
    found: list[tuple[int, str]] = []

    def compile_all(first: int) -> None:
        together.wait()
        for turn in range(8):
            n = (first + turn) % 5
            if n:
                found.append((n, str(greet.compile(x="b", n=n).traced)))
            else:
                found.append((0, str(hundred.compile(x="b").traced)))
            greet.cache_clear()
            hundred.cache_clear()

    threads = [threading.Thread(target=compile_all, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 64
    assert all(text == (alone[n] if n else other) for n, text in found)
