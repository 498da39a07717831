"""Compile the kernels as a runner launches them, with a device or without one.

A runner of a model's real sizes is made on torch's "meta" device, where tensors have shapes and no
memory, and launches everything once; Triton compiles what it is asked for and starts nothing.

Promises    the types, constants and alignments are those of real launches, since they are made by
            the same lines of the runner and specialized by Triton's own code.
Costs       some seconds, or a tenth of one where Triton's cache has the kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda.runner import CudaRunner
from lmc.runtime.weights import weight_shapes

__all__ = ["LLAMA_8B", "Compiled", "compile_kernels"]

LLAMA_8B = ModelConfig(
    family="llama",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    layers=2,
    heads=32,
    kv_heads=8,
    head_dim=128,
    context_length=8192,
)
"""The shapes of Llama-3.1-8B; two layers have all kernels."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel in one of the forms that were launched.

    Attributes:
        signature: its arguments' types, and its constants.
        shared: bytes of shared memory that a block takes.
    """

    name: str
    signature: str
    shared: int


def compile_kernels(
    config: ModelConfig = LLAMA_8B,
    *,
    capability: int | None = None,
    dtype: str = "bfloat16",
    deterministic: bool = False,
) -> list[Compiled]:
    """Compile all kernels that a model needs.

    Args:
        capability: of the device to compile for, such as 90; None for the one that is there.

    Raises:
        Exception: what Triton raises for a kernel that cannot be compiled.
    """
    with _compiling(capability) as found, torch.inference_mode():
        weights = {
            name: torch.empty(shape, device="meta") for name, shape in weight_shapes(config).items()
        }
        runner = _Rehearsal(
            config, weights, dtype=dtype, device="meta", kv_tokens=1024, deterministic=deterministic
        )
        runner.rehearse()
    return list(found.values())


class _Rehearsal(CudaRunner):
    """A runner that launches everything once and gives nothing."""

    def rehearse(self) -> None:
        for step in self._steps_of_all_kinds():
            self._launch_all(step)
        # graphs of one row, of few and of many: numbers of rows are constants where they are one
        for bucket in (*self._buckets[:2], self._buckets[-1]):
            for wide in (True,) if self.deterministic else (False, True):
                self._capture(bucket, wide)

    def _record(self, compute: Callable[[], None]) -> Any:  # noqa: ANN401 - no graph at all
        compute()


class _NoDevice:
    """What Triton asks of a driver before it launches."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return -self._capability  # compiled kernels are kept by device: not among real ones

    def get_current_stream(self, device: int) -> int:
        return device


@contextlib.contextmanager
def _compiling(capability: int | None) -> Iterator[dict[tuple[str, str], Compiled]]:
    """Launches compile only; what they compiled, by name and signature."""
    found: dict[tuple[str, str], Compiled] = {}
    kind: Any = triton.runtime.jit.JITFunction
    launch = kind.run

    def run(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:  # noqa: ANN401
        del warmup
        kernel = launch(function, *arguments, grid=grid, warmup=True, **options)
        source = kernel.src
        names = function.arg_names
        parts = [f"{name}:{of}" for name, of in source.signature.items() if of != "constexpr"]
        parts += [f"{names[at]}={value}" for (at,), value in source.constants.items()]
        compiled = Compiled(function.__name__, " ".join(parts), kernel.metadata.shared)
        found[compiled.name, compiled.signature] = compiled

    config: Any = triton.runtime.driver
    before = config._active
    kind.run = run
    try:
        if capability is not None:
            config.set_active(_NoDevice(capability))
        yield found
    finally:
        kind.run = launch
        config._active = before
