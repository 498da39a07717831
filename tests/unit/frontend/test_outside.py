"""Programs that change what lies outside of them: they run as they do eagerly."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import lmc
from lmc.errors import TraceError
from lmc.frontend.dsl import State
from lmc.frontend.outside import Outside

Body = Callable[..., Any]
NUMBER = 0
KNOWN: Any = None


class Log(list[str]):
    pass


class Config:
    total = 0
    word = "old"

    @classmethod
    def greeting(cls) -> str:
        return f"good {cls.word}"


class Agent:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def speak(self, s: State, x: str) -> None:
        self.seen.append(1)
        s += f"{len(self.seen)}" + x


class Session:
    """Shared, not copied: it is to be closed."""

    def __init__(self) -> None:
        self.n = 0

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def in_a_closure(held: Any, change: Body) -> Body:
    def p(s: State, x: str) -> None:
        s += f"{change(held)}" + x
        s += lmc.gen("a", max_tokens=2)

    return p


def of_list(xs: Any) -> int:
    xs.append(1)
    return len(xs)


def of_dict(table: Any) -> int:
    table[len(table)] = 1
    return len(table)


def of_set(xs: Any) -> int:
    xs.add(len(xs))
    return len(xs)


def of_attribute(holder: Any) -> int:
    holder.n = getattr(holder, "n", 0) + 1
    return int(holder.n)


def of_counter(counts: Any) -> int:
    counts["a"] += 1
    return int(counts["a"])


def of_bytes(xs: Any) -> int:
    xs.extend(b"x")
    return len(xs)


def helper() -> None:
    """Something whose attributes count."""


KINDS: dict[str, tuple[Callable[[], Any], Body]] = {
    "list": (list, of_list),
    "derived list": (Log, of_list),
    "deque": (deque, of_list),
    "user list": (UserList, of_list),
    "dict": (dict, of_dict),
    "ordered": (OrderedDict, of_dict),
    "defaults": (lambda: defaultdict(list), of_dict),
    "user dict": (UserDict, of_dict),
    "counter": (Counter, of_counter),
    "set": (set, of_set),
    "bytearray": (bytearray, of_bytes),
    "object": (Session, of_attribute),
    "namespace": (SimpleNamespace, of_attribute),
    "function": (lambda: lambda: None, of_attribute),
    "nested": (lambda: [{"a": [Session()]}], lambda held: of_attribute(held[0]["a"][0])),
}


def stays_eager(program: Any, name: str) -> bool:
    """Whether the program is no graph, because it changes what has that name."""
    (end,) = program.trace(x="it").body.nodes[1:]
    return end.op.mnemonic == "flow.resume" and re.search(name, end.op.reason) is not None


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_changes_what_is_outside_runs_eagerly(
    fake: lmc.Engine, kind: str, level: int
) -> None:
    """What its traces have changed is put back, so it meets what it would meet eagerly."""
    make, change = KINDS[kind]
    compiled, eager = make(), make()
    p = lmc.jit(in_a_closure(compiled, change))
    assert stays_eager(p, "changes `.*outside")
    texts = [p.run(x="it", options=lmc.Options(level=level)).text for _ in range(3)]
    q = lmc.jit(in_a_closure(eager, change))
    assert texts == [q.run(x="it", eager=True).text for _ in range(3)]
    assert [text[:3] for text in texts] == ["1it", "2it", "3it"]


def test_globals_and_attributes_are_outside(fake: lmc.Engine) -> None:
    def number(s: State, x: str) -> None:
        global NUMBER
        NUMBER += 1
        s += f"{NUMBER}" + x

    def of_a_class(s: State, x: str) -> None:
        Config.total += 1
        s += f"{Config.total}" + x

    for body, name in ((number, "NUMBER"), (of_a_class, "total"), (Agent().speak, "seen")):
        p = lmc.jit(body)
        assert stays_eager(p, f"`{name}`")
        assert [p.run(x="it").text for _ in range(3)] == ["1it", "2it", "3it"]


def test_values_of_a_trace_do_not_stay_outside(fake: lmc.Engine) -> None:
    """A text that was not known then would be of no use to anybody."""
    log: list[str] = []

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += "".join(log) + x
        s += lmc.gen("a", max_tokens=3)
        log.append(s["a"])

    answers = [p.run(x="it")["a"] for _ in range(3)]
    assert log == answers
    results = p.run_batch([{"x": "this"}, {"x": "that"}])
    assert sorted(log[3:]) == sorted(r["a"] for r in results)


def test_a_change_on_one_way_only(fake: lmc.Engine) -> None:
    kept: list[Any] = []

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += lmc.select("a", ["yes", "no"])
        if s["a"] == "yes":
            s += "!"
        elif x == "it":
            kept.append("k")

    assert stays_eager(p, "`kept`")
    assert kept == []


def test_a_change_that_is_seen_once(fake: lmc.Engine) -> None:
    known: set[str] = set()

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += ("known" if "k" in known else "new") + x
        known.add("k")

    assert stays_eager(p, "`known`")
    assert [p.run(x="it").text for _ in range(3)] == ["newit", "knownit", "knownit"]


def test_a_change_there_and_back(fake: lmc.Engine) -> None:
    turn = [False]

    @lmc.jit
    def p(s: State, x: str) -> None:
        turn[0] = not turn[0]
        s += f"{turn[0]}" + x

    assert [p.run(x="it").text for _ in range(3)] == ["Trueit", "Falseit", "Trueit"]


def test_a_shared_argument_is_outside(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, held: Any, x: str) -> None:
        s += f"{of_attribute(held[0])}" + x

    session = Session()
    assert [p.run(held=[session], x="it").text for _ in range(3)] == ["1it", "2it", "3it"]
    assert p.run(held=[SimpleNamespace(n=1)], x="it").text == "2it"


def test_random_numbers_from_outside_are_those_of_an_eager_run(fake: lmc.Engine) -> None:
    rng, same = random.Random(1), random.Random(1)

    @lmc.jit
    def drawn(s: State, x: str) -> None:
        s += f"{rng.random()}" + x

    assert stays_eager(drawn, "`rng`")
    assert [drawn.run(x="it").text for _ in range(3)] == [f"{same.random()}it" for _ in range(3)]


def test_what_is_used_up_is_refused(fake: lmc.Engine) -> None:
    numbers = itertools.count()

    @lmc.jit
    def counted(s: State, x: str) -> None:
        s += f"{next(numbers)}" + x

    @lmc.jit
    def given(s: State, words: Any, x: str) -> None:
        s += " ".join(words) + x

    with pytest.raises(TraceError, match="the program uses up `numbers`") as caught:
        counted.run(x="it")
    assert caught.value.where is not None
    assert "eagerly" in str(caught.value.hint)
    with pytest.raises(TraceError, match="an object among its arguments"):
        given.run(words=iter(["a", "b"]), x="it")
    assert given.run(words=iter(["a", "b"]), x="it", eager=True).text == "a bit"


def test_what_is_made_once_and_kept_is_let_through(fake: lmc.Engine) -> None:
    global KNOWN
    KNOWN = None
    table: dict[str, str] = {}

    @lmc.jit
    def p(s: State, n: int, x: str) -> None:
        global KNOWN
        if KNOWN is None:
            KNOWN = {"a": 1}
        if str(n) not in table:
            table[str(n)] = f"<{n}>"
        s += table[str(n)] + f"{KNOWN['a']}"
        s += lmc.select("b", ["c", "d"])
        if s["b"] == "c":
            s += x

    for n in (1, 2, 1):
        out = p.run(n=n, x="it")
        assert out.text.startswith(f"<{n}>1")
        assert out.text == p.run(n=n, x="it", eager=True).text
    assert table == {"1": "<1>", "2": "<2>"}


def test_a_change_after_the_graph_has_ended_is_made_once(fake: lmc.Engine) -> None:
    kept: list[Any] = []

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += lmc.gen("a", max_tokens=2)
        found = sorted({s["a"]: 1})  # what follows runs eagerly
        kept.append(found[0])

    outs = [p.run(x="it")["a"] for _ in range(3)]
    assert kept == outs


def test_a_tool_may_change_what_is_outside(fake: lmc.Engine) -> None:
    kept: list[str] = []

    @lmc.tool
    def keep(text: str) -> int:
        kept.append(text)
        return len(kept)

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += f"{keep(x)}" + x

    assert [p.run(x="it").text for _ in range(3)] == ["1it", "2it", "3it"]
    assert kept == ["it"] * 3


def test_classes_that_are_named_are_read_through(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += Config.word + x + Config.greeting()

    assert p.run(x=" ").text == "old good old"
    monkeypatch.setattr(Config, "word", "new")
    assert p.run(x=" ").text == "new good new"


def test_what_a_list_of_an_own_class_holds_is_read(fake: lmc.Engine) -> None:
    words = Log(["old"])

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += words[0] + x

    assert p.run(x=" ").text == "old "
    words[0] = "new"
    assert p.run(x=" ").text == "new "


def test_what_is_too_deep_to_read_is_not_taken_for_a_change() -> None:
    knot: list[Any] = []
    for _ in range(5000):
        knot = [knot]

    def p(s: State) -> Any:
        return knot

    outside = Outside(p, ())
    outside.look()
    assert outside.change() is None
