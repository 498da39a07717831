"""`lmc explain`: what compiled, and how to change what did not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lmc.frontend
from lmc.commands.report import advice

from .conftest import Invoke, Write


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
    "{what} of a {self._poses_as.__name__} that is not known yet",
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
