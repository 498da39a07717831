"""Oracle = eager = compiled = compiled batch, token by token, on the real model in float32."""

from __future__ import annotations

import importlib.util
import json
import random
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.frontend.dsl import State
from tests.oracle import NEAR_TIE, Oracle, OracleRun

pytestmark = pytest.mark.model

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> lmc.Program:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program = getattr(module, name)
    assert isinstance(program, lmc.Program)
    return program


@lmc.jit
def branches(s: State, text: str) -> str:
    s += "A list of facts.\n"
    forks = s.fork(3)
    for fork, topic in zip(forks, ["cats", "the moon", text], strict=True):
        fork += f"One fact about {topic}:"
        fork += lmc.gen("fact", max_tokens=12, stop=[".", "\n"])
    forks.join()
    for fact in s["fact"]:
        s += f"- {fact.strip()}\n"
    s += "The best of them is about"
    s += lmc.select("best", [" cats", " the moon", f" {text}"])
    s += " because"
    s += lmc.gen("why", max_tokens=10, ignore_eos=True)
    return str(s["why"].upper())


@lmc.jit
def constrained(s: State, text: str) -> None:
    s += f"Note: {text}\nRecord: "
    s += lmc.gen(
        "record",
        max_tokens=48,
        regex=r'\{"name": "[A-Z][a-z]{2,11}", "age": [1-9][0-9], "job": "(nurse|pilot|chef)"\}',
    )
    s += "\nAgain, but as a sentence:"
    s += lmc.gen("sentence", max_tokens=12, regex=r" [A-Z][a-z ,]+\.")


def essays() -> list[dict[str, Any]]:
    text = (EXAMPLES / "data" / "essay.txt").read_text(encoding="utf-8")
    return [{"essay": text[:300]}, {"essay": "I like tea."}]


def mmlu(n: int) -> list[dict[str, Any]]:
    lines = (EXAMPLES / "data" / "mmlu.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:n]]


CASES: dict[str, tuple[lmc.Program, list[dict[str, Any]]]] = {
    "quickstart": (
        example("quickstart"),
        [
            {},
            {"question": "Name three colours."},
            {"question": "What is 2+2? <|im_end|> é\U0001f642"},
        ],
    ),
    "judge": (example("judge"), essays()),
    "few_shot": (example("few_shot"), mmlu(2)),
    "chat": (
        example("chat"),
        [
            {"turns": ["Hi, I am Ada.", "What is my name?"]},
            {"turns": ["Tell me about tea.", "Why?"]},
        ],
    ),
    "branches": (branches, [{"text": "rain"}, {"text": "old houses"}]),
    "constrained": (
        constrained,
        [{"text": "Marta, 31, flies planes."}, {"text": "Tom is a cook of 28 years."}],
    ),
}


@pytest.fixture(scope="session", params=CASES)
def case(
    request: pytest.FixtureRequest, oracle: Oracle
) -> tuple[lmc.Program, list[dict[str, Any]], list[OracleRun]]:
    program, rows = CASES[request.param]
    return program, rows, [oracle.run(program.function, **complete(program, r)) for r in rows]


def complete(program: lmc.Program, row: Mapping[str, Any]) -> dict[str, object]:
    return program.arguments(row)


def check(result: lmc.Result, wanted: OracleRun) -> None:
    assert result.error is None, result.error
    found = {name: tokens_of(meta) for name, meta in result._meta.items()}
    by_name: dict[str, Any] = {}
    for call in wanted.calls:
        by_name.setdefault(call.name, []).append(call.tokens)
    expected = {
        name: by_name[name] if isinstance(found.get(name), list) else by_name[name][-1]
        for name in by_name
        if name in found
    }
    if (found, result.variables) == (expected, wanted.variables):
        assert result.value == wanted.value
        return
    assert wanted.gap < NEAR_TIE, f"{result.variables} is not {wanted.variables}"
    warnings.warn(f"a near tie of {wanted.gap}: {result.variables}", stacklevel=2)


def tokens_of(meta: Any) -> Any:
    return [tokens_of(m) for m in meta] if isinstance(meta, list) else meta.token_ids


Case = tuple[lmc.Program, list[dict[str, Any]], list[OracleRun]]


def test_eager_gives_what_transformers_gives(case: Case, roomy: lmc.Engine) -> None:
    program, rows, wanted = case
    for row, run in zip(rows, wanted, strict=True):
        check(program.run(engine=roomy, eager=True, **row), run)


@pytest.mark.parametrize("level", [0, 2])
def test_compiled_gives_what_transformers_gives(case: Case, roomy: lmc.Engine, level: int) -> None:
    program, rows, wanted = case
    for row, run in zip(rows, wanted, strict=True):
        check(program.run(engine=roomy, options=lmc.Options(level=level), **row), run)


def test_batches_in_any_order_cold_and_warm(case: Case, roomy: lmc.Engine) -> None:
    program, rows, wanted = case
    order = [*range(len(rows)), *range(len(rows))]
    random.Random(1).shuffle(order)
    for _ in ("cold or warm", "warm"):
        results = program.run_batch([rows[i] for i in order], engine=roomy)
        for i, result in zip(order, results, strict=True):
            check(result, wanted[i])


def test_with_little_memory_and_prompts_cut_everywhere(case: Case, tight: lmc.Engine) -> None:
    program, rows, wanted = case
    order = [*range(len(rows))] * 2
    for i, result in zip(
        order, program.run_batch([rows[i] for i in order], engine=tight), strict=True
    ):
        check(result, wanted[i])


def test_little_memory_did_lead_to_eviction(tight: lmc.Engine) -> None:
    assert tight.stats.evicted_tokens > 0


def test_sampled_texts_do_not_depend_on_schedule_batch_or_cache(
    roomy: lmc.Engine, tight: lmc.Engine
) -> None:
    program = example("self_consistency")
    rows = [{"n": 3}, {"question": "What is 17 + 25?", "n": 3}]
    runs = [
        program.run_batch(rows, engine=roomy, seed=7),
        program.run_batch(rows, engine=roomy, seed=7, eager=True),
        program.run_batch(rows, engine=tight, seed=7, options=lmc.Options(level=0)),
    ]
    first = [(r.error, r.variables, r.value) for r in runs[0]]
    assert all(error is None for error, _, _ in first)
    for run in runs[1:]:
        assert [(r.error, r.variables, r.value) for r in run] == first
    other = program.run_batch(rows, engine=roomy, seed=8)
    assert [r.variables for r in other] != [r.variables for r in runs[0]]
