"""Odd but legitimate programs, with their source and without one; compiled = eager."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lmc
from lmc.frontend.dsl import State

Body = Callable[..., Any]
CASES: dict[str, Body] = {}
TEXTS = ("it", "bed", "")


def case(function: Body) -> Body:
    CASES[function.__name__] = function
    return function


@lmc.tool
def picky(text: str) -> str:
    if "e" in text:
        raise ValueError("an e")
    return text + "!"


@lmc.tool
def facts(text: str) -> Any:
    return {"word": text, "size": len(text), "more": [text, 1, None]}


@dataclasses.dataclass(frozen=True)
class Style:
    times: int = 2
    sep: str = "-"


class Kind(str, enum.Enum):  # noqa: UP042 - its text is not its value
    A = "a"


class Words(str):
    __slots__ = ()

    def __str__(self) -> str:
        return f"<{self.upper()}>"


class Pair(NamedTuple):
    first: str
    second: str


class Boxed:
    def __init__(self, held: str) -> None:
        self.held = held

    def __str__(self) -> str:
        return f"[{self.held}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Boxed) and self.held == other.held

    __hash__ = None  # type: ignore[assignment]

    @property
    def loud(self) -> str:
        return self.held.upper()


STYLE = Style()
OUTSIDE = {"word": "one"}


@case
def closures(s: State, x: str) -> Any:
    said: list[str] = []
    count = 0

    def add(text: str) -> int:
        nonlocal count
        said.append(text)
        count += 1
        return count

    for n in range(3):
        s += f"{add(x + str(n))} {x}"
    s += lmc.gen("a", max_tokens=2)
    return [*said, s["a"], count]


@case
def generators(s: State, x: str) -> Any:
    def parts() -> Iterator[str]:
        yield "<"
        yield x
        yield s.get("a", "none")
        yield from (c + x for c in "ab")

    for part in parts():
        s += part
    s += lmc.gen("a", max_tokens=2)
    return list(parts())


@case
def a_generator_that_is_sent_values(s: State, x: str) -> Any:
    def gathered() -> Generator[str, str | None, None]:
        text = ""
        while (more := (yield text)) is not None:
            text += more

    gathering = gathered()
    next(gathering)
    gathering.send(x)
    s += gathering.send("b")
    gathering.close()


@case
def recursion_by_value(s: State, x: str) -> Any:
    def deeper(n: int) -> int:
        s.extend(lmc.select(f"q{n}", ["yes", "no"]))
        return n if n == 0 or s[f"q{n}"] == "no" else deeper(n - 1) + 1

    s += x
    return deeper(3)


@case
def nested_forks_that_return_early(s: State, x: str) -> Any:
    s += x
    forks = s.fork(2)
    for n, fork in enumerate(forks):
        fork += f"{n}" + lmc.select("k", ["a", "b"])
        if fork["k"] == "a":
            inner = fork.fork(2)
            inner += lmc.gen("z", max_tokens=2)
            inner.join()
            if n:
                return [fork["z"], fork.text()]
    forks.join()
    return s["k"]


@case
def exceptions_on_one_way(s: State, x: str) -> Any:
    s += lmc.select("k", ["a", "b", "c"]) + x
    if s["k"] == "a":
        raise ValueError(f"a, of {x}")
    try:
        raise KeyError(x)
    except KeyError as error:
        return error.args[0]


@case
def matches(s: State, x: str) -> Any:
    s += lmc.select("k", ["a", "b", "c"])
    match (s["k"], Pair(x, s.text()), {"x": x, "y": [x, 1]}):
        case ("a", Pair(first="it"), _):
            return 1
        case ("a" | "b", Pair(first=str() as y), {"y": [_, *others], **rest}) if len(y) > 2:
            return [y, others, list(rest)]
        case (z, _, _):
            return z


@case
def stars_and_walrus(s: State, x: str) -> Any:
    def joined(*args: str, sep: str = "-", **more: str) -> str:
        return sep.join(args) + "".join(f"{name}={text}" for name, text in more.items())

    args, more = [x, "b"], {"c": x}
    if (n := len(x)) > 2 and (loud := x.upper()).startswith("B"):
        s += f"{loud}{n}"
    s += joined(*args, **more) + joined(*args, sep="+")
    first, *rest, last = [x, *args, "z"]
    return [first, rest, last]


@case
def partials(s: State, x: str) -> Any:
    two = functools.partial(lmc.gen, max_tokens=2)
    s += two("a")
    return functools.partial(picky, x)()


@case
def lambdas(s: State, x: str) -> Any:
    s += "".join(f(x) for f in [lambda text, n=n: f"{n}{text}" for n in range(3)])
    return [functools.reduce(operator.add, [x, "a", x]), sorted([x, "b", "c"], key=lambda v: v)]


@case
def objects(s: State, x: str) -> Any:
    box = Boxed(x)
    s += str(box) + f"{box}{STYLE.sep * STYLE.times}" + box.loud
    return [box == Boxed("it"), dataclasses.replace(STYLE, times=3).times, Pair(x, "y").second]


@case
def comparisons(s: State, x: str) -> Any:
    s += lmc.gen("a", max_tokens=2)
    return [
        x in ["it", "b"], x not in "bit", 1 < len(x) < 4, "a" <= x < "z", [x] == ["it"],
        ("it", 1) in [(x, 1), ("b", 2)], [x, "b"].index("b"), bool(x), x or "empty", x and "full",
    ]  # fmt: skip


@case
def changes_in_place(s: State, x: str) -> Any:
    texts, table = [x], {"a": x}
    texts += ["b"]
    texts[0] += "q"
    table |= {"b": x}
    table["a"] += "z"
    s += "".join(texts)
    return [texts, table]


@case
def loops_with_else(s: State, x: str) -> Any:
    for word in ["a", "it"]:
        if word == x:
            break
    else:
        s += "none"
    while len(s.text()) < 8:
        s += x + "."
    return word


@case
def no_index(s: State, x: str) -> Any:
    s += lmc.gen("a", max_tokens=1)
    try:
        return x[2]
    except IndexError:
        return "short"


@case
def results_of_tools(s: State, x: str) -> Any:
    found = facts(x)
    s += f"{found['word']} {found['size']} {found['more'][0]}"
    return [found["more"][2] is None, found["size"], found]


@case
def marks(s: State, x: str) -> Any:
    mark = s.mark()
    for n in range(2):
        s += f"{n}{x}" + lmc.gen("a", max_tokens=2)
        if s["a"].strip():
            s.reset(mark)
    return s["a"]


@case
def a_context_of_its_own(s: State, x: str) -> Any:
    @contextlib.contextmanager
    def turn() -> Iterator[str]:
        s.extend("[")
        yield x
        s.extend("]")

    with turn() as text:
        s += text + lmc.gen("a", max_tokens=1)
    return s["a"]


@case
def looks_asynchronous(s: State, x: str) -> Any:
    async def shout() -> str:
        return x + "!"

    running = shout()
    try:
        running.send(None)
    except StopIteration as stop:
        s += stop.value
    return asyncio.iscoroutinefunction(shout)


@case
def an_assertion(s: State, x: str) -> Any:
    assert x != "it", f"it is {x}"
    s += x


@case
def what_is_outside(s: State, x: str) -> Any:
    s += OUTSIDE["word"] + x
    return len(OUTSIDE)


def outcome(out: lmc.Result) -> Any:
    if out.error is not None:
        return type(out.error).__name__, out.error.problem
    return out.variables, out.text, out.value


def same(program: lmc.Program, **arguments: Any) -> Any:
    eager = outcome(program.run(**arguments, eager=True))
    for level in (0, 3):
        assert outcome(program.run(**arguments, options=lmc.Options(level=level))) == eager
    return eager


@pytest.mark.parametrize("name", CASES)
def test_odd_programs(fake: lmc.Engine, name: str) -> None:
    program = lmc.jit(CASES[name])
    for x in TEXTS:
        same(program, x=x)


@pytest.fixture(scope="module")
def without_source() -> dict[str, Body]:
    space: dict[str, Any] = {"__name__": __name__}
    exec(compile(Path(__file__).read_text(encoding="utf-8"), "<nowhere>", "exec"), space)
    cases: dict[str, Body] = space["CASES"]
    return cases


@pytest.mark.parametrize("name", CASES)
def test_odd_programs_without_a_source(
    fake: lmc.Engine, name: str, without_source: dict[str, Body]
) -> None:
    program = lmc.jit(without_source[name])
    for x in TEXTS:
        same(program, x=x)


def twice(function: Body) -> Body:
    @functools.wraps(function)
    def both(s: State, *args: Any, **more: Any) -> Any:
        return [function(s, *args, **more) for _ in range(2)]

    return both


@lmc.jit
@twice
def under(s: State, x: str) -> Any:
    s += f"{x}" + lmc.gen("a", max_tokens=1)
    return s["a"]


@twice
def on_top(s: State, x: str) -> Any:
    return under(s, x)


@lmc.jit
def uses_both(s: State, x: str) -> Any:
    return [on_top(s, x), under.call(s, x=x).value]


class Speaker:
    mark = "-"

    def __init__(self, tone: str) -> None:
        self.tone = tone

    @lmc.jit
    def speak(self, s: State, x: str, *, n: int = 2) -> Any:
        s += self.tone + self.mark + x + lmc.select("k", ["a", "b"])
        if n and s["k"] == "a":
            return self.speak(s, x, n=n - 1) + "r"
        return self.told(s["k"])

    def told(self, text: str) -> str:
        return f"{self.tone}: {text}"


class Louder(Speaker):
    def told(self, text: str) -> str:
        return super().told(text) + "!"


def test_decorators_on_both_sides(fake: lmc.Engine) -> None:
    for x in TEXTS:
        same(under, x=x)
        same(uses_both, x=x)


def test_methods_call_themselves_and_others(fake: lmc.Engine) -> None:
    soft, loud = Speaker("soft"), Louder("loud")
    for x in TEXTS:
        assert same(soft.speak, x=x) != same(loud.speak, x=x)
    soft.tone = "changed"
    assert same(soft.speak, x="it")[1].startswith("changed-it")


def test_what_is_outside_changes_between_calls(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = lmc.jit(what_is_outside)
    for word in ("one", "two", "one"):
        monkeypatch.setitem(OUTSIDE, "word", word)
        assert same(program, x="it")[1] == f"{word}it"


def test_a_program_may_change_its_arguments(fake: lmc.Engine) -> None:
    @lmc.jit
    def changes(s: State, xs: list[str], table: dict[str, Any], x: str) -> Any:
        xs.append(x)
        table["list"].append(len(xs))
        s += "".join(xs) + f"{int(x)}" + lmc.gen("a", max_tokens=1)  # the rest runs eagerly
        return [xs, table]

    xs, table = ["a"], {"list": [1]}
    rows = [{"xs": xs, "table": table, "x": x} for x in "123"]
    told = [outcome(out) for out in changes.run_batch(rows)]
    assert told == [outcome(out) for out in changes.run_batch(rows, eager=True)]
    assert (xs, table) == (["a"], {"list": [1]})
    assert told[2][2] == [["a", "3"], {"list": [1, 2]}]


@case
def texts_of_a_class(s: State, x: str) -> Any:
    s += Kind.A
    s += x + Kind.A + Words("w") + "-".join([Kind.A, x]) + f"{Kind.A}{x}{Words('f')}"
    s += lmc.select("k", [Kind.A, Words("b")])
    s += lmc.gen("g", choices=[Kind.A, "b"], max_tokens=3)
    return [x == Kind.A, Kind.A in x, x.replace("d", Kind.A), s["k"] == Kind.A, s["k"], s["g"]]


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize("key", [Kind.A, Level.LOW, (1, 2), True, 2.5, None])
def test_keys_of_an_argument_are_what_they_were(fake: lmc.Engine, key: object) -> None:
    @lmc.jit
    def p(s: State, table: dict[Any, list[str]], x: str) -> Any:
        (found,) = table
        table[found].append(x)
        s += f"{found!r} {type(found).__name__} {len(table[found])}"
        s += lmc.gen("a", max_tokens=1)

    table = {key: ["one"]}
    assert f"{key!r} {type(key).__name__} 2" in same(p, table=table, x="two")[1]
    assert table == {key: ["one"]}


def test_threads_that_compile_one_program_at_a_time(fake: lmc.Engine) -> None:
    program = lmc.jit(recursion_by_value)

    def run(n: int) -> Any:
        options = lmc.Options(level=n % 4)
        return outcome(program.run(x=f"w{n % 5}", engine=fake, options=options))

    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(run, range(30)))
    assert told == [outcome(program.run(x=f"w{n % 5}", eager=True)) for n in range(30)]
