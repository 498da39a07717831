"""`lmc constraint`: what a constraint is, before any model sees it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from .conftest import ROOT, Invoke, Write

RECORD = r'\{"ok": (?:true|false)\}'


def test_a_pattern_is_shown_whole(invoke: Invoke) -> None:
    out = invoke("constraint", RECORD).stdout
    assert out.splitlines() == [
        f"regex  {RECORD}",
        "  size      16 states, 16 classes of bytes",
        "  texts     2, of 12 bytes to 13 bytes",
        "  begins    '{\"ok\": '",
        "  shortest  '{\"ok\": true}'",
        "  fixed     11 of 12 bytes of the shortest text, 92 % of random ones",
        "samples",
        "  '{\"ok\": true}'",
        "  '{\"ok\": false}'",
        "automaton, where a text may end at *",
        '  0 -- "{"ok": " --> 1',
        '  1 -- "false}" --> 2*',
        '  1 -- "true}" --> 2*',
    ]
    assert invoke("explain", "--regex", RECORD).stdout == out


def test_with_a_tokenizer_tokens_are_shown(invoke: Invoke) -> None:
    out = invoke("constraint", "ab?", "--tokenizer", "fake").stdout
    assert re.search(r"first +1 of [\d,]+ tokens: 'a'", out)
    assert "forced    'a' at the beginning" in out
    file = ROOT / "lmc" / "runtime" / "data" / "fake_tokenizer.json"
    by_path = invoke("explain", "--regex", "ab?", "--tokenizer", str(file)).stdout
    assert by_path == out.replace("tokens (fake)", f"tokens ({file})")
    assert re.search(r"1 of +1 forced, +1 for the model  'a'\n", out)  # it may end, or go on
    assert re.search(r"1 of +2 forced, +1 for the model  'ab'\n", out)


def test_constraints_without_end_are_shown_in_part(invoke: Invoke) -> None:
    lazy = invoke("constraint", r"[a-z]{0,20000}").stdout
    assert "too large to be made whole" in lazy
    assert "... and more from 40" in lazy
    assert "without end, of 0 bytes to any length" in invoke("constraint", "a*").stdout
    assert "'(x)'" in invoke("constraint", "--ebnf", 'start: "(" start ")" | "x"').stdout
    long = invoke("constraint", "(?:a{1000}){1000}", "--tokenizer", "fake").stdout
    assert "of 1,000,000 bytes and more" in long
    assert "shortest  too long" in long
    assert max(map(len, long.splitlines())) < 160
    many = invoke("constraint", "[a-z]{20}").stdout
    assert "about 10^28, of 20 bytes\n" in many


def test_schemas_come_as_text_or_from_a_file(invoke: Invoke, write: Write) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    write("schema.json", json.dumps(schema))
    for source in ("schema.json", json.dumps(schema)):
        out = invoke("constraint", "--json-schema", source, "--whitespace", "pretty").stdout
        assert "  texts     1, of 15 bytes\n" in out
        assert r"""'{\n  "a": null\n}'""" in out
    odd = '{"type": "string", "format": "odd", "maxLength": 1}'
    refused = invoke("constraint", "--json-schema", odd, code=2).stderr
    assert "the format 'odd' is not known" in refused
    invoke("constraint", "--json-schema", odd, "--waive", "format")


def test_counts_of_open_objects_are_bounds(invoke: Invoke) -> None:
    schema = {"type": "object", "maxProperties": 2, "propertyNames": {"pattern": "^[ab]$"},
              "additionalProperties": {"const": "x"}}  # fmt: skip
    out = invoke("constraint", "--json-schema", json.dumps(schema)).stdout
    assert "  texts     at most 7, of 2 bytes to" in out  # five, and two that have a key twice


def test_samples_repeat_no_key(invoke: Invoke) -> None:
    schema = {"type": "object", "minProperties": 3, "propertyNames": {"pattern": "^[a-c]$"}}
    out = invoke("constraint", "--json-schema", json.dumps(schema)).stdout
    samples = out.partition("samples\n")[2].partition("automaton")[0].splitlines()
    assert samples
    for sample in samples:
        assert len(json.loads(ast.literal_eval(sample.strip()))) == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["(a|b"], "error: this parenthesis is never closed"),
        ([r"(a)\1"], "    (a)\\1\n       ^\n  hint: "),
        (["[^\\s\\S]"], "nothing can match"),
        ([], "no constraints are given"),
        (["a", "--ebnf", 'start: "a"'], "2 constraints are given"),
        (["--ebnf", "root := x"], "at line 1 column 7\n    root := x\n          ^\n"),
        (["--ebnf", "nowhere"], "nowhere cannot be read: No such file"),
        (["a", "--whitespace", "pretty"], "--whitespace says how JSON is written"),
        (["--json-schema", "{}", "--whitespace", "odd"], "there is no whitespace 'odd'"),
        (["a", "--tokenizer", "nowhere"], "there is no model 'nowhere'"),
        (["a", "--tokenizer", "nowhere.json"], "cannot be read as a tokenizer"),
        (["a", "--emit", "svg"], "'--emit': 'svg' is not one of"),
    ],
)
def test_what_is_wrong_is_said_once(args: list[str], message: str, invoke: Invoke) -> None:
    assert message in invoke("constraint", *args, code=2).stderr


@pytest.mark.parametrize("args", [[], ["p.py", "--regex", "a"], ["p.py", "--tokenizer", "fake"]])
def test_explain_takes_a_program_or_a_pattern(args: list[str], invoke: Invoke) -> None:
    invoke("explain", *args, code=2)


def test_drawings(invoke: Invoke) -> None:
    pattern = '"[^"\\\\]{2}"|\\n<b>&'
    dot = invoke("constraint", pattern, "--emit", "dot").stdout
    outside = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', dot)
    assert re.fullmatch(r'[\w\s{}\[\]=,;>"-]*', outside)
    assert dot.count("doublecircle") == 1
    mermaid = invoke("constraint", pattern, "--emit", "mermaid").stdout
    labels = re.findall(r'\|"(.*)"\|', mermaid)
    assert len(labels) == 4
    assert all(re.fullmatch(r"(?:[\w .,:=%-]|#\d+;)*", label) for label in labels)
    if shutil.which("dot"):
        for text in (dot, invoke("constraint", "[a-z]{500}", "--emit", "dot").stdout):
            subprocess.run(["dot", "-Tsvg"], input=text, encoding="utf-8", check=True,
                           capture_output=True, timeout=60)  # fmt: skip


def test_the_package_is_a_command() -> None:
    def called(*args: str) -> subprocess.CompletedProcess[str]:
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        return subprocess.run(
            [sys.executable, "-m", "lmc.constraints", *args],
            env={**os.environ, "PYTHONPATH": search},
            capture_output=True, encoding="utf-8", timeout=120, check=False,
        )  # fmt: skip

    assert '0 -- "{"ok": " --> 1' in called(RECORD).stdout
    wrong = called("(")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.endswith("    (\n    ^\n")
