"""Coroutines: runs, streams and batches in a running loop; cancelling; context variables."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator

import pytest

import lmc
from lmc.errors import Cancelled, RunError, UsageError
from lmc.frontend import rewrite
from lmc.frontend.dsl import State

MODES = [False, True]


@lmc.jit
def story(s: State, x: str) -> None:
    s += f"About {x}: "
    s += lmc.gen("start", max_tokens=12)
    forks = s.fork(2)
    forks += lmc.gen("part", max_tokens=8, temperature=0.9)
    forks.join()
    s += lmc.gen("end", max_tokens=5)


@lmc.jit
def long(s: State, x: str = "") -> None:
    s += f"Go on {x}: "
    s += lmc.gen("text", max_tokens=3000, ignore_eos=True)


async def settled(engine: lmc.Engine) -> None:
    until = time.monotonic() + 20
    while engine.core.has_work and time.monotonic() < until:
        await asyncio.sleep(0.005)
    assert not engine.core.has_work
    engine.core.audit()


@pytest.mark.parametrize("eager", MODES)
def test_a_run_from_a_running_loop_b_112(fake: lmc.Engine, eager: bool) -> None:
    async def main() -> None:
        out = await story.arun(x="bees", eager=eager)
        assert out.text == story.run(x="bees").text  # from sync code inside of a loop, too
        assert (await story.arun(x="rain", eager=eager, seed=3)).text != out.text

    asyncio.run(main())


def test_many_at_once(fake: lmc.Engine) -> None:
    async def main() -> list[str]:
        outs = await asyncio.gather(*(story.arun(x=str(i)) for i in range(100)))
        return [out.text for out in outs]

    assert asyncio.run(main()) == [story.run(x=str(i)).text for i in range(100)]


def test_the_loop_goes_on_meanwhile(fake: lmc.Engine) -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await story.arun(x="bees")
        await long.arun(x="a", deadline=0.2)
        ticking.cancel()
        return ticks

    assert asyncio.run(main()) > 20


def test_errors_are_as_without_coroutines(fake: lmc.Engine) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="'y'"):
            await story.arun(x="a", y=1)
        out = await long.arun(deadline=0.01)
        assert isinstance(out.error, Cancelled)
        with pytest.raises(UsageError, match="'y'"):
            async for _ in story.astream(x="a", y=1):
                pass

    asyncio.run(main())


@pytest.mark.parametrize("eager", MODES)
def test_cancelling_the_task_cancels_the_run(fake: lmc.Engine, eager: bool) -> None:
    async def main() -> None:
        task = asyncio.create_task(long.arun(eager=eager))
        while not fake.stats.generated_tokens:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(fake)
        assert fake.stats.generated_tokens < 3000

    asyncio.run(main())


@pytest.mark.parametrize("way", ["arun", "astream"])
def test_a_task_cancelled_before_its_run_began(fake: lmc.Engine, way: str) -> None:
    tracing, gate = threading.Event(), threading.Event()

    @lmc.jit
    def slow_to_trace(s: State) -> None:
        tracing.set()
        gate.wait(20)
        s += "Go on: "
        s += lmc.gen("text", max_tokens=3000, ignore_eos=True)

    async def main() -> None:
        stream = slow_to_trace.astream()
        waited = slow_to_trace.arun() if way == "arun" else stream.result()
        task = asyncio.create_task(waited)
        await asyncio.to_thread(tracing.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await asyncio.sleep(0.3)  # its row begins now, if nothing keeps it from it
        await settled(fake)
        assert fake.stats.generated_tokens < 3000

    asyncio.run(main())


def test_tasks_cancelled_at_any_time(fake: lmc.Engine) -> None:
    async def main() -> None:
        for wait in (0.0, 0.0005, 0.002):
            tasks = [asyncio.create_task(long.arun(x=str(i))) for i in range(20)]
            await asyncio.sleep(wait)
            for task in tasks:
                task.cancel()
            gone = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in gone)
        await asyncio.sleep(0.05)  # what was about to begin
        await settled(fake)

    asyncio.run(main())


def test_a_timeout_of_asyncio(fake: lmc.Engine) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await long.arun()
        await settled(fake)

    asyncio.run(main())


# ----------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("eager", MODES)
def test_streams_give_the_same_pieces(fake: lmc.Engine, eager: bool) -> None:
    async def main() -> None:
        out = story.run(x="bees")
        stream = story.astream(x="bees", eager=eager)
        assert "".join([piece async for piece in stream]) == out.text
        assert "".join([piece async for piece in stream.text("end")]) == out["end"]
        assert "".join([piece async for piece in stream.text("part", 1)]) == out["part"][1]
        reasons = [p.finish_reason async for p in stream.pieces() if p.name == "end"]
        assert reasons[-1] == out.meta("end").finish_reason  # type: ignore[union-attr]
        assert (await stream.result()).variables == out.variables

    asyncio.run(main())


def test_several_readers_at_once(fake: lmc.Engine) -> None:
    async def main() -> None:
        stream = story.astream(x="bees")

        async def read() -> str:
            return "".join([piece async for piece in stream])

        texts = await asyncio.gather(*(read() for _ in range(5)))
        assert set(texts) == {(await stream.result()).text}

    asyncio.run(main())


@pytest.mark.parametrize("how", ["break", "task", "with"])
def test_giving_up_a_stream_cancels_the_run_b_93(fake: lmc.Engine, how: str) -> None:
    async def main() -> None:
        stream = long.astream()
        if how == "break":
            async for _ in stream:
                break
        elif how == "with":
            async with stream:
                await anext(aiter(stream))
        else:

            async def read() -> None:
                async for _ in stream:
                    pass

            task = asyncio.create_task(read())
            while not fake.stats.generated_tokens:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.sleep(0.01)
        await settled(fake)
        assert isinstance((await stream.result()).error, Cancelled)

    asyncio.run(main())


def test_the_error_reaches_the_reader(fake: lmc.Engine) -> None:
    @lmc.jit
    def fails(s: State, x: str) -> None:
        s += x
        s += lmc.gen("a", max_tokens=6)
        int(s["a"] + "x")

    read: list[str] = []

    async def reads() -> None:
        async for piece in fails.astream(x="one"):
            read.append(piece)  # noqa: PERF401 - kept when it raises

    async def main() -> None:
        with pytest.raises(RunError, match="ValueError"):
            await reads()
        assert "".join(read).startswith("one")

    asyncio.run(main())


# ----------------------------------------------------------------------------------- batches


def test_batches_from_plain_and_from_asynchronous_rows(fake: lmc.Engine) -> None:
    given = [{"x": str(i)} for i in range(30)]

    async def slowly() -> AsyncIterator[dict[str, str]]:
        for row in given:
            await asyncio.sleep(0.001)
            yield row

    async def main() -> None:
        whole = story.run_batch(given)
        for rows in (given, slowly()):
            outs = await story.arun_batch(rows)
            assert [out.text for out in outs] == [out.text for out in whole]
        loose = [r async for r in story.aiter_batch(given, ordered=False)]
        assert all(r.text == whole[r.index].text for r in loose)
        with pytest.raises(RunError, match="max_errors=0"):
            await story.arun_batch([{"y": 1}, *given], max_errors=0)

    asyncio.run(main())


@pytest.mark.parametrize("source", ["rows", "waits"])
def test_cancelling_a_batch_cancels_its_rows(fake: lmc.Engine, source: str) -> None:
    async def waits() -> AsyncIterator[dict[str, str]]:
        yield {"x": "a"}
        await asyncio.sleep(1000)

    async def main() -> None:
        rows = waits() if source == "waits" else [{"x": str(i)} for i in range(50)]
        task = asyncio.create_task(long.arun_batch(rows))
        while not fake.stats.generated_tokens:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(fake)

    before = threading.active_count()
    asyncio.run(main())
    until = time.monotonic() + 10
    while threading.active_count() > before + 1 and time.monotonic() < until:
        time.sleep(0.005)
    assert threading.active_count() <= before + 1  # the engine's own


# ------------------------------------------------------------------- engines, threads, context

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.mark.parametrize("eager", MODES)
def test_context_variables_are_carried_f_15(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def asks(s: State, x: str) -> str:
        s += x
        s += lmc.gen("v", max_tokens=2)
        len(str(hash(s["v"])))  # from here on it runs eagerly
        return who.get()

    async def main() -> None:
        async def one(name: str) -> None:
            who.set(name)
            assert (await asks.arun(x=name, eager=eager)).value == name
            outs = await asks.arun_batch([{"x": name}] * 3, eager=eager)
            assert {out.value for out in outs} == {name}
            assert (await asks.astream(x=name, eager=eager).result()).value == name

        await asyncio.gather(*(one(f"task {i}") for i in range(5)))

    asyncio.run(main())
    who.set("the test")
    assert asks.run(x="a", eager=eager).value == "the test"


def test_two_engines_and_many_threads_in_one_process() -> None:
    with lmc.Engine("fake", seed=1) as one, lmc.Engine("fake", seed=2) as two:
        expected = [
            [story.run(x=str(i), engine=engine).text for i in range(4)] for engine in (one, two)
        ]
        wrong: list[object] = []

        def work(number: int) -> None:
            engine = (one, two)[number % 2]

            async def main() -> list[str]:
                with lmc.use(engine):
                    outs = await asyncio.gather(*(story.arun(x=str(i)) for i in range(4)))
                    async for _ in story.astream(x="0"):
                        pass
                return [out.text for out in outs]

            got = asyncio.run(main())
            if got != expected[number % 2]:
                wrong.append((number, got))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong


def test_a_loop_that_is_gone_hurts_nobody(fake: lmc.Engine) -> None:
    async def main() -> None:
        stream = long.astream(deadline=0.2)
        await anext(aiter(stream))

    asyncio.run(main())
    assert story.run(x="a").error is None


def test_programs_are_traced_on_several_threads_at_once() -> None:
    class Busy:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:  # other threads get their turn while a tree is made
            for _ in range(30):
                pass

    source = "def f(x):\n" + "    y = [a + b for a in x]\n" * 60
    raised: list[BaseException] = []

    def work(depth: int) -> None:
        if depth:
            work(depth - 1)
            return
        for _ in range(12):
            Busy()
            try:
                rewrite._parsed(source)
            except BaseException as error:
                raised.append(error)

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
    assert not raised
