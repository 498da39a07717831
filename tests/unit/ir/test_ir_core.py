import math
import subprocess
import sys

import pytest

from lmc.errors import IRError, Location
from lmc.ir import BOOL, TEXT, Const, Node, Program, Region, Value, list_of, parse, verify
from lmc.ir import print as print_program
from lmc.ir.ops import OPS, Gen, If, MakeList, Ret, Start, op_class, op_names
from lmc.ir.types import parse_type
from lmc.params import GenParams


def test_literals_are_equal_only_within_one_type() -> None:
    assert len({Const(1), Const(True), Const(1.0), Const("1")}) == 4
    assert Const(0.0) != Const(-0.0)
    assert Const(math.nan) == Const(math.nan)
    assert Const(None) == Const(None)


def test_values_are_compared_by_identity() -> None:
    assert Value(TEXT, "a") != Value(TEXT, "a")


@pytest.mark.parametrize("kind", [BOOL, list_of(list_of(TEXT))], ids=str)
def test_types_read_back(kind: object) -> None:
    assert parse_type(str(kind)) == kind


@pytest.mark.parametrize("text", ["list", "list<>", "list<text", "Text"])
def test_unknown_types_are_refused(text: str) -> None:
    with pytest.raises(IRError, match="there is no type"):
        parse_type(text)


def test_substitution_reaches_inner_regions_and_keeps_what_it_does_not_touch() -> None:
    old, new, (s,) = Value(TEXT), Value(TEXT), [Value(Start().result_types()[0])]
    same = Region((Node(Ret(s)),))
    op = If(Const(True), Region((Node(Ret(s, ("a",), (old,))),)), same)
    changed = op.substitute({old: new})
    assert isinstance(changed.then.nodes[0].op, Ret)
    assert changed.then.nodes[0].op.values == (new,)
    assert changed.orelse is same
    assert op.substitute({new: old}) is op


def test_attributes_leave_defaults_out() -> None:
    (s,) = [Value(Start().result_types()[0])]
    gen = Gen(s, "a", GenParams(stop=("\n",), temperature=0.5), 3)
    assert gen.attributes() == {"name": "a", "stop": ["\n"], "temperature": 0.5, "draw": 3}
    assert Gen(s, "a").attributes() == {"name": "a"}


def test_lists_of_one_type_are_typed_by_it() -> None:
    assert str(MakeList((Const("a"), Const("b"))).result_types()[0]) == "list<text>"
    assert str(MakeList((Const("a"), Const(1))).result_types()[0]) == "list<value>"
    assert str(MakeList(()).result_types()[0]) == "list<text>"


def test_parameters_are_found_by_their_hint_unless_a_path_is_given() -> None:
    body = parse("program @p() {\n  %s0 = lm.start\n  ret %s0\n}\n").body
    params = (Value(TEXT, "x"), Value(TEXT, "y"))
    assert Program("p", params, body).paths == (("x",), ("y",))
    text = str(Program("p", params, body, paths=(("x",), ("rows", 0))))
    assert 'paths = [["x"], ["rows", 0]]' in text
    assert parse(text).paths == (("x",), ("rows", 0))


def test_names_come_from_hints_and_stay_apart_from_numbered_ones() -> None:
    hints = ["x", "x", "t0", "two words", "", "1st", "é", "x.1"]
    params = tuple(Value(TEXT, hint) for hint in hints)
    (s,) = [Value(Start().result_types()[0], "")]
    body = Region((Node(Start(), (s,)), Node(Ret(s))))
    header = str(Program("p", params, body)).partition(" {")[0]
    names = ["%x", "%x.1", "%t0_", "%two_words", "%t0", "%_1st", "%é", "%x_1"]
    assert header == f"program @p({', '.join(f'{n}: text' for n in names)})"


def test_locations_are_printed_as_comments() -> None:
    (s,) = [Value(Start().result_types()[0])]
    nodes = (Node(Start(), (s,), Location("p.py", 3)), Node(Ret(s)))
    program = Program("p", (), Region(nodes))
    assert "lm.start  // p.py:3\n" in print_program(program, locations=True)
    assert "//" not in str(program)
    assert parse(str(program), "p.lmir").body.nodes[1].at == Location("p.lmir", 3)


def test_strange_program_names_are_quoted() -> None:
    program = parse('program @"<lambda> \\"x\\"" () {\n  %s0 = lm.start\n  ret %s0\n}\n')
    assert program.name == '<lambda> "x"'
    assert parse(str(program)).name == program.name


def test_every_op_is_found_by_its_name() -> None:
    assert {op_class(name) for name in op_names()} == set(OPS)
    assert op_class("lm.nothing") is None


def test_deeply_nested_programs_print_and_read_back() -> None:
    opening = "flow.if true {\n  ret %s0\n} else {\n" * 80
    text = "program @p() {\n%s0 = lm.start\n" + opening + "ret %s0\n" + "}\n" * 81
    program = parse(text)
    verify(program)
    assert str(parse(str(program))) == str(program)
    assert sum(1 for _ in program.walk()) == 1 + 2 * 80 + 1


def test_importing_the_ir_and_the_passes_loads_nothing_heavy() -> None:
    code = (
        "import sys, lmc.ir, lmc.passes, lmc.passes.manager\n"
        "heavy = {'lark', 'networkx', 'numpy', 'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
