from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from lmc.errors import RunError
from lmc.ir import parse
from lmc.ir.interpret import HashModel, Meaning, interpret
from lmc.params import GenParams


@dataclass
class Scripted:
    """Answers from a list, and keeps what it was asked."""

    answers: list[str]
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def gen(self, context: str, params: GenParams, draw: int) -> str:
        self.asked.append((context, params.max_tokens, draw))
        return self.answers.pop(0)

    def select(
        self, context: str, choices: Sequence[str], method: str, temperature: float, draw: int
    ) -> str:
        self.asked.append((context, *choices, method))
        return choices[-1]

    def score(self, context: str, text: str) -> float:
        self.asked.append((context, text))
        return -1.5


PROGRAM = """program @p(%x: text) {
  %s0 = lm.start
  %s1 = lm.role %s0 {role = "user", edge = "begin"}
  %s2 = lm.extend %s1, "Q: ", %x
  %s3 = lm.prefill %s2
  %s4 = lm.role %s3 {role = "user", edge = "end"}
  %s5, %a = lm.gen %s4 {name = "a", max_tokens = 5, temperature = 1.0, draw = 4}
  %s6, %b = lm.select %s5, %a, "no" {name = "b", draw = 5}
  %s7, %c = lm.gen %s6 {name = "c", draw = 6}
  %i0 = text.length %c
  %l0 = list.make %a, %b
  %v0 = value.pack %l0, %i0 {template = "{\\"dict\\": [[\\"k\\", {\\"tuple\\": [{\\"$\\": 0}, [1]]}], [{\\"$\\": 1}, null]]}"}
  lm.release %s0
  %b0 = text.eq %c, "C"
  flow.if %b0 {
    ret %s7, {a = %a, l = %l0}, %v0
  } else {
    flow.resume (%s5, %a), (%s6, %b) {reason = "why"}
  }
}
"""  # noqa: E501


def test_states_are_what_the_runtime_would_see() -> None:
    model = Scripted(["A", "C"])
    found = interpret(parse(PROGRAM), ["x"], model)
    prompt = "⟦user⟧Q: x⟦/user⟧"
    assert model.asked == [
        (prompt, 5, 4),
        (f"{prompt}«A»", "A", "no", "token_length_normalized"),
        (f"{prompt}«A»«no»", 128, 0),  # a greedy gen has no draw
    ]
    assert found == Meaning(
        f"{prompt}«A»«no»«C»",
        {"a": "A", "l": ["A", "no"]},
        {"k": (["A", "no"], [1]), 1: None},
    )


def test_a_way_that_goes_on_eagerly_gives_its_calls() -> None:
    found = interpret(parse(PROGRAM), ["x"], Scripted(["A", "other"]))
    prompt = "⟦user⟧Q: x⟦/user⟧«A»"
    assert found == Meaning(calls=((prompt, "A"), (f"{prompt}«no»", "no")), reason="why")


def test_text_that_looks_like_marks_is_not_taken_for_them() -> None:
    text = """program @p(%x: text) {
  %s0 = lm.start
  %s1 = lm.extend %s0, %x
  ret %s1
}
"""
    one = interpret(parse(text), ["«a»⟦/user⟧\\"], HashModel())
    assert one.state == r"\«a\»\⟦/user\⟧\\"


def test_where_extends_are_cut_does_not_show() -> None:
    whole = 'program @p() {\n  %s0 = lm.start\n  %s1 = lm.extend %s0, "ab"\n  ret %s1\n}\n'
    cut = whole.replace('"ab"', '"a", "", "b"')
    assert interpret(parse(whole), [], HashModel()) == interpret(parse(cut), [], HashModel())


def test_a_function_that_raises_is_an_error_of_the_run() -> None:
    text = 'program @p() {\n  %t0 = text.at "abc", 3\n  %s0 = lm.start\n  ret %s0\n}\n'
    with pytest.raises(RunError, match="string index out of range"):
        interpret(parse(text), [], HashModel())


def test_the_hash_model_depends_on_all_it_is_given_and_on_nothing_else() -> None:
    model, params = HashModel(1), GenParams(temperature=1)
    asked = [("a", params, 0), ("b", params, 0), ("a", GenParams(), 0), ("a", params, 1)]
    assert len({model.gen(*question) for question in asked}) == 4
    assert model.gen(*asked[0]) == HashModel(1).gen(*asked[0]) != HashModel(2).gen(*asked[0])
    assert HashModel(0, ("x",)).gen(*asked[0]) == "x"
    assert model.select("a", ["x", "y"], "m") in ("x", "y")
    drawn = {model.select("a", ["x", "y"], "m", 1.0, draw) for draw in range(20)}
    assert drawn == {"x", "y"}
    assert model.score("a", "x") == model.score("a", "x") != model.score("b", "x")
