"""`lmc run`: results, exit codes, batches, artifacts, interrupts."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import lmc

from .conftest import Invoke, Write, start

PROGRAM = """
    import lmc

    @lmc.jit
    def p(s, word: str = "one"):
        s += f"Say {word}: "
        s += lmc.gen("a", 6)
        for f in (forks := s.fork(2)):
            f += lmc.gen("b", 4, temperature=1.0)
        forks.join()
        if word == "bad" and s["a"] != "":
            s["missing"]
        return word + "!"
"""


@pytest.fixture
def program(write: Write) -> str:
    write("p.py", PROGRAM)
    return "p.py"


def run_json(invoke: Invoke, *args: str) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(invoke("run", *args, "--model", "fake", "--json").stdout)
    return held


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --------------------------------------------------------------------------------- one row


def test_variables_are_printed_readably(invoke: Invoke, program: str) -> None:
    held = run_json(invoke, program)
    a, (b0, b1) = held["variables"]["a"], held["variables"]["b"]
    out = invoke("run", program, "--model", "fake").stdout
    assert "\n" not in a + b0 + b1, "chosen so"
    assert out == f"a: {a}\nb:\n  1. {b0}\n  2. {b1}\nreturned: one!\n"


def test_a_program_without_variables_prints_its_text(invoke: Invoke, write: Write) -> None:
    write("p.py", "import lmc\n\n@lmc.jit\ndef p(s):\n    s += 'Only text.'\n")
    assert invoke("run", "p.py", "--model", "fake").stdout == "Only text.\n"


def test_json_is_what_the_api_gives(invoke: Invoke, program: str) -> None:
    held = run_json(invoke, program, "--arg", "word=two")
    assert list(held) == ["variables", "text", "error", "meta", "value"]
    with lmc.Engine("fake") as engine:

        @lmc.jit
        def same(s: Any) -> None:
            s += "Say two: "
            s += lmc.gen("a", 6)

        assert held["variables"]["a"] == same.run(engine=engine)["a"]
    assert held["text"].startswith("Say two: ")
    assert held["error"] is None
    assert held["meta"]["a"]["completion_tokens"] <= 6
    assert held["value"] == "two!"


def test_eager_and_every_level_give_the_same(invoke: Invoke, program: str) -> None:
    wanted = run_json(invoke, program)
    for args in (
        ["--eager"],
        ["-O0"],
        ["-O1"],
        ["-O3"],
        ["--passes", "dce"],
        ["--kv-tokens", "64"],
    ):
        held = run_json(invoke, program, *args)
        assert (held["variables"], held["text"]) == (wanted["variables"], wanted["text"]), args


def test_eager_runs_the_function_once(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s, word: str = "x"):
            print("ran")
            if word == "x":
                s += word
        """,
    )
    write("rows.jsonl", "{}\n")
    for args in ([], ["--batch", "rows.jsonl"]):
        run = ["run", "p.py", "--model", "fake", *args]
        assert invoke(*run).stderr.count("ran") == 3, "once for each way, and once more"
        assert invoke(*run, "--eager").stderr.count("ran") == 1


def test_the_fake_model_is_not_divided(invoke: Invoke, program: str) -> None:
    result = invoke("run", program, "--model", "fake", "--tensor-parallel", "2", code=2)
    assert "the fake model cannot be divided" in result.stderr


def test_the_seed_decides_the_draws(invoke: Invoke, program: str) -> None:
    drawn = [run_json(invoke, program, "--seed", seed)["variables"]["b"] for seed in "0123"]
    assert drawn[0] == run_json(invoke, program)["variables"]["b"]
    assert len({tuple(b) for b in drawn}) > 1


def test_a_row_that_fails_exits_with_1_and_keeps_what_it_had(invoke: Invoke, program: str) -> None:
    for mode in ([], ["--eager"]):
        result = invoke("run", program, "--arg", "word=bad", "--model", "fake", *mode, code=1)
        assert "there is no variable 'missing' (p.py:11)" in result.stderr.splitlines()[0]
        assert result.stdout.startswith("a: ")
        result = invoke(
            "run", program, "--arg", "word=bad", "--model", "fake", "--json", *mode, code=1
        )
        held = json.loads(result.stdout)
        assert held["error"]["where"] == "p.py:11"
        assert held["error"]["message"] == "there is no variable 'missing'"
        assert held["variables"]["a"]


def test_json_of_a_program_that_does_not_compile(invoke: Invoke, write: Write) -> None:
    write("p.py", "import lmc\n\n@lmc.jit\ndef p(s):\n    s += lmc.gen('x', regex='[')\n")
    result = invoke("run", "p.py", "--model", "fake", "--json", code=1)
    held = json.loads(result.stdout)
    assert held["error"]["type"] == "ConstraintError"
    assert held["error"]["where"] == "p.py:5"


def test_a_row_too_large_for_the_cache(invoke: Invoke, program: str) -> None:
    result = invoke("run", program, "--model", "fake", "--kv-tokens", "4", code=1)
    assert "4" in result.stderr.splitlines()[0]


def test_traceback_shows_the_rest(invoke: Invoke, write: Write) -> None:
    write("p.py", "import lmc\n\n@lmc.jit\ndef p(s):\n    s += 'a'\n    s['x']\n")
    short = invoke("run", "p.py", "--model", "fake", code=1).stderr
    long = invoke("run", "p.py", "--model", "fake", "--traceback", code=1).stderr
    assert long.startswith(short)
    assert "Traceback" in long


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--backend", "ray"], "'ray' is not available"),
        (["--backend", "openai:http://localhost"], "is not available"),
        (["--model", "no-such-model"], "no model 'no-such-model'"),
        (["--passes", "nonsense"], "no pass `nonsense`"),
        (["--stats", "."], "--stats . is a directory"),
        (["--stats", "no/s.json"], "there is no directory no"),
        (["-o", "."], "-o . is a directory"),
        (["-o", "no/o.jsonl"], "there is no directory no"),
    ],
)
def test_wrong_usage(invoke: Invoke, program: str, args: list[str], says: str) -> None:
    result = invoke("run", program, "--model", "fake", *args, code=2)
    assert says in result.stderr.splitlines()[0]
    assert result.stdout == ""


@pytest.mark.parametrize("flag", ["--resume", "--report", "--trace"])
def test_what_this_version_cannot_do_is_refused(invoke: Invoke, program: str, flag: str) -> None:
    assert flag in invoke("run", program, "--model", "fake", flag, code=2).stderr


def test_device_and_dtype_are_taken(invoke: Invoke, program: str) -> None:
    invoke("run", program, "--model", "fake", "--device", "cpu", "--dtype", "float32")


def test_o_takes_the_result_as_json(invoke: Invoke, program: str, tmp_path: Path) -> None:
    (tmp_path / "o.jsonl").write_text("older\n")
    assert invoke("run", program, "--model", "fake", "-o", "o.jsonl").stdout == ""
    (held,) = lines_of((tmp_path / "o.jsonl").read_text())
    assert held == run_json(invoke, program)


def test_odd_characters_survive(invoke: Invoke, program: str, tmp_path: Path) -> None:
    word = 'é😀\n\t"\\\u2028\x00'
    held = run_json(invoke, program, "--args", json.dumps({"word": word}))
    assert held["value"] == word + "!"
    result = invoke(
        "run", program, "--args", '{"word": "\\ud83d"}', "--model", "fake", "--json", code=1
    )
    assert "surrogate" in json.loads(result.stdout)["error"]["message"]


# --------------------------------------------------------------------------------- batches


@pytest.fixture
def rows(write: Write) -> list[dict[str, Any]]:
    held = [{"word": w} for w in ("a", "bad", "b", "c")] + [{"nobody": 1}, {}]
    write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in held))
    return held


def test_a_batch_is_a_line_a_row_in_order(
    invoke: Invoke, program: str, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert len(rows) == 6
    result = invoke("run", program, "--batch", "rows.jsonl", "--model", "fake", code=1)
    held = lines_of(result.stdout)
    assert [one["index"] for one in held] == [0, 1, 2, 3, 4, 5]
    assert [one["error"] is None for one in held] == [True, False, True, True, False, True]
    assert held[0]["variables"] == run_json(invoke, program, "--arg", "word=a")["variables"]
    assert held[4]["error"]["type"] == "UsageError"
    assert "error: line 2: there is no variable 'missing' (p.py:11)" in result.stderr
    assert "6 rows, 2 failed" in result.stderr
    invoke("run", program, "--batch", "rows.jsonl", "--model", "fake", "-o", "o.jsonl", code=1)
    written = lines_of((tmp_path / "o.jsonl").read_text())
    for one in (*held, *written):  # how much was cached depends on which row came first
        one.pop("meta")
    assert written == held


def test_rows_give_what_they_give_alone(invoke: Invoke, program: str, write: Write) -> None:
    words = [f"word {n}" for n in range(20)]
    write("rows.jsonl", "".join(json.dumps({"word": w}) + "\n" for w in words))
    modes: list[list[str]] = [[], ["--eager"], ["--kv-tokens", "64"], ["-O0"]]
    outs = [
        lines_of(invoke("run", program, "--batch", "rows.jsonl", "--model", "fake", *mode).stdout)
        for mode in modes
    ]
    for held in outs[1:]:
        assert [one["variables"] for one in held] == [one["variables"] for one in outs[0]]


def test_only_some_failures_are_shown(invoke: Invoke, program: str, write: Write) -> None:
    write("rows.jsonl", '{"word": "bad"}\n' * 12)
    result = invoke("run", program, "--batch", "rows.jsonl", "--model", "fake", code=1)
    assert result.stderr.count("error: ") == 5
    assert "12 rows, 12 failed" in result.stderr
    assert len(result.stdout.splitlines()) == 12


def test_an_empty_batch_is_all_right(invoke: Invoke, program: str, write: Write) -> None:
    write("rows.jsonl", "")
    assert invoke("run", program, "--batch", "rows.jsonl", "--model", "fake").stdout == ""


def test_rows_are_not_overwritten_by_results(
    invoke: Invoke, program: str, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    before = (tmp_path / "rows.jsonl").read_text()
    os.link(tmp_path / "rows.jsonl", tmp_path / "same.jsonl")
    for name in ("rows.jsonl", "./rows.jsonl", "same.jsonl"):
        args = ["run", program, "--batch", "rows.jsonl", "--model", "fake", "-o", name]
        assert "the same file" in invoke(*args, code=2).stderr
    assert (tmp_path / "rows.jsonl").read_text() == before
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "p.py", "-o", "p.py"], "the program and -o"),
        (["run", "p.py", "--stats", "./p.py"], "the program and --stats"),
        (["run", "p.py", "--batch", "rows.jsonl", "--trace", "rows.jsonl"], "--batch and --trace"),
        (["run", "p.py", "-o", "new", "--stats", "./new"], "-o and --stats"),
        (["run", "p.py", "--trace", "new", "--report", "new"], "--trace and --report"),
        (["compile", "p.py", "--emit", "ir", "-o", "p.py"], "the program and -o"),
        (["compile", "p.py", "--batch", "rows.jsonl", "-o", "rows.jsonl"], "--batch and -o"),
    ],
)
def test_nothing_that_is_read_is_written(
    invoke: Invoke,
    program: str,
    rows: list[dict[str, Any]],
    tmp_path: Path,
    args: list[str],
    says: str,
) -> None:
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    more = ["--model", "fake"] * (args[0] == "run")
    assert f"{says} name the same file" in invoke(*args, *more, code=2).stderr
    assert {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_a_device_may_be_written_twice(invoke: Invoke, program: str) -> None:
    where = ["-o", "/dev/null", "--stats", "/dev/null"]
    invoke("run", program, "--arg", "word=tea", "--model", "fake", *where)


def test_a_file_named_like_standard_input_is_none(
    invoke: Invoke, program: str, tmp_path: Path
) -> None:
    given = ("run", program, "--batch", "-", "--model", "fake", "-o")
    invoke(*given, str(tmp_path / "-"), stdin='{"word": "tea"}')
    assert len(lines_of((tmp_path / "-").read_text())) == 1


def test_a_dash_is_standard_output(invoke: Invoke, program: str, tmp_path: Path) -> None:
    rows = '{"word": "tea"}\n{"word": "rice"}'
    out = invoke("run", program, "--batch", "-", "--model", "fake", "-o", "-", stdin=rows).stdout
    assert [row["index"] for row in lines_of(out)] == [0, 1]
    (row,) = lines_of(invoke("run", program, "--model", "fake", "-o", "-").stdout)
    assert row == run_json(invoke, program)
    shown = invoke("compile", program, "-o", "-").stdout
    assert shown == invoke("compile", program).stdout
    assert not (tmp_path / "-").exists()
    for option in ("--stats", "--trace", "--report"):
        err = invoke("run", program, "--model", "fake", option, "-", code=2).stderr
        assert f"{option} - names no file" in err


def test_the_place_of_a_failed_row_stands_in_the_first_line(invoke: Invoke, write: Write) -> None:
    write("p.py", "import lmc\n@lmc.jit\ndef p(s, x): raise ValueError(x)\n")
    write("rows.jsonl", json.dumps({"x": "two\nlines"}))
    for args in (("--batch", "rows.jsonl"), ("--arg", "x=two\nlines")):
        err = invoke("run", "p.py", "--model", "fake", *args, code=1).stderr.splitlines()
        assert "ValueError: two (p.py:3)" in err[0]
        assert err[1] == "lines"


# ----------------------------------------------------------------------------------- stats

STATS_KEYS = {
    "predicted",
    "program",
    "model",
    "rows",
    "failed_rows",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "computed_tokens",
    "generated_tokens",
    "forced_tokens",
    "model_steps",
    "evicted_tokens",
    "retracted_requests",
    "steps_put_back",
    "peak_kv_tokens",
    "seconds",
    "hit_rate",
}


def test_stats(invoke: Invoke, program: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    invoke("run", program, "--model", "fake", "--stats", "s.json")
    one = json.loads((tmp_path / "s.json").read_text())
    assert set(one) == STATS_KEYS
    assert (one["rows"], one["failed_rows"], one["model"]) == (1, 0, "fake")
    assert one["generated_tokens"] > 0
    assert {"load", "run", "schedule", "model", "finish"} <= set(one["seconds"])
    args = ["--batch", "rows.jsonl", "--stats", "s.json"]
    invoke("run", program, "--model", "fake", *args, code=1)
    many = json.loads((tmp_path / "s.json").read_text())
    assert (many["rows"], many["failed_rows"]) == (len(rows), 2)


def test_the_keys_of_the_stats_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    for key in STATS_KEYS:
        assert f"`{key}`" in page, key


# ------------------------------------------------------------------------------- artifacts


def test_an_artifact_runs_without_its_source(invoke: Invoke, program: str, tmp_path: Path) -> None:
    invoke("compile", program, "-o", "p.lmc", "--model", "fake")
    wanted = run_json(invoke, program, "--arg", "word=x")
    (tmp_path / program).unlink()
    assert run_json(invoke, "p.lmc", "--arg", "word=x") == wanted
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"word": "x"}\n')
    out = invoke("run", "p.lmc", "--batch", "rows.jsonl", "--model", "fake").stdout
    assert lines_of(out)[0]["variables"] == wanted["variables"]


def test_values_for_an_artifact_are_read_by_what_it_was_compiled_with(
    invoke: Invoke, write: Write
) -> None:
    write(
        "p.py", "import lmc\n\n@lmc.jit\ndef p(s, w: str, n: int = 2):\n    s += w * 1 + str(n)\n"
    )
    write("p.py", "import lmc\n\n@lmc.jit\ndef p(s, w: str, n: int = 2):\n    s += f'{w}{n}'\n")
    invoke("compile", "p.py", "-o", "p.lmc")
    run = ["run", "p.lmc", "--model", "fake"]
    assert invoke(*run, "--arg", "w=7", "--arg", "n=2").stdout == "72\n"
    assert "compiled for another 'n'" in invoke(*run, "--arg", "w=7", "--arg", "n=3", code=2).stderr
    assert "is not int" in invoke(*run, "--arg", "w=7", "--arg", "n=x", code=2).stderr
    assert "'w' of p is missing" in invoke(*run, "--arg", "n=2", code=2).stderr


def test_artifacts_that_cannot_run(invoke: Invoke, program: str, write: Write) -> None:
    assert "no file p.lmc" in invoke("run", "p.lmc", code=2).stderr
    write("p.lmc", "nonsense")
    assert "not an lmc artifact" in invoke("run", "p.lmc", code=2).stderr
    invoke("compile", program, "-o", "p.lmc")
    assert "cannot run eagerly" in invoke("run", "p.lmc", "--eager", code=2).stderr


# ------------------------------------------------------------------- the process around it

SLOW = """
    import time
    import lmc

    @lmc.jit
    def slow(s, word: str):
        s += word
        s += lmc.gen("a", 3)
        s["a"].encode()  # ends the graph: what follows runs eagerly
        if word == "stay":
            time.sleep(60)
"""


@pytest.mark.parametrize("mode", [[], ["--eager"]])
def test_ctrl_c_keeps_the_finished_rows(tmp_path: Path, write: Write, mode: list[str]) -> None:
    write("p.py", SLOW)
    write("rows.jsonl", '{"word": "go"}\n{"word": "go on"}\n{"word": "stay"}\n')
    out = tmp_path / "o.jsonl"
    args = ["--batch", "rows.jsonl", "--model", "fake", "-o", "o.jsonl", "--stats", "s.json", *mode]
    process = start("run", "p.py", *args, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if out.exists() and out.read_bytes().count(b"\n") == 2:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err.decode()
    assert [one["index"] for one in lines_of(out.read_text())] == [0, 1]
    assert err.decode().splitlines()[-1] == "interrupted"
    assert "Traceback" not in err.decode()
    assert json.loads((tmp_path / "s.json").read_text())["rows"] == 2


def test_a_closed_pipe_is_no_error_message(tmp_path: Path, write: Write, program: str) -> None:
    write("rows.jsonl", '{"word": "a"}\n' * 2000)
    process = start("run", program, "--batch", "rows.jsonl", "--model", "fake", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err_bytes = process.communicate(timeout=60)
    err = err_bytes.decode()
    assert "Traceback" not in err
    assert "Broken" not in err


def test_a_real_process_streams_rows(tmp_path: Path, write: Write) -> None:
    write("p.py", SLOW)
    write("rows.jsonl", '{"word": "go"}\n{"word": "stay"}\n')
    process = start("run", "p.py", "--batch", "rows.jsonl", "--model", "fake", cwd=tmp_path)
    try:
        assert process.stdout is not None
        started = time.monotonic()
        assert json.loads(process.stdout.readline())["index"] == 0
        assert time.monotonic() - started < 50, "before the second row ends"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["run", "--model", "fake"], b"returned: \\xe9"),
        (["run", "--model", "fake", "--json"], b'"text": "\\u00e9"'),
        (["compile"], b"\\xe9"),
        (["explain", "--arg", "x=1"], b"p (\\xe9.py:3)"),
    ],
)
def test_text_is_escaped_where_the_terminal_cannot_show_it(
    tmp_path: Path, write: Write, args: list[str], wanted: bytes
) -> None:
    write("é.py", "import lmc\n\n@lmc.jit\ndef p(s, x=''):\n    s += 'é'\n    return 'é'\n")
    process = start(args[0], "é.py", *args[1:], cwd=tmp_path, PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=60)
    assert wanted in out, err


# --------------------------------------------------------------------------- strange values

STRANGE = """
    import lmc

    class Mute:
        def __repr__(self):
            raise RuntimeError("no words")

        def __eq__(self, other):
            raise RuntimeError("no comparing")

    @lmc.jit
    def p(s, what: str = "plain"):
        s += "x"
        s += lmc.gen("a", max_tokens=1)
        knot = []
        knot.append(knot)
        deep = []
        for _ in range(30_000):
            deep = [deep]
        return {
            "plain": 1, "keys": {(1, 2): 3}, "mute": Mute(), "knot": knot, "deep": deep,
            "digits": 10**5000, "infinite": float("-inf"),
        }[str(s["a"] and what)]
"""


def test_values_that_json_does_not_know(invoke: Invoke, write: Write) -> None:
    write("p.py", STRANGE)
    names = ["plain", "keys", "mute", "knot", "deep", "digits", "infinite"]
    write("rows.jsonl", "".join(json.dumps({"what": name}) + "\n" for name in names))
    written = lines_of(invoke("run", "p.py", "--batch", "rows.jsonl", "--model", "fake").stdout)
    values = [row["value"] for row in written]
    assert values == [1, "{(1, 2): 3}", "<Mute>", "[[...]]", "<list>", "<int>", "-inf"]
    assert [row["error"] for row in written] == [None] * 7
    for name, value in zip(names, values, strict=True):
        shown = invoke("run", "p.py", "--model", "fake", "--arg", f"what={name}").stdout
        wanted = "returned:\n  (1, 2): 3\n" if name == "keys" else f"returned: {value}\n"
        assert shown.endswith(wanted)
    assert (
        "compiled and eager give the same"
        in invoke("check", "p.py", "--batch", "rows.jsonl", "--model", "fake").stdout
    )
