"""Compiled = eager: the same tokens for every program, level, batch, order and cache state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from lmc.ir import parse
from lmc.ir.core import Program
from tests.differential import SETTINGS, TEXTS, Setting, check_program, main, run_piece
from tests.programs import BODIES

EXAMPLES = int(os.environ.get("LMC_DIFFERENTIAL_EXAMPLES", "150"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=BODIES, texts=TEXTS, how=SETTINGS)
def test_compiled_batches_equal_eager_runs_alone(
    body: tuple[object, ...], texts: list[str], how: Setting
) -> None:
    check_program(body, texts, how)


class Found(BaseException):
    """A difference; Hypothesis, which writes long reports of failures, does not stop this one."""


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from lmc.passes.canonicalize import Canonicalize

    right = Canonicalize.run

    def wrong(self: Canonicalize, program: Program) -> Program:
        text = str(right(self, program))
        return parse(text.replace('"is it"', '"was it"'))

    def check(body: tuple[object, ...], texts: list[str], how: Setting) -> None:
        try:
            check_program(body, texts, how)
        except AssertionError as error:
            raise Found from error

    monkeypatch.setattr(Canonicalize, "run", wrong)
    monkeypatch.setattr("tests.differential.check_program", check)
    with pytest.raises(Found):
        run_piece(first=0, piece=0, count=60)


def test_the_long_proof_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.differential.PIECE", 2)
    done = tmp_path / "done"
    assert main(["2", "5", "--done", str(done)]) == 0
    assert main(["4", "5", "--done", str(done)]) == 0
    out, err = capsys.readouterr()
    assert "4 programs" in out.splitlines()[-3]
    assert err == "piece 0: 2 programs\npiece 1: 2 programs\n"
    assert len(done.read_text().splitlines()) == 2
