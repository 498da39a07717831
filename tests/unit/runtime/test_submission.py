"""Rows of a batch that are handed over part by part while a device computes, or all at the end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lmc
from lmc.batch import refused
from lmc.errors import Cancelled, RunError
from lmc.frontend.dsl import State
from lmc.runtime.executor import Executor
from lmc.runtime.planned_rows import RowSpec
from lmc.runtime.results import RowResult
from lmc.runtime.submission import FIRST_PART, Submission

COUNT = 5 * FIRST_PART


@lmc.jit
def talk(s: State, topic: str) -> None:
    s += f"A talk about {topic}. "
    s += lmc.gen("v", max_tokens=6)


class Ends:
    """Which rows have ended, and how."""

    def __init__(self) -> None:
        self.results: dict[int, RowResult] = {}
        self.times: Counter[int] = Counter()
        self.some = threading.Event()

    def of(self, index: int) -> Callable[[RowResult], None]:
        def done(result: RowResult) -> None:
            self.results[index] = result
            self.times[index] += 1
            self.some.set()

        return done

    def all_once(self) -> bool:
        return self.times == Counter(range(COUNT))


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def device() -> Iterator[lmc.Engine]:
    """An engine that goes by its own steps as if a device computed them."""
    with lmc.Engine("fake") as engine:
        engine.core.overlaps = True
        yield engine


def specs(ends: Ends, deadline: float | None = None) -> list[RowSpec]:
    plan = talk.compile().plan
    topics = ["trains", "bread"] * COUNT
    return [
        RowSpec(plan, [topics[i]], seed=0, index=i, done=ends.of(i), deadline=deadline)
        for i in range(COUNT)
    ]


def submission(engine: lmc.Engine) -> Submission:
    return Submission(engine.executor, COUNT, refused)


def wait_for_all(engine: lmc.Engine, ends: Ends) -> None:
    for _ in range(1000):
        if len(ends.results) == COUNT:
            return
        turned = threading.Event()
        engine.executor.post(turned.set)
        turned.wait(0.02)
    raise AssertionError(f"{len(ends.results)} rows of {COUNT} have ended")


@pytest.mark.parametrize("overlaps", [True, False])
def test_rows_start_before_the_last_is_made_where_a_device_computes_meanwhile(
    overlaps: bool, device: lmc.Engine, ends: Ends
) -> None:
    device.core.overlaps = overlaps
    with submission(device) as submitted:
        for number, spec in enumerate(specs(ends), 1):
            submitted.add(spec)
            if number == FIRST_PART and overlaps:
                assert ends.some.wait(20), "the first rows have run, the others are not made yet"
                assert device.executor.awaited == {submitted}
        assert bool(ends.results) == overlaps
    assert not device.executor.awaited
    wait_for_all(device, ends)
    assert ends.all_once()
    assert sorted(submitted.handles) == list(range(COUNT))
    texts = talk.run_batch([{"topic": "trains"}, {"topic": "bread"}], engine=device)
    assert all(ends.results[i].variables["v"] == texts[i % 2]["v"] for i in range(COUNT))


@lmc.jit
def talk_on(s: State, topic: str) -> None:
    s += f"A talk about {topic}. "
    s += lmc.gen("v", max_tokens=6)
    s += " Then more of it. "
    s += lmc.gen("w", max_tokens=6)


def test_what_was_to_be_done_in_spare_time_ends_with_the_last_row(device: lmc.Engine) -> None:
    """No step is under way for long here, so there is no spare time at all."""
    results = talk_on.run_batch([{"topic": "trains"}, {"topic": "bread"}], engine=device)
    assert all(result.error is None for result in results)
    assert not device.executor._spare, "it would keep the rows, and who waited for them"


def test_the_loop_has_its_turn_after_each_part(
    device: lmc.Engine, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    turns: list[int] = []
    give_way = Executor.give_way

    def given(executor: Executor) -> None:
        turns.append(len(made))
        give_way(executor)

    monkeypatch.setattr(Executor, "give_way", given)
    with submission(device) as submitted:
        for number, spec in enumerate(specs(ends)):
            made.append(number)
            submitted.add(spec)
    assert turns == [FIRST_PART, 3 * FIRST_PART]  # the rest is handed over at the end
    wait_for_all(device, ends)
    assert ends.all_once()


@pytest.mark.parametrize("kv_tokens", [8000, 500])
def test_all_are_waited_for_where_they_do_not_fit(
    kv_tokens: int, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first eight would fit into either; what counts is whether all will."""
    started: list[str] = []
    begin = Executor._begin

    def noted(self: Executor, row: Any, spec: Any) -> None:
        started.append(spec.arguments[0])
        begin(self, row, spec)

    monkeypatch.setattr(Executor, "_begin", noted)
    with lmc.Engine("fake", kv_tokens=kv_tokens) as engine:
        engine.core.overlaps = True
        with submission(engine) as submitted:
            for spec in specs(ends):
                submitted.add(spec)
        wait_for_all(engine, ends)
    came = ["trains", "bread"] * (COUNT // 2)
    assert started == (came if kv_tokens == 8000 else sorted(came, reverse=started[0] == "trains"))


def test_an_interrupt_cancels_the_rows_that_run_already(device: lmc.Engine, ends: Ends) -> None:
    made = specs(ends)
    stop = threading.Event()
    device.executor.post(lambda: stop.wait(20) and None)  # so that none of them ends before

    def interrupted() -> None:
        with submission(device) as submitted:
            for spec in made[: FIRST_PART + 3]:
                submitted.add(spec)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    stop.set()
    with submission(device) as again:
        for spec in made[FIRST_PART:]:
            again.add(spec)
    wait_for_all(device, ends)
    assert ends.all_once(), "those that were not handed over are not known"
    cancelled = {i for i, r in ends.results.items() if isinstance(r.error, Cancelled)}
    assert cancelled == set(range(FIRST_PART))
    assert not device.executor.awaited


def test_each_row_ends_once_if_the_engine_is_closed_meanwhile(
    device: lmc.Engine, ends: Ends
) -> None:
    with submission(device) as submitted:
        for number, spec in enumerate(specs(ends), 1):
            submitted.add(spec)
            if number == FIRST_PART + 2:
                device.close()
    assert ends.all_once()
    errors = [ends.results[i].error for i in range(COUNT)]
    assert all(isinstance(error, RunError) for error in errors[FIRST_PART:])


def test_rows_to_come_run_though_those_before_have_failed_as_a_whole(
    device: lmc.Engine, ends: Ends
) -> None:
    """A fault of the loop ends all rows that it has; the rest of the batch is not lost."""

    def broken() -> None:
        raise SystemError("the loop is at fault")

    made = specs(ends)
    with submission(device) as submitted:
        ready, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            ready.set()
            go_on.wait(20)

        device.executor.post(hold)
        assert ready.wait(20)
        for spec in made[:FIRST_PART]:
            submitted.add(spec)
        device.executor.post(broken)
        go_on.set()
        for spec in made[FIRST_PART:]:
            submitted.add(spec)
    wait_for_all(device, ends)
    assert ends.all_once()
    failed = [i for i in range(COUNT) if ends.results[i].error is not None]
    assert set(range(FIRST_PART)) <= set(failed)
    assert COUNT - 1 not in failed
