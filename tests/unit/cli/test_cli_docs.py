"""The pages name every command and option, and their links and programs work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lmc.cli import app

from .conftest import ROOT, Invoke, Write

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def options_of(command: Any, name: str = "lmc") -> list[tuple[str, str]]:
    if hasattr(command, "commands"):
        return [
            pair
            for key, inner in command.commands.items()
            for pair in options_of(inner, f"{name} {key}")
        ]
    return [
        (name, spelling) for param in command.params for spelling in param.opts if "-" in spelling
    ]


@pytest.mark.parametrize(("command", "option"), options_of(typer.main.get_command(app)))
def test_every_option_is_documented(command: str, option: str) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert command in page
    assert re.search(rf"[`\[ ]{re.escape(option)}\b", page), option


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def test_the_program_of_the_quick_start_runs(invoke: Invoke, write: Write) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(import lmc\n.*?)```", page, re.DOTALL)
    assert programs
    for program in programs:
        write("p.py", program)
        invoke("run", "p.py", "--arg", "review=Good.", "--model", "fake")
    more = re.search(r"```python\n(forks = .*?)```", page, re.DOTALL)
    assert more is not None
    body = "".join(f"    {line}\n" for line in more[1].splitlines())
    write("q.py", f"import lmc\n\n@lmc.jit\ndef q(s):\n{body}")
    invoke("run", "q.py", "--model", "fake")
    assert "compiled: all of it" in invoke("explain", "q.py").stdout


def test_the_program_of_the_readme_runs(invoke: Invoke, write: Write) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert program is not None
    write("judge.py", program[1])
    invoke("run", "judge.py", "--arg", "essay=Good.", "--model", "fake")
    assert "compiled: all of it, 2 ways" in invoke("explain", "judge.py").stdout
