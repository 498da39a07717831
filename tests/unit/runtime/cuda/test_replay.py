"""The steps of a real run, computed again by the CUDA runner and by torch: the same outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from lmc.runtime.cuda.runner import CudaRunner
from lmc.runtime.model_runner import ModelRunner
from lmc.runtime.request import Outcome
from tests.unit.runtime.random_models import random_weights
from tests.unit.runtime.recorded_steps import FILE, Recorded, one_by_one


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded.read(FILE)


@pytest.fixture(scope="module")
def expected(recorded: Recorded) -> list[Outcome]:
    """What torch gives, of each step and each of its repeats."""
    runner = ModelRunner(
        recorded.config,
        random_weights(recorded.config),
        dtype="float32",
        kv_tokens=recorded.kv_tokens,
        attention="torch",
        threads=1,
    )
    return [
        runner.run(single)
        for step, drawn in zip(recorded.steps, recorded.drawn, strict=True)
        for single in one_by_one(step, drawn)
    ]


def test_the_run_has_all_that_steps_can_have(recorded: Recorded) -> None:
    steps = recorded.steps
    segments = [segment for step in steps for segment in step.segments]
    samples = [s.sample for s in segments if s.sample is not None]
    assert any(len({len(s.tokens) > 1 for s in step.segments}) == 2 for step in steps), "mixed"
    assert any(
        a.slots[0] == b.slots[0] for step in steps for a in step.segments for b in step.segments
        if a is not b
    ), "shared"  # fmt: skip
    assert any(step.repeats > 1 for step in steps)
    assert any(s.mask is not None for s in segments)
    assert any(s.adjustment is not None for s in segments)
    assert any(s.banned for s in segments)
    assert any(s.targets for s in segments)
    assert any(s.top for s in segments)
    assert {True, False} == {sample.temperature > 0 for sample in samples}
    assert any(sample.top_p < 1 for sample in samples)
    assert any(sample.top_k for sample in samples)


def test_torch_draws_what_was_recorded(recorded: Recorded, expected: list[Outcome]) -> None:
    drawn = [tokens for step in recorded.drawn for tokens in step]
    assert [list(outcome.tokens) for outcome in expected] == drawn


@pytest.mark.usefixtures("few_programs")
def test_the_device_draws_what_torch_draws(
    recorded: Recorded, expected: list[Outcome], device: str
) -> None:
    runner = CudaRunner(
        recorded.config,
        random_weights(recorded.config),
        device=device,
        dtype="float32",
        kv_tokens=recorded.kv_tokens,
        max_batch_tokens=64,
    )
    wanted = iter(expected)
    for step in recorded.steps:
        outcome = runner.run(step)
        for got in (outcome, *outcome.later):
            check(got, next(wanted))


def check(got: Outcome, expected: Outcome) -> None:
    assert got.tokens == expected.tokens
    np.testing.assert_allclose(got.logprobs, expected.logprobs, atol=1e-3)
    for mine, theirs in zip(got.scores, expected.scores, strict=True):
        for row, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(row, other, atol=1e-3)
    for ranked, ranks in zip(got.tops, expected.tops, strict=True):
        assert [token for token, _ in ranked] == [token for token, _ in ranks]
        np.testing.assert_allclose([p for _, p in ranked], [p for _, p in ranks], atol=1e-3)
