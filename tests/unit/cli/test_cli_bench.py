"""`lmc bench`: names, files, and a table."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmc.bench.cpu import Figure, Report, as_markdown
from lmc.bench.gpu import gpu_markdown
from lmc.bench.workloads import WORKLOADS
from lmc.commands.bench import KEEP
from tests.unit.cli.conftest import Invoke


def test_bookkeeping_is_measured_without_a_model(invoke: Invoke, tmp_path: Path) -> None:
    table, figures = tmp_path / "t.md", tmp_path / "t.json"
    out = invoke(
        "bench", "radix", "executor", "compile", "--write", str(table), "--json", str(figures)
    )
    assert out.stdout == table.read_text()
    names = [f["name"] for f in json.loads(figures.read_text())["figures"]]
    assert "* repeats: 3 of each figure" in out.stdout
    assert names == ["radix insert", "radix match", "executor", "compile", "compile again"]


def test_what_stands_below_a_table_is_kept(invoke: Invoke, tmp_path: Path) -> None:
    page = tmp_path / "t.md"
    page.write_text(f"old\n{KEEP}\nby hand\n")
    out = invoke("bench", "radix", "--write", str(page))
    assert page.read_text() == f"{out.stdout}\n{KEEP}\nby hand\n"


def test_an_unknown_workload_is_refused(invoke: Invoke) -> None:
    out = invoke("bench", "nothing", code=2)
    assert "there is no benchmark 'nothing'" in out.stderr


def test_an_unknown_figure_of_the_gpu_is_refused(invoke: Invoke) -> None:
    out = invoke("bench", "gpu", "nothing", code=2)
    assert "there is no benchmark 'nothing'" in out.stderr
    assert "tree_of_thought" in out.stderr


def test_without_a_gpu_the_gpu_is_not_measured(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = invoke("bench", "gpu", "decode-1", "--model", "smollm2-135m", code=2)
    assert "torch finds no CUDA device" in out.stderr


def test_figures_of_the_gpu_are_a_table() -> None:
    table = gpu_markdown(Report((Figure("decode-1", "ms", 4.5, note="a step"),), {"torch": "x"}))
    assert "| decode-1 | 4.5 ms | a step |" in table


def test_ratios_say_how_many_times_better_lmc_is() -> None:
    rate = Figure("a", "tokens/s", 30.0, 10.0, 1.0, 2.0)
    time = Figure("b", "s", 2.0, 5.0)
    alone = Figure("c", "s", 2.0)
    assert (rate.ratio, time.ratio, alone.ratio) == (3.0, 2.5, None)
    table = as_markdown(Report((rate, time, alone), {"torch": "x"}))
    assert "| a | 30 tokens/s | 10 tokens/s | 3.00 | 1.00 / 2.00 |" in table


def test_programs_are_measured_compiled_beside_eager(invoke: Invoke, tmp_path: Path) -> None:
    table, figures = tmp_path / "t.md", tmp_path / "t.json"
    args = ["few_shot", "json", "--model", "fake", "--repeats", "1", "--kv-share", "0.1"]
    out = invoke("bench", "programs", *args, "--write", str(table), "--json", str(figures))
    assert out.stdout == table.read_text()
    found = json.loads(figures.read_text())["programs"]
    assert [(c["name"], c["kv_share"]) for c in found] == [
        ("few_shot", None), ("json", None), ("few_shot", 0.1), ("json", 0.1)
    ]  # fmt: skip
    assert found[2]["kv_tokens"] > 1000  # a tenth is less than its largest row needs
    assert f"KV cache of 10%, raised to {found[2]['kv_tokens']} tokens" in out.stderr
    assert found[0]["compiled_computed"] == found[0]["eager_computed"]
    assert found[1]["compiled_computed"] < found[1]["eager_computed"]  # one call, not six
    unknown = invoke("bench", "programs", "nothing", "--model", "fake", code=2)
    assert "there is no benchmark 'nothing'" in unknown.stderr


@pytest.mark.model
def test_a_program_is_measured_beside_transformers(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = WORKLOADS["chat"]
    talks = tuple({"turns": row["turns"][:2]} for row in chat.rows[:2])
    monkeypatch.setitem(WORKLOADS, "chat", replace(chat, rows=talks))
    out = invoke("bench", "chat", "--repeats", "1")
    (line,) = [line for line in out.stdout.splitlines() if line.startswith("| chat ")]
    found = re.search(r"prompt tokens (\d+) sent, (\d+) computed \(peer (\d+)\)", line)
    assert found is not None, line
    sent, computed, theirs = map(int, found.groups())
    assert computed < theirs < sent  # the peer keeps only what all talks begin with
    assert re.search(r" s \| [\d.]+ s \| [\d.]+ \|", line), "both were measured"
