"""Program shapes that compilers of LM programs have got wrong: compiled = eager on every path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lmc
from lmc.frontend.dsl import State
from lmc.plan import Block, If
from lmc.runtime.executor import Executor
from lmc.runtime.row import Row
from tests.unit.frontend.test_dsl import both

Body = Callable[..., Any]
SHAPES: dict[str, tuple[Body, list[dict[str, Any]], bool]] = {}


def shape(*rows: dict[str, Any], whole: bool = True) -> Callable[[Body], Body]:
    """A shape with the arguments to try; `whole` if all of it must compile."""

    def keep(function: Body) -> Body:
        SHAPES[function.__name__] = (function, list(rows) or [{}], whole)
        return function

    return keep


@shape({"q": "tea?"}, {"q": ""})
def s01_text_argument_and_two_gens(s: State, q: str) -> None:
    s += "Q: " + q + "\n"
    s += lmc.gen("a", max_tokens=4)
    s += " and " + lmc.gen("b", max_tokens=3)


@shape()
def s02_select_then_choices(s: State) -> None:
    s += "Tool: "
    s += lmc.select("tool", ["calculator", "search"])
    s += lmc.gen("word", choices=["left", "right"])


@lmc.jit
def inner(s: State, topic: str) -> None:
    s += f"About {topic}: "
    s += lmc.gen("said", max_tokens=3)


@shape({"topic": "tea"})
def s03_a_program_in_a_program(s: State, topic: str) -> Any:
    s += "Begin. "
    inner(s, topic)
    return s["said"]


@shape()
def s04_one_name_three_times(s: State) -> Any:
    said = []
    for n in range(3):
        s += f"{n}: " + lmc.gen("x", max_tokens=2, temperature=0.7)
        said.append(s["x"])
    return said


@shape({"q": "why?"})
def s05_roles_as_expressions(s: State, q: str) -> None:
    s += lmc.system("Be brief.")
    s += lmc.user(q)
    s += lmc.assistant(lmc.gen("a", max_tokens=3))


@shape({"x": "tea"})
def s06_branches_read_without_a_join(s: State, x: str) -> Any:
    s += f"Shared text about {x}. "
    one, two = s.fork(2)
    one += "First: " + lmc.gen("v", max_tokens=2)
    two += "Second: " + lmc.gen("v", max_tokens=2)
    s += f"{one['v']} / {two['v']}"
    return [one["v"], two["v"]]


@shape({"x": "tea"})
def s07_a_joined_list_in_later_text(s: State, x: str) -> None:
    forks = s.fork(3)
    forks += lambda i: f"{x} {i}: " + lmc.gen("v", max_tokens=2)
    forks.join()
    s += "All: " + ", ".join(s["v"]) + ". Best: " + lmc.gen("best", max_tokens=2)


@shape({"x": "tea"})
def s08_with_blocks(s: State, x: str) -> Any:
    with s.copy() as other:
        other += f"aside on {x}" + lmc.gen("aside", max_tokens=2)
    with s.user():
        s += "Say " + x
    with s.assistant(), s.var("line"):
        s += "I say " + lmc.gen("a", max_tokens=2)
    return [other["aside"], s["line"]]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("what", ["lmc.image", "lmc.video", "s.image"])
def test_s09_an_image_is_refused_with_its_line(what: str, eager: bool, fake: lmc.Engine) -> None:
    calls: dict[str, Callable[[State], Any]] = {
        "lmc.image": lambda s: lmc.image("a.png"),
        "lmc.video": lambda s: lmc.video("a.mp4", num_frames=4),
        "s.image": lambda s: s.image("a.png"),
    }

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x
        calls[what](s)
        s += lmc.gen("a", max_tokens=2)

    error = p.run_batch([{"x": "q"}], eager=eager)[0].error
    assert isinstance(error, lmc.errors.UsageError)
    assert error.problem.startswith("there are no ")
    assert str(error.where).endswith(f"test_shapes.py:{calls[what].__code__.co_firstlineno}")


@shape({"x": "tea"}, {"x": "{}"})
def s10_f_string_with_an_argument(s: State, x: str) -> None:
    s += f"<{x}> {x!s} {{x}}"
    s += lmc.gen("a", max_tokens=2)


@shape()
def s11_f_string_with_a_generated_value(s: State) -> None:
    s += "a" + lmc.gen("a", max_tokens=2)
    s += f"You said <{s['a']}>, {s['a'].upper()}!" + lmc.gen("b", max_tokens=2)


@shape({"x": "1"}, {"x": "2"}, {"x": "3"})
def s12_if_on_a_variable(s: State, x: str) -> Any:
    s += x + lmc.select("a", ["x", "y"])
    if s["a"] == "x":
        s += " then " + lmc.gen("b", max_tokens=2)
        return "then"
    if s["a"] != "y":
        return "never"
    s += " else " + lmc.gen("c", max_tokens=3)
    return "else"


@shape({"arg": "yes"}, {"arg": "no"}, {"arg": ""})
def s13_if_on_an_argument(s: State, arg: str) -> Any:
    if arg == "yes":
        s += "confirmed "
    if arg:
        s += f"({arg}) "
    s += lmc.gen("a", max_tokens=2)
    return bool(arg) and arg != "no"


@shape({"xs": ["a", "b"], "n": 2}, {"xs": [], "n": 0})
def s14_loops(s: State, xs: list[str], n: int) -> Any:
    for x in xs:
        s += f"- {x}\n"
    for i in range(n):
        s += f"{i}. " + lmc.gen(f"line{i}", max_tokens=2)
    rounds = 0
    while rounds < 3:
        s += "More? " + lmc.select("more", ["yes", "no"])
        rounds += 1
        if s["more"] == "no":
            break
    return rounds


@shape({"x": "tea"}, whole=False)  # where there is no first word
def s15_values_of_variables(s: State, x: str) -> Any:
    s += x + lmc.gen("a", max_tokens=5) + lmc.select("b", ["p", "q"])
    table = {"p": "pine", "q": "oak"}
    s += f"{len(s['a'])} {s['a'].upper()} {(s['a'] + ' end').split()[0]} {table[s['b']]}"
    s += lmc.gen("c", max_tokens=2)
    return table[s["b"]]


GRADES = {"1": "poor", "2": "fair", "3": "fine"}


@shape({"x": "tea"}, {"x": "rice"})
def a_choice_is_a_key_a_number_and_an_index(s: State, x: str) -> Any:
    s += x + ": " + lmc.select("grade", ["1", "2", "3"])
    grade = s["grade"]
    s += f" is {GRADES[grade]}, {int(grade) * 2} of 6, {'abcd'[int(grade)]}{grade:>3} "
    s += lmc.gen("why", max_tokens=2)
    if grade in {"1", "2"}:
        s += "Better: " + lmc.gen("better", max_tokens=2)
    return [GRADES[grade], int(grade), len(grade), list(grade), {grade: x}]


@shape({"x": "tea"}, whole=False)  # a gen may stop inside a choice
def a_gen_with_choices_is_a_key(s: State, x: str) -> Any:
    s += x + lmc.gen("pick", choices=["left", "right"], max_tokens=9)
    s += " -> " + lmc.gen("cut", choices=["pinetree", "oak"], max_tokens=1)
    table = {"left": 1, "right": 2}
    return [table[s["pick"]], {"oak": "o"}.get(s["cut"], "none")]


@shape({"x": "tea"}, {"x": "rice"})
def what_a_condition_says_of_a_text_is_known(s: State, x: str) -> Any:
    s += x + lmc.gen("n", regex="[0-9]", temperature=1.0)
    if s["n"] == "7" or s["n"] == "8":
        return int(s["n"])
    if s["n"] != "3":
        return "other"
    return [int(s["n"]) + 1, s["n"].center(3, "-")]


def countdown_of(s: State, n: int) -> None:
    s += f"{n} " + lmc.gen(f"at{n}", max_tokens=1)
    if n:
        countdown_of(s, n - 1)


@shape({"n": 3}, {"n": 0})
def a_recursive_program(s: State, n: int) -> None:
    countdown_of(s, n)


@lmc.jit
def halves(s: State, text: str, depth: int) -> Any:
    s += f"{depth}: {text} " + lmc.select(f"more{depth}", ["yes", "no"])
    if depth and s[f"more{depth}"] == "yes":
        return halves(s, text.upper(), depth - 1)
    return depth


@shape({"x": "tea"}, {"x": "rice"}, {"x": "oats"})
def a_program_that_calls_itself(s: State, x: str) -> Any:
    return halves(s, x, 2)


@shape({"xs": ["a", "b"], "table": {"k": "v", "l": "w"}}, {"xs": [], "table": {}})
def comprehensions_over_arguments_of_known_shape(
    s: State, xs: list[str], table: dict[str, str]
) -> Any:
    s += ", ".join([f"<{x}>" for x in xs]) + "".join(f"{k}={v};" for k, v in table.items())
    s += lmc.gen("a", max_tokens=2)
    marked = {x.upper(): n for n, x in enumerate(["p", "q"]) if x in s["a"]}
    return [marked, [x + s["a"] for x in xs]]


@shape({"x": "tea"}, {"x": "stop"}, {"x": "rice"})
def conditions_joined_and_turned_around(s: State, x: str) -> Any:
    s += x + lmc.select("a", ["yes", "no"]) + lmc.select("b", ["on", "off"])
    a, b = s["a"], s["b"]
    if (a == "yes" and not b == "off") or x in ("stop", "halt"):  # noqa: SIM201
        s += "one" + lmc.gen("c", max_tokens=2)
    elif a != "yes" or x.startswith("r"):
        s += "two"
    match b:
        case "on":
            s += " lit"
        case _:
            s += " dark"
    return "early" if not a else a in {"yes": 1}


@shape({"x": "tea"})
def a_loop_that_ends_where_the_model_says(s: State, x: str) -> Any:
    said = []
    while len(said) < 4:
        s += f"{x} {len(said)}: " + lmc.gen("word", choices=["go", "stop"])
        said.append(s["word"])
        if s["word"] == "stop":
            return said
    else:
        s += "enough"
    return said


@shape({"x": "1"}, {"x": "2"}, {"x": "3"}, whole=False)
def a_program_that_raises_on_one_path(s: State, x: str) -> Any:
    s += x + lmc.select("a", ["good", "bad"])
    if s["a"] == "bad":
        raise ValueError(f"bad: {x}")
    s += lmc.gen("b", max_tokens=2)
    return s["a"]


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_compiled_is_eager_on_every_path(name: str, fake: lmc.Engine) -> None:
    function, rows, whole = SHAPES[name]
    program = lmc.jit(function)
    for row in rows:
        for seed in (0, 1, 2):
            compiled = program.run(**row, seed=seed)
            eager = program.run(**row, seed=seed, eager=True)
            assert compiled.variables == eager.variables
            assert (compiled.text, compiled.value) == (eager.text, eager.value)
            assert str(compiled.error) == str(eager.error)
        both(program, **row)
        if whole:
            assert "flow.resume" not in str(program.compile(**row).program)


# Ways in the graph that no row takes: what an argument cannot be at the same time, or choices of a
# gen that no model stops inside of.
NEVER = {
    "a_gen_with_choices_is_a_key": 5,
    "a_loop_that_ends_where_the_model_says": 3,
    "comprehensions_over_arguments_of_known_shape": 4,
    "conditions_joined_and_turned_around": 4,
    "s15_values_of_variables": 1,
}


def leaves(block: Block) -> Iterator[int]:
    """The blocks in which rows end."""
    last = block.instrs[-1]
    if isinstance(last, If):
        yield from leaves(last.then)
        yield from leaves(last.orelse)
    else:
        yield id(block)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_way_that_can_be_taken_is(
    name: str, fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows on several models, until each way was taken; compiled = eager on each."""
    function, rows, _ = SHAPES[name]
    program = lmc.jit(function)
    entered: set[int] = set()
    emit_block = Executor.emit_block

    def emit(self: Executor, row: Row, block: Block) -> None:
        entered.add(id(block))
        emit_block(self, row, block)

    monkeypatch.setattr(Executor, "emit_block", emit)
    ways = {way for row in rows for way in leaves(program.compile(**row).plan.body)}
    runner: Any = fake._runner
    table = runner._table.copy()
    for turn in range(60):
        if len(ways - entered) == NEVER.get(name, 0):
            break
        fake.core.forget()
        runner._table = np.roll(table, 977 * turn)  # another model
        for row in rows:
            both(program, **row)
    assert len(ways - entered) == NEVER.get(name, 0)


class Judge:
    def __init__(self, scale: int) -> None:
        self.scale = scale

    @lmc.jit
    def judge(self, s: State, text: str) -> Any:
        s += f"On a scale of {self.scale}: {text} "
        s += lmc.gen("grade", regex="[0-9]")
        return self.scale


def test_a_method_is_a_program(fake: lmc.Engine) -> None:
    for scale in (5, 10):
        out = both(Judge(scale).judge, text="fine")
        assert out.value == scale
        assert out.text.startswith(f"On a scale of {scale}: fine ")


def test_a_program_in_another_thread_while_one_is_traced(fake: lmc.Engine) -> None:
    traced, done = threading.Event(), threading.Event()
    found: list[Any] = []

    @lmc.jit
    def other(s: State, x: str) -> None:
        s += x + lmc.gen("a", max_tokens=2)

    def run() -> None:
        traced.wait(20)
        with lmc.use(fake):
            found.append(other.run(x="other "))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()

    @lmc.jit
    def slow(s: State, x: str) -> None:
        s += x + lmc.gen("a", max_tokens=2)
        traced.set()
        assert done.wait(20)
        s += lmc.gen("b", max_tokens=2)

    out = slow.run(x="slow ")
    thread.join()
    assert out.error is None
    assert out.variables == slow.run(x="slow ", eager=True).variables
    assert found[0].variables == other.run(x="other ", eager=True).variables


def test_a_function_that_is_defined_again(fake: lmc.Engine) -> None:
    texts = []
    for word in ("one", "two"):  # and without any source text
        space: dict[str, Any] = {"lmc": lmc}
        exec(  # as a cell of a notebook that is run again
            f"@lmc.jit\ndef p(s, x):\n    s += x + ' {word} ' + lmc.gen('a', max_tokens=2)\n", space
        )
        out = both(space["p"], x="say")
        texts.append(out.text)
        assert out.text.startswith(f"say {word} ")
    assert texts[0] != texts[1]


def test_side_effects_on_an_outside_list_are_those_of_an_eager_run(fake: lmc.Engine) -> None:
    seen: list[str] = []

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x + lmc.gen("a", max_tokens=2)
        seen.append("ran")

    results = [p.run(x="q").variables for _ in range(2)]
    assert seen == ["ran", "ran"]
    assert results == [p.run(x="q", eager=True).variables] * 2
    assert seen == ["ran"] * 3
