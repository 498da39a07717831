"""`--emit html`: one page that loads nothing, whatever stands in the program."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.commands.counting import CHARACTERS, meter_of
from lmc.commands.effects import deeds, work_of
from lmc.commands.page import Ran, page_of
from lmc.commands.page.diffs import diff_of
from lmc.commands.page.graphs import MOST_DRAWN, changes_between, drawn
from lmc.commands.timeline import Bar, predicted
from lmc.frontend.dsl import State
from lmc.ir.layout import lay_out
from lmc.ir.picture import picture_of, pruned
from lmc.ir.prompts import prompt_tree
from lmc.passes.hoist_prefix import HoistPrefix
from lmc.runtime.recording import Recorder

from .conftest import Invoke, Write

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags close in order; keeps what was said in each, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.said: list[str] = []
        self.scripts = 0
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.scripts += tag == "script"
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        return "".join(self.said)


def page(invoke: Invoke, *args: str) -> Page:
    text = invoke("compile", *args, "--emit", "html").stdout
    found = Page(text)
    loading = [a for a in found.attributes if a[1] in ("src", "href", "action", "srcset", "data")]
    assert all(value.startswith(("#", "data:,")) for _, _, value in loading), loading
    assert not re.search(r"@import|url\((?!#)", text)
    assert "default-src 'none'" in text
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert found.scripts == 1
    return found


PROGRAM = """
    import lmc

    @lmc.jit
    def p(s, q: str):
        s += "A question that all rows share: " + q
        for i, f in enumerate(forks := s.fork(3)):
            f += f"Branch {i}: "
            f += lmc.gen("a", 5, regex="[ab]{3}")
        forks.join()
        if s["a"][0] == "x":
            s += lmc.gen("n", 2, regex="[0-9]")
            for i in range(int(s["n"])):
                s += str(i)
"""


def test_everything_is_on_the_page(invoke: Invoke, write: Write) -> None:
    write("p.py", PROGRAM)
    found = page(invoke, "p.py")
    text = found.text
    for told in (
        "p.py:3", "canonicalize", "hoist-prefix", "nothing to do",
        "1 of 2 ways go on eagerly", "int() of a str that is not known yet", "To compile it: ",
        "[ab]{3}", "4 states", "Branch 0: ", "for i, f in enumerate(forks := s.fork(3)):",
        "the same in all rows", "at most 17 tokens made",
    ):  # fmt: skip
        assert told in text, told
    stages = [v for tag, name, v in found.attributes if (tag, name) == ("button", "data-stage")]
    drawings = [v for tag, name, v in found.attributes if (tag, name) == ("div", "data-stage")]
    assert stages == drawings
    assert len(stages) > 2
    assert ("svg", "class", "automaton") in found.attributes
    lines = {value for _, name, value in found.attributes if name == "data-line"}
    assert {"p.py:5", "p.py:8", "p.py:12"} <= lines


HOSTILE = """
    import lmc

    @lmc.jit
    def p(s, q: str):
        s += "</script><script>alert(1)</script>" + q + "\\"'><img src=x onerror=alert(2)>"
        s += "{{ 7 * 7 }}{% raw %} \\ud800 é ☃ \\x00 \\u2028 ]]> <!-- &amp;"
        s += lmc.gen("</title><b>", 4, stop="</svg>")
        s += lmc.gen("c", regex="</style>|\\"&'")
"""


def test_a_program_cannot_write_markup(invoke: Invoke, write: Write) -> None:
    write("p.py", HOSTILE)
    found = page(invoke, "p.py")
    text = found.text
    assert "</script><script>alert(1)</script>" in text
    assert "{{ 7 * 7 }}{% raw %}" in text
    assert "☃" in text
    assert not [tag for tag, name, _ in found.attributes if tag == "img" or name == "onerror"]
    assert "</title><b>" in text


def test_the_page_goes_to_a_file(invoke: Invoke, write: Write, tmp_path: Path) -> None:
    write("p.py", PROGRAM)
    assert invoke("compile", "p.py", "--emit", "html", "-o", "x.html").stdout == ""
    assert Page((tmp_path / "x.html").read_text(encoding="utf-8")).text


@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_every_level_has_a_page(invoke: Invoke, write: Write, level: str) -> None:
    write("p.py", PROGRAM)
    assert "as traced" in page(invoke, "p.py", level).text


def test_lengths_are_in_tokens_of_a_model(invoke: Invoke, write: Write) -> None:
    write("p.py", PROGRAM)
    text = page(invoke, "p.py", "--model", "fake").text
    assert "tokens of fake" in text
    assert "no model or file" not in text
    assert "nonsense" in invoke(
        "compile", "p.py", "--emit", "html", "--model", "nonsense", code=2
    ).stderr  # fmt: skip


def test_a_large_graph_is_told_of_and_not_drawn(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        f"""
        import lmc

        @lmc.jit
        def p(s, q: str):
            for _ in range({MOST_DRAWN // 2 + 1}):
                s += q + lmc.gen("a", 1)
        """,
    )
    assert "too large to be drawn" in page(invoke, "p.py").text


# ------------------------------------------------------------------------- what the page shows


@lmc.jit
def twice(s: State, q: str) -> None:
    s += "A beginning that is long enough. " + q
    s += lmc.select("sure", ["yes", "no"])
    for n, f in enumerate(forks := s.fork(2)):
        f += f" Branch {n}: "
        f += lmc.gen("a", max_tokens=5 + n)
    forks.join()
    if s["sure"] == "yes":
        return
    s += " More: " + lmc.gen("b", max_tokens=7)


def test_the_prompts_are_a_tree() -> None:
    tree = prompt_tree(twice.compile().program)
    assert [(s.depth, s.way, s.calls, s.readers) for s in tree] == [
        (0, "", ["sure"], 4),
        (1, "", ["a"], 1),
        (1, "", ["a"], 1),
        (1, "else", ["b"], 1),
    ]
    assert [p.text for p in tree[0].pieces] == ["A beginning that is long enough. ", "q", "sure"]
    assert [p.kind for p in tree[0].pieces] == ["text", "open", "made"]


def test_the_work_of_a_row() -> None:
    for program in (twice.compile().traced, twice.compile().program):
        work = work_of(program, CHARACTERS)
        assert (work.generated_tokens, work.steps) == (5 + 6 + 7, 1 + 7)
        assert work.prompt == 33 + 2 * len(" Branch 0: ") + len(" More: ")
        assert work.prompt_repeated == 4 * 33 + 2 * len(" Branch 0: ") + len(" More: ")


def test_tokens_are_those_of_the_model() -> None:
    program = twice.compile().program
    meter = meter_of(program, "fake")
    assert meter.unit == "tokens"
    assert meter.tokenizer is not None
    lengths = [sum(meter.own(program)[v] for v in s.states) for s in prompt_tree(program)]
    texts = ["A beginning that is long enough. ", " Branch 0: ", " Branch 1: ", " More: "]
    first = [True, False, False, False]
    assert lengths == [
        len(meter.tokenizer.encode(text, first=f)) for text, f in zip(texts, first, strict=True)
    ]
    known = meter.own(program, {program.params[0]: "why?"})
    whole = len(meter.tokenizer.encode(texts[0] + "why?", first=True))  # one span
    assert sum(known.values()) == whole + sum(lengths[1:])


def test_ways_take_steps() -> None:
    longest, other = predicted(twice.compile().program)
    assert (longest.end, other.end) == (8, 7)
    assert (
        Bar(longest.bars[-1].lane, "gen", "b", 1, 8, longest.bars[-1].at, "at most 7 tokens")
        == longest.bars[-1]
    )
    assert longest.title.endswith("is false")
    for one in longest.bars:
        for two in longest.bars:
            assert (
                one is two or one.lane != two.lane or one.end <= two.begin or two.end <= one.begin
            )


def test_what_a_pass_did_is_told_and_marked() -> None:
    before = twice.compile(lmc.Options(level=1)).program
    after = HoistPrefix().run(before)
    told = deeds(before, after, CHARACTERS)
    assert told[0] == "computes a prompt of 33 known characters ahead, once for all rows"
    assert "+1 lm.prefill" in told[-1] or "+2 lm.prefill" in told[-1]
    assert deeds(before, before, CHARACTERS) == []
    gone, made = changes_between(before, after)
    assert gone == {}
    ops = [node.op.mnemonic for node in after.walk()]
    assert {ops[n] for n, mark in made.items() if mark == "new"} == {"lm.extend", "lm.prefill"}
    assert "changed" in made.values()
    picture = drawn(after, made, "g")
    assert picture is not None
    assert picture.count('class="box lm-prefill new"') == ops.count("lm.prefill")


def test_lines_differ_only_where_nodes_do() -> None:
    before = twice.compile(lmc.Options(level=1)).program
    lines = diff_of(before, HoistPrefix().run(before))
    same = [line for line in lines if line.kind == "same"]
    assert len(same) > len(lines) / 2
    assert any(line.kind == "new" and "lm.prefill" in line.text for line in lines)
    assert all(line.kind == "same" for line in diff_of(before, before))


# ---------------------------------------------------------------------------------- after a run


def ran(invoke: Invoke, folder: Path, *args: str, code: int = 0) -> Page:
    invoke("run", *args, "--model", "fake", "--report", "r.html", code=code)
    return Page((folder / "r.html").read_text(encoding="utf-8"))


def test_a_run_is_shown_beside_what_was_predicted(
    invoke: Invoke, write: Write, tmp_path: Path
) -> None:
    write("p.py", PROGRAM)
    found = ran(invoke, tmp_path, "p.py", "--arg", "q=<i>why</i>?", "--stats", "s.json")
    for told in ("Measured", "Predicted", "row 0", "model steps", "seconds of load"):
        assert told in found.text, told
    stats = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    counts, guess = stats["computed_tokens"], stats["predicted"]["computed_tokens"]
    assert f"computed tokens{counts}{guess['least']} to {guess['most']}" in found.text
    assert "which way is taken is not known (p.py:10)" in found.text
    places = [value for _, name, value in found.attributes if name == "title"]
    assert any(re.match(r"a: prompt tokens \d+, cached tokens \d+, made", p) for p in places)
    longer = ran(invoke, tmp_path, "p.py", "--arg", "q=" + 100 * "why? ")
    lengths = [re.search(r"(\d+) tokens\s*· read by 4", page.text) for page in (found, longer)]
    short, long = (int(found[1]) if found else 0 for found in lengths)
    assert 0 < short < long, "the row's own text counts"


def test_the_report_of_a_batch_and_of_an_artifact(
    invoke: Invoke, write: Write, tmp_path: Path
) -> None:
    write("p.py", PROGRAM)
    write("rows.jsonl", "".join(f'{{"q": "{n}?"}}\n' for n in range(3)))
    batch = ran(invoke, tmp_path, "p.py", "--batch", "rows.jsonl", "-o", "out.jsonl")
    assert "row 2" in batch.text
    write("q.py", PROGRAM.partition("        if s")[0])
    invoke("compile", "q.py", "-o", "q.lmc")
    artifact = ran(invoke, tmp_path, "q.lmc", "--arg", "q=why?")
    assert "Branch 0: " in artifact.text
    assert "row 0" in artifact.text


def test_the_report_of_a_row_that_failed(invoke: Invoke, write: Write, tmp_path: Path) -> None:
    write("p.py", PROGRAM)
    found = ran(invoke, tmp_path, "p.py", "--arg", "q=why?", "--kv-tokens", "12", code=1)
    assert "KV slots" in found.text


def test_an_eager_run_has_no_report(invoke: Invoke, greet: str, tmp_path: Path) -> None:
    told = invoke("run", greet, "--model", "fake", "--eager", "--report", "r.html", code=2).stderr
    assert "--trace" in told
    assert not (tmp_path / "r.html").exists()


def test_a_batch_is_shown_as_a_prefix_tree(invoke: Invoke, write: Write) -> None:
    write("p.py", PROGRAM)
    rows = [{"q": f"{'old' if n % 2 else 'new'} <b>{n}</b>?"} for n in range(6)]
    write("rows.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    found = page(invoke, "p.py", "--batch", "rows.jsonl", "--model", "fake")
    assert "6 rows of 1 shape" in found.text
    assert "Predicted as far as is known, with an empty cache" in found.text
    shared = len("A question that all rows share: ")
    assert f"share {shared} bytes; then they differ in q" in re.sub(r"\s+", " ", found.text)
    gauges = re.findall(r"(\d+) \u00d7 (\d+) row", found.text)
    assert gauges[0][1] == "6", "all begin alike"
    assert [rows for _, rows in gauges].count("3") == 2
    assert [rows for _, rows in gauges].count("1") == 6
    assert "first prompts" not in page(invoke, "p.py").text


def test_ways_alike_are_one_line_of_time() -> None:
    @lmc.jit
    def p(s: State) -> str:
        s += "x" + lmc.select("a", ["b", "c"])
        return "yes" if s["a"] == "b" else "no"

    (line,) = predicted(p.compile().program)
    assert (line.title, line.end) == ("every row", 1)


def test_inner_ways_of_a_large_graph_are_counted() -> None:
    @lmc.jit
    def p(s: State) -> None:
        for n in range(6):
            s += lmc.select(f"a{n}", ["yes", "no"])
            if s[f"a{n}"] == "no":
                return

    program = p.compile().program
    picture = picture_of(program)
    small = pruned(picture, 12)
    assert len(list(small.boxes())) < 16 < len(list(picture.boxes()))
    more = [int(box.label.split()[0]) for box in small.boxes() if box.op == "more"]
    assert more
    assert sum(box.op != "more" for box in small.boxes()) + sum(more) == len(list(picture.boxes()))
    ids = {box.id for box in small.boxes()}
    assert all({arrow.source, arrow.target} <= ids for arrow in small.arrows)
    assert pruned(picture, 1000) == picture


@lmc.jit
def decided(s: State) -> None:
    s += "A prompt. "
    f = s.fork(1)[0]
    f += lmc.select("slow", ["yes", "no"])
    f += lmc.gen("slower", max_tokens=9)
    if f["slower"] == "x":
        s += lmc.gen("a", max_tokens=2)
        return
    for n, g in enumerate(forks := s.fork(2)):
        g += f" Otherwise {n} "
        g += lmc.gen("b", max_tokens=3)
    forks.join()


def test_nothing_behind_an_if_begins_before_it_is_decided() -> None:
    program = decided.compile().program
    begins = {bar.name: bar.begin for line in predicted(program) for bar in line.bars}
    assert begins["a"] == begins["b"] == 10
    assert begins["slow"] == 0
    picture = picture_of(program)
    labels = {box.id: box.label for box in picture.boxes()}
    layout = lay_out(picture, dict.fromkeys(labels, 50.0), 10, 10)
    heights = {labels[box]: place.y for box, place in layout.places.items()}
    top = next(y for label, y in heights.items() if label.startswith("flow.if"))
    assert all(y > top for label, y in heights.items() if "%a =" in label or "Otherwise" in label)


def test_readers_are_those_of_the_way_with_most() -> None:
    tree = prompt_tree(decided.compile().program)
    assert tree[0].readers == 4, "two of the fork, and two of the longer way"


@pytest.mark.parametrize("stats", [{"seconds": {}}, {"seconds": {}, "predicted": None, "rows": 0}])
def test_a_run_that_ended_early_has_a_page(stats: dict[str, Any]) -> None:
    ran = Ran("fake", Recorder().recording(), stats)
    assert "measured" in Page(page_of(twice.compile(), ran=ran)).text
