"""Rules that no text can break, because the parser refuses it: graphs that passes could make."""

import pytest

from lmc.errors import Location, VerifyError
from lmc.ir import STATE, TEXT, Const, Node, Program, Region, Value, verify, violations
from lmc.ir.ops import Extend, If, Pure, Ret, Start

S, T, X = Value(STATE), Value(STATE), Value(TEXT, "x")
START = Node(Start(), (S,))
RET = Node(Ret(S))


def program(*nodes: Node, params: tuple[Value, ...] = ()) -> Program:
    return Program("p", params, Region(nodes))


@pytest.mark.parametrize(
    ("graph", "rule"),
    [
        (program(), "a region is empty"),
        (program(RET, START), "uses a value that is not defined before it"),
        (program(START, Node(Ret(S, ("a",), (X,)))), "uses a value `x` that is not defined"),
        (program(START, START, RET), "defines a value a second time"),
        (program(START, RET, params=(X, X)), "the parameter `x` is listed twice"),
        (program(Node(Start(), (X,)), RET), "gives state, but its results are text"),
        (program(Node(Start()), START, RET), "gives state, but its results are nothing"),
        (program(START, Node(Extend(S, (Const(1),)), (T,)), RET), "part 1 must be of type text"),
        (program(START, Node(Pure("text.nothing", ())), RET), "there is no function"),
        (program(START, Node(Ret(S, ("a", "b"), (Const(1),)))), "2 names for 1 values"),
        (
            program(
                START,
                Node(If(Const(True), Region((Node(Start(), (T,)), RET)), Region((Node(Ret(T)),)))),
            ),
            "uses a value that is defined in another region",
        ),
        (program(START, Node(If(Const(True), Region((RET,)), Region(())))), "a region is empty"),
    ],
)
def test_a_broken_graph_is_found_out(graph: Program, rule: str) -> None:
    found = violations(graph)
    assert rule in found[0]
    with pytest.raises(VerifyError):
        verify(graph)


def test_a_violation_shows_the_printed_line_and_the_users_line() -> None:
    node = Node(Extend(S, (X,)), (T,), Location("p.py", 12))
    (found,) = violations(program(START, node, RET))
    assert found == (
        "line 3: `%s1 = lm.extend %s0, %?x`: "
        "uses a value `x` that is not defined before it (p.py:12)"
    )


def test_draws_may_be_equal_on_different_ways_and_where_nothing_is_drawn() -> None:
    from lmc.ir import parse

    verify(
        parse("""program @p(%x: text) {
  %s0 = lm.start
  %s1, %a = lm.gen %s0 {name = "a"}
  %s2, %b = lm.gen %s0 {name = "b"}
  %b0 = text.eq %x, %a
  flow.if %b0 {
    %s3, %c = lm.gen %s0 {name = "c", temperature = 1.0, draw = 2}
    ret %s3
  } else {
    %s4, %d = lm.gen %s0 {name = "d", temperature = 1.0, draw = 2}
    ret %s4
  }
}
""")
    )
