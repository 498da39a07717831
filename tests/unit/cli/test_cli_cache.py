"""`lmc cache`, and what `lmc doctor` says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmc.constraints.known import automaton_for

from .conftest import Invoke, Write

PROGRAM = """
    import lmc

    @lmc.jit
    def p(s):
        s += lmc.gen("a", regex="[a-z]{2,5}")
"""


def test_what_a_compiled_program_leaves_is_listed_and_cleared(
    invoke: Invoke, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LMC_CACHE", "1")
    automaton_for.cache_clear()
    assert invoke("cache", "list").stdout == "nothing is kept yet\n"
    write("p.py", PROGRAM)
    invoke("compile", "p.py", "--emit", "ir")
    (entry,) = json.loads(invoke("cache", "list", "--json").stdout)
    assert (entry["kind"], entry["entries"]) == ("automata", 1)
    assert invoke("cache", "list").stdout.startswith("automata          1 ")
    assert "1 automata, " in invoke("doctor").stdout
    assert invoke("cache", "clear").stdout == "1 entries removed\n"
    assert "nothing yet" in invoke("doctor").stdout
    monkeypatch.setenv("LMC_CACHE", "0")
    assert "LMC_CACHE is off" in invoke("cache", "list").stdout
    assert "LMC_CACHE is off" in invoke("doctor").stdout
