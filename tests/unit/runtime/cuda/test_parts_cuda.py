"""The CUDA runner of a model in parts, in one process: the numbers are those of the whole."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lmc.runtime.cuda import runner as cuda_runner
from lmc.runtime.cuda.runner import CudaRunner
from lmc.runtime.request import Outcome, Step
from lmc.runtime.tensor_parallel.wire import pack_step, unpack_step
from tests.unit.runtime.lockstep import ThreadGroup, together
from tests.unit.runtime.random_models import (
    VARIANTS,
    Sequence,
    random_tokens,
    random_weights,
    some_slots,
)
from tests.unit.runtime.test_tensor_parallel import EVERY, POOL, SMALL, part_of


def steps() -> list[Step]:
    config = VARIANTS["llama"]
    slots = some_slots(60, seed=1, pool=POOL)
    one = Sequence(random_tokens(config, 30, 1), slots[:30])
    two = Sequence(random_tokens(config, 12, 2), slots[30:])
    told = [
        Step((one.piece(9, every=EVERY), two.piece(3))),
        Step((two.piece(1), one.piece(1, every=EVERY))),
        Step((one.piece(1, every=EVERY),)),  # a single row has kernels of its own
    ]
    last, then = [], []
    for sequence in (one, two):
        start = sequence.done
        piece = sequence.piece(1)
        last.append(replace(piece, slots=sequence.slots[: start + 3], made=True, targets=()))
        then.append(
            replace(last[-1], start=start + 3, slots=sequence.slots[: start + 5], position=3)
        )
    following = Step(tuple(then), repeats=2, after=(0, 1))
    return [*told, Step(tuple(last), repeats=3), following]


def outcomes(runner: CudaRunner, told: list[Step]) -> list[Outcome]:
    given = []
    for step in told:
        outcome = runner.run(step)
        given += [outcome, *outcome.later]
    return given


@pytest.mark.parametrize("rank", [0, 1])
def test_products_that_are_tried_before_are_those_that_the_part_computes(
    rank: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first part adds to the residual stream; the others write over their own."""
    config = replace(SMALL["llama"], layers=1)
    runner = CudaRunner(
        config, random_weights(config), kv_tokens=POOL, device=device, dtype="float32",
        max_batch_tokens=16, graphs=False,
    )  # fmt: skip
    model = runner._model
    group = SimpleNamespace(shard=SimpleNamespace(rank=rank), add_up=lambda x: x)
    monkeypatch.setattr(model, "_ranks", group)
    used: set[tuple[int, bool]] = set()

    def noted(x: Any, weight: Any, out: Any, bias: Any = None, *, add: bool = False) -> None:
        used.add((weight.data_ptr(), add))

    monkeypatch.setattr(model, "_product", noted)
    monkeypatch.setattr(model, "logits", lambda rows, out: out)
    model.try_sizes(16, runner._logits)
    tried = set(used)
    used.clear()
    layer = model._layers[0]
    for weight in (layer.output, layer.down):
        model._add_product(model._hidden, weight, model._residual)
    assert used <= tried
    assert {add for _, add in used} == {rank == 0}


@pytest.mark.parametrize(("variant", "deterministic"), [("llama", False), ("qwen2", True)])
def test_parts_give_what_the_whole_gives(
    device: str, variant: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_runner, "LOGIT_ROWS", 8)
    config = replace(SMALL[variant], layers=1)
    options: dict[str, Any] = {
        "device": device,
        "dtype": "float32",
        "max_batch_tokens": 64,
        "deterministic": deterministic,
        "graphs": False,
    }
    weights = random_weights(config)
    expected = outcomes(CudaRunner(config, dict(weights), kv_tokens=POOL, **options), steps())

    def work(group: ThreadGroup) -> list[Outcome]:
        shard = group.shard
        runner = CudaRunner(
            shard.config(config),
            part_of(weights, config, shard),
            kv_tokens=POOL + shard.rank,
            group=group,
            **options,
        )
        assert runner.kv_tokens == POOL  # the least that a part has room for
        if shard.rank == 0:
            return outcomes(runner, steps())
        for step in steps():
            runner.start(unpack_step(pack_step(step)))
        return []

    got = together(2, work)[0]
    assert len(got) == len(expected) == 8
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.tokens == theirs.tokens
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-3)
        for ours, others in zip(mine.scores, theirs.scores, strict=True):
            np.testing.assert_allclose(ours, others, atol=1e-3)
