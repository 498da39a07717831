"""`lmc model`, and what `lmc doctor` says of models and libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmc.commands.model import size
from lmc.errors import ModelError

from .conftest import Invoke


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_list(invoke: Invoke) -> None:
    out = invoke("model", "list").stdout
    assert "smollm2-135m" in out
    assert "not fetched" in out
    held = json.loads(invoke("model", "list", "--json").stdout)
    assert [(one["name"], one["cached"]) for one in held] == [
        ("smollm2-135m", False),
        ("fake", True),
    ]


def test_show(invoke: Invoke) -> None:
    out = invoke("model", "show", "fake").stdout
    assert "vocab_size: 512" in out
    assert "adds_bos: no" in out
    assert json.loads(invoke("model", "show", "fake", "--json").stdout)["kind"] == "fake"
    assert "lmc model pull smollm2-135m" in invoke("model", "show", "smollm2-135m").stdout
    assert "nonsense" in invoke("model", "show", "nonsense", code=2).stderr


def test_pull_of_an_unknown_name(invoke: Invoke) -> None:
    assert "known models are" in invoke("model", "pull", "smollm", code=2).stderr


def test_pull_of_what_needs_no_fetching(invoke: Invoke, tmp_path: Path) -> None:
    assert "nothing is fetched" in invoke("model", "pull", "fake", code=2).stderr
    assert "is here already" in invoke("model", "pull", str(tmp_path), code=2).stderr


def test_a_fetch_that_fails_is_no_wrong_usage(
    invoke: Invoke, greet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object) -> None:
        raise ModelError("smollm2-135m cannot be fetched", hint="lmc model pull smollm2-135m")

    monkeypatch.setattr("lmc.runtime.fetch.fetch", offline)
    for args in (["model", "pull", "smollm2-135m"], ["run", greet]):
        first, hint = invoke(*args, code=1).stderr.splitlines()
        assert first == "error: smollm2-135m cannot be fetched"
        assert "lmc model pull" in hint


def test_pull_prints_the_path(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmc.runtime.fetch.fetch", lambda *_: Path("/there/model.gguf"))
    assert invoke("model", "pull", "smollm2-135m").stdout == "/there/model.gguf\n"


def test_doctor_says_what_is_missing(invoke: Invoke, empty_cache: Path) -> None:
    out = invoke("doctor").stdout
    for word in ("lmc", "python", "torch", "device", "numba", str(empty_cache)):
        assert word in out
    assert "-> lmc model pull smollm2-135m" in out
    assert "1 to mend" in out


def test_doctor_without_torch(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else found(name)
    )
    assert "-> pip install torch" in invoke("doctor").stdout


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "-"), (1, "1 B"), (1500, "2 kB"), (98_362_432, "98 MB"), (7_000_000_000, "7.0 GB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
