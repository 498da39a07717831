"""The engine core with a fake model: cases that stood in public bug reports, and the accounts."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lmc.errors import Cancelled, CapacityError, InternalError, RunError, UsageError
from lmc.params import GenParams
from lmc.runtime.engine import EngineCore, Handle
from lmc.runtime.fake import FakeRunner
from lmc.runtime.recording import Recorder as Watching
from lmc.runtime.request import (
    Finish,
    GenRequest,
    GenResult,
    Outcome,
    PrefillRequest,
    Request,
    Sampling,
    ScoreRequest,
    ScoreResult,
    Step,
    keys_of,
)
from tests.engine_oracle import EOS, SIZE, TOKEN_BYTES, Words

A, B, C, D = 0, 1, 2, 3


class Recorder(FakeRunner):
    """A fake runner that keeps its steps, and runs `before` each."""

    def __init__(self, kv_tokens: int, context_length: int = 400) -> None:
        super().__init__(SIZE, kv_tokens, context_length, TOKEN_BYTES, EOS)
        self.seen: list[Step] = []
        self.before: Callable[[Step], None] = lambda _: None

    def run(self, step: Step) -> Outcome:
        self.seen.append(step)
        self.before(step)
        return super().run(step)

    def rows(self) -> list[int]:
        """Tokens of each step."""
        return [sum(len(s.tokens) for s in step.segments) for step in self.seen]


class Bench:
    """An engine core, what was asked of it and what came."""

    def __init__(self, kv_tokens: int = 400, **limits: int) -> None:
        self.runner = Recorder(kv_tokens)
        self.core = EngineCore(self.runner, TOKEN_BYTES, EOS, check=True, **limits)
        self.results: dict[str, Any] = {}
        self.order: list[str] = []
        self.pieces: dict[str, list[str]] = {}

    def ask(self, name: str, request: Request) -> Handle:
        def done(result: object) -> None:
            assert name not in self.results
            self.results[name] = result
            self.order.append(name)

        return self.core.submit(request, done, self.pieces.setdefault(name, []).append)

    def run(self, bound: int = 500) -> None:
        for _ in range(bound):
            if not self.core.step():
                return
        raise AssertionError("the engine does not come to an end")


def prompt(seed: int, length: int = 20) -> list[int]:
    """Random tokens; no two prompts with seeds below 12 begin alike."""
    random = np.random.default_rng(seed).integers(0, len(TOKEN_BYTES) - 2, length)
    return [seed % (len(TOKEN_BYTES) - 2), *random.tolist()[1:]]


def gen(tokens: Sequence[int], max_tokens: int = 5, **options: Any) -> GenRequest:
    priority = options.pop("priority", ())
    constraint = options.pop("constraint", None)
    params = GenParams(max_tokens=max_tokens, ignore_eos=True, **options)
    return GenRequest(
        keys_of(tokens, made=False), priority, params, Sampling(), constraint=constraint
    )


def test_identical_prompts_of_one_step_are_computed_once() -> None:
    bench = Bench()
    for number in range(4):
        bench.ask(str(number), gen(prompt(0)))
    bench.run()
    assert bench.runner.rows()[0] == 20 + 3, "the others compute only what asks for a token"
    assert bench.core.stats.cached_tokens == 3 * 19
    assert len({tuple(r.tokens) for r in bench.results.values()}) == 1
    assert [r.cached_tokens for r in bench.results.values()] == [0, 19, 19, 19]


def test_b81_what_was_evicted_meanwhile_is_kept_and_what_is_there_twice_is_freed() -> None:
    bench = Bench(kv_tokens=21)
    score = ScoreRequest(keys_of(prompt(0), made=False), (), [[A], [B]])
    for name in ("cold", "warm"):
        bench.ask(name, score)
        bench.run()
    assert bench.core.statistics()["cache_held"] == 20
    bench.ask("tight", score)
    bench.ask("other", PrefillRequest(keys_of([B], made=False)))  # evicts the prompt's last token
    bench.run()
    assert bench.core.stats.evicted_tokens == 1
    assert bench.core.statistics()["cache_held"] == 21


def test_a_failed_step_leaves_no_entry_that_a_bystander_could_find() -> None:
    bench = Bench(kv_tokens=44, max_batch_tokens=16)
    shared = prompt(0, 40)
    bench.ask("first", gen([*shared, A], 1))
    bench.core.step()
    bench.ask("second", gen([*shared, B], 1, priority=(-1,)))

    def explode(_: Step) -> None:
        raise OSError("the device is gone")

    bench.core.step()
    bench.runner.before = explode
    bench.core.step()
    bench.runner.before = lambda _: None
    bench.core.audit()
    bench.run()
    bench.ask("again", gen([*shared, A], 1))
    bench.run()
    other = Bench()
    other.ask("again", gen([*shared, A], 1))
    other.run()
    assert bench.results["again"].tokens == other.results["again"].tokens


def test_a_prefix_that_is_being_prefilled_is_not_computed_again() -> None:
    bench = Bench(max_batch_tokens=8)
    shared = prompt(0, 30)
    for number in range(3):
        bench.ask(str(number), gen(shared + prompt(number + 1, 5), 0 + 1))
    bench.run()
    assert sum(bench.runner.rows()) == 30 + 3 * 5
    assert max(bench.runner.rows()) == 8
    assert bench.core.stats.computed_tokens == 45


def test_a_more_urgent_request_may_overtake_and_what_it_computes_is_shared() -> None:
    bench = Bench(max_batch_tokens=8, max_running=2)
    shared = prompt(0, 30)
    bench.ask("late", gen(shared + prompt(1, 5), 1, priority=(1,)))
    bench.core.step()
    bench.ask("soon", gen(shared + prompt(2, 5), 1, priority=(0,)))
    bench.run()
    assert sum(bench.runner.rows()) == 40


def test_b88_a_warm_cache_changes_nothing_and_leaves_one_token_to_compute() -> None:
    bench = Bench()
    bench.ask("cold", gen(prompt(0)))
    bench.run()
    before = len(bench.runner.seen)
    bench.ask("warm", gen(prompt(0)))
    bench.run()
    cold, warm = bench.results["cold"], bench.results["warm"]
    assert (cold.tokens, cold.logprobs) == (warm.tokens, warm.logprobs)
    assert bench.runner.rows()[before] == 1
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 19)
    assert bench.core.stats.hit_rate == pytest.approx(19 / 40)


def test_what_a_gen_made_is_found_by_the_call_that_goes_on_from_it() -> None:
    bench = Bench()
    first = gen(prompt(0))
    bench.ask("first", first)
    bench.run()
    made = keys_of(bench.results["first"].tokens, made=True)
    keys = np.concatenate([first.keys, made, keys_of([A, B], made=False)])
    bench.ask("second", GenRequest(keys, params=GenParams(max_tokens=1)))
    bench.run()
    assert bench.results["second"].cached_tokens == 24, "all but the token drawn last"


def test_what_was_cut_at_a_stop_string_is_not_kept_in_the_cache() -> None:
    for seed in range(100):
        bench = Bench()
        bench.ask("it", gen(prompt(seed), 30, stop=("ab",)))
        bench.run()
        result = bench.results["it"]
        if result.kept < len(result.tokens) - 1:
            assert bench.core.statistics()["cache_held"] == 20 + result.kept
            return
    raise AssertionError("no text was cut before its last token")


def test_a_prefill_takes_over_what_another_request_made_meanwhile() -> None:
    alone = Bench()
    first = gen(prompt(0, 4), 10)
    alone.ask("it", first)
    alone.run()
    made = keys_of(alone.results["it"].tokens, made=True)
    keys = np.concatenate([first.keys, made, keys_of(prompt(1), made=False)])
    bench = Bench(max_batch_tokens=2)
    bench.ask("first", first)
    for _ in range(7):
        bench.core.step()
    bench.ask("second", GenRequest(keys, params=GenParams(max_tokens=3)))
    bench.run()
    assert bench.core.stats.retracted_requests == 0
    assert bench.results["second"].cached_tokens > 4, "more than the prompt they share"
    alone.ask("second", GenRequest(keys, params=GenParams(max_tokens=3)))
    alone.run()
    assert bench.results["second"].tokens == alone.results["second"].tokens


def test_a_made_token_is_not_the_same_as_one_of_a_prompt() -> None:
    bench = Bench()
    tokens = prompt(0)
    bench.ask("span", PrefillRequest(keys_of(tokens, made=False)))
    bench.ask("made", PrefillRequest(keys_of(tokens, made=True)))
    bench.run()
    assert bench.core.stats.cached_tokens == 0
    assert [s.made for s in bench.runner.seen[0].segments] == [False, True]


def test_segments_are_uniform_in_made() -> None:
    bench = Bench()
    keys = np.array([2, 4, 5, 7, 6, 8, 9], np.int64)
    bench.ask("mixed", PrefillRequest(keys))
    bench.run()
    pieces = [(s.start, s.tokens.tolist(), s.made) for s in bench.runner.seen[0].segments]
    assert pieces == [(0, [1, 2], False), (2, [2, 3], True), (4, [3, 4], False), (6, [4], True)]


def test_b87_scores_are_the_same_both_times_and_end_in_the_cache() -> None:
    bench = Bench()
    request = ScoreRequest(
        keys_of(prompt(0, 33), made=False), continuations=[[A, B, C], [A, B], [A, D, D], [C], [C]]
    )
    bench.ask("cold", request)
    bench.run()
    assert bench.runner.rows() == [33 + 3], "common tokens are computed once, last ones never"
    bench.ask("warm", request)
    bench.run()
    assert bench.runner.rows()[1] == 1 + 3
    cold, warm = bench.results["cold"], bench.results["warm"]
    assert isinstance(cold, ScoreResult)
    assert cold.logprobs == warm.logprobs
    assert [len(row) for row in cold.logprobs] == [3, 2, 3, 1, 1]
    assert cold.logprobs[3] == cold.logprobs[4]
    assert bench.core.statistics()["cache_held"] == 33 + 3
    keys = np.concatenate([request.keys, keys_of([A, D, D], made=True)])
    bench.ask("go on", GenRequest(keys, params=GenParams(max_tokens=1)))
    bench.run()
    assert bench.results["go on"].cached_tokens == 35


def test_scores_spread_over_steps_are_the_same() -> None:
    request = ScoreRequest(
        keys_of(prompt(0, 9), made=False), continuations=[[A, B, C, D], [A, B, D, D], [B, B, B]]
    )
    wide, narrow = Bench(), Bench(kv_tokens=16, max_batch_tokens=1)
    for bench in (wide, narrow):
        bench.ask("scores", request)
        bench.run()
    assert wide.results["scores"].logprobs == narrow.results["scores"].logprobs
    assert (len(wide.runner.seen), len(narrow.runner.seen)) == (1, 9 + 6)


def test_b48_steps_are_the_free_tokens_only() -> None:
    words = [[A, B, C, D, A, B], [A, B, C, D, B, A, C]]
    counts = {}
    for jump in (True, False):
        bench = Bench()
        bench.ask("it", gen([B], 10, constraint=Words(words), jump_forward=jump))
        bench.run()
        result = bench.results["it"]
        assert result.finish is Finish.CONSTRAINT
        assert result.tokens in words
        counts[jump] = (len(bench.runner.seen), result.forced_tokens)
        assert [math.isnan(x) for x in result.logprobs].count(True) == result.forced_tokens
    forced = len(result.tokens) - 1
    assert counts == {True: (1, forced), False: (len(result.tokens), 0)}


def test_tokens_forced_at_the_start_ride_with_the_prompt() -> None:
    bench = Bench()
    bench.ask("it", gen(prompt(0, 6), 9, constraint=Words([[A, B, C], [A, B, D]])))
    bench.run()
    assert [(len(s.tokens), s.made) for s in bench.runner.seen[0].segments] == [
        (6, False),
        (2, True),
    ]
    assert bench.runner.seen[0].segments[1].position == 2
    assert len(bench.runner.seen) == 1


def test_forced_tokens_count_against_max_tokens_and_against_the_step() -> None:
    bench = Bench(max_batch_tokens=4)
    word = [A, B] * 10
    words = [[*word, C, C], [*word, D, D]]
    bench.ask("cut", gen(prompt(0, 3), 7, constraint=Words(words)))
    bench.ask("whole", gen(prompt(0, 3), 50, constraint=Words(words)))
    bench.run()
    assert bench.results["cut"].tokens == word[:7]
    assert bench.results["cut"].finish is Finish.LENGTH
    assert bench.results["whole"].tokens in words
    assert max(bench.runner.rows()) <= 4


def test_forced_runs_share_the_step_with_all_that_run() -> None:
    bench = Bench(max_batch_tokens=6)
    words = [[first, *[B, C] * 8, last] for first in (A, B) for last in (A, B)]
    for number in range(4):
        bench.ask(str(number), gen(prompt(number, 3), 18, constraint=Words(words)))
    bench.ask("free", gen(prompt(5, 3), 12))
    bench.run()
    assert all(result.tokens in words for name, result in bench.results.items() if name != "free")
    assert max(bench.runner.rows()) == 6


def test_a_long_text_is_the_same_in_one_piece_and_in_two() -> None:
    bench = Bench()
    whole, half = gen(prompt(0), 200), gen(prompt(0), 100)
    bench.ask("whole", whole)
    bench.ask("half", half)
    bench.run()
    tokens = bench.results["half"].tokens
    keys = np.concatenate([half.keys, keys_of(tokens, made=True)])
    bench.ask("rest", GenRequest(keys, params=half.params))
    bench.run()
    assert bench.results["whole"].tokens == [*tokens, *bench.results["rest"].tokens]


def test_a_constraint_that_forces_everything_needs_no_step() -> None:
    bench = Bench()
    bench.ask("it", gen(prompt(0), 9, constraint=Words([[A, B, C]])))
    bench.run()
    assert (bench.results["it"].text, bench.results["it"].finish) == ("abc", Finish.CONSTRAINT)
    assert bench.core.stats.model_steps == 0
    assert bench.core.stats.forced_tokens == 3


def test_b22_b37_the_end_token_comes_only_where_the_text_matches() -> None:
    for seed in range(40):
        bench = Bench()
        request = gen(prompt(seed), 9, constraint=Words([[A, A], [A, A, B, B]]))
        request.params = GenParams(max_tokens=9)
        bench.ask("it", request)
        bench.run()
        assert bench.results["it"].tokens in ([A, A], [A, A, B, B])


def test_an_end_token_is_not_part_of_the_result() -> None:
    ends = 0
    for seed in range(60):
        bench = Bench()
        bench.ask("it", GenRequest(keys_of(prompt(seed), made=False), params=GenParams(40)))
        bench.run()
        result = bench.results["it"]
        assert EOS.isdisjoint(result.tokens)
        assert len(result.tokens) == len(result.logprobs) == result.kept
        ends += result.finish is Finish.EOS
    assert 20 < ends < 60


def test_a_constraint_at_a_dead_end_fails_its_own_request_only() -> None:
    class Stuck(Words):
        def mask(self) -> Any:
            return np.zeros(SIZE, np.bool_)

        def forced(self) -> list[int]:
            return []

    bench = Bench()
    bench.ask("good", gen(prompt(0)))
    bench.ask("stuck", gen(prompt(0), constraint=Stuck([[A, B]])))
    bench.run()
    assert type(bench.results["stuck"]) is RunError
    assert "dead end" in str(bench.results["stuck"])
    assert isinstance(bench.results["good"], GenResult)


def test_a_mask_that_leaves_only_banned_tokens_is_a_dead_end() -> None:
    class Open(Words):
        def is_finished(self) -> bool:
            return False

    bench = Bench()
    bench.ask("it", gen(prompt(0), constraint=Open([[A], [B]])))
    bench.run()
    assert type(bench.results["it"]) is RunError
    assert "dead end" in str(bench.results["it"])


@pytest.mark.parametrize("broken", ["mask", "advance", "forced", "is_finished"])
def test_a_constraint_that_breaks_takes_nobody_with_it(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Words):
        pass

    def fail(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Broken, broken, fail)
    bench = Bench()
    bench.ask("good", gen(prompt(0)))
    bench.ask("broken", gen(prompt(0), constraint=Broken([[A, B], [B, A]])))
    bench.run()
    assert str(bench.results["broken"]) == "the constraint failed: oh"
    assert isinstance(bench.results["broken"].__cause__, ZeroDivisionError)
    assert isinstance(bench.results["good"], GenResult)


def test_a_constraint_that_refuses_what_it_allowed_fails_its_own_request_only() -> None:
    class Fickle(Words):
        def advance(self, token: int) -> None:
            raise ValueError(f"no {token} after all")

    bench = Bench()
    bench.ask("good", gen(prompt(0)))
    bench.ask("fickle", gen(prompt(0), constraint=Fickle([[A, B], [B, A]])))
    bench.run()
    assert "after all" in str(bench.results["fickle"])
    assert isinstance(bench.results["good"], GenResult)


def test_b102_max_tokens_0_needs_no_step() -> None:
    bench = Bench()
    bench.ask("it", gen(prompt(0), 0))
    assert bench.results == {}, "callbacks come from `step` only"
    bench.run()
    assert (bench.results["it"].finish, bench.results["it"].text) == (Finish.LENGTH, "")
    assert bench.core.stats.model_steps == 0


def test_the_end_of_the_context_ends_the_text() -> None:
    runner = FakeRunner(SIZE, 400, 24, TOKEN_BYTES, EOS)
    core, results = EngineCore(runner, TOKEN_BYTES, EOS), []
    for length in (20, 24, 25):
        core.submit(gen(prompt(0, length), 50), results.append)
    while core.step():
        pass
    assert [
        len(r.tokens) for r in sorted(results[:3], key=lambda r: hasattr(r, "problem"))[:0]
    ] == []
    by_length = {r.prompt_tokens: r for r in results if isinstance(r, GenResult)}
    assert (len(by_length[20].tokens), by_length[20].finish) == (4, Finish.LENGTH)
    assert (len(by_length[24].tokens), by_length[24].finish) == (0, Finish.LENGTH)
    errors = [r for r in results if isinstance(r, CapacityError)]
    assert [str(e).split("\n")[0] for e in errors] == [
        "the request needs 25 positions, the model has 24"
    ]


@pytest.mark.parametrize(
    "bad",
    [
        GenRequest(keys_of([], made=False)),
        GenRequest(keys_of([SIZE], made=False)),
        GenRequest(np.array([-2], np.int64)),
        ScoreRequest(keys_of([A], made=False), continuations=[[A], []]),
        ScoreRequest(keys_of([A], made=False), continuations=[]),
        ScoreRequest(keys_of([A], made=False), continuations=[[SIZE]]),
        Request(keys_of([A], made=False)),
    ],
)
def test_b70_a_malformed_request_fails_alone(bad: Request) -> None:
    bench = Bench()
    bench.ask("bad", bad)
    bench.ask("good", gen(prompt(0)))
    bench.run()
    assert isinstance(bench.results["bad"], UsageError)
    assert isinstance(bench.results["good"], GenResult)


def test_a_request_that_can_never_fit_says_what_it_needs() -> None:
    bench = Bench(kv_tokens=30)
    bench.ask("long prompt", gen(prompt(0, 31)))
    bench.ask("long text", gen(prompt(1, 25), 20))
    bench.ask("scores", ScoreRequest(keys_of(prompt(2, 28), made=False), (), [[A, B, C, D]]))
    bench.ask("good", gen(prompt(3, 25), 6))
    bench.run()
    assert str(bench.results["long prompt"]).startswith(
        "the request needs 31 KV slots, the pool has 30\n  hint: "
    )
    for name in ("long text", "scores"):
        assert isinstance(bench.results[name], CapacityError)
        assert "31 KV slots" in str(bench.results[name])
    assert isinstance(bench.results["good"], GenResult)


def test_when_memory_is_short_the_last_to_arrive_gives_way_and_loses_nothing() -> None:
    alone = {}
    for number in range(3):
        bench = Bench()
        bench.ask("it", gen(prompt(number, 5), 40))
        bench.run()
        alone[str(number)] = bench.results["it"].tokens
    bench = Bench(kv_tokens=80)
    for number in range(3):
        bench.ask(str(number), gen(prompt(number, 5), 40))
    bench.run()
    assert bench.core.stats.retracted_requests > 0
    assert {name: r.tokens for name, r in bench.results.items()} == alone
    assert bench.order[0] == "0"
    assert bench.core.stats.peak_kv_tokens <= 80
    assert bench.core.stats.prompt_tokens == 15, "a prompt is counted once"
    assert bench.core.stats.cached_tokens == 0


def test_a_request_is_admitted_only_if_those_before_it_keep_room_to_grow() -> None:
    bench = Bench(kv_tokens=50)
    bench.ask("first", gen(prompt(0), 20))
    bench.ask("second", gen(prompt(1, 5), 20))
    bench.run()
    assert bench.core.stats.retracted_requests == 0
    assert bench.core.stats.model_steps == 40, "one after the other"


def test_scores_that_gave_way_half_done_are_complete_in_the_end() -> None:
    request = ScoreRequest(
        keys_of(prompt(1, 4), made=False), (), [[A, B, C, D] * 3, [B, C, D, A] * 3]
    )
    calm = Bench()
    calm.ask("scores", request)
    calm.run()
    bench = Bench(kv_tokens=34, max_batch_tokens=3, headroom=0)
    bench.ask("early", gen(prompt(0, 4), 25))
    bench.ask("scores", request)
    bench.run()
    assert bench.core.stats.retracted_requests == 1
    assert bench.results["scores"].logprobs == calm.results["scores"].logprobs


def test_a_request_is_not_overtaken_for_ever() -> None:
    bench = Bench(max_running=1, max_overtaken=5)
    bench.ask("patient", gen(prompt(0), 1, priority=(1,)))
    for number in range(20):
        bench.ask(f"urgent {number}", gen(prompt(number + 1), 1, priority=(0,)))
    bench.run()
    assert bench.order.index("patient") == 5


def test_the_longest_cached_prefix_goes_first_among_equals() -> None:
    bench = Bench(max_running=1)
    bench.ask("seed", gen(prompt(0), 1))
    bench.run()
    bench.ask("cold", gen(prompt(1), 1))
    bench.ask("warm", gen(prompt(0) + prompt(2), 1))
    bench.ask("urgent", gen(prompt(3), 1, priority=()))
    bench.run()
    assert bench.order[1] == "warm"


def test_what_got_cached_while_a_request_waited_counts() -> None:
    bench = Bench(max_running=1)
    bench.ask("seed", gen(prompt(0), 3))
    bench.ask("cold", gen(prompt(1), 1))
    bench.ask("warm", gen(prompt(0) + prompt(2), 1))
    bench.run()
    assert bench.order == ["seed", "warm", "cold"]


def test_priorities_come_before_the_cache() -> None:
    bench = Bench(max_running=1)
    bench.ask("seed", gen(prompt(0), 1))
    bench.run()
    bench.ask("warm", gen(prompt(0) + prompt(2), 1, priority=(1, 0)))
    bench.ask("cold", gen(prompt(1), 1, priority=(0, 9)))
    bench.run()
    assert bench.order[1:] == ["cold", "warm"]


def test_a_long_prompt_leaves_a_part_of_each_step_to_the_others() -> None:
    def steps(*others: str) -> dict[str, int]:
        bench = Bench(kv_tokens=900, max_batch_tokens=16)
        bench.ask("long", gen(prompt(0, 320), 1))
        ended: dict[str, int] = {}
        for step in range(1, 100):
            if step == 3:
                for nth, name in enumerate(others, 1):
                    bench.ask(name, gen(prompt(nth, 30), 2))
            bench.core.step()
            for name in bench.order[len(ended) :]:
                ended[name] = step
        return ended

    alone = steps()["long"]
    assert alone == 20
    together = steps("short", "other")
    assert together["short"] < 14, "it does not wait for the long one"
    assert together["other"] < together["long"] <= alone + 5, "nor is the long one held up"


def test_b93_a_cancelled_request_ends_within_a_step_and_frees_its_slots() -> None:
    bench = Bench()
    handle = bench.ask("it", gen(prompt(0), 300))
    for _ in range(5):
        bench.core.step()
    bench.core.cancel(handle)
    bench.core.cancel(handle)
    bench.core.step()
    result = bench.results["it"]
    assert (result.finish, len(result.tokens)) == (Finish.CANCELLED, 5)
    assert "".join(bench.pieces["it"]) == result.text
    assert not bench.core.has_work
    assert bench.core.statistics()["cache_pinned"] == 0
    assert len(bench.runner.seen) == 5


def test_a_request_can_be_cancelled_while_its_step_runs() -> None:
    bench = Bench()
    handles = [bench.ask(str(n), gen(prompt(n), 300)) for n in range(2)]
    scores = bench.ask("scores", ScoreRequest(keys_of(prompt(5), made=False), (), [[A, B]]))

    def cancel(_: Step) -> None:
        bench.core.cancel(handles[0])
        bench.core.cancel(scores)

    bench.runner.before = cancel
    bench.core.step()
    assert bench.results["0"].finish is Finish.CANCELLED
    assert isinstance(bench.results["scores"], Cancelled)
    assert "1" not in bench.results
    bench.core.close()


def test_a_callback_may_submit_and_cancel() -> None:
    bench = Bench()
    other = bench.ask("other", gen(prompt(1), 100))

    def then(_: object) -> None:
        bench.core.cancel(other)
        bench.ask("next", gen(prompt(2), 2))

    bench.core.submit(gen(prompt(0), 1), then)
    bench.run()
    assert bench.results["other"].finish is Finish.CANCELLED
    assert bench.results["next"].finish is Finish.LENGTH


def test_b73_a_step_that_fails_fails_its_requests_with_the_cause_and_nothing_else() -> None:
    bench = Bench(max_running=2)
    bench.ask("before", gen(prompt(9), 1))
    bench.run()
    for number in range(3):
        bench.ask(str(number), gen(prompt(number), 4))

    def explode(_: Step) -> None:
        bench.runner.before = lambda _: None
        raise MemoryError("out of device memory")

    bench.runner.before = explode
    bench.run()
    for name in ("0", "1"):
        error = bench.results[name]
        assert type(error) is RunError
        assert "out of device memory" in str(error)
        assert isinstance(error.__cause__, MemoryError)
    assert isinstance(bench.results["2"], GenResult)
    assert bench.core.statistics()["cache_held"] == 20 + 23, "what was computed before stays"


def test_an_interrupt_comes_out_and_leaves_the_engine_in_order() -> None:
    bench = Bench()
    bench.ask("it", gen(prompt(0), 4))

    def interrupt(_: Step) -> None:
        raise KeyboardInterrupt

    bench.runner.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.core.step()
    bench.core.audit()
    bench.core.step()
    assert isinstance(bench.results["it"], Cancelled)


def test_b73_a_fault_of_the_bookkeeping_fails_everything_at_once_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(max_running=1)
    handles = [bench.ask(str(n), gen(prompt(n), 4)) for n in range(3)]
    bench.core.step()
    monkeypatch.setattr(type(bench.core._scheduler), "next", lambda _: [][0])
    with caplog.at_level(logging.CRITICAL, "lmc.engine"):
        bench.core.step()
    monkeypatch.undo()
    for number, handle in enumerate(handles):
        error = bench.results[str(number)]
        assert type(error) is InternalError
        assert isinstance(error.__cause__, IndexError)
        bench.core.cancel(handle)
    bench.ask("after", gen(prompt(0), 4))
    bench.run()
    assert isinstance(bench.results["after"], GenResult)


def test_closing_ends_everything_once() -> None:
    bench = Bench()
    bench.ask("gen", gen(prompt(0), 100))
    bench.ask("prefill", PrefillRequest(keys_of(prompt(1), made=False)))
    bench.core.close()
    bench.core.close()
    assert bench.results["gen"].finish is Finish.CANCELLED
    assert isinstance(bench.results["prefill"], Cancelled)
    with pytest.raises(RunError, match="closed"):
        bench.ask("late", gen(prompt(0)))


def test_a_prefill_is_free_when_all_of_it_is_cached() -> None:
    bench = Bench()
    bench.ask("first", PrefillRequest(keys_of(prompt(0), made=False)))
    bench.run()
    bench.ask("again", PrefillRequest(keys_of(prompt(0)[:12], made=False)))
    bench.run()
    assert bench.runner.rows() == [20]
    assert bench.results == {"first": None, "again": None}


def test_released_states_make_way_first() -> None:
    bench = Bench(kv_tokens=60)
    for number in range(2):
        bench.ask(str(number), PrefillRequest(keys_of(prompt(number), made=False)))
    bench.run()
    bench.core.release(keys_of(prompt(1), made=False))
    bench.ask("big", PrefillRequest(keys_of(prompt(2, 40), made=False)))
    bench.run()
    assert bench.core.stats.evicted_tokens == 20
    for number, cached in ((0, 19), (1, 0)):
        bench.ask(f"again {number}", gen(prompt(number), 1))
        bench.run()
        assert bench.results[f"again {number}"].cached_tokens == cached


def test_forgetting_empties_the_cache_but_for_what_runs() -> None:
    bench = Bench()
    bench.ask("done", gen(prompt(0), 1))
    bench.run()
    bench.ask("running", gen(prompt(1), 9))
    bench.core.step()
    bench.core.forget()
    assert bench.core.statistics()["cache_held"] == 20
    bench.run()
    bench.core.forget()
    assert bench.core.statistics()["free"] == 400
    assert bench.core.stats.evicted_tokens == 0, "nothing had to make way"


def test_b82_a_long_prompt_comes_and_goes_without_a_trace() -> None:
    bench = Bench(kv_tokens=210)
    bench.ask("it", gen(prompt(0, 200), 1))
    bench.run()
    sizes = bench.core.statistics()
    assert (sizes["free"], sizes["cache_held"], sizes["cache_pinned"]) == (10, 200, 0)


def test_the_accounts_add_up() -> None:
    bench = Bench()
    for number in range(6):
        bench.ask(str(number), gen(prompt(number % 2), 5))
    bench.run()
    stats = bench.core.stats
    assert (stats.requests, stats.prompt_tokens, stats.cached_tokens) == (6, 120, 4 * 19)
    assert stats.generated_tokens == 30
    assert stats.computed_tokens == sum(bench.runner.rows()) == 120 - 76 + 6 * 4
    assert stats.model_steps == len(bench.runner.seen) == 5
    assert set(stats.seconds) == {"schedule", "model", "finish"}
    assert stats.to_json()["hit_rate"] == pytest.approx(76 / 120)


class Device(Recorder):
    """A runner that computes meanwhile: started steps are told of later, repeats one by one."""

    def __init__(self, kv_tokens: int) -> None:
        super().__init__(kv_tokens)
        self.most_repeats = 16
        self.done = True

    def start(self, step: Step) -> Flown:
        return Flown(self, step)


class Flown:
    """A step of a `Device`, computed when it is asked for."""

    def __init__(self, device: Device, step: Step) -> None:
        self.device, self.step = device, step

    def ready(self) -> bool:
        return self.device.done

    def outcome(self) -> Outcome:
        return self.device.run(self.step)


def test_a_device_decodes_without_being_asked_for_every_token() -> None:
    bench = Bench()
    runner = Device(400)
    core = bench.core = EngineCore(runner, TOKEN_BYTES, EOS, check=True)
    requests = [gen(prompt(n), max_tokens=n) for n in (33, 40)]
    for n, request in enumerate(requests):
        bench.ask(str(n), request)
    bench.run()
    assert [len(bench.results[str(n)].tokens) for n in (0, 1)] == [33, 40]
    # the prompts, 32 tokens each, then the 7 that one still wants
    assert [step.repeats for step in runner.seen] == [1, 16, 16, 7]
    assert [step.after for step in runner.seen] == [(), (), (0, 1), ()], "the last is of one row"
    assert core.stats.model_steps == 40


@pytest.mark.parametrize("going_on", [True, False])
def test_a_step_is_continued_while_all_go_on(going_on: bool) -> None:
    """One ends in the middle of a step that had been continued, or at the end of one."""
    bench = Bench()
    runner = Device(400)
    core = bench.core = EngineCore(runner, TOKEN_BYTES, EOS, check=True)
    alone = Bench()
    for one in (bench, alone):
        one.ask("long", gen(prompt(0), max_tokens=60))
        stops: dict[str, Any] = {"stop_token_ids": (3,)} if going_on else {}
        one.ask("short", gen(prompt(1), max_tokens=60 if going_on else 17, **stops))
        one.run()
    assert [bench.results[name].tokens for name in ("long", "short")] == [
        alone.results[name].tokens for name in ("long", "short")
    ]
    after = [step.after for step in runner.seen]
    if going_on:
        assert len(bench.results["short"].tokens) == 21
        assert (0, 1) in after
    else:
        assert after == [(), (), (), (0,), (0,)], "17 tokens are the prompt's draw and 16 more"
    assert core.statistics()["free"] + core.statistics()["cache_held"] == 400


def test_a_step_that_continues_fails_with_the_one_before() -> None:
    bench = Bench()
    runner = Device(400)
    bench.core = EngineCore(runner, TOKEN_BYTES, EOS, check=True)
    bench.ask("one", gen(prompt(0), max_tokens=60))

    def explode(step: Step) -> None:
        if step.after:
            raise OSError("the device is gone")

    runner.before = explode
    bench.run()
    assert isinstance(bench.results["one"], RunError)
    bench.core.audit()
    runner.before = lambda _: None
    bench.ask("again", gen(prompt(0), max_tokens=60))
    bench.run()
    assert len(bench.results["again"].tokens) == 60


class Talks:
    """Two chains of two gens each, which end with one step, and a gen that goes on beside them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.events: list[str] = []
        self.handles: list[Handle] = []
        self.during: dict[str, Callable[[], object]] = {}
        for name in ("first", "second"):
            request = gen(prompt(len(self.handles), 5), max_tokens=1)
            request.follow = functools.partial(self.follow, name, request)
            self.handles.append(bench.ask(name, request))
        bench.ask("beside", gen(prompt(7, 5), max_tokens=9))

    def follow(self, name: str, before: GenRequest, result: GenResult) -> GenRequest:
        self.events.append(name)
        self.during.get(name, bool)()
        following = gen([], max_tokens=3)
        made = keys_of(result.tokens[: result.kept], made=True)
        text = keys_of(prompt(len(name), 6), made=False)
        following.keys = np.concatenate((before.keys, made, text))
        return following


@pytest.fixture
def little_is_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmc.runtime.scheduler.WORTHWHILE", 4)


def talks(kind: type[Recorder] = Recorder) -> tuple[Bench, Talks]:
    bench = Bench()
    bench.runner = Device(400) if kind is Device else Recorder(400)
    bench.core = EngineCore(bench.runner, TOKEN_BYTES, EOS, check=True)
    return bench, Talks(bench)


@pytest.mark.usefixtures("little_is_worthwhile")
def test_a_step_is_started_while_others_are_gone_on_with() -> None:
    bench, two = talks(Device)
    assert isinstance(bench.runner, Device)
    start = bench.runner.start

    def noted(step: Step) -> Flown:
        two.events.append(f"a step of {bench.core._scheduler.in_flight}")
        return start(step)

    bench.core._start = noted
    bench.run()
    assert two.events[:4] == ["a step of 3", "first", "a step of 2", "second"], (
        "the one beside has its token and takes part"
    )
    alone, _ = talks()
    alone.run()
    for name in ("first", "second", "beside"):
        assert bench.results[name].tokens == alone.results[name].tokens


@pytest.mark.usefixtures("little_is_worthwhile")
@pytest.mark.parametrize("kind", [Recorder, Device])
def test_who_is_cancelled_before_it_is_gone_on_with_gives_what_it_has(
    kind: type[Recorder],
) -> None:
    bench, two = talks(kind)
    two.during["first"] = lambda: bench.core.cancel(two.handles[1])
    bench.run()
    assert two.events == ["first"], "nobody asks what follows"
    assert len(bench.results["second"].tokens) == 1
    assert len(bench.results["first"].tokens) == 3


@pytest.mark.usefixtures("little_is_worthwhile")
def test_an_interrupt_of_a_step_leaves_nobody_behind() -> None:
    bench, two = talks(Device)
    assert isinstance(bench.runner, Device)
    start = bench.runner.start

    def interrupted(step: Step) -> Flown:
        if two.events == ["first"]:
            raise KeyboardInterrupt
        return start(step)

    bench.core._start = interrupted
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert two.events == ["first", "second"]
    bench.run()
    assert isinstance(bench.results["first"], Cancelled), "it was in that step"
    assert len(bench.results["second"].tokens) == 3


def test_where_memory_is_short_a_step_is_not_tried_after_everyone_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmc.runtime.scheduler.WORTHWHILE", 10)
    bench, two = talks(Device)
    for name in ("third", "fourth", "fifth"):
        request = gen(prompt(len(name), 5), max_tokens=1)
        request.follow = functools.partial(two.follow, name, request)
        bench.ask(name, request)
    scheduler = bench.core._scheduler
    make, tried = scheduler.next, []

    def no_room() -> Step | None:
        if not scheduler._queues.finished:
            return make()
        tried.append(len(two.events))
        return None

    monkeypatch.setattr(scheduler, "next", no_room)
    bench.run()
    assert len(two.events) == 5
    assert tried == [2, 4], "each has 6 tokens or so to be computed"


def test_nobody_waits_for_repeats() -> None:
    bench = Bench()
    runner = Device(400)
    core = bench.core = EngineCore(runner, TOKEN_BYTES, EOS, check=True, max_batch_tokens=8)
    bench.ask("first", gen(prompt(1, 4), max_tokens=60))
    for _ in range(3):
        core.step()
    bench.ask("second", gen(prompt(2, 40), max_tokens=4))
    bench.run()
    repeats = [step.repeats for step in runner.seen]
    assert repeats[:2] == [1, 16]
    assert set(repeats[2:8]) == {1}, "the prompt of the second is computed beside the first"
    assert len(bench.results["first"].tokens) == 60


def busy(kv_tokens: int = 400, **limits: int) -> tuple[Bench, Device]:
    """A device that is never done, so that a second step is started while it computes."""
    bench = Bench()
    runner = Device(kv_tokens)
    bench.core = EngineCore(runner, TOKEN_BYTES, EOS, check=True, max_batch_tokens=16, **limits)
    bench.runner = runner
    runner.done = False
    return bench, runner


def test_while_a_device_computes_the_next_prompts_are_given_to_it() -> None:
    bench, runner = busy()
    core = bench.core
    for n in range(4):
        bench.ask(str(n), gen(prompt(n, 10), max_tokens=3))
    core.step()
    assert not core.computing, "16 of 40 tokens are under way"
    core.step()
    assert core.computing, "two steps, and no third one"
    assert not bench.results
    runner.done = True
    bench.run()
    assert [len(step.segments) for step in runner.seen[:2]] == [2, 3], "the second begins elsewhere"
    assert runner.seen[1].after == (0, -1, -1), "and who draws in the first goes on in it"
    alone = Bench()
    for n in range(4):
        alone.ask(str(n), gen(prompt(n, 10), max_tokens=3))
    alone.run()
    assert [bench.results[str(n)].tokens for n in range(4)] == [
        alone.results[str(n)].tokens for n in range(4)
    ]


def test_few_prompts_wait_until_the_device_is_done() -> None:
    bench, _ = busy()
    bench.ask("one", gen(prompt(0, 10), max_tokens=3))
    bench.core.step()
    bench.ask("two", gen(prompt(1, 7), max_tokens=3))
    assert bench.core.computing
    bench.ask("three", gen(prompt(2, 1), max_tokens=3))
    assert not bench.core.computing, "8 tokens are half a step"


def test_few_prompts_do_not_wait_if_nothing_else_is_to_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmc.runtime.engine.FEW", 5)
    bench, runner = busy()
    core = bench.core
    bench.ask("one", gen(prompt(0, 10), max_tokens=3, top_logprobs=1))  # waits for its token
    core.step()
    bench.ask("two", gen(prompt(1, 4), max_tokens=3))
    core.settle_for_few()
    assert core.computing, "too few in any case"
    bench.ask("three", gen(prompt(2, 2), max_tokens=3))
    assert core.computing, "something has come: there may be more"
    core.settle_for_few()
    assert not core.computing
    core.step()
    assert core.computing
    runner.done = True
    bench.run()
    assert [len(step.segments) for step in runner.seen[:2]] == [1, 2]


def test_few_prompts_without_memory_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the KV cache has no room beside the step under way, the loop must not try and try."""
    monkeypatch.setattr("lmc.runtime.engine.FEW", 5)
    bench, runner = busy(24)
    core = bench.core
    bench.ask("one", gen(prompt(0, 16), max_tokens=1))
    core.step()
    bench.ask("two", gen(prompt(1, 7), max_tokens=3))
    core.settle_for_few()
    assert not core.computing
    core.step()
    assert len(core._flights) == 1, "there is no room for it"
    core.settle_for_few()
    assert core.computing, "nothing has changed since"
    runner.done = True
    bench.run()
    assert len(bench.results["two"].tokens) == 3


def test_branches_of_a_row_are_counted_once() -> None:
    """Three branches of a prompt are one prompt to be computed, and no half of a step."""
    bench, _ = busy()
    bench.ask("under way", gen(prompt(0, 16), max_tokens=3, priority=(0, 0)))
    bench.core.step()
    for n in range(3):
        bench.ask(str(n), gen([*prompt(1, 6), n], max_tokens=3, priority=(1, n)))
    assert bench.core.computing, "7 tokens, and two more"
    bench.ask("another row", gen(prompt(2, 6), max_tokens=3, priority=(2, 0)))
    assert not bench.core.computing


@pytest.mark.parametrize("failing", ["first", "second"])
def test_of_two_steps_under_way_one_fails(failing: str) -> None:
    """The second reads what the first writes, and is lost with it; not the other way round."""
    bench, runner = busy()
    watching = bench.core.observer = Watching()
    shared = prompt(0, 16)
    bench.ask("first", gen(shared, 1))
    bench.core.step()
    bench.ask("second", gen(shared + prompt(1, 12), 1))
    bench.core.step()

    def explode(step: Step) -> None:
        if (step.segments[0].start == 0) == (failing == "first"):
            raise OSError("the device is gone")

    runner.before = explode
    runner.done = True
    bench.run()
    bench.core.audit()
    failed = {name for name, result in bench.results.items() if isinstance(result, RunError)}
    assert failed == ({"first", "second"} if failing == "first" else {"second"})
    steps = watching.recording().steps
    assert [step.failed for step in steps] == [failing == "first", True]
    runner.before = lambda _: None
    alone = Bench()
    for one in (bench, alone):
        one.ask("again", gen(shared + prompt(1, 12), 4))
        one.run()
    assert bench.results["again"].tokens == alone.results["again"].tokens


def test_who_took_over_entries_of_a_step_that_fails_computes_them_again() -> None:
    """The first finds its last token in the second step's entries, as its own are gone."""
    bench, runner = busy()
    shared = prompt(0, 16)
    runner.done = True
    bench.ask("cached", PrefillRequest(keys_of(shared, made=False)))
    bench.run()
    runner.done = False
    bench.ask("first", gen(shared, 4, top_logprobs=1))  # so it does not ride in the second step
    bench.core.step()
    bench.core.forget()  # the last token, which nobody leases
    bench.ask("second", gen(shared + prompt(1, 12), 1))
    bench.core.step()

    def explode(step: Step) -> None:
        if len(step.segments[0].tokens) > 1:
            raise OSError("the device is gone")

    runner.before = explode
    bench.core.step()
    runner.done = True
    bench.run()
    assert isinstance(bench.results["second"], RunError)
    assert bench.core.stats.retracted_requests == 1
    alone = Bench()
    alone.ask("first", gen(shared, 4))
    alone.run()
    assert bench.results["first"].tokens == alone.results["first"].tokens


def test_a_closed_engine_calls_back_though_two_steps_are_under_way() -> None:
    bench, _ = busy()
    for n in range(4):
        bench.ask(str(n), gen(prompt(n, 10), max_tokens=60))
    bench.core.step()
    bench.core.step()
    bench.core.close()
    assert {result.finish for result in bench.results.values()} == {Finish.CANCELLED}


def test_a_closed_engine_calls_back_though_a_step_is_under_way() -> None:
    bench = Bench()
    bench.core = EngineCore(Device(400), TOKEN_BYTES, EOS, check=True)
    bench.ask("one", gen(prompt(1), max_tokens=60))
    for _ in range(3):
        bench.core.step()
    assert not bench.results
    bench.core.close()
    assert bench.results["one"].finish is Finish.CANCELLED


def test_a_step_under_way_is_seen_from_outside() -> None:
    bench = Bench()
    runner = Device(400)
    core = bench.core = EngineCore(runner, TOKEN_BYTES, EOS, check=True)
    bench.ask("one", gen(prompt(1), max_tokens=2))
    runner.done = False
    assert not core.computing
    core.step()
    assert core.computing
    runner.done = True
    assert not core.computing
    bench.run()
    assert len(bench.results["one"].tokens) == 2


def test_an_observer_is_told_of_steps_that_a_device_repeats() -> None:
    bench = Bench()
    core = bench.core = EngineCore(Device(400), TOKEN_BYTES, EOS, check=True)
    watching = core.observer = Watching(itertools.count().__next__)
    bench.ask("one", gen(prompt(1), max_tokens=40))
    bench.run()
    recording = watching.recording()
    assert [step.repeats for step in recording.steps] == [1, 16, 16, 7]
    assert sum(step.made_tokens for step in recording.steps) == 39  # the last is never computed
    assert all(step.requests == 1 and not step.failed for step in recording.steps)
    begins, ends = [[getattr(step, name) for step in recording.steps] for name in ("begin", "end")]
    assert begins == sorted(begins)
    assert ends == sorted(ends)
    assert begins[2] < ends[1] < begins[3], "the third continues the second, the last has its own"
    assert [step.held + step.free for step in recording.steps[-1:]] == [400]
