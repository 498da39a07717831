"""What holds for every command: help, wrong usage, no torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import lmc
from lmc.cli import app

from .conftest import ROOT, Invoke, start

COMMANDS = [
    "compile", "run", "explain", "check", "constraint", "model", "cache", "bench", "doctor",
]  # fmt: skip
DOCS = ROOT / "docs" / "cli.md"


def test_help_names_every_command(invoke: Invoke) -> None:
    out = invoke("--help").stdout
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(invoke: Invoke, name: str) -> None:
    assert "Usage" in invoke(name, "--help").stdout
    assert invoke(name, "-h").stdout == invoke(name, "--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_the_documentation(name: str) -> None:
    every, *pages = re.split(r"^## ", DOCS.read_text("utf-8"), flags=re.MULTILINE)
    (page,) = (page for page in pages if page.startswith(f"lmc {name}\n"))
    command = get_command(app).commands[name]
    for one in (command, *getattr(command, "commands", {}).values()):
        for option in (spelling for param in one.params for spelling in param.opts):
            known = re.escape(option) + r"\b" if option.startswith("-") else ""
            assert re.search(known, page + pages[0] + every), f"{name} {option}"


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"lmc {lmc.__version__}\n"


def test_without_a_command_the_help_is_shown(invoke: Invoke) -> None:
    assert "Usage" in invoke(code=2).stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nonsense"], "nonsense"),
        (["compile"], "PROGRAM.py"),
        (["run", "greet.py", "--nonsense"], "--nonsense"),
        (["run", "greet.py", "-O", "7"], "-O"),
        (["run", "greet.py", "--device", "toaster"], "--device"),
        (["run", "greet.py", "--dtype", "int3"], "--dtype"),
        (["run", "greet.py", "--kv-tokens", "0"], "--kv-tokens"),
        (["compile", "greet.py", "--emit", "poem"], "--emit"),
        (["model"], "command"),
    ],
)
def test_wrong_usage_is_an_error_of_two_lines(
    invoke: Invoke, greet: str, args: list[str], says: str
) -> None:
    assert greet == "greet.py"
    first, second = invoke(*args, code=2).stderr.splitlines()
    assert first.startswith("error: ")
    assert says in first
    assert second.startswith("  hint: see lmc")


def test_python_m_lmc_is_lmc(tmp_path: Path) -> None:
    done = start("--version", cwd=tmp_path)
    out, _ = done.communicate(timeout=60)
    assert (done.returncode, out.decode().strip()) == (0, f"lmc {lmc.__version__}")


@pytest.mark.parametrize("args", [["--help"], ["constraint", "--help"]])
def test_whoever_reads_help_may_go_away(tmp_path: Path, args: list[str]) -> None:
    process = start(*args, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["compile", "greet.py"],
        ["compile", "greet.py", "-o", "greet.lmc", "--model", "fake"],
        ["explain", "greet.py"],
        ["run", "greet.py", "--model", "fake"],
        ["model", "list"],
    ],
)
def test_nothing_heavy_is_imported(tmp_path: Path, greet: str, args: list[str]) -> None:
    assert (tmp_path / greet).exists()
    heavy = {"torch", "transformers", "numba"}
    if args[-1] in ("--help", "list"):  # no program is looked at: not even what all of them need
        heavy |= {"numpy", "lark", "networkx", "lmc.runtime.executor"}
    code = (
        "import sys\n"
        "from lmc.cli import app\n"
        f"code = app({args!r}, standalone_mode=False)\n"
        f"heavy = {heavy} & set(sys.modules)\n"
        "assert not code, code\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_fault_of_lmc_is_said_to_be_one(
    invoke: Invoke, greet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("lmc.commands.compile._emitted", broken)
    assert "fault of lmc" in invoke("compile", greet, code=1).stderr
    assert "KeyError" in invoke("compile", greet, "--traceback", code=1).stderr
