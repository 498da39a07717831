"""What `lmc doctor` says of GPUs, also those that are not here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmc.commands import doctor_device
from lmc.commands.doctor_device import DeviceFacts, Line, device_lines

from .conftest import Invoke

H200 = DeviceFacts(
    name="NVIDIA H200", count=2, capability=90, free=139_000_000_000, total=150_000_000_000,
    built_for="13.0", driver="580.82.07", driver_cuda="13.0", triton="3.6.0",
)  # fmt: skip


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The capabilities that kernels are compiled for; they are not."""
    pytest.importorskip("triton")
    asked: list[Any] = []

    def compile_kernels(*, capability: int | None) -> list[Any]:
        from lmc.runtime.cuda.compiling import Compiled

        asked.append(capability)
        return [Compiled("norm_rows", kind, 0) for kind in "ab"]

    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("lmc.runtime.cuda.compiling.compile_kernels", compile_kernels)
    monkeypatch.setattr(doctor_device, "_run_one", lambda: asked.append("run"))
    return asked


def lines(facts: DeviceFacts, kernels: bool = False) -> dict[str, Line]:
    return {line[0]: line for line in device_lines(facts, kernels)}


def test_a_gpu_with_all_that_it_needs(tried: list[Any], tmp_path: Path) -> None:
    (tmp_path / "kernel.cubin").write_bytes(bytes(2000))
    told = lines(replace(H200, flashinfer="0.6.1"))
    assert told["device"][1] == (
        "cuda: NVIDIA H200, the first of 2, sm_90, 139.0 GB of 150.0 GB free"
    )
    assert told["cuda"][1] == "torch is built for 13.0, the driver 580.82.07 knows 13.0"
    assert told["kernels"][1].startswith("triton 3.6.0, 1 kernels in 2 forms compile for sm_90 (")
    assert told["attention"][1] == "triton, flashinfer 0.6.1"
    assert told["compiled"][1] == f"{tmp_path}, 2 kB"
    assert all(mend is None for _, _, mend in told.values())
    assert tried == [None, "run"], "for the device that is there"


@pytest.mark.parametrize(
    ("error", "reason", "mend"),
    [
        (RuntimeError("Failed to find C compiler.\nSet CC"), "Failed to find C compiler.", "gcc"),
        (ValueError(), "ValueError", "pip install --upgrade 'lmc[cuda]'"),
    ],
)
def test_kernels_that_cannot_be_used(
    tried: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, mend: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(doctor_device, "_run_one", fail)
    _, found, way = lines(H200)["kernels"]
    assert found == f"triton 3.6.0, cannot be used on sm_90: {reason}"
    assert way is not None
    assert mend in way


def test_kernels_without_a_gpu_are_compiled_if_that_is_wanted(tried: list[Any]) -> None:
    nothing = DeviceFacts(triton="3.6.0")
    assert lines(nothing)["kernels"][1] == "triton 3.6.0, not tried (only GPUs need them)"
    assert not tried
    assert "compile for sm_90" in lines(nothing, kernels=True)["kernels"][1]
    assert tried == [90]


def test_an_interpreter_compiles_nothing(tried: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert lines(H200)["kernels"][2] == "unset TRITON_INTERPRET"
    assert not tried


@pytest.mark.parametrize(
    ("facts", "found", "mend"),
    [
        ({"triton": None}, "triton is missing", "pip install 'lmc[cuda]'"),
        ({"name": None, "triton": None}, "those of the CPU (only GPUs need them)", None),
    ],
)
def test_without_triton(facts: dict[str, Any], found: str, mend: str | None) -> None:
    told = lines(replace(H200, **facts))
    assert told["kernels"] == ("kernels", found, mend)
    assert "compiled" not in told


@pytest.mark.parametrize(
    ("built_for", "driver", "hidden", "found", "mends"),
    [
        (None, None, False, "cpu (this torch is one without CUDA)", False),
        (None, "580.82", False, "there is an NVIDIA driver 580.82, but this torch is one", True),
        ("13.0", None, False, "(torch is built for CUDA 13.0; no NVIDIA driver)", False),
        ("13.0", "580.82", False, "finds no device with driver 580.82", True),
        ("13.0", "580.82", True, "CUDA_VISIBLE_DEVICES leaves no CUDA device", False),
    ],
)
def test_why_there_is_no_device(
    built_for: str | None,
    driver: str | None,
    hidden: bool,
    found: str,
    mends: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _, told, mend = lines(DeviceFacts(built_for=built_for, driver=driver))["device"]
    assert found in told
    assert (mend is not None) is mends


def test_the_driver_is_asked_of_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(doctor_device, "_DRIVER", file)
    assert doctor_device._driver() is None
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n"
    )
    assert doctor_device._driver() == "580.82.07"


def test_doctor_finds_what_is_here(invoke: Invoke) -> None:
    out = invoke("doctor").stdout
    assert "device       " in out
    assert "kernels      " in out


def test_doctor_without_torch_says_nothing_of_devices(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Callable[[str], Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "torch" else found(n))
    assert "kernels" not in invoke("doctor").stdout
