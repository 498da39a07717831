import pytest

from lmc.errors import IRError, Location
from lmc.ir import Const, ProgramBuilder, RegionBuilder, verify
from lmc.ir.ops import Extend, Gen, If, Pure, Ret, Start

HERE = Location("p.py", 7)


def test_a_program_is_built_region_by_region() -> None:
    program = ProgramBuilder("p", source=HERE)
    x = program.param("x", path=("rows", 0))
    (s,) = program.body.add(Start(), HERE)
    s, answer = program.body.add(Gen(s, "answer"), HERE)
    (same,) = program.body.add(Pure("text.eq", (answer, x)), hints=("same",))
    then, orelse = program.body.inner(), program.body.inner()
    then.terminate(Ret(s, ("answer",), (answer,)))
    (t,) = orelse.add(Extend(s, (Const("no"),)))
    orelse.terminate(Ret(t))
    program.body.terminate(If(same, then.freeze(), orelse.freeze()))
    built = program.build()
    verify(built)
    assert built.paths == (("rows", 0),)
    assert built.body.nodes[1].at == HERE
    assert [v.hint for v in built.body.nodes[1].results] == ["", "answer"]
    assert str(built).splitlines()[3] == "  %same = text.eq %answer, %x"


def test_wrong_ops_are_refused_at_once_with_the_users_line() -> None:
    region = RegionBuilder()
    (s,) = region.add(Start())
    with pytest.raises(IRError, match=r"part 1 must be of type text, found int \(p.py:7\)"):
        region.add(Extend(s, (Const(3),)), HERE)
    assert len(region.nodes) == 1


def test_values_of_other_regions_are_refused() -> None:
    region = RegionBuilder()
    (s,) = region.add(Start())
    inner = region.inner()
    (t,) = inner.add(Extend(s, ()))
    with pytest.raises(IRError, match="not visible here"):
        region.add(Extend(t, ()))
    with pytest.raises(IRError, match="not visible here"):
        region.inner().terminate(Ret(t))


def test_terminators_end_a_region_and_nothing_else_does() -> None:
    region = RegionBuilder()
    (s,) = region.add(Start())
    with pytest.raises(IRError, match="does not end a region"):
        region.terminate(Start())
    with pytest.raises(IRError, match="give it to `terminate`"):
        region.add(Ret(s))
    with pytest.raises(IRError, match="has no end"):
        region.freeze()
    region.terminate(Ret(s))
    with pytest.raises(IRError, match="after the end"):
        region.add(Start())
    assert region.freeze().terminator.op == Ret(s)


def test_hints_are_one_per_result() -> None:
    with pytest.raises(IRError, match="gives 1 values, found 2 hints"):
        RegionBuilder().add(Start(), hints=("a", "b"))
