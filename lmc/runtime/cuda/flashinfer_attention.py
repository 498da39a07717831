"""Attention of long prompts by FlashInfer, which has the faster kernels for them.

Segments of many rows that stand together in a step go to FlashInfer's paged prefill, with pages of
one slot; all other rows, and steps from graphs, stay with units.

Owns        FlashInfer's work space, two plans of it, the modules that it compiles at first use:
            they are kept in `home()/flashinfer` unless FLASHINFER_WORKSPACE_BASE says otherwise.
Promises    nothing waits for the device. Results do not depend on where segments stand, up to
            rounding.
Costs       128 MiB on the device, and 16 MiB and as much page-locked memory for plans.
Source      Ye et al., FlashInfer, arXiv:2501.01005; on Hopper its kernels are those of Shah et al.,
            FlashAttention-3, arXiv:2407.08608.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmc.disk_cache import home
from lmc.errors import UsageError
from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda.attention import Attend, StepRows
from lmc.runtime.cuda.staging import Staging
from lmc.runtime.cuda.unit_attention import UnitAttention
from lmc.runtime.request import IntArray

__all__ = ["FlashInferAttention", "long_run"]

LEAST_ROWS = 96  # rows of a segment below which units are as fast
WORKSPACE = 128 << 20  # bytes
PATIENCE = 3.0  # seconds until it is said that modules are being compiled


class FlashInferAttention:
    """See the module; a `DeviceAttention`.

    Args:
        config: of the model, or of the part of it that this process has.
        units: attends for all other rows.

    Raises:
        UsageError: FlashInfer is not installed, does not load, or does not compile what the model
            needs.
    """

    name = "flashinfer"

    def __init__(
        self, config: ModelConfig, units: UnitAttention, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config, self._units, self._dtype = config, units, dtype
        try:
            made = _package().BatchPrefillWithPagedKVCacheWrapper
            space = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
            # what a plan has page-locked is read until its step is done: two are under way at most
            self._wrappers: deque[Any] = deque(made(space, "NHD") for _ in range(2))
            self._make_modules(device)
        except (UsageError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of FlashInfer, of the compiler that it calls, of the loader
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"FlashInfer cannot be used: {reason}",
                hint="it compiles with nvcc and ninja at first use; or give attention='triton'",
            ) from error

    def _make_modules(self, device: torch.device) -> None:
        """Compile and load what this model needs, by a first plan."""
        waiting = threading.Timer(PATIENCE, _say_that_it_compiles)
        waiting.daemon = True
        waiting.start()
        try:
            one = torch.ones(1, dtype=torch.int32)
            ends = torch.tensor([0, 1], dtype=torch.int32)
            slots = torch.zeros(1, dtype=torch.int32, device=device)
            self._plan(self._wrappers[0], ends, ends, slots, one, 1)
        finally:
            waiting.cancel()

    def _plan(
        self, wrapper: Any, rows: Tensor, pages: Tensor, slots: Tensor, last: Tensor, most: int,  # noqa: ANN401 - FlashInfer has no types
    ) -> None:  # fmt: skip
        config = self._config
        window = config.sliding_window
        wrapper.plan(
            rows, pages, slots, last, config.heads, config.kv_heads, config.head_dim, 1,
            causal=True, window_left=-1 if window is None else window - 1,
            q_data_type=self._dtype, kv_data_type=self._dtype, max_token_per_sequence=most,
        )  # fmt: skip

    def plan(self, step: StepRows, staging: Staging) -> Attend:
        """See `DeviceAttention`; at most two plans may be in use."""
        tables, config = step.tables, self._config
        run = long_run(tables.sizes, LEAST_ROWS)
        if run is None:
            return self._units.plan(step, staging)
        sizes, offsets, lengths = tables.sizes[run], tables.offsets[run], tables.lengths[run]
        first = int(tables.sizes[: run.start].sum())
        rows = slice(first, first + int(sizes.sum()))
        others = len(tables.sizes) > run.stop - run.start
        rest = self._units.plan(step, staging, without=run) if others else None

        def pinned(values: npt.NDArray[Any]) -> Tensor:
            array, tensor = staging.piece(len(values))
            array[:] = values
            return tensor

        ends = np.concatenate([[0], np.cumsum(lengths)])
        begin, end = int(offsets[0]), int(offsets[-1] + lengths[-1])
        slots = step.slots[begin:end]
        if ends[-1] < end - begin:  # there are slots of later passes in between
            slots = torch.empty(int(ends[-1]), dtype=torch.int32, device=slots.device)
            contexts = [tables.slots[a : a + n] for a, n in zip(offsets, lengths, strict=True)]
            staging.copy(np.concatenate(contexts), slots)
        self._wrappers.rotate()
        wrapper = self._wrappers[0]
        self._plan(
            wrapper,
            pinned(np.concatenate([[0], np.cumsum(sizes)])),
            pinned(ends),
            slots,
            pinned(np.ones(len(sizes), np.int32)),
            int(sizes.max()),
        )
        heads = (config.heads, config.head_dim)
        columns = config.heads * config.head_dim

        def attend(qkv: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
            wrapper.run(
                qkv[rows, :columns].view(-1, *heads),
                (keys[:, None], values[:, None]),
                out=out[rows].view(-1, *heads),
            )
            if rest is not None:
                rest(qkv, keys, values, out)

        return attend


def long_run(sizes: npt.NDArray[np.int64] | IntArray, least: int) -> slice | None:
    """Of segments that stand together with `least` rows or more each, those with most rows."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], sizes >= least, [False]])))
    runs = [slice(int(a), int(b)) for a, b in ends.reshape(-1, 2)]
    return max(runs, key=lambda run: int(sizes[run].sum()), default=None)


def _package() -> Any:  # noqa: ANN401 - FlashInfer has no types
    """FlashInfer, which keeps what it compiles where lmc keeps its files.

    Raises:
        UsageError: it is not installed, or cannot be imported.
    """
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(home() / "flashinfer"))
    try:
        import flashinfer
    except ModuleNotFoundError as error:
        missing = "is not installed" if error.name == "flashinfer" else f"needs {error.name}"
        raise UsageError(
            f"attention='flashinfer': FlashInfer {missing}", hint="pip install 'lmc[flashinfer]'"
        ) from error
    return flashinfer


def _say_that_it_compiles() -> None:
    kept = os.environ["FLASHINFER_WORKSPACE_BASE"]
    logging.getLogger("lmc").warning(
        "FlashInfer is compiling attention kernels for this model: some minutes, once; "
        "they are kept in %s",
        kept,
    )
