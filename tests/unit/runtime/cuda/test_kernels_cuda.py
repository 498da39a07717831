"""Each kernel by itself beside torch: the cases of its benchmark, in small."""

from __future__ import annotations

import runpy
from pathlib import Path

BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "kernels_gpu.py"


def test_kernels_compute_what_torch_computes() -> None:
    names = runpy.run_path(str(BENCHMARK))["check"]()
    some = {"norm_rows", "rotate_store", "silu_mul", "fixed_product", "draw, top_p"}
    assert {*some, "one_row_product, norm and gate", "fixed_product, added"} <= set(names)
