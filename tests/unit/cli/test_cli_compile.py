"""`lmc compile`: what it shows, what it writes, what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import lmc
from lmc.codegen.artifact import read_artifact
from lmc.plan import Plan
from lmc.runtime.tokenizer import Tokenizer

from .conftest import Invoke, Write

BRANCHES = """
    import lmc

    @lmc.jit
    def p(s, question: str, hints: list[str] = ()):
        s += "Answer the question below, in one word.\\n" + question
        for hint in hints:
            s += "\\nHint: " + hint
        s += lmc.select("sure", ["yes", "no"])
        if s["sure"] == "no":
            return
        for word, f in zip(("because", "although"), forks := s.fork(2)):
            f += word +  lmc.gen("why", 5)
        forks.join()
        s += lmc.gen("n", 4, regex="[0-9]{2}")
"""


@pytest.fixture
def branches(write: Write) -> str:
    write("p.py", BRANCHES)
    return "p.py"


def test_the_graph_is_shown_and_can_be_read_back(invoke: Invoke, branches: str) -> None:
    text = invoke("compile", branches).stdout
    assert str(lmc.ir.parse(text)) == text
    assert text == invoke("compile", branches, "--emit", "ir").stdout


def test_json_holds_every_node_with_its_line(invoke: Invoke, branches: str) -> None:
    held = json.loads(invoke("compile", branches, "--emit", "json").stdout)
    assert held["name"] == "p"
    assert {"op", "operands", "attributes", "at"} <= set(held["body"][0])
    assert held["body"][-1]["op"] == "flow.if"
    assert held["body"][-1]["at"] == {"file": "p.py", "line": 9}


def test_dot_mermaid_and_svg(invoke: Invoke, branches: str) -> None:
    dot = invoke("compile", branches, "--emit", "dot").stdout
    assert dot.startswith("digraph")
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=dot.encode(), check=True, capture_output=True)
    assert invoke("compile", branches, "--emit", "mermaid").stdout.startswith("flowchart")
    svg = ET.fromstring(invoke("compile", branches, "--emit", "svg").stdout)
    assert svg.tag.endswith("svg")


def test_dot_shows_the_automata_of_gens(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s, x):
            for f, word in zip(forks := s.fork(2), "xy"):
                f += word
                f += lmc.gen("a", regex='"ok"(?:yes|no)')
            forks.join()
            s += lmc.gen("b", regex="[a-z]{500}")
            s += lmc.gen("c")
            s += "A: " + lmc.gen("d", choices=["f", "g"]) + ", " + lmc.gen("e", regex="h")
            s += "Again: " + lmc.gen("i", regex="[jk]") + x + lmc.gen("l", regex="[mn]")
        """,
    )
    dot = invoke("compile", "p.py", "--emit", "dot").stdout
    labels = re.findall(r'subgraph cluster_c\d+ \{\n    label="(.*)";', dot)
    assert labels == [
        r"regex \"ok\"(?:yes|no)", "regex [a-z]{500}", "template {d}, {e}",
        "regex [jk]", "regex [mn]",
    ]  # fmt: skip
    assert r'c0s0 -> c0s1 [label="\"\"ok\"\""];' in dot
    assert 'c0s1 -> c0s2 [label="\\"yes\\""];' in dot
    assert len(re.findall(r"n\d+ -> c0s0 ", dot)) == 2  # both gens, one automaton
    assert dot.count("c1s") < 200
    assert "c1smore" in dot
    assert '[label="[fg], then \\", h\\""];' in dot
    ops = dict(re.findall(r'^ *(n\d+) \[label="[^"]*?= (lm\.\w+)', dot, re.MULTILINE))
    held = re.findall(r"(n\d+) -> (c\d)s0 ", dot)
    assert [(ops[node], c) for node, c in held if c != "c0"] == [
        ("lm.chain", "c1"), ("lm.match", "c2"), ("lm.match", "c3"), ("lm.match", "c4")
    ]  # fmt: skip
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=dot.encode(), check=True, capture_output=True)


@pytest.mark.parametrize("form", ["ir", "json", "dot", "mermaid", "svg", "plan"])
def test_what_is_shown_is_the_optimized_program(invoke: Invoke, branches: str, form: str) -> None:
    assert "prefill" in invoke("compile", branches, "--emit", form).stdout
    assert "prefill" not in invoke("compile", branches, "--emit", form, "-O0").stdout


def test_the_plan_can_be_read_back(invoke: Invoke, branches: str) -> None:
    held = json.loads(invoke("compile", branches, "--emit", "plan").stdout)
    assert Plan.from_json(held).name == "p"


def test_the_report_has_the_documented_keys(invoke: Invoke, branches: str) -> None:
    report = json.loads(invoke("compile", branches, "--emit", "report").stdout)
    assert list(report) == REPORT_KEYS
    assert report["program"] == "p"
    assert report["source"] == "p.py:3"
    assert report["parameters"] == ["question"]
    assert report["ways"] == 2
    assert report["model_calls"] == {"least": 1, "most": 4}
    assert report["most_generated_tokens"] == 14
    assert report["compiled_fully"] is True
    assert report["resumes"] == []
    assert report["ops"]["lm.gen"] == 3
    assert [one["states"] for one in report["constraints"]] == [3]
    assert report["constraints"][0]["source"] == "[0-9]{2}"
    assert report["constraints"][0]["options"] == {}
    assert report["constraints"][0]["fixed"] == {
        "shortest": {"fixed": 0, "bytes": 2},
        "random": {"least": 0, "most": 0},
    }
    assert [one["all_rows"] for one in report["shared"]] == [True]
    assert [record["name"] for record in report["passes"]] == report["pipeline"]
    assert {"name", "seconds", "changed", "nodes_before", "nodes_after"} <= set(report["passes"][0])


REPORT_KEYS = [
    "program",
    "source",
    "level",
    "pipeline",
    "parameters",
    "shared_parameters",
    "nodes",
    "ops",
    "ways",
    "model_calls",
    "most_generated_tokens",
    "known_characters",
    "repeated_characters",
    "compiled_fully",
    "resumes",
    "unit",
    "work",
    "passes",
    "late_arguments",
    "shared",
    "constraints",
]


def test_the_keys_of_the_report_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    for key in [*REPORT_KEYS, "batch"]:
        assert f"`{key}`" in page, key


def test_a_report_on_a_batch_compiles_every_shape(
    invoke: Invoke, write: Write, branches: str
) -> None:
    rows = [{"question": "a"}, {"question": "b", "hints": ["x", "y"]}, {"question": "c"}]
    write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    args = ["compile", branches, "--batch", "rows.jsonl", "--emit"]
    report = json.loads(invoke(*args, "report").stdout)
    assert report["parameters"] == ["question"]
    assert report["batch"]["rows"] == 3
    assert [(s["rows"], s["parameters"]) for s in report["batch"]["shapes"]] == [(2, 1), (1, 3)]
    shown = invoke(*args, "ir")
    assert "program @p(%question: text)" in shown.stdout
    assert "have 2 shapes; this is the first one's" in shown.stderr
    write("rows.jsonl", json.dumps(rows[1]) + "\n")
    assert "%hints_0: text, %hints_1: text" in invoke(*args, "ir").stdout
    write("rows.jsonl", json.dumps(rows[1]) + "\n" + json.dumps({"hints": []}) + "\n")
    assert "line 2 of rows.jsonl: the argument" in invoke(*args, "report", code=2).stderr


@pytest.mark.parametrize("level", ["0", "1", "2", "3"])
def test_levels(invoke: Invoke, branches: str, level: str) -> None:
    for spelling in (["-O", level], [f"-O{level}"]):
        report = json.loads(invoke("compile", branches, *spelling, "--emit", "report").stdout)
        assert report["level"] == int(level)
        assert bool(report["pipeline"]) == (level != "0")


def test_passes_replace_those_of_the_level(invoke: Invoke, branches: str) -> None:
    args = ["compile", branches, "--passes", "canonicalize,hoist-prefix{min-characters=8}"]
    report = json.loads(invoke(*args, "--emit", "report").stdout)
    assert report["pipeline"] == ["canonicalize", "hoist-prefix{min-characters=8}"]
    for wrong in ("canonicalise", "hoist-prefix{min=8}", "cse;dce"):
        error = invoke("compile", branches, "--passes", wrong, code=2).stderr
        assert error.startswith("error: ")


def test_dumps(invoke: Invoke, branches: str, tmp_path: Path) -> None:
    invoke("compile", branches, "--dump-ir", "deep/dumps")
    names = {path.name for path in (tmp_path / "deep" / "dumps").iterdir()}
    assert "00-trace.lmir" in names
    assert any(name.endswith("-hoist-prefix.diff") for name in names)
    assert "cannot be made" in invoke("compile", branches, "--dump-ir", "p.py", code=2).stderr


def test_o_writes_an_artifact(invoke: Invoke, branches: str, tmp_path: Path) -> None:
    for name in ("p.lmc", "without-suffix"):
        assert invoke("compile", branches, "-o", name).stdout == ""
        artifact = read_artifact(tmp_path / name)
        assert artifact.plan.name == "p"
        assert (artifact.tokenizer, artifact.template) == (None, None)


def test_o_with_emit_writes_that_text(invoke: Invoke, branches: str, tmp_path: Path) -> None:
    assert invoke("compile", branches, "--emit", "ir", "-o", "p.lmir").stdout == ""
    assert (tmp_path / "p.lmir").read_text() == invoke("compile", branches).stdout


def test_an_artifact_and_a_text_at_once(invoke: Invoke, branches: str, tmp_path: Path) -> None:
    report = invoke("compile", branches, "--emit", "report", "-o", "p.lmc").stdout
    assert json.loads(report)["program"] == "p"
    assert read_artifact(tmp_path / "p.lmc").plan.name == "p"


def test_a_model_binds_the_artifact_to_its_tokenizer(
    invoke: Invoke, branches: str, tmp_path: Path
) -> None:
    invoke("compile", branches, "-o", "p.lmc", "--model", "fake")
    artifact = read_artifact(tmp_path / "p.lmc")
    fake = Tokenizer.fake()
    assert artifact.tokenizer == fake.fingerprint
    assert artifact.template == fake.template_fingerprint
    assert "only matters for artifacts" in invoke("compile", branches, "--model", "fake").stderr
    args = ["compile", branches, "-o", "q.lmc", "--model", "no-such-model"]
    assert "no-such-model" in invoke(*args, code=2).stderr
    assert not (tmp_path / "q.lmc").exists()


@pytest.mark.parametrize(
    ("path", "says"), [(".", "is a directory"), ("nowhere/p.lmc", "there is no directory nowhere")]
)
def test_a_file_that_cannot_be_written(invoke: Invoke, branches: str, path: str, says: str) -> None:
    assert says in invoke("compile", branches, "-o", path, code=2).stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('lmc.gen("x", regex="[")', "(p.py:5)"),
        ('lmc.gen("x", regex="[^\\u0000-\\U0010ffff]")', "nothing can match"),
        ('lmc.gen("x", temperature=-1)', "temperature is -1 (p.py:5)"),
        ("3", "3 cannot be appended to a prompt (p.py:5)"),
        ('s["y"]', "there is no variable 'y' (p.py:5)"),
        ("undefined", "NameError: name 'undefined' is not defined (p.py:5)"),
    ],
)
def test_a_wrong_program_names_its_line_and_exits_with_1(
    invoke: Invoke, write: Write, line: str, says: str
) -> None:
    write("p.py", f"import lmc\n\n@lmc.jit\ndef p(s):\n    s += {line}\n")
    for command in (["compile", "p.py"], ["explain", "p.py"], ["run", "p.py", "--model", "fake"]):
        assert says in invoke(*command, code=1).stderr.splitlines()[0]


def test_artifacts_are_not_compiled_again(invoke: Invoke, branches: str) -> None:
    invoke("compile", branches, "-o", "p.lmc")
    assert "is an artifact" in invoke("compile", "p.lmc", code=2).stderr


SHARED = """
    import lmc

    @lmc.jit
    def p(s, rules: str, x: str):
        s += rules + x
        s += lmc.gen("a", max_tokens=2)
"""


def test_texts_that_all_rows_of_a_batch_share_are_constants(write: Write, invoke: Invoke) -> None:
    write("p.py", SHARED)
    write("rows.jsonl", '{"rules": "Be kind.", "x": "a"}\n{"rules": "Be kind.", "x": "b"}\n')
    shown = invoke("compile", "p.py", "--batch", "rows.jsonl").stdout
    assert '"Be kind."' in shown
    assert "%rules" not in shown.partition("\n")[2]
    report = json.loads(
        invoke("compile", "p.py", "--batch", "rows.jsonl", "--emit", "report").stdout
    )
    assert report["shared_parameters"] == ["rules"]
    assert report["parameters"] == ["x"]


def test_artifacts_are_for_other_rows_too(write: Write, invoke: Invoke) -> None:
    import lmc

    write("p.py", SHARED)
    write("rows.jsonl", '{"rules": "Be kind.", "x": "a"}\n{"rules": "Be kind.", "x": "b"}\n')
    invoke("compile", "p.py", "--batch", "rows.jsonl", "-o", "p.lmc")
    with lmc.Engine("fake") as engine:
        out = lmc.load("p.lmc").run(rules="Be quick. ", x="c", engine=engine)
        assert out.text.startswith("Be quick. c")
