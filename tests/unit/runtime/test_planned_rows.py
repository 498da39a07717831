"""Rows that are known together: their order, what they leave to each other; all of it advice."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmc
from lmc.batch import refused
from lmc.errors import Cancelled, RunError
from lmc.frontend.dsl import State
from lmc.runtime.executor import MAX_STARTED
from lmc.runtime.planned_rows import Ledger, Place, RowSpec
from lmc.runtime.prompts import Needs
from lmc.runtime.results import RowResult
from lmc.runtime.submission import Submission

TOPICS = ("the sea and its many shores", "old trains that still run", "bread, and how to bake it")


@lmc.jit
def answer(s: State, topic: str, question: str) -> None:
    for part in ("first", "second", "third", "fourth", "fifth", "last"):
        s += f"A talk about {topic}, the {part} part. "
    s += question
    s += lmc.gen("v", max_tokens=6, temperature=0.9)
    s += " And then: "
    s += lmc.gen("w", max_tokens=4)


@lmc.jit
def talk(s: State, turns: list[str]) -> None:
    for number, turn in enumerate(turns):
        s += turn
        s += lmc.gen(f"said_{number}", max_tokens=20, ignore_eos=True)


def mixed(count: int) -> list[dict[str, str]]:
    """Rows of several topics, in turn."""
    return [{"topic": TOPICS[i % 3], "question": f"Question {i}?"} for i in range(count)]


def run(rows: Any, **options: Any) -> tuple[list[Any], Any]:
    with lmc.Engine("fake", **options) as engine:
        results = answer.run_batch(rows, engine=engine)
        engine.core.audit()
        return [(r.index, r["v"], r["w"], r.error) for r in results], engine.stats


def test_rows_that_begin_alike_run_together_where_memory_is_short() -> None:
    rows = mixed(48)
    planned, with_plan = run(rows, kv_tokens=300)
    came, without = run(iter(rows), kv_tokens=300)
    assert planned == came
    assert with_plan.prompt_tokens == without.prompt_tokens
    assert with_plan.evicted_tokens > 0
    assert with_plan.cached_tokens > 1.2 * without.cached_tokens


def test_where_steps_are_dear_more_rows_share_one() -> None:
    talks = [{"turns": [f"Turn {n} of talk {i}, go on." for n in range(3)]} for i in range(12)]

    def counted(step_positions: int) -> tuple[list[str], Any]:
        with lmc.Engine("fake", kv_tokens=600) as engine:
            engine.core.runner.step_positions = step_positions
            predicted = talk.predict(talks, engine=engine)
            texts = [result.text for result in talk.run_batch(talks, engine=engine)]
            assert predicted.exact
            assert predicted.most.model_steps == engine.stats.model_steps
            assert predicted.most.computed_tokens == engine.stats.computed_tokens
            return texts, engine.stats

    texts, cheap = counted(0)
    same_texts, dear = counted(64)
    assert texts == same_texts
    assert dear.model_steps < 0.8 * cheap.model_steps
    assert dear.computed_tokens > cheap.computed_tokens  # that is its price


@pytest.mark.parametrize(("step_positions", "room"), [(0, 100), (32, 200), (64, 300), (900, 300)])
def test_rows_in_flight_may_hold_more_than_the_cache_where_steps_are_dear(
    step_positions: int, room: int
) -> None:
    runner: Any = SimpleNamespace(kv_tokens=100, step_positions=step_positions)
    place = Place(0, Needs(np.arange(5), 40), 0, None)
    assert Ledger(room - 40).fits(place, runner)
    assert not Ledger(room - 39).fits(place, runner)


def test_a_planned_batch_counts_the_same_each_time() -> None:
    seen = []
    for _ in range(2):
        _, stats = run(mixed(60), kv_tokens=400)
        counted = stats.to_json()
        del counted["seconds"]
        seen.append(counted)
    assert seen[0] == seen[1]


def test_results_come_in_the_order_of_the_rows(fake: lmc.Engine) -> None:
    rows = mixed(30)
    assert [r.index for r in answer.iter_batch(rows)] == list(range(30))
    loose = list(answer.iter_batch(rows, ordered=False))
    assert sorted(r.index for r in loose) == list(range(30))
    assert [r.index for r in loose] != list(range(30))  # topic by topic


def test_rows_that_cannot_start_do_not_hold_up_the_others(fake: lmc.Engine) -> None:
    rows: list[Any] = [{"topic": "a"}, {"topic": "a", "question": "b"}, 7, {}]
    results = answer.run_batch(rows)
    assert [r.error is None for r in results] == [False, True, False, False]
    assert "row 2 is not a dictionary" in str(results[2].error)


def test_a_closed_engine_fails_every_row() -> None:
    engine = lmc.Engine("fake")
    engine.close()
    results = answer.run_batch(mixed(3), engine=engine)
    assert all(isinstance(r.error, RunError) and "closed" in r.error.problem for r in results)


def test_few_rows_are_in_flight_at_a_time(fake: lmc.Engine) -> None:
    gate, seen = threading.Event(), [0]

    @lmc.tool
    def wait(x: str) -> str:
        assert gate.wait(20)
        return x

    @lmc.jit
    def program(s: State, x: str) -> None:
        s += lmc.call(wait, x)

    def look() -> None:
        seen.append(len(fake.executor._rows))
        if seen[-1] == seen[-2] == MAX_STARTED or len(seen) > 500:
            gate.set()
        else:
            threading.Timer(0.02, fake.executor.post, (look,)).start()

    rows = [{"x": str(i)} for i in range(MAX_STARTED + 40)]
    fake.executor.post(look)
    assert len(program.run_batch(rows)) == len(rows)
    assert max(seen) == MAX_STARTED


def test_rows_that_wait_for_tools_do_not_keep_others_from_running() -> None:
    both = threading.Barrier(2)

    @lmc.tool
    def meet(x: str) -> str:
        both.wait(20)
        return x

    @lmc.jit
    def program(s: State, x: str) -> None:
        s += f"Somebody waits for {x}. "
        s += lmc.gen("before", max_tokens=40, ignore_eos=True)
        s += lmc.call(meet, x)
        s += lmc.gen("after", max_tokens=40, ignore_eos=True)

    with lmc.Engine("fake", kv_tokens=130) as engine:  # room for one of them
        results = program.run_batch([{"x": "one"}, {"x": "two"}], engine=engine)
    assert [r.error for r in results] == [None, None]


def test_rows_that_have_not_begun_can_be_cancelled(fake: lmc.Engine) -> None:
    rows = mixed(400)
    results = answer.iter_batch(rows)
    assert next(results).index == 0
    results.close()
    assert answer.run_batch(mixed(2))[1].error is None  # what is left goes on


def test_closing_the_engine_ends_rows_that_have_not_begun() -> None:
    engine = lmc.Engine("fake")
    ended: list[RowResult] = []
    plan = answer.compile().plan
    specs = [
        RowSpec(plan, [TOPICS[0], str(i)], seed=0, index=i, done=ended.append) for i in range(300)
    ]
    with Submission(engine.executor, len(specs), refused) as submission:
        for spec in specs:
            submission.add(spec)
    engine.close()
    assert len(ended) == 300
    assert all(r.error is None or isinstance(r.error, Cancelled) for r in ended)


def test_two_batches_take_turns(fake: lmc.Engine) -> None:
    first, second = answer.iter_batch(mixed(300)), answer.iter_batch(mixed(6))
    assert next(first).index == 0
    assert len(list(second)) == 6  # does not wait for all of the first
    assert len(list(first)) == 299


LISTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=6)


@given(LISTS, st.randoms())
def test_a_row_leaves_what_the_others_share_with_it(prompts: list[list[int]], random: Any) -> None:
    prompts.sort()
    ledger = Ledger()
    places: list[Place] = []
    for number, prompt in enumerate(prompts):
        shared = common(prompts[number - 1], prompt) if number else 0
        before = places[-1] if places else None
        needs = Needs(np.array(prompt, np.int64), len(prompt))
        places.append(Place(number, needs, shared, before, ledger))
    for place in places:
        place.start()
    left = list(range(len(prompts)))
    random.shuffle(left)
    while left:
        assert ledger.claimed == held([prompts[n] for n in left])
        number = left.pop()
        keep, wanted = places[number].leave()
        assert keep == max((common(prompts[number], prompts[o]) for o in left), default=0)
        if keep:
            assert wanted in left
            assert common(prompts[number], prompts[wanted]) == keep
        assert places[number].leave() == (0, None)
    assert ledger.claimed == 0


def held(prompts: list[list[int]]) -> int:
    return len({tuple(prompt[:n]) for prompt in prompts for n in range(1, len(prompt) + 1)})


def common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return len(list(itertools.takewhile(lambda two: two[0] == two[1], pairs)))


class Told:
    """A core that notes what it is told."""

    def __init__(self) -> None:
        self.dead: list[tuple[int, int]] = []
        self.wanted: list[tuple[int, float]] = []

    def release(self, keys: Any, keep: int = 0) -> None:
        self.dead.append((len(keys), keep))

    def expect(self, keys: Any, next_use: float) -> None:
        self.wanted.append((len(keys), next_use))


def test_the_cache_is_told_what_is_dead_and_what_is_wanted_next() -> None:
    prompts = [np.array(p, np.int64) for p in ([1, 2, 3], [1, 2, 4], [1, 5])]
    first = Place(0, Needs(prompts[0], 9), 0, None)
    second = Place(1, Needs(prompts[1], 9), 2, first)
    third = Place(2, Needs(prompts[2], 9), 1, second)
    core: Any = Told()
    third.release(core, np.array([9, 9, 9], np.int64))  # a state of some other prompt
    assert not core.dead
    first.release(core, np.array([1, 2, 3, 7, 7], np.int64))
    second.release(core, np.array([1, 2, 4, 7], np.int64))
    third.release(core, np.array([1, 5, 7], np.int64))
    assert core.dead == [(5, 2), (4, 1), (3, 0)]
    assert core.wanted == [(2, 1), (1, 2)]


@lmc.jit
def asked(s: State, about: str, question: str) -> None:
    s += about
    s += question
    s += lmc.gen("v", max_tokens=3)


def test_what_all_rows_begin_with_is_tokenized_for_the_first_only(fake: lmc.Engine) -> None:
    tokenizer = fake.executor.target.tokenizer
    encode, texts = tokenizer.encode_markup, list[str]()

    def noted(pieces: Any, **options: Any) -> list[int]:
        texts.append("".join(text for text, _ in pieces))
        return encode(pieces, **options)

    tokenizer.encode_markup = noted  # type: ignore[method-assign]
    about = "A long text about the sea and all of its many shores. "
    rows = [{"about": about, "question": f"Question {n}?"} for n in range(5)]
    for again in (1, 2):
        wanted = [result["v"] for result in asked.run_batch(rows)]
        assert texts.count(about) == again
        assert fake.stats.cached_tokens > 4 * again * 8
        fake.forget()  # it is wanted anew
    assert wanted == [asked.run(**row)["v"] for row in rows]


@pytest.mark.parametrize("kv_tokens", [250, 2_000])
def test_any_order_of_the_rows_gives_the_same_results(kv_tokens: int) -> None:
    rows = mixed(20)
    results, _ = run(rows, kv_tokens=kv_tokens)

    def one_by_one() -> Iterator[dict[str, str]]:
        yield from rows

    assert run(one_by_one(), kv_tokens=kv_tokens)[0] == results


def test_the_end_of_the_last_branch_leaves_the_prompt_that_is_gone_on_with() -> None:
    @lmc.jit
    def judged(s: State, x: str) -> None:
        s += f"A long text about {x} that is judged by three, and judged again. "
        for number, fork in enumerate(forks := s.fork(3)):
            fork += f"Side {number}: "
            fork += lmc.gen("said", max_tokens=3, ignore_eos=True)
        forks.join()
        if "\n" in s["said"][0]:
            s += "It has lines. "
        s += "".join(s["said"])
        s += lmc.gen("last", max_tokens=2, ignore_eos=True)

    told: list[tuple[int, int]] = []
    with lmc.Engine("fake") as engine:
        release = engine.core.release

        def seen(keys: Any, keep: int = 0) -> None:
            told.append((len(keys), keep))
            release(keys, keep)

        engine.core.release = seen  # type: ignore[method-assign]
        result = judged.run(x="bread", engine=engine)
    ends = told[:3]
    assert len({length for length, _ in ends}) == 1
    assert all(20 < keep < length - 3 for length, keep in ends)
    shared = result.meta("last").cached_tokens
    assert ends[-1][1] >= shared > 20  # the last branch ends; the judge's prompt is wanted still
