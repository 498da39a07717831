"""What is read ahead of a branch waits for all else, and is dropped when the way is known."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import lmc
from lmc.runtime.job import Job
from lmc.runtime.request import AHEAD, PrefillRequest, keys_of
from lmc.runtime.waiting import WaitingQueue

LONG = "There is an answer in the archive, and it is a long one. "
SHORT = "Nothing was found, so say something of your own. "
go_on = threading.Event()


@lmc.tool
def search(query: str) -> str:
    go_on.wait(10)
    return query if query != "nothing" else ""


@lmc.jit
def answer(s: Any, question: str) -> None:
    s += f"Q: {question}\n"
    if search(question):
        s += LONG
    else:
        s += SHORT
    s += lmc.gen("a", max_tokens=3)


@pytest.fixture(autouse=True)
def _wait() -> Any:
    go_on.clear()
    yield
    go_on.set()


def run(level: int, question: str) -> tuple[lmc.Result, Any]:
    with lmc.Engine("fake") as engine:
        # the engine has nothing to do but to read ahead until the tool ends
        threading.Timer(0.3, go_on.set).start()
        out = answer.run(engine=engine, question=question, options=lmc.Options(level=level))
        engine.core.audit()
        return out, out.meta("a")


@pytest.mark.parametrize("question", ["what?", "nothing"])
def test_both_ways_are_read_while_a_tool_runs(question: str) -> None:
    plain, before = run(2, question)
    ahead, after = run(3, question)
    assert (plain.text, before.token_ids) == (ahead.text, after.token_ids)
    assert before.cached_tokens == 0
    assert after.cached_tokens > 0.9 * after.prompt_tokens


def test_it_waits_for_others_however_often_they_overtake_it() -> None:
    def job(arrival: int, *priority: int) -> Job:
        keys = keys_of([arrival], made=False)
        return Job(PrefillRequest(keys=keys, priority=priority), arrival)

    queue = WaitingQueue(max_overtaken=2)
    queue.add(job(0, AHEAD, 0, 0))
    queue.add(real := job(1, 5, 0))
    for arrival in range(2, 9):
        queue.add(other := job(arrival, 1, 0))
        queue.admit(other)
    assert queue.overdue() is real
    queue.admit(real)
    assert queue.overdue() is None
    assert [job.arrival for job in queue.front(9)] == [0]


def test_a_plan_holds_it() -> None:
    from lmc.plan import Plan, Prefill

    plan = answer.compile(lmc.Options(level=3)).plan
    assert Plan.from_json(plan.to_json()) == plan
    ahead = [i for i in plan.body.instrs if isinstance(i, Prefill) and i.ahead]
    assert len(ahead) == 2
