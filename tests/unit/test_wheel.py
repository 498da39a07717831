"""The wheel: everything that lmc needs is in it, and what is installed from it works."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]

PROGRAM = """
import lmc

@lmc.jit
def greet(s, name: str = "Ada"):
    s += f"Hello, {name}. "
    s += lmc.gen("answer", max_tokens=8, regex="[a-z]+")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built without a network from this tree."""
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")))
    return zipfile.ZipFile(built)


def test_every_file_of_the_package_is_in_it(wheel: zipfile.ZipFile) -> None:
    files = (path for path in (ROOT / "lmc").rglob("*") if path.is_file())
    there = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == there
    assert {Path(name).suffix for name in held} >= {".lark", ".html", ".css", ".js", ".json"}
    assert "lmc/py.typed" in held


def test_what_is_installed_from_it_works(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    site = tmp_path / "site"
    wheel.extractall(site)
    (tmp_path / "p.py").write_text(PROGRAM)
    code = "import lmc.cli; print(lmc.__file__, flush=True); lmc.cli.main()"
    compiled = subprocess.run(
        [sys.executable, "-c", code, "compile", "p.py", "--emit", "html", "-o", "p.html"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    assert compiled.stdout.startswith(str(site))
    page = (tmp_path / "p.html").read_text("utf-8")
    assert "<style>" in page
    assert "<script" in page
    assert "lm.gen" in page


def test_it_has_the_command_and_the_license(wheel: zipfile.ZipFile) -> None:
    about = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert b"lmc = lmc.cli:main" in wheel.read(about["entry_points.txt"])
    assert wheel.read(about["LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert b"Requires-Python: <3.14,>=3.11" in wheel.read(about["METADATA"])
