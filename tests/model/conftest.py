"""The real model and its oracle, made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lmc
from tests.oracle import Oracle

pytestmark = pytest.mark.model


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    from lmc.runtime.store import resolve

    path = resolve("smollm2-135m").path
    assert path is not None
    return Oracle(path)


@pytest.fixture(scope="session")
def roomy() -> Iterator[lmc.Engine]:
    """Float32, with room for everything."""
    with lmc.Engine(dtype="float32") as engine:
        yield engine
        engine.core.audit()


@pytest.fixture(scope="session")
def tight() -> Iterator[lmc.Engine]:
    """Float32, with so little room that rows are evicted and retracted, and prompts cut up."""
    with lmc.Engine(dtype="float32", kv_tokens=900, max_batch_tokens=23) as engine:
        yield engine
        engine.core.audit()
