"""`--trace`: what happened in a run as trace events, for Perfetto and chrome://tracing.

The format is the "Trace Event Format" of Chrome, as a JSON object; https://ui.perfetto.dev reads
it.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lmc.commands.output import writing
from lmc.runtime.recording import Recording, StepSpan, WorkSpan

__all__ = ["lanes_of", "trace_events", "write_trace"]

ENGINE, ROWS = 1, 2  # the two processes of the trace
STEPS = 1  # the track of the engine's steps
LANES = 1000  # tracks that a row may have: one, and more where its branches run side by side

Event = dict[str, Any]


def write_trace(path: Path, recording: Recording, about: dict[str, str]) -> None:
    """Write a recording as a trace.

    Args:
        about: what was run, for the reader.

    Raises:
        RunError: the file cannot be written.
    """
    held = {"traceEvents": trace_events(recording), "displayTimeUnit": "ms", "otherData": about}
    with writing(path):
        path.write_text(json.dumps(held) + "\n", encoding="utf-8")


def trace_events(recording: Recording) -> list[Event]:
    """The events of a trace: names of tracks, then everything in order of time.

    Spans are complete events ("X"), times are microseconds. Those of one track lie inside one
    another or apart.
    """
    names = [_named(ENGINE, "engine"), _named(ENGINE, "steps", STEPS), _named(ROWS, "rows")]
    events = [event for step in recording.steps for event in _step(step, recording.seconds)]
    work: dict[int, list[WorkSpan]] = {}
    for span in recording.work:
        work.setdefault(span.row, []).append(span)
    for nth, row in enumerate(recording.rows):
        track, name = nth * LANES, f"row {row.index}"
        end = recording.seconds if row.end is None else row.end
        facts = {} if row.error is None else {"error": row.error}
        names.append(_named(ROWS, name, track))
        names.append({"ph": "M", "name": "thread_sort_index", "pid": ROWS, "tid": track,
                      "args": {"sort_index": track}})  # fmt: skip
        events.append(_span(ROWS, track, name, row.begin, end, "row", facts))
        for span, lane in lanes_of(work.get(row.order, ()), recording.seconds):
            lane = min(lane, LANES - 1)
            if lane:
                names.append(_named(ROWS, f"{name}, beside ({lane})", track + lane))
            events += _work(span, track + lane, end)
    unique = {json.dumps(event): event for event in names}
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return [*unique.values(), *events]


def lanes_of(work: Iterable[WorkSpan], seconds: float) -> Iterator[tuple[WorkSpan, int]]:
    """Each span with the first lane that is free when it begins.

    Args:
        work: in order of beginning.
        seconds: when those end that go on.
    """
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    count = 0
    for span in work:
        while busy and busy[0][0] <= span.begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        heapq.heappush(busy, (seconds if span.end is None else span.end, lane))
        yield span, lane


def _named(process: int, name: str, track: int | None = None) -> Event:
    """The name of a process, or of one of its tracks."""
    kind = "process_name" if track is None else "thread_name"
    return {"ph": "M", "name": kind, "pid": process, "tid": track or 0, "args": {"name": name}}


def _span(
    process: int, track: int, name: str, begin: float, end: float, kind: str, facts: dict[str, Any]
) -> Event:
    start = round(begin * 1e6, 3)
    return {
        "ph": "X", "name": name, "cat": kind, "pid": process, "tid": track, "ts": start,
        "dur": max(round(round(end * 1e6, 3) - start, 3), 0.0), "args": facts,
    }  # fmt: skip


def _step(step: StepSpan, seconds: float) -> Iterator[Event]:
    name = "prefill and decode" if step.prompt_tokens and step.made_tokens else "decode"
    if not step.made_tokens:
        name = "prefill"
    end = seconds if step.end is None else step.end
    facts: dict[str, Any] = {
        "requests": step.requests,
        "prompt_tokens": step.prompt_tokens,
        "made_tokens": step.made_tokens,
        "repeats": step.repeats,
    }
    if step.failed:
        facts["error"] = "the step failed"
    yield _span(ENGINE, STEPS, name, step.begin, end, "step", facts)
    counters = {
        "tokens in a step": {"prompt": step.prompt_tokens, "made": step.made_tokens},
        "requests in a step": {"requests": step.requests},
    }
    if not step.failed:
        counters |= {
            "KV slots": {"cached": step.held, "free": step.free},
            "cache, tokens so far": {"hits": step.cached_tokens, "evicted": step.evicted_tokens},
            "tokens so far": {"generated": step.generated_tokens, "forced": step.forced_tokens},
        }
    for counter, values in counters.items():
        yield {
            "ph": "C", "name": counter, "pid": ENGINE, "tid": 0, "ts": round(end * 1e6, 3),
            "args": values,
        }  # fmt: skip


def _work(span: WorkSpan, track: int, row_end: float) -> Iterator[Event]:
    # what was cancelled with its row ends with the step that was under way, a little later
    end = row_end if span.end is None else min(span.end, row_end)
    facts: dict[str, Any] = {**span.facts, **({"at": str(span.at)} if span.at else {})}
    if span.end is None:
        facts["unfinished"] = True
    yield _span(ROWS, track, f"{span.kind} {span.name}", span.begin, end, span.kind, facts)
    if span.started is None:
        return
    first = end if span.first_token is None else min(span.first_token, end)
    for name, begin, until in (
        ("wait", span.begin, span.started),
        ("prefill", span.started, first),
        ("decode", first, end),
    ):
        if until > begin:
            yield _span(ROWS, track, name, begin, until, "phase", {})
