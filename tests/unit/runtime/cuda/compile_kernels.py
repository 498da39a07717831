"""Compile every kernel for sm_90, without a GPU: run by `test_compile.py` in a process of its own.

Prints a line a kernel: its name and how much shared memory it takes.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from lmc.runtime.cuda import attention_kernels, product_kernel, row_kernels, sampling_kernels

TARGET = GPUTarget("cuda", 90, 32)
LLAMA = {"HEADS": 32, "KV_HEADS": 8, "DIM": 128}


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: int) -> None:
    source = triton.compiler.ASTSource(
        fn=kernel,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={  # as for tensors: without it loads are narrow, and loops cannot run ahead
            (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
            for name, kind in types.items()
            if kind.startswith("*")
        },
    )
    made = triton.compile(source, target=TARGET, options=options)
    print(f"{kernel.__name__:16} {made.metadata.shared:7} bytes of shared memory")


def types_of(text: str) -> dict[str, str]:
    return dict(part.split(":") for part in text.split())


def main() -> None:
    for kind, ieee in (("bf16", False),):
        for embed in (False, True):
            compiled(
                row_kernels.norm_rows,
                types_of(f"residual:*fp32 delta:*{kind} tokens:*i32 weight:*fp32 out:*{kind} "
                         "epsilon:fp32"),
                {"COLUMNS": 4096, "BLOCK": 4096, "EMBED": embed},
                num_warps=8,
            )  # fmt: skip
        for norm in (False, True):
            compiled(
                row_kernels.rotate_store,
                types_of(f"qkv:*{kind} positions:*i32 slots:*i32 cosines:*fp32 sines:*fp32 "
                         f"keys:*{kind} values:*{kind} q_norm:*fp32 k_norm:*fp32 epsilon:fp32"),
                LLAMA | {"HALF": 64, "NORM": norm, "BLOCK_H": 16, "BLOCK_D": 64},
            )  # fmt: skip
        compiled(
            row_kernels.silu_mul,
            types_of(f"gate_up:*{kind} out:*{kind}"),
            {"COLUMNS": 14336, "BLOCK": 1024},
        )
        for rows, block, warps in ((4, 16, 4), (32, 128, 8), (16, 64, 4)):
            compiled(
                attention_kernels.attend_units,
                types_of(f"qkv:*{kind} keys:*{kind} values:*{kind} out:*{kind} parts:*fp32 "
                         "weights:*fp32 count:*i32 units:*i32 lanes:*i32 bases:*i32 counts:*i32 "
                         "positions:*i32 table:*i32 scale:fp32"),
                LLAMA | {"GROUP": 4, "LANE_HEADS": 4, "BLOCK_D": 128, "WINDOW": 0, "ROWS": rows,
                         "BLOCK_M": block, "BLOCK_N": 64, "IEEE": ieee},
                num_warps=warps, num_stages=1 if ieee else 3,
            )  # fmt: skip
        compiled(
            attention_kernels.combine_parts,
            types_of(f"out:*{kind} parts:*fp32 weights:*fp32 bases:*i32 counts:*i32"),
            {"HEADS": 32, "DIM": 128, "BLOCK_D": 128, "CHUNK": 8},
            num_warps=2,
        )
        compiled(
            product_kernel.fixed_product,
            types_of(f"x:*{kind} weight:*{kind} out:*{kind} rows:i32"),
            {"COLUMNS": 6144, "INNER": 4096, "BLOCK_M": 64, "BLOCK_N": 128,
             "BLOCK_K": 32 if ieee else 64, "IEEE": ieee},
            num_stages=2 if ieee else 4,
        )  # fmt: skip
    for keep in (False, True):
        compiled(
            sampling_kernels.scan_scores,
            types_of("logits:*fp32 kinds:*i32 temperatures:*fp64 key_words:*i32 mask_rows:*i32 "
                     "masks:*i32 keep_rows:*i32 keeps:*u8 tops:*fp32 sums:*fp32 bests:*fp64 "
                     "ids:*i32"),
            {"VOCABULARY": 128256, "WORDS": 4008, "BLOCK": 4096, "PIECES": 32, "KEEP": keep},
            num_warps=8,
        )  # fmt: skip
    compiled(
        sampling_kernels.choose_tokens,
        types_of("logits:*fp32 kinds:*i32 tops:*fp32 sums:*fp32 bests:*fp64 ids:*i32 tokens:*i32 "
                 "logprobs:*fp32 normalizers:*fp32"),
        {"VOCABULARY": 128256, "PIECES": 32, "BLOCK": 32},
        num_warps=1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
