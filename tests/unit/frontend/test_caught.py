"""Who catches what fails, a model call or a tool; compiled = eager."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lmc
from lmc.frontend.dsl import State

Body = Callable[..., Any]
CATCHING: list[Body] = []
PASSING: list[Body] = []


@lmc.tool
def picky(text: str) -> str:
    if "e" in text:
        raise ValueError("an e")
    return text + "!"


def catching(function: Body) -> Body:
    CATCHING.append(function)
    return function


def passing(function: Body) -> Body:
    PASSING.append(function)
    return function


@contextlib.contextmanager
def forgiving() -> Iterator[None]:
    try:
        yield
    except Exception:
        return


def catches_what_it_is_given() -> Iterator[None]:
    try:
        yield
    except Exception:
        return


@contextlib.contextmanager
def forgiving_by_another() -> Iterator[None]:
    yield from catches_what_it_is_given()


@contextlib.contextmanager
def plain(s: State) -> Iterator[None]:
    s += "<"
    yield
    s += ">"


class Forgiving:
    def __enter__(self) -> Forgiving:
        return self

    def __exit__(self, *_: object) -> bool:
        return True


class Decorated(contextlib.ContextDecorator, Forgiving):
    pass


@catching
def suppressed(s: State, x: str) -> Any:
    with contextlib.suppress(Exception):
        return picky(x)
    s += "none"
    return s.text()


@catching
def through_a_stack(s: State, x: str) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(Exception))
        return picky(x)
    return "none"


@catching
def by_a_generator(s: State, x: str) -> Any:
    with forgiving(), s.user():
        s += picky(x)
    return s.text()


@catching
def by_a_generator_of_a_generator(s: State, x: str) -> Any:
    with forgiving_by_another():
        s += picky(x)
    return s.text()


@catching
def by_a_class_whose_objects_hold_others(s: State, x: str) -> Any:
    one = Forgiving()
    vars(one).update(__enter__=None, __exit__=None)  # the interpreter asks the class
    with one:
        s += picky(x)
    return s.text()


@catching
def by_a_class(s: State, x: str) -> Any:
    with Forgiving() as one, one:
        s += picky(x)
    return s.text()


@catching
def by_a_decorator(s: State, x: str) -> Any:
    @Decorated()
    def careful() -> str:
        return picky(x)

    return careful() or "none"


@catching
def a_group(s: State, x: str) -> Any:
    try:
        return picky(x)
    except* Exception:
        s += "none"
    return s.text()


@catching
def finally_that_returns(s: State, x: str) -> Any:
    said = "none"
    try:
        said = picky(x)
    finally:
        return said  # noqa: B012 - this is what is tested


@catching
def finally_that_breaks(s: State, x: str) -> Any:
    said = "none"
    for _ in range(2):
        try:
            said = picky(x)
        finally:
            break  # noqa: B012 - this is what is tested
    return said


@catching
def in_a_generator(s: State, x: str) -> Any:
    def both() -> Iterator[str]:
        with contextlib.suppress(Exception):
            yield "before"
            yield picky(x)

    return [str(one) for one in both()]


@catching
def a_typed_gen(s: State, x: str) -> Any:
    s += x + lmc.gen("n", type=int, max_tokens=1)
    with contextlib.suppress(Exception):
        return s["n"] + 1
    return "none"


@passing
def blocks_of_lmc(s: State, x: str) -> Any:
    with s.user(), s.var("v"):
        s += x + lmc.gen("a", max_tokens=2)
        s += s["a"]
    return s["v"]


@passing
def that_do_not_catch(s: State, x: str) -> Any:
    s += x + lmc.gen("a", max_tokens=2)
    with contextlib.nullcontext(), threading.Lock(), plain(s):
        s += s["a"]
    try:
        s += s["a"]
    finally:
        s += "."
    with contextlib.suppress(Exception):
        s += "?"
    return s["a"]


def outcome(program: lmc.Program, x: str, **more: Any) -> object:
    out = program.run(x=x, **more)
    return str(out.error) if out.error else (out.text, out.variables, out.value)


@pytest.mark.parametrize("body", CATCHING, ids=lambda body: body.__name__)
def test_what_may_be_caught_is_not_read_in_the_graph(fake: lmc.Engine, body: Body) -> None:
    program = lmc.jit(body)
    for x in ("abc", "dea"):
        assert outcome(program, x) == outcome(program, x, eager=True)
    assert "which may catch" in str(program.compile(x="abc").program)


@pytest.mark.parametrize("body", PASSING, ids=lambda body: body.__name__)
def test_blocks_that_catch_nothing_do_not_end_the_graph(fake: lmc.Engine, body: Body) -> None:
    program = lmc.jit(body)
    assert "flow.resume" not in str(program.compile(x="abc").program)
    for x in ("abc", "dea"):
        assert outcome(program, x) == outcome(program, x, eager=True)


def test_generators_left_behind_by_another_program_do_not_count(fake: lmc.Engine) -> None:
    @lmc.jit
    def leaves(s: State, x: str) -> None:
        def waiting() -> Iterator[str]:
            try:
                yield x
            except ValueError:
                yield "never"

        kept: list[Any] = [waiting()]
        kept.append(kept)  # collected at any time
        s += next(kept[0])

    @lmc.jit
    def later(s: State, x: str) -> Any:
        s += x + lmc.select("k", ["a", "b"])
        if s["k"] == "a":
            return None
        gc.collect()
        try:
            return picky(x)
        except Exception:
            return "none"

    gc.disable()
    try:
        leaves.compile(x="e")
        assert "which may catch" in str(later.compile(x="e").program)
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_deleted_may_fail(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        class Last:
            def __del__(self) -> None:
                s.extend(picky(x))

        Last()
        s += "after"

    for x in ("abc", "dea"):
        assert outcome(p, x) == outcome(p, x, eager=True)
    assert "which may catch" in str(p.compile(x="abc").program)


BLOCKS = {
    "try": ("try:\n        v = picky(x)\n    except Exception:\n        v = 'none'", True),
    "with": ("v = 'none'\n    with suppress(Exception):\n        v = picky(x)", True),
    "inner": ("def inner():\n        with suppress(Exception):\n            return picky(x)\n"
              "    v = inner() or 'none'", True),
    "before": ("v = picky(x)\n    try:\n        s += 'a'\n    except OSError: ...", False),
    "lmc": ("with s.user():\n        v = picky(x)", False),
    "lock": ("with Lock():\n        v = picky(x)", False),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_without_a_source_too(fake: lmc.Engine, name: str) -> None:
    body, caught = BLOCKS[name]
    space: dict[str, Any] = {
        "lmc": lmc, "picky": picky, "suppress": contextlib.suppress, "Lock": threading.Lock,
    }  # fmt: skip
    exec(f"@lmc.jit\ndef p(s, x):\n    {body}\n    s += f'<{{v}}>'\n", space)
    program = space["p"]
    for x in ("abc", "dea"):
        assert outcome(program, x) == outcome(program, x, eager=True)
    assert ("which may catch" in str(program.compile(x="abc").program)) is caught
