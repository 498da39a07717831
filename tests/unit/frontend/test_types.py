"""Types of gens: what is generated, how it is read back, in programs and in results."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any, Literal, Optional, Union

import pydantic
import pytest

import lmc
from lmc.errors import RunError, UsageError
from lmc.frontend.dsl import State
from lmc.typed import gives, lookup, plain_value, spec_of, typed_value


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    NONE = None


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(pattern="^[A-Z][a-z]{1,5}$")
    colour: Colour
    tags: list[Literal["a", "b"]] = pydantic.Field(max_length=2)


def both(program: lmc.Program, **arguments: object) -> lmc.Result:
    """The result of the compiled program, which must be that of the eager one."""
    eager = program.run(eager=True, **arguments)
    for level in (0, 2):
        out = program.run(options=lmc.Options(level=level), **arguments)
        assert (str(out.error), out.value) == (str(eager.error), eager.value)
        if eager.error is None:
            assert out.variables == eager.variables
            assert out.to_json() == eager.to_json()
    return out


TYPES: list[tuple[Any, type]] = [
    (int, int),
    (float, float),
    (bool, bool),
    (str, str),
    (Literal["yes", "no"], str),
    (Literal[1, 2, None], object),
    (Colour, Colour),
    (Level, Level),
    (Odd, Odd),
    (Point, Point),
    (Person, Person),
    (list[bool], list),
    (Optional[Level], object),  # noqa: UP045 - both ways to write it
    (Union[int, Literal["none"]], object),  # noqa: UP007 - both ways to write it
    (bool | None, object),
    (dict[Literal["k"], int], dict),
    (tuple[bool, int], tuple),
    (type(None), type(None)),
]


@pytest.mark.parametrize(("wanted", "kind"), TYPES, ids=lambda t: str(t))
def test_values_are_of_the_type(wanted: Any, kind: type, fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", max_tokens=90, temperature=0.8, type=wanted)

    found = 0
    for x in ("a", "b", "c", "d"):
        out = both(p, x=x)
        assert out.error is None
        if out.meta("v").finish_reason == "length":  # type: ignore[union-attr]
            continue
        found += 1
        assert isinstance(out["v"], kind)
        assert type(out["v"]) is type(out.variables["v"])
        assert json.loads(json.dumps(out.to_json()))["variables"]["v"] is not ...
    assert found


def test_a_gen_of_a_type_can_be_one_of_a_template(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x + lmc.gen("n", type=int, max_tokens=9) + ", " + lmc.gen("b", type=bool) + "."
        return [s["n"] + 1 > 0, s["b"]]

    out = both(p, x="a")
    if out.error is None:
        assert type(out["n"]) is int
        assert type(out["b"]) is bool


def test_numbers_and_truth_values_compile(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        s += lmc.gen("n", type=int, max_tokens=30)
        s += lmc.gen("f", type=float, max_tokens=40)
        s += lmc.gen("b", type=bool)
        s += f" {s['n'] + 1} {s['f']}"
        if s["b"] and s["n"] > 10:
            s += " large"
        return [s["n"], s["f"], s["b"], not s["b"]]

    text = str(p.trace())
    assert "flow.resume" not in text
    assert "value.typed" in text
    for x in ("a", "b", "c", "d", "e"):
        both(p, x=x)


def test_a_way_for_each_of_few_values(fake: lmc.Engine) -> None:
    names = {Colour.RED: "rouge", Colour.BLUE: "bleu"}

    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        s += lmc.gen("c", type=Colour, temperature=1.0)
        s += lmc.gen("l", type=Level, temperature=1.0)
        s += lmc.gen("w", type=Literal["yes", "no"], temperature=1.0)
        s += f" {names[s['c']]} {s['c'].name} {s['l'] + 1} {s['w'].upper()}"
        return [{"yes": 1, "no": 0}[s["w"]], int(s["l"])]

    assert "flow.resume" not in str(p.trace())
    for x in "abc":
        both(p, x=x)
    met = [out["c"] for out in p.run_batch([{"x": f"{n}"} for n in range(30)])]
    assert set(met) == {Colour.RED, Colour.BLUE}


def test_more_than_few_values_go_on_eagerly(fake: lmc.Engine) -> None:
    many = enum.Enum("many", [f"m{n}" for n in range(40)])  # type: ignore[misc]

    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        s += lmc.gen("m", type=many)
        return s["m"].name

    assert "flow.resume" in str(p.trace())
    assert both(p, x="a").value.startswith("m")


def test_objects_are_formatted_compared_and_else_go_on_eagerly(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        s += lmc.gen("p", type=Person, max_tokens=90)
        s += lmc.gen("l", type=list[bool], max_tokens=90)
        s += f"[{s['p']}]"
        if s["l"]:
            s += f"{s['l'][0]}"
        return s["p"].colour.value

    assert "value.typed" in str(p.trace())
    assert "flow.resume" in str(p.trace())
    for x in ("a", "b", "c"):
        both(p, x=x)


@pytest.mark.parametrize("wanted", [int, Colour, Point, list[int]])
def test_what_ran_out_of_tokens_raises_where_it_is_read(wanted: Any, fake: lmc.Engine) -> None:
    @lmc.jit
    def unread(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", max_tokens=0, type=wanted)

    @lmc.jit
    def read(s: State, x: str) -> Any:
        s += x
        s += lmc.gen("v", max_tokens=0, type=wanted)
        before = s["v"]
        s += "never"
        return before

    out = both(unread, x="a")
    assert out.error is None
    assert out.variables == {"v": ""}
    assert out.to_json()["variables"] == {"v": ""}
    with pytest.raises(RunError, match=r"the variable .v. is no complete .*: its tokens ran out"):
        out["v"]

    @lmc.jit
    def forgotten(s: State, x: str) -> str:
        s += x
        s += lmc.gen("v", max_tokens=0, type=wanted)
        s["v"]
        return "fine"

    assert "its tokens ran out" in str(both(forgotten, x="a").error)
    failed = both(read, x="a")
    assert "its tokens ran out at ''" in str(failed.error)
    assert "test_types.py" in str(failed.error)
    rows = read.run_batch([{"x": "a"}])
    assert rows[0].error is not None


def test_a_stop_of_ones_own_may_spoil_a_value(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        s += lmc.gen("b", type=bool, stop=["r", "a"])
        return s["b"]

    assert "the variable 'b' is no bool: " in str(both(p, x="a").error)


def test_samples_joins_and_votes_are_typed(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        s += lmc.gen("n", n=3, type=bool, temperature=1.0)
        first = list(s["n"])
        forks = s.fork(3)
        forks += lmc.gen("c", type=Colour, temperature=1.0)
        forks.join()
        more = s.fork(3)
        more += lmc.gen("k", type=Level, temperature=1.0)
        more.vote("k")
        return [first, [c.name for c in s["c"]], s["k"].name]

    for x in ("a", "b"):
        out = both(p, x=x)
        assert out.error is None
        assert all(type(one) is bool for one in out["n"])
        assert all(type(one) is Colour for one in out["c"])
        assert type(out["k"]) is Level
        assert set(out.to_json()["variables"]["c"]) <= {"red", "blue"}


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"type": int, "regex": "a"}, UsageError, "type and regex exclude each other"),
        ({"type": Colour, "choices": ["a"]}, UsageError, "type and choices exclude"),
        ({"type": object()}, UsageError, "whose values cannot be written and read back"),
        ({"type": 3}, UsageError, "whose values cannot be written and read back"),
        ({"type": [int]}, UsageError, "not hashable"),
        ({"type": Literal[1, "1"]}, UsageError, "two of its values are written '1'"),
        ({"type": enum.Enum("Empty", [])}, UsageError, "it has no members"),
        ({"type": State}, UsageError, "whose values cannot be written"),
    ],
)
def test_wrong_types_are_refused_with_the_line(
    options: dict[str, Any], kind: Any, match: str, fake: lmc.Engine
) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", **options)

    with pytest.raises(kind, match=match) as caught:
        p.run(x="a")
    assert "test_types.py" in str(caught.value.where)
    assert str(p.run(x="a", eager=True).error) == str(caught.value)


def test_classes_of_one_name_are_kept_apart() -> None:
    def made(*members: str) -> Any:
        return enum.Enum("Same", [(m, "x") for m in members])

    one, two = made("first"), made("second")
    specs = [spec_of(one), spec_of(two)]
    assert spec_of(one) is specs[0]
    assert [s and s.read("x").name for s in specs] == ["first", "second"]


def test_types_have_texts() -> None:
    for wanted, _ in TYPES:
        if (spec := spec_of(wanted)) is not None:
            assert gives(spec.text)
            assert lookup(spec.text) is not None
    assert gives("nothing") is None
    # as in another process, which has not seen the classes
    assert typed_value('literal:["p", 7]', "7", "eos", "x") == 7
    assert typed_value('enum:Gone:["u"]', "u", "eos", "x") == "u"
    assert typed_value("object:Gone", '{"a": 1}', "eos", "x") == {"a": 1}
    assert plain_value("int", "x") == "x"


def test_artifacts_keep_types(tmp_path: Path, fake: lmc.Engine) -> None:
    from lmc.codegen.artifact import Artifact, write_artifact

    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        s += lmc.gen("n", type=bool)
        s += lmc.gen("c", type=Colour)
        return s["n"]

    made = p.compile()
    write_artifact(tmp_path / "p.lmc", Artifact(made.plan, str(made.program)))
    out, expected = lmc.load(tmp_path / "p.lmc").run(x="a"), p.run(x="a")
    assert (out.variables, out.value) == (expected.variables, expected.value)
