"""What programs become as graphs, and what ends a graph."""

from __future__ import annotations

import array
import enum
import json
import re
from typing import Any

import pytest

import lmc
from lmc.commands.report import advice
from lmc.errors import TraceError, UsageError
from lmc.frontend import tracer
from lmc.frontend.dsl import State
from lmc.ir.ops import Resume


def graph(program: lmc.Program, **arguments: object) -> str:
    header, _, body = str(program.trace(**arguments)).partition("\n")
    return header.partition(")")[0] + ") {\n" + body


def resumes(text: str) -> list[str]:
    return re.findall(r'reason = "((?:[^"\\]|\\.)*)"', text)


@lmc.jit
def greet(s: State, name: str) -> None:
    s += f"Hello, {name}! " + name.upper()
    s += lmc.gen("a", max_tokens=4)


def test_texts_are_parameters_and_methods_are_recorded() -> None:
    assert graph(greet) == (
        "program @greet(%name: text) {\n"
        "  %s0 = lm.start\n"
        '  %t0 = text.concat "Hello, ", %name, "! "\n'
        "  %t1 = text.upper %name\n"
        "  %t2 = text.concat %t0, %t1\n"
        "  %s1 = lm.extend %s0, %t2\n"
        '  %s2, %a = lm.gen %s1 {name = "a", max_tokens = 4}\n'
        "  ret %s2, {a = %a}\n"
        "}\n"
    )


def test_both_ways_of_a_branch_are_in_the_graph_and_share_their_beginning() -> None:
    @lmc.jit
    def p(s: State, x: str) -> str:
        s += lmc.gen("a")
        if s["a"] == "yes" and x:
            s += "both"
            return "early"
        s += "neither"
        return s["a"]

    text = graph(p)
    assert text.count("lm.gen") == 1
    assert text.count("flow.if") == 2
    assert text.count("ret ") == 3
    assert not resumes(text)


def test_loops_over_known_values_unroll() -> None:
    @lmc.jit
    def p(s: State, xs: list[str], n: int) -> None:
        for i, x in enumerate(xs):
            s += f"{i}: {x}" * 1 if n < 0 else x
        for _ in range(n):
            s += lmc.gen("a")

    text = graph(p, xs=["u", "v"], n=3)
    assert text.startswith("program @p(%xs_0: text, %xs_1: text)")
    assert text.count("lm.gen") == 3


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda t: int(t), "int()"),
        (lambda t: float(t), "float()"),
        (lambda t: {"a": 1}.get(t), "hash"),
        (lambda t: list(t), "characters"),
        (lambda t: re.match("a", t), "needs the value itself is given a str"),
        (lambda t: json.loads(t), "library"),
        (lambda t: "abc".startswith(t), "needs the value itself is given a str"),
        (lambda t: list(map(str.upper, [t])), "needs the value itself is given a str"),
        (lambda t: f"{t:>10}", "characters"),
        (lambda t: t.split()[:2], "slice"),
        (lambda t: t.encode(), "encode"),
        (lambda t: t % 1, "%"),
        (lambda t: "x" in t.split(), "in"),
    ],
)
def test_a_use_that_needs_the_value_ends_the_graph(use: object, reason: str) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += lmc.gen("a")
        use(s["a"])  # type: ignore[operator]
        s += lmc.gen("b")

    text = graph(p)
    assert [reason in found for found in resumes(text)] == [True] * len(resumes(text))
    assert resumes(text)
    assert '"b"' not in text


def test_a_library_is_told_with_the_line_that_calls_it_and_works_as_a_tool() -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        return json.loads(x)

    @lmc.jit
    def called(s: State, x: str) -> Any:
        return lmc.call(json.loads, x)

    (end,) = [node for node in p.trace().body.nodes if isinstance(node.op, Resume)]
    assert str(end.at).endswith(f"test_tracer.py:{p.function.__code__.co_firstlineno + 2}")
    assert "lmc.call(json.loads, text)" in advice(resumes(graph(p))[0])
    assert not resumes(graph(called))


def test_helpers_are_traced_like_the_program_itself() -> None:
    def helper(text: str) -> str:
        return f"<{text}>"

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += lmc.gen("a")
        shown = helper(s["a"])
        s += shown
        s += "same" if shown == "<x>" else "other"

    text = graph(p)
    assert not resumes(text)
    assert "same" in text
    assert "other" in text


def test_python_syntax_on_unknown_texts_is_recorded() -> None:
    @lmc.jit
    def p(s: State, x: str) -> object:
        s += ", ".join([x, "b", x.lower()])
        s += f"{len(x)} {x!r} {'k' + x}"
        if x in "abc" or "q" not in x:
            s += str(len(x) + 1)
        return {"n": len(x), "both": (x, [x])}

    text = graph(p)
    assert not resumes(text)
    for op in ("text.length", "text.repr", 'text.contains "abc", %x', 'text.contains %x, "q"'):
        assert op in text
    assert "value.pack" in text


def test_join_and_in_keep_their_meaning_on_other_objects() -> None:
    class Path:
        def join(self, other: str) -> str:
            return f"joined {other}"

        def __contains__(self, item: object) -> bool:
            return item == "there"

    @lmc.jit
    def p(s: State) -> object:
        return [Path().join("x"), "there" in Path(), "no" not in Path(), len([1, 2]), str(3)]

    assert graph(p).count("[") >= 1
    with lmc.Engine("fake") as engine:
        assert p.run(engine=engine).value == ["joined x", True, True, 2, "3"]


def test_without_source_a_formatted_text_ends_the_graph_and_stays_right() -> None:
    space: dict[str, object] = {"lmc": lmc}
    exec(
        "def p(s, x):\n    s += 'Q: ' + x\n    s += lmc.gen('a', max_tokens=3)\n"
        "    s += f'<{x:>5}>' + '-'.join([s['a'], x])\n",
        space,
    )
    program = lmc.jit(space["p"])  # type: ignore[arg-type]
    text = graph(program)
    assert 'text.concat "Q: ", %x' in text
    assert text.count("lm.gen") == 1
    assert len(resumes(text)) == 1
    with lmc.Engine("fake") as engine:
        outs = [program.run(x="ab", engine=engine, eager=eager) for eager in (False, True)]
    assert outs[0].text == outs[1].text
    assert "<   ab>" in outs[0].text


def test_closures_and_methods_are_traced() -> None:
    prefix = "Q: "

    class Judge:
        tone = "kind"

        @lmc.jit
        def p(self, s: State, x: str) -> None:
            s += f"{prefix}{self.tone} {x}"

    assert '"Q: ", "kind", " ", %x' in graph(Judge().p)


def test_a_program_that_is_wrong_on_every_way_is_refused_with_its_line() -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += undefined_name  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(TraceError, match=r"NameError: .*undefined_name.*test_tracer\.py:\d+"):
        p.trace()


def test_a_program_that_raises_on_one_way_keeps_the_others() -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        if x == "bad":
            raise ValueError("no")
        s += lmc.gen("a", max_tokens=2)

    assert resumes(graph(p)) == ["ValueError: no"]
    with lmc.Engine("fake") as engine:
        good, bad = p.run_batch([{"x": "good"}, {"x": "bad"}], engine=engine)
    assert good.error is None
    assert bad.error is not None
    assert bad.error.problem == "ValueError: no"
    assert str(bad.error.where).rpartition(":")[0].endswith("test_tracer.py")


def test_a_program_that_changes_from_run_to_run_runs_eagerly_from_there() -> None:
    calls = array.array("i")  # which nobody looks into

    @lmc.jit
    def p(s: State, x: str) -> None:
        calls.append(1)
        s += lmc.gen("a", max_tokens=2)
        s += f"{len(calls)}"
        s += lmc.gen("b", max_tokens=2)

    text = graph(p)
    assert ["something else" in reason for reason in resumes(text)] == [True]
    assert text.count("lm.gen") == 1


def test_many_ways_end_in_resume_and_stay_right() -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        for letter in "abcdefgh":
            if letter in x:
                s += letter

    assert graph(p).count("flow.resume") > 0
    with lmc.Engine("fake") as engine:
        for x in ("", "ace", "abcdefgh"):
            assert p.run(x=x, engine=engine).text == x


def test_nested_programs_go_on_with_the_same_prompt() -> None:
    @lmc.jit
    def inner(s: State, word: str) -> str:
        s += word
        s += lmc.gen("w", max_tokens=2)
        return s["w"]

    @lmc.jit
    def outer(s: State, x: str) -> None:
        s += "<" + inner(s, x) + ">"

    text = graph(outer)
    assert text.index("lm.gen") < text.index('"<"')
    with pytest.raises(UsageError, match="without a prompt state"):
        inner("x")  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [0, 1, -1, -2])
def test_an_index_out_of_range_raises_where_python_would(at: int) -> None:
    @lmc.jit
    def p(s: State, x: str) -> object:
        try:
            word = x.split()[at]
        except IndexError:
            word = "no word"
        try:
            return [word, x[at]]
        except IndexError:
            return [word, "no letter"]

    @lmc.jit
    def bare(s: State, x: str) -> None:
        s += x.split(",")[1][0]

    assert not resumes(graph(p))
    assert len(resumes(graph(bare))) == 2
    with lmc.Engine("fake") as engine:
        for x in ("", "a", "ab", "a b", "a b c", "a,b", "a,"):
            for program in (p, bare):
                mine = program.run(x=x, engine=engine)
                theirs = program.run(x=x, engine=engine, eager=True)
                assert (mine.value, mine.text) == (theirs.value, theirs.text)
                assert (mine.error and mine.error.problem) == (
                    theirs.error and theirs.error.problem
                )


def test_an_empty_separator_raises_as_in_python() -> None:
    @lmc.jit
    def p(s: State, x: str, sep: str) -> object:
        try:
            return x.split(sep)[0]
        except ValueError as error:
            return str(error)

    with lmc.Engine("fake") as engine:
        for sep in ("", ","):
            results = [p.run(x="a,b", sep=sep, engine=engine, eager=e) for e in (False, True)]
            assert results[0].value == results[1].value


def test_more_ways_than_are_followed_run_eagerly_and_are_reported() -> None:
    @lmc.jit
    def p(s: State, x: str) -> list[str]:
        said = []
        for n in range(8):
            s += f"{x} {n}: " + lmc.select(f"a{n}", ["yes", "no"])
            said.append("1" if s[f"a{n}"] == "yes" else "0")
            if said[-1] == "0":
                s += "Why not? "
        return said

    text = graph(p)
    assert text.count("ret ") + len(resumes(text)) <= tracer.MAX_PATHS + 1
    assert set(resumes(text)) == {"more than 64 ways through the program"}
    assert "ask fewer questions" in advice(resumes(text)[0])
    with lmc.Engine("fake") as engine:
        for x in ("tea", "rice", "oats"):
            outs = [p.run(x=x, engine=engine, eager=eager) for eager in (False, True)]
            assert outs[0].value == outs[1].value
            assert (outs[0].text, outs[0].variables) == (outs[1].text, outs[1].variables)


def test_more_operations_than_are_recorded_run_eagerly_and_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracer, "MAX_NODES", 40)

    @lmc.jit
    def p(s: State, x: str) -> None:
        for n in range(30):
            s += x
            s += lmc.gen(f"a{n}", max_tokens=1)

    text = graph(p)
    assert resumes(text) == ["more than 40 operations"]
    assert text.count("lm.gen") < 30
    assert "shorten the loop" in advice(resumes(text)[0])
    with lmc.Engine("fake") as engine:
        outs = [p.run(x="a ", engine=engine, eager=eager) for eager in (False, True)]
    assert outs[0].variables == outs[1].variables
    assert len(outs[0].variables) == 30


@lmc.jit
def asks_of_an_argument(s: State, x: str) -> None:
    for _ in range(4):
        s += "a" if x.strip().startswith("a") else "b"


@lmc.jit
def asks_of_a_gen(s: State, x: str) -> None:
    s += x + lmc.gen("a", max_tokens=2)
    for n in range(4):
        if s["a"].lower() == "yes" or len(s["a"]) > 3:
            s += f"{n}{s['a'].lower()}"


@lmc.jit
def asks_of_a_type(s: State, x: str) -> None:
    s += x + lmc.gen("sure", type=bool) + lmc.gen("n", type=int) + lmc.gen("kind", type=Kind)
    for n in range(4):
        if s["sure"] and s["n"] > 3:
            s += f"{n}{s['kind'].name}"


class Kind(enum.Enum):
    NEW = 1
    OLD = 2


@lmc.jit
def asks_of_the_prompt(s: State, x: str) -> bool:
    s += x
    return "a" in s.text() and "a" in s.text()


@pytest.mark.parametrize(
    ("program", "ways"),
    [(asks_of_an_argument, 2), (asks_of_a_gen, 3), (asks_of_a_type, 4), (asks_of_the_prompt, 2)],
)
def test_the_same_question_is_answered_once(
    program: lmc.Program, ways: int, fake: lmc.Engine
) -> None:
    text = graph(program)
    assert text.count("ret ") == ways
    assert not resumes(text)
    for x in ("", "a", "abc", " b"):
        eager = program.run(x=x, eager=True)
        compiled = program.run(x=x)
        assert (compiled.text, compiled.value) == (eager.text, eager.value)
