"""A device that has no memory for a step, or for the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lmc.errors import CapacityError, RunError
from lmc.params import GenParams
from lmc.runtime.cuda import runner as cuda_runner
from lmc.runtime.cuda.runner import CudaRunner
from lmc.runtime.device_memory import DeviceMemoryError
from lmc.runtime.engine import EngineCore
from lmc.runtime.request import GenRequest, GenResult, Sampling, Step, keys_of
from tests.unit.runtime.random_models import (
    VARIANTS,
    Sequence,
    random_tokens,
    random_weights,
    some_slots,
)
from tests.unit.runtime.test_tensor_parallel import POOL

CONFIG = replace(VARIANTS["llama"], layers=1)


def make(device: str, **options: Any) -> CudaRunner:
    return CudaRunner(
        CONFIG, random_weights(CONFIG), device=device, dtype="float32", kv_tokens=POOL,
        max_batch_tokens=64, graphs=False, **options,
    )  # fmt: skip


def run(runner: CudaRunner) -> list[GenResult]:
    core = EngineCore(
        runner, [b"x"] * CONFIG.vocab_size, frozenset(), max_batch_tokens=64, check=True
    )
    results: list[Any] = []
    mask = np.arange(CONFIG.vocab_size) % 3 == 0
    for draw in range(3):
        request = GenRequest(
            keys_of(random_tokens(CONFIG, 6 + draw, 1), made=False),
            (),
            GenParams(max_tokens=3),
            Sampling(temperature=float(draw == 1), draw=draw),
            constraint=OneMask(mask) if draw == 2 else None,
        )
        core.submit(request, results.append)
    while core.step():
        pass
    assert all(isinstance(result, GenResult) for result in results), results
    return sorted(results, key=lambda result: result.prompt_tokens)


class OneMask:
    """A constraint that allows the same tokens at all times."""

    def __init__(self, mask: np.ndarray) -> None:
        self._mask = mask

    def mask(self) -> np.ndarray:
        return self._mask

    def mask_within(self, tokens: int) -> np.ndarray:
        return self._mask

    def shortest_tokens(self, most: int | None = None) -> int:
        return 0

    def reserve(self, there: int = 0, least: int = 0) -> int:
        return 0

    def want_states(self) -> None:
        pass

    def state(self) -> None:
        return None

    def advance(self, token: int) -> None:
        assert self._mask[token]

    def forced(self) -> list[int]:
        return []

    def remaining(self, most: int) -> str | None:
        return None

    def is_complete(self) -> bool:
        return False

    def is_finished(self) -> bool:
        return False


@pytest.mark.usefixtures("few_programs")
def test_texts_are_the_same_where_memory_was_short(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails before the masks are copied, and after keys and values have been written."""
    expected = run(make(device))
    runner = make(device)
    calls = {"copy": 0, "logits": 0}

    def failing(name: str, owner: Any, method: str, at: tuple[int, ...]) -> None:
        plain = getattr(owner, method)

        def call(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            if calls[name] in at:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB\nmore")
            return plain(*arguments, **options)

        monkeypatch.setattr(owner, method, call)

    failing("copy", runner._sampler._masks, "_copy", (1,))
    failing("logits", runner._model, "logits", (1, 3))
    got = run(runner)
    assert calls["logits"] > 3
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.tokens == theirs.tokens
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-4)


def test_the_error_says_how_large_the_step_was(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(device)

    def no(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB\nmore")

    monkeypatch.setattr(runner, "_launch_all", no)
    step = Step((Sequence(random_tokens(CONFIG, 9, 1), some_slots(9, 1, POOL)).piece(9),))
    with pytest.raises(DeviceMemoryError) as caught:
        runner.run(step)
    assert caught.value.problem == (
        "the device has no memory left for a step of 9 tokens: "
        "CUDA out of memory. Tried to allocate 1 GiB"
    )
    assert caught.value.__context__ is None, "the tensors of a traceback would stay"
    runner._group = object()  # type: ignore[assignment]
    with pytest.raises(RunError) as other:
        runner.run(step)
    assert type(other.value) is RunError, "the other parts are at it already"


def test_steps_are_launched_where_there_is_no_memory_for_their_graph(
    device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = Step((Sequence(random_tokens(CONFIG, 9, 1), some_slots(9, 1, POOL)).piece(9),))
    expected = make(device).run(step)
    runner = make(device)
    asked = []

    def no(bucket: int, wide: bool) -> None:
        asked.append(bucket)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, "_capture", no)
    monkeypatch.setattr(runner, "_use_graphs", True)
    for _ in range(2):
        assert runner.run(step).tokens == expected.tokens
    assert asked == [16], "once is enough"
    assert "no memory for the graph of steps of 16 rows" in caplog.text


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (cuda_runner, "DeviceModel", "no room for the model"),
        (cuda_runner.DeviceModel, "make_pool", f"no room for {POOL} KV tokens"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    device: str, owner: Any, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(owner, name, no)
    with pytest.raises(CapacityError, match=message):
        make(device)
