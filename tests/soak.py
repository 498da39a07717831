"""A soak: many programs at once on a small KV cache, with all that can go wrong on purpose.

Programs are cancelled, time out, fail in the middle, call tools that fail or hang, are streamed and
abandoned, run compiled and eagerly, alone and in batches, from threads and from coroutines. At the
end every row must be accounted for, rows that were left alone must give what they give alone, and
every KV slot must be free or in the cache's tree.

    python -m tests.soak [PROGRAMS] [SEED]
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import lmc
from lmc.errors import Cancelled, CapacityError, LmcError, RunError
from lmc.frontend.dsl import State

KV_TOKENS = 700
DEADLINES = (*[None] * 8, 0.0, 0.002, 0.05)


@lmc.jit
def story(s: State, x: str, n: int = 3) -> None:
    s += f"About {x}: "
    forks = s.fork(n)
    forks += lmc.gen("part", max_tokens=8, temperature=0.9)
    forks.join()
    for part in s["part"]:
        s += part
    s += lmc.select("which", ["this", "that", "none of them"])
    s += lmc.gen("end", max_tokens=12, stop=[".", "a"])


@lmc.jit
def chat(s: State, x: str, turns: int = 3) -> str:
    s += lmc.system("Be brief.")
    for turn in range(turns):
        s += lmc.user(f"{x}, {turn}?")
        s += lmc.assistant(lmc.gen(f"reply_{turn}", max_tokens=16))
    return s[f"reply_{turns - 1}"]


@lmc.jit
def digits(s: State, x: str) -> None:
    s += f"A number for {x}: "
    s += lmc.gen("n", regex="[1-9][0-9]{1,12}(\\.[0-9]{2})?")
    if int(float(s["n"])) % 2:
        s += " odd "
        s += lmc.gen("more", max_tokens=10)


@lmc.jit
def fails(s: State, x: str) -> None:
    s += f"{x} goes "
    s += lmc.gen("a", max_tokens=6)
    forks = s.fork(2)
    forks += lmc.gen("b", max_tokens=30, ignore_eos=True)
    if s["a"] is not None:
        raise RuntimeError(f"the host fails for {x}")


@lmc.jit
def too_long(s: State, x: str) -> None:
    s += f"{x} " * 600
    s += lmc.gen("a", max_tokens=4)


@lmc.jit
def endless(s: State, x: str) -> None:
    s += f"On and on, {x}: "
    s += lmc.gen("a", max_tokens=250, ignore_eos=True, temperature=1.0)


@lmc.tool(timeout=0.5, retries=1, backoff=0.001)
def flaky(text: str) -> str:
    """Fails for some texts whatever is tried, and for some once."""
    number = sum(text.encode())
    with _tried_lock:
        _tried[text] += 1
        first = _tried[text] % 2
    if number % 5 == 0 or (number % 3 == 0 and first):
        raise ValueError("the tool is out of order")
    return f"({number})"


@lmc.tool(timeout=0.02)
def slow(text: str) -> str:
    time.sleep(0.2 if sum(text.encode()) % 4 == 0 else 0.001)
    return text.upper()


@lmc.tool(pure=True)
async def waits(text: str) -> str:
    await asyncio.sleep(0.002)
    return text[::-1]


_tried: Counter[str] = Counter()
_tried_lock = threading.Lock()


@lmc.jit
def tools(s: State, x: str) -> str:
    s += f"{x}: "
    s += lmc.gen("a", max_tokens=5)
    said = flaky(s["a"])
    forks = s.fork(2)
    for fork in forks:
        fork += f" {said} "
        fork += lmc.gen("b", max_tokens=6, temperature=1.0)
        fork += waits(fork["b"])
    forks.join()
    s += " ".join(s["b"])
    s += slow(x)
    s += lmc.gen("end", max_tokens=4)
    return s["end"]


PROGRAMS = (story, chat, digits, fails, too_long, endless, tools, tools)
FAILURES = ("the host fails", "the tool is out of order", "slow() took longer")


@dataclass
class Tally:
    """What became of the rows, by kind; and the texts to compare with runs that nothing disturbed.

    Attributes:
        ended: how many rows ended in which way.
        texts: of rows that ended well, by program and argument.
    """

    ended: Counter[str] = field(default_factory=Counter)
    texts: dict[tuple[str, str, int], str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, program: lmc.Program, x: str, result: lmc.Result) -> None:
        error = result.error
        kind = "done"
        if isinstance(error, Cancelled):
            kind = "deadline" if "deadline" in error.problem else "cancelled"
        elif isinstance(error, CapacityError):
            kind = "too large"
        elif error is not None:
            kind = "failed"
            assert isinstance(error, RunError), error
            assert any(text in error.problem for text in FAILURES), error
        with self._lock:
            self.ended[kind] += 1
            if error is None:
                self.texts[program.name, x, result.index] = result.text


def one(number: int, seed: int, engine: lmc.Engine, tally: Tally) -> None:
    """One turn: a program, a way to run it, and something that may go wrong."""
    draw = random.Random(seed * 1_000_003 + number)
    program = draw.choice(PROGRAMS)
    x = f"thing {draw.randrange(40)}"
    eager = draw.random() < 0.3
    deadline = draw.choice(DEADLINES)
    way = draw.choice(["run", "stream", "abandon", "arun", "cancel", "batch"])
    if way == "run":
        tally.add(program, x, program.run(engine=engine, eager=eager, deadline=deadline, x=x))
    elif way in ("stream", "abandon"):
        stream = program.stream(engine=engine, eager=eager, deadline=deadline, x=x)
        told = ""
        with contextlib.suppress(LmcError), contextlib.closing(iter(stream)) as pieces:
            for count, piece in enumerate(pieces):
                told += piece
                if way == "abandon" and count >= draw.randrange(6):
                    break
        result = stream.result()
        assert result.error is not None or way == "abandon" or told == result.text
        tally.add(program, x, result)
    elif way in ("arun", "cancel"):
        asyncio.run(awaited(program, x, engine, eager, deadline, draw, way, tally))
    else:
        rows = [{"x": x}] * draw.randrange(1, 5)
        given = program.iter_batch(
            rows, engine=engine, eager=eager, deadline=deadline, ordered=draw.random() < 0.5
        )
        taken = 0
        with contextlib.closing(given):
            for result in given:
                tally.add(program, x, result)
                taken += 1
                if draw.random() < 0.2:
                    break
        if taken < len(rows):  # those that nobody waited for
            with tally._lock:
                tally.ended["given up"] += len(rows) - taken


async def awaited(
    program: lmc.Program,
    x: str,
    engine: lmc.Engine,
    eager: bool,
    deadline: float | None,
    draw: random.Random,
    way: str,
    tally: Tally,
) -> None:
    task = asyncio.create_task(program.arun(engine=engine, eager=eager, deadline=deadline, x=x))
    if way == "cancel":
        await asyncio.sleep(draw.choice([0, 0.001, 0.01]))
        task.cancel()
    try:
        tally.add(program, x, await task)
    except asyncio.CancelledError:
        with tally._lock:
            tally.ended["cancelled"] += 1


def expected_rows(number: int, seed: int) -> int:
    """How many rows a turn has: the draws of `one`, as far as they decide it."""
    draw = random.Random(seed * 1_000_003 + number)
    draw.choice(PROGRAMS)
    draw.randrange(40)
    draw.random()
    draw.choice(DEADLINES)
    way = draw.choice(["run", "stream", "abandon", "arun", "cancel", "batch"])
    return draw.randrange(1, 5) if way == "batch" else 1


def settle(engine: lmc.Engine) -> None:
    """Wait until nothing runs, then audit; on the engine's thread."""
    until = time.monotonic() + 60
    while (engine.core.has_work or engine.executor._rows) and time.monotonic() < until:
        time.sleep(0.01)
    audited: Future[dict[str, int]] = Future()

    def audit() -> None:
        try:
            assert not engine.core.has_work, "requests are left"
            assert not engine.executor._rows, "rows are left"
            engine.core.audit()
            audited.set_result(engine.core.statistics())
        except BaseException as error:
            audited.set_exception(error)

    engine.executor.post(audit)
    held = audited.result(60)
    assert held["free"] + held["cache_held"] == held["capacity"] == KV_TOKENS, held
    assert not held["cache_pinned"], held


def soak(programs: int, seed: int = 0, threads: int = 12) -> Tally:
    """Run so many turns, and check what is left.

    Raises:
        AssertionError: a row is missing, a KV slot is lost, or a text is not what it must be.
    """
    tally = Tally()
    before = threading.active_count()
    with lmc.Engine("fake", kv_tokens=KV_TOKENS) as engine:
        with ThreadPoolExecutor(threads) as pool:
            turns = [pool.submit(one, n, seed, engine, tally) for n in range(programs)]
            for turn in turns:
                turn.result(300)
        settle(engine)
    wanted = sum(expected_rows(n, seed) for n in range(programs))
    assert sum(tally.ended.values()) == wanted, (tally.ended, wanted)
    with lmc.Engine("fake") as engine:
        named = {program.name: program for program in PROGRAMS}
        for (name, x, index), text in tally.texts.items():
            alone = list(named[name].iter_batch([{"x": x}] * (index + 1), engine=engine))[index]
            if alone.error is None or name != "tools":  # which may fail another time
                assert alone.text == text, (name, x, index)
    until = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before, threading.enumerate()
    return tally


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    started = time.monotonic()
    found = soak(count, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"{count} programs in {time.monotonic() - started:.0f} s: {dict(found.ended)}")
    print(f"{len(found.texts)} texts are what they are alone; no KV slot and no thread is left")
