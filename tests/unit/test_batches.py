"""Batches: bounded memory, order, errors, limits, cancelling, what is kept of an unfinished one."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import lmc
from lmc.batch import WINDOW, Batch
from lmc.driver import Options
from lmc.errors import Cancelled, RunError, UsageError
from lmc.frontend.dsl import State
from lmc.jobs import EAGER_THREADS
from lmc.progress import rates
from lmc.result import Result
from lmc.runtime.results import RowResult


@lmc.jit
def echo(s: State, x: str) -> None:
    s += f"About {x}: "
    s += lmc.gen("v", max_tokens=4, temperature=1.0)


@lmc.jit
def choosy(s: State, x: str) -> str:
    s += f"About {x}: "
    s += lmc.gen("v", max_tokens=3)
    if x.startswith("bad"):
        s += lmc.select("w", [x.removeprefix("bad")])  # an empty choice fails
    return x


def rows(count: int) -> list[dict[str, str]]:
    return [{"x": f"row {i}"} for i in range(count)]


class Slow:
    """A job whose rows end when the test says so."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.cancelled: set[int] = set()
        self.closed = False

    def start(self, index: int, given: Any, done: Any, feed: Any = None) -> Any:
        self.done[index] = done
        return lambda: self.cancelled.add(index)

    def end(self, index: int) -> None:
        self.done[index](RowResult(variables={"n": index}))

    def close(self) -> None:
        self.closed = True


def test_a_row_that_takes_long_holds_a_window_and_no_more() -> None:
    job = Slow()
    read = 0

    def source() -> Iterator[dict[str, str]]:
        nonlocal read
        for read in itertools.count(1):
            if read > 1:
                threading.Timer(0, job.end, (read - 2,)).start() if read > 2 else None
            yield {}

    batch = Batch(job, source())
    results = iter(batch)
    ender = threading.Timer(0.5, job.end, (0,))
    ender.start()
    assert next(results).index == 0
    ender.join()
    assert read <= WINDOW + 1
    results.close()
    assert job.closed


def test_results_come_as_they_are_done_if_order_does_not_matter() -> None:
    job = Slow()
    results = iter(Batch(job, [{}] * 3, ordered=False))
    timers = [threading.Timer(0.05 * (3 - i), job.end, (i,)) for i in range(3)]
    for timer in timers:
        timer.start()
    assert [result.index for result in results] == [2, 1, 0]


def test_the_first_result_does_not_wait_for_the_last_row() -> None:
    job = Slow()
    gate = threading.Event()

    def source() -> Iterator[dict[str, str]]:
        yield {}
        job.end(0)
        yield {}
        assert gate.wait(20)

    results = iter(Batch(job, source()))
    assert next(results).index == 0  # the source has not ended
    gate.set()
    job.end(1)
    assert [r.index for r in results] == [1]


def test_rows_to_skip_are_not_run_and_keep_their_numbers() -> None:
    job = Slow()
    early: list[int] = []
    results = iter(Batch(job, [{}] * 6, skip={0, 2, 3}, early=lambda r: early.append(r.index)))
    for i in (5, 4, 1):
        threading.Timer(0.1 * (6 - i), job.end, (i,)).start()
    assert [r.index for r in results] == [1, 4, 5]
    assert early == [5, 4]
    assert sorted(job.done) == [1, 4, 5]


def test_closing_tells_what_had_ended_and_cancels_the_rest() -> None:
    job = Slow()
    early: list[int] = []

    def source() -> Iterator[dict[str, str]]:
        yield from [{}] * 4
        job.end(3)
        job.end(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Batch(job, source(), early=lambda r: early.append(r.index)))
    assert sorted(early) == [0, 3]
    assert job.cancelled == {1, 2}


def test_a_batch_is_cancelled_from_another_thread(fake: lmc.Engine) -> None:
    job = Slow()
    batch = Batch(job, [{}])
    threading.Timer(0.05, batch.cancel).start()
    with pytest.raises(Cancelled):
        list(batch)
    assert job.cancelled == {0}


@pytest.mark.parametrize("eager", [False, True])
def test_as_completed_gives_the_same_results(fake: lmc.Engine, eager: bool) -> None:
    given = rows(40)
    ordered = echo.run_batch(given)
    loose = list(echo.iter_batch(given, ordered=False, eager=eager))
    assert sorted(r.index for r in loose) == list(range(40))
    assert all(r.text == ordered[r.index].text for r in loose)


def test_memory_does_not_grow_with_the_rows(fake: lmc.Engine) -> None:
    kept = []
    source = ({"x": str(i % 7)} for i in range(3000))
    for result in echo.iter_batch(source, deadline=3600):
        if result.index % 500 == 499:
            executor = fake.executor
            kept.append(len(executor._rows) + len(executor._deadlines))
    assert max(kept) <= 4 * WINDOW + 64


# ----------------------------------------------------------------------------------- failures


def test_one_failing_row_leaves_the_others_alone_f_04(fake: lmc.Engine) -> None:
    outs = choosy.run_batch([{"x": "a"}, {"x": "bad"}, {"x": "c"}])
    assert [out.error is None for out in outs] == [True, False, True]
    assert [out.value for out in outs] == ["a", "bad", "c"] or outs[1].error is not None
    with pytest.raises(UsageError, match="empty"):
        outs[1]["w"]


def test_the_first_error_is_raised_if_told(fake: lmc.Engine) -> None:
    with pytest.raises(UsageError, match="empty"):
        choosy.run_batch([{"x": "a"}, {"x": "bad"}, {"x": "c"}], on_error="raise")


def test_more_errors_than_allowed_end_the_batch(fake: lmc.Engine) -> None:
    given = [{"x": "bad" if i % 3 == 0 else "fine"} for i in range(60)]
    assert len(choosy.run_batch(given, max_errors=20)) == 60
    kept: list[Result] = []
    with pytest.raises(RunError, match=r"3 rows failed, more than max_errors=2.*row 6") as found:
        kept.extend(choosy.iter_batch(given, max_errors=2))
    assert [r.index for r in kept] == list(range(7))  # the one too many is given, too
    assert found.value.__cause__ is kept[-1].error
    until = time.monotonic() + 20
    while fake.core.has_work and time.monotonic() < until:
        time.sleep(0.005)
    assert not fake.core.has_work


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"max_errors": -1}, "max_errors=-1"),
        ({"max_errors": True}, "max_errors=True"),
        ({"deadline": "soon"}, "deadline='soon'"),
        ({"deadline": -1}, "deadline=-1"),
        ({"deadline": True}, "deadline=True"),
        ({"engine": 3}, "engine=3"),
        ({"options": 3}, "options=3"),
    ],
)
def test_wrong_options_are_refused(fake: lmc.Engine, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        echo.run_batch([], **options)


def test_rows_are_many() -> None:
    with lmc.Engine("fake") as engine, pytest.raises(UsageError, match="rows is 3"):
        echo.run_batch(3, engine=engine)  # type: ignore[arg-type]


def test_a_deadline_is_for_each_row(fake: lmc.Engine) -> None:
    gate = threading.Event()

    @lmc.jit
    def uneven(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", max_tokens=3)
        s["v"].encode()  # ends the graph
        if x == "b":
            gate.wait(30)

    outs = uneven.run_batch([{"x": "a"}, {"x": "b"}, {"x": "c"}], deadline=1.0)
    gate.set()
    assert [type(out.error) for out in outs] == [type(None), Cancelled, type(None)]


def test_what_is_resumed_equals_an_undisturbed_run(fake: lmc.Engine) -> None:
    given = rows(12)
    whole = echo.run_batch(given)
    rest = echo.resumed_batch(
        given,
        engine=fake,
        eager=False,
        options=Options(),
        skip={0, 1, 5},
        early=lambda _: None,
    )
    for result in rest:
        assert result.text == whole[result.index].text


def test_rates_are_readable() -> None:
    assert rates(10, 400, 0.5, 4.0) == "2.5 rows/s, 100 tokens/s, 50% cached"
    assert rates(1, 1, 0.0, 0.0)


def test_what_a_failed_row_had_does_not_depend_on_time(fake: lmc.Engine) -> None:
    @lmc.jit
    def early(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", max_tokens=30, ignore_eos=True)
        raise ValueError("before anything was read")

    for eager in (False, True):
        out = early.run(x="a", eager=eager)
        assert out.error is not None
        assert out.variables == {"v": out.variables["v"]}


def test_functions_do_not_begin_after_their_deadline(fake: lmc.Engine) -> None:
    begun: list[str] = []
    gate = threading.Event()

    @lmc.jit
    def waits(s: State, x: str) -> None:
        begun.append(x)
        gate.wait(20)
        s += x

    rows = [{"x": str(i)} for i in range(EAGER_THREADS + 40)]
    deadline = 1.0  # the last rows are taken later than the first, but not so much
    outs = waits.iter_batch(rows, eager=True, deadline=deadline)
    first = next(outs)
    assert isinstance(first.error, Cancelled)
    time.sleep(deadline)
    gate.set()
    assert all(isinstance(out.error, Cancelled) for out in outs)
    assert len(begun) <= EAGER_THREADS
