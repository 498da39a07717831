"""Chains of comparisons are written as a switch, and a switch is read as one."""

from __future__ import annotations

import pytest

import lmc
from lmc.errors import ParseError, VerifyError
from lmc.frontend.dsl import State
from lmc.ir import parse, verify
from lmc.ir import print as print_program
from lmc.ir.core import Const, Program
from lmc.ir.export import to_dot, to_json, to_networkx
from lmc.ir.ops import If, Pure
from lmc.ir.picture import picture_of
from lmc.ir.switches import switches_of

SWITCH = """program @p(%k: text, %x: text) {
  %s0 = lm.start
  flow.switch %k case "a" {
    %s1 = lm.extend %s0, "A"
    flow.switch %x case "inner" {
      ret %s1
    } case "other" {
      ret %s0
    } else {
      ret %s1
    }
  } case "b" {
    %b0 = text.eq %k, "b again"
    flow.if %b0 {
      ret %s0
    } else {
      %s2 = lm.extend %s0, %k
      ret %s2
    }
  } case "c \\"quoted\\"" {
    ret %s0
  } else {
    ret %s0
  }
}
"""


def numbered(text: str) -> str:
    """The form in which the printer counts the comparisons that a switch does not show."""
    return str(parse(text))


def test_a_switch_is_read_as_comparisons_and_ifs() -> None:
    program = parse(SWITCH)
    verify(program)
    ops = [type(node.op).__name__ for node in program.walk()]
    assert ops.count("If") == 6
    first = program.body.nodes[1].op
    assert first == Pure("text.eq", (program.params[0], Const("a")))
    assert isinstance(program.body.nodes[2].op, If)


def test_it_is_written_as_it_was_read() -> None:
    text = numbered(SWITCH)
    assert text.count("flow.switch") == 2
    assert text == SWITCH.replace("%b0", "%b4")  # the comparisons of both are counted
    assert numbered(text) == text


CHAIN = """program @p(%k: text) {{
  %s0 = lm.start
  {first} = text.eq %k, "a"
  flow.if {first}{after} {{
    ret %s0{result}
  }} else {{
    {between}%b1 = text.eq {subject}, "{second}"
    flow.if %b1 {{
      ret %s0
    }} else {{
      ret %s0
    }}
  }}
}}
"""
PLAIN = {
    "first": "%b0", "after": "", "result": "", "between": "", "subject": "%k", "second": "b",
}  # fmt: skip


def chain(**changed: str) -> str:
    return CHAIN.format(**{**PLAIN, **changed})


def test_a_chain_is_a_switch() -> None:
    assert 'flow.switch %k case "a" {' in numbered(chain())
    assert '} case "b" {' in numbered(chain())


@pytest.mark.parametrize(
    "changed",
    [
        {"result": ", %b0"},  # the comparison is used
        {"first": "%is_a"},  # it has a name
        {"after": " after %k"},  # something is waited for
        {"between": "%t0 = text.upper %k\n    ", "subject": "%t0"},
        {"between": "%s1 = lm.extend %s0, %k\n    "},
        {"second": "a"},  # would not read back: a case is given once
        {"subject": '"x"'},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_what_is_more_than_a_chain_is_no_switch(changed: dict[str, str]) -> None:
    text = chain(**changed)
    assert "flow.switch" not in numbered(text)
    assert numbered(numbered(text)) == numbered(text)
    assert numbered(text).count("flow.if") == 2


def test_one_case_is_an_if() -> None:
    text = numbered('program @p(%k: text) {\n %s0 = lm.start\n flow.switch %k case "a" {\n'
                    " ret %s0\n } else {\n ret %s0\n }\n}")  # fmt: skip
    assert "flow.if" in text
    assert "flow.switch" not in text


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ('flow.switch %k case "a" {\n ret %s0\n } case "a" {', 'the case "a" is given twice'),
        ('flow.switch %s0 case "a" {', "%s0 must be of type text, found state"),
        ('%b0 = flow.switch %k case "a" {', "flow.switch: defines no values"),
        ("flow.switch %k case 3 {", "expected a text, found `3`"),
        ('flow.switch %nope case "a" {', "`%nope` is not defined"),
    ],
)
def test_a_wrong_switch_is_an_error_with_its_place(head: str, problem: str) -> None:
    text = (
        f"program @p(%k: text) {{\n  %s0 = lm.start\n  {head}\n  ret %s0\n"
        "} else {\n  ret %s0\n}\n}"
    )
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert problem in str(caught.value)
    assert "^" in str(caught.value)


def test_a_violation_inside_is_shown_with_its_line() -> None:
    text = numbered(chain())
    program = parse(text)
    broken = Program(program.name, (), program.body)
    with pytest.raises(VerifyError) as caught:
        verify(broken)
    assert 'line 3: `flow.switch %?k case "a" {`: uses a value `k`' in str(caught.value)


def test_places_are_shown_for_each_case() -> None:
    program = parse(SWITCH, "p.lmir")
    shown = print_program(program, locations=True)
    assert 'flow.switch %k case "a" {  // p.lmir:3' in shown
    assert '} case "b" {  // p.lmir:12' in shown


def test_in_pictures_it_is_one_box_with_an_arrow_for_each_case() -> None:
    picture = picture_of(parse(SWITCH))
    switch, inner = (box for box in picture.boxes() if box.op == "flow.switch")
    ways = [arrow.label for arrow in picture.arrows if arrow.source == switch.id]
    assert ways == ['"a"', '"b"', '"c \\"quoted\\""', "else"]
    ids = [box.id for box in picture.boxes()]
    assert len(set(ids)) == len(ids)
    assert {arrow.target for arrow in picture.arrows} <= set(ids)
    labels = {box.id: box.label for box in picture.boxes()}
    first = [labels[a.target] for a in picture.arrows if a.source == switch.id]
    assert first[0] == '%s1 = lm.extend %s0, "A"'
    assert first[1].endswith('= text.eq %k, "b again"')
    assert [labels[a.target] for a in picture.arrows if a.source == inner.id][1] == "ret %s0"
    dot = to_dot(parse(SWITCH))
    assert "diamond" in dot
    assert to_json(parse(SWITCH))["body"]
    assert to_networkx(parse(SWITCH)).number_of_nodes() > 0


def test_a_select_that_is_matched_is_one_switch(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x + lmc.select("kind", ["bug", "wish", "praise"])
        match s["kind"]:
            case "bug":
                s += " Steps:" + lmc.gen("a", 4)
            case "wish":
                s += " Who:" + lmc.gen("a", 4)
            case _:
                s += " Thanks:" + lmc.gen("a", 4)

    compiled = p.compile(x="a")
    for program in (compiled.traced, compiled.program):
        text = str(program)
        assert text.count('flow.switch %kind case "bug" {') == 1
        assert "flow.if" not in text
        assert str(parse(text)) == text
        assert len(switches_of(program.body)) == 1
    for x in ("one", "two", "three"):
        assert p.run(x=x).variables == p.run(x=x, eager=True).variables
