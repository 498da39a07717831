import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from lmc.errors import InternalError, Location, UsageError
from lmc.ir import Program, Region, parse
from lmc.passes import PASSES, PIPELINES
from lmc.passes.canonicalize import Canonicalize
from lmc.passes.cse import CSE
from lmc.passes.dce import DCE
from lmc.passes.hoist_prefix import HoistPrefix
from lmc.passes.instruments import CheckMeaning, DumpIR, Timing, VerifyEach
from lmc.passes.manager import PassManager, parse_pipeline

TEXT = """program @p(%x: text) {
  %s0 = lm.start
  %s1 = lm.extend %s0, "a"
  %s2 = lm.extend %s1, %x
  %s3, %a = lm.gen %s2 {name = "a"}
  %s4, %b = lm.gen %s2 {name = "b", draw = 1}
  ret %s3, {a = %a}
}
"""


@dataclass(frozen=True)
class DropsTheEnd:
    name: ClassVar[str] = "drops-the-end"

    def run(self, program: Program) -> Program:
        return program.with_body(Region(program.body.nodes[:-1]))


@dataclass(frozen=True)
class DropsAVariable:
    name: ClassVar[str] = "drops-a-variable"

    def run(self, program: Program) -> Program:
        return parse(str(program).replace("{a = %a}", '{a = "yes"}'))


@dataclass(frozen=True)
class Crashes:
    name: ClassVar[str] = "crashes"

    def run(self, program: Program) -> Program:
        raise KeyError(program.name)


def test_pipelines_are_read_and_spelled() -> None:
    passes = parse_pipeline(" canonicalize, cse{} ,hoist-prefix{min-characters=8},dce ")
    assert passes == (Canonicalize(), CSE(), HoistPrefix(8), DCE())
    text = "canonicalize,cse,hoist-prefix{min-characters=8},dce"
    assert str(PassManager(passes)) == text
    assert parse_pipeline(text) == passes
    assert parse_pipeline("") == ()


@pytest.mark.parametrize("level", PIPELINES)
def test_levels_can_be_spelled_and_read(level: int) -> None:
    manager = PassManager.of(level)
    assert parse_pipeline(str(manager)) == manager.passes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cs", "there is no pass `cs`\n  hint: did you mean `cse`?"),
        ("cse{fast=1}", "cse has no option `fast`\n  hint: none is known here"),
        ("hoist-prefix{min-character=1}", "did you mean `min-characters`?"),
        ("hoist-prefix{min-characters=x}", "min-characters is `x`, must be an integer"),
        ("cse;dce", "cannot read the pipeline from `cse;dce`"),
        ("cse dce", "cannot read the pipeline"),
        ("cse{", "cannot read the pipeline"),
        ("canonicalize,reorder-unordered", "comes too late"),
    ],
)
def test_wrong_pipelines_are_explained(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pipeline(text)
    assert message in str(caught.value)


def test_unknown_levels_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no level 4"):
        PassManager.of(4)


def test_pass_names_are_unique() -> None:
    assert len({cls.name for cls in PASSES}) == len(PASSES)


def test_dumps_hold_every_change_and_can_be_read_back(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    after = PassManager.of("cse,canonicalize,dce,dce", [DumpIR(dumps)]).run(parse(TEXT))
    assert sorted(p.name for p in dumps.iterdir()) == [
        "00-trace.lmir",
        "01-cse.diff",
        "01-cse.lmir",
        "02-canonicalize.diff",
        "02-canonicalize.lmir",
    ]
    assert (dumps / "00-trace.lmir").read_text() == TEXT
    assert (dumps / "02-canonicalize.lmir").read_text() == str(after)
    diff = (dumps / "02-canonicalize.diff").read_text()
    assert diff.startswith("--- before canonicalize\n+++ after canonicalize\n")
    assert '+  %s1 = lm.extend %s0, "a", %x' in diff


def test_timing_records_every_pass() -> None:
    timing = Timing()
    manager = PassManager.of("cse,dce", [timing])
    for _ in range(2):  # a second run begins anew
        manager.run(parse(TEXT))
        found = [(r.name, r.changed, r.nodes_before, r.nodes_after) for r in timing.records]
        assert found == [("cse", True, 6, 5), ("dce", False, 5, 5)]
    assert all(r.seconds >= 0 for r in timing.records)


@pytest.mark.parametrize(
    ("culprit", "problem"),
    [
        (DropsTheEnd(), "VerifyError: the graph is not valid"),
        (DropsAVariable(), "InternalError: the program means something else than before"),
        (Crashes(), "KeyError: 'p'"),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_a_faulty_pass_is_named_with_the_last_good_graph(
    culprit: DropsTheEnd, problem: str, tmp_path: Path
) -> None:
    instruments = (VerifyEach(), CheckMeaning(), DumpIR(tmp_path))
    manager = PassManager((Canonicalize(), CSE(), culprit, DCE()), instruments)
    program = parse(TEXT)
    with pytest.raises(InternalError) as caught:
        manager.run(program)
    message = str(caught.value)
    assert f"the pass {culprit.name} failed: {problem}" in message
    assert "passes before it: canonicalize,cse" in message
    kept = tmp_path / "last-good.lmir"
    assert f"last good graph: {kept}" in message
    assert kept.read_text() == str(PassManager.of("canonicalize,cse").run(program))


def test_without_a_dump_the_last_good_graph_is_kept_elsewhere() -> None:
    with pytest.raises(InternalError) as caught:
        PassManager((Crashes(),)).run(parse(TEXT))
    path = Path(str(caught.value).partition("last good graph: ")[2].splitlines()[0])
    assert path.read_text() == TEXT
    path.unlink()
    path.parent.rmdir()


def test_passes_keep_the_header_and_the_users_lines() -> None:
    held = {"static": '{"n": 1}', "paths": [["rows", 0]], "source": ["p.py", 3]}
    header = ", ".join(f"{k} = {json.dumps(v)}" for k, v in held.items())
    program = parse(TEXT.replace(") {", f") {{{header}}} {{", 1), "p.lmir")
    after = PassManager.of(2).run(program)
    assert str(after).splitlines()[0] == str(program).splitlines()[0]
    assert all(isinstance(node.at, Location) for node in after.walk())


def test_the_page_about_passes_lists_all_of_them_with_their_level() -> None:
    page = (Path(__file__).parents[3] / "docs" / "passes.md").read_text(encoding="utf-8")
    for cls in PASSES:
        levels = [n for n, passes in PIPELINES.items() if cls in map(type, passes)]
        level = min(levels, default="by name")
        summary = (cls.__doc__ or "").split("\n\n")[0].strip()
        assert f"| `{cls.name}` | {level} | {summary} |\n" in page
