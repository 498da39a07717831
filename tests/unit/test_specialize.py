"""What all rows of a batch have in common is known when the batch is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import lmc
from lmc.api import Program
from lmc.driver import KEPT_VARIANTS
from lmc.frontend.arguments import flatten
from lmc.frontend.sharing import known_texts, shared_texts


def shared(*rows: dict[str, Any]) -> dict[tuple[str | int, ...], str]:
    return dict(shared_texts(rows, rows[0], flatten(rows[0])))


def test_texts_that_all_rows_have_are_found_by_their_place() -> None:
    assert shared({"a": "x", "b": "1"}, {"a": "x", "b": "2"}) == {("a",): "x"}
    deep = [{"a": ["x", {"k": ("y", "z")}]}, {"a": ["x", {"k": ("n", "z")}]}]
    assert shared(*deep) == {("a", 0): "x", ("a", 1, "k", 1): "z"}
    same = ["x", "y"]
    assert shared({"a": same}, {"a": same}) == {("a", 0): "x", ("a", 1): "y"}


@pytest.mark.parametrize(
    "other",
    [{}, {"a": None}, {"a": 1}, {"a": ["x"]}, {"a": "y"}, {"a": type("S", (str,), {})("x")}],
)
def test_what_is_missing_or_of_another_kind_in_a_row_is_not_common(other: dict[str, Any]) -> None:
    assert shared({"a": "x"}, other) == {}


def test_one_row_has_nothing_in_common_with_others() -> None:
    assert shared({"a": "x"}) == {}
    assert shared_texts([{"a": "x"}, 7], {"a": "x"}, flatten({"a": "x"})) == {}


def test_a_row_that_differs_is_compiled_like_any_other() -> None:
    flat = flatten({"a": "x", "b": "1"})
    assert known_texts(flat, {("a",): "x"}) == ("x", None)
    assert known_texts(flat, {("a",): "changed"}) == ()
    assert known_texts(flat, {("c",): "x"}) == ()


@lmc.jit
def ask(s: Any, rules: str, question: str = "why?", n: int = 1) -> object:
    s += f"Rules: {rules.strip()}\n{question}"
    if rules == "short":
        s += lmc.gen("a", max_tokens=2)
        return "short"
    s += lmc.gen("a", max_tokens=6)
    return s["a"][0] if "resumes" in rules else int(n)


def text_of(compiled: Any) -> str:
    return str(compiled.program)


def compiled_for(program: Program, rows: list[dict[str, Any]]) -> Any:
    options = lmc.Options()
    flat = flatten(program.arguments(rows[0]))
    return program.compiled_for(flat, program.shared(rows, options), options)


def test_a_known_text_is_folded_and_decides_the_way() -> None:
    compiled = compiled_for(ask, [{"rules": "short", "question": q} for q in ("a", "b")])
    assert '"Rules: short\\n"' in text_of(compiled)
    assert "flow.if" not in text_of(compiled)


def test_defaults_are_common_unless_a_row_gives_its_own() -> None:
    assert '"Rules: short\\nwhy?"' in text_of(compiled_for(ask, [{"rules": "short"}] * 2))
    rows = [{"rules": "short"}, {"rules": "short", "question": "where?"}]
    assert '"Rules: short\\n", %question' in text_of(compiled_for(ask, rows))


def test_bound_arguments_are_common() -> None:
    bound = ask.bind(rules="short")
    assert "flow.if" not in text_of(compiled_for(bound, [{"question": q} for q in "ab"]))


ROWS = {
    "short": [{"rules": "short", "question": q} for q in "abc"],
    "long": [{"rules": " be kind ", "question": q, "n": n} for n, q in enumerate("abc")],
    "eager end": [{"rules": "resumes", "question": q} for q in "abc"],
    "errors": [{"rules": "short"}, {"rules": "short", "n": "x", "m": 1}, {"rules": "short"}],
    "strange": [{"rules": "short"}, 7, {"rules": "short"}],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_results_are_those_of_eager_runs(rows: list[Any]) -> None:
    with lmc.Engine("fake") as engine:
        eager = ask.run_batch(rows, engine=engine, eager=True)
        for given in (rows, iter(rows), tuple(rows)):
            found = ask.run_batch(given, engine=engine)
            assert [told(one) for one in found] == [told(one) for one in eager]


def told(result: lmc.Result) -> object:
    return result.variables, result.text, result.value, result.error and str(result.error)


def test_a_row_that_changes_before_it_starts_is_run_as_it_is_then() -> None:
    class Changing(Sequence[dict[str, str]]):
        looks = 0

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: Any) -> Any:
            if index >= 3:
                raise IndexError
            self.looks += 1
            return {"rules": "short" if self.looks < 6 else f"other {index}", "question": "?"}

    rows = Changing()
    with lmc.Engine("fake") as engine:
        texts = [one.text for one in ask.run_batch(rows, engine=engine)]
        assert rows.looks > 6
        assert "other 2" in texts[2]
        again = ask.run_batch([{"rules": "other 2", "question": "?"}], engine=engine)
        assert texts[2] == again[0].text


def test_rows_that_can_be_read_once_are_read_once() -> None:
    read = []

    def rows() -> Iterator[dict[str, str]]:
        for q in "ab":
            read.append(q)
            yield {"rules": "short", "question": q}

    with lmc.Engine("fake") as engine:
        assert len(ask.run_batch(rows(), engine=engine)) == 2
    assert read == ["a", "b"]


def test_few_variants_are_kept_and_found_again() -> None:
    @lmc.jit
    def one(s: Any, x: str) -> None:
        s += x

    compiled = one.compile()
    made = [compiled.knowing((f"{n}",)) for n in range(3 * KEPT_VARIANTS)]
    assert compiled.knowing(("47",)) is made[47]
    assert compiled.knowing(("0",)) is not made[0]
    assert len(compiled._variants) == KEPT_VARIANTS


def test_a_text_that_is_not_used_compiles_nothing() -> None:
    @lmc.jit
    def unused(s: Any, x: str, y: str) -> None:
        s += y

    compiled = unused.compile()
    assert compiled.knowing(("x", None)) is compiled


def test_nothing_is_looked_at_where_no_pass_makes_use_of_it() -> None:
    rows = ROWS["short"]
    assert ask.shared(rows, lmc.Options(level=1))
    assert not ask.shared(rows, lmc.Options(level=0))
    assert not ask.shared(rows, lmc.Options(passes="cse"))
    assert ask.shared(rows, lmc.Options(level=0, passes="specialize"))


def test_constraints_are_built_once_for_all_variants() -> None:
    @lmc.jit
    def number(s: Any, x: str) -> None:
        s += x + lmc.gen("n", regex="[0-9]{1,3}")

    one, other = (number.compile().knowing((x,)).plan for x in ("a", "b"))
    assert one.constraints[0] is other.constraints[0]
    assert one.body != other.body


def test_equal_constraints_are_one_automaton_in_a_plan() -> None:
    @lmc.jit
    def twice(s: Any) -> None:
        s += lmc.gen("a", regex="no|yes")
        s += ", " + lmc.gen("b", choices=["yes", "no"]) + "; "
        s += lmc.gen("c", regex="no|yes", max_tokens=3)
        s += lmc.gen("d", regex="no")

    assert len(twice.compile().plan.constraints) == 2
