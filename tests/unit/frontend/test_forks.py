"""Forks and the ways to bring their branches together: compiled and eager agree on them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from test_dsl import both, refused
from test_state import compiles

import lmc
from lmc.errors import LmcError, PlanError, UsageError
from lmc.frontend.dsl import State
from lmc.plan import Plan

TOO_LONG = "word " * 30_000  # no prompt: its model call fails


def lengths(s: State, *most: int) -> Any:
    """Branches whose gens make so many tokens."""
    forks = s.fork(len(most))
    for f, tokens in zip(forks, most, strict=True):
        f += f"{tokens}: "
        f += lmc.gen("a", max_tokens=tokens, ignore_eos=True)
    return forks


# ------------------------------------------------------------------------------------ gather


def test_gather_of_a_variable_that_existed_before_f_12(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        s += lmc.gen("v", max_tokens=2, ignore_eos=True)
        s.set("w", "old")
        forks = s.fork(3)
        forks += lambda i: f"{i}"
        forks += lmc.gen("v", max_tokens=2, ignore_eos=True)
        forks[1].set("w", "new")
        own = forks["v"]
        forks.join()
        return own == s["v"]

    out = both(p)
    assert out.value is True
    assert len(out["v"]) == 3
    assert out["w"] == ["old", "new", "old"]


def test_concat_appends_what_the_branches_appended(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += "Points:"
        forks = s.fork(2)
        for n, f in enumerate(forks):
            f += f"\n{n}. {x}: "
            f += lmc.gen("point", max_tokens=3, ignore_eos=True)
        forks.join(mode="concat")
        s += "\nSo: "
        s += lmc.gen("end", max_tokens=2, ignore_eos=True)
        return s["point"]

    out = both(p, x="tea")
    one, two = out["point"]
    assert out.text == f"Points:\n0. tea: {one}\n1. tea: {two}\nSo: {out['end']}"
    assert compiles(p, x="tea")


def test_concat_appends_messages_too(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        s += lmc.system("S")
        forks = s.fork(2)
        for n, f in enumerate(forks):
            f += [lmc.user(f"Question {n}"), lmc.assistant(lmc.gen("a", max_tokens=2))]
        forks.join(mode="concat")
        return [m["role"] for m in s.messages()]

    assert both(p).value == ["system", *("user", "assistant") * 2]

    def inside(s: State) -> None:
        forks = s.fork(1)
        forks += lmc.user("a")
        with s.user():
            forks.join(mode="concat")

    refused(inside, "the parent is inside a user message", fake)


def test_a_fork_inside_of_a_message(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += lmc.user("Why?")
        with s.assistant():
            s += "Because "
            forks = s.fork(2)
            forks += [lmc.gen("a", max_tokens=2, ignore_eos=True)] * 2
            forks.join()
            s += s["a"][0]

    assert both(p).error is None

    def unfinished(s: State) -> None:
        forks = s.fork(2)
        block = forks[0].user()
        block.__enter__()
        forks.join()

    refused(unfinished, "inside a user message of a branch", fake)


# ------------------------------------------------------------------------------ first and k


def test_first_is_the_branch_with_the_fewest_tokens(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        s += "Go "
        won = lengths(s, 9, 4, 30, 4).first()
        s += f"[{s['a']}]"
        won += "!"
        return [won["a"], won.text(), s["a"]]

    out = both(p)
    assert out.meta("a").completion_tokens == 4  # type: ignore[union-attr]
    assert out.value == [out["a"], f"Go 4: {out['a']}!", out["a"]]
    assert out.text == f"Go [{out['a']}]"
    assert compiles(p)


@pytest.mark.parametrize("eager", [True, False])
def test_first_stops_the_others(eager: bool, fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        s += "Go "
        forks = lengths(s, 3000, 5, 3000)
        for f in (forks[0], forks[2]):
            f += lmc.gen("more", max_tokens=3000, ignore_eos=True)
        forks[1].set("more", "")
        forks.first()

    before = fake._runner.steps  # type: ignore[attr-defined]
    out = p.run(eager=eager)
    assert out.error is None
    assert fake._runner.steps - before < 1000  # type: ignore[attr-defined]
    deadline = time.monotonic() + 20
    while fake.core.has_work and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not fake.core.has_work


def test_k_of_n(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        lengths(s, 8, 3, 40, 2, 8).join(k=3)
        return s["a"]

    out = both(p)
    assert [m.completion_tokens for m in out.meta("a")] == [8, 3, 2]  # type: ignore[union-attr]
    assert compiles(p)


@pytest.mark.parametrize("eager", [True, False])
def test_who_is_first_does_not_depend_on_the_schedule(eager: bool) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        forks = s.fork(4)
        for n, f in enumerate(forks):
            f += f" {n * 'long prompt ' * 20} {n}: "
            f += lmc.gen("a", max_tokens=30)  # ends wherever the model ends it
        return forks.first()["a"]

    rows = [{"x": str(n)} for n in range(12)]
    with lmc.Engine("fake") as engine:
        alone = [p.run(engine=engine, x=row["x"]).value for row in rows]
    for options in ({"max_batch_tokens": 9}, {"kv_tokens": 900}, {}):
        with lmc.Engine("fake", **options) as engine:
            outs = p.run_batch(rows, engine=engine, eager=eager)
            assert [out.value for out in outs] == alone
            engine.core.audit()


def test_what_was_read_before_is_not_stopped(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        forks = lengths(s, 40, 2)
        read = forks[0]["a"]
        copy = s.copy()
        copy += "7: " + lmc.gen("b", max_tokens=7, ignore_eos=True)
        forks.first()
        if "e" in x:
            return [read, copy["b"]]
        return int(len(read) * 1.5) + len(read)

    for x in ("e", "o"):
        assert both(p, x=x).error is None


def test_equal_calls_outside_of_the_race_go_on(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        lengths(s, 40, 2).first()
        s += "40: "
        s += lmc.gen("same", max_tokens=40, ignore_eos=True)  # one with the branch's, compiled
        return s["same"]

    assert len(both(p).value) > 20


def test_branches_that_fail_do_not_finish(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, n: int) -> Any:
        forks = s.fork(3)
        for i, f in enumerate(forks):
            f += TOO_LONG if i < n else str(i)
            f += lmc.gen("a", max_tokens=5, ignore_eos=True)
        forks.join(k=2)
        return len(s["a"])

    assert both(p, n=1).value == 2
    for eager in (True, False):
        assert "positions" in str(p.run(n=2, eager=eager).error)


def test_first_after_values_that_end_the_graph(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += lmc.gen("n", regex="[1-9]")
        forks = lengths(s, 9, int(s["n"]), 12)
        won = forks.first()
        return [won["a"], int(s["n"])]

    @lmc.jit
    def later(s: State, x: str) -> Any:
        forks = lengths(s, 9, 2, 300)
        forks.first()
        return int("0" + str(len(s["a"]) * 1.0)[0])

    for x in ("a", "b"):
        assert both(p, x=x).error is None
        assert both(later, x=x).error is None


@pytest.mark.parametrize("use", ["append", "read", "text", "copy", "forks", "again", "mark"])
def test_branches_are_over_after_first(use: str, fake: lmc.Engine) -> None:
    def p(s: State) -> None:
        forks = lengths(s, 3, 2)
        early = forks[0].copy()
        forks.first()
        uses: dict[str, Callable[[], Any]] = {
            "append": lambda: forks[0].extend("late"),
            "read": lambda: forks[1]["a"],
            "text": lambda: forks[0].text(),
            "copy": lambda: early["a"],
            "forks": lambda: forks["a"],
            "again": forks.join,
            "mark": lambda: forks[0].mark(),
        }
        uses[use]()

    refused(p, r"ended by first\(\) at tests", fake)


def test_nested_races(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        outer = s.fork(3)
        for n, f in enumerate(outer):
            f += f"{n}"
            lengths(f, 9 - n, 20, 8).first()
            f += lmc.gen("b", max_tokens=n + 1, ignore_eos=True)
        won = outer.first()
        return [won["b"], s["a"]]

    assert both(p).error is None
    assert compiles(p)


# ---------------------------------------------------------------------------- vote and best


def test_vote_takes_the_first_branch_of_the_majority(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, said: list[str]) -> Any:
        forks = s.fork(len(said))
        for f, word in zip(forks, said, strict=True):
            f += "Think " + lmc.gen("why", max_tokens=2, ignore_eos=True)
            with f.var("answer"):
                f += word
        won = forks.vote("answer", key=lambda text: text.strip().lower())
        return [s["answer"], s["why"] == won["why"], won.text()]

    for said, answer in (
        (["a", "b", "B ", "a", "b"], "b"),
        (["x", "y", "Y", "X"], "x"),  # ties by fork order
        (["only"], "only"),
    ):
        out = both(p, said=said)
        assert out.value[:2] == [answer, True]
        assert out.value[2].endswith(answer)
    assert compiles(p, said=["a", "b"])


def test_best_takes_the_greatest_key(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        forks = lengths(s, 4, 9, 2)
        forks.best(key=lambda f: len(f["a"]))
        s += "Most: " + s["a"]
        scored = s.fork(2)
        for f, word in zip(scored, ("yes", "no"), strict=True):
            f += lmc.score("fit", word)
        won = scored.best(key=lambda f: f["fit"])
        s.reset(won.mark())
        return s.text()

    out = both(p, x="Go ")
    assert out.meta("a").completion_tokens == 9  # type: ignore[union-attr]
    assert out.text == out.value
    assert out.text.endswith(("yes", "no"))
    assert compiles(p, x="a")

    @lmc.jit
    def known(s: State) -> Any:
        forks = lengths(s, 2, 2, 2)
        forks.best(key=lambda f: [3.5, 4.5, 4.5][[f is b for b in forks].index(True)])
        return s["a"]

    assert both(known).error is None

    @lmc.jit
    def needs_values(s: State) -> Any:
        forks = s.fork(3)
        forks += lambda i: f"{i}: "
        forks += lmc.gen("grade", regex="[1-9]")
        forks.best(key=lambda f: int(f["grade"]))
        return s["grade"]

    assert both(needs_values).error is None


@pytest.mark.parametrize(
    ("use", "match"),
    [
        (lambda forks: forks.vote("b"), r"vote\('b'\): the branches do not set"),
        (lambda forks: forks.best(key=lambda f: float("nan")), "a key is not a number"),
        (lambda forks: forks.best(key=lambda f: object()), "have no order"),
        (lambda forks: forks.best(key="a"), "needs a function"),
        (lambda forks: forks.join(k=0), r"join\(k=0\) of 2 branches"),
        (lambda forks: forks.join(k=3), r"join\(k=3\) of 2 branches"),
        (lambda forks: forks.join(mode="gather_variable"), "join\\(mode="),
        (lambda forks: forks.join(on_error="skip"), "join\\(on_error="),
        (lambda forks: forks.join("concat", k=1), "leave one|k=\\.\\.\\."),
        (lambda forks: forks.join("concat", on_error="collect"), "no text to append"),
        (lambda forks: [forks.join(), forks.join()], r"this branch ended with join\(\)"),
        (lambda forks: [forks.join(), forks.first()], r"this branch ended with join\(\)"),
    ],
)
def test_misuse_is_refused_with_the_line(use: Any, match: str, fake: lmc.Engine) -> None:
    def p(s: State) -> None:
        use(lengths(s, 2, 2))

    refused(p, match, fake)


# ----------------------------------------------------------------------------------- failures


def failing(s: State, n: int = 3, bad: int = 1) -> Any:
    forks = s.fork(n)
    for i, f in enumerate(forks):
        f += TOO_LONG if i == bad else f"{i}: "
        f += lmc.gen("a", max_tokens=2, ignore_eos=True)
    return forks


def test_a_failed_branch_is_raised_where_it_is_read_f_01(fake: lmc.Engine) -> None:
    @lmc.jit
    def unread(s: State) -> Any:
        failing(s).join()

    @lmc.jit
    def read(s: State) -> Any:
        failing(s).join()
        return s["a"]

    @lmc.jit
    def own(s: State) -> Any:
        forks = failing(s)
        return [forks[0]["a"], forks[2]["a"]]

    for program in (unread, read):
        for eager in (True, False):
            error = program.run(eager=eager).error
            assert error is not None
            assert "positions" in error.problem
            assert error.where is not None
            assert error.where.file.startswith("tests")
    assert both(own).error is None


def test_a_failed_branch_keeps_its_place_f_01(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        failing(s).join(on_error="collect")

    @lmc.jit
    def reads(s: State) -> Any:
        failing(s).join(on_error="collect")
        s += " / ".join(a for a in s["a"] if isinstance(a, str))
        return [isinstance(a, LmcError) for a in s["a"]]

    for eager in (True, False):
        out = p.run(eager=eager)
        assert out.error is None
        kinds = [type(item) for item in out["a"]]
        assert kinds[0] is kinds[2] is str
        assert "positions" in out["a"][1].problem
        assert [m is None for m in out.meta("a")] == [False, True, False]  # type: ignore[union-attr]
        assert out.to_json()["variables"]["a"][1]["type"] == "CapacityError"
        assert reads.run(eager=eager).value == [False, True, False]
    assert compiles(p)


def test_an_unread_failure_is_none_where_the_graph_ends(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        forks = failing(s)
        return int(len(forks[0]["a"]) * 1.5)

    assert both(p).error is None


# ------------------------------------------------------------------------------ other shapes


def test_forks_of_one_and_in_loops(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        for n in range(3):
            forks = s.fork(n + 1)
            forks += lambda i: f"{i} "
            forks += lmc.gen(f"a{n}", max_tokens=2, ignore_eos=True)
            forks.join()
            s += s[f"a{n}"][-1]
        return [len(s[f"a{n}"]) for n in range(3)]

    assert both(p).value == [1, 2, 3]
    assert compiles(p)


def test_a_number_of_branches_that_is_not_known_ends_the_graph(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        forks = s.fork(len(x))
        forks += lmc.gen("a", max_tokens=1)
        forks.join()
        return len(s["a"])

    assert both(p, x="abc").value == 3
    assert "the number of branches is not known yet" in str(p.trace())
    with pytest.raises(UsageError):
        lmc.jit(lambda s: s.fork(True)).run()


def test_the_messages_of_the_winner(fake: lmc.Engine) -> None:
    @lmc.jit
    def alike(s: State, x: str) -> Any:
        forks = s.fork(2)
        for n, f in enumerate(forks):
            f += [lmc.user(f"{x} {n}"), lmc.assistant(lmc.gen("a", max_tokens=3 - n))]
        return forks.first().messages()

    out = both(alike, x="Q")
    assert out.value[0] == {"role": "user", "content": "Q 1"}
    assert compiles(alike, x="Q")

    @lmc.jit
    def one(s: State, x: str) -> Any:
        (f,) = forks = s.fork(1)
        f += lmc.user(f"{x}!")
        return forks.first().messages()

    assert both(one, x="Q").value == [{"role": "user", "content": "Q!"}]
    assert compiles(one, x="Q")

    def unlike(s: State) -> Any:
        forks = s.fork(2)
        forks += [lmc.user("a"), lmc.assistant("b")]
        return forks.best(key=lambda f: 1).messages()

    refused(unlike, "differ from branch to branch", fake)


@pytest.mark.parametrize("how", ["first", "vote", "best", "copy"])
def test_a_stream_goes_on_with_the_branch_that_is_taken(how: str, fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        forks = s.fork(2)
        forks += [" one ", " another "]
        forks += lmc.gen("a", max_tokens=4, ignore_eos=True)
        ways: dict[str, Callable[[], State]] = {
            "first": forks.first,
            "vote": lambda: forks.vote("a"),
            "best": lambda: forks.best(key=lambda f: len(f["a"])),
            "copy": lambda: forks[1].copy(),
        }
        s.reset(ways[how]().mark())
        s += ". And: "
        s += lmc.gen("b", max_tokens=3, ignore_eos=True)

    for eager in (True, False):
        text = both(p, x="Go").text
        assert "".join(p.stream(x="Go", eager=eager)) == text


def test_what_a_winner_selected_is_one_of_a_few(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        forks = s.fork(3)
        forks += lambda i: f" {i}"
        forks += lmc.select("a", ["yes", "no"])
        forks.vote("a")
        return {"yes": 1, "no": 2}[s["a"]]

    assert both(p, x="Go").value in (1, 2)
    assert compiles(p, x="Go")


@pytest.mark.parametrize("how", ["first", "vote", "best", "k", "collect"])
def test_typed_variables_stay_typed(how: str, fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        forks = s.fork(3)
        forks += lambda i: f"{i} "
        forks += lmc.gen("x", type=int, max_tokens=30)
        ways: dict[str, Callable[[], Any]] = {
            "first": forks.first,
            "vote": lambda: forks.vote("x"),
            "best": lambda: forks.best(key=lambda f: f["x"]),
            "k": lambda: forks.join(k=1),
            "collect": lambda: forks.join(on_error="collect"),
        }
        ways[how]()
        found = s["x"] if how in ("k", "collect") else [s["x"]]
        return [x + 1 for x in found]

    out = both(p)
    assert all(type(x) is int for x in out.value)
    assert compiles(p) is (how != "collect")


def test_races_go_into_artifacts(fake: lmc.Engine, tmp_path: Path) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        with s.var("asked"):
            s += x
        failing(s).join(on_error="collect")
        lengths(s, 9, 3, 9).join(k=2)
        won = lengths(s, 5, 2).first()
        return [won.text(), s.text()]

    plan = p.compile(x="a").plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    done: Future[Any] = Future()
    fake.executor.submit_row(plan, ["a"], seed=0, index=0, done=done.set_result)
    out = p.run(x="a")
    assert done.result(60).value == out.value
    for damaged in ({"k": 3}, {"stops": []}, {"into": []}):
        data = plan.to_json()
        race = next(i for i in data["body"]["instrs"] if i["op"] == "race")
        race.update(damaged)
        with pytest.raises(PlanError):
            Plan.from_json(data)
