"""What a batch will cost, beside what it did: `run --stats`, `compile --emit report`, `explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmc.runtime.prediction import PREDICTED

from .conftest import Invoke, Write

PROGRAM = """
import lmc

@lmc.jit
def p(s, essay, more="no"):
    s += f"An essay that is judged from all sides: {essay}. "
    for fork, side in zip(forks := s.fork(2), ("style", "truth")):
        fork += f"Its {side} is"
        fork += lmc.select("mark", [" good", " bad"])
    forks.join()
    s += " So the whole is"
    s += lmc.gen("whole", 6, ignore_eos=True)
    if more == "yes":
        s += lmc.gen("why", 5)
"""


@pytest.fixture
def rows(write: Write) -> Path:
    write("p.py", PROGRAM)
    return write(
        "rows.jsonl", "".join(json.dumps({"essay": f"Essay {i}"}) + "\n" for i in range(9))
    )


@pytest.mark.parametrize("kv_tokens", ["200", "2000"])
def test_predicted_and_measured_are_the_same(
    invoke: Invoke, rows: Path, tmp_path: Path, kv_tokens: str
) -> None:
    where = ("--batch", "rows.jsonl", "--model", "fake", "--kv-tokens", kv_tokens)
    invoke("run", "p.py", *where, "-o", "o.jsonl", "--stats", "s.json")
    stats = json.loads(Path("s.json").read_text())
    predicted = stats["predicted"]
    assert (predicted["exact"], predicted["reasons"], predicted["rows"]) == (True, [], 9)
    for name in (*PREDICTED, "hit_rate"):
        assert predicted[name] == {"least": stats[name], "most": stats[name]}
    report = json.loads(invoke("compile", "p.py", "--emit", "report", *where).stdout)
    assert report["batch"]["predicted"] == predicted
    text = rows.read_text()
    piped = invoke("compile", "p.py", "--emit", "report", "--batch", "-", *where[2:], stdin=text)
    assert json.loads(piped.stdout)["batch"]["predicted"] == predicted


def test_a_single_run_is_predicted_too(invoke: Invoke, rows: Path) -> None:
    invoke("run", "p.py", "--arg", "essay=x", "--model", "fake", "--stats", "s.json")
    stats = json.loads(Path("s.json").read_text())
    assert stats["predicted"]["computed_tokens"]["most"] == stats["computed_tokens"]
    invoke("run", "p.py", "--arg", "essay=x", "--model", "fake", "--stats", "s.json", "--eager")
    assert json.loads(Path("s.json").read_text())["predicted"] is None


def test_explain_says_what_a_batch_will_cost(invoke: Invoke, rows: Path) -> None:
    out = invoke("explain", "p.py", "--batch", "rows.jsonl", "--model", "fake").stdout
    assert "predicted, exactly, with an empty cache:" in out
    assert "54 generated" in out
    args = ("--arg", "more=yes", "--batch", "rows.jsonl", "--model", "fake")
    out = invoke("explain", "p.py", *args).stdout
    assert "predicted, as far as is known" in out
    assert "not exact: how long 'why' will be is not known (" in out
    assert "p.py:13)" in out
    assert "54 to 99 generated" in out
    assert "predicted" not in invoke("explain", "p.py", "--model", "fake").stdout
