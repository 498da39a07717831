"""The schedule against LRU eviction with longest prefix match, simulated and on the real engine."""

from __future__ import annotations

import pytest

from benchmarks.cache_simulator import WORKLOADS, measure

ROUNDING = 1e-9


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_schedule_finds_what_can_be_found(name: str) -> None:
    quarter, half, whole = measure(name)
    assert whole.tokens > half.tokens >= quarter.tokens
    for rates in (quarter, half, whole):
        # one call after another
        assert rates.planned >= rates.lru_lpm - ROUNDING
        assert rates.optimum + ROUNDING >= rates.furthest >= rates.planned - ROUNDING
        # many at a time
        assert rates.engine >= rates.engine_lpm - ROUNDING
        assert rates.engine >= 0.99 * rates.optimum
    assert whole.planned >= 0.99 * whole.optimum


def test_the_rival_loses_what_the_schedule_keeps() -> None:
    _, half, _ = measure("chat")
    assert half.engine > half.engine_lpm + 0.02
