"""Tools in programs: compiled and eager alike, failures, order, threads, time limits, results."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lmc
from lmc.errors import Cancelled, PlanError, ToolError, UsageError
from lmc.frontend.dsl import State

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def calls() -> Iterator[list[Any]]:
    CALLS.clear()
    yield CALLS
    CALLS.clear()


def shown(out: lmc.Result) -> Any:
    error = out.error and (type(out.error).__name__, out.error.problem, str(out.error.where))
    return (out.variables if error is None else None, out.text, out.value, error)


def both(program: lmc.Program, **arguments: object) -> lmc.Result:
    """The result of the compiled program, which must be that of the eager one."""
    CALLS.clear()
    eager = program.run(eager=True, **arguments)
    made = list(CALLS)
    for level in (0, 2):
        CALLS.clear()
        out = program.run(options=lmc.Options(level=level), **arguments)
        if eager.error is None:
            assert shown(out) == shown(eager)
        assert shown(out)[3] == shown(eager)[3]
        assert made == CALLS  # the same calls in the same order
    return out


@lmc.tool
def search(query: str, limit: int = 2) -> str:
    CALLS.append(("search", query, limit))
    return f"<{query}:{limit}>"


@lmc.tool(pure=True)
def double(n: int) -> int:
    return 2 * n


@lmc.tool
def lookup(key: str) -> Any:
    CALLS.append(("lookup", key))
    return {
        "a": {"title": "Tea", "pages": [1, 2.5, None], "open": True},
        "n": None,
        "7": 7,
        "l": ["x", "y"],
        "": "",
    }.get(key, key)


def broken(text: str) -> str:
    CALLS.append(("broken", text))
    raise ValueError(f"no {text}")


def plain(text: str, n: int = 1) -> str:
    return text * n


def test_outside_of_programs_tools_are_plain_functions() -> None:
    assert search("q", limit=3) == "<q:3>"
    assert lmc.call(plain, "a", n=2) == "aa"
    assert search.__name__ == "search"
    assert pickle.loads(pickle.dumps(search)) is search

    @lmc.tool
    async def later(x: str) -> str:
        return x

    assert asyncio.run(later("x")) == "x"


def test_a_tool_compiles_and_its_result_is_a_text(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += "Q: "
        s += lmc.gen("q", max_tokens=4)
        found = search(s["q"].strip() + x, limit=1)
        s += found
        if "a" in found:
            s += lmc.gen("more", max_tokens=2)
        return found.upper()

    assert "flow.resume" not in str(p.trace())
    assert "host.call" in str(p.trace())
    for x in ("", "abc"):
        out = both(p, x=x)
        assert out.value == f"<{out['q'].strip()}{x}:1>".upper()


def test_numbers_truth_values_and_lists_compile_by_annotation(fake: lmc.Engine) -> None:
    @lmc.tool
    def length(x: str) -> int:
        return len(x)

    @lmc.tool
    def is_long(x: str) -> bool:
        return len(x) > 2

    @lmc.tool
    def half(x: str) -> float:
        return len(x) // 2  # an int, which is read as the float it is said to be

    @lmc.tool
    def words(x: str) -> list[str]:
        return x.split()

    @lmc.jit
    def p(s: State, x: str) -> Any:
        n = length(x)
        found = words(x)
        s += f"{n} {half(x)} {', '.join(found)} {double(n + 1)}"
        if is_long(x) and n > 3:
            s += " long"
        return [n, half(x), found]

    assert "flow.resume" not in str(p.trace())
    for x in ("", "abc", "a b c"):
        both(p, x=x)


def test_results_of_no_known_type_are_formatted_compared_and_indexed(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        found = lookup(x)
        s += f"[{found}]" + str(found)
        if found is None:
            return "nothing"
        if found == "text" or found == 7:
            return found
        if not found:
            return "empty"
        s += f"{found['title']}: {found['pages'][1]}"
        return {"all": found, "open": found["open"] == True}  # noqa: E712

    assert "flow.resume" not in str(p.trace())
    for x in ("a", "n", "7", "text", ""):
        assert both(p, x=x).error is None
    error = both(p, x="l").error
    assert "TypeError: list indices must be integers" in str(error)
    assert "test_tools.py" in str(error)


def test_other_uses_of_a_result_go_on_eagerly_without_calling_again(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        before = search("first")
        s += lmc.gen("a", max_tokens=2)
        found = lookup(x)
        s += before
        kinds = [isinstance(found, dict), type(found).__name__]
        if isinstance(found, dict):
            found["title"] = "changed"
        after = lookup("n")
        s += lmc.gen("b", max_tokens=2)
        return [found, kinds, after]

    text = str(p.trace())
    assert "flow.resume" in text
    for x in ("a", "n", "l"):
        both(p, x=x)
    assert [name for name, *_ in CALLS] == ["search", "lookup", "lookup"]


def test_arguments_may_be_nested_and_are_copies(fake: lmc.Engine) -> None:
    def take(rows: list[dict[str, Any]], *more: Any, key: tuple[Any, ...]) -> Any:
        CALLS.append((rows, more, key))
        rows.append({"mine": 1})
        return [rows, key]

    @lmc.jit
    def p(s: State, x: str) -> Any:
        mine = [{"x": x.strip(), "n": 1}]
        found = lmc.call(take, mine, None, 1.5, key=(x, True))
        return [mine, found]

    assert "flow.resume" not in str(p.trace())
    out = both(p, x=" a")
    assert out.value[0] == [{"x": "a", "n": 1}]
    assert out.value[1] == [[{"x": "a", "n": 1}, {"mine": 1}], (" a", True)]


def test_a_failing_tool_is_an_error_of_its_row_at_the_line_of_the_call(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += lmc.gen("a", max_tokens=2)
        if x != "fine":
            lmc.call(broken, x)
            search("never")
        s += lmc.gen("b", max_tokens=2)
        return "done"

    out = both(p, x="bread")
    assert isinstance(out.error, ToolError)
    assert out.error.problem == "broken() failed: ValueError: no bread"
    assert "test_tools.py" in str(out.error.where)
    assert isinstance(out.error.__cause__, ValueError)
    assert CALLS == [("broken", "bread")]
    outs = p.run_batch([{"x": "fine"}, {"x": "tea"}, {"x": "fine"}])
    assert [o.error is None for o in outs] == [True, False, True]
    assert outs[2].value == "done"


def test_of_several_failing_tools_the_first_of_the_program_is_told(fake: lmc.Engine) -> None:
    @lmc.tool(pure=True)
    def slow(x: str) -> str:
        time.sleep(0.05)
        raise ValueError("slow")

    @lmc.tool(pure=True)
    def fast(x: str) -> str:
        raise ValueError("fast")

    @lmc.jit
    def p(s: State, x: str) -> None:
        slow(x)
        fast(x)

    assert "slow() failed" in str(both(p, x="a").error)


def test_a_failure_may_be_caught(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        try:
            found = lmc.call(broken, x)
        except ToolError as error:
            found = f"sorry: {error.problem}"
        s += found
        try:
            title = lookup(x)["title"]
        except (KeyError, TypeError):
            title = "none"
        return title

    assert both(p, x="a").value == "Tea"
    assert both(p, x="l").value == "none"


def test_tools_with_effects_keep_their_order_and_wait_for_what_was_read(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        forks = s.fork(3)
        for n, fork in enumerate(forks):
            fork += f"{n}: "
            fork += lmc.gen("a", max_tokens=5 - n)
            search(fork["a"])
            lookup(f"{n}")

    both(p, x="a")
    assert [call[0] for call in CALLS] == ["search", "lookup"] * 3


def test_pure_tools_run_side_by_side_and_once_for_equal_arguments(fake: lmc.Engine) -> None:
    together = threading.Barrier(3, timeout=20)
    counts: dict[str, int] = {}

    @lmc.tool(pure=True)
    def fetch(x: str) -> str:
        counts[x] = counts.get(x, 0) + 1
        together.wait()  # all three at the same time, or nobody goes on
        return x + "!"

    @lmc.jit
    def p(s: State, x: str) -> Any:
        return [fetch(x + one) for one in ("a", "b", "c", "a")]

    assert p.run(x="").value == ["a!", "b!", "c!", "a!"]
    assert counts == {"a": 1, "b": 1, "c": 1}
    outs = p.run_batch([{"x": ""}] * 5)
    assert [out.value for out in outs] == [["a!", "b!", "c!", "a!"]] * 5
    assert counts == {"a": 2, "b": 2, "c": 2}  # once a run, for all rows


def test_equal_pure_calls_are_one_value_in_the_graph(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += f"{double(len(x))} {double(len(x))}"
        search(x)
        search(x)

    text = str(p.compile().program)
    assert text.count('"double"') == 1
    assert text.count('"search"') == 2
    both(p, x="abc")


def test_a_pure_result_is_nobody_elses(fake: lmc.Engine) -> None:
    @lmc.tool(pure=True)
    def rows() -> Any:
        counted.append(1)
        return [["a"]]

    counted: list[int] = []

    @lmc.jit
    def p(s: State) -> Any:
        found = []
        for n in range(3):
            found.append(rows())
            found[-1][0].append(n)
        return found

    assert both(p).value == [[["a", 0]], [["a", 1]], [["a", 2]]]
    assert len(counted) == 3  # runs


def test_retries_pause_and_then_give_up(fake: lmc.Engine) -> None:
    moments: list[float] = []

    @lmc.tool(retries=2, backoff=0.02)
    def flaky(good: int) -> str:
        moments.append(time.monotonic())
        if len(moments) < good:
            raise OSError("try later")
        return "fine"

    @lmc.jit
    def p(s: State, good: int) -> Any:
        return flaky(good)

    assert p.run(good=3).value == "fine"
    assert moments[1] - moments[0] >= 0.015
    assert moments[2] - moments[1] >= 0.03
    moments.clear()
    out = p.run(good=9)
    assert "flaky() failed 3 times, at last: OSError: try later" in str(out.error)
    assert len(moments) == 3


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_tool_that_takes_too_long_is_given_up(kind: str, fake: lmc.Engine) -> None:
    go_on = threading.Event()

    @lmc.tool(timeout=0.05)
    def stuck() -> str:
        go_on.wait(20)
        return "late"

    @lmc.tool(timeout=0.05)
    async def asleep() -> str:
        await asyncio.sleep(20)
        return "late"

    @lmc.jit
    def p(s: State) -> Any:
        return stuck() if kind == "sync" else asleep()

    try:
        for eager in (False, True):
            out = p.run(eager=eager)
            assert "took longer than 0.05 s" in str(out.error)
            assert "timeout" in str(out.error)
    finally:
        go_on.set()


def test_threads_that_are_stuck_do_not_keep_others_out() -> None:
    go_on = threading.Event()

    @lmc.tool(timeout=0.02)
    def stuck() -> str:
        go_on.wait(20)
        return "late"

    @lmc.jit
    def p(s: State, x: str) -> Any:
        if x == "stuck":
            return stuck()
        return search(x)

    try:
        with lmc.Engine("fake", tool_workers=1) as engine:
            outs = p.run_batch([{"x": "stuck"}] * 4 + [{"x": "a"}], engine=engine)
            assert outs[4].value == "<a:2>"
            assert all(isinstance(out.error, ToolError) for out in outs[:4])
    finally:
        go_on.set()


def test_async_tools_run_at_the_same_time_on_one_loop(fake: lmc.Engine) -> None:
    loops: set[int] = set()
    arrived = 0
    everyone = asyncio.Event()

    @lmc.tool(pure=True)
    async def meet(n: int) -> str:
        nonlocal arrived
        loops.add(id(asyncio.get_running_loop()))
        arrived += 1
        if arrived == 3:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), 20)
        return f"{n}"

    @lmc.jit
    def p(s: State, x: str) -> Any:
        return [meet(len(x) + n) for n in range(3)]

    assert p.run(x="").value == ["0", "1", "2"]
    assert len(loops) == 1


def test_the_pool_has_a_size() -> None:
    running = most = 0
    lock = threading.Lock()

    @lmc.tool(pure=True)
    def work(n: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return n

    @lmc.jit
    def p(s: State, x: str) -> Any:
        return [work(len(x) + n) for n in range(8)]

    with lmc.Engine("fake", tool_workers=2) as engine:
        assert p.run(x="", engine=engine).value == list(range(8))
    assert most == 2
    with pytest.raises(UsageError, match="tool_workers"):
        lmc.Engine("fake", tool_workers=0)


def test_programs_inside_of_tools_do_not_wait_for_each_other() -> None:  # B-72
    @lmc.tool(retries=2, backoff=0.0)
    def inner(x: str) -> str:
        CALLS.append(x)
        if len(CALLS) % 2:
            raise OSError("again")
        return x + "i"

    @lmc.jit
    def small(s: State, x: str) -> str:
        s += lmc.gen("a", max_tokens=2)
        return inner(x)

    @lmc.tool(retries=1)
    def outer(x: str) -> str:
        return small.run(x=x)["a"] + small.run(x=x, eager=True).value

    @lmc.jit
    def large(s: State, x: str) -> Any:
        return outer(x)

    with lmc.Engine("fake", tool_workers=1) as engine, lmc.use(engine):
        outs = large.run_batch([{"x": "a"}] * 3, deadline=60)
        assert [out.error for out in outs] == [None] * 3
        assert all(out.value.endswith("ai") for out in outs)


def test_tools_see_the_context_variables_of_the_run(fake: lmc.Engine) -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")

    @lmc.tool
    def who() -> str:
        return user.get("nobody")

    @lmc.tool
    async def who_async() -> str:
        return user.get("nobody")

    @lmc.jit
    def p(s: State) -> Any:
        return [who(), who_async()]

    user.set("Ada")
    assert both(p).value == ["Ada", "Ada"]


def test_a_row_that_ends_gives_up_its_tools(fake: lmc.Engine) -> None:
    started, cancelled = threading.Event(), threading.Event()

    @lmc.tool(pure=True)
    async def asleep() -> str:
        started.set()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    @lmc.jit
    def p(s: State) -> Any:
        return asleep()

    out = p.run(deadline=0.2)
    assert isinstance(out.error, Cancelled)
    assert started.is_set()
    assert cancelled.wait(10)


def test_closing_an_engine_ends_its_threads() -> None:
    before = set(threading.enumerate())

    @lmc.jit
    def p(s: State, x: str) -> Any:
        return [lmc.call(plain, x), double(len(x)), double(len(x) + 1)]

    for _ in range(5):
        with lmc.Engine("fake") as engine:
            p.run_batch([{"x": "a"}, {"x": "b"}], engine=engine)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread.name


def test_closing_an_engine_does_not_wait_for_its_tools() -> None:
    go_on, started = threading.Event(), threading.Event()

    @lmc.tool
    def stuck() -> None:
        started.set()
        go_on.wait(60)

    @lmc.jit
    def p(s: State) -> Any:
        stuck()

    engine = lmc.Engine("fake")
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(p.run, engine=engine)
            assert started.wait(20)
            begun = time.monotonic()
            engine.close()
            assert time.monotonic() - begun < 10
            assert isinstance(running.result(20).error, Cancelled)
    finally:
        go_on.set()


@pytest.mark.parametrize(
    ("result", "annotation", "says"),
    [
        ({1, 2}, Any, "bad() returned a set, which a program cannot hold"),
        ([object()], Any, "bad() returned a object, which a program cannot hold"),
        ({(1, 2): "x"}, Any, "bad() returned a dictionary with a tuple as a key"),
        (7, str, "bad() returned a int, not what its annotation says"),
        ([1], list[str], "bad() returned a list, not what its annotation says"),
        (True, int, "bad() returned a bool, not what its annotation says"),
    ],
)
def test_results_that_programs_cannot_hold(
    result: object, annotation: Any, says: str, fake: lmc.Engine
) -> None:
    def bad(x: str) -> Any:
        return result

    bad.__annotations__["return"] = annotation

    @lmc.jit
    def p(s: State, x: str) -> Any:
        return lmc.call(bad, x)

    assert says in str(both(p, x="a").error)


def test_a_result_that_holds_itself(fake: lmc.Engine) -> None:
    def knot() -> Any:
        held: list[Any] = []
        held.append(held)
        return held

    @lmc.jit
    def p(s: State) -> Any:
        return lmc.call(knot)

    assert "knot() returned a knot" in str(both(p).error)


@pytest.mark.parametrize("error", [SystemExit("leave"), KeyboardInterrupt(), StopIteration("x")])
def test_a_tool_may_raise_anything(error: BaseException, fake: lmc.Engine) -> None:
    def leave(x: str) -> str:
        raise error

    async def leave_async(x: str) -> str:
        raise error if not isinstance(error, StopIteration) else OSError("x")

    @lmc.jit
    def p(s: State, x: str) -> Any:
        return lmc.call(leave, x)

    @lmc.jit
    def q(s: State, x: str) -> Any:
        return lmc.call(leave_async, x)

    assert "leave() failed" in str(both(p, x="a").error)
    assert "leave_async() failed" in str(both(q, x="a").error)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: lmc.tool(3), "a tool is a function, not int"),
        (lambda: lmc.tool(str), "a tool is a function, not type"),
        (lambda: lmc.tool(plain, timeout=-1), "timeout is -1"),
        (lambda: lmc.tool(plain, retries=-1), "retries is -1"),
        (lambda: lmc.tool(plain, backoff="x"), "backoff is 'x'"),
        (lambda: lmc.tool(lambda: (yield)), "is a generator"),
        (lambda: lmc.call("plain"), "a tool is a function, not str"),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], Any], match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        make()
    assert "test_tools.py" in str(caught.value.where)


def test_wrong_arguments_of_a_tool_are_its_failure(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        return search(x, wrong=1)

    assert "search() failed: TypeError" in str(both(p, x="a").error)


def test_a_state_is_no_argument(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        return search(s)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=r"search\(\) was given a State"):
        p.run(x="a")
    assert "search() was given a State" in str(p.run(x="a", eager=True).error)


class Library:
    def __init__(self, name: str) -> None:
        self.name = name

    def find(self, x: str) -> str:
        return f"{self.name}: {x}"

    @lmc.tool
    def borrow(self, x: str) -> str:
        return f"{self.name} lends {x}"


def test_methods_lambdas_and_functions_made_inside(fake: lmc.Engine) -> None:
    one, two = Library("one"), Library("two")

    @lmc.jit
    def p(s: State, x: str) -> Any:
        n = 3
        return [
            lmc.call(one.find, x),
            lmc.call(two.find, x),
            one.borrow(x),
            two.borrow(x),
            lmc.call(lambda y: y * n, x),
            lmc.call(lambda y: f"{y}{len(y)}", x + "!"),
        ]

    assert "flow.resume" not in str(p.trace())
    assert both(p, x="a").value == ["one: a", "two: a", "one lends a", "two lends a", "aaa", "a!2"]

    @lmc.jit
    def q(s: State, x: str) -> Any:
        return lmc.call(lambda: x + "!")

    assert "flow.resume" in str(q.trace())
    assert both(q, x="a").value == "a!"


def test_what_a_tool_reads_does_not_make_its_program_compile_again(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        return search(x)  # which appends to a global list

    before = p.compile(x="a")
    p.run(x="a")
    assert p.compile(x="b") is before


def test_a_tool_may_be_an_argument(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str, ask: lmc.Tool) -> Any:
        return ask(x)

    assert both(p, x="a", ask=search).value == "<a:2>"
    assert p.compile(x="a", ask=search) is p.compile(x="b", ask=search)


def test_artifacts_take_their_tools_when_they_are_loaded(tmp_path: Any, fake: lmc.Engine) -> None:
    from lmc.codegen.artifact import Artifact, write_artifact

    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += search(x)
        return double(len(x))

    made = p.compile()
    write_artifact(tmp_path / "p.lmc", Artifact(made.plan, str(made.program)))
    out = lmc.load(tmp_path / "p.lmc", tools=[search, double]).run(x="ab")
    assert shown(out) == shown(p.run(x="ab"))
    out = lmc.load(tmp_path / "p.lmc").run(x="ab")
    assert isinstance(out.error, PlanError)
    assert "calls the tool search()" in str(out.error)


def test_tools_inside_tools_are_plain_calls(fake: lmc.Engine) -> None:
    @lmc.tool
    def outer(x: str) -> str:
        return search(x).upper()

    @lmc.jit
    def p(s: State, x: str) -> Any:
        return outer(x)

    assert both(p, x="a").value == "<A:2>"
    assert CALLS == [("search", "a", 2)]
