"""A compiled program, and perhaps a run of it, as one page: `--emit html`, `lmc run --report`.

    facts (report, stages, prompts, time lines) --template.html--> one file

The page loads nothing: style, script and drawings are in it, and its policy forbids the rest. All
texts go through the template's escaping; the drawings escape theirs.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from lmc.commands.automata import automata_beside
from lmc.commands.counting import CHARACTERS, Meter
from lmc.commands.effects import deeds, work_of
from lmc.commands.page.automata import automaton_drawn
from lmc.commands.page.diffs import DiffLine, diff_of, plain_lines
from lmc.commands.page.graphs import changes_between, drawn
from lmc.commands.report import Shape, first_prompts, report_of
from lmc.commands.timeline import TimeLine, measured, predicted
from lmc.driver import Compiled, changes_of
from lmc.errors import Location
from lmc.ir.chains import unchained
from lmc.ir.core import Program, Value
from lmc.ir.prompts import Stretch, prompt_tree

if TYPE_CHECKING:
    from lmc.runtime.recording import Recording

__all__ = ["Ran", "page_of"]

MOST_EDGES = 16  # drawn of an automaton
MOST_BRANCHES = 80  # shown of the prefix tree of a batch
SHOWN_TOKENS = 40  # of a branch
MOST_STRETCHES = 300  # shown of the prompts
MOST_SOURCE = 400  # lines shown of a file
AROUND = 2  # lines of source around those of the program


@dataclass(frozen=True)
class Ran:
    """What is known of a run.

    Attributes:
        model: that it ran on.
        recording: who was at work when.
        stats: the engine's counters, as `--stats` writes them.
        texts: per parameter the text of the row, if there was one row.
        variables: of the row, in the order in which they came.
        error: of the row.
    """

    model: str
    recording: Recording
    stats: Mapping[str, Any]
    texts: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


def page_of(
    compiled: Compiled,
    meter: Meter = CHARACTERS,
    ran: Ran | None = None,
    shapes: list[Shape] | None = None,
    predicted_costs: Mapping[str, Any] | None = None,
) -> str:
    """The page of a compiled program, as HTML.

    Args:
        compiled: the program.
        meter: measures its prompts.
        ran: a run of it.
        shapes: of the rows of a batch, if there is one.
        predicted_costs: of that batch, as `--emit report` has them.
    """
    import jinja2

    folder = resources.files("lmc.commands.page")
    parts = {
        name: folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("template.html", "style.css", "script.js")
    }
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    stages = list(_stages(compiled, meter))
    report = report_of(compiled, shapes, meter)
    if shapes is not None:
        report["batch"]["predicted"] = predicted_costs
    given = {} if ran is None else dict(zip(compiled.program.params, ran.texts, strict=False))
    page = environment.from_string(parts["template.html"]).render(
        style=parts["style.css"],
        script=parts["script.js"],
        report=report,
        eager=Counter((end["at"], end["reason"], end["advice"]) for end in report["resumes"]),
        branches=_branches(shapes or [], meter),
        unit=meter.unit,
        model=meter.model,
        stages=stages,
        work=work_of(compiled.program, meter),
        files=_sources(compiled),
        prompts=_prompts(compiled.program, meter, given),
        predicted=predicted(compiled.program),
        measured=[] if ran is None else measured(ran.recording),
        ran=ran,
        automata=dict(_automata(compiled.program)),
        ticks=_ticks,
    )
    return page.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair


# ------------------------------------------------------------------------------------ stages


@dataclass(frozen=True)
class _Stage:
    """The program as traced, or a pass.

    Attributes:
        name: as the pipeline spells it.
        changed: whether there is something to see.
        graph: the drawing of the program after it; None if it is too large, or did not change.
        lines: the text of the program, with what changed.
        deeds: what it did.
    """

    name: str
    changed: bool
    seconds: float
    nodes_before: int
    nodes_after: int
    graph: str | None = None
    lines: tuple[DiffLine, ...] = ()
    deeds: tuple[str, ...] = ()


def _stages(compiled: Compiled, meter: Meter) -> Iterator[_Stage]:
    changes = changes_of(compiled)
    steps = [change for change in changes if change.changed]
    dropped: dict[int, Mapping[int, str]] = {}
    made: dict[int, Mapping[int, str]] = {-1: {}}
    for nth, change in enumerate(steps):
        dropped[nth - 1], made[nth] = changes_between(change.before, change.program)

    def graph(nth: int, program: Program) -> str | None:
        marks = dict(made[nth])
        for node, mark in dropped.get(nth, {}).items():
            marks[node] = f"{marks[node]} {mark}" if node in marks else mark
        return drawn(program, marks, f"g{nth + 1}")

    traced = compiled.traced
    count = _count(traced)
    yield _Stage(
        "as traced", True, 0.0, count, count, graph(-1, traced), tuple(plain_lines(traced))
    )
    nth = -1
    for record, change in zip(compiled.records, changes, strict=True):
        numbers = (record.seconds, record.nodes_before, record.nodes_after)
        if not change.changed:
            yield _Stage(record.name, False, *numbers)
            continue
        nth += 1
        yield _Stage(
            record.name,
            True,
            *numbers,
            graph(nth, change.program),
            tuple(diff_of(change.before, change.program)),
            tuple(deeds(change.before, change.program, meter)),
        )


def _count(program: Program) -> int:
    return sum(1 for _ in program.walk())


# ------------------------------------------------------------------------------------ source


@dataclass(frozen=True)
class _SourceLine:
    number: int
    text: str
    at: str
    nodes: int  # of the optimized graph


def _sources(compiled: Compiled) -> list[tuple[str, list[_SourceLine]]]:
    """The lines of the user's program, by file, with how many nodes came from each."""
    counts = Counter(node.at for node in compiled.program.walk())
    places = {node.at for node in compiled.traced.walk()} | {compiled.program.source}
    by_file: dict[str, list[int]] = {}
    for place in places:
        if place is not None:
            by_file.setdefault(place.file, []).append(place.line)
    return [
        (file, shown)
        for file, lines in sorted(by_file.items())
        if (shown := list(_listing(file, lines, counts)))
    ]


def _listing(
    file: str, lines: Iterable[int], counts: Mapping[Location | None, int]
) -> Iterator[_SourceLine]:
    text = linecache.getlines(file)
    first = max(min(lines) - AROUND, 1)
    last = min(max(lines) + AROUND, len(text), first + MOST_SOURCE)
    for number in range(first, last + 1):
        place = Location(file, number)
        yield _SourceLine(number, text[number - 1].rstrip("\n"), str(place), counts.get(place, 0))


# ----------------------------------------------------------------------------------- prompts


@dataclass(frozen=True)
class _Prompt:
    """A stretch of the prompts with its length, and its share of the longest."""

    stretch: Stretch
    length: int
    share: float


def _prompts(program: Program, meter: Meter, given: Mapping[Value, str]) -> list[_Prompt]:
    program = unchained(program)
    own = meter.own(program, given)
    tree = prompt_tree(program)[:MOST_STRETCHES]
    lengths = [sum(own.get(state, 0) for state in stretch.states) for stretch in tree]
    longest = max([*lengths, 1])
    return [_Prompt(s, n, round(100 * n / longest, 1)) for s, n in zip(tree, lengths, strict=True)]


@dataclass(frozen=True)
class _Branch:
    """Tokens that the first prompts of some rows share."""

    depth: int
    text: str
    tokens: int
    prompts: int
    share: float
    more: int


def _branches(shapes: list[Shape], meter: Meter) -> list[_Branch]:
    """The prefix tree of a batch, upper nodes first where it is large, in the order of the tree."""
    prompts = first_prompts(shapes, meter)
    if not prompts or meter.tokenizer is None:
        return []
    from lmc.runtime.prefix_tree import PrefixTree
    from lmc.runtime.request import tokens_of

    tree = PrefixTree.of(prompts)
    held = tree.to_json(MOST_BRANCHES)
    found: list[_Branch] = []
    todo = [(held["root"], 0)]
    while todo:
        node, depth = todo.pop()
        start, count = node["start"], node["tokens"]
        if count:
            tokens = tokens_of(prompts[node["prompt"]][start : start + min(count, SHOWN_TOKENS)])
            text = "".join(map(meter.tokenizer.token_text, tokens.tolist()))
            share = round(100 * count * node["prompts"] / max(tree.total_tokens, 1), 1)
            text += "…" if count > SHOWN_TOKENS else ""
            found.append(_Branch(depth, text, count, node["prompts"], share, node.get("more", 0)))
        todo += ((child, depth + bool(count)) for child in reversed(node["children"]))
    return found


# -------------------------------------------------------------------------------- time, automata


def _ticks(line: TimeLine) -> list[tuple[float, str]]:
    """Marks of a time line: places in per cent, and numbers."""
    span = line.end - line.begin
    if span <= 0:
        return []
    step = next(s for s in _round_numbers() if span / s <= 8)
    count = int(span / step)
    return [(100 * n * step / span, f"{n * step:g}") for n in range(count + 1)]


def _round_numbers() -> Iterator[float]:
    power = 0.001
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def _automata(program: Program) -> Iterator[tuple[tuple[str, object], str]]:
    """The drawings of automata, by kind and source of their constraints."""
    for number, beside in enumerate(automata_beside(program, MOST_EDGES)):
        yield (beside.kind, beside.source), automaton_drawn(beside.view, f"a{number}")
