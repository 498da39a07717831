"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import settings

import lmc

settings.register_profile("lmc", deadline=None)  # machines are shared: times say little
settings.load_profile("lmc")

gc.set_threshold(10_000)  # as `lmc` itself does: a tenth of the time went into collections

os.environ["LMC_CACHE"] = "0"  # no test sees what another one left; those of the cache turn it on

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell script:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes of tests are sent it

if not Path("/dev/nvidiactl").exists() or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU; read when triton is imported


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
        audited: Future[None] = Future()

        def audit() -> None:
            try:
                audited.set_result(engine.core.audit())
            except BaseException as error:
                audited.set_exception(error)

        engine.executor.post(audit)  # not from here: rows that nobody waits for may still run
        audited.result(60)
