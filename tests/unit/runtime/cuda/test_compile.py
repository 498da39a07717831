"""Every kernel compiles for the GPU that it is meant for, also where there is none."""

from __future__ import annotations

import os
import subprocess
import sys


def test_all_kernels_compile_for_sm_90() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.runtime.cuda.compile_kernels"],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert "attend_units" in done.stdout
