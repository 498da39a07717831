"""What there is when a program starts is not looked at again; what comes later is."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lmc.cli import app, main
from lmc.runtime.long_lived import spared_collections


class Thing:
    me: Thing


def test_collections_see_only_what_is_made_later() -> None:
    garbage = Thing()
    garbage.me = garbage
    gone = weakref.ref(garbage)
    kept = [Thing() for _ in range(1000)]
    del garbage
    with spared_collections():
        assert gone() is None  # what was garbage is not kept
        assert not {id(thing) for thing in kept} & {id(thing) for thing in gc.get_objects()}
        later = Thing()
        later.me = later
        gone = weakref.ref(later)
        del later
        gc.collect()
        assert gone() is None
    assert gc.get_freeze_count() == 0


def test_a_run_keeps_what_there_is_out_of_collections(tmp_path: Path) -> None:
    path = tmp_path / "hello.py"
    path.write_text(
        "import gc, lmc\n"
        "@lmc.jit\n"
        "def hello(s):\n"
        "    s += 'Hi' + lmc.gen('x', max_tokens=1)\n"
        "    s.set('frozen', lmc.call(gc.get_freeze_count))\n"
    )
    done = CliRunner().invoke(app, ["run", str(path), "--model", "fake", "--json"])
    assert json.loads(done.stdout)["variables"]["frozen"] > 10_000
    assert gc.get_freeze_count() == 0


def test_a_process_of_ours_collects_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_threshold()
    monkeypatch.setattr(sys, "argv", ["lmc", "--version"])
    try:
        with pytest.raises(SystemExit):
            main()
        assert gc.get_threshold() == (10_000, *before[1:])
    finally:
        gc.set_threshold(*before)
