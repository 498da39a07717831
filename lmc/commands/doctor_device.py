"""What `lmc doctor` finds of the device: CUDA, driver, Triton and its kernels, FlashInfer."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.commands.model import size

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DeviceFacts", "Line", "device_facts", "device_lines", "version_of"]

Line = tuple[str, str, str | None]  # what, what was found, the command that mends it

SM_90 = 90  # compiled for where there is no device
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class DeviceFacts:
    """What is known before kernels are tried.

    Attributes:
        name: of the first device; None if torch finds none.
        count: of devices.
        capability: of the first, 90 for 9.0.
        free, total: bytes of its memory.
        built_for: the CUDA version that torch was built for; None for a torch of the CPU.
        driver: its version; None if there is none.
        driver_cuda: the newest CUDA version that the driver knows.
        triton, flashinfer: versions; None if not installed.
    """

    name: str | None = None
    count: int = 0
    capability: int = 0
    free: int = 0
    total: int = 0
    built_for: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    triton: str | None = None
    flashinfer: str | None = None


def version_of(package: str) -> str | None:
    """The version of an installed package."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def device_facts() -> DeviceFacts:
    """Ask torch, the driver and the installed packages."""
    import torch

    known: dict[str, Any] = {
        "built_for": torch.version.cuda,
        "driver": _driver(),
        "triton": version_of("triton"),
        "flashinfer": version_of("flashinfer-python"),
    }
    if not torch.cuda.is_available():
        return DeviceFacts(**known)
    major, minor = torch.cuda.get_device_capability()
    free, total = torch.cuda.mem_get_info()
    cuda: int = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined] # 13000 for 13.0
    return DeviceFacts(
        name=torch.cuda.get_device_name(),
        count=torch.cuda.device_count(),
        capability=10 * major + minor,
        free=free,
        total=total,
        driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        **known,
    )


def _driver() -> str | None:
    """The version of NVIDIA's kernel module, as Linux tells it."""
    try:
        found = re.search(r"\s(\d+\.[\d.]+)\s", _DRIVER.read_text())
    except OSError:
        return None
    return found[1] if found else None


def device_lines(facts: DeviceFacts, kernels: bool) -> Iterator[Line]:
    """What to print.

    Args:
        kernels: compile the kernels even if there is no device.
    """
    yield from _device(facts)
    if facts.name is None and not kernels:
        found = f"triton {facts.triton}, not tried" if facts.triton else "those of the CPU"
        yield "kernels", f"{found} (only GPUs need them)", None
    elif facts.triton is None:
        yield "kernels", "triton is missing", "pip install 'lmc[cuda]'"
    else:
        yield _kernels(facts)
    if facts.name is not None:
        found = f"flashinfer {facts.flashinfer}" if facts.flashinfer else "no flashinfer"
        yield "attention", f"triton, {found}", None
    if facts.triton:
        yield "compiled", _compiled(), None


def _device(facts: DeviceFacts) -> Iterator[Line]:
    driver = f"driver {facts.driver or 'of unknown version'}"
    if facts.name is not None:
        more = f", the first of {facts.count}" if facts.count > 1 else ""
        architecture = f"sm_{facts.capability}"
        memory = f"{size(facts.free)} of {size(facts.total)} free"
        yield "device", f"cuda: {facts.name}{more}, {architecture}, {memory}", None
        versions = f"torch is built for {facts.built_for}, the {driver} knows {facts.driver_cuda}"
        yield "cuda", versions, None
    elif facts.driver and facts.built_for is None:
        yield (
            "device",
            f"cpu: there is an NVIDIA {driver}, but this torch is one without CUDA",
            "pip install --force-reinstall torch",
        )
    elif facts.built_for is None:
        yield "device", "cpu (this torch is one without CUDA)", None
    elif os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        yield "device", "cpu (CUDA_VISIBLE_DEVICES leaves no CUDA device)", None
    elif facts.driver:
        yield (
            "device",
            f"cpu: torch, built for CUDA {facts.built_for}, finds no device with {driver}",
            "nvidia-smi",
        )
    else:
        yield "device", f"cpu (torch is built for CUDA {facts.built_for}; no NVIDIA driver)", None


def _kernels(facts: DeviceFacts) -> Line:
    """Compile all kernels, and run one if there is a device."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "kernels", "TRITON_INTERPRET is set: they are not compiled", "unset TRITON_INTERPRET"
    target = facts.capability or SM_90
    start = time.perf_counter()
    try:
        from lmc.runtime.cuda.compiling import compile_kernels

        found = compile_kernels(capability=None if facts.name else target)
        if facts.name:
            _run_one()
    except Exception as error:  # of any kind: of Triton, LLVM, ptxas or the driver
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        mend = "pip install --upgrade 'lmc[cuda]'"
        if "compiler" in reason.lower():  # Triton builds the code that starts a kernel
            mend = "install a C compiler, such as gcc, or name one in CC"
        return "kernels", f"triton {facts.triton}, cannot be used on sm_{target}: {reason}", mend
    kinds = len({one.name for one in found})
    seconds = time.perf_counter() - start
    told = f"{kinds} kernels in {len(found)} forms compile for sm_{target} ({seconds:.1f} s)"
    return "kernels", f"triton {facts.triton}, {told}", None


def _run_one() -> None:
    """Start a small kernel and compare what it gives.

    Raises:
        RuntimeError: it gives something else.
    """
    import torch

    from lmc.runtime.cuda.row_kernels import silu_mul

    x = torch.linspace(-4, 4, 64, device="cuda").reshape(2, 32)
    out: Tensor = torch.empty(2, 16, device="cuda")
    kernel: Any = silu_mul
    kernel[(2, 1)](x, out, 16, BLOCK=16)
    expected = torch.nn.functional.silu(x[:, :16]) * x[:, 16:]
    if not torch.allclose(out, expected, atol=1e-5):
        raise RuntimeError("a kernel computes something else than torch")


def _compiled() -> str:
    """The folder of compiled kernels, and how much is in it."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{folder}, {size(total)}"
