"""The real model on a GPU: near the CPU's float32, and compiled equals eager bit by bit.

`LMC_TEST_MODEL` names another folder or GGUF file, for machines that cannot fetch the default one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import lmc
from lmc.runtime.load import DEFAULT_MODEL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.model,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODEL = os.environ.get("LMC_TEST_MODEL", DEFAULT_MODEL)
NEAR = {"float32": 0.01, "bfloat16": 0.3}  # nats between the two best where a token may differ
TOPICS = ("rivers", "trains", "bread", "the moon", "chess", "winter", "maps", "bees")
PROMPTS = [f"Here are some facts about {topic}. First of all," for topic in TOPICS]


@pytest.fixture(scope="module")
def oracle() -> list[lmc.Result]:
    with lmc.Engine(MODEL, device="cpu", dtype="float32") as engine:
        return continue_text.run_batch([{"prompt": p} for p in PROMPTS], engine=engine)


@lmc.jit
def continue_text(s: lmc.State, prompt: str) -> None:
    s += prompt
    s += lmc.gen("text", max_tokens=64, ignore_eos=True, top_logprobs=2)


@pytest.mark.parametrize("dtype", NEAR)
def test_first_differences_are_at_near_ties(oracle: list[lmc.Result], dtype: str) -> None:
    with lmc.Engine(MODEL, device="cuda", dtype=dtype) as engine:
        results = continue_text.run_batch([{"prompt": p} for p in PROMPTS], engine=engine)
    alike = 0
    for expected, got in zip(oracle, results, strict=True):
        left, right = expected.meta("text"), got.meta("text")
        pairs = zip(left.token_ids, right.token_ids, strict=True)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is None:
            alike += 1
            continue
        (_, best), (_, second) = left.top_logprobs[first]
        print(f"{dtype}: token {first} differs where the best two are {best - second:.4f} apart")
        assert best - second < NEAR[dtype]
    print(f"{dtype}: {alike} of {len(PROMPTS)} texts are those of the CPU")


@lmc.jit
def review(s: lmc.State, topic: str) -> None:
    s += f"A short essay on {topic}.\n"
    sides = s.fork(3)
    for side, word in zip(sides, ("good", "bad", "strange"), strict=True):
        side += f"What is {word} about it:"
        side += lmc.gen("side", max_tokens=24, temperature=0.8, stop="\n")
    sides.join()
    for text in s["side"]:
        s += text + "\n"
    s += "Mark: "
    s += lmc.gen("mark", max_tokens=4, regex=r"[1-9](\.[05])?")
    s += lmc.select("verdict", [" print it", " send it back", " burn it"])


@pytest.fixture(scope="module")
def exact() -> Iterator[lmc.Engine]:
    with lmc.Engine(MODEL, device="cuda", deterministic=True) as engine:
        yield engine


def test_compiled_batches_equal_eager_runs_alone(exact: lmc.Engine) -> None:
    rows = [{"topic": topic} for topic in TOPICS]
    together = review.run_batch(rows, engine=exact, seed=3)
    exact.forget()
    eagerly = review.run_batch(rows[:3], engine=exact, seed=3, eager=True)
    for compiled, eager in zip(together, eagerly, strict=False):
        assert compiled.error is None
        assert compiled.to_json() == eager.to_json()
