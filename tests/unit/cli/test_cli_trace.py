"""`lmc run --trace`: events that Chrome's format allows, and that say what happened."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.commands.trace import lanes_of, trace_events
from lmc.frontend.dsl import State
from lmc.runtime.recording import WorkSpan, record

from .conftest import Invoke, Write

Event = dict[str, Any]

PROGRAM = """
    import lmc

    @lmc.tool
    def look_up(word: str) -> str:
        return word.upper()

    @lmc.jit
    def p(s, x: str):
        s += "A beginning that all of the rows have in common: " + lmc.call(look_up, x)
        s += lmc.select("sure", ["yes", "no"])
        for word, f in zip(("because", "although"), forks := s.fork(2)):
            f += word + lmc.gen("why", 5, ignore_eos=True)
        forks.join()
        s += lmc.gen("n", 4, regex="[0-9]{2}")
"""


def checked(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """The spans of each track, after the rules of the format were checked."""
    for event in events:
        check_fields(event)
    metadata = [e for e in events if e["ph"] == "M"]
    assert events[: len(metadata)] == metadata, "names come before what they name"
    told = Counter((e["name"], e["pid"], e["tid"]) for e in metadata)
    assert set(told.values()) == {1}, "a track is named once"
    named = {(e["pid"], e["tid"]) for e in metadata if e["name"] == "thread_name"}
    processes = {e["pid"] for e in metadata if e["name"] == "process_name"}
    assert {e["pid"] for e in events} == processes
    timed = events[len(metadata) :]
    assert timed == sorted(timed, key=lambda e: e["ts"]), "events are in order of time"
    spans: dict[tuple[int, int], list[Event]] = defaultdict(list)
    series: dict[tuple[int, str], set[tuple[str, ...]]] = defaultdict(set)
    for event in timed:
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in named
            spans[event["pid"], event["tid"]].append(event)
        else:
            series[event["pid"], event["name"]].add(tuple(event["args"]))
    assert all(len(names) == 1 for names in series.values()), "a counter has always the same series"
    for track in spans.values():
        open_ends: list[int] = []  # in nanoseconds, which viewers reckon in
        for event in track:
            begin = round(event["ts"] * 1000)
            end = begin + round(event["dur"] * 1000)
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], "one inside the other, or apart"
            open_ends.append(end)
    return spans


FIELDS = {  # of the phases that are used: all that there must be, and may be
    "M": {"ph": str, "name": str, "pid": int, "tid": int, "args": dict},
    "X": {
        "ph": str, "name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float,
        "args": dict,
    },
    "C": {"ph": str, "name": str, "pid": int, "tid": int, "ts": float, "args": dict},
}  # fmt: skip
METADATA = {"process_name": ("name", str), "thread_name": ("name", str),
            "thread_sort_index": ("sort_index", int)}  # fmt: skip


def check_fields(event: Event) -> None:
    """Check one event by itself: its fields, their types, and what may stand in them."""
    fields = FIELDS[event["ph"]]
    assert set(event) == set(fields), event
    for name, kind in fields.items():
        value = event[name]
        assert type(value) is kind or (kind is float and type(value) is int), (name, event)
    assert event["name"]
    assert 0 <= event["pid"] < 2**31
    assert 0 <= event["tid"] < 2**31
    for name in ("ts", "dur"):
        value = event.get(name, 0)
        assert 0 <= value < 1e15, event
        assert math.isclose(value * 1000, round(value * 1000), rel_tol=1e-12), "whole nanoseconds"
    if event["ph"] == "M":
        name, kind = METADATA[event["name"]]
        assert [*event["args"]] == [name]
        assert type(event["args"][name]) is kind
    elif event["ph"] == "C":
        assert event["args"]
        assert all(type(value) is int and value >= 0 for value in event["args"].values())
    else:
        assert event["cat"]
        assert all(type(value) in (str, int, bool) for value in event["args"].values())


def read(path: Path) -> dict[str, Any]:
    """A trace file, as a viewer reads it: strict JSON, one object, nothing twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), f"a name stands twice among {names}"
        return dict(pairs)

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    trace = json.loads(path.read_text("utf-8"), object_pairs_hook=once, parse_constant=refused)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert all(type(value) is str for value in trace["otherData"].values())
    return dict(trace)


def of(spans: dict[tuple[int, int], list[Event]], kind: str) -> list[Event]:
    return [e for track in spans.values() for e in track if e["cat"] == kind]


@pytest.mark.parametrize("way", [["-O2"], ["--eager"]])
def test_a_single_row(invoke: Invoke, write: Write, tmp_path: Path, way: list[str]) -> None:
    write("p.py", PROGRAM)
    run = ["run", "p.py", "--arg", "x=bees", "--model", "fake", "--json", *way]
    told = invoke(*run, "--trace", "t.json", "--stats", "s.json").stdout
    assert told == invoke(*run).stdout
    trace = read(tmp_path / "t.json")
    stats = json.loads((tmp_path / "s.json").read_text())
    assert trace["otherData"]["program"] == "p"
    spans = checked(trace["traceEvents"])
    assert Counter(e["name"] for e in of(spans, "gen")) == {"gen why": 2, "gen n": 1}
    assert [e["name"] for e in of(spans, "score")] == ["score sure"]
    assert [e["name"] for e in of(spans, "tool")] == ["tool look_up"]
    (row,) = of(spans, "row")
    assert row["name"] == "row 0"
    whys = [e for e in of(spans, "gen") if e["name"] == "gen why"]
    assert {e["args"]["at"] for e in whys} == {"p.py:12"}
    assert {e["args"]["made_tokens"] for e in whys} == {5}
    assert whys[0]["tid"] != whys[1]["tid"], "the branches run side by side"
    steps = of(spans, "step")
    assert sum(e["args"]["repeats"] for e in steps) == stats["model_steps"]
    computed = sum(e["args"]["prompt_tokens"] + e["args"]["made_tokens"] for e in steps)
    assert computed == stats["computed_tokens"]
    hits = [e["args"]["hits"] for e in trace["traceEvents"] if e["name"] == "cache, tokens so far"]
    assert hits == sorted(hits)
    assert hits[-1] == stats["cached_tokens"]


def test_rows_of_a_batch(invoke: Invoke, write: Write, tmp_path: Path) -> None:
    write("p.py", PROGRAM)
    write("rows.jsonl", "".join(f'{{"x": "row {n}"}}\n' for n in range(5)) + '{"x": ""}\n')
    batch = ["run", "p.py", "--batch", "rows.jsonl", "--model", "fake", "-o", "out.jsonl"]
    invoke(*batch, "--trace", "t.json", "--kv-tokens", "400")
    spans = checked(read(tmp_path / "t.json")["traceEvents"])
    assert {e["name"] for e in of(spans, "row")} == {f"row {n}" for n in range(6)}
    assert len(of(spans, "gen")) == 18
    assert any(e["args"]["requests"] > 1 for e in of(spans, "step"))


def test_a_row_that_fails(invoke: Invoke, write: Write, tmp_path: Path) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s):
            s += lmc.gen("a", 50, ignore_eos=True)
        """,
    )
    invoke("run", "p.py", "--model", "fake", "--kv-tokens", "20", "--trace", "t.json", code=1)
    spans = checked(read(tmp_path / "t.json")["traceEvents"])
    assert "KV slots" in of(spans, "row")[0]["args"]["error"]
    assert "KV slots" in of(spans, "gen")[0]["args"]["error"]


def test_what_goes_on_when_the_recording_ends_ends_with_it(fake: lmc.Engine) -> None:
    @lmc.jit
    def race(s: State) -> None:
        for n, f in enumerate(forks := s.fork(2)):
            f += f"{n}: "
            f += lmc.gen("a", max_tokens=3 + 200 * n, ignore_eos=True)
        forks.join(k=1)

    recorder = record(fake)
    race.run()
    recording = recorder.recording()
    assert {span.name for span in recording.work} == {"a"}
    checked(trace_events(recording))


def test_nothing_is_watched_unless_it_is_asked_for(fake: lmc.Engine) -> None:
    assert fake.executor.observer is None
    assert fake.core.observer is None


def test_a_step_that_failed_is_in_the_trace(fake: lmc.Engine, monkeypatch: Any) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += "x" + lmc.gen("a", max_tokens=3)

    def broken(step: object) -> None:
        raise RuntimeError("no device")

    recorder = record(fake)
    monkeypatch.setattr(fake.core.runner, "run", broken)
    assert p.run().error is not None
    events = trace_events(recorder.recording())
    assert [e["args"]["error"] for e in of(checked(events), "step")] == ["the step failed"]


def test_spans_that_overlap_lie_in_lanes() -> None:
    spans = [
        WorkSpan(0, "gen", name, None, begin, end)
        for name, begin, end in (
            ("a", 0.0, 3.0),
            ("b", 1.0, 2.0),
            ("c", 2.0, 4.0),
            ("d", 3.5, None),
        )
    ]
    assert [(span.name, lane) for span, lane in lanes_of(spans, 9.0)] == [
        ("a", 0), ("b", 1), ("c", 1), ("d", 0),
    ]  # fmt: skip
    for (one, here), (other, there) in itertools.combinations(lanes_of(spans, 9.0), 2):
        assert here != there or (one.end or 9.0) <= other.begin


def test_a_trace_that_cannot_be_written(invoke: Invoke, greet: str) -> None:
    run = ["run", greet, "--model", "fake", "--trace", "nowhere/t.json"]
    assert "there is no directory nowhere" in invoke(*run, code=2).stderr
