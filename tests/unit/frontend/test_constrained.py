"""Constraints in programs: every kind, compiled and eager, from plans and artifacts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest

import lmc
from lmc.codegen.artifact import Artifact, write_artifact
from lmc.errors import ConstraintError, UsageError
from lmc.frontend.dsl import State

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 0, "maximum": 9},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["n", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=4)
    alive: bool


@lmc.jit
def record(s: State, note: str) -> None:
    s += f"{note}: "
    s += lmc.gen("record", max_tokens=80, json_schema=SCHEMA)
    s += lmc.gen("person", max_tokens=60, json_schema=Person)
    s += lmc.gen("sum", max_tokens=30, ebnf='start: NUM "+" NUM\nNUM: /[0-9]{1,2}/')
    s += lmc.gen("mood", max_tokens=8, choices=["glad", "sad", "gladly"])


def test_every_kind_holds_in_both_ways_of_running(fake: lmc.Engine) -> None:
    for note in ("a", "b"):
        out = record.run(note=note)
        assert out.error is None, out.error
        assert out.variables == record.run(note=note, eager=True).variables
        found = json.loads(out["record"])
        assert list(found) == ["name", "tags", "age"]
        assert 0 <= found["age"] <= 130
        Person.model_validate_json(out["person"])
        assert all(part.isdigit() for part in out["sum"].split("+"))
        assert out["mood"] in ("glad", "sad", "gladly")


def test_jumping_forward_saves_steps(fake: lmc.Engine) -> None:
    out = record.run(note="a")
    meta: Any = out.meta("record")
    assert meta.forced_tokens > 0


@pytest.mark.parametrize("room", [0, 1, 5, 30])
def test_a_text_is_complete_if_there_is_room_for_the_shortest(room: int, fake: lmc.Engine) -> None:
    pattern = r'\{"note": "[a-z ]*", "more": "(x|[a-z]{12})"\}'
    shortest = lmc.constraints.compile("regex", pattern, fake.executor.target.vocabulary)
    limit = shortest.shortest_tokens() + room

    @lmc.jit
    def p(s: State, seed_word: str) -> None:
        s += seed_word
        s += lmc.gen("a", max_tokens=limit, regex=pattern, temperature=1.0)

    for out in p.run_batch([{"seed_word": f"{n}: "} for n in range(20)]):
        assert out.error is None
        assert out.meta("a").finish_reason == "constraint"  # type: ignore[union-attr]


FIELDS = [f"a_rather_long_key_{n}" for n in range(12)]
LONG: dict[str, Any] = {
    "type": "object", "properties": {name: {"type": "boolean"} for name in FIELDS},
    "required": FIELDS, "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("limit", [60, 150, 350])
@pytest.mark.parametrize(
    "asked",
    [
        {"json_schema": {"type": "array", "items": LONG}},
        {"json_schema": {"anyOf": [{"type": "null"}, LONG]}},
        {"choices": ["yes", "no", "no, " + "and so on " * 40]},
        {"regex": r"[a-z]{1,3}|\d{400}"},
    ],
    ids=["array", "or null", "choices", "regex"],
)
def test_nothing_is_begun_that_there_is_no_room_to_end(
    asked: dict[str, Any], limit: int, fake: lmc.Engine
) -> None:
    outs = fake.generate([f"{n}: " for n in range(12)], limit, temperature=1.0, **asked)
    for out in outs:
        assert out.error is None
        if "json_schema" in asked:
            json.loads(out.text)
        elif "choices" in asked:
            assert out.text in asked["choices"]
        else:
            assert re.fullmatch(asked["regex"], out.text)


def test_recursion_in_a_schema(fake: lmc.Engine) -> None:
    @lmc.jit
    def chain(s: State) -> None:
        s += "x"
        s += lmc.gen("chain", max_tokens=200, json_schema=TREE)

    out = chain.run()
    assert out.variables == chain.run(eager=True).variables
    if out.meta("chain").finish_reason != "length":  # type: ignore[union-attr]
        node = json.loads(out["chain"])
        while node is not None:
            assert 0 <= node["n"] <= 9
            node = node["next"]


ODD = {
    "type": "object",
    "properties": {"when": {"enum": ["x", "y"], "format": "stardate"}},
    "required": ["when"],
    "additionalProperties": False,
}


@lmc.jit
def blanks(s: State, note: str) -> None:
    s += note
    for whitespace in (None, "compact", "pretty", "flexible"):
        s += lmc.gen(f"in_{whitespace}", json_schema=ODD, whitespace=whitespace, waive="format")


def test_blanks_and_waived_keywords(tmp_path: Path, fake: lmc.Engine) -> None:
    out = blanks.run(note="a")
    assert out.error is None, out.error
    assert re.fullmatch(r'\{"when":"[xy]"\}', out["in_None"])
    assert re.fullmatch(r'\{"when":"[xy]"\}', out["in_compact"])
    assert re.fullmatch(r'\{\n  "when": "[xy]"\n\}', out["in_pretty"])
    assert json.loads(out["in_flexible"])["when"] in "xy"
    assert out.variables == blanks.run(note="a", eager=True).variables
    made = blanks.compile()
    assert len(made.plan.constraints) == 3  # None is compact
    write_artifact(tmp_path / "x.lmc", Artifact(made.plan, str(made.program)))
    assert lmc.load(tmp_path / "x.lmc").run(note="a").variables == out.variables


def test_the_graph_keeps_them(fake: lmc.Engine) -> None:
    from lmc import ir

    text = str(record.trace())
    assert 'choices = ["glad", "sad", "gladly"]' in text
    assert str(ir.parse(text)) == text
    text = str(blanks.trace())
    assert 'whitespace = "pretty", waive = ["format"]' in text
    assert str(ir.parse(text)) == text


def test_artifacts_carry_them(tmp_path: Path, fake: lmc.Engine) -> None:
    made = record.compile()
    write_artifact(tmp_path / "x.lmc", Artifact(made.plan, str(made.program)))
    out = lmc.load(tmp_path / "x.lmc").run(note="a")
    assert out.variables == record.run(note="a").variables


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"regex": "a", "choices": ["b"]}, UsageError, "regex and choices exclude each other"),
        ({"choices": []}, UsageError, "choices is empty"),
        ({"json_schema": 3}, UsageError, "json_schema is 3"),
        ({"json_schema": "{"}, ConstraintError, "."),
        ({"json_schema": {"type": "nothing"}}, ConstraintError, "type"),
        (
            {"json_schema": {"type": "string", "nonsense": 1, "format": "odd"}},
            ConstraintError,
            "format",
        ),
        ({"regex": "a", "whitespace": "compact"}, UsageError, "whitespace is given without json"),
        ({"waive": ["format"]}, UsageError, "waive is given without json_schema"),
        ({"json_schema": {}, "whitespace": "none"}, UsageError, "whitespace is 'none'"),
        ({"json_schema": {}, "waive": [1]}, UsageError, "waive is"),
        ({"ebnf": "start: ("}, ConstraintError, "."),
        ({"regex": "("}, ConstraintError, "."),
        ({"regex": "a(?=b)c"}, ConstraintError, "."),
    ],
)
def test_wrong_ones_are_refused_with_the_line(
    options: dict[str, Any], kind: type[Exception], match: str, fake: lmc.Engine
) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += lmc.gen("a", **options)

    with pytest.raises(kind, match=match) as caught:
        p.run()
    assert "test_constrained.py" in str(caught.value)
    eager = p.run(eager=True)
    assert eager.error is not None
    assert str(eager.error).splitlines()[0] == str(caught.value).splitlines()[0]


def test_parts_that_are_texts_of_a_row(fake: lmc.Engine) -> None:
    """A schema or a bias with a text that is not known when the program is traced."""

    @lmc.jit
    def fill(s: State, schema: dict[str, Any], word: str) -> None:
        s += "x"
        s += lmc.gen("a", max_tokens=40, json_schema=schema)
        s += lmc.gen("b", max_tokens=9, json_schema={"anyOf": [{"enum": [word]}, {"const": "y"}]})

    rows = [{"schema": {"enum": [[w]]}, "word": f"{w}{w}"} for w in ("tea", "rain")]
    outs = fill.run_batch(rows)
    assert [json.loads(out["a"]) for out in outs] == [["tea"], ["rain"]]
    assert {json.loads(out["b"]) for out in outs} <= {"teatea", "rainrain", "y"}
    assert [out.variables for out in fill.run_batch(rows, eager=True)] == [
        out.variables for out in outs
    ]
    assert "json_schema of a gen is not known yet" in str(
        lmc.compile(fill, **rows[0]).program  # the graph ends there, and says why
    )


def test_a_schema_that_holds_itself_as_an_object(fake: lmc.Engine) -> None:
    knot: dict[str, Any] = {"type": "object"}
    knot["properties"] = {"a": knot}

    @lmc.jit
    def tied(s: State) -> None:
        s += lmc.gen("a", json_schema=knot)

    with pytest.raises(UsageError, match="cannot be written as JSON"):
        tied.run()
    assert "cannot be written as JSON" in str(tied.run(eager=True).error)


@pytest.mark.parametrize(
    ("choices", "problem"),
    [("yes", "choices is 'yes'"), (["yes", 7], "a choice is 7"), (["yes", None], "a choice is No")],
)
def test_what_is_no_list_of_texts_is_refused_with_its_value(choices: Any, problem: str) -> None:
    with pytest.raises(ConstraintError, match=problem) as caught:
        lmc.constraints.automaton_of("choices", choices)
    assert "a list of texts" in str(caught.value.hint)
