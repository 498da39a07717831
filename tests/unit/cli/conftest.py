"""Programs in a working directory of their own, and `lmc` called on them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.commands import call

ROOT = Path(__file__).parents[3]

Invoke = Callable[..., Result]
Write = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where no model is."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _no_model(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, nowhere: Path
) -> None:
    """Reports do not depend on whether the default model, whose tokens they count, was fetched."""
    if "model" not in request.keywords:
        monkeypatch.setenv("LMC_HOME", str(nowhere))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into the working directory, which is empty at first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return written


@pytest.fixture
def invoke(write: Write) -> Invoke:
    """Call `lmc`; checks the exit code and that errors are one or two lines."""

    def invoked(*args: str, code: int = 0, stdin: str | None = None) -> Result:
        result = call(*args, stdin=stdin)
        assert result.exit_code == code, f"{result.stdout}{result.stderr}{result.exception}"
        if code and "--traceback" not in args:
            assert result.stderr.splitlines()
            assert "Traceback" not in result.stderr
        return result

    return invoked


def start(*args: str, cwd: Path, **environment: str) -> subprocess.Popen[bytes]:
    """`python -m lmc` as a process of its own."""
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "lmc", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": search, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


GREET = """
    import lmc

    @lmc.jit
    def greet(s, name: str = "Ada"):
        s += f"Hello, {name}. "
        s += lmc.gen("answer", max_tokens=8)
"""


@pytest.fixture
def greet(write: Write) -> str:
    """The file of a small program."""
    write("greet.py", GREET)
    return "greet.py"
