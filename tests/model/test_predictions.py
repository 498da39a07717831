"""What a dry run predicts is what the real model's engine counts, with little and much memory."""

from __future__ import annotations

import pytest

import lmc
from lmc.bench.workloads import WORKLOADS
from lmc.runtime.prediction import counters_of
from tests.unit.runtime.test_predictions import ESSAYS, graded

pytestmark = pytest.mark.model


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("name", ["fewshot", "graded"])
def test_what_was_predicted_is_what_was_counted(name: str, share: float) -> None:
    program, rows = graded, ESSAYS
    if name == "fewshot":
        program, rows = WORKLOADS["fewshot"].program, list(WORKLOADS["fewshot"].rows[:6])
    with lmc.Engine() as engine:
        whole = program.predict(rows, engine=engine).most.computed_tokens
    smallest = 1_000 if name == "fewshot" else 300
    with lmc.Engine(kv_tokens=max(int(share * whole), smallest)) as engine:
        prediction = program.predict(rows, engine=engine)
        program.run_batch(rows, engine=engine, on_error="raise")
        assert prediction.reasons == ()
        assert prediction.least == prediction.most == counters_of(engine.stats)
