"""`lmc bench gpu --peer FILE`: another engine's figures beside lmc's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lmc.bench.cpu import Figure, Report
from lmc.bench.gpu import gpu_markdown
from lmc.bench.peer_lines import PeerLines, beside, read_peer
from lmc.errors import UsageError
from tests.unit.cli.conftest import Invoke

REPORT = Report(
    (
        Figure("decode-64", "ms", 5.0, note="a step"),
        Figure("judge", "programs/s", 30.0, note="n"),
        Figure("agent", "programs/s", 9.0, note="not in the file"),
    ),
    {"torch": "x"},
)
LINES = [
    {"engine": "other", "version": "1.2", "measure": "start", "s": 70},
    {"engine": "other", "version": "1.2", "measure": "decode", "batch": 64, "ms_per_step": 10.0},
    {"engine": "other", "version": "1.2", "workload": "judge", "scale": 1.0, "programs_per_s": 20},
]


def lines(path: Path, *objects: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(o) + "\n" for o in objects), encoding="utf-8")
    return path


def test_each_kind_of_line_is_the_figure_of_the_same_work(tmp_path: Path) -> None:
    found = read_peer(
        lines(
            tmp_path / "p.jsonl",
            {"measure": "decode", "batch": 1, "ms_per_step": 4.5, "cached_first_token_ms": 9.5},
            {"measure": "decode", "batch": 256, "ms_per_step": 20.0, "cached_first_token_ms": 70},
            {"measure": "decode", "batch": 8},  # not one of lmc's
            {"measure": "prefill", "prompts": 4, "tokens": 8192, "tok_per_s": 99999.0},
            {"measure": "prefill", "prompts": 1, "tokens": 1024, "tok_per_s": 88888.0},
            {"measure": "prefill", "prompts": 1, "tokens": 8192, "tok_per_s": 40000.0},
            {"workload": "chat_endless", "programs_per_s": 1.0},  # not one of lmc's
            {"workload": "agent", "scale": 0.25, "programs_per_s": 99.0},
            {"workload": "agent", "scale": 1.0, "programs_per_s": 20.0},
        )
    )
    assert found == PeerLines(
        "the peer",
        {"decode-1": 4.5, "cached": 9.5, "decode-256": 20.0, "prefill": 40000.0, "agent": 20.0},
    )


def test_the_best_of_several_runs_counts(tmp_path: Path) -> None:
    found = read_peer(
        lines(
            tmp_path / "p.jsonl",
            {"workload": "json", "programs_per_s": 20.0},
            {"workload": "json_primed", "programs_per_s": 44.0},
            {"workload": "json", "programs_per_s": 21.0},
            {"measure": "decode", "batch": 64, "ms_per_step": 7.0},
            {"measure": "decode", "batch": 64, "ms_per_step": 6.0},
            {"measure": "decode", "batch": 64, "ms_per_step": 8.0},
        )
    )
    assert found.figures == {"json": 44.0, "decode-64": 6.0}


def test_a_program_of_another_size_is_another_figure(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "p.jsonl",
        {"workload": "judge", "scale": 0.5, "programs_per_s": 9.0},
        {"workload": "judge", "programs_per_s": 20.0},
    )
    assert read_peer(path, 0.5).figures == {"judge": 9.0}
    assert read_peer(path).figures == {"judge": 20.0}


def test_figures_are_shown_beside_each_other(tmp_path: Path) -> None:
    report = beside(REPORT, read_peer(lines(tmp_path / "p.jsonl", *LINES)))
    table = gpu_markdown(report)
    assert "| decode-64 | 5 ms | 10 ms | 2.00 | a step |" in table
    assert "| judge | 30 programs/s | 20 programs/s | 1.50 | n |" in table
    assert "| agent | 9 programs/s |  |  | not in the file |" in table
    assert "* peer: other 1.2" in table
    assert "| peer |" not in gpu_markdown(REPORT)


def test_the_command_reads_them(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.bench.gpu.run_gpu", lambda *args, **options: REPORT)
    path, out = lines(tmp_path / "p.jsonl", *LINES), tmp_path / "out.json"
    shown = invoke("bench", "gpu", "--peer", str(path), "--json", str(out)).stdout
    assert "| judge | 30 programs/s | 20 programs/s | 1.50 | n |" in shown
    written = json.loads(out.read_text())
    assert written["circumstances"]["peer"] == "other 1.2"
    assert [(f["peer"], f["ratio"]) for f in written["figures"]] == [
        (10.0, 2.0), (20, 1.5), (None, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"workload": "judge"}', "'programs_per_s' of judge is None, not a number above 0 ("),
        ('\n{"measure": "decode", "batch": 1, "ms_per_step": 0}', ".jsonl:2)"),
        ('{"measure": "decode", "batch": 64, "ms_per_step": true}', "is True, not a number"),
        ('{"measure": "decode", "batch": 64, "ms_per_step": NaN}', "is nan, not a number"),
        ("| judge | 30 |", "a peer's line is not JSON: Expecting value"),
        ("[1, 2]", "a peer's line is [1, 2], not a JSON object"),
        ("", "has no figure that lmc has at scale 1"),
        ('{"workload": "chat_endless", "programs_per_s": 1}', "has no figure that lmc has"),
        (
            '{"engine": "a", "version": "1", "workload": "judge", "programs_per_s": 1}\n'
            '{"engine": "b", "workload": "judge", "programs_per_s": 1}',
            "has lines of several engines: a 1, b",
        ),
    ],
)
def test_what_is_no_peer_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_peer(path)
    assert problem in str(caught.value)


def test_the_command_refuses_before_it_measures(invoke: Invoke, tmp_path: Path) -> None:
    absent = invoke("bench", "gpu", "--peer", str(tmp_path / "no.jsonl"), code=2)
    assert "no.jsonl cannot be read: No such file" in absent.stderr
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "it is not UTF-8" in invoke("bench", "gpu", "--peer", str(binary), code=2).stderr
    for names in ((), ("cpu",), ("programs",)):
        out = invoke("bench", *names, "--peer", str(binary), code=2)
        assert "--peer FILE goes with gpu" in out.stderr
