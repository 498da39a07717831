"""The parameters of `gen`, each by its effect on what the fake model writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.codegen.artifact import Artifact, write_artifact
from lmc.errors import ConstraintError
from lmc.frontend.dsl import State

Both = Callable[..., lmc.Result]


@pytest.fixture
def engine() -> Iterator[lmc.Engine]:
    with lmc.Engine("fake") as made:
        yield made
        made.core.audit()


@pytest.fixture
def both(engine: lmc.Engine, tmp_path: Path) -> Both:
    """What a gen with some parameters gives: compiled, and the same eagerly and from a file."""
    return lambda **options: _both(engine, tmp_path, **options)


def _both(engine: lmc.Engine, path: Path, **options: Any) -> lmc.Result:

    def program(s: State, x: str) -> None:
        s += x
        s += lmc.gen("a", **options)
        s += "."
        s += lmc.gen("b", max_tokens=3)

    compiled = lmc.jit(program).run(engine=engine, x="What is it? ")
    eager = lmc.jit(program).run(engine=engine, x="What is it? ", eager=True)
    made = lmc.jit(program).compile(x="")
    write_artifact(path / "p.lmc", Artifact(made.plan, str(made.program)))
    loaded = lmc.load(path / "p.lmc").run(engine=engine, x="What is it? ")
    assert compiled.error is None, compiled.error
    assert compiled.to_json() == eager.to_json() == loaded.to_json()
    return compiled


def test_stop_regex_ends_the_text_where_re_search_finds_it(both: Both) -> None:
    free = both(max_tokens=60, ignore_eos=True)["a"]
    pattern = r"\b[aeiou]\w*"
    out = both(max_tokens=60, ignore_eos=True, stop_regex=pattern)
    found = re.search(pattern, free)
    assert found is not None
    assert out["a"] == free[: found.start()]
    assert out.text.startswith("What is it? " + out["a"] + ".")
    meta = out.meta("a")
    assert (meta.finish_reason, meta.matched_stop) == ("stop", pattern)


def test_a_stop_pattern_stops_a_constrained_gen(both: Both) -> None:
    out = both(max_tokens=30, regex=r"[a-z]{3}-[0-9]{9}", stop_regex=[r"-\d\d", "%"])
    assert re.fullmatch("[a-z]{3}", out["a"])
    assert out.meta("a").matched_stop == r"-\d\d"


@pytest.mark.parametrize("eager", [False, True])
def test_a_stop_pattern_that_cannot_be_is_an_error_of_its_line(
    engine: lmc.Engine, eager: bool
) -> None:
    @lmc.jit
    def program(s: State) -> None:
        s += lmc.gen("a", stop_regex="x*")

    def run() -> None:
        out = program.run(engine=engine, eager=eager)
        if out.error is not None:
            raise out.error

    with pytest.raises(ConstraintError, match="matches the empty text") as caught:
        run()
    assert caught.value.where is not None
    assert caught.value.where.file.endswith("test_gen_parameters.py")
