"""Faults that were reported of systems like this one, where no other page of tests has them."""

from __future__ import annotations

import json
import linecache
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lmc
from lmc.errors import ModelError, UsageError
from lmc.frontend.dsl import State
from lmc.runtime.kv_memory import KVMemory
from lmc.runtime.request import keys_of
from lmc.runtime.sequence import TokenSequence
from lmc.runtime.stats import EngineStats
from tests.unit.cli.conftest import ROOT

# ------------------------------------------------------------------------------- prefix cache


def test_what_two_share_is_counted_once_b_78(fake: lmc.Engine) -> None:
    prompts = [f"{'a shared beginning ' * 5}{end}" for end in ("one", "two", "one")]
    for prompt in prompts:
        fake.generate([prompt], max_tokens=3)
        while fake.core.has_work:
            time.sleep(0.001)
        held = fake.core.statistics()
        assert held["free"] + held["cache_held"] == held["capacity"]
        assert held["cache_pinned"] == 0
        fake.core.audit()


def test_a_token_more_evicts_nothing_while_there_is_room_b_85() -> None:
    stats = EngineStats()
    memory = KVMemory(80, stats)
    prefix = keys_of(np.arange(63), made=False)
    for length in (63, 64):
        keys = keys_of(np.arange(length), made=False)
        sequence = TokenSequence(keys, 0)
        memory.begin(sequence, length)
        memory.place_prompt(sequence, memory.take(length - sequence.placed))
        sequence.computed = sequence.placed
        memory.settle()
        memory.let_go(sequence, length, np.empty(0, np.int32))
    assert stats.evicted_tokens == 0
    assert memory.cache.match(prefix) == 63
    assert len(memory.pool) == 80 - 64


# ---------------------------------------------------------------------- Python around programs


def test_a_program_without_source_is_traced_b_109(fake: lmc.Engine) -> None:
    space: dict[str, object] = {"lmc": lmc}
    exec(
        "@lmc.jit\ndef p(s, x):\n    s += f'{x}: '\n    s += lmc.gen('a', max_tokens=4)\n"
        "    if 'e' in s['a']:\n        s += lmc.gen('b', max_tokens=3)\n",
        space,
    )
    program = space["p"]
    assert isinstance(program, lmc.Program)
    for x in ("one", "two", "three"):
        assert program.run(x=x).text == program.run(x=x, eager=True).text


def test_a_program_typed_at_the_prompt_of_python_b_109() -> None:
    typed = (
        "import lmc\n"
        "@lmc.jit\ndef p(s):\n    s += 'x: '\n    s += lmc.gen('a', max_tokens=3)\n\n"
        "e = lmc.Engine('fake')\n"
        "print(p.run(engine=e).text == p.run(engine=e, eager=True).text)\n"
        "e.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=typed, capture_output=True, text=True, cwd=ROOT,
        timeout=120, check=False,
    )  # fmt: skip
    assert "True" in done.stdout, done.stderr


def test_a_cell_that_is_changed_and_run_again_b_111(fake: lmc.Engine) -> None:
    texts = []
    for word in ("first", "second"):
        cell = f"@lmc.jit\ndef p(s, x):\n    s += f'{word} {{x}}: '\n    s += lmc.gen('a', 3)\n"
        name = "<cell 1>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        space: dict[str, object] = {"lmc": lmc}
        exec(compile(cell, name, "exec"), space)
        program = space["p"]
        assert isinstance(program, lmc.Program)
        texts.append(program.run(x="it").text)
        assert texts[-1] == program.run(x="it", eager=True).text
    assert texts[0].startswith("first it: ")
    assert texts[1].startswith("second it: ")


@lmc.jit
def shout(s: State, x: str) -> str:
    s += x
    s += lmc.gen("a", max_tokens=3)
    return s["a"].upper()


def _in_a_process(program: lmc.Program, x: str) -> str:
    with lmc.Engine("fake") as engine:
        out = program.run(engine=engine, x=x)
        return f"{out.text} {out.value}"


def test_programs_go_to_other_processes_b_114(fake: lmc.Engine) -> None:
    out = shout.run(x="bees")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_in_a_process, (shout, "bees")) == f"{out.text} {out.value}"


@pytest.mark.parametrize("eager", [False, True])
def test_braces_are_text_b_115(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def braces(s: State, x: str) -> None:
        s += f'{{"a": {x}}} {{x}} {{{{'
        s += lmc.gen("v", max_tokens=2)

    out = braces.run(x="{y}", eager=eager)
    assert out.text == '{"a": {y}} {x} {{' + out["v"]


@pytest.mark.parametrize("eager", [False, True])
def test_every_way_gives_what_the_function_gives_b_117(fake: lmc.Engine, eager: bool) -> None:
    @lmc.jit
    def ways(s: State, q: str) -> None:
        s += lmc.user(q)
        with s.assistant():
            s += lmc.select("a", ["x", "y"])
        if s["a"] == "x":
            s += lmc.user("why x?")
        else:
            s += lmc.user("why y?")
        forks = s.fork(2)
        for fork in forks:
            with fork.assistant():
                fork += lmc.gen("b", max_tokens=4, temperature=1.0)
        forks.join()
        s += lmc.user(" ".join(s["b"]))

    taken = set()
    for q in ("one", "two", "three", "four", "five"):
        out = ways.run(q=q, eager=eager)
        taken.add(out["a"])
        assert out.text.count("why ") == 1
        assert f"why {out['a']}?" in out.text
        assert q in out.text
        assert " ".join(out["b"]) in out.text
    assert taken == {"x", "y"}


def test_a_model_that_is_not_there_is_an_error_f_10(tmp_path: Path) -> None:
    with pytest.raises((ModelError, UsageError), match="my-model"):
        lmc.Engine("my-org/my-model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError):  # without a tokenizer there is no template to guess
        lmc.Engine(str(tmp_path))


def test_a_text_goes_on_after_it_matches_f_16(fake: lmc.Engine) -> None:
    @lmc.jit
    def again(s: State, x: str) -> None:
        s += x
        s += lmc.gen("v", regex="(ab)+", max_tokens=8)

    assert any(len(again.run(x=x)["v"]) > 2 for x in "abcdef")
