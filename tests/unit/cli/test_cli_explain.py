"""`lmc explain`: what compiled, and how to change what did not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import lmc.frontend
from lmc.commands.report import advice

from .conftest import ROOT, Invoke, Write


def test_a_program_that_compiles(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s, q: str):
            s += "A question that all rows share: " + q
            for i, f in enumerate(forks := s.fork(3)):
                f += f"Branch {i}: "
                f += lmc.gen("a", 5, regex="[ab]{3}")
            forks.join()
        """,
    )
    out = invoke("explain", "p.py").stdout
    assert "p (p.py:3)" in out
    assert "arguments left open: q" in out
    assert "compiled: all of it, 1 way through it" in out
    assert "model calls a row: 3" in out
    assert "p.py:5: the prompt up to here, for 1 model call of a row, the same in all rows" in out
    assert "p.py:5: the prompt up to here, for 3 model calls of a row" in out
    assert "a (p.py:8): regex [ab]{3}\n    4 states" in out
    assert "need not be asked: 0 of 3 bytes of the shortest text, 0 % of random ones" in out
    assert re.search(r"hoist-prefix +\d+ -> \d+ nodes", out)
    assert re.search(r"dce +nothing to do", out)


def test_constraints_of_every_kind(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        r"""
        import lmc

        @lmc.jit
        def p(s):
            s += lmc.gen("a", json_schema={"enum": [10, 11]}, whitespace="pretty", waive="format")
            s += lmc.gen("b", ebnf='start: a\na: b a "x" | "y"\nb: "z"?')
            s += "A: " + lmc.gen("c", choices=["f", "g"]) + ", " + lmc.gen("d", regex="h")
        """,
    )
    out = invoke("explain", "p.py").stdout
    assert "c (p.py:7), d (p.py:7): template {c}, {d}" in out
    assert "3 of 4 bytes of the shortest text" in out
    assert re.search(
        r'json_schema \{"enum": \[10, 11\]\}, whitespace pretty, waive format\n +\d+ states\n', out
    )
    assert "1 of 2 bytes of the shortest text" in out
    assert "ebnf start: a" in out


def test_a_program_that_ends_eagerly(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s):
            s += lmc.gen("n", 2, regex="[0-9]")
            for i in range(int(s["n"])):
                s += str(i)
        """,
    )
    out = invoke("explain", "p.py").stdout
    assert "compiled: 0 of 1 ways; the others go on eagerly from" in out
    assert "p.py:6: int() of a str that is not known yet" in out
    assert "to compile it: " in out


def test_ways_that_end_alike_are_told_of_once(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s):
            s += lmc.select("a", ["yes", "no"])
            s += "Good. " if s["a"] == "yes" else "Bad. "
            s += lmc.gen("n", 2, regex="[0-9]")
            s += "x" * int(s["n"])
        """,
    )
    out = invoke("explain", "p.py").stdout
    assert out.count("int() of a str") == 1
    assert "p.py:8: int() of a str that is not known yet (2 ways)" in out


def test_levels_and_passes(invoke: Invoke, greet: str) -> None:
    assert "passes: none" in invoke("explain", greet, "-O0").stdout
    out = invoke("explain", greet, "--passes", "dce").stdout
    assert "dce" in out
    assert "cse" not in out
    assert "no pass" in invoke("explain", greet, "--passes", "nonsense", code=2).stderr


def test_numbers_of_errors_are_answered(invoke: Invoke) -> None:
    assert "no numbers in this version" in invoke("explain", "LMC012").stdout


GENERAL = {  # what: one of those listed
    "{what} is not known yet",
    "{what} of {kind} that is not known yet",
    "{what} of a value that is not known yet",
    "`{name}` of a {self._poses_as.__name__} that is not known yet",
}


def reasons() -> list[str]:
    """Every reason that the frontend gives for ending a graph, as it is written there."""
    folder = Path(lmc.frontend.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    calls = re.findall(r'(?:need|_known\(\w+, )\(?\s*f?"([^"]+)"', text)
    assert len(calls) > 20
    return sorted(set(calls) - GENERAL)


@pytest.mark.parametrize("reason", reasons())
def test_every_reason_has_advice_of_its_own(reason: str) -> None:
    shown = f"{reason} of a str that is not known yet"
    assert advice(shown) != advice("none"), reason


# ----------------------------------------------------------------- what rows share, and could share

LATE = """
    import lmc

    @lmc.jit
    def p(s, q: str, kind: str = "short"):
        if kind == "long":
            s += "Take your time. "
        s += "Q: " + q.strip() + "\\nAnswer the question above in one word: "
        s += lmc.gen("a", 4) + ". And why? "
        s += lmc.gen("b", 4)
"""


def test_an_argument_before_constant_text(invoke: Invoke, write: Write) -> None:
    write("p.py", LATE)
    out = invoke("explain", "p.py", "--arg", "kind=short").stdout
    assert "rows share" not in out, "it depends on the way what stands before"
    write("q.py", LATE.replace('if kind == "long"', "if False"))
    out = invoke("explain", "q.py").stdout
    assert "q.py:7: `t0` stands before constant text\n  rows share 3 bytes of it now, and" in out
    report = json.loads(invoke("compile", "q.py", "--emit", "report").stdout)
    behind = len("\nAnswer the question above in one word: ")
    assert report["late_arguments"] == [
        {"at": "q.py:7", "argument": "t0", "shared": 3, "behind": behind}
    ]


def test_the_first_byte_in_which_prompts_differ(invoke: Invoke, write: Write) -> None:
    write("p.py", LATE)
    rows = [
        {"q": "Who is \u00e9lan?"},
        {"q": " Who is \u00e9mile?"},
        {"q": "Who is \u00e9lan? No."},
    ]
    write("rows.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    out = invoke("explain", "p.py", "--batch", "rows.jsonl", "--model", "fake").stdout
    shared, later = len(b"Q: Who is \xc3\xa9"), len("\nAnswer the question above in one word: ")
    assert f"3 rows: their first prompts share {shared} bytes; then they differ in `t" in out
    assert "(p.py:7)" in out
    assert "line 1: Who is \u00e9>>>lan?" in out
    assert "line 2: Who is \u00e9>>>mile?" in out
    assert f"behind it {later} bytes are the same in all rows" in out
    assert re.search(r"first prompts: \d+ tokens, \d+ without repetition", out)
    report = json.loads(
        invoke("compile", "p.py", "--emit", "report", "--batch", "rows.jsonl").stdout
    )
    (shape,) = report["batch"]["shapes"]
    assert shape["first_difference"]["shared"] == shared
    assert [row["line"] for row in shape["first_difference"]["rows"]] == [1, 2]
    assert report["batch"]["first_prompts"] is None


def test_rows_that_go_other_ways(invoke: Invoke, write: Write) -> None:
    write("p.py", LATE)
    write("rows.jsonl", '{"q": "x", "kind": "long"}\n{"q": "x", "kind": "short"}\n')
    out = invoke("explain", "p.py", "--batch", "rows.jsonl").stdout
    assert "share 0 bytes; then they differ in the ways that they take (p.py:6)" in out


def test_what_only_some_rows_have_cannot_be_shared(invoke: Invoke, write: Write) -> None:
    write("p.py", LATE.replace('s += "Take your time. "', 's += q + "Take your time. "'))
    rows = [{"q": "x", "kind": "long"}, {"q": "y", "kind": "long"}, {"q": "z", "kind": "short"}]
    write("rows.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    later = len("Q: \nAnswer the question above in one word: ")
    report = invoke("compile", "p.py", "--emit", "report", "--batch", "rows.jsonl").stdout
    (shape,) = json.loads(report)["batch"]["shapes"]
    # in the third row the first of these texts is where it differs
    assert shape["first_difference"]["later"] == later - len("Q: ")


def test_rows_that_do_not_differ(invoke: Invoke, write: Write) -> None:
    write("p.py", LATE)
    write("rows.jsonl", '{"q": "x"}\n{"q": "x"}\n')
    assert "do not differ" in invoke("explain", "p.py", "--batch", "rows.jsonl").stdout
    write("rows.jsonl", '{"q": "x"}\n{"q": "xy"}\n')
    out = invoke("explain", "p.py", "--batch", "rows.jsonl").stdout
    assert "share 4 bytes" in out, "where one ends, they differ"


def test_lengths_are_in_tokens_where_there_is_a_tokenizer(
    invoke: Invoke, write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LMC_HOME", str(tmp_path / "nothing"))
    write("p.py", LATE)
    assert "tokens of prompt" not in invoke("explain", "p.py").stdout
    assert "tokens of prompt are known" in invoke("explain", "p.py", "--model", "fake").stdout
    assert "nowhere" in invoke("explain", "p.py", "--model", "nowhere", code=2).stderr


def keys_of(held: object) -> set[str]:
    if isinstance(held, dict):
        own = {key for key in held if re.fullmatch("[a-z_]+", key)}
        return own.union(*(keys_of(item) for key, item in held.items() if key != "ops"))
    return set().union(*map(keys_of, held)) if isinstance(held, list) else set()


def test_every_key_of_the_report_is_documented(invoke: Invoke, write: Write) -> None:
    write("p.py", LATE.replace('gen("b", 4)', 'gen("b", 4, regex="[ab]{3}")'))
    write("rows.jsonl", '{"q": "x"}\n{"q": "y"}\n')
    report = invoke(
        "compile", "p.py", "--emit", "report", "--batch", "rows.jsonl", "--model", "fake"
    ).stdout
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    missing = {key for key in keys_of(json.loads(report)) if f"`{key}`" not in page}
    known = {"name", "at"}  # said of what they belong to
    assert missing <= known, missing
