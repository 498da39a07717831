"""Draws: their definition, their distribution, and that compiled ones are the same."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.errors import InternalError
from lmc.runtime.kernels.parallel import Team
from lmc.runtime.request import Sampling
from lmc.runtime.sampler import (
    Sampler,
    Wish,
    allowed_tokens,
    draw,
    keys_of_draw,
    keys_of_draws,
    noise,
    scramble,
)

FloatArray = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def team() -> Team:
    return Team(2)


def some_logits(rows: int, vocabulary: int, seed: int = 0, scale: float = 3.0) -> FloatArray:
    values = np.random.default_rng(seed).normal(size=(rows, vocabulary)) * scale
    return values.astype(np.float32)


def chi_square_p(counts: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> float:
    """About the chance of counts at least so far from what is expected (Wilson and Hilferty)."""
    expected = probabilities * counts.sum()
    assert expected.min() > 5, "too few draws to say anything"
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    scaled = (statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))
    return 0.5 * math.erfc(scaled / math.sqrt(2 / (9 * freedom)) / math.sqrt(2))


def softmax(x: FloatArray, temperature: float) -> npt.NDArray[np.float64]:
    weights = np.exp((x.astype(np.float64) - x.max()) / temperature)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("over", ["position", "row", "draw", "seed"])
def test_draws_follow_the_softmax(temperature: float, over: str) -> None:
    logits = some_logits(1, 12, scale=1.0)[0]
    counts = np.zeros(12, np.int64)
    base = Sampling(temperature=temperature, seed=123, row=4, draw=5)
    for i in range(6000):
        sampling = base if over == "position" else replace(base, **{over: i})
        counts[draw(logits, Wish(sampling, i if over == "position" else 6))] += 1
    assert 1e-4 < chi_square_p(counts, softmax(logits, temperature)) < 1 - 1e-4


def test_compiled_draws_follow_the_softmax(team: Team) -> None:
    sampler = Sampler(16, team)
    logits = some_logits(1, 16, seed=1, scale=1.0)
    many = torch.from_numpy(np.repeat(logits, 8000, axis=0))
    wishes = [Wish(Sampling(temperature=0.8, seed=7, row=i)) for i in range(8000)]
    tokens, _ = sampler.run(many, wishes)
    counts = np.bincount(tokens, minlength=16)
    assert 1e-4 < chi_square_p(counts, softmax(logits[0], 0.8)) < 1 - 1e-4


def test_rare_tokens_come_as_often_as_they_should(team: Team) -> None:
    """Pruning must not lose tokens whose chance is small."""
    logits = np.full((1, 4096), -4.0, np.float32)
    logits[0, 1000] = 5.0  # about half of everything; 4095 others share the rest
    many = torch.from_numpy(np.repeat(logits, 1500, axis=0))
    wishes = [Wish(Sampling(temperature=1.0, seed=1, draw=i)) for i in range(1500)]
    tokens, _ = Sampler(4096, team).run(many, wishes)
    share = float(softmax(logits[0], 1.0)[1000])
    seen = int((tokens == 1000).sum())
    assert abs(seen - 1500 * share) < 4 * math.sqrt(1500 * share * (1 - share))
    others = tokens[tokens != 1000]
    assert len(np.unique(others)) > 0.9 * len(others)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([0, -1, 1, 3, 50, 10_000]),
    masked=st.sampled_from([None, 0.5, 0.01]),
    scale=st.sampled_from([0.0, 0.5, 4.0, 30.0]),
)
def test_compiled_draws_are_the_defined_ones(
    seed: int, temperature: float, top_p: float, top_k: int, masked: float | None, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = some_logits(5, 336, seed=seed, scale=scale)
    wishes: list[Wish | None] = []
    for i in range(5):
        mask = None if masked is None else rng.random(336) < masked
        if mask is not None:
            mask[rng.integers(336)] = True
        sampling = Sampling(temperature, top_p, top_k, seed=seed, row=i, draw=seed % 7)
        wishes.append(None if i == 3 else Wish(sampling, seed % 100, mask))
    tensor = torch.from_numpy(logits)
    tokens, normalizers = Sampler(336, _TEAM).run(tensor, wishes)
    expected, sums = Sampler(336, None).run(tensor, wishes)
    assert tokens.tolist() == expected.tolist()
    assert np.allclose(normalizers, sums, rtol=0, atol=1e-5)
    exact = torch.logsumexp(tensor.double(), dim=1).numpy()
    assert np.allclose(normalizers, exact, rtol=0, atol=1e-5)


_TEAM = Team(2)


def naive_left(logits: FloatArray, sampling: Sampling, mask: npt.NDArray[np.bool_]) -> set[int]:
    """Top-k and top-p, as slowly and plainly as they can be said."""
    ranked = sorted(np.flatnonzero(mask).tolist(), key=lambda t: (-logits[t], t))
    if sampling.top_k > 0:
        ranked = ranked[: sampling.top_k]
    weights = [math.exp((float(logits[t]) - float(logits[mask].max())) / sampling.temperature)
               for t in ranked]  # fmt: skip
    kept, reached = set(), 0.0
    for token, weight in zip(ranked, weights, strict=True):
        if reached >= sampling.top_p * sum(weights):
            break
        kept.add(token)
        reached += weight
    return kept


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    temperature=st.floats(0.2, 3.0),
    top_p=st.floats(0.05, 0.999),
    top_k=st.integers(0, 600),
    whole_numbers=st.booleans(),
)
def test_filters_keep_what_they_should(
    seed: int, temperature: float, top_p: float, top_k: int, whole_numbers: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = some_logits(1, 500, seed=seed, scale=2.0)[0]
    if whole_numbers:  # many equals: they rank by id
        logits = np.round(logits)
    mask = rng.random(500) < 0.8
    sampling = Sampling(temperature, top_p, top_k)
    left = allowed_tokens(logits, sampling, mask)
    assert left is not None
    got, wanted = set(np.flatnonzero(left).tolist()), naive_left(logits, sampling, mask)
    # a token whose share of the rest is at the edge of float64 may fall on either side
    assert len(got ^ wanted) <= 1


def test_the_greatest_logit_wins_and_of_equals_the_lowest_id(team: Team) -> None:
    logits = np.zeros((3, 64), np.float32)
    logits[0, [40, 41]] = 2.0
    logits[1, [5, 50]] = -0.0
    logits[2] = -np.inf
    logits[2, 63] = -5.0
    for sampler in (Sampler(64, team), Sampler(64, None)):
        tokens, _ = sampler.run(torch.from_numpy(logits), [Wish(Sampling())] * 3)
        assert tokens.tolist() == [40, 0, 63]


def test_a_draw_does_not_depend_on_what_is_drawn_beside_it(team: Team) -> None:
    logits = torch.from_numpy(some_logits(40, 512))
    wishes = [Wish(Sampling(temperature=1.0, seed=3, row=i), i) for i in range(40)]
    sampler = Sampler(512, team)
    with team.at_work():
        together, sums = sampler.run(logits, wishes)
    for i in (0, 17, 39):
        alone, own = sampler.run(logits[i : i + 1].contiguous(), [wishes[i]])
        assert alone[0] == together[i]
        assert own[0] == sums[i]


def test_each_part_of_the_key_matters() -> None:
    base = Sampling(seed=1, row=2, draw=3)
    keys = {keys_of_draw(base, 4)}
    for changed in (
        replace(base, seed=2), replace(base, seed=1 + 2**32), replace(base, seed=-1),
        replace(base, row=3), replace(base, draw=4), Sampling(seed=2, row=1, draw=3),
    ):  # fmt: skip
        keys.add(keys_of_draw(changed, 4))
    keys.add(keys_of_draw(base, 5))
    assert len(keys) == 8
    assert keys_of_draw(replace(base, temperature=0.3, top_k=4), 4) in keys


def test_keys_of_many_draws_are_those_of_each() -> None:
    samplings = [
        Sampling(seed=seed, row=row, draw=draw)
        for seed in (0, 7, -1, 1 << 40) for row in (0, 3) for draw in (0, 1 << 33)
    ]  # fmt: skip
    positions = np.arange(len(samplings))
    keys = keys_of_draws(samplings, positions)
    for sampling, position, pair in zip(samplings, positions, keys.tolist(), strict=True):
        assert tuple(pair) == keys_of_draw(sampling, int(position))


def test_noise_is_what_it_was() -> None:
    """The numbers are part of what a seed means: they must not change by accident."""
    keys = keys_of_draw(Sampling(seed=42, row=1, draw=2), 3)
    assert keys == (2116354204, 525007414)
    known = [0.7651431121630594, 0.06273334461729974, 0.19468352000694722, 0.6533207254251465]
    assert noise(np.arange(4), keys).tolist() == known


def test_noise_is_uniform_and_free_of_patterns() -> None:
    drawn = np.stack(
        [noise(np.arange(4096), keys_of_draw(Sampling(seed=5, row=i), 0)) for i in range(64)]
    )
    cells = np.bincount((drawn * 64).astype(int).ravel(), minlength=64)
    assert 1e-4 < chi_square_p(cells, np.full(64, 1 / 64)) < 1 - 1e-4
    centred = (drawn - 0.5) * math.sqrt(12)
    for shifted in (np.roll(centred, 1, axis=1), np.roll(centred, 1, axis=0)):
        assert abs(float((centred * shifted).mean())) < 5 / math.sqrt(drawn.size)
    assert ((drawn > 0) & (drawn < 1)).all()


def test_the_mixer_turns_half_of_the_bits() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32)
    for bit in range(32):
        flipped = scramble(words) ^ scramble(words ^ np.uint32(1 << bit))
        share = np.unpackbits(flipped.view(np.uint8)).mean()
        assert 0.48 < share < 0.52


def test_bad_numbers_are_reported_and_empty_masks_refused(team: Team) -> None:
    logits = some_logits(4, 64)
    logits[0, 3], logits[1, 60], logits[2, 0] = np.nan, np.inf, -np.inf
    for sampler in (Sampler(64, team), Sampler(64, None)):
        _, normalizers = sampler.run(torch.from_numpy(logits), [Wish(Sampling())] * 4)
        assert np.isfinite(normalizers).tolist() == [False, False, True, True]
        nothing = Wish(Sampling(), mask=np.zeros(64, np.bool_))
        with pytest.raises(InternalError, match="no token"):
            sampler.run(torch.from_numpy(logits[3:]), [nothing])
