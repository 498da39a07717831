"""Plans out of files: whatever they hold, they are refused by name or run without a fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmc
from lmc.codegen.artifact import Artifact
from lmc.errors import InternalError, LmcError, PlanError
from lmc.frontend.dsl import State
from lmc.plan import Plan
from lmc.plan_check import opaque_values


@lmc.jit
def sample(s: State, q: str, tags: list[str], n: int = 2) -> object:
    with s.user():
        s += f"{q.upper()} {tags[0]}"
    with s.assistant():
        s += lmc.gen("a", max_tokens=6, regex="[a-z]{2,6}", temperature=0.5)
    forks = s.fork(2)
    forks += lmc.gen("b", max_tokens=3)
    forks.join()
    if s["a"] == "no":
        return None
    s += lmc.select("c", ["x", "y"])
    s += lmc.score("d", q)
    return {"tags": tags, "a": (n, s["b"][0])}


GOOD: dict[str, Any] = sample.compile(q="why", tags=["t", "u"]).plan.to_json()


def instr(plan: dict[str, Any], op: str) -> dict[str, Any]:
    todo = [plan["body"]]
    while todo:
        for held in todo.pop()["instrs"]:
            if held["op"] == op:
                return held  # type: ignore[no-any-return]
            if held["op"] == "if":
                todo += [held["then"], held["orelse"]]
    raise AssertionError(op)


def on(op: str, /, **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plan: instr(plan, op).update(changes)


def top(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plan: plan.update(changes)


def without(op: str, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda plan: instr(plan, op).pop(name)


def last_gone(plan: dict[str, Any]) -> None:
    plan["body"]["instrs"].pop()


def branch_empty(plan: dict[str, Any]) -> None:
    instr(plan, "if")["then"]["instrs"].clear()


def end_twice(plan: dict[str, Any]) -> None:
    plan["body"]["instrs"].append(copy.deepcopy(instr(plan, "ret")))


def backwards(plan: dict[str, Any]) -> None:
    held = plan["body"]["instrs"]
    held[0], held[1] = held[1], held[0]


def static(tree: object) -> Callable[[dict[str, Any]], None]:
    return top(static=json.dumps(tree))


def test_what_is_compiled_is_whole() -> None:
    assert Plan.from_json(json.loads(json.dumps(GOOD))).to_json() == GOOD
    assert {"gen", "select", "score", "if", "pack", "compute", "list"} <= {
        held["op"] for held in _instrs(GOOD["body"])
    }


def _instrs(block: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for held in block["instrs"]:
        found.append(held)
        if held["op"] == "if":
            found += _instrs(held["then"]) + _instrs(held["orelse"])
    return found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (top(registers=-1), "there is no register 0, there are -1"),
        (top(registers=3), "there is no register 3, there are 3"),
        (top(registers=10**12), "it has 1000000000000 registers and sets"),
        (top(registers=True), "expected int, found True"),
        (on("extend", state={"r": 999}), "extend reads register 999, which nothing before it sets"),
        (on("extend", state={"r": -1}), "extend reads register -1"),
        (on("extend", state={"r": 1.5}), "expected int, found 1.5"),
        (on("extend", state={"r": 0}), "extend: the state must be of type state, found text"),
        (on("extend", parts=[{"c": 3}]), "extend: part 1 must be of type text, found int"),
        (on("extend", parts=[{"c": ["x"]}]), "is none of str, int, float, bool"),
        (on("extend", parts=[{}]), "{} is no operand"),
        (on("extend", parts=None), "expected list, found None"),
        (on("extend", into={"r": 0}), "register 0 is set twice"),
        (backwards, "which nothing before it sets"),
        (last_gone, "a block does not end in ret, resume or if"),
        (branch_empty, "a block does not end in ret, resume or if"),
        (end_twice, "instructions follow if, which ends a block"),
        (on("compute", fn="os.system"), "compute: there is no function 'os.system'"),
        (on("compute", args=[]), "takes (text"),
        (on("compute", args=[{"c": 1}]), "argument 1 of text.upper must be of type text"),
        (on("select", method="loudest"), "select() has no method 'loudest'"),
        (on("select", choices=[]), "select: there are no choices"),
        (on("select", draw=-1), "select: draw is -1"),
        (on("select", temperature=-1.0), "temperature is -1.0"),
        (on("score", text={"c": 3}), "score: the text must be of type text, found int"),
        (on("gen", constraint=7), "gen: there is no constraint 7, there are 1"),
        (on("gen", constraint=-1), "gen: there is no constraint -1"),
        (on("gen", constraint=None), "gen: its constraint has no automaton"),
        (on("gen", stops=[7]), "gen: there is no constraint 7, there are 1"),
        (on("gen", stops=[0]), "gen: its stop patterns have no automata"),
        (on("gen", params={"max_tokens": -1}), "max_tokens is -1"),
        (on("gen", params={"temperature": "hot"}), "expected float, found 'hot'"),
        (on("gen", params={"temperature": 10**400}), "a number is too large"),
        (on("gen", params={"wings": 2}), "genparams has an unknown 'wings'"),
        (without("gen", "params"), "gen has no 'params'"),
        (on("gen", nonsense=1), "gen has an unknown 'nonsense'"),
        (on("gen", at={"file": "p.py", "line": "3"}), "expected int, found '3'"),
        (on("role", edge="middle"), "role: edge must be"),
        (on("if", condition={"r": 0}), "if: the condition must be of type bool, found text"),
        (on("ret", names=["a"], values=[]), "ret: 1 names for 0 values"),
        (on("ret", value={"r": 4}), "is a state, which no"),
        (on("pack", template="["), "pack: its template cannot be read"),
        (on("pack", template='{"$": 99}'), "pack: there is no item 99"),
        (on("pack", template='{"$": -1}'), "pack: there is no item -1"),
        (on("pack", template='{"else": 1}'), "which stands for nothing"),
        (on("pack", template='{"dict": [[[], 1]]}'), "[] cannot be a key"),
        (on("pack", template='"text"'), "which stands for nothing"),
        (on("start", op="explode"), "there is no instruction 'explode'"),
        (on("start", op=["start"]), "there is no instruction ['start']"),
        (top(static="{}"), "its arguments cannot be read"),
        (top(static="{"), "its arguments cannot be read"),
        (top(static="[]"), "its arguments cannot be read"),
        (static({"dict": [["q"]]}), "its arguments cannot be read"),
        (static({"dict": [[1, 2]]}), "the names of its arguments are no texts"),
        (static({"dict": [["q", {"$": 1}]]}), "are not numbered in order"),
        (static({"dict": [["q", {"$": "0"}]]}), "its arguments cannot be read"),
        (static({"dict": [["q", "a text"]]}), "its arguments cannot be read"),
        (static({"dict": [["q", {"$": 0}]]}), "its parameters (q, tags.0, tags.1) are not"),
        (top(params=[]), "its parameters () are not the texts of its arguments (q, tags.0"),
        (top(params=GOOD["params"][::-1]), "its parameters (tags.1, tags.0, q) are not"),
        (top(constraints=[{}]), "constraint 0"),
        (top(constraints=[None]), "expected dict, found None"),
        (top(constraints=["x"]), "expected dict, found 'x'"),
        (
            top(constraints=[{"version": 1, "kind": "regular", "nodes": [["chars", "AAAA"]]}]),
            "constraint 0",
        ),
        (top(name=3), "expected str, found 3"),
        (top(source="p.py"), "expected dict, found 'p.py'"),
    ],
)
def test_what_breaks_a_rule_is_named(change: Callable[[dict[str, Any]], None], says: str) -> None:
    data = copy.deepcopy(GOOD)
    change(data)
    assert data != GOOD
    with pytest.raises(PlanError) as caught:
        Plan.from_json(data)
    assert says in caught.value.problem


def test_what_is_nested_too_deeply_is_refused() -> None:
    block: dict[str, Any] = {"instrs": []}
    for _ in range(5000):
        block = {"instrs": [{"op": "if", "condition": {"c": True}, "then": block, "orelse": block}]}
    with pytest.raises(PlanError, match="nested too deeply"):
        Plan.from_json({**GOOD, "body": block})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [path, *(p for key, item in items for p in places(item, (*path, key)))]


PLACES = places({k: v for k, v in GOOD.items() if k != "version"})[1:]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([0.5, "", "x", "end", "text.length", "list.get", "{}", [], {}, ["x"]]),
    st.integers(0, 40).map(lambda n: {"r": n}),
    st.sampled_from([{"c": None}, {"c": "text"}, {"c": 1}, {"c": True}]),
    st.sampled_from(PLACES).map(lambda path: at(GOOD, path)),
)


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


@pytest.fixture(scope="module")
def engine() -> Any:
    with lmc.Engine("fake", kv_tokens=4096) as engine:
        yield engine


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(PLACES), odd=ODD, gone=st.booleans())
def test_a_plan_with_one_odd_place_is_refused_or_runs(
    engine: lmc.Engine, path: tuple[Any, ...], odd: Any, gone: bool
) -> None:
    data = copy.deepcopy(GOOD)
    holder = at(data, path[:-1])
    if gone:
        del holder[path[-1]]
    else:
        holder[path[-1]] = copy.deepcopy(odd)
    try:
        plan = Plan.from_json(data)
    except PlanError:
        return
    row = {"q": "why", "tags": ["t", "u"], "n": 2}
    try:
        error: LmcError | None = (
            lmc.api.Loaded(Artifact(plan, "")).run(engine=engine, deadline=20, **row).error
        )
    except LmcError as raised:
        error = raised
    assert not isinstance(error, InternalError), error
    assert "deadline" not in str(error)


def test_opaque_values_are_found_by_the_notation_not_by_their_name() -> None:
    def named(tree: object) -> list[str]:
        return opaque_values(json.dumps({"dict": [["opaque", tree]]}))

    assert named(1) == named({"$": 0}) == named([{"dict": [["opaque", {"$": 0}]]}]) == []
    assert named({"opaque": "set 0"}) == ["set 0"]
    deep = {"tuple": [1, {"dict": [["opaque", {"opaque": "set 0"}]]}, {"opaque": "set 1"}]}
    assert named([deep]) == ["set 0", "set 1"]
