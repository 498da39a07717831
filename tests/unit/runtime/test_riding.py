"""Steps that are given before the tokens are known from which their requests go on."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lmc.errors import RunError
from lmc.runtime import composing
from lmc.runtime.device_memory import DeviceMemoryError
from lmc.runtime.engine import EngineCore
from lmc.runtime.request import GenRequest, GenResult, Step, keys_of
from tests.engine_oracle import EOS, TOKEN_BYTES, Words
from tests.unit.runtime.test_engine import Bench, Device, gen, prompt


def bench_of(kv_tokens: int = 400, **limits: int) -> tuple[Bench, Device]:
    """A device that is never done until it is said to be."""
    bench = Bench()
    device = bench.runner = Device(kv_tokens)
    bench.core = EngineCore(device, TOKEN_BYTES, EOS, check=True, **limits)
    device.done = False
    return bench, device


def settled(bench: Bench) -> bool:
    """Start a second step, as nothing else is to be done; whether there is one."""
    bench.core.settle_for_few()
    if bench.core.computing:
        return False
    bench.core.step()
    return True


def same_as_alone(bench: Bench, requests: dict[str, Any]) -> None:
    alone = Bench()
    for name, request in requests.items():
        alone.ask(name, request)
    alone.run()
    for name, result in alone.results.items():
        assert bench.results[name].tokens == result.tokens, name


def some(lengths: list[int]) -> dict[str, Any]:
    return {str(n): gen(prompt(n, 8), max_tokens=length) for n, length in enumerate(lengths)}


def begin(bench: Bench, lengths: list[int]) -> None:
    """All prompts are under way in one step."""
    for name, request in some(lengths).items():
        bench.ask(name, request)
    bench.core.step()
    assert len(bench.core._flights) == 1


def end(bench: Bench, device: Device) -> None:
    device.done = True
    bench.run()
    bench.core.audit()


def test_all_go_on_from_what_the_step_under_way_draws() -> None:
    bench, device = bench_of()
    begin(bench, [9, 12])
    assert settled(bench)
    assert not settled(bench), "no third step"
    end(bench, device)
    assert [step.after for step in device.seen[:2]] == [(), (0, 1)]
    assert device.seen[1].repeats == 8, "up to the first end"
    same_as_alone(bench, some([9, 12]))


@pytest.mark.parametrize(("lengths", "rides"), [([9, 9, 9, 1], True), ([9, 9, 1, 1], False)])
def test_few_may_end_with_the_step_before(lengths: list[int], rides: bool) -> None:
    """They may go on with prompts, which the others could have joined."""
    bench, device = bench_of()
    begin(bench, lengths)
    assert settled(bench) is rides
    end(bench, device)
    if rides:
        assert device.seen[1].after == (0, 1, 2)
        assert device.seen[1].repeats == 1, "so that those that end can go on soon"
    same_as_alone(bench, some(lengths))


def test_few_may_end_with_the_last_repeat() -> None:
    bench, device = bench_of()
    begin(bench, [30, 30, 30, 17])
    device.done = True
    end(bench, device)
    assert [step.repeats for step in device.seen] == [1, 16, 1, 12]
    assert [step.after for step in device.seen] == [(), (), (0, 1, 2), ()]
    same_as_alone(bench, some([30, 30, 30, 17]))


def test_who_needs_a_decision_first_is_waited_for() -> None:
    for request in (
        gen(prompt(3, 8), 9, top_logprobs=1),
        gen(prompt(3, 8), 9, frequency_penalty=0.5),
        gen(prompt(3, 8), 9, min_tokens=4),
        gen(prompt(3, 8), 9, constraint=Words([[0, 1, 2], [1, 2, 3]])),
    ):
        bench, device = bench_of()
        for name, one in {**some([9, 9, 9, 9]), "picky": request}.items():
            bench.ask(name, one)
        bench.core.step()
        assert not settled(bench)
        end(bench, device)


def test_a_prompt_joins_those_that_ride() -> None:
    """Their tokens are not known, its own are."""
    bench, device = bench_of(max_batch_tokens=16)
    begin(bench, [5, 5])
    bench.ask("2", gen(prompt(2, 8), max_tokens=5))
    assert not bench.core.computing, "half a step"
    bench.core.step()
    end(bench, device)
    assert device.seen[1].after == (0, 1, -1)
    assert [len(s.tokens) for s in device.seen[1].segments] == [1, 1, 8]
    same_as_alone(bench, some([5, 5, 5]))


def test_a_text_that_ends_unexpectedly_goes_no_further() -> None:
    """What was computed beyond its end is dropped."""
    alone = Bench()
    alone.ask("0", gen(prompt(0, 8), max_tokens=9))
    alone.run()
    stop = alone.results["0"].tokens[0]
    bench, device = bench_of()
    requests = {**some([9] * 5), "0": gen(prompt(0, 8), 9, stop_token_ids=(stop,))}
    for name, request in requests.items():
        bench.ask(name, request)
    bench.core.step()
    assert settled(bench)
    end(bench, device)
    assert bench.results["0"].tokens == []
    assert len(device.seen[1].segments) == 5
    free = bench.core.statistics()
    assert free["free"] + free["cache_held"] == 400


@pytest.mark.parametrize("when", ["start", "end"])
def test_a_step_that_rides_is_put_back_alone(when: str) -> None:
    """Memory is short for it; what the one before draws is kept."""
    bench, device = bench_of()
    failed: list[Step] = []
    start = device.start

    def no_room(step: Step) -> None:
        if step.after and not failed:
            failed.append(step)
            raise DeviceMemoryError("no room")

    def starting(step: Step) -> Any:
        if when == "start":
            no_room(step)
        return start(step)

    bench.core._start = starting
    if when == "end":
        device.before = no_room
    begin(bench, [9, 12])
    settled(bench)
    end(bench, device)
    assert len(failed) == 1
    assert bench.core.stats.retracted_requests == 0
    same_as_alone(bench, some([9, 12]))


def test_a_step_that_rides_fails_alone_with_its_requests() -> None:
    bench, device = bench_of()
    begin(bench, [9, 9, 9, 1])

    def explode(step: Step) -> None:
        if step.after:
            raise OSError("the device is gone")

    device.before = explode
    assert settled(bench)
    end(bench, device)
    assert len(bench.results["3"].tokens) == 1
    assert all(isinstance(bench.results[name], RunError) for name in "012")
    device.before = lambda _: None
    for name, request in some([9, 9]).items():
        bench.ask(f"again {name}", request)
    bench.run()
    same_as_alone(bench, {f"again {name}": one for name, one in some([9, 9]).items()})


def test_one_that_rides_is_cancelled_and_gives_what_it_has() -> None:
    bench, device = bench_of()
    handles = [bench.ask(name, request) for name, request in some([9, 9, 9]).items()]
    bench.core.step()
    assert settled(bench)
    bench.core.cancel(handles[1])
    end(bench, device)
    assert len(bench.results["1"].tokens) <= 1
    same_as_alone(bench, {name: some([9, 9, 9])[name] for name in ("0", "2")})


def test_the_last_prompts_do_not_wait_for_those_that_end() -> None:
    """All of the step under way end with it, and nothing follows: nothing else can join."""
    bench, device = bench_of(max_batch_tokens=16)
    begin(bench, [1, 1])
    bench.ask("2", gen(prompt(2, 3), max_tokens=1))
    assert bench.core.computing, "3 tokens are few"
    assert settled(bench)
    end(bench, device)
    assert [len(step.segments) for step in device.seen] == [2, 1]


def test_the_last_prompts_wait_for_those_that_come_back() -> None:
    bench, device = bench_of(max_batch_tokens=16)
    request = gen(prompt(0, 8), max_tokens=1)

    def follow(result: GenResult) -> GenRequest:
        following = gen([], max_tokens=1)
        made = keys_of(result.tokens, made=True)
        text = keys_of(prompt(5, 5), made=False)
        following.keys = np.concatenate((request.keys, made, text))
        return following

    request.follow = follow
    bench.ask("talk", request)
    bench.core.step()
    bench.ask("other", gen(prompt(2, 3), max_tokens=1))
    assert not settled(bench)
    end(bench, device)
    assert [len(step.segments) for step in device.seen] == [1, 3], "made, text and the other"


class Turns:
    """A chain of gens, each after more text, given by its lengths."""

    def __init__(self, bench: Bench, number: int, texts: list[int], made: int) -> None:
        self.left, self.number, self.made = list(texts), number, made
        self.bench = bench
        self.ends: list[int] = []  # of its turns, but for the last: after so many steps
        bench.ask(str(number), self.next(keys_of([], made=False)))

    def next(self, before: np.ndarray) -> GenRequest:
        text = prompt(self.number, self.left.pop(0))
        request = gen([], max_tokens=self.made)
        request.keys = np.concatenate((before, keys_of(text, made=False)))
        if self.left:
            request.follow = functools.partial(self.follow, request)
        return request

    def follow(self, request: GenRequest, result: GenResult) -> GenRequest:
        self.ends.append(len(self.bench.runner.seen))
        return self.next(np.concatenate((request.keys, keys_of(result.tokens, made=True))))


def talk(texts: list[list[int]], made: int, most: int) -> tuple[list[Turns], Device]:
    """Rows of several turns, while two steps are under way wherever that can be."""
    bench, device = bench_of(4000, max_batch_tokens=most)
    rows = [Turns(bench, number, lengths, made) for number, lengths in enumerate(texts)]
    while bench.core.has_work:
        device.done = len(bench.core._flights) > 1 or not settled(bench)
        bench.core.step()
        device.done = False
    assert len(bench.results) == len(texts)
    return rows, device


def test_prompts_are_spread_over_the_steps_of_those_that_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No text is cut, and hardly a step is without one."""
    monkeypatch.setattr(composing, "SPREAD", 10)
    monkeypatch.setattr(composing, "MANY", 2)
    _, device = talk([[10, 10, 10]] * 8, made=4, most=80)
    texts = [[len(s.tokens) for s in step.segments if len(s.tokens) > 1] for step in device.seen]
    assert {size for sizes in texts for size in sizes} == {10}, "none in two parts"
    assert max(map(len, texts[1:])) <= 3
    assert sum(step.repeats for step in device.seen) < 3 * 8 + 8


def test_those_that_do_not_come_back_take_all_prompts_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that begin late end late: nothing is won."""
    monkeypatch.setattr(composing, "SPREAD", 10)
    monkeypatch.setattr(composing, "MANY", 2)
    bench, device = bench_of(4000, max_batch_tokens=80)
    begin(bench, [20])
    for number in range(1, 7):
        bench.ask(str(number), gen(prompt(number, 8), max_tokens=20))
    bench.core.step()
    end(bench, device)
    assert [len(step.segments) for step in device.seen[:2]] == [1, 7]


@pytest.mark.parametrize(("rows", "length"), [(3, 10), (8, 90)])
def test_prompts_of_few_rows_or_long_ones_are_not_spread(
    rows: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composing, "SPREAD", 10)
    monkeypatch.setattr(composing, "MANY", 4)
    _, device = talk([[length, 10]] * rows, made=4, most=80)
    assert sum(len(s.tokens) for s in device.seen[0].segments) == min(rows * length, 80)


@pytest.mark.parametrize("longer", [5, 8])
def test_nobody_is_left_behind_for_shorter_prompts(longer: int) -> None:
    """There is always a row whose text is shorter, or that has begun before."""
    texts = [[10] * 6 for _ in range(9)]
    texts[longer] = [11] * 6
    rows, _ = talk(texts, made=2, most=20)
    turns = [after - before for row in rows for before, after in pairwise(row.ends)]
    assert len(turns) == 9 * 4
    assert max(turns) <= 7, "all texts of a turn fill five steps, and two are for what is made"
