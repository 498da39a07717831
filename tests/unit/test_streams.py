"""Streams: the text of a run while it comes, for any number of readers."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest

import lmc
from lmc.errors import Cancelled, RunError, UsageError
from lmc.frontend.dsl import State
from lmc.runtime.row_stream import Outline

MODES = [False, True]


@lmc.jit
def story(s: State, x: str, n: int = 3) -> None:
    s += f"About {x}: "
    s += lmc.gen("start", max_tokens=12)
    forks = s.fork(n)
    forks += lmc.gen("part", max_tokens=8, temperature=0.9)
    forks.join()
    for part in s["part"]:
        s += part
    with s.user():
        s += "Which?"
    s += lmc.select("which", ["one", "two"])
    s += lmc.gen("end", max_tokens=5)


@lmc.jit
def long(s: State, x: str = "") -> None:
    s += f"Go on {x}: "
    s += lmc.gen("text", max_tokens=900, ignore_eos=True)


@lmc.jit
def ways(s: State, x: str) -> None:
    s += f"{x}: "
    s += lmc.gen("a", max_tokens=6)
    if "e" in s["a"]:
        s += " with e "
        s += lmc.gen("b", max_tokens=6)
    else:
        s += " without "
        s += lmc.gen("c", max_tokens=6)


@lmc.jit
def unjoined(s: State, x: str) -> None:
    s += f"{x}: "
    first, second = s.fork(2)
    first += lmc.gen("half", max_tokens=6)
    second += " then "
    second += lmc.gen("half", max_tokens=6, temperature=1.0)
    s += first["half"] + second["half"]
    s += lmc.gen("end", max_tokens=3)


@lmc.jit
def partly_eager(s: State, x: str) -> None:
    s += f"{x}: "
    s += lmc.gen("a", max_tokens=6)
    for _ in range(len(str(hash(s["a"]))) % 3 + 1):
        s += " more "
        s += lmc.gen("b", max_tokens=4)


PROGRAMS = [story, ways, unjoined, partly_eager]


def settled(engine: lmc.Engine) -> None:
    until = time.monotonic() + 20
    while engine.core.has_work and time.monotonic() < until:
        time.sleep(0.005)
    assert not engine.core.has_work


@pytest.mark.parametrize("eager", MODES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_pieces_are_what_the_run_gives(
    fake: lmc.Engine, program: lmc.Program, eager: bool
) -> None:
    for x in ("bees", "rain", "night"):
        out = program.run(x=x)
        stream = program.stream(x=x, eager=eager)
        assert "".join(stream) == out.text
        for name, value in out.variables.items():
            if isinstance(value, list):
                for nth, one in enumerate(value):
                    assert "".join(stream.text(name, nth)) == one
            elif name != "b" or program is not partly_eager:  # set several times
                assert "".join(stream.text(name)) == value
        assert stream.result().variables == out.variables


def test_programs_stream_as_plans_where_the_plan_says_all() -> None:
    exact = {p.name: Outline.of(p.compile(x="").plan).exact for p in PROGRAMS}
    assert exact == {"story": True, "ways": True, "unjoined": False, "partly_eager": False}


@pytest.mark.parametrize("eager", MODES)
def test_text_comes_before_the_run_is_over(fake: lmc.Engine, eager: bool) -> None:
    with long.stream(eager=eager) as stream:
        pieces = iter(stream.text("text"))
        assert next(pieces)
        assert not stream._feed.done
    settled(fake)


@pytest.mark.parametrize("eager", MODES)
def test_branches_are_told_apart(fake: lmc.Engine, eager: bool) -> None:
    out = unjoined.run(x="bees")
    pieces = list(unjoined.stream(x="bees", eager=eager).pieces())
    halves = [
        "".join(p.text for p in pieces if (p.name, p.branch) == ("half", (i,))) for i in (0, 1)
    ]
    assert out.text == f"bees: {halves[0]}{halves[1]}{out['end']}"


@pytest.mark.parametrize("eager", MODES)
def test_a_fork_within_a_fork(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def nested(s: State, x: str) -> None:
        s += x
        outer = s.fork(2)
        for branch in outer:
            inner = branch.fork(2)
            inner += lmc.gen("v", max_tokens=4, temperature=1.0)
            inner.join()
        outer.join()

    out = nested.run(x="deep")
    stream = nested.stream(x="deep", eager=eager)
    assert [["".join(stream.text("v", i, j)) for j in (0, 1)] for i in (0, 1)] == out["v"]


@pytest.mark.parametrize("eager", MODES)
def test_samples_are_told_apart(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def drawn(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", max_tokens=6, temperature=1.0, n=3)
        s += " and "
        forks = s.fork(2)
        forks += lmc.gen("w", max_tokens=4, temperature=1.0, n=2)
        forks.join()

    out = drawn.run(x="bees")
    stream = drawn.stream(x="bees", eager=eager)
    assert "".join(stream) == out.text
    assert ["".join(stream.text("v", i)) for i in range(3)] == out["v"]
    assert [["".join(stream.text("w", i, j)) for j in (0, 1)] for i in (0, 1)] == out["w"]
    assert len({p.branch for p in stream.pieces() if p.name == "v"}) == 3


@pytest.mark.parametrize("eager", MODES)
def test_a_prompt_that_goes_back(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def back(s: State, x: str) -> None:
        s += x
        mark = s.mark()
        s += lmc.gen("a", max_tokens=6)
        s.reset(mark)
        s += lmc.gen("b", max_tokens=9, temperature=1.0)

    out = back.run(x="bees")
    stream = back.stream(x="bees", eager=eager)
    taken_back = out["a"] if eager else ""
    assert "".join(stream) == "bees" + taken_back + out["b"]
    assert "".join(stream.text("a")) == out["a"]
    assert "".join(stream.text("b")) == out["b"]


@pytest.mark.parametrize("eager", MODES)
def test_variables_that_are_set_or_named(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def named(s: State, x: str) -> None:
        s += x
        with s.var("whole"):
            s += "so: "
            s += lmc.gen("a", max_tokens=6)
        s.set("kept", x.upper())

    out = named.run(x="bees")
    stream = named.stream(x="bees", eager=eager)
    for name in ("whole", "a", "kept"):
        assert "".join(stream.text(name)) == out[name]


@lmc.jit
def template(s: State, x: str) -> None:
    s += f"{x}: "
    s += '{"name": "' + lmc.gen("name", regex=r"[a-z ]{1,9}") + '", "age": '
    s += lmc.gen("age", regex="[0-9]{1,3}") + "}"
    forks = s.fork(2)
    forks += "<" + lmc.gen("tag", regex="[a-z]{1,6}", temperature=1.0) + ">"
    forks.join()


@pytest.mark.parametrize("eager", MODES)
def test_a_template_comes_as_it_is_filled(fake: lmc.Engine, eager: bool) -> None:
    for x in ("bees", "rain"):
        out = template.run(x=x)
        stream = template.stream(x=x, eager=eager)
        pieces = list(stream)
        assert "".join(pieces) == out.text
        assert len(pieces) > 4
        assert "".join(stream.text("name")) == out["name"]
        assert "".join(stream.text("age")) == out["age"]
        assert ["".join(stream.text("tag", i)) for i in (0, 1)] == out["tag"]
    assert Outline.of(template.compile(x="").plan).exact


@pytest.mark.parametrize("eager", MODES)
@pytest.mark.parametrize("join", [{"k": 2}, {"mode": "concat"}, {"on_error": "collect"}, {}])
def test_other_ways_to_join(fake: lmc.Engine, eager: bool, join: dict[str, Any]) -> None:
    @lmc.jit
    def joined(s: State, x: str, join: dict[str, Any]) -> None:
        s += x
        forks = s.fork(3)
        for n, fork in enumerate(forks):
            fork += f" {n}: "
            fork += lmc.gen("v", max_tokens=20, temperature=1.0)
        forks.join(**join)
        s += " then "
        s += lmc.gen("end", max_tokens=3, logit_bias={1: -5.0})

    out = joined.run(x="bees", join=join)
    stream = joined.stream(x="bees", join=join, eager=eager)
    assert "".join(stream) == out.text
    assert stream.result().variables == out.variables
    texts = {"".join(stream.text("v", n)) for n in range(3)}
    assert texts >= set(out["v"])


@pytest.mark.parametrize("eager", MODES)
def test_a_variable_set_several_times_comes_in_turn(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def turns(s: State, x: str) -> None:
        s += x
        for n in range(3):
            s += f" {n}: "
            s += lmc.gen("turn", max_tokens=4)

    stream = turns.stream(x="a", eager=eager)
    said = "".join(stream.text("turn"))
    text = stream.result().text
    assert said == "".join(part.split(": ", 1)[1] for part in _cut(text, ["a 0: ", " 1: ", " 2: "]))
    assert said.endswith(stream.result()["turn"])


def _cut(text: str, marks: list[str]) -> list[str]:
    parts = []
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        start = text.index(mark)
        parts.append(text[start : text.index(after, start) if after else None])
    return parts


def test_variables_that_no_model_call_made_come_at_the_end(fake: lmc.Engine) -> None:
    @lmc.jit
    def made(s: State, x: str) -> None:
        s += x
        s += lmc.select("which", ["one", "two"])

    stream = made.stream(x="a")
    assert "".join(stream.text("which")) in ("one", "two")


@pytest.mark.parametrize("eager", MODES)
def test_late_readers_and_several_at_once_get_everything(fake: lmc.Engine, eager: bool) -> None:
    stream = story.stream(x="bees", eager=eager)
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append("".join(stream))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stream.result()
    got.append("".join(stream))
    assert len(got) == 5
    assert set(got) == {stream.result().text}


@pytest.mark.parametrize("eager", MODES)
def test_the_error_of_the_run_reaches_every_reader(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def fails(s: State, x: str) -> None:
        s += x
        s += lmc.gen("a", max_tokens=6)
        s += lmc.gen("b", regex="[0-9]+", max_tokens=3)
        int(s["a"] + "x")

    stream = fails.stream(x="one", eager=eager)
    read: list[str] = []
    with pytest.raises(RunError, match="ValueError: invalid literal") as found:
        read.extend(stream)
    assert "".join(read).startswith("one")
    assert found.value.where is not None
    for again in (stream.text("a"), stream.text("zzz"), stream.pieces()):
        with pytest.raises(RunError, match="ValueError"):
            list(again)
    assert isinstance(stream.result().error, RunError)


def test_wrong_arguments_are_refused_at_once(fake: lmc.Engine) -> None:
    with pytest.raises(UsageError, match="'y'"):
        story.stream(x="a", y=1)


def test_a_name_that_was_never_set_is_an_error(fake: lmc.Engine) -> None:
    stream = story.stream(x="a")
    with pytest.raises(UsageError, match="no variable 'strat'"):
        list(stream.text("strat"))
    with pytest.raises(UsageError, match="is a list of 3"):
        list(stream.text("part"))
    with pytest.raises(UsageError, match="has no branch 7"):
        list(stream.text("part", 7))


# ------------------------------------------------------------------------------- cancelling


@pytest.mark.parametrize("eager", MODES)
@pytest.mark.parametrize("how", ["close", "iterator", "break", "drop", "with"])
def test_giving_up_cancels_the_run_b_93(fake: lmc.Engine, eager: bool, how: str) -> None:
    stream: Any = long.stream(eager=eager)
    feed = stream._feed
    pieces = iter(stream)
    for _ in range(3):
        next(pieces)
    if how == "close":
        stream.close()
    elif how == "iterator":
        pieces.close()
    elif how == "break":
        del pieces
        for _ in stream:
            break
    elif how == "drop":
        del stream, pieces
        gc.collect()
    else:
        with stream:
            pass
    steps = fake.stats.model_steps
    result = feed.result()
    assert isinstance(result.error, Cancelled)
    assert fake.stats.model_steps <= steps + 2  # the one under way, and one that had begun
    settled(fake)
    fake.core.audit()
    held = fake.core.statistics()
    assert held["free"] + held["cache_held"] == held["capacity"]
    assert not held["cache_pinned"]


def test_a_reader_that_stops_leaves_the_others_theirs(fake: lmc.Engine) -> None:
    stream = story.stream(x="bees")
    stays, leaves = iter(stream), iter(stream)
    begun = next(stays)
    next(leaves)
    leaves.close()
    assert begun + "".join(stays) == story.run(x="bees").text


def test_after_the_end_nothing_is_cancelled(fake: lmc.Engine) -> None:
    stream = story.stream(x="bees")
    whole = "".join(stream)
    reader = iter(stream)
    next(reader)
    reader.close()
    stream.close()
    assert "".join(stream) == whole
    assert stream.result().error is None


def test_what_follows_a_cancelled_turn_sees_nothing_of_it_b_94(fake: lmc.Engine) -> None:
    @lmc.jit
    def turn(s: State, before: str, more: str) -> None:
        s += before + more
        s += lmc.gen("reply", max_tokens=40, ignore_eos=True)

    stream = turn.stream(before="", more="Tell me of bees. ")
    reader = stream.text("reply")
    got = next(reader) + next(reader)
    reader.close()
    stream.result()
    after = turn.run(before=f"Tell me of bees. {got}", more=" And rain? ")
    with lmc.Engine("fake") as other:
        fresh = turn.run(before=f"Tell me of bees. {got}", more=" And rain? ", engine=other)
    assert after.text == fresh.text
    assert after.meta("reply").token_ids == fresh.meta("reply").token_ids  # type: ignore[union-attr]


def test_a_deadline_that_passes_before_the_row_has_a_thread(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = long._job(fake, True, 0, 0.0, lmc.Options())
    opened = fake.executor.open_row

    def open_row(**given: Any) -> Any:  # the row ends, and its job is closed, at once
        row, future = opened(**given)
        future.result(20)
        job.close()
        return row, future

    monkeypatch.setattr(fake.executor, "open_row", open_row)
    results: list[Any] = []
    job.start(0, {}, results.append)
    assert isinstance(results[0].error, Cancelled)


@pytest.mark.parametrize("eager", MODES)
def test_a_deadline_ends_the_readers(fake: lmc.Engine, eager: bool) -> None:
    stream = long.stream(eager=eager, deadline=0.005)
    with pytest.raises(Cancelled, match="deadline"):
        "".join(stream)


def test_a_closed_engine_ends_the_readers() -> None:
    with lmc.Engine("fake") as engine:
        stream = long.stream(engine=engine)
        next(iter(stream))
    with pytest.raises(Cancelled):
        list(stream)
    stream.close()


# ------------------------------------------------------------------------ characters and stops


@pytest.mark.parametrize("eager", MODES)
def test_exactly_one_piece_says_why_a_variable_ended_b_96(fake: lmc.Engine, eager: bool) -> None:
    ends = set()
    for x in "abcdefgh":
        pieces = list(ending.stream(x=x, eager=eager).pieces())
        mine = [p for p in pieces if p.name == "text"]
        assert [p.finish_reason for p in mine if p.finish_reason] == [mine[-1].finish_reason]
        ends.add(mine[-1].finish_reason)
    assert {"eos", "length"} <= ends


@lmc.jit
def ending(s: State, x: str) -> None:
    s += f"Go on {x}: "
    s += lmc.gen("text", max_tokens=24)


@pytest.mark.parametrize("eager", MODES)
def test_pieces_are_whole_characters_b_91(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def wide(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", regex="(ď|😨|é){6}", max_tokens=60, temperature=1.0)

    for seed in range(5):
        stream = wide.stream(x="Ha", eager=eager, seed=seed)
        pieces = list(stream.text("v"))
        assert "".join(pieces) == stream.result()["v"]
        assert all(set(piece) <= set("ď😨é") for piece in pieces)


@pytest.mark.parametrize("eager", MODES)
def test_a_stop_string_never_leaks_b_63(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def stops(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", regex="(a|b){9}STOP", stop="STOP", max_tokens=60, temperature=1.0)
        s += "!"

    stream = stops.stream(x="Ha", eager=eager)
    grown = ""
    for piece in stream:
        grown += piece
        assert "S" not in grown
    assert grown == "Ha" + stream.result()["v"] + "!"


def test_text_held_back_for_a_stop_that_does_not_come_is_given(fake: lmc.Engine) -> None:
    @lmc.jit
    def held(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", regex="abcab", stop="abd", max_tokens=60)

    stream = held.stream(x="Ha")
    assert "".join(stream.text("v")) == "abcab"


def test_artifacts_stream(fake: lmc.Engine, tmp_path: Any) -> None:
    from lmc.codegen.artifact import Artifact, write_artifact

    path = tmp_path / "story.lmc"
    made = story.compile(x="")
    write_artifact(path, Artifact(made.plan, str(made.program), defaults=story.defaults()))
    stream = lmc.load(path).stream(x="bees")
    assert "".join(stream) == story.run(x="bees").text


@pytest.mark.parametrize("eager", [False, True])
def test_a_typed_variable_that_is_not_complete_is_told_as_far_as_it_goes(
    fake: lmc.Engine, eager: bool
) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += lmc.gen("alone", type=bool, max_tokens=0)
        forks = s.fork(1)
        forks += lmc.gen("won", type=bool, max_tokens=0)
        forks.first()
        both = s.fork(2)
        both += lmc.gen("each", type=bool, max_tokens=0)
        both.join()

    stream = p.stream(eager=eager)
    assert ["".join(stream.text(name)) for name in ("alone", "won")] == ["", ""]
    assert "".join(stream.text("each", 1)) == ""
    with pytest.raises(UsageError, match="is a list of 2"):
        list(stream.text("each"))
    with pytest.raises(RunError, match="is no complete bool"):
        stream.result()["won"]


@pytest.mark.parametrize("eager", MODES)
def test_a_variable_set_anew_is_told_although_its_first_text_was_not_waited_for(
    fake: lmc.Engine, eager: bool
) -> None:
    @lmc.jit
    def again(s: State, x: str) -> None:
        mark = s.mark()
        s += x
        s += lmc.gen("a", max_tokens=200, ignore_eos=True)
        s.reset(mark)
        s += lmc.gen("a", max_tokens=2)

    stream = again.stream(x="it", eager=eager, options=lmc.Options(level=0))
    value = stream.result()["a"]
    assert value
    assert "".join(stream.text("a")).endswith(value)
