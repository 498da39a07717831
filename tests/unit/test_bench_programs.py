"""The ways to run a program that `lmc bench programs` compares."""

from __future__ import annotations

import inspect

import pytest

import lmc
from lmc.bench import tasks
from lmc.bench.interpreter import interpreted
from lmc.frontend.dsl import State


@lmc.jit
def tree(s: State, task: str) -> None:
    """Two levels; as written, the first leaf is asked for before the second branch."""
    s.user(task)
    branches = s.fork(2)
    for branch, kind in zip(branches, ("cheap", "quick"), strict=True):
        branch += f"A {kind} way:"
        branch += lmc.gen("way", max_tokens=5, ignore_eos=True)
        leaves = branch.fork(2)
        leaves += lmc.gen("leaf", max_tokens=5, temperature=0.9, ignore_eos=True)
        assert len(leaves) == 2
        leaves.join()
    branches.join()
    s += f"{s['way'][0]} or {s['way'][1]}"


ROWS = [{"task": "Build a bench."}]


def steps_of(program: lmc.Program, *, eager: bool) -> tuple[list[str], int]:
    with lmc.Engine("fake") as engine:
        results = program.run_batch(ROWS, engine=engine, eager=eager, on_error="raise")
        (result,) = results
        texts = [result.text, *result["way"], *(text for two in result["leaf"] for text in two)]
        return texts, engine.stats.model_steps


def test_an_interpreter_waits_at_forks_and_joins_and_gives_the_same() -> None:
    compiled, at_once = steps_of(tree, eager=False)
    eager, as_read = steps_of(tree, eager=True)
    waiting, in_turn = steps_of(interpreted(tree), eager=True)
    assert compiled == eager == waiting
    assert at_once == 10
    assert at_once <= as_read < in_turn  # calls may come one by one
    assert in_turn == 20  # twice the way and its leaves, one after another


@pytest.mark.parametrize("name", tasks.PROGRAMS)
def test_it_is_known_which_of_the_programs_fork(name: str) -> None:
    measured = tasks.PROGRAMS[name]
    assert measured.forks == (".fork(" in inspect.getsource(measured.program.function))
