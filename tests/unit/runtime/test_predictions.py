"""Dry runs: what a batch will cost, told before it runs and compared with what was counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import lmc
from lmc.bench.workloads import WORKLOADS
from lmc.driver import Options
from lmc.frontend.dsl import State
from lmc.runtime.dry_run import Rehearsal
from lmc.runtime.load import rehearsal_of
from lmc.runtime.prediction import PREDICTED, Prediction, counters_of
from lmc.runtime.stats import Counters

Rows = Sequence[dict[str, Any]]

SHARES = (0.25, 0.5, 1.0)

CRITERIA = ("clarity", "evidence", "style")


@lmc.jit
def graded(s: State, essay: str) -> None:
    """Judges whose answers are of one length, and a verdict that is chosen."""
    s.system("You judge essays, and you say little.")
    s.user(f"Here is an essay to be judged with care: {essay}")
    forks = s.fork(len(CRITERIA))
    for fork, criterion in zip(forks, CRITERIA, strict=True):
        fork.user(f"Think about its {criterion}, then give it a mark.")
        with fork.assistant():
            fork += lmc.gen("thought", max_tokens=9, ignore_eos=True)
            fork += " So the mark is "
            fork += lmc.gen("mark", regex="[1-9]")
    forks.join()
    s.user("Is it good on the whole?")
    with s.assistant():
        s += lmc.select("good", ["yes, it is good", "no"])


@lmc.jit
def talk(s: State, turns: list[str]) -> None:
    for number, turn in enumerate(turns):
        s.user(turn)
        s.assistant(lmc.gen(f"said_{number}", max_tokens=12, ignore_eos=True))
    s += lmc.score("sure", " Thank you.")


ESSAYS = [
    {"essay": f"On {what}. " + f"There is much to say about {what}, and little is known. " * 4}
    for what in ("tea", "rain", "tea with milk", "ships", "rain in May", "bees", "ink", "tea")
]
TALKS = [{"turns": [f"Turn {n} of talk {i}: go on." for n in range(3)]} for i in range(12)]


def needed(program: Any, rows: Rows) -> int:
    """The tokens that one needs to hold all that the rows of a batch compute."""
    with lmc.Engine("fake") as engine:
        program.run_batch(rows, engine=engine)
        return engine.core.statistics()["cache_held"] + 1


def predicted_and_measured(program: Any, rows: Rows, engine: Any) -> tuple[Prediction, Counters]:
    prediction = program.predict(rows, engine=engine)
    before = engine.stats.requests
    assert before == 0  # a dry run leaves the engine alone
    program.run_batch(rows, engine=engine, on_error="raise")
    return prediction, counters_of(engine.stats)


EXACT: list[tuple[str, Any, Rows]] = [
    ("graded", graded, ESSAYS),
    ("talk", talk, TALKS),
    ("fewshot", WORKLOADS["fewshot"].program, WORKLOADS["fewshot"].rows),
    ("chat", WORKLOADS["chat"].program, WORKLOADS["chat"].rows),
]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("program", "rows"), [c[1:] for c in EXACT], ids=[c[0] for c in EXACT])
def test_what_was_predicted_is_what_was_counted(program: Any, rows: Rows, share: float) -> None:
    longest = 1_600 if program is WORKLOADS["fewshot"].program else 400
    kv_tokens = max(int(share * needed(program, rows)), longest)
    with lmc.Engine("fake", kv_tokens=kv_tokens, max_batch_tokens=96) as engine:
        prediction, measured = predicted_and_measured(program, rows, engine)
    assert prediction.reasons == ()
    assert prediction.least == prediction.most == measured
    assert measured.generated_tokens or measured.requests


@pytest.mark.parametrize(("program", "rows"), [c[1:] for c in EXACT], ids=[c[0] for c in EXACT])
def test_where_nothing_is_open_the_other_run_would_be_the_same(
    program: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[bool] = []
    engine_of = Rehearsal.engine

    def watched(rehearsal: Rehearsal, *, longest: bool) -> Any:
        runs.append(longest)
        return engine_of(rehearsal, longest=longest != turned)

    monkeypatch.setattr(Rehearsal, "engine", watched)
    with lmc.Engine("fake", kv_tokens=1_700, max_batch_tokens=96) as engine:
        turned = False
        prediction = program.predict(rows, engine=engine)
        turned = True
        assert program.predict(rows, engine=engine) == prediction
        assert prediction.exact
        assert runs == [False, False]
        free.predict([{"x": "a thing"}], engine=engine)
        assert runs == [False, False, False, True]


def test_repeats_on_a_device_are_reckoned_with() -> None:
    with lmc.Engine("fake", kv_tokens=700) as engine:
        engine.core.runner.most_repeats = 8
        engine.core._scheduler._composer._most_repeats = 8
        prediction, measured = predicted_and_measured(talk, TALKS, engine)
    assert prediction.exact
    assert prediction.least == measured


@lmc.jit
def free(s: State, x: str) -> None:
    s += f"Tell me about {x}: "
    s += lmc.gen("long", max_tokens=10, stop="\n")
    s += lmc.select("more", ["yes", "no, that is all there is to say"])
    if s["more"] == "yes":
        s += " More: "
        s += lmc.gen("rest", max_tokens=5)
    s += f" {s['long'].upper()}"
    s += lmc.score("end", ".")


def test_what_is_not_known_has_bounds_and_reasons() -> None:
    rows = [{"x": f"thing {i}"} for i in range(12)]
    with lmc.Engine("fake") as engine:
        prediction, measured = predicted_and_measured(free, rows, engine)
    assert not prediction.exact
    found = " | ".join(prediction.reasons)
    for what in ("how long 'long'", "which choice 'more'", "which way", "text put into a prompt"):
        assert what in found
    assert "test_predictions.py:" in found
    for name in ("requests", "prompt_tokens", "generated_tokens", "computed_tokens"):
        least, most = getattr(prediction.least, name), getattr(prediction.most, name)
        assert least <= getattr(measured, name) <= most
        assert least < most


def test_tools_are_not_called() -> None:
    @lmc.tool
    def search(query: str) -> list[str]:
        raise AssertionError(query)

    @lmc.jit
    def program(s: State, x: str) -> None:
        s += f"Find {x}: "
        found = lmc.call(search, x)
        s += "\n".join(found)
        s += lmc.gen("said", max_tokens=3, ignore_eos=True)

    with lmc.Engine("fake") as engine:
        prediction = program.predict([{"x": "a"}] * 3, engine=engine)
    assert prediction.rows == 3
    assert any("search() gives" in reason for reason in prediction.reasons)
    assert prediction.least.requests == 3


def test_what_runs_eagerly_is_left_out() -> None:
    @lmc.jit
    def program(s: State, x: str) -> None:
        s += f"Say {x}: "
        s += lmc.gen("said", max_tokens=3, ignore_eos=True)
        for letter in s["said"]:
            s += letter

    with lmc.Engine("fake") as engine:
        prediction = program.predict([{"x": "a"}], engine=engine)
    assert any("runs eagerly" in reason for reason in prediction.reasons)
    assert prediction.least.generated_tokens == 3


def test_a_condition_on_arguments_is_known() -> None:
    @lmc.jit
    def program(s: State, x: str) -> None:
        s += f"Say {x}: "
        if x == "much":
            s += lmc.gen("said", max_tokens=30, ignore_eos=True)
        else:
            s += lmc.gen("said", max_tokens=3, ignore_eos=True)

    with lmc.Engine("fake") as engine:
        rows = [{"x": "much"}, {"x": "little"}]
        prediction, measured = predicted_and_measured(program, rows, engine)
    assert prediction.exact
    assert prediction.least == measured
    assert measured.generated_tokens == 33


PATTERNS = {"[A-F]": True, "[A-F]!": True, "Fixed text": True, "a{1,3}": False, "(yes|no)": False}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_constraint_of_one_length_is_known(pattern: str) -> None:
    @lmc.jit
    def program(s: State, x: str) -> None:
        s += f"About {x}: "
        s += lmc.gen("made", regex=pattern, max_tokens=20)
        s += " and "
        s += lmc.score("then", "so on")

    @lmc.jit
    def template(s: State, x: str) -> None:
        s += "Made: {" + lmc.gen("made", regex=pattern, max_tokens=20) + "}"
        s += lmc.score("then", " so on")

    for made in (program, template):
        with lmc.Engine("fake") as engine:
            rows = [{"x": str(i)} for i in range(3)]
            prediction, measured = predicted_and_measured(made, rows, engine)
        if PATTERNS[pattern]:
            assert prediction.exact
            assert prediction.least == measured
        for name in PREDICTED[:6]:
            assert getattr(prediction.least, name) <= getattr(measured, name)
            assert getattr(measured, name) <= getattr(prediction.most, name)


def test_a_model_need_not_be_loaded() -> None:
    with lmc.Engine("fake", kv_tokens=900) as engine:
        loaded = graded.predict(ESSAYS, engine=engine)
    assert graded.rehearsed(ESSAYS, rehearsal_of("fake", 900), Options()) == loaded


def test_a_prediction_is_written_as_bounds() -> None:
    least = Counters(requests=1, prompt_tokens=10, cached_tokens=8)
    most = Counters(requests=2, prompt_tokens=20, cached_tokens=12)
    written = Prediction(3, least, most, ("why",)).to_json()
    assert written["prompt_tokens"] == {"least": 10, "most": 20}
    assert written["hit_rate"] == {"least": 0.6, "most": 0.8}
    assert (written["rows"], written["exact"], written["reasons"]) == (3, False, ["why"])
