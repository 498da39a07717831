"""Programs whose text is at hand in some strange place, or nowhere; compiled = eager anyway."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import linecache
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.commands.report import advice
from lmc.errors import UsageError
from lmc.frontend import location
from lmc.frontend.dsl import State

TYPED = """
@lmc.jit
def p(s, x):
    s += f"Say {x!s} in {len(x)} letters: " + ", ".join([x, "please"])
    s += lmc.gen("a", 3)
"""


def defined(text: str, name: str = "<nowhere>", **names: Any) -> lmc.Program:
    """The program `p` of a text, compiled as if it stood in the file `name`."""
    space: dict[str, Any] = {"lmc": lmc, "__name__": "__main__", **names}
    exec(compile(text, name, "exec"), space)
    program = space["p"]
    assert isinstance(program, lmc.Program)
    return program


def reasons(program: lmc.Program, x: str = "it") -> list[str]:
    """Why its graph ends before the program does."""
    lines = str(program.compile(x=x).program).splitlines()
    return [line.split('"')[1] for line in lines if "flow.resume" in line]


def same(program: lmc.Program, x: str = "it") -> lmc.Result:
    compiled, eager = program.run(x=x), program.run(x=x, eager=True)
    assert (compiled.text, compiled.variables) == (eager.text, eager.variables)
    assert compiled.error is None
    return compiled


@pytest.mark.parametrize(
    "name", ["<python-input-7>", "<stdin>-7", "<ipython-input-7-0123456789ab>"]
)
def test_what_is_typed_into_a_shell_that_keeps_it_is_read(fake: lmc.Engine, name: str) -> None:
    linecache.cache[name] = (len(TYPED), None, TYPED.splitlines(keepends=True), name)
    program = defined(TYPED, name)
    assert not reasons(program)
    assert same(program).text.startswith("Say it in 2 letters: it, please")


def test_a_shell_may_keep_it_where_only_inspect_finds_it(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def findsource(function: object) -> tuple[list[str], int]:
        assert inspect.isfunction(function)
        return TYPED.splitlines(keepends=True), 1

    monkeypatch.setattr(inspect, "findsource", findsource)
    program = defined(TYPED, "<python-input-8>")
    assert not reasons(program)
    same(program)


def test_a_text_that_is_not_the_programs_is_not_taken_for_it(fake: lmc.Engine) -> None:
    other = TYPED.replace("Say", "Do not say")
    linecache.cache["<cell 9>"] = (len(other), None, other.splitlines(keepends=True), "<cell 9>")
    assert same(defined(TYPED, "<cell 9>")).text.startswith("Say it")


@lmc.tool
def nothing(x: str) -> Any:
    return None


@lmc.tool
def several(x: str) -> Any:
    return ["a", "b"]


def kind(value: object) -> str:
    return type(value).__name__


def given(value: object) -> str:
    return "no" if value is None else "yes"


def truth(value: object) -> str:
    return "yes" if value is True else "no"


def shape(value: object) -> str:
    match value:
        case [_, _]:
            return "two"
    return "one"


UNSEEN = {
    "type": ("s += type(x).__name__", "`type()` in code whose source"),
    "none": ("s += 'no' if lmc.call(nothing, x) is None else 'yes'", "`is` in code whose source"),
    "not_none": (
        "v = lmc.call(nothing, x)\n    if v is not None:\n        s += 'a'",
        "`is` in code",
    ),
    "true": ("s += 'a' if x.startswith('i') is True else 'b'", "`is` in code whose source"),
    "match": (
        "match lmc.call(several, x):\n        case [_, _]:\n            s += 'two'",
        "`match` in code whose source",
    ),
    "helper": ("s += kind(x)", "`type()` in code whose source"),
    "inner": ("s += ''.join([type(v).__name__ for v in [x]])", "`type()` in code whose source"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_without_a_source_what_cannot_be_seen_ends_the_graph(fake: lmc.Engine, name: str) -> None:
    body, why = UNSEEN[name]
    program = defined(
        "def kind(value):\n    return type(value).__name__\n"
        f"@lmc.jit\ndef p(s, x):\n    s += 'A: '\n    {body}\n    s += lmc.gen('a', 3)\n",
        nothing=nothing, several=several,
    )  # fmt: skip
    same(program)
    (reason,) = reasons(program)
    assert reason.startswith(why)
    assert "exec()" in advice(reason)


SEEN = """
def shout(v, end="!"):
    return f"{v}{end}"

def separated(xs):
    return "; ".join(xs)

@lmc.jit
def p(s, x):
    s += f"Say {x!s} in {len(x)} letters {x!r}: " + ", ".join([x, "please"])
    s += lmc.gen("a", max_tokens=3)
    alone = f"{s['a']}"
    s += f"<{alone}>{3:>4}{2.5:.1f}{'k'!r:>6}{shout(x)}{shout(x, end='?')}" + str(b"ab", "utf-8")
    for i in range(2):
        with s.user():
            s += f" {i} {kind(alone)} " + separated([x, alone, *[f"[{y}]" for y in (x, 'b')]])
    s += str(len(s["a"])) + str(x) + (lambda v: f"({v})")(x)
    s += "long" if len(f"{x}") > 3 else "short"
    if f"{x}!" == "it!":
        s += f"{x}".upper()
    try:
        s += f"{{}}{x}"
    finally:
        s += "."
    return {"a": f"{x}-{alone}", "b": [f"{x}"]}
"""


@pytest.mark.parametrize("x", ["it", "longer", "\n'\"{}", ""])
def test_without_a_source_f_strings_and_the_like_are_read_from_the_code(
    fake: lmc.Engine, x: str
) -> None:
    program = defined(SEEN, kind=kind)
    assert not reasons(program)
    result = same(program, x)
    assert result.value == program.run(x=x, eager=True).value
    assert result.text.startswith(f"Say {x} in {len(x)} letters {x!r}: {x}, please")


def test_without_a_source_a_name_may_mean_something_else(fake: lmc.Engine) -> None:
    program = defined(
        "def len(value):\n    return 'many'\n"
        "@lmc.jit\ndef p(s, x):\n    s += f'{len(x)} {x}'\n    s += lmc.gen('a', 3)\n"
    )
    assert same(program).text.startswith("many it")


@pytest.mark.parametrize("use", ["f'{x:>10}'", "f'{x!a}'", "'%s' % x", "str.join(', ', [x])"])
def test_without_a_source_what_needs_the_characters_ends_the_graph(
    fake: lmc.Engine, use: str
) -> None:
    program = defined(f"@lmc.jit\ndef p(s, x):\n    s += {use}\n    s += lmc.gen('a', 3)\n")
    same(program)
    assert len(reasons(program)) == 1


def test_without_a_source_what_can_be_seen_is_compiled(fake: lmc.Engine) -> None:
    program = defined(
        "@lmc.jit\ndef p(s, x):\n    s += 'A: ' + x.strip()\n    s += lmc.gen('a', 3)\n"
        "    s += s['a'].upper() if 'i' in x else x\n"
    )
    assert not reasons(program)
    same(program)


@pytest.mark.parametrize("helper", [kind, given, truth, shape], ids=lambda f: f.__name__)
def test_what_a_builtin_calls_is_not_fooled(fake: lmc.Engine, helper: Any) -> None:
    """`map` and others call a function as it is, not its copy."""

    @lmc.jit
    def p(s: State, x: str) -> None:
        value: object = x
        if helper is given:
            value = lmc.call(nothing, x)
        elif helper is truth:
            value = x.startswith("i")
        elif helper is shape:
            value = lmc.call(several, x)
        s += "".join(map(helper, [value]))
        s += lmc.gen("a", 3)

    same(p)
    (reason,) = reasons(p)
    assert "in a function that Python calls by itself" in reason
    assert "[f(x) for x in xs]" in advice(reason)


def test_type_may_be_handed_to_a_builtin(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += "".join(t.__name__ for t in map(type, [x, 3]))
        s += " yes" if isinstance(x, type) else " no"
        s += lmc.gen("a", 3)

    assert not reasons(p)
    assert same(p).text.startswith("strint no")


def test_a_builtin_may_call_what_asks_for_none_of_a_text(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += "".join(map(given, [x, "b"]))
        s += lmc.gen("a", 3)

    assert not reasons(p)
    assert same(p).text.startswith("yesyes")


@pytest.mark.parametrize("name", ["<nowhere>", "<stdin>-8"])
@pytest.mark.parametrize("builtin", ["len", "str"])
def test_a_name_may_mean_something_else_later(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch, name: str, builtin: str
) -> None:
    text = "\n@lmc.jit\ndef p(s, x):\n    s += f'{len(x)} ' + str(x)\n"
    if name != "<nowhere>":
        lines = text.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, name, (len(text), None, lines, name))
    program = defined(text, name)
    space: dict[str, Any] = program.function.__globals__
    assert same(program).text == "2 it"
    monkeypatch.setitem(space, builtin, lambda _: "other")
    assert same(program).text == {"len": "other it", "str": "2 other"}[builtin]
    monkeypatch.delitem(space, builtin)
    assert same(program).text == "2 it"


INSTALLED = {
    "prompts/__init__.py": "",
    "prompts/tones.py": """
        def ending(x):
            return " kindly" if x.startswith("a") else f" {TONE}"

        TONE = "plainly"
    """,
    "prompts/deep/__init__.py": "",
    "prompts/deep/asking.py": """
        import lmc
        from prompts import tones

        @lmc.jit
        def ask(s, x: str):
            s += f"{x}?" if x else "what?"
            s += tones.ending(x)
            if len(x) > 2:
                raise ValueError("too long")
    """,
    "single.py": """
        import lmc

        @lmc.jit
        def ask(s, x: str):
            s += "yes" if x else "no"
    """,
    "other.py": "",
}


def test_what_is_installed_with_a_program_is_the_users_own(
    tmp_path: Path, fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in INSTALLED.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.setattr(location, "_INSTALLED", f"{os.path.realpath(tmp_path)}{os.sep}")
    monkeypatch.setattr(location, "_programs", set())
    monkeypatch.syspath_prepend(tmp_path)
    location.is_library.cache_clear()
    try:
        asking = importlib.import_module("prompts.deep.asking")
        single = importlib.import_module("single")
        for x in ("", "a", "b"):
            same(asking.ask, x=x)
            same(single.ask, x=x)
        assert set(reasons(asking.ask)) == {"ValueError: too long"}
        assert not reasons(single.ask)
        error = asking.ask.run(x="abc").error
        assert Path(error.where.file).name == "asking.py"
        monkeypatch.setattr(asking.tones, "TONE", "warmly")  # is a part of what it is compiled for
        assert asking.ask.run(x="b").text == "b? warmly"
        assert location.is_library(str(tmp_path / "other.py"))
    finally:
        location.is_library.cache_clear()
        for name in ("prompts", "prompts.tones", "prompts.deep", "prompts.deep.asking", "single"):
            sys.modules.pop(name, None)


def test_a_place_is_one_of_the_program_not_of_a_library(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        with contextlib.ExitStack() as stack:
            s += x
            stack.enter_context(s.user())
            stack.enter_context(s.assistant())

    line = p.function.__code__.co_firstlineno + 5
    for eager in (True, False):
        try:
            error = p.run(x="a", eager=eager).error
        except UsageError as raised:
            error = raised
        assert error is not None
        assert str(error.where).endswith(f"test_source.py:{line}")
