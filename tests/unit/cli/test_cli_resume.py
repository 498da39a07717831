"""`lmc run --batch --resume`: a batch that was killed and gone on with gives the same file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from lmc.commands.checkpoint import record_path

from .conftest import ROOT, Invoke, Write, start

PROGRAM = """
    import os
    import time
    import lmc

    @lmc.jit
    def p(s, word: str):
        s += f"About {word}: "
        s += lmc.gen("a", 3)
        s["a"].encode()  # ends the graph: what follows runs eagerly
        if word == "stay" and not os.path.exists("go"):
            time.sleep(60)
        if word.startswith("bad"):
            raise ValueError(word)
        s += lmc.gen("b", 4, temperature=1.0)
"""
WORDS = ["one", "two", "bad", "stay", "five", "bad too", "é", "eight"]
ARGS = ["run", "p.py", "--batch", "rows.jsonl", "--model", "fake", "-o", "o.jsonl"]


ROWS = "".join(json.dumps({"word": word}) + "\n" for word in WORDS)


@pytest.fixture
def batch(write: Write, tmp_path: Path) -> Path:
    write("p.py", PROGRAM)
    write("rows.jsonl", ROWS)
    return tmp_path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a batch that was killed after seven rows."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "p.py").write_text(textwrap.dedent(PROGRAM).lstrip("\n"), encoding="utf-8")
    (folder / "rows.jsonl").write_text(ROWS, encoding="utf-8")
    process = start(*ARGS, cwd=folder)
    wait_for(folder, 3, 4)
    process.kill()
    process.communicate()
    return folder


@pytest.fixture
def begun(batch: Path, killed: Path) -> Path:
    """The batch, after it was killed."""
    for name in ("o.jsonl", "o.jsonl.resume"):
        shutil.copy(killed / name, batch / name)
    return batch


def undisturbed(invoke: Invoke, folder: Path) -> bytes:
    (folder / "go").touch()
    invoke(*ARGS[:-1], "whole.jsonl", code=1)
    (folder / "go").unlink()
    return (folder / "whole.jsonl").read_bytes()


def wait_for(folder: Path, lines: int, ahead: int) -> None:
    """Until so many rows stand in the file, and so many of later ones in the record."""
    out, record = folder / "o.jsonl", folder / "o.jsonl.resume"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if out.exists() and record.exists() and out.read_bytes().count(b"\n") >= lines:
            held = record.read_bytes().split(b"\n")[1:-1]
            if sum(json.loads(line)["index"] >= lines for line in held) >= ahead:
                return
        time.sleep(0.02)
    pytest.fail(f"{out.read_bytes()!r}")


def test_a_killed_batch_resumed_gives_the_same_bytes(invoke: Invoke, batch: Path) -> None:
    whole = undisturbed(invoke, batch)
    process = start(*ARGS, cwd=batch)
    wait_for(batch, 3, 4)
    process.kill()
    process.communicate()
    assert whole.startswith((batch / "o.jsonl").read_bytes())
    (batch / "go").touch()
    result = invoke(*ARGS, "--resume", "--stats", "s.json", code=1)
    assert "7 of 8 rows were done before" in result.stderr
    assert "8 rows, 2 failed" in result.stderr
    assert (batch / "o.jsonl").read_bytes() == whole
    assert not record_path(batch / "o.jsonl").exists()
    counted = json.loads((batch / "s.json").read_text())
    assert (counted["rows"], counted["failed_rows"], counted["requests"]) == (8, 2, 2)


def test_ctrl_c_keeps_rows_that_wait_for_others(invoke: Invoke, batch: Path) -> None:
    whole = undisturbed(invoke, batch)
    process = start(*ARGS, cwd=batch)
    wait_for(batch, 3, 4)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err.decode()
    assert err.decode().splitlines()[-1] == "interrupted"
    assert "go on with --resume" in err.decode()
    (batch / "go").touch()
    assert "7 of 8" in invoke(*ARGS, "--resume", code=1).stderr
    assert (batch / "o.jsonl").read_bytes() == whole


@pytest.mark.parametrize("cut", [1, 40])
def test_a_torn_line_is_done_again(invoke: Invoke, begun: Path, cut: int) -> None:
    batch = begun
    whole = undisturbed(invoke, batch)
    for name in ("o.jsonl", "o.jsonl.resume"):
        held = (batch / name).read_bytes()
        (batch / name).write_bytes(held[:-cut])
    (batch / "go").touch()
    err = invoke(*ARGS, "--resume", code=1).stderr
    assert " of 8 rows were done before" in err
    assert "7 of 8" not in err
    assert (batch / "o.jsonl").read_bytes() == whole


def test_killed_again_and_again(invoke: Invoke, batch: Path) -> None:
    whole = undisturbed(invoke, batch)
    process = start(*ARGS, cwd=batch)
    for _ in range(2):
        wait_for(batch, 3, 4)
        process.kill()
        process.communicate()
        process = start(*ARGS, "--resume", cwd=batch)
    time.sleep(0.2)
    process.kill()
    process.communicate()
    (batch / "go").touch()
    invoke(*ARGS, "--resume", code=1)
    assert (batch / "o.jsonl").read_bytes() == whole


def test_a_run_of_something_else_is_refused(invoke: Invoke, begun: Path, write: Write) -> None:
    batch = begun
    before = (batch / "o.jsonl").read_bytes()
    err = invoke(*ARGS, "--resume", "--seed", "3", code=2).stderr
    assert "o.jsonl was begun with another seed: 0, not 3" in err
    assert "--resume" in err
    assert "another dtype" in invoke(*ARGS, "--resume", "--dtype", "float32", code=2).stderr
    rows = (batch / "rows.jsonl").read_text()
    write("rows.jsonl", rows.replace("five", "six"))
    assert "another rows" in invoke(*ARGS, "--resume", code=2).stderr
    write("rows.jsonl", rows)
    assert "another rows" in invoke(*ARGS, "--resume", "--arg", "word=x", code=2).stderr
    write("p.py", PROGRAM.replace("About", "On"))
    assert "another program" in invoke(*ARGS, "--resume", code=2).stderr
    assert (batch / "o.jsonl").read_bytes() == before
    assert record_path(batch / "o.jsonl").exists()


def test_a_neighbour_of_the_program_counts(invoke: Invoke, batch: Path, write: Write) -> None:
    write("words.py", 'FIRST = "About"')
    write(
        "p.py", PROGRAM.replace("import lmc", "import lmc, words").replace("About", "{words.FIRST}")
    )
    process = start(*ARGS, cwd=batch)
    wait_for(batch, 3, 0)
    process.kill()
    process.communicate()
    write("words.py", 'FIRST = "On"')
    process = start(*ARGS, "--resume", cwd=batch)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"another program" in err


def test_what_may_change_between_runs(invoke: Invoke, begun: Path) -> None:
    batch = begun
    whole = undisturbed(invoke, batch)
    (batch / "go").touch()
    invoke(*ARGS, "--resume", "--eager", "--kv-tokens", "4000", code=1)
    assert (batch / "o.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "held", "says"),
    [
        ("o.jsonl", b'{"index": 7}\n', "line 1 of o.jsonl is not what the batch wrote"),
        ("o.jsonl", b"nonsense\n", "line 1 of o.jsonl"),
        ("o.jsonl.resume", b"", "o.jsonl.resume is damaged"),
        ("o.jsonl.resume", b"[]\n", "o.jsonl.resume is damaged"),
        ("o.jsonl.resume", b'{"lmc_resume": 99, "given": {}}\n', "another version"),
    ],
)
def test_damaged_files_are_refused(
    invoke: Invoke, begun: Path, name: str, held: bytes, says: str
) -> None:
    (begun / name).write_bytes(held)
    assert says in invoke(*ARGS, "--resume", code=2).stderr


def test_nothing_to_resume(invoke: Invoke, batch: Path) -> None:
    (batch / "go").touch()
    assert "this is the first run" in invoke(*ARGS, "--resume", code=1).stderr
    whole = (batch / "o.jsonl").read_bytes()
    assert "8 of 8 rows were done before" in invoke(*ARGS, "--resume", code=1).stderr
    assert (batch / "o.jsonl").read_bytes() == whole
    (batch / "o.jsonl").write_bytes(whole[: len(whole) // 2])
    assert "there is no o.jsonl.resume" in invoke(*ARGS, "--resume", code=2).stderr


def test_an_old_record_is_not_taken_for_a_new_run(invoke: Invoke, begun: Path) -> None:
    (begun / "go").touch()
    invoke(*ARGS, code=1)
    assert not record_path(begun / "o.jsonl").exists()


def test_a_device_has_no_record(invoke: Invoke, batch: Path) -> None:
    (batch / "go").touch()
    invoke(*ARGS[:-1], os.devnull, code=1)
    assert "name of a file" in invoke(*ARGS[:-1], os.devnull, "--resume", code=2).stderr


# ----------------------------------------------------------------------------------- --stream


def test_stream_shows_what_run_shows(invoke: Invoke, write: Write) -> None:
    write(
        "q.py",
        """
        import lmc

        @lmc.jit
        def q(s, word: str = "x"):
            s += f"About {word}: "
            s += lmc.gen("a", 5)
            s += lmc.gen("lines", regex="(a|b){2}\\\\n(a|b)")
            for f in (forks := s.fork(2)):
                f += lmc.gen("b", 4, temperature=1.0)
            forks.join()
            return word + "!"
        """,
    )
    held: dict[str, Any] = json.loads(invoke("run", "q.py", "--model", "fake", "--json").stdout)
    a, lines, b = (held["variables"][name] for name in ("a", "lines", "b"))
    shown = lines.replace("\n", "\n  ")
    expected = f"a: {a}\nlines: {shown}\nb[0]: {b[0]}\nb[1]: {b[1]}\nreturned: x!\n"
    for more in ([], ["--eager"]):
        assert invoke("run", "q.py", "--model", "fake", "--stream", *more).stdout == expected
    invoke("run", "q.py", "--model", "fake", "--stream", "-o", "q.json")
    assert json.loads(Path("q.json").read_text()) == held


def test_a_program_that_fails_while_it_is_streamed(invoke: Invoke, batch: Path) -> None:
    args = ["run", "p.py", "--arg", "word=bad", "--model", "fake", "--stream"]
    result = invoke(*args, code=1)
    assert result.stdout.startswith("a: ")
    assert "ValueError: bad (p.py:" in result.stderr


def test_stream_excludes(invoke: Invoke, batch: Path) -> None:
    assert "--batch" in invoke(*ARGS, "--stream", code=2).stderr
    args = ["run", "p.py", "--arg", "word=a", "--stream", "--json"]
    assert "--json" in invoke(*args, code=2).stderr


def test_text_comes_while_the_program_runs(batch: Path) -> None:
    args = ["run", "p.py", "--arg", "word=stay", "--model", "fake", "--stream"]
    process = start(*args, cwd=batch)
    assert process.stdout is not None
    try:
        assert process.stdout.read(3) == b"a: "
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


# ------------------------------------------------------------------------------- on a terminal


def on_a_terminal(*args: str, cwd: Path) -> str:
    """What a terminal of 120 columns is sent by a command, from both of its streams."""
    pty = pytest.importorskip("pty")
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lmc", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "xterm"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    held = b""
    while True:
        try:
            held += os.read(mine, 65536)
        except OSError:  # the other end is closed
            break
    process.wait(60)
    os.close(mine)
    return held.decode()


def test_the_bar_has_rates_and_the_time_left(batch: Path) -> None:
    (batch / "go").touch()
    told = on_a_terminal(*ARGS, cwd=batch)
    for part in ("8/8", "rows/s", "tokens/s", "% cached", "ETA"):
        assert part in told
    process = start(*ARGS, cwd=batch)
    _, err = process.communicate(timeout=60)
    assert b"rows/s" not in err  # no terminal, no bar


def test_names_stand_out_on_a_terminal(batch: Path) -> None:
    told = on_a_terminal("run", "p.py", "--arg", "word=x", "--model", "fake", "--stream", cwd=batch)
    assert told.startswith("\x1b[1;36ma\x1b[0m: ")
