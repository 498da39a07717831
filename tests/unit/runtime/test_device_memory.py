"""A device without memory for a step: smaller steps, the same results, nobody else harmed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

from lmc.errors import CapacityError, RunError
from lmc.runtime.device_memory import (
    FIRST_PATIENCE,
    DeviceMemoryError,
    StepRoom,
    is_out_of_memory,
)
from lmc.runtime.engine import EngineCore
from lmc.runtime.recording import Recorder as Watching
from lmc.runtime.request import GenResult, Outcome, Step
from tests.engine_oracle import EOS, TOKEN_BYTES
from tests.unit.runtime.test_engine import Bench, Device, Flown, Recorder, gen, prompt


def rows_of(step: Step) -> int:
    return sum(len(segment.tokens) for segment in step.segments)


def at_most(rows: int) -> Callable[[Step], None]:
    def check(step: Step) -> None:
        if rows_of(step) > rows:
            raise DeviceMemoryError("no room", hint="take less")

    return check


def asked(bench: Bench) -> Bench:
    for n in range(6):
        bench.ask(str(n), gen(prompt(n % 4, 30), 6))
    return bench


@pytest.mark.parametrize("rows", [40, 7, 1])
def test_results_do_not_depend_on_how_much_a_step_may_have(
    rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    roomy, tight = asked(Bench()), asked(Bench())
    watching = tight.core.observer = Watching()
    tight.runner.before = at_most(rows)
    roomy.run()
    with caplog.at_level(logging.WARNING, "lmc.engine"):
        tight.run(1000)
    assert len(tight.results) == 6
    for name, result in roomy.results.items():
        assert tight.results[name].tokens == result.tokens
        assert tight.results[name].logprobs == result.logprobs
    put_back = tight.core.stats.steps_put_back
    assert put_back == sum(step.failed for step in watching.recording().steps) > 0
    assert "smaller steps from now on: no room" in caplog.text


def test_a_request_that_can_never_fit_fails_alone() -> None:
    bench, alone = asked(Bench()), asked(Bench())
    alone.run()

    def refuse(step: Step) -> None:
        if any(
            segment.tokens[0] == prompt(4)[0] and not segment.start for segment in step.segments
        ):
            raise DeviceMemoryError("no room", hint="take less")

    bench.ask("greedy", gen(prompt(4, 30), 6))
    bench.runner.before = refuse
    bench.run()
    error = bench.results.pop("greedy")
    assert type(error) is CapacityError
    assert str(error) == (
        "the device has no memory even for one token of this request: no room\n  hint: take less"
    )
    assert isinstance(error.__cause__, DeviceMemoryError)
    assert {n: r.tokens for n, r in bench.results.items()} == {
        n: r.tokens for n, r in alone.results.items()
    }
    bench.runner.before = lambda _: None
    bench.runner.seen.clear()
    bench.ask("next", gen(prompt(5, 100), 1))
    bench.run()
    assert bench.runner.rows() == [100], "what was too large has gone"


def test_a_step_that_is_repeated_is_tried_by_itself_first() -> None:
    class Repeating(Recorder):
        def __init__(self) -> None:
            super().__init__(400)
            self.most_repeats = 8

    bench = Bench()
    runner = bench.runner = Repeating()
    bench.core = EngineCore(runner, TOKEN_BYTES, EOS, check=True)

    def refuse(step: Step) -> None:
        if step.repeats > 1:
            raise DeviceMemoryError("no room")

    runner.before = refuse
    bench.ask("it", gen(prompt(0), 20))
    bench.run()
    assert isinstance(bench.results["it"], GenResult)
    assert bench.core.stats.steps_put_back == 2  # again, when it has gone well for a while
    assert max(step.repeats for step in runner.seen) > 1


class Early(Device):
    """Memory is short when a step is started, or only when it is asked for."""

    def __init__(self, early: bool) -> None:
        super().__init__(400)
        self.early, self.failed = early, 0

    def need_memory(self, step: Step) -> None:
        if step.after and not self.failed:
            self.failed += 1
            raise DeviceMemoryError("no room")

    def start(self, step: Step) -> Flown:
        if self.early:
            self.need_memory(step)
        return super().start(step)

    def run(self, step: Step) -> Outcome:
        self.need_memory(step)
        return super().run(step)


@pytest.mark.parametrize("early", [True, False])
def test_what_continues_a_step_is_undone_and_that_step_is_not(early: bool) -> None:
    """It is started when the last tokens of the other are still to come."""
    plain, bench = Bench(), Bench()
    runner = bench.runner = Early(early)
    bench.core = EngineCore(runner, TOKEN_BYTES, EOS, check=True)
    for one in (plain, bench):
        for n in (33, 40):
            one.ask(str(n), gen(prompt(n), max_tokens=n))
        one.run()
    assert runner.failed == bench.core.stats.steps_put_back == 1
    assert bench.core.stats.retracted_requests == 0
    for name, result in plain.results.items():
        assert bench.results[name].tokens == result.tokens


def test_other_errors_are_not_taken_for_it() -> None:
    bench = Bench()
    bench.ask("it", gen(prompt(0)))

    def explode(_: Step) -> None:
        raise RuntimeError("an illegal address")

    bench.runner.before = explode
    bench.run()
    assert type(bench.results["it"]) is RunError
    assert bench.core.stats.steps_put_back == 0


def test_steps_grow_again_when_that_goes_well_and_later_each_time() -> None:
    room = StepRoom(100)
    waits = []
    for _ in range(3):
        room.shrink(100, 1)
        assert (room.tokens, room.short) == (50, True)
        waits.append(0)
        while room.short:
            room.went_well()
            waits[-1] += 1
        assert room.tokens == 100
    assert waits == [FIRST_PATIENCE, 2 * FIRST_PATIENCE, 4 * FIRST_PATIENCE]
    for _ in range(9):
        room.shrink(room.tokens, 1)
    assert room.tokens == 1


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_exceptions_mean_that_memory_is_short(error: Exception, is_it: bool) -> None:
    assert is_out_of_memory(error) is is_it


def test_what_fails_while_one_cleans_up_counts_as_well() -> None:
    def capture() -> None:
        try:
            raise torch.OutOfMemoryError("no")
        finally:
            raise RuntimeError("the capture has failed")

    with pytest.raises(RuntimeError, match="capture") as caught:
        capture()
    assert is_out_of_memory(caught.value)
