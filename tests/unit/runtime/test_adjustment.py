"""Penalties and biases, against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmc.params import GenParams
from lmc.runtime.adjustment import Adjuster
from lmc.runtime.kernels.parallel import Team
from lmc.runtime.request import Sampling
from lmc.runtime.sampler import Sampler, Wish, draw

LOGITS = np.array([2.0, -1.0, 0.5, -3.0, 1.0, 0.0, 4.0, -0.5], np.float32)


def adjusted(made: list[int], bias: dict[int, float], **options: float) -> list[float]:
    adjuster = Adjuster(GenParams(**options), bias.items(), np.array([0, 1, 1, 6]))  # type: ignore[arg-type]
    for token in made:
        adjuster.add(token)
    current = adjuster.current()
    changed = LOGITS if current is None else current.apply(LOGITS)
    assert changed.dtype == np.float32
    return changed.tolist()


def test_nothing_is_changed_without_a_reason() -> None:
    assert not Adjuster.wanted(GenParams(), ())
    assert Adjuster.wanted(GenParams(), ((1, 0.5),))
    assert Adjuster.wanted(GenParams(presence_penalty=0.5), ())
    assert adjusted([3, 3], {}) == LOGITS.tolist()


def test_the_frequency_penalty_counts_and_the_presence_penalty_does_not() -> None:
    assert adjusted([3, 3, 4], {}, frequency_penalty=0.5) == [2, -1, 0.5, -4, 0.5, 0, 4, -0.5]
    assert adjusted([3, 3, 4], {}, presence_penalty=0.5) == [2, -1, 0.5, -3.5, 0.5, 0, 4, -0.5]


def test_the_repetition_penalty_moves_logits_of_the_prompt_and_the_text_down() -> None:
    assert adjusted([3, 2], {}, repetition_penalty=2) == [1, -2, 0.25, -6, 1, 0, 2, -0.5]


def test_the_repetition_penalty_comes_before_what_is_added() -> None:
    held = adjusted([0], {0: 3.0, 5: -1.0}, repetition_penalty=2, presence_penalty=1)
    assert held == [2 / 2 - 1 + 3, -2, 0.5, -3, 1, -1, 2, -0.5]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.5])
def test_compiled_draws_are_the_definition_with_all_of_it(temperature: float, min_p: float) -> None:
    random = np.random.default_rng(1)
    logits = (random.normal(size=(24, 64)) * 3).astype(np.float32)
    adjuster = Adjuster(
        GenParams(frequency_penalty=1, repetition_penalty=1.3), [(9, 2.0)], np.arange(9)
    )
    adjuster.add(12)
    wishes = []
    for row in range(len(logits)):
        sampling = Sampling(temperature, top_p=0.9, top_k=row % 5, min_p=min_p, row=row)
        adjustment = adjuster.current() if row % 3 else None
        mask = random.random(64) < 0.5 if row % 4 == 0 else None
        wishes.append(Wish(sampling, row, mask, (3,), adjustment))
    team = Team(2)
    tokens, normalizers = Sampler(64, team).run(torch.from_numpy(logits), wishes)
    assert tokens.tolist() == [draw(row, w) for row, w in zip(logits, wishes, strict=True)]
    plain, same = Sampler(64, None).run(torch.from_numpy(logits), wishes)
    assert plain.tolist() == tokens.tolist()
    assert normalizers == pytest.approx(same), "of the logits that the model gave"
    team.close()


def test_min_p_is_a_share_of_the_greatest_probability() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(probabilities).astype(np.float32)
    for min_p, left in ((0.0, 4), (0.29, 3), (0.31, 2), (0.59, 2), (0.61, 1), (1.0, 1)):
        drawn = {draw(logits, Wish(Sampling(1.0, min_p=min_p), i)) for i in range(400)}
        assert drawn == set(range(left)), min_p
