"""What goes wrong around a command: full disks, missing packages, programs that end the process."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.codegen.artifact import read_artifact
from lmc.errors import TraceError

from .conftest import ROOT, Invoke, Write
from .test_cli_run import lines_of

# ------------------------------------------------------------------------- the older file


TRACED = """
    import lmc

    @lmc.jit
    def p(s, word: str = "one", n: int = 3):
        s += word
        s += lmc.gen("a", n)
"""


@pytest.fixture
def traced(write: Write, tmp_path: Path) -> Path:
    """An older file of results, beside a program that fails to compile where n is negative."""
    write("p.py", TRACED)
    write("rows.jsonl", '{"n": -1}\n{"n": -1, "word": "b"}\n')
    write("mixed.jsonl", '{"n": -1}\n{"n": 2}\n{"nobody": 1}\n')
    write("wrong.jsonl", '{"nobody": 1}\n')
    (tmp_path / "o.jsonl").write_text("older\n")
    return tmp_path / "o.jsonl"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--arg", "n=-1"], 1, "max_tokens is -1 (p.py:6)"),
        (["--batch", "rows.jsonl"], 1, "max_tokens is -1 (p.py:6)"),
        (["--model", "no-such-model"], 2, "no-such-model"),
        (["--model", "no-such-model", "--batch", "mixed.jsonl"], 2, "no-such-model"),
        (["--arg", "nobody=1"], 2, "nobody"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_older_file_is_kept_if_nothing_can_run(
    invoke: Invoke, traced: Path, args: list[str], code: int, says: str, more: list[str]
) -> None:
    result = invoke("run", "p.py", "--model", "fake", "-o", "o.jsonl", *args, *more, code=code)
    assert says in result.stderr.splitlines()[0]
    assert result.stdout == ""
    assert traced.read_text() == "older\n"


def test_an_older_file_is_kept_if_an_artifact_cannot_run(invoke: Invoke, traced: Path) -> None:
    invoke("compile", "p.py", "-o", "p.lmc")
    for args in (["--arg", "n=4"], ["--arg", "nobody=4"], ["--model", "no-such-model"]):
        invoke("run", "p.lmc", "--model", "fake", "-o", "o.jsonl", *args, code=2)
        assert traced.read_text() == "older\n"


@pytest.mark.parametrize("mode", [[], ["--eager"]])
def test_rows_that_do_not_compile_fail_on_their_own(
    invoke: Invoke, traced: Path, mode: list[str]
) -> None:
    args = ["run", "p.py", "--model", "fake", "-o", "o.jsonl", *mode]
    invoke(*args, "--batch", "mixed.jsonl", code=1)
    held = lines_of(traced.read_text())
    assert [one["error"] is None for one in held] == [False, True, False]
    invoke(*args, "--batch", "wrong.jsonl", code=1)
    assert [one["error"]["type"] for one in lines_of(traced.read_text())] == ["UsageError"]


def test_eager_gives_the_same_file(invoke: Invoke, write: Write, tmp_path: Path) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s, word: str):
            s += "A long beginning that all rows share, so that the cache is used. "
            s += word
            s += lmc.gen("a", 6)
            forks = s.fork(3)
            forks += " and "
            forks += lmc.gen("b", 4, temperature=1.0)
            forks.join()
            s += lmc.select("c", ["x", "yes"])
        """,
    )
    write("rows.jsonl", "".join(json.dumps({"word": w * 5}) + "\n" for w in "abcaabc"))
    found = []
    for mode in (["--eager"], [], ["-O0"], ["-O3"], ["--kv-tokens", "300"]):
        args = ["--batch", "rows.jsonl", "--model", "fake", "-o", "o.jsonl", "--stats", "s.json"]
        invoke("run", "p.py", *args, *mode)
        found.append((tmp_path / "o.jsonl").read_text())
        assert json.loads((tmp_path / "s.json").read_text())["cached_tokens"] > 0
    assert found == [found[0]] * 5
    assert set(lines_of(found[0])[0]["meta"]["a"]) == {
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "forced_tokens",
    }


# ----------------------------------------------------------------------- what is no file


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("what", ["artifact", "text", "results"])
def test_a_pipe_and_a_link_stay_what_they_are(
    invoke: Invoke, traced: Path, tmp_path: Path, what: str, linked: bool
) -> None:
    pipe = tmp_path / "x.lmc"
    os.mkfifo(pipe)
    name = "x.lmc"
    if linked:
        (tmp_path / "link.lmc").symlink_to("x.lmc")
        name = "link.lmc"
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    if what == "results":
        invoke("run", "p.py", "--model", "fake", "-o", name)
    elif what == "artifact":
        invoke("compile", "p.py", "-o", name)
    else:
        (tmp_path / "x.txt").symlink_to(name)
        invoke("compile", "p.py", "--emit", "ir", "-o", "x.txt")
    reader.join(20)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert (tmp_path / "link.lmc").is_symlink() == linked
    copy = tmp_path / "copy.lmc"
    copy.write_bytes(got[0])
    if what == "artifact":
        assert read_artifact(copy).plan.name == "p"
    else:
        assert b"lm.gen" in got[0] or len(lines_of(got[0].decode())) == 1


# -------------------------------------------------------------------------- full disks


def limited(*args: str, cwd: Path, most: int, stdout: Any) -> subprocess.CompletedProcess[bytes]:
    """`lmc` in a process whose files may not grow beyond `most` bytes, as on a full disk."""
    return subprocess.run(
        [sys.executable, "-m", "lmc", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "args",
    [
        ["run", "p.py", "--model", "fake"],
        ["run", "p.py", "--model", "fake", "--json"],
        ["run", "p.py", "--model", "fake", "--batch", "mixed.jsonl"],
        ["compile", "p.py"],
        ["explain", "p.py"],
        ["model", "list"],
        ["doctor"],
        ["--version"],
        ["--help"],
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_that_is_full(
    tmp_path: Path,
    traced: Path,
    args: list[str],
    unbuffered: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with (tmp_path / "out").open("wb") as out:
        done = limited(*args, cwd=tmp_path, most=0, stdout=out)
    err = done.stderr.decode().splitlines()
    assert f"error: cannot write standard output: {os.strerror(errno.EFBIG)}" in err
    assert done.returncode == 1
    assert not any("fault of lmc" in line or "Exception" in line for line in err), err


def test_closed_streams_are_no_fault(tmp_path: Path, traced: Path) -> None:
    for args in (["--version"], ["run", "p.py", "--model", "fake"]):
        quoted = " ".join([sys.executable, "-m", "lmc", *args])
        done = subprocess.run(
            ["sh", "-c", f"{quoted} >&- 2>&-"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=60,
            check=False,
        )
        assert done.returncode == 0


@pytest.mark.parametrize(
    "args",
    [
        ["run", "p.py", "--model", "fake", "-o", "f"],
        ["run", "p.py", "--model", "fake", "--batch", "mixed.jsonl", "-o", "f"],
        ["compile", "p.py", "-o", "f"],
        ["compile", "p.py", "-o", "f", "--emit", "svg"],
    ],
)
def test_a_file_that_is_full(tmp_path: Path, traced: Path, args: list[str]) -> None:
    done = limited(*args, cwd=tmp_path, most=10, stdout=subprocess.PIPE)
    err = done.stderr.decode()
    file = "f.resume" if "--batch" in args else "f"  # what is written first
    assert f"error: cannot write {file}: {os.strerror(errno.EFBIG)}\n" in err
    assert (done.returncode, done.stdout) == (1, b"")
    assert "fault of lmc" not in err
    assert not [*tmp_path.glob(".f*"), *tmp_path.glob("f.*")], "nothing is left over"


def test_a_full_disk_anywhere_else(
    invoke: Invoke, traced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("lmc.commands.compile._emitted", full)
    result = invoke("compile", "p.py", code=1)
    assert result.stderr == "error: cannot write a file: No space left on device\n"


def test_an_artifact_that_may_not_be_read(
    invoke: Invoke, traced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    invoke("compile", "p.py", "-o", "p.lmc")
    monkeypatch.setattr(lmc.api, "load", denied)
    result = invoke("run", "p.lmc", "--model", "fake", code=2)
    assert result.stderr == "error: p.lmc cannot be read: Permission denied\n"


# ------------------------------------------------------------------------ missing packages


def test_a_missing_package_is_named(
    invoke: Invoke, traced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*_: Any, **__: Any) -> None:
        import torch  # noqa: F401

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("lmc.runtime.load._runner", loads)
    result = invoke("run", "p.py", "--model", "fake", "-o", "o.jsonl", code=1)
    assert result.stderr == (
        "error: torch is not installed\n  hint: pip install torch, or use --model fake\n"
    )
    assert traced.read_text() == "older\n"
    long = invoke("run", "p.py", "--model", "fake", "--traceback", code=1).stderr
    assert "ModuleNotFoundError" in long


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (ImportError("no libcudart", name="torch._C"), "torch cannot be imported: no libcudart"),
        (ModuleNotFoundError("no", name="numba.core"), "numba is not installed"),
        (ModuleNotFoundError("no", name="lmc.nothing"), "ModuleNotFoundError: no"),
        (ImportError("cannot import name"), "ImportError: cannot import name"),
    ],
)
def test_imports_that_fail(
    invoke: Invoke,
    traced: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: ImportError,
    says: str,
) -> None:
    def broken(*_: object) -> None:
        raise raised

    monkeypatch.setattr("lmc.commands.compile._emitted", broken)
    result = invoke("compile", "p.py", code=1)
    assert f"error: {says}\n" in result.stderr
    assert ("fault of lmc" in result.stderr) == ("lmc" in (raised.name or "lmc"))


# --------------------------------------------------------- programs that end the process

ENDS = ["sys.exit()", "sys.exit(0)", "sys.exit('bye')", "raise SystemExit", "raise Odd('x')"]


@pytest.mark.parametrize("statement", ENDS)
@pytest.mark.parametrize("place", ["imported", "traced"])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "--model", "fake"],
        ["run", "--model", "fake", "--batch", "rows.jsonl"],
        ["run", "--model", "fake", "--eager"],
        ["compile"],
        ["compile", "-o", "p.lmc"],
        ["explain"],
    ],
    ids=" ".join,
)
def test_a_program_cannot_end_lmc_in_silence(
    invoke: Invoke, write: Write, command: list[str], place: str, statement: str
) -> None:
    top, inner = (statement, "pass") if place == "imported" else ("pass", statement)
    write(
        "p.py",
        f"""
        import sys
        import lmc

        class Odd(BaseException):
            pass

        {top}

        @lmc.jit
        def p(s):
            s += "x"
            {inner}
        """,
    )
    write("rows.jsonl", "{}\n")
    name = "Odd: x" if "Odd" in statement else "SystemExit"
    if place == "traced" and command[0] != "run":  # it is raised when the graph has ended
        result = invoke(command[0], "p.py", *command[1:])
        assert name in result.stdout + result.stderr
        return
    result = invoke(command[0], "p.py", *command[1:], code=1)
    line = 7 if place == "imported" else 12
    first = result.stderr.splitlines()[0]
    assert first.startswith("error: ")
    assert name in first
    assert first.endswith(f"(p.py:{line})")


def test_what_ends_a_process_is_an_error_of_the_program() -> None:
    from lmc.commands.source import faults_of_program

    for raised in (SystemExit(0), GeneratorExit()):
        with pytest.raises(TraceError) as caught, faults_of_program():
            raise raised
        assert caught.value.where is not None
        assert caught.value.where.file.endswith("test_cli_faults.py")
        hint = "a program must not end the process"
        assert caught.value.hint == (hint if isinstance(raised, SystemExit) else None)
    for passed in (KeyboardInterrupt(), ZeroDivisionError()):
        with pytest.raises(type(passed)), faults_of_program():
            raise passed


def test_what_ends_the_process_in_a_command_is_said(
    invoke: Invoke, traced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: object) -> None:
        sys.exit(0)

    monkeypatch.setattr("lmc.commands.compile._emitted", ends)
    first, hint = invoke("compile", "p.py", code=1).stderr.splitlines()
    assert first.startswith("error: SystemExit: 0 (")
    assert hint == "  hint: a program must not end the process"


@pytest.mark.parametrize("place", ["imported", "traced"])
def test_an_interrupt_in_a_program_is_an_interrupt(
    invoke: Invoke, write: Write, place: str
) -> None:
    top, inner = ("raise KeyboardInterrupt", "pass")[:: 1 if place == "imported" else -1]
    write("p.py", f"import lmc\n\n{top}\n\n@lmc.jit\ndef p(s):\n    s += 'x'\n    {inner}\n")
    assert invoke("run", "p.py", "--model", "fake", code=130).stderr == "interrupted\n"


def test_a_later_row_that_ends_the_process(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import sys
        import lmc

        @lmc.jit
        def p(s, n: int = 0):
            s += "x"
            if n:
                sys.exit()
        """,
    )
    write("rows.jsonl", '{}\n{"n": 1}\n')
    result = invoke("run", "p.py", "--batch", "rows.jsonl", "--model", "fake", code=1)
    assert "SystemExit (p.py:8)" in result.stderr
    assert len(lines_of(result.stdout)) == 2
    eager = invoke("run", "p.py", "--batch", "rows.jsonl", "--model", "fake", "--eager", code=1)
    assert len(lines_of(eager.stdout)) == 2


# ------------------------------------------------------------------------------ artifacts


def test_an_artifact_without_its_tools_is_warned_of(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.tool
        def ask(x: str) -> str:
            return x

        @lmc.jit
        def p(s, x: str):
            s += ask(x) + ask("b")
        """,
    )
    result = invoke("compile", "p.py", "-o", "p.lmc")
    assert result.stderr.count("warning: the artifact does not hold the tool ask()") == 1
    failed = invoke("run", "p.lmc", "--arg", "x=a", "--model", "fake", code=2)
    assert "calls the tool ask(), which an artifact cannot hold (p.py:" in failed.stderr


def test_an_artifact_that_needs_its_source_is_warned_of(
    invoke: Invoke, write: Write, tmp_path: Path
) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s):
            s += "x"
            s += lmc.gen("a", 3)
            if "b" in s["a"]:
                s["a"].encode()
            else:
                int(s["a"])
        """,
    )
    result = invoke("compile", "p.py", "-o", "p.lmc")
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert all(w.startswith("warning: the artifact cannot go on from p.py:") for w in warnings)
    assert {w.split(": ")[1].rpartition(":")[2] for w in warnings} == {"8", "10"}
    assert "encode" in result.stderr
    assert result.stderr.count("  hint: ") == 2
    assert (tmp_path / "p.lmc").exists()
    assert "needs its source" in invoke("run", "p.lmc", "--model", "fake", code=2).stderr
    assert "warning" not in invoke("compile", "p.py").stderr


def test_no_warning_for_a_program_that_compiles_whole(invoke: Invoke, traced: Path) -> None:
    assert invoke("compile", "p.py", "-o", "p.lmc").stderr == ""


def test_a_crafted_artifact_is_wrong_input(invoke: Invoke, traced: Path, tmp_path: Path) -> None:
    import hashlib

    invoke("compile", "p.py", "-o", "p.lmc")
    with zipfile.ZipFile(tmp_path / "p.lmc") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    plan = json.loads(members["plan.json"])
    for change, says in (
        ({"registers": -1}, "there is no register 0, there are -1"),
        ({"params": []}, "its parameters () are not the texts of its arguments (word)"),
        ({"static": "{}"}, "its arguments cannot be read"),
    ):
        members["plan.json"] = json.dumps({**plan, **change}).encode()
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"]["plan.json"] = hashlib.sha256(members["plan.json"]).hexdigest()
        members["manifest.json"] = json.dumps(manifest).encode()
        with zipfile.ZipFile(tmp_path / "q.lmc", "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        result = invoke("run", "q.lmc", "--model", "fake", code=2)
        assert f"the plan is damaged: {says}" in result.stderr.splitlines()[0]


def test_help_names_the_other_commands(invoke: Invoke) -> None:
    for command in ("run", "compile"):
        assert "lmc bench" in " ".join(invoke(command, "--help").stdout.split())
