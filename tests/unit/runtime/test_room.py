"""The bound on what rows hold: never below what they do hold, and of use where it is known."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import lmc
from lmc.frontend.dsl import State
from lmc.runtime import planned_rows
from lmc.runtime.executor import Executor
from lmc.runtime.room import most_held

TEXT = st.text(max_size=40)


@lmc.jit
def branches(s: State, article: str, aspects: list[str], last: str) -> None:
    s += "All rows begin with this."
    s += article
    forks = s.fork(2)
    for fork, aspect in zip(forks, aspects, strict=True):
        fork += aspect
        fork += lmc.gen("review", max_tokens=7)
    forks.join()
    for review in s["review"]:
        s += review
    s += last
    s += lmc.select("end", ["good", "not so good"])
    if s["end"] == "good":
        s += last
    s += lmc.gen("why", max_tokens=3)


@lmc.jit
def resumes(s: State, word: str) -> None:
    s += word.upper() * 3
    s += lmc.gen("v", max_tokens=2)


@lmc.jit
def strips(s: State, word: str) -> None:
    s += word.strip()
    s += lmc.gen("v", max_tokens=2)


def test_the_bound_of_a_plan() -> None:
    plan = branches.compile(article="", aspects=["", ""], last="").plan
    bound = most_held(plan)
    assert bound is not None
    assert bound.shared == len("All rows begin with this.")
    assert bound.times == (1, 1, 1, 2)
    gens = 7 + 7 + (3 + 3) + (7 + 7)  # the last in both ways; the reviews are told again
    choices = len("good") + len("not so good")
    assert bound.fixed == gens + choices + 5 * 16
    assert bound.of(["ab", "c", "é", "xyz"]) == bound.fixed + 2 + 1 + 2 + 2 * 3


def test_a_text_of_unknown_length_has_no_bound() -> None:
    assert most_held(resumes.compile(word="").plan) is None
    assert most_held(strips.compile(word="").plan) is None


@given(st.lists(st.tuples(TEXT, TEXT, TEXT, TEXT), min_size=1, max_size=3), st.integers(0, 3))
def test_no_more_is_held_than_the_bound_says(rows: list[tuple[str, ...]], seed: int) -> None:
    given_rows: list[dict[str, Any]] = [
        {"article": a, "aspects": [b, c], "last": d} for a, b, c, d in rows
    ]
    bound = most_held(branches.compile(**given_rows[0]).plan)
    assert bound is not None
    most = bound.shared + sum(bound.of(row) for row in rows)
    with lmc.Engine("fake") as engine:
        branches.run_batch(given_rows, engine=engine, seed=seed)
        assert engine.stats.peak_kv_tokens <= most


def order(kv_tokens: int, monkeypatch: Any) -> list[str]:
    """The topics of rows, in the order in which they start."""
    started: list[str] = []
    begin = Executor._begin

    def noted(self: Executor, row: Any, spec: Any) -> None:
        started.append(spec.arguments[0])
        begin(self, row, spec)

    monkeypatch.setattr(Executor, "_begin", noted)
    topics = ["trains " * 9, "bread " * 9] * 4
    rows = [{"article": t, "aspects": ["x", f"y{n}"], "last": "."} for n, t in enumerate(topics)]
    with lmc.Engine("fake", kv_tokens=kv_tokens) as engine:
        branches.run_batch(rows, engine=engine)
    return started


def test_rows_that_all_fit_start_as_they_come(monkeypatch: Any) -> None:
    topics = ["trains " * 9, "bread " * 9] * 4
    calls: list[object] = []
    monkeypatch.setattr(planned_rows.FirstPrompts, "needs", lambda *args: calls.append(args))
    assert order(8000, monkeypatch) == topics
    assert not calls, "no prompt was looked at"
    monkeypatch.undo()
    assert order(500, monkeypatch) == sorted(topics, key=lambda t: t.startswith("bread"))
