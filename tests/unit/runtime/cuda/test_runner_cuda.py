"""The CUDA runner against the CPU's: the same numbers up to rounding, bit by bit where promised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lmc.constraints.token_classes import NEVER, TokenClasses, TokenState
from lmc.errors import InternalError, UsageError
from lmc.runtime.cuda import unit_attention
from lmc.runtime.cuda.flashinfer_attention import LEAST_ROWS, long_run
from lmc.runtime.cuda.flight import Tables
from lmc.runtime.cuda.runner import CudaRunner
from lmc.runtime.model_runner import ModelRunner
from lmc.runtime.request import Outcome, Sampling, Segment, Step
from tests.unit.runtime.random_models import (
    VARIANTS,
    Sequence,
    random_tokens,
    random_weights,
    some_slots,
)

few_programs = pytest.mark.usefixtures("few_programs")

EVERY = (0, 5, 17, 318)
POOL = 512
SMALL = {name: replace(config, layers=2) for name, config in VARIANTS.items()}


def make(variant: str, device: str, **options: Any) -> CudaRunner:
    options = {"dtype": "float32", "kv_tokens": POOL, "max_batch_tokens": 256} | options
    return CudaRunner(SMALL[variant], random_weights(SMALL[variant]), device=device, **options)


def sequence(variant: str, count: int, seed: int, slots: np.ndarray) -> Sequence:
    return Sequence(random_tokens(SMALL[variant], count, seed), slots)


def scores(outcome: Outcome, segment: int = 0) -> np.ndarray:
    return np.array(outcome.scores[segment])


def agree(cpu: ModelRunner, gpu: CudaRunner, steps: list[Step]) -> None:
    """Both give the same for every step, one after another."""
    for step in steps:
        expected, got = cpu.run(step), gpu.run(step)
        assert got.tokens == expected.tokens
        np.testing.assert_allclose(got.logprobs, expected.logprobs, atol=1e-3)
        for mine, theirs in zip(got.scores, expected.scores, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-3)


@pytest.mark.parametrize("variant", SMALL)
def test_the_numbers_are_those_of_the_cpu(variant: str, device: str) -> None:
    config = SMALL[variant]
    cpu = ModelRunner(config, random_weights(config), dtype="float32", kv_tokens=POOL, threads=1)
    gpu = make(variant, device)
    slots = some_slots(400, seed=1, pool=POOL)
    one = sequence(variant, 90, 1, slots[:90])
    two = sequence(variant, 90, 2, np.concatenate([slots[:66], slots[100:124]]))
    two.tokens[:66] = one.tokens[:66]  # shares a prefix, and so slots, with the first
    steps = [
        Step((one.piece(68, every=EVERY),)),
        Step((replace_start(two, 66).piece(5, every=EVERY), one.piece(1, every=EVERY))),
        Step((two.piece(1, every=EVERY), one.piece(1, every=EVERY))),
        Step((one.piece(3), two.piece(2))),
        Step((two.piece(1),)),
        Step((one.piece(1, every=EVERY),)),
    ]
    agree(cpu, gpu, steps)


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_without_logits_are_left_out_of_the_last_layer_s_end(
    device: str, deterministic: bool
) -> None:
    """None, one, two of many and all rows are asked for; what they leave in the cache is read."""
    gpu = make("qwen2", device, deterministic=deterministic)
    config = SMALL["qwen2"]
    cpu = ModelRunner(config, random_weights(config), dtype="float32", kv_tokens=POOL, threads=1)
    slots = some_slots(100, seed=1, pool=POOL)
    one, two = sequence("qwen2", 40, 1, slots[:40]), sequence("qwen2", 40, 2, slots[40:80])
    steps = [
        Step((replace(one.piece(16), sample=None), replace(two.piece(9), sample=None))),
        Step((replace(one.piece(7), sample=None), two.piece(9))),
        Step((one.piece(9), two.piece(10))),
        Step((one.piece(2, every=EVERY), two.piece(2, every=EVERY))),
    ]
    agree(cpu, gpu, steps)


def replace_start(sequence: Sequence, done: int) -> Sequence:
    sequence.done = done
    return sequence


@few_programs
def test_deterministic_rows_do_not_depend_on_chunks_or_company(device: str) -> None:
    count = 24
    dtype = "bfloat16" if device == "cuda" else "float32"
    gpu = make("llama", device, deterministic=True, dtype=dtype)
    slots = some_slots(400, seed=2, pool=POOL)
    alone = sequence("llama", count, 1, slots[:count])
    expected = scores(gpu.run(Step((alone.piece(count, every=EVERY),))))
    for chunks, company in (((22, 1, 1), False), ((8, 16), True)):
        own = sequence("llama", count, 1, slots[100 : 100 + count])
        other = sequence("llama", count, 3, slots[200 : 200 + count])
        got = []
        for chunk in chunks:
            segments: tuple[Segment, ...] = (own.piece(chunk, every=EVERY),)
            if company:
                segments = (other.piece(min(9, count - other.done)), *segments)
            got.append(scores(gpu.run(Step(segments)), len(segments) - 1))
        assert (np.concatenate(got) == expected).all()


@few_programs
def test_more_partial_results_than_there_was_room_for(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long step whose attention is cut in many units, then a small one, then the long one."""
    monkeypatch.setattr(unit_attention, "FIXED_TILE", 16)
    slots = some_slots(400, seed=1, pool=POOL)
    results = []
    for places in (4096, 16):
        monkeypatch.setattr(unit_attention, "PLACES", places)
        gpu = make("llama", device, deterministic=True)
        one = sequence("llama", 40, 1, slots[:60])
        two = sequence("llama", 20, 2, slots[60:100])
        outcomes = [gpu.run(Step((s.piece(len(s.tokens) - 2, every=EVERY),))) for s in (one, two)]
        outcomes += [gpu.run(Step((s.piece(1, every=EVERY),))) for s in (one, two)]
        results.append(np.concatenate([scores(outcome) for outcome in outcomes]))
    assert (results[0] == results[1]).all()


def test_a_step_that_makes_no_sense_is_refused(device: str) -> None:
    gpu = make("llama", device)
    good = sequence("llama", 5, 1, some_slots(5, seed=1, pool=POOL)).piece(5)
    for wrong, message in (
        (replace(good, tokens=good.tokens + 1000), "token outside"),
        (replace(good, slots=good.slots + POOL), "slot outside"),
        (replace(good, slots=good.slots[:3]), "5 tokens from 0 on, 3 slots"),
        (replace(good, targets=((1,),)), "1 rows of targets"),
    ):
        with pytest.raises(InternalError, match=message):
            gpu.run(Step((wrong,)))


def test_attention_of_another_kind_gives_the_same(device: str) -> None:
    slots = some_slots(60, seed=1, pool=POOL)
    outcomes = []
    for attention in ("triton", "torch"):
        gpu = make("llama", device, attention=attention)
        assert f"{attention} attention" in gpu.description
        one = sequence("llama", 20, 1, slots[:20])
        two = sequence("llama", 9, 2, slots[20:40])
        gpu.run(Step((one.piece(8),)))
        outcomes.append(gpu.run(Step((two.piece(9, every=EVERY), one.piece(3)))))
    mine, theirs = outcomes
    assert mine.tokens == theirs.tokens
    np.testing.assert_allclose(scores(mine), scores(theirs), atol=1e-3)


@few_programs
def test_a_repeated_step_draws_what_steps_one_by_one_draw(device: str) -> None:
    gpu = make("llama", device)
    slots = some_slots(400, seed=3, pool=POOL)
    samplings = (Sampling(), Sampling(temperature=1.0, seed=5, draw=1))
    drawn = []
    for repeats in (4, 1):
        found: list[list[int]] = [[], []]
        held = [sequence("llama", 12, 1, slots[:20]), sequence("llama", 20, 2, slots[20:60])]
        first = gpu.run(Step(tuple(s.piece(len(s.tokens)) for s in held)))
        tokens = list(first.tokens)
        for start in range(0, 4, repeats):
            segments = [
                Segment(
                    np.array([token], np.int32), s.done + start,
                    s.slots[: s.done + start + repeats], True, sample=sampling, position=start + 1,
                )
                for s, token, sampling in zip(held, tokens, samplings, strict=True)
            ]  # fmt: skip
            outcome = gpu.run(Step(tuple(segments), repeats))
            for one in (outcome, *outcome.later):
                tokens = list(one.tokens)
                for row, token in zip(found, tokens, strict=True):
                    row.append(token)
        drawn.append(found)
    assert drawn[0] == drawn[1]
    assert len(drawn[0][0]) == 4


@few_programs
def test_a_step_goes_on_from_draws_that_only_the_device_knows(device: str) -> None:
    """Two of three rows go on, in another order, after a step that draws once and one of four."""
    gpu = make("llama", device)
    slots = some_slots(400, seed=3, pool=POOL)
    samplings = [Sampling(temperature=1.0, seed=5, draw=draw) for draw in range(3)]

    def prompts() -> list[Sequence]:
        return [sequence("llama", 10 + n, n, slots[100 * n : 100 * n + 20 + n]) for n in range(3)]

    def decodes(rows: list[int], tokens: list[int], start: int, repeats: int) -> Step:
        segments = [
            Segment(
                np.array([token], np.int32), 10 + n + start,
                slots[100 * n : 100 * n + 10 + n + start + repeats], True,
                sample=samplings[n], position=start + 1,
            )
            for n, token in zip(rows, tokens, strict=True)
        ]  # fmt: skip
        return Step(tuple(segments), repeats)

    def drawn(outcome: Outcome) -> list[tuple[int, ...]]:
        return [one.tokens for one in (outcome, *outcome.later)]

    first = [s.piece(len(s.tokens)) for s in prompts()]
    known = gpu.run(Step(tuple(first))).tokens
    expected = drawn(gpu.run(decodes([0, 1, 2], list(known), 0, 4)))
    expected += [
        tokens[::-1] for tokens in drawn(gpu.run(decodes([1, 2], list(expected[-1][1:]), 4, 3)))
    ]
    flights = [
        gpu.start(step)
        for step in (
            Step(tuple(first)),
            replace(decodes([0, 1, 2], [0, 0, 0], 0, 4), after=(0, 1, 2)),
            replace(decodes([2, 1], [0, 0], 4, 3), after=(2, 1)),
        )
    ]
    got = [tokens for flight in flights for tokens in drawn(flight.outcome())]
    assert got == [known, *expected]
    with pytest.raises(InternalError, match="fewer segments"):
        gpu.run(replace(decodes([0], [0], 4, 1), after=(2,)))
    with pytest.raises(InternalError, match="a token that is not known"):
        gpu.run(replace(Step((first[0],)), after=(0,)))


def test_a_step_goes_on_from_draws_beside_tokens_that_are_known(device: str) -> None:
    """A prompt, a row that goes on from the step before, a row that does not, and again."""
    gpu = make("llama", device)
    slots = some_slots(400, seed=3, pool=POOL)
    known = np.array([7, 9, 11], np.int32)

    def prompt(n: int) -> Segment:
        return sequence("llama", 10 + n, n, slots[100 * n : 100 * n + 10 + n]).piece(10 + n)

    def decode(n: int, token: int, ahead: int = 0) -> Segment:
        start = 10 + n + ahead
        return Segment(
            np.array([token], np.int32), start, slots[100 * n : 100 * n + start + 1], True,
            sample=Sampling(temperature=1.0, seed=5, draw=n), position=1 + ahead,
        )  # fmt: skip

    def told(drawn: list[tuple[int, ...]]) -> list[Step]:
        """The steps, with the tokens drawn as far as they are known."""
        one = drawn[0][1] if drawn else 0
        new, next_one = (drawn[1][0], drawn[1][1]) if len(drawn) > 1 else (0, 0)
        return [
            Step((prompt(0), prompt(1))),
            Step((prompt(2), decode(1, one), decode(0, known[0])), after=(-1, 1, -1)),
            Step((decode(1, next_one, 1), decode(2, new)), after=(1, 0)),
        ]

    expected: list[tuple[int, ...]] = []
    for nth in range(3):
        expected.append(gpu.run(replace(told(expected)[nth], after=())).tokens)
    flights = [gpu.start(step) for step in told([])[:2]]
    got = [flight.outcome().tokens for flight in flights]
    got.append(gpu.start(told([])[2]).outcome().tokens)
    assert got == expected


def table_of(vocabulary: int) -> TokenClasses:
    """Odd and even tokens in turn, and after three 7, twice, though others are allowed."""
    class_of = np.where(np.arange(vocabulary) == 7, 3, 1 + np.arange(vocabulary) % 2)
    table = np.full((5, 4), NEVER, np.int32)
    table[0, [2, 3]], table[1, 1], table[2, [2, 3]] = 1, 2, 3
    table[3, [2, 3]], table[4, [1, 3]] = 4, 0
    forced = np.array([-1, -1, -1, 7, 7], np.int32)
    return TokenClasses(class_of.astype(np.int16), table, forced, forced, {})


@few_programs
def test_repeats_follow_the_tables_of_constraints(device: str) -> None:
    """What a repeated step gives is what steps with masks give; its first pass may be long."""
    gpu = make("llama", device)
    slots = some_slots(400, seed=3, pool=POOL)
    samplings = (
        Sampling(temperature=1.0, seed=5),
        Sampling(),
        Sampling(temperature=1.0, top_p=0.8),
    )
    table = table_of(gpu.vocab_size)
    first = [np.array(t, np.int32) for t in ([3, 5, 9], [4], [8, 8])]
    held = [slots[at : at + 40] for at in (0, 50, 100)]
    for tokens, own in zip(first, held, strict=True):
        gpu.run(Step((Segment(tokens + 1, 0, own[: len(tokens)]),)))
    starts = [len(tokens) for tokens in first]
    passes = 6
    segments = tuple(
        Segment(
            tokens, start, own[: start + len(tokens) + passes - 1], True, sample=sampling,
            position=1, state=None if n == 1 else TokenState(table, n),
        )
        for n, (tokens, start, own, sampling) in enumerate(
            zip(first, starts, held, (*samplings,), strict=True)
        )
    )  # fmt: skip
    outcome = gpu.run(Step(segments, passes))
    together = [list(one.tokens) for one in (outcome, *outcome.later)]
    states = [0, -1, 2]
    for number, given in enumerate(together):
        singles = []
        for n, (tokens, own, sampling) in enumerate(zip(first, held, samplings, strict=True)):
            start = starts[n]
            mask = None if states[n] < 0 else table.mask(states[n])
            outcome = gpu.run(Step((
                Segment(
                    tokens, start, own[: start + len(tokens)], True, sample=sampling,
                    position=1 + number, mask=mask,
                ),
            )))  # fmt: skip
            token = outcome.tokens[0]
            if states[n] >= 0:
                token = 7 if number and states[n] >= 3 else token
                states[n] = table.step(states[n], token)
            singles.append(token)
            starts[n] += len(tokens)
        first = [np.array([token], np.int32) for token in singles]
        assert given == singles, number


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"attention": "tiles"}, "no attention backend 'tiles'"),
        ({"attention": "torch", "deterministic": True}, "deterministic=True is not possible"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(
    options: dict[str, Any], message: str, device: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make("llama", device, **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", SMALL)
def test_graphs_give_what_launches_give(variant: str) -> None:
    slots = some_slots(400, seed=1, pool=POOL)
    runs = []
    for graphs in (False, True):
        gpu = make(variant, "cuda", graphs=graphs, dtype="bfloat16")
        one = sequence(variant, 100, 1, slots[:100])
        two = sequence(variant, 100, 2, np.concatenate([slots[:64], slots[100:136]]))
        two.tokens[:64] = one.tokens[:64]
        replace_start(two, 64)
        outcomes = [gpu.run(Step((one.piece(70, every=EVERY),)))]
        outcomes += [
            gpu.run(Step((one.piece(count, every=EVERY), two.piece(1, every=EVERY))))
            for count in (1, 3, 1, 20)
        ]
        runs.append(np.concatenate([scores(o) for o in outcomes]))
    np.testing.assert_allclose(runs[0], runs[1], atol=0.1)


@few_programs
def test_all_kernels_are_used_before_the_first_step(device: str) -> None:
    """Also those for rows that another attention backend leaves to the one that can do all."""
    gpu = make("llama", device)
    steps = list(gpu._steps_of_all_kinds())
    for step in steps:  # they write to a slot that steps may not name
        with torch.inference_mode():
            outcomes = [pending.outcome() for pending in gpu._launch_or_free(step)]
        assert len(outcomes) == step.repeats
        gpu._staging.reset()
    most = max(steps, key=lambda step: sum(len(s.tokens) for s in step.segments))
    tables = Tables.of(most)
    assert tables.sizes.sum() == 256
    others = long_run(tables.sizes, LEAST_ROWS)
    assert others is not None
    for without in (None, others):
        division = gpu._units._divide(tables, small=False, without=without)
        assert len(division.narrow)
        assert len(division.wide)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bfloat16_is_near_the_float32_oracle() -> None:
    config = SMALL["llama"]
    cpu = ModelRunner(config, random_weights(config), dtype="float32", kv_tokens=POOL)
    gpu = make("llama", "cuda", dtype="bfloat16")
    slots = some_slots(200, seed=1, pool=POOL)
    runs = [
        scores(runner.run(Step((sequence("llama", 200, 1, slots).piece(200, every=EVERY),))))
        for runner in (cpu, gpu)
    ]
    error = np.abs(runs[0] - runs[1])
    print(f"bfloat16 against float32: mean {error.mean():.4f}, greatest {error.max():.4f} nats")
    assert error.mean() < 0.1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # that torch may miss some
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_waits_for_the_device_while_a_step_is_repeated() -> None:
    gpu = make("llama", "cuda", dtype="bfloat16")
    slots = some_slots(400, seed=3, pool=POOL)
    table = table_of(gpu.vocab_size)
    samplings = (Sampling(), Sampling(temperature=1.0, top_p=0.8), Sampling(temperature=1.0))
    segments = tuple(
        Segment(
            np.array([5], np.int32), 0, slots[40 * n : 40 * n + 8], True, sample=sampling,
            state=None if n == 2 else TokenState(table, 0),
        )
        for n, sampling in enumerate(samplings)
    )  # fmt: skip
    gpu.run(Step(segments, 8))
    flights = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        flights.append(gpu.start(Step(segments, 8)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    outcome = flights[0].outcome()
    assert len([outcome, *outcome.later]) == 8
