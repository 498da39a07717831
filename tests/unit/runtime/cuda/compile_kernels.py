"""Compile every kernel for sm_90, without a GPU: run by `test_compile.py` in a process of its own.

Prints a line a kernel: its name and how much shared memory a block takes.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from triton.runtime.jit import JITFunction

import lmc.runtime.cuda
from lmc.runtime.cuda.compiling import LLAMA_8B, compile_kernels

MOST_SHARED = 227 << 10  # bytes that a block can have on sm_90

QWEN3 = replace(
    LLAMA_8B, family="qwen3", qk_norm=True, vocab_size=151_936, intermediate_size=12_288
)
SMALL = replace(  # sizes that are no powers of two, and few tokens to look back on
    LLAMA_8B, family="mistral", vocab_size=49_152, hidden_size=576, intermediate_size=1536, heads=9,
    kv_heads=3, head_dim=64, sliding_window=1000, tied=True,
)  # fmt: skip


def kernels() -> set[str]:
    """The names of all kernels that modules give to others."""
    names = set()
    for path in Path(lmc.runtime.cuda.__path__[0]).glob("*_kernel*.py"):
        module = import_module(f"lmc.runtime.cuda.{path.stem}")
        names |= {name for name in module.__all__ if isinstance(getattr(module, name), JITFunction)}
    return names


def main() -> None:
    found = [
        *compile_kernels(LLAMA_8B, capability=90),
        *compile_kernels(QWEN3, capability=90, deterministic=True),
        *compile_kernels(SMALL, capability=90, dtype="float16"),
        *compile_kernels(LLAMA_8B, capability=90, dtype="float32"),
    ]
    for one in found:
        print(f"{one.name:16} {one.shared:7} bytes of shared memory")
        assert one.shared <= MOST_SHARED, one
    missing = kernels() - {one.name for one in found}
    assert not missing, f"never compiled: {missing}"


if __name__ == "__main__":
    main()
