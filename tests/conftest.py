"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lmc


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="record what the code now gives")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def fake() -> Iterator[lmc.Engine]:
    """An engine on the fake model, in use."""
    with lmc.Engine("fake") as engine, lmc.use(engine):
        yield engine
        engine.core.audit()
