"""`fuse="statements"`: a straight run of statements is one row; eagerly and compiled alike."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc.errors import UsageError
from lmc.ir.ops import Gen, Match

FUSED = lmc.Options(fuse="statements")
NAME = {"name": "name", "regex": "[a-z]{1,9}"}
AGE = {"name": "age", "regex": "[0-9]{1,3}"}


def calls(function: Any) -> list[tuple[str, ...]]:
    """The gens of each model call of a program, in order."""
    graph = lmc.jit(function, fuse="statements").trace()
    found: list[tuple[str, ...]] = []
    for node in graph.walk():
        if isinstance(node.op, Match):
            found.append(node.op.names)
        elif isinstance(node.op, Gen):
            found.append((node.op.name,))
    return found


def said(function: Any, *, eager: bool, options: lmc.Options = FUSED) -> Any:
    with lmc.Engine("fake") as engine:
        out = lmc.jit(function).run(engine=engine, eager=eager, options=options)
    assert out.error is None
    return out.variables, out.text, out.value, [out.meta(name).token_ids for name in out.variables]


def person(s: Any) -> None:
    s += "Name: "
    s += lmc.gen(**NAME)
    s += ", age "
    s += lmc.gen(**AGE)
    s += "."


def in_one_row(s: Any) -> None:
    s += "Name: " + lmc.gen(**NAME) + ", age " + lmc.gen(**AGE) + "."


@pytest.mark.parametrize("eager", [False, True])
def test_statements_are_what_one_row_is(eager: bool) -> None:
    assert said(person, eager=eager) == said(in_one_row, eager=eager, options=lmc.Options())
    assert said(person, eager=eager) == said(in_one_row, eager=eager)


def test_it_is_not_what_they_are_apart() -> None:
    assert said(person, eager=False) != said(person, eager=False, options=lmc.Options())
    apart = [type(node.op) for node in lmc.jit(person).trace().walk()]
    assert Match not in apart
    assert calls(person) == [("name", "age")]


def reads(s: Any) -> object:
    s += lmc.gen(**NAME)
    value = s["name"]
    s += lmc.gen(**AGE)
    return value


def reads_elsewhere(s: Any) -> object:
    s += lmc.gen(**NAME)
    branch = s.copy()
    branch += "x" + lmc.gen(**AGE)
    s += lmc.gen(**AGE)
    return branch["age"]


def asks(s: Any) -> bool:
    s += lmc.gen(**NAME)
    known = "name" in s
    s += lmc.gen(**AGE)
    return known


def free(s: Any) -> None:
    s += lmc.gen(**NAME)
    s += lmc.gen("free", max_tokens=3)
    s += lmc.gen(**AGE)


def messages(s: Any) -> None:
    with s.user():
        s += "Who?"
    with s.assistant():
        s += lmc.gen(**NAME)
        s += ", "
        s += lmc.gen(**AGE)
    s.user("More?")
    with s.assistant():
        s += lmc.gen("more", regex="[a-z]{2}")
        s += "!"


def lists(s: Any) -> None:
    s += ["Name: ", lmc.gen(**NAME), ", age " + lmc.gen(**AGE)]
    s += lmc.gen("more", regex="[a-z]{2}")


def forks(s: Any) -> object:
    s += "A. "
    branches = s.fork(2)
    for n, branch in enumerate(branches):
        branch += f"{n}: "
        branch += lmc.gen("x", regex="[a-z]{1,4}")
        branch += "; "
        branch += lmc.gen("y", regex="[0-9]{2}")
    branches.join()
    s += "B. "
    s += lmc.gen("z", regex="[a-z]{2}")
    return s["x"]


def named(s: Any) -> str:
    with s.var("all"):
        s += "a"
        s += lmc.gen(**NAME)
        s += "b"
    return s["all"]


def goes_back(s: Any) -> None:
    s += lmc.gen(**NAME)
    mark = s.mark()
    s += lmc.gen(**AGE)
    s.reset(mark)
    s += "; "
    s += lmc.gen("more", regex="[a-z]{2}")


def typed(s: Any) -> int:
    s += "n: "
    s += lmc.gen("n", type=int)
    s += "."
    return int(s["n"])


def called(s: Any) -> object:
    s += lmc.gen(**NAME)
    other = lmc.jit(person).call(s)
    s += lmc.gen(**AGE)
    return other["age"]


def raced(s: Any) -> object:
    first = s.fork(2)
    for branch in first:
        branch += lmc.gen("x", regex="[a-z]{1,4}")
        branch += "; "
        branch += lmc.gen("y", regex="[0-9]{2}")
    return first.first()["y"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (reads, [("name",), ("age",)]),
        (reads_elsewhere, [("name",), ("age",), ("age",)]),
        (asks, [("name",), ("age",)]),
        (free, [("name",), ("free",), ("age",)]),
        (messages, [("name", "age"), ("more",)]),
        (lists, [("name", "age", "more")]),
        (forks, [("x", "y"), ("x", "y"), ("z",)]),
        (named, [("name",)]),
        (goes_back, [("name",), ("age",), ("more",)]),
        (called, [("name",), ("name", "age"), ("age",)]),
        (raced, [("x", "y"), ("x", "y")]),
    ],
    ids=lambda held: getattr(held, "__name__", ""),
)
def test_a_run_ends_where_something_else_is_done(function: Any, expected: Any) -> None:
    assert calls(function) == expected


ALL = [reads, reads_elsewhere, asks, free, messages, lists, forks, named, goes_back, typed, called]


@pytest.mark.parametrize("function", [*ALL, raced], ids=lambda f: f.__name__)
@pytest.mark.parametrize("level", [0, 2, 3])
def test_eager_and_compiled_are_the_same(function: Any, level: int) -> None:
    options = lmc.Options(level=level, fuse="statements")
    with lmc.Engine("fake") as engine:
        runs = [
            lmc.jit(function).run(engine=engine, eager=eager, options=options)
            for eager in (False, True)
        ]
    told = [(run.variables, run.text, run.value, str(run.error)) for run in runs]
    assert told[0] == told[1]


def test_the_program_or_the_run_says_it() -> None:
    own = lmc.jit(person, fuse="statements")
    with lmc.Engine("fake") as engine:
        texts = [
            own.run(engine=engine).text,
            own.run(engine=engine, eager=True).text,
            own.bind().run(engine=engine, options=lmc.Options(level=0)).text,
            lmc.jit(person).run(engine=engine, options=FUSED).text,
            lmc.jit(fuse="statements")(person).run_batch([{}], engine=engine)[0].text,
        ]
        assert len(set(texts)) == 1

        @lmc.jit
        def outer(s: Any) -> None:
            own(s)

        assert outer.run(engine=engine).text == lmc.jit(person).run(engine=engine).text


@pytest.mark.parametrize("eager", [False, True])
def test_a_wrong_constraint_is_told_with_its_line(eager: bool) -> None:
    def wrong(s: Any) -> None:
        s += "a"
        s += lmc.gen("x", regex="(")  # this line
        s += "b"

    line = wrong.__code__.co_firstlineno + 2
    with lmc.Engine("fake") as engine:
        try:
            error: Any = lmc.jit(wrong).run(engine=engine, eager=eager, options=FUSED).error
        except lmc.errors.ConstraintError as raised:
            error = raised
    assert f"test_fuse.py:{line}" in str(error)


@pytest.mark.parametrize("eager", [False, True])
def test_what_is_held_back_when_the_program_fails_is_not_made(eager: bool) -> None:
    @lmc.jit
    def fails(s: Any, x: str) -> None:
        s += lmc.gen(**NAME)
        if x:
            raise ValueError("no")

    with lmc.Engine("fake") as engine:
        out = fails.run(engine=engine, eager=eager, options=FUSED, x="y")
        assert str(out.error).startswith("ValueError: no")
        assert out.variables == {}
        assert engine.stats.requests == 0


def test_what_cannot_be_fused_is_refused() -> None:
    for use in (lambda: lmc.Options(fuse="all"), lambda: lmc.jit(person, fuse="all")):
        with pytest.raises(UsageError, match="fuse='all'\n  hint: use fuse=\"statements\""):
            use()
