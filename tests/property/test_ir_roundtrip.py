"""The textual form: what is printed reads back, and reading changes nothing."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.ir import Const, Program, Region, Value, parse, verify
from lmc.ir import print as print_program
from lmc.ir.attributes import spell
from lmc.ir.ops import If
from tests.property.ir_programs import any_texts, programs


def same(a: Program, b: Program) -> bool:
    """Whether two programs are equal up to the identity of their values."""
    new: dict[Value, Value] = {}

    def match(left: tuple[Value, ...], right: tuple[Value, ...]) -> bool:
        new.update(zip(left, right, strict=False))
        return [v.type for v in left] == [v.type for v in right]

    def regions(left: Region, right: Region) -> bool:
        if len(left.nodes) != len(right.nodes):
            return False
        for x, y in zip(left.nodes, right.nodes, strict=True):
            if isinstance(x.op, If) and isinstance(y.op, If):
                inner = zip(x.op.regions(), y.op.regions(), strict=True)
                condition = x.op.condition
                if isinstance(condition, Value):
                    condition = new[condition]
                if condition != y.op.condition or not all(regions(*pair) for pair in inner):
                    return False
            elif x.op.substitute(new) != y.op or not match(x.results, y.results):
                return False
        return True

    header = (a.name, a.static, a.paths, a.source) == (b.name, b.static, b.paths, b.source)
    return header and match(a.params, b.params) and regions(a.body, b.body)


@settings(deadline=None)
@given(programs(texts=any_texts, hints=any_texts))
def test_what_the_builder_builds_is_valid_and_reads_back(program: Program) -> None:
    verify(program)
    text = str(program)
    again = parse(text)
    verify(again)
    assert same(program, again)
    assert str(again) == text
    assert all(line.isprintable() for line in text.split("\n"))


@settings(deadline=None)
@given(programs())
def test_comments_and_spaces_are_free(program: Program) -> None:
    text = str(program)
    loose = "// head\n\n" + re.sub(r"^( *)(.*)$", r"\t\1\2   // tail \2", text, flags=re.MULTILINE)
    assert str(parse(loose)) == text
    assert str(parse(text.replace("\n", "\r\n"))) == text
    assert str(parse(print_program(parse(text, "p.lmir"), locations=True))) == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(json_values)
def test_every_json_value_reads_back_as_an_attribute_would(value: object) -> None:
    text = f"program @p() {{paths = [[{spell(value)}]]}} {{\n  %s0 = lm.start\n  ret %s0\n}}\n"
    assert spell(parse(text).paths[0][0]) == spell(value)
    assert "\n" not in spell(value)


@settings(deadline=None)
@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none()))
def test_literals_read_back_as_the_same_python_type(value: str | float | bool | None) -> None:
    text = f"program @p() {{\n  %s0 = lm.start\n  ret %s0, {{x = {spell(value)}}}\n}}\n"
    (read,) = parse(text).body.terminator.op.operands()[1:2]
    assert read == Const(value)
    assert type(read.value) is type(value)  # type: ignore[union-attr]
