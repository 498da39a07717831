"""What the ranks tell each other while they compute, through torch.distributed.

Owns        the group's connections. It is no default process group: a program may have its own.
Promises    sums on the CPU, and with `exact` everywhere, are added in the order of the ranks, so
            that a row's result does not depend on the rows beside it. If a rank is gone, calls on
            the CPU raise; on CUDA devices they wait until `abort`.
Costs       two sums a layer, of (rows, hidden) numbers; one collection of logits a step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed

from lmc.errors import UsageError
from lmc.runtime.tensor_parallel.shards import Shard

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Group", "TorchGroup"]

dist: Any = torch.distributed  # its types leave out what is needed here
c10d: Any = dist.distributed_c10d

PATIENCE = timedelta(minutes=5)  # with a rank that is there and does not answer
_QUIET = {  # NCCL's own watchers end the whole process when a peer is gone
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


class Group(Protocol):
    """The ranks of a model. All call the same methods in the same order, with the same shapes."""

    shard: Shard

    def add_up(self, x: Tensor) -> None:
        """Replace x, contiguous, by its sum over the ranks."""

    def gather(self, x: Tensor) -> Tensor:
        """What all ranks have, shape (size, *x.shape); x is contiguous."""

    def share(self, x: Tensor) -> None:
        """Replace x, contiguous, by what rank 0 has."""

    def least(self, number: int) -> int:
        """The least number that a rank has."""


class TorchGroup:
    """A `Group` by gloo on the CPU, by NCCL on CUDA devices; made by all ranks at once.

    Args:
        meeting: a file that all ranks can write; it need not be there.
        device: that the tensors are on.
        exact: results do not depend on the number of rows, bit by bit; slower for many ranks.

    Raises:
        RuntimeError: the others do not come.
    """

    def __init__(self, shard: Shard, meeting: Path, device: torch.device, *, exact: bool) -> None:
        self.shard = shard
        self._device = device
        self._on_gpu = device.type == "cuda"
        # two numbers have one sum, in whichever order they are added
        self._in_order = not self._on_gpu or (exact and shard.size > 2)
        store = dist.PrefixStore("lmc", dist.FileStore(str(meeting), shard.size))
        self._backend: Any = _nccl(store, shard) if self._on_gpu else _gloo(store, shard)
        if self.least(shard.rank) != 0:
            raise RuntimeError("the group does not add up")

    def add_up(self, x: Tensor) -> None:
        if self._in_order:
            first, *others = self.gather(x)
            x.copy_(first)
            for other in others:
                x += other
            return
        options = c10d.AllreduceOptions()
        options.asyncOp = False
        _finish(self._backend.allreduce([x], options))

    def gather(self, x: Tensor) -> Tensor:
        every = torch.empty(self.shard.size, *x.shape, dtype=x.dtype, device=x.device)
        options = c10d.AllgatherOptions()
        options.asyncOp = False
        _finish(self._backend._allgather_base(every.flatten(0, 1), x, options))
        return every

    def share(self, x: Tensor) -> None:
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor, options.asyncOp = 0, 0, False
        _finish(self._backend.broadcast([x], options))

    def least(self, number: int) -> int:
        numbers = self.gather(torch.tensor([number], device=self._device))
        return int(numbers.min())

    def abort(self) -> None:
        """Give the connections up: what waits for other ranks ends. From any thread."""
        with contextlib.suppress(RuntimeError):  # they may be broken already
            self._backend.abort()


def _finish(work: Any) -> None:  # noqa: ANN401 - torch's own kind of handle, or None
    """On the CPU, wait; on a device, let what follows wait."""
    if work is not None:
        work.wait()


def _gloo(store: Any, shard: Shard) -> Any:  # noqa: ANN401
    if not dist.is_available() or not dist.is_gloo_available():
        raise UsageError("this torch has no gloo", hint="install torch from its own package index")
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = PATIENCE
    return dist.ProcessGroupGloo(store, shard.rank, shard.size, options)


def _nccl(store: Any, shard: Shard) -> Any:  # noqa: ANN401
    if not dist.is_available() or not dist.is_nccl_available():
        raise UsageError("this torch has no NCCL", hint="install a torch with CUDA for Linux")
    with _environment(_QUIET):
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = PATIENCE
        options.global_ranks_in_group = list(range(shard.size))
        return dist.ProcessGroupNCCL(store, shard.rank, shard.size, options)


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Environment variables that are read in the block."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
