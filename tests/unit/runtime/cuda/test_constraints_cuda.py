"""Constraints that the device follows by itself give the texts that masks from the CPU give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lmc.constraints import automaton_of, matcher_of
from lmc.constraints.tabulating import tabulate
from lmc.params import GenParams
from lmc.runtime import repeating
from lmc.runtime.cuda.runner import CudaRunner
from lmc.runtime.engine import EngineCore
from lmc.runtime.request import GenRequest, GenResult, Sampling, keys_of
from tests.unit.constraints.small_tokenizers import small_vocabulary
from tests.unit.runtime.random_models import VARIANTS, random_weights

RECORD = r'[A-Za-z ]{1,6}: "(red|green|blue)"'


class Counting(CudaRunner):
    """A runner that counts how often it was asked for a step."""

    orders = 0

    def start(self, step: Any) -> Any:
        self.orders += 1
        return super().start(step)


def test_texts_are_those_of_masks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "_ROWS_WORTH_A_PASS", 1)
    vocabulary = small_vocabulary("llama3")
    config = replace(VARIANTS["llama"], layers=1, vocab_size=len(vocabulary))
    automaton = automaton_of("regex", RECORD)
    tabulate(automaton.machine, vocabulary.table(automaton.machine))
    runner = Counting(
        config, random_weights(config), device=device, dtype="float32", kv_tokens=512,
        max_batch_tokens=64, deterministic=True,
    )  # fmt: skip
    found, orders = [], []
    for follows in (True, False):
        runner.follows_states, runner.orders = follows, 0
        ends = frozenset(vocabulary.eos)
        core = EngineCore(runner, vocabulary.token_bytes, ends, check=True, max_batch_tokens=64)
        results: list[Any] = []
        for n in range(3):
            request = GenRequest(
                keys_of([5 + n, 7], made=False), (), GenParams(max_tokens=80),
                Sampling(temperature=n % 2, top_p=1.0 - n // 2 * 0.2, draw=n),
                matcher_of(automaton, vocabulary),
            )  # fmt: skip
            core.submit(request, results.append)
        while core.step():
            pass
        assert all(isinstance(result, GenResult) for result in results)
        found.append(sorted((r.text, r.finish, tuple(r.tokens)) for r in results))
        orders.append(runner.orders)
    assert found[0] == found[1]
    assert orders[0] < orders[1] * 2 / 3, orders
