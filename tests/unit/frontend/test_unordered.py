"""Texts without an order: in the order given, unless it is asked for another."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc.errors import UsageError

GIVEN = lmc.Options()
SHARED = lmc.Options(reorder_unordered=True)


@lmc.jit
def ask(s: Any, note: str, rules: str) -> None:
    s += "Read: " + lmc.unordered(f"({note})", rules, "Be brief.", sep="; ") + "!"
    s += lmc.gen("a", max_tokens=3)


ROWS = [{"note": note, "rules": "Be kind."} for note in ("x", "y", "z")]


def prompts(options: lmc.Options, rows: Any = ROWS, *, eager: bool = False) -> list[str]:
    with lmc.Engine("fake") as engine:
        found = ask.run_batch(rows, engine=engine, options=options, eager=eager)
    return [one.text.partition("!")[0] for one in found]


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_they_stand_in_the_order_given(level: int) -> None:
    assert prompts(lmc.Options(level=level))[1] == "Read: (y); Be kind.; Be brief."


def test_what_varies_goes_last_where_that_is_asked_for() -> None:
    assert prompts(SHARED)[1] == "Read: Be kind.; Be brief.; (y)"
    assert prompts(SHARED, iter(ROWS))[1] == "Read: Be brief.; (y); Be kind."
    assert prompts(lmc.Options(passes="reorder-unordered"))[1] == "Read: Be brief.; (y); Be kind."


def test_eager_runs_have_the_order_given() -> None:
    assert prompts(SHARED, eager=True) == prompts(GIVEN)


def test_more_is_cached() -> None:
    found = []
    for options in (GIVEN, SHARED):
        rows = [{"note": f"{n} " * 30, "rules": "Be kind to whoever asks. " * 8} for n in range(9)]
        with lmc.Engine("fake") as engine:
            ask.run_batch(rows, engine=engine, options=options)
            found.append(engine.stats.cached_tokens)
    assert found[1] > 10 * max(found[0], 1)


def test_known_texts_are_just_joined() -> None:
    assert lmc.unordered("a", "b", sep=", ") == "a, b"
    assert lmc.unordered() == ""


@pytest.mark.parametrize("wrong", [(["a"],), (1,), ("a", None), (lmc.gen("x"),)])
def test_what_is_no_text_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"unordered\(\) takes texts, not .*test_unordered.py:"):
        lmc.unordered(*wrong)


def test_an_artifact_keeps_its_order(tmp_path: Any) -> None:
    from lmc.codegen.artifact import Artifact, write_artifact

    path = tmp_path / "ask.lmc"
    compiled = ask.compile(SHARED)
    write_artifact(path, Artifact(compiled.plan, str(compiled.program)))
    with lmc.Engine("fake") as engine:
        out = lmc.load(path).run(engine=engine, note="x", rules="Be kind.")
        assert out.text.startswith("Read: Be brief.; (x); Be kind.!")
        with pytest.raises(UsageError, match="in the order in which they were compiled"):
            lmc.load(path).run(engine=engine, options=SHARED, **ROWS[0])
