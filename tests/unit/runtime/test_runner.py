"""The contract: a row's bits depend on its own sequence, and on nothing that runs beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmc.errors import InternalError, ModelError, RunError, UsageError
from lmc.params import GenParams
from lmc.runtime.adjustment import Adjuster
from lmc.runtime.attention import tiles_numba
from lmc.runtime.kernels import products
from lmc.runtime.kernels.products import usable
from lmc.runtime.model_runner import ModelRunner, physical_cores
from lmc.runtime.request import Sampling, Segment, Step
from tests.unit.runtime.random_models import (
    TINY,
    VARIANTS,
    Sequence,
    random_tokens,
    random_weights,
    run,
    some_slots,
)

EVERY = (0, 5, 17, 318)  # targets after each row: four numbers that show every bit of it
LENGTH = 200

Make = Callable[..., ModelRunner]


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    threads = torch.get_num_threads()

    def build(variant: str = "llama", **options: object) -> ModelRunner:
        config = VARIANTS[variant]
        options = {"threads": 1, **options}
        return ModelRunner(config, random_weights(config), kv_tokens=4096, **options)

    yield build
    torch.set_num_threads(threads)


CONFIGURATIONS = [
    *itertools.product(VARIANTS, ("float32", "bfloat16"), ("tiles",)),
    ("llama", "float32", "torch"),
    ("mistral", "bfloat16", "torch"),
]


def expected_scores(runner: ModelRunner, tokens: np.ndarray) -> list[tuple[float, ...]]:
    """All rows of one sequence, alone and in one step."""
    sequence = Sequence(tokens, some_slots(len(tokens), seed=99))
    outcome = run(runner, sequence.piece(len(tokens), every=EVERY))
    return list(outcome.scores[0])


@pytest.mark.parametrize(("variant", "dtype", "attention"), CONFIGURATIONS)
def test_rows_do_not_depend_on_chunks_or_company(
    make: Make, variant: str, dtype: str, attention: str
) -> None:
    runner = make(variant, dtype=dtype, attention=attention)
    tokens = random_tokens(TINY, LENGTH, seed=1)
    expected = expected_scores(runner, tokens)
    for first_chunk in (1, 7, 64, 130):
        for company in (0, 1, 40):
            chunk = first_chunk
            slots = some_slots(2 * LENGTH + 400, seed=chunk + company)
            sequence = Sequence(tokens, slots[:LENGTH])
            other = Sequence(random_tokens(TINY, LENGTH, seed=2), slots[LENGTH : 2 * LENGTH])
            got: list[tuple[float, ...]] = []
            while sequence.done < LENGTH:
                count = min(chunk, LENGTH - sequence.done)
                beside = min(company, LENGTH - other.done)
                first = [other.piece(beside)] if beside and sequence.done % 2 else []
                last = [other.piece(beside)] if beside and not first else []
                segments = [*first, sequence.piece(count, every=EVERY), *last]
                got += run(runner, *segments).scores[len(first)]
                if chunk == 1 and sequence.done == 100:
                    chunk = 25  # chunks of one are slow; a hundred of them show enough
            assert got == expected, f"chunks of {first_chunk}, {company} rows beside"


@pytest.mark.parametrize("kernel", usable())
def test_the_contract_holds_with_every_kernel(
    make: Make, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "usable", lambda: (kernel,))
    monkeypatch.setattr(tiles_numba, "usable", lambda: (kernel,))
    runner = make(dtype="float32" if kernel == "fma" else "bfloat16")
    assert runner.description.split()[4:6] == [kernel, "products,"]
    tokens = random_tokens(TINY, LENGTH, seed=1)
    expected = expected_scores(runner, tokens)
    one = Sequence(tokens, some_slots(LENGTH, seed=3))
    two = Sequence(
        tokens, np.concatenate([one.slots[:128], some_slots(LENGTH + 72, seed=3)[LENGTH:]])
    )
    run(runner, one.piece(128))
    two.done = 128
    while one.done < LENGTH:
        outcome = run(runner, one.piece(9, every=EVERY), two.piece(9, every=EVERY))
        assert list(outcome.scores[0]) == list(outcome.scores[1])
        assert list(outcome.scores[0]) == expected[one.done - 9 : one.done]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_do_not_depend_on_threads(make: Make, dtype: str) -> None:
    tokens = random_tokens(TINY, LENGTH, seed=1)
    one, two = (expected_scores(make(dtype=dtype, threads=n), tokens) for n in (1, 2))
    assert one == two


@pytest.mark.parametrize("attention", ["tiles", "torch"])
def test_rows_do_not_depend_on_whose_slots_hold_the_prefix(make: Make, attention: str) -> None:
    runner = make(dtype="bfloat16", attention=attention)
    prefix = random_tokens(TINY, 150, seed=3)
    endings = [random_tokens(TINY, 20, seed=10 + i) for i in range(12)]
    expected = [
        expected_scores(runner, np.concatenate([prefix, ending]))[150:] for ending in endings
    ]
    slots = some_slots(150 + 12 * 20, seed=5)
    shared = Sequence(prefix, slots[:150])
    run(runner, shared.piece(150))
    forks = [
        Sequence(
            np.concatenate([prefix, ending]),
            np.concatenate([slots[:150], slots[150 + 20 * i : 170 + 20 * i]]),
            done=150,
        )
        for i, ending in enumerate(endings)
    ]
    got: list[list[tuple[float, ...]]] = [[] for _ in forks]
    for count in (1, 1, 3, 1, 14):
        outcome = run(runner, *(f.piece(count, every=EVERY) for f in forks))
        for rows, scores in zip(got, outcome.scores, strict=True):
            rows += scores
    assert got == expected


@pytest.mark.parametrize("attention", ["tiles", "torch"])
def test_made_tokens_decode_alike_alone_and_together(make: Make, attention: str) -> None:
    runner = make(dtype="bfloat16", attention=attention)
    prompts = [random_tokens(TINY, n, seed=n) for n in (3, 64, 65, 100)]
    continued = [random_tokens(TINY, 30, seed=50 + i) for i in range(4)]

    def decode(groups: list[list[int]]) -> dict[int, list[tuple[float, ...]]]:
        rows: dict[int, list[tuple[float, ...]]] = {i: [] for i in range(4)}
        for group in groups:
            slots = some_slots(1000, seed=len(groups))
            sequences = {
                i: Sequence(
                    np.concatenate([prompts[i], continued[i]]), slots[200 * i : 200 * (i + 1)]
                )
                for i in group
            }
            for i in group:
                run(runner, sequences[i].piece(len(prompts[i])))
            for _ in range(30):
                outcome = run(
                    runner, *(sequences[i].piece(1, made=True, every=EVERY) for i in group)
                )
                for i, scores in zip(group, outcome.scores, strict=True):
                    rows[i] += scores
        return rows

    assert decode([[0], [1], [2], [3]]) == decode([[2, 0, 3, 1]])


def test_segments_of_one_step_may_stand_on_each_other(make: Make) -> None:
    runner = make(dtype="float32")
    tokens = random_tokens(TINY, 90, seed=4)
    expected = expected_scores(runner, tokens)
    sequence = Sequence(tokens, some_slots(90, seed=1))
    pieces = [sequence.piece(n, every=EVERY) for n in (70, 5, 15)]
    outcome = run(runner, pieces[2], pieces[0], pieces[1])
    assert [*outcome.scores[1], *outcome.scores[2], *outcome.scores[0]] == expected


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_of_a_tree_gives_the_same_rows(make: Make, seed: int) -> None:
    runner, draw = _cached_runner(make), np.random.default_rng(seed).integers
    # a trunk, and branches that leave it, or other branches, at any place
    parents: list[tuple[int, int]] = [(-1, 0)]
    tokens = [random_tokens(TINY, int(draw(1, 150)), seed=0)]
    for i in range(1, int(draw(2, 7))):
        parent = int(draw(i))
        at = int(draw(len(tokens[parent]) + 1))
        parents.append((parent, at))
        own = random_tokens(TINY, int(draw(1, 80)), seed=i)
        tokens.append(np.concatenate([tokens[parent][:at], own]))
    pool = some_slots(1500, seed=7)
    used, sequences = 0, []
    for (parent, at), whole in zip(parents, tokens, strict=True):
        own_slots = pool[used : used + len(whole) - at]
        used += len(own_slots)
        kept = sequences[parent].slots[:at] if parent >= 0 else pool[:0]
        sequences.append(Sequence(whole, np.concatenate([kept, own_slots]), done=at))

    def ready(i: int) -> bool:
        parent, at = parents[i]
        return parent < 0 or (sequences[parent].done >= at and ready(parent))

    got: list[list[tuple[float, ...]]] = [[] for _ in sequences]
    while any(s.done < len(s.tokens) for s in sequences):
        segments, owners = [], []
        for i, s in enumerate(sequences):
            if s.done < len(s.tokens) and ready(i) and draw(4):
                count = min(int(draw(1, 70)), len(s.tokens) - s.done)
                segments.append(s.piece(count, every=EVERY))
                owners.append(i)
        if segments:
            for i, scores in zip(owners, run(runner, *segments).scores, strict=True):
                got[i] += scores
    for (_, at), whole, rows in zip(parents, tokens, got, strict=True):
        assert rows == expected_scores(runner, whole)[at:]


_RUNNERS: list[ModelRunner] = []


def _cached_runner(make: Make) -> ModelRunner:
    if not _RUNNERS:
        _RUNNERS.append(make(dtype="auto"))
    return _RUNNERS[0]


def test_an_outcome_answers_each_segment_as_asked(make: Make) -> None:
    runner = make(dtype="float32")
    tokens = random_tokens(TINY, 10, seed=0)
    slots = some_slots(40, seed=0)
    quiet = Segment(tokens=tokens, start=0, slots=slots[:10])
    greedy = replace(quiet, slots=slots[10:20], sample=Sampling())
    scored = replace(
        quiet, slots=slots[20:30], targets=((), *[(3,)] * 8, (3, 4)), sample=Sampling()
    )
    outcome = run(runner, quiet, greedy, scored)
    assert outcome.tokens[0] == -1
    assert outcome.logprobs[0] == 0.0
    assert outcome.scores[:2] == ((), ())
    assert outcome.tokens[1] == outcome.tokens[2] >= 0
    assert outcome.logprobs[1] == outcome.logprobs[2] < 0
    assert [len(row) for row in outcome.scores[2]] == [0, *[1] * 8, 2]
    everything = replace(quiet, targets=(*[()] * 9, tuple(range(TINY.vocab_size))))
    scores = np.array(run(runner, everything).scores[0][9])
    assert math.isclose(float(np.exp(scores).sum()), 1.0, rel_tol=1e-5)
    assert int(scores.argmax()) == outcome.tokens[1]
    assert math.isclose(float(scores.max()), outcome.logprobs[1], abs_tol=1e-6)


def test_masks_and_banned_tokens_are_never_drawn(make: Make) -> None:
    runner = make(dtype="float32")
    base = Segment(
        tokens=random_tokens(TINY, 4, seed=0), start=0, slots=some_slots(4, 0), sample=Sampling()
    )
    best = run(runner, base).tokens[0]
    assert run(runner, replace(base, banned=(best,))).tokens[0] != best
    mask = np.zeros(TINY.vocab_size, np.bool_)
    mask[[7, 9]] = True
    masked = run(runner, replace(base, mask=mask))
    assert masked.tokens[0] in (7, 9)
    unmasked = replace(base, targets=(*[()] * 3, (masked.tokens[0],)))
    assert masked.logprobs[0] == run(runner, unmasked).scores[0][3][0]  # of the whole distribution
    with pytest.raises(InternalError, match="allows no token"):
        run(runner, replace(base, mask=mask, banned=(7, 9)))


def test_adjustments_move_the_draw_and_not_the_log_probabilities(make: Make) -> None:
    runner = make(dtype="float32")
    base = Segment(
        tokens=random_tokens(TINY, 4, seed=0), start=0, slots=some_slots(4, 0), sample=Sampling()
    )
    plain = run(runner, replace(base, top=3))
    best, second = plain.tops[0][0], plain.tops[0][1]
    assert best == (plain.tokens[0], plain.logprobs[0])
    assert second[1] <= best[1]
    adjuster = Adjuster(GenParams(), [(best[0], -50.0)], np.arange(3))
    moved = run(
        runner,
        replace(base, top=3, adjustment=adjuster.current()),
        replace(base, slots=some_slots(4, 1)),
    )
    assert moved.tokens == (second[0], best[0]), "the row beside it is as it was"
    assert moved.logprobs[0] == second[1]
    assert moved.tops == (plain.tops[0], ())
    assert run(runner, base).tops == ()


def test_more_rows_than_one_batch_of_logits_are_scored(make: Make) -> None:
    runner = make(dtype="float32")
    tokens = random_tokens(TINY, 300, seed=8)
    whole = expected_scores(runner, tokens)
    assert len(whole) == 300
    assert whole[280:] == expected_scores(runner, tokens[:290])[280:] + whole[290:]


def test_numbers_that_are_not_finite_are_an_error_that_names_the_segment() -> None:
    weights = random_weights(TINY)
    weights["model.embed_tokens.weight"][5] = math.nan
    runner = ModelRunner(TINY, weights, dtype="float32", kv_tokens=64, threads=1)
    good = Segment(
        tokens=np.array([4], np.int32), start=0, slots=np.array([0], np.int32), sample=Sampling()
    )
    bad = replace(good, tokens=np.array([5], np.int32), slots=np.array([1], np.int32))
    assert runner.run(Step((good,))).tokens[0] >= 0
    with pytest.raises(RunError, match="segment 1 "):
        runner.run(Step((good, bad)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.array([320], np.int32)}, "a token outside"),
        ({"slots": np.array([64], np.int32)}, "a slot outside"),
        ({"slots": np.array([-1], np.int32)}, "a slot outside"),
        ({"start": 1}, "1 slots"),
        ({"start": 512, "slots": np.zeros(513, np.int32)}, "position 512"),
        ({"targets": ((), ())}, "2 rows of targets"),
    ],
)
def test_steps_that_mean_nothing_are_refused(change: dict[str, object], message: str) -> None:
    runner = ModelRunner(TINY, random_weights(TINY), dtype="float32", kv_tokens=64, threads=1)
    good = Segment(tokens=np.array([4], np.int32), start=0, slots=np.array([0], np.int32))
    with pytest.raises(InternalError, match=message):
        runner.run(Step((replace(good, **change),)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"device": "tpu"}, "no runner for device 'tpu'"),
        ({"attention": "magic"}, "no attention backend 'magic'"),
        ({"threads": 0}, "threads is 0"),
        ({"kv_tokens": 0}, "kv_tokens is 0"),
    ],
)
def test_wrong_options_are_usage_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ModelRunner(TINY, random_weights(TINY), **options)
    assert caught.value.hint


def test_weights_that_do_not_fit_are_named() -> None:
    weights = random_weights(TINY)
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight'"):
        ModelRunner(TINY, weights, threads=1)
    weights = random_weights(replace(TINY, hidden_size=64))
    with pytest.raises(ModelError, match=r"shape \(320, 64\), expected \(320, 96\)"):
        ModelRunner(TINY, weights, threads=1)
    with pytest.raises(ModelError, match="'gpt2'"):
        ModelRunner(replace(TINY, family="gpt2"), random_weights(TINY), threads=1)


def test_there_is_at_least_one_core() -> None:
    assert physical_cores() >= 1
