"""Programs that a tracer may easily get wrong. Whatever it does with them, compiled = eager."""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import re
from collections import UserString
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import lmc
from lmc.errors import LmcError
from lmc.frontend.dsl import State

Body = Callable[..., Any]
CASES: dict[str, Body] = {}


def case(function: Body) -> Body:
    CASES[function.__name__] = function
    return function


def swallow(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return f"caught {type(error).__name__}"


@case
def number_in_a_text(s: State, x: str) -> Any:
    s += lmc.gen("a", max_tokens=2)
    try:
        n = int(re.findall(r"\d+", s["a"] + " 7" + x)[0])
    except Exception:
        n = -1
    return n


@case
def arithmetic_under_except(s: State, x: str) -> Any:
    try:
        return len(x) // 2
    except TypeError:
        return -1


@case
def json_under_except(s: State, x: str) -> Any:
    return [swallow(lambda: json.dumps({"a": x})), swallow(lambda: json.loads(x))]


@case
def bare_except(s: State, x: str) -> Any:
    try:
        return int(x)
    except:  # noqa: E722 - the point of the case
        return 0


@case
def finally_that_generates(s: State, x: str) -> Any:
    try:
        n = len(x) // 2
        s += lmc.gen("mid", max_tokens=2)
    finally:
        s += lmc.gen("last", max_tokens=3)
    return n


@contextlib.contextmanager
def closing(s: State) -> Iterator[None]:
    yield
    s += lmc.gen("closed", max_tokens=2)


@case
def context_that_generates(s: State, x: str) -> Any:
    with closing(s):
        s += lmc.gen("inside", max_tokens=2)
        s += "%s" % int(len(x) * 1.0)  # noqa: UP031
    return s["closed"]


@case
def formats(s: State, x: str) -> Any:
    s += f"{x!s:>10}|{x!r:>10}|{len(x)!r:>5}|{x:<4}|{x=}"
    s += "[%10s]" % x + "{!s:>10}|{}".format(x, x)  # noqa: UP031, UP032
    return [x.ljust(9), str(x)[:3], ascii(x), repr(x)]


@case
def questions_of_kind(s: State, x: str) -> Any:
    parts = x.split(",")
    answers: list[Any] = [parts == ["a", "b"], isinstance(parts, list), isinstance(len(x), int)]
    answers += [type(x) is str, (x == "7") is True, len(x) == 3.0, hasattr(parts, "append")]
    answers += [isinstance(x, str), x is None, x is not None, callable(x), parts != []]
    match parts:
        case [one]:
            answers.append(one)
        case [one, *rest]:
            answers.append([one, rest])
    match x:
        case "7":
            answers.append("seven")
        case str():
            answers.append("text")
    return answers


@case
def only_one_way_is_wrong(s: State, x: str) -> Any:
    if x == "bad":
        undefined_name  # type: ignore[name-defined] # noqa: B018, F821
    if x == "worse":
        s += lmc.gen("a", regex="[0-9")
    if x == "leave":
        raise SystemExit("stop")
    if x == "odd":
        s += lmc.gen("a", max_tokens=-1)
    s += lmc.gen("a", max_tokens=2)
    return x


@case
def parameters_from_values(s: State, x: str) -> Any:
    s += x
    s += lmc.gen("a", max_tokens=len(x), ignore_eos=(x == "abc"), top_k=len(x), stop=x or None)
    s += lmc.select("c", [w for w in ("p", "q", x) if w])
    return s["a"]


@case
def shadowed_names(s: State, x: str) -> Any:
    def text(str: Callable[[Any], Any]) -> Any:
        return str(x)

    return [text(lambda v: v * 2), (lambda len: len(x))(lambda v: 42)]


@case
def booleans(s: State, x: str) -> Any:
    a, b = x == "7", x.startswith("a")
    return [
        a and b,
        a or b,
        not a,
        a == b,
        a != b,
        bool(a),
        int(b),
        f"{a}",
        str(b),
        [a, b].count(True),
    ]


@case
def loops_and_helpers(s: State, x: str) -> Any:
    seen = []
    while len(seen) < 3 and not x.endswith("!"):
        x = shout(x)
        seen.append(x)
    for word in ("a", "b"):
        if word in x:
            s += word
    return ["/".join(seen), sorted(seen), dict.fromkeys(["k"], x)]


def shout(text: str) -> str:
    return f"{text}{'' if text else '?'}!"[: len(text) + 1]


@case
def dictionary_by_value(s: State, x: str) -> Any:
    table = {"7": "seven", "abc": "letters"}
    with contextlib.suppress(KeyError):
        return table[x]
    return table.get(x, "other")


@case
def indices(s: State, x: str) -> Any:
    return [x[0] if x else "", x[-1:], x[1:3], swallow(lambda: x[5]), x.split("b")[-1], x[::-1]]


@case
def returned_early(s: State, x: str) -> Any:
    for n, letter in enumerate(["a", "b", "7"]):
        if x.find(letter) == 0:
            return n
    raise ValueError(f"nothing for {x}")


@lmc.tool
def ask(text: str) -> Any:
    if text == "bad":
        raise ValueError("a bad text")
    return {"text": text, "n": len(text), "parts": text.split(",")}


@lmc.tool(pure=True)
def shorten(text: str) -> str:
    return text[:2]


@case
def tools_in_expressions(s: State, x: str) -> Any:
    s += f"{shorten(x)!s}{shorten(x)!r:>6}" + (shorten(x) or "none")
    return [shorten(shorten(x)), shorten(x) in x, [shorten(w) for w in ("abc", x)], ask(x)["n"]]


@case
def tools_under_except(s: State, x: str) -> Any:
    found = swallow(lambda: ask(x)["parts"][1])
    try:
        s += ask(x)["text"]
    except lmc.errors.LmcError as error:
        s += type(error).__name__
    finally:
        s += shorten(x)
    return found


@case
def tools_behind_map_and_sorted(s: State, x: str) -> Any:
    words = [x, "zz", "aa"]
    s += "/".join(map(shorten, words))
    s += min(words, key=shorten)
    return list(filter(shorten, words))


@case
def results_that_are_changed(s: State, x: str) -> Any:
    found = ask(x)
    kept = found
    found["parts"].append("more")
    found |= {"n": -1}
    return [kept, ask(x), *found["parts"]]


@case
def results_taken_apart(s: State, x: str) -> Any:
    found = ask(x)
    match found:
        case {"n": 0}:
            return "empty"
        case {"text": str(text), **rest}:
            s += text
            return rest
    return found


@case
def tools_after_variables(s: State, x: str) -> Any:
    s += x + "?"
    s += lmc.gen("a", max_tokens=2)
    s.set("found", ask(s["a"]))
    s.set("short", shorten(s["a"]))
    with s.var("said"):
        s += s["short"]
    return [s["said"], f"{s['found']}", s.get("none", shorten(x))]


@case
def types_in_expressions(s: State, x: str) -> Any:
    s += x
    s += lmc.gen("n", type=int, max_tokens=20)
    s += lmc.gen("b", type=bool)
    s += lmc.gen("c", type=Literal["p", "q"])
    n, b = s["n"], s["b"]
    s += f"{n:>5}{b!r}{s['c']:<3}"
    return [
        n % 7,
        n // 2,
        -n,
        abs(n),
        int(b),
        b is True,
        b == 1,
        [10, 20][b],
        {"p": 1, "q": 2}[s["c"]],
    ]


@case
def truth_values_in_arithmetic(s: State, x: str) -> Any:
    s += lmc.gen("b", type=bool)
    b, c, n = s["b"], "a" in x, len(x)
    signed = [
        [b + 1, 1 + b, b + c, b - c, b * 3, -b, +b, abs(b), b / 2, 2**b, b // 1, 3 % (b + 1)],
        [b & c, b | True, b ^ c, True & b, b << 1, b > c, b >= 0, b < 0.5, 1.5 + b, float(b)],
        ["ab"[b], "ab" * c, [0] * c, round(b), sum([b, c, n]), n + b, c + n, n == b, b < n],
        [n + True, True - n, n == True, n > False, -n, +n, 2 + -n],  # noqa: E712 - they are asked
    ]
    s += f"{sum(w in x for w in 'abc')}"
    s += lmc.score("p", x)
    p = s["p"]
    return [*signed, -p, +p, -(p - p), p + b, c * p, p == True, p > True]  # noqa: E712


@case
def scores_in_expressions(s: State, x: str) -> Any:
    s += "a"
    s += lmc.score("f", x or "none")
    f = s["f"]
    s += f"{f}" if f < -3 else "high"
    return [
        f,
        f + 1,
        2 - f,
        f == f,
        swallow(lambda: f / 0),
        sorted([f, -1.0]),
        round(f, 3),
        f is None,
    ]


@pytest.mark.parametrize("name", CASES)
def test_compiled_is_eager(name: str, fake: lmc.Engine) -> None:
    program = lmc.jit(CASES[name])
    for x in ("", "7", "abc", "a,b", "bad", "worse", "leave", "odd", "b!", "éa"):
        eager = program.run(x=x, eager=True)
        for level in (0, 2):
            out = program.run(x=x, options=lmc.Options(level=level))
            assert shown(out) == shown(eager), x


def shown(out: lmc.Result) -> Any:
    error = out.error and (type(out.error).__name__, out.error.problem)
    return (out.variables if error is None else None, out.text, out.value, error)


def test_a_failed_model_call_may_be_caught(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        branch = s.copy()
        branch += x * 30_000
        branch += lmc.gen("a", max_tokens=2)
        try:
            return branch["a"]
        except LmcError:
            return "failed"

    with lmc.Engine("fake", kv_tokens=500) as small:
        for x in ("word ", ""):
            outs = [p.run(x=x, engine=small, eager=eager) for eager in (False, True)]
            assert shown(outs[0]) == shown(outs[1])
        assert p.run(x="word ", engine=small).value == "failed"


def test_values_kept_outside_of_a_program_are_refused(fake: lmc.Engine) -> None:
    """In a list they are taken out again; where nobody looks, they say what they are."""
    told: list[Any] = []
    kept: list[Any] = []
    keep = functools.partial(kept.append)

    @lmc.jit
    def keeps(s: State, x: str) -> None:
        told.append(x)
        keep(x)
        s += x

    keeps.compile()
    assert told == []
    with pytest.raises(LmcError, match="used after it had been traced"):
        bool(kept[0] == "a")
    old = list(kept)

    @lmc.jit
    def uses(s: State, x: str) -> None:
        s += old[0] + x

    with pytest.raises(LmcError, match=r"another program|after it had been traced"):
        uses.compile()


class Colour(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    A = "a"


def test_enums_stay_what_they_are(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, c: Colour, w: Word) -> Any:
        s += f"{c.name} {w.name} {w}"
        return s is not None

    outs = [p.run(c=Colour.RED, w=Word.A, eager=eager) for eager in (False, True)]
    assert outs[0].text == outs[1].text == "RED A a"


TONE = "kind"
WORDS = {"greet": ["hello"]}


def tone() -> str:
    return TONE


def test_what_a_program_reads_from_outside_is_part_of_its_key(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = "."

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += f"{tone()} {WORDS['greet'][0]} {x}{suffix}"

    assert p.run(x="a").text == "kind hello a."
    monkeypatch.setitem(globals(), "TONE", "rude")
    assert p.run(x="a").text == "rude hello a."
    monkeypatch.setitem(WORDS, "greet", ["hi"])
    assert p.run(x="a").text == "rude hi a."
    monkeypatch.setitem(globals(), "tone", lambda: "calm")
    assert p.run(x="a").text == "calm hi a."
    suffix = "!"
    assert p.run(x="a").text == "calm hi a!"


class Style:
    """An object of the user's own."""

    def __init__(self, word: str) -> None:
        self.word = word

    def greeting(self) -> str:
        return f"good {self.word}"


class Slotted:
    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word


STYLE = Style("day")
SLOTTED = Slotted("one")


def test_objects_of_the_users_own_classes_are_read_through(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += f"{STYLE.greeting()} {SLOTTED.word} {x}"

    assert p.run(x="a").text == "good day one a"
    monkeypatch.setattr(STYLE, "word", "night")
    assert p.run(x="a").text == "good night one a"
    monkeypatch.setattr(SLOTTED, "word", "two")
    assert p.run(x="a").text == "good night two a"


def test_modules_of_the_users_own_are_read_through(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "settings_of_mine.py").write_text("WORD = 'old'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import settings_of_mine  # type: ignore[import-not-found]

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += settings_of_mine.WORD + x

    assert p.run(x="a").text == "olda"
    settings_of_mine.WORD = "new"
    assert p.run(x="a").text == "newa"


def test_an_object_in_the_place_of_another_in_memory_is_not_taken_for_it(
    fake: lmc.Engine,
) -> None:
    held: Any = None

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += f"{held}{x}"

    for n in range(5):  # each is freed before the next is made
        held = None
        held = UserString(f"{n}")
        assert p.run(x="a").text == f"{n}a"


def test_arguments_that_change_are_read_anew(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, names: set[str]) -> None:
        s += ",".join(sorted(names))

    names = {"a"}
    assert p.run(names=names).text == "a"
    names.add("b")
    assert p.run(names=names).text == "a,b"


def test_what_lmc_does_itself_while_tracing_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    from lmc.frontend import tracer

    def read(constraint: object) -> None:
        with contextlib.suppress(AttributeError):
            constraint.name  # type: ignore[attr-defined] # noqa: B018 - as parsers try things

    monkeypatch.setattr(tracer, "automaton_for", read)

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += lmc.gen("a", regex="[a-z]+", max_tokens=3)
        s += x

    assert "flow.resume" not in str(p.trace())


def test_a_schema_of_a_class_is_made_unwatched() -> None:
    class Tries:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            with contextlib.suppress(KeyError):
                {}["nothing"]  # as pydantic does, wherever it is installed
            return {"type": "integer"}

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x
        s += lmc.gen("a", json_schema=Tries, max_tokens=3)

    assert "flow.resume" not in str(p.trace())


def test_what_is_read_from_outside_may_be_large_and_hold_itself(fake: lmc.Engine) -> None:
    knot: list[Any] = ["k"]
    knot += [knot, knot]
    large = [str(n) for n in range(300_000)]

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += knot[0] + large[7] + x

    assert p.run(x="a").text == "k7a"
    knot[0] = "l"
    assert p.run(x="a").text == "l7a"


@lmc.tool(pure=True)
def picky(text: str) -> int:
    if "e" in text:
        raise ValueError("it has an e")
    return len(text)


def test_what_failed_first_is_the_error_also_where_a_later_condition_fails(
    fake: lmc.Engine,
) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        mark = s.mark()
        s += f"{picky(x)}"
        s.reset(mark)  # nothing reads what the tool gave
        s += lmc.gen("n", 1, type=int, temperature=0.9)
        if s["n"]:
            s += "some"

    assert p.run(x="tea").error is not None
    problems = [p.run(x=x, eager=eager).error for x in ("tea", "oats") for eager in (True, False)]
    told = [error and error.problem for error in problems]
    assert told[0] == told[1] == "picky() failed: ValueError: it has an e"
    assert told[2] == told[3] != told[0]
    assert "flow.if %b0 after %i0 {" in str(p.compile(x="").program)
