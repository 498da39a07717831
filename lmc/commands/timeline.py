"""A program's work on a time line: as its graph allows it, and as a run was.

Predicted is one row on an engine that has room for all of it: what a call waits for is in the
graph, how long it takes is known in steps of the model, at most. A call takes a step for its
prompt, a gen one more for each further token. Measured are the requests of a run, in milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmc.errors import Location
from lmc.ir.analysis import gens
from lmc.ir.chains import unchained
from lmc.ir.core import Node, Program, Region, Value
from lmc.ir.ops import MODEL_CALLS, HostCall, If, Prefill
from lmc.ir.prompts import call_name

if TYPE_CHECKING:
    from lmc.runtime.recording import Recording, RowSpan, WorkSpan

__all__ = ["Bar", "TimeLine", "longest_steps", "measured", "predicted"]

MOST_WAYS = 4  # drawn of a program
MOST_ROWS = 12  # drawn of a run
MOST_TOLD = 4  # decisions on a way
MOST_LOOKED_AT = 256  # ways among which the longest are looked for


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that takes time: `kind` is "prefill", "gen", "select", "tool" or "wait"."""

    lane: int
    kind: str
    name: str
    begin: float
    end: float
    at: Location | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Bars in lanes, in one unit of time.

    Attributes:
        title: of which way, or of which row.
        unit: "steps" or "ms".
        begin, end: of all.
        bars: in order of beginning; those of a lane do not overlap.
    """

    title: str
    unit: str
    begin: float
    end: float
    bars: tuple[Bar, ...] = ()

    @property
    def lanes(self) -> int:
        """How many there are."""
        return max((bar.lane for bar in self.bars), default=-1) + 1


# ---------------------------------------------------------------------------------- predicted


@dataclass(slots=True)
class _Way:
    """What is known on a way through the program."""

    ready: dict[Value, int] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    decisions: tuple[tuple[Location | None, bool], ...] = ()
    now: int = 0  # when its last decision was made: nothing behind an `if` begins before


def predicted(program: Program) -> list[TimeLine]:
    """The ways through a program that take most steps, the longest first; those alike are one."""
    alike: dict[tuple[Bar, ...], list[_Way]] = {}
    body = unchained(program).body
    for way in itertools.islice(_ways(body, _Way()), MOST_LOOKED_AT):
        alike.setdefault(tuple(_in_lanes(way.bars)), []).append(way)
    lines = [
        TimeLine(
            "every row" if len(alike) == 1 else _title(ways),
            "steps",
            0,
            max((bar.end for bar in bars), default=0),
            bars,
        )
        for bars, ways in alike.items()
    ]
    lines.sort(key=lambda line: -line.end)
    return lines[:MOST_WAYS]


def longest_steps(program: Program) -> int:
    """The most steps that a row takes: on its longest way, with all gens at their limits."""
    return int(predicted(program)[0].end)


def _title(ways: list[_Way]) -> str:
    """By which decisions one comes to the first of some ways, and how many others are like it."""
    decisions = ways[0].decisions
    told = [f"{at or 'if'} is {'true' if held else 'false'}" for at, held in decisions[:MOST_TOLD]]
    more = ["and so on"] * (len(decisions) > MOST_TOLD)
    others = [f"and {len(ways) - 1} ways like it"] * (len(ways) > 1)
    return ", ".join([*told, *more, *others])


def _ways(region: Region, way: _Way) -> Iterator[_Way]:
    for node in region.nodes:
        begin = max((way.ready.get(v, 0) for v in node.op.value_operands()), default=0)
        begin = max(begin, way.now)
        if isinstance(node.op, If):
            for held, inner in ((True, node.op.then), (False, node.op.orelse)):
                decided = (*way.decisions, (node.at, held))
                yield from _ways(inner, _Way(dict(way.ready), list(way.bars), decided, begin))
            return
        end = begin
        if isinstance(node.op, (*MODEL_CALLS, Prefill, HostCall)):
            kind, name, steps, note = _taking(node)
            end = begin + steps
            way.bars.append(Bar(0, kind, name, begin, end, node.at, note))
        if isinstance(node.op, Prefill):  # its readers share its steps: they need not wait
            end = begin
        way.ready.update(dict.fromkeys(node.results, end))
    yield way


def _taking(node: Node) -> tuple[str, str, int, str]:
    """Kind, name, steps and a note of what takes time."""
    if isinstance(node.op, HostCall):
        return "tool", f"{node.op.fn}()", 1, "takes as long as it takes"
    if isinstance(node.op, Prefill):
        return "prefill", "prefill", 1, "a step for each batch of prompt tokens"
    tokens = sum(params.max_tokens for _, params in gens(node.op))
    if tokens:
        return "gen", call_name(node), tokens, f"at most {tokens} tokens"
    return "select", call_name(node), 1, "one step"


def _in_lanes(bars: list[Bar]) -> Iterator[Bar]:
    """The bars in order of beginning, each in the first lane that is free."""
    free: list[float] = []  # per lane, when its last bar ends
    for bar in sorted(bars, key=lambda bar: bar.begin):
        lane = next((n for n, end in enumerate(free) if end <= bar.begin), len(free))
        free[lane : lane + 1] = [bar.end]
        yield Bar(lane, bar.kind, bar.name, bar.begin, bar.end, bar.at, bar.note)


# ----------------------------------------------------------------------------------- measured


def measured(recording: Recording) -> list[TimeLine]:
    """The first rows of a run, in milliseconds since the model was loaded."""
    work: dict[int, list[WorkSpan]] = {}
    for span in recording.work:
        work.setdefault(span.row, []).append(span)
    rows = sorted(recording.rows, key=lambda row: row.index)[:MOST_ROWS]
    return [_row(row, work.get(row.order, []), recording.seconds) for row in rows]


def _row(row: RowSpan, work: list[WorkSpan], seconds: float) -> TimeLine:
    over = seconds if row.end is None else row.end
    bars = []
    for span in work:
        end = over if span.end is None else min(span.end, over)
        kind = {"score": "select"}.get(span.kind, span.kind)
        bars.append(
            Bar(0, kind, span.name, span.begin * 1e3, end * 1e3, span.at, _facts(span.facts))
        )
    title = f"row {row.index}" + (f": {row.error}" if row.error else "")
    return TimeLine(title, "ms", row.begin * 1e3, over * 1e3, tuple(_in_lanes(bars)))


def _facts(facts: Mapping[str, int | str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
