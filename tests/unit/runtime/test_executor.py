"""The executor: many rows on one thread, errors that stay in their row, an end to everything."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

import lmc
from lmc.errors import Cancelled, InternalError, LmcError, RunError, UsageError
from lmc.frontend.dsl import State
from lmc.plan import Plan, Ret, Start
from lmc.runtime.request import Outcome, Step
from lmc.runtime.results import RowResult


@lmc.jit
def story(s: State, x: str, n: int = 3) -> None:
    s += f"About {x}: "
    forks = s.fork(n)
    forks += lmc.gen("part", max_tokens=8, temperature=0.9)
    forks.join()
    for part in s["part"]:
        s += part
    s += lmc.gen("end", max_tokens=5)


def test_a_thousand_rows_need_one_thread(fake: lmc.Engine) -> None:
    before = threading.active_count()
    seen = 0

    def rows() -> Iterator[dict[str, str]]:
        nonlocal seen
        for i in range(1000):
            seen = max(seen, threading.active_count())
            yield {"x": f"row {i}"}

    outs = story.run_batch(rows())
    assert len(outs) == 1000
    assert [o.index for o in outs] == list(range(1000))
    assert all(o.error is None for o in outs)
    assert seen <= before + 1
    assert outs[7].variables == story.run_batch([{"x": f"row {i}"} for i in range(8)])[7].variables


def test_rows_are_read_as_they_are_needed(fake: lmc.Engine) -> None:
    read = 0

    def rows() -> Iterator[dict[str, str]]:
        nonlocal read
        while True:
            read += 1
            yield {"x": str(read)}

    results = story.iter_batch(rows())
    for _ in range(5):
        next(results)
    results.close()
    assert read < 2000


def test_closing_a_batch_cancels_what_runs(fake: lmc.Engine) -> None:
    results = story.iter_batch([{"x": str(i)} for i in range(400)])
    next(results)
    results.close()
    until = time.monotonic() + 20
    while fake.core.has_work and time.monotonic() < until:
        time.sleep(0.01)
    assert not fake.core.has_work
    fake.core.audit()


def test_more_rows_than_kv(fake: lmc.Engine) -> None:
    rows = [{"x": f"{i} " * 20} for i in range(60)]
    wanted = [o.variables for o in story.run_batch(rows)]
    with lmc.Engine("fake", kv_tokens=200) as small:
        assert [o.variables for o in story.run_batch(rows, engine=small)] == wanted
        assert small.stats.evicted_tokens > 0
        small.core.audit()


def test_a_row_that_can_never_fit_fails_alone(fake: lmc.Engine) -> None:
    with lmc.Engine("fake", kv_tokens=64) as small:
        outs = story.run_batch([{"x": "a"}, {"x": "word " * 300}, {"x": "b"}], engine=small)
    assert [o.error is None for o in outs] == [True, False, True]
    assert type(outs[1].error).__name__ == "CapacityError"


def test_a_deadline_ends_a_row_with_an_error(fake: lmc.Engine) -> None:
    @lmc.jit
    def slow(s: State) -> None:
        s += "x"
        s += lmc.gen("a", max_tokens=100_000, ignore_eos=True)

    for eager in (False, True):
        out = slow.run(deadline=0.05, eager=eager)
        assert isinstance(out.error, Cancelled)
        assert "deadline" in out.error.problem
    assert story.run(x="after").error is None


class Failing:
    """A runner whose steps fail while `broken` is set."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, step: Step) -> Outcome:
        if self.broken:
            raise RuntimeError("the device is gone")
        outcome: Outcome = self._runner.run(step)
        return outcome


def test_a_failing_runner_fails_all_waiting_rows_at_once_b_73(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import lmc.runtime.load as load

    made: list[Failing] = []
    original = load._runner

    def runner(*args: Any, **kwargs: Any) -> Failing:
        made.append(Failing(original(*args, **kwargs)))
        return made[0]

    monkeypatch.setattr(load, "_runner", runner)
    with lmc.Engine("fake") as engine:
        made[0].broken = True
        for eager in (False, True):
            outs = story.run_batch([{"x": "a"}, {"x": "b"}], engine=engine, eager=eager)
            assert all(o.error is not None and "device is gone" in str(o.error) for o in outs)
        made[0].broken = False
        assert story.run(x="a", engine=engine).error is None


def test_a_fault_in_an_instruction_stays_in_its_row(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmc.runtime import context

    original = context.Context.extend

    def extend(self: Any, text: str, *, markup: bool = False) -> Any:
        if "bad" in text:
            raise ZeroDivisionError("a fault")
        return original(self, text, markup=markup)

    monkeypatch.setattr(context.Context, "extend", extend)
    outs = story.run_batch([{"x": "a"}, {"x": "bad"}, {"x": "b"}])
    assert [o.error is None for o in outs] == [True, False, True]
    assert isinstance(outs[1].error, InternalError)


def test_closing_the_engine_ends_what_runs() -> None:
    engine = lmc.Engine("fake")

    @lmc.jit
    def endless(s: State) -> None:
        s += "x"
        for i in range(10_000):
            s += lmc.gen(f"a{i}", max_tokens=50)
            if len(s[f"a{i}"]) > 10**9:
                return

    found: list[lmc.Result | LmcError] = []

    def run() -> None:
        try:
            found.append(endless.run(engine=engine, eager=True))
        except LmcError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    engine.close()
    engine.close()
    thread.join(timeout=20)
    assert not thread.is_alive()
    error = found[0].error if isinstance(found[0], lmc.Result) else found[0]
    assert isinstance(error, RunError)
    with pytest.raises(RunError, match="engine is closed"):
        story.run(x="a", engine=engine)


def test_several_threads_share_an_engine(fake: lmc.Engine) -> None:
    wanted = [o.variables for o in story.run_batch([{"x": str(i)} for i in range(6)])]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        rows = [{"x": str(i)} for i in range(6)]
        outs = story.run_batch(rows, engine=fake, eager=bool(number % 2))
        found[number] = [o.variables for o in outs]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == dict.fromkeys(range(6), wanted)


def test_seeds_rows_and_draws_decide_samples_and_nothing_else(fake: lmc.Engine) -> None:
    rows = [{"x": "same"}] * 3
    first = [o.variables for o in story.run_batch(rows, seed=1)]
    assert first == [o.variables for o in story.run_batch(rows, seed=1, eager=True)]
    assert first != [o.variables for o in story.run_batch(rows, seed=2)]
    assert len({str(v["part"]) for v in first}) > 1  # the row is part of the key
    assert len(set(first[0]["part"])) > 1  # and so is the draw


def test_generate_without_a_program(fake: lmc.Engine) -> None:
    one, two = fake.generate(["a", "b"], max_tokens=4, ignore_eos=True)
    assert one.error is None
    assert len(one.token_ids) == len(two.token_ids) == 4
    assert fake.generate("a", max_tokens=4, ignore_eos=True) == [one]
    (stopped,) = fake.generate("a", max_tokens=4, ignore_eos=True, stop_regex=r"(?s).")
    assert (stopped.error, stopped.text, stopped.finish_reason) == (None, "", "stop")
    (matched,) = fake.generate("x", max_tokens=9, regex="(yes|no)")
    assert matched.text in ("yes", "no")
    assert matched.finish_reason == "constraint"


# ----------------------------------------------------------- nobody waits for ever


@lmc.jit
def reads(s: State, x: str) -> None:
    s += x
    s += lmc.gen("a", max_tokens=4, ignore_eos=True)
    if x == "bad" and s["a"]:
        raise ValueError("bad")
    for n in range(1000):
        s += lmc.gen(f"b{n}", max_tokens=50, ignore_eos=True)
        s[f"b{n}"]


def threads_of(name: str) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(name)]


def wait_until_no_thread(name: str) -> None:
    until = time.monotonic() + 20
    while threads_of(name) and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads_of(name)


def test_threads_of_an_eager_batch_end_with_it(fake: lmc.Engine) -> None:
    rows = [{"x": x} for x in ["bad", *"abcdef"]]
    with pytest.raises(RunError, match="ValueError: bad"):
        reads.run_batch(rows, eager=True, on_error="raise")
    wait_until_no_thread("lmc-eager")
    results = reads.iter_batch(rows, eager=True)
    assert next(results).error is not None
    results.close()
    wait_until_no_thread("lmc-eager")
    until = time.monotonic() + 20
    while fake.core.has_work and time.monotonic() < until:
        time.sleep(0.01)
    assert not fake.core.has_work


LEAVING = """
import lmc
from lmc.errors import LmcError

@lmc.jit
def p(s, x):
    s += x
    s += lmc.gen("a", max_tokens=4, ignore_eos=True)
    if x == "bad" and s["a"]:
        raise ValueError("bad")
    s += lmc.gen("b", max_tokens=100_000, ignore_eos=True)
    s["b"]

with lmc.Engine("fake", kv_tokens=200_000) as engine, lmc.use(engine):
    rows = [{"x": x} for x in ["bad", *"abcdef"]]
    try:
        p.run_batch(rows, eager=True, on_error="raise")
    except LmcError as error:
        print(error.problem)
    results = p.iter_batch(rows, eager=True)
    next(results)
    results.close()
"""


def test_a_process_ends_after_an_eager_batch_was_closed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ValueError: bad\n"), done.stderr


def plan_of(max_tokens: int = 3) -> Plan:
    @lmc.jit
    def one(s: State) -> None:
        s += "x"
        s += lmc.gen("a", max_tokens, ignore_eos=True)

    return one.compile().plan


def submit(engine: lmc.Engine, plan: Plan, **given: Any) -> Future[RowResult]:
    future: Future[RowResult] = Future()
    given = {"seed": 0, "index": 0, "done": future.set_result, **given}
    engine.executor.submit_row(plan, [], **given)
    return future


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, ValueError])
def test_what_a_callback_raises_is_its_own_affair(
    fake: lmc.Engine, raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def done(_: RowResult) -> None:
        raise raised("by the callback")

    others = [submit(fake, plan_of(40)) for _ in range(3)]
    submit(fake, plan_of(1), done=done)
    submit(fake, plan_of(40), done=done)
    after = submit(fake, plan_of())
    assert [f.result(20).error for f in (*others, after)] == [None] * 4
    assert "by the callback" in caplog.text


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit(), ZeroDivisionError("x")])
def test_any_exception_in_the_loop_fails_the_rows_and_no_more(
    fake: lmc.Engine, raised: BaseException
) -> None:
    def stray() -> None:
        raise raised

    row, eager = fake.executor.open_row(seed=0, index=0)
    reg = row.new_register()
    found: list[BaseException] = []

    def read() -> None:
        with pytest.raises(LmcError) as caught:
            row.read(reg)
        found.append(caught.value)

    thread = threading.Thread(target=read)
    thread.start()
    rows = [submit(fake, plan_of(100_000)) for _ in range(2)]
    ready = threading.Event()
    fake.executor.post(ready.set)
    assert ready.wait(20)
    fake.executor.post(stray)
    errors = [f.result(20).error for f in (*rows, eager)]
    thread.join(20)
    for error in (*errors, *found):
        assert isinstance(error, InternalError)
        assert error.__cause__ is raised
    assert len(found) == 1
    assert submit(fake, plan_of()).result(20).error is None


def test_calls_behind_one_that_raises_are_still_made(fake: lmc.Engine) -> None:
    made = threading.Event()
    go = threading.Event()

    def stray() -> None:
        raise SystemExit

    fake.executor.post(lambda: go.wait(20) and None)
    fake.executor.post(stray)
    fake.executor.post(made.set)
    future = submit(fake, plan_of())
    go.set()
    assert made.wait(20)
    assert future.result(20).error is None


def test_a_loop_that_ends_refuses_what_comes(caplog: pytest.LogCaptureFixture) -> None:
    engine = lmc.Engine("fake")
    executor = engine.executor

    def cancel(handle: Any) -> None:
        raise SystemExit("the core is in disorder")

    row, eager = executor.open_row(seed=0, index=0)
    running = submit(engine, plan_of(100_000))
    while not engine.core.has_work:
        time.sleep(0.001)
    engine.core.cancel = cancel  # type: ignore[method-assign]
    go = threading.Event()

    def stray() -> None:
        go.wait(20)
        raise SystemExit("stray")

    executor.post(stray)
    behind = submit(engine, plan_of())
    go.set()
    for future in (running, eager, behind):
        assert isinstance(future.result(20).error, InternalError)
    with pytest.raises(LmcError):
        row.read(row.new_register())
    thread = executor._thread
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()
    for refused in (lambda: submit(engine, plan_of()), lambda: row.read(row.new_register())):
        with pytest.raises(RunError, match="the engine has stopped: SystemExit"):
            refused()
    assert "has stopped" in caplog.text
    engine.close()


def test_readers_of_a_row_that_is_over_are_told(fake: lmc.Engine) -> None:
    row, done = fake.executor.open_row(seed=0, index=0)
    start, never = row.new_register(), row.new_register()
    row.emit(Start(into=start))
    found: list[BaseException] = []

    def read() -> None:
        with pytest.raises(LmcError) as caught:
            row.read(never)
        found.append(caught.value)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.05)
    row.emit(Ret(state=start, names=(), values=()))
    thread.join(20)
    assert done.result(20).error is None
    assert isinstance(found[0], Cancelled)
    with pytest.raises(Cancelled, match="the row is over"):
        row.read(never)


@pytest.mark.parametrize(
    "given", [{"seed": "7"}, {"seed": 1.5}, {"seed": None}, {"seed": True}, {"index": "a"}]
)
def test_nonsense_fails_its_own_row_only(fake: lmc.Engine, given: dict[str, Any]) -> None:
    good = [submit(fake, plan_of(30)) for _ in range(2)]
    bad = submit(fake, plan_of(30), **given)
    good.append(submit(fake, plan_of(30)))
    error = bad.result(20).error
    assert isinstance(error, UsageError)
    assert "must be an integer" in error.problem
    assert [f.result(20).error for f in good] == [None] * 3


def test_a_row_with_too_few_arguments_fails_alone(fake: lmc.Engine) -> None:
    good = submit(fake, plan_of(30))
    future: Future[RowResult] = Future()
    plan = story.compile(x="a").plan
    fake.executor.submit_row(plan, [], seed=0, index=0, done=future.set_result)
    assert isinstance(future.result(20).error, InternalError)
    assert good.result(20).error is None


def test_a_fault_after_a_model_call_stays_in_its_row(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmc.runtime import context

    original = context.Context.after_gen
    faults = iter([True, False, False])

    def after_gen(self: Any, result: Any) -> Any:
        if next(faults):
            raise ZeroDivisionError("a fault")
        return original(self, result)

    monkeypatch.setattr(context.Context, "after_gen", after_gen)
    errors = [f.result(20).error for f in [submit(fake, plan_of()) for _ in range(3)]]
    assert [type(error) for error in errors].count(InternalError) == 1
    assert errors.count(None) == 2


@pytest.mark.parametrize("deadline", [1e12, float("inf"), 10**400])
def test_a_deadline_that_no_clock_reaches(deadline: float) -> None:
    """While an eager function computes, the engine waits for nothing but the deadline."""

    @lmc.jit
    def thinks(s: State) -> None:
        time.sleep(0.02)
        s += "x"
        s += lmc.gen("a", max_tokens=2)

    with lmc.Engine("fake") as engine:
        for eager in (True, False):
            assert thinks.run(engine=engine, eager=eager, deadline=deadline).error is None


class MuteError(Exception):
    """It fails when it is to say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("where", ["program", "argument", "tool", "first line"])
def test_an_exception_that_cannot_be_told(fake: lmc.Engine, where: str) -> None:
    @lmc.tool
    def fails(text: str) -> str:
        raise MuteError

    @lmc.jit
    def program(s: State, x: Any = "") -> None:
        if where == "first line":
            raise MuteError
        s += "x"
        s += lmc.gen("a", max_tokens=2)
        if where == "tool":
            s += fails(s["a"])
        elif len(s["a"]) >= 0:
            raise MuteError

    class Rows(Mapping[str, object]):
        def __getitem__(self, name: str) -> object:
            raise MuteError

        def __iter__(self) -> Iterator[str]:
            return iter(["x"])

        def __len__(self) -> int:
            return 1

    for eager in (False, True):
        rows: list[Mapping[str, object]] = [Rows()] if where == "argument" else [{}]
        (out,) = program.run_batch(rows, eager=eager)
        assert out.error is not None
        says = "fails() failed: MuteError" if where == "tool" else "MuteError"
        assert out.error.problem == says
