"""What the ranks tell each other while they compute: gloo on the CPU, NCCL on CUDA devices.

Owns        the group's connections. It is no default process group of torch: a program may have
            its own.
Promises    sums on the CPU, and with `exact` everywhere, are added in the order of the ranks, so
            that a row's result does not depend on the rows beside it. If a rank is gone, calls on
            the CPU raise; on devices, who waits asks `lost`.
Costs       two sums a layer, of (rows, hidden) numbers; one collection of logits a step.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed

from lmc.errors import RunError, UsageError
from lmc.runtime.tensor_parallel.nccl import Communicator, new_meeting
from lmc.runtime.tensor_parallel.shards import Shard

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Group", "TorchGroup"]

dist: Any = torch.distributed  # its types leave out what is needed here
c10d: Any = getattr(dist, "distributed_c10d", None)  # is not there without distributed parts

PATIENCE = timedelta(minutes=5)  # with a rank that is there and does not answer
GRACE = 1.0  # seconds for a thread to notice that a rank is lost, and to leave the group alone


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

    def lost(self) -> bool:
        """Whether another rank is known to be gone, so that there is nothing to wait for."""


class TorchGroup:
    """A `Group` of processes; made by all at once.

    Args:
        meeting: a file that all ranks can write; it need not be there.
        device: that the tensors are on; a CUDA device is the current one.
        exact: results do not depend on the number of rows, bit by bit; slower for many ranks.
        lost: whether another rank is known to be gone.

    Raises:
        RunError, RuntimeError: the others do not come.
        UsageError: this torch cannot do it.
    """

    def __init__(
        self,
        shard: Shard,
        meeting: Path,
        device: torch.device,
        *,
        exact: bool,
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self.shard, self.lost, self._device = shard, lost, device
        if not dist.is_available() or not dist.is_gloo_available():
            raise UsageError(
                "this torch cannot let processes compute together", hint="install another one"
            )
        on_gpu = device.type == "cuda"
        # two numbers have one sum, in whichever order they are added
        self._in_order = not on_gpu or (exact and shard.size > 2)
        store = dist.PrefixStore("lmc", dist.FileStore(str(meeting), shard.size))
        store.set_timeout(PATIENCE)
        self._nccl = self._meet(store) if on_gpu else None
        self._gloo: Any = None if on_gpu else _gloo(store, shard)
        self.least(0)  # makes the connections

    def _meet(self, store: Any) -> Communicator:  # noqa: ANN401 - torch has no types here
        """A communicator of all ranks; given up if one is lost meanwhile."""
        found: list[Communicator | BaseException] = []
        shard = self.shard

        def meet() -> None:
            try:
                torch.cuda.set_device(self._device)
                if shard.rank == 0:
                    store.set("nccl", new_meeting().hex())
                meeting = bytes.fromhex(store.get("nccl").decode())
                found.append(Communicator(meeting, shard.rank, shard.size))
            except BaseException as error:
                found.append(error)

        threading.Thread(target=meet, daemon=True).start()
        end = time.monotonic() + PATIENCE.total_seconds()
        while not found:
            if self.lost() or time.monotonic() > end:
                raise RunError("the processes of the model do not find each other")
            time.sleep(0.01)
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def add_up(self, x: Tensor) -> None:
        if self._nccl is not None and not self._in_order:
            self._nccl.add_up(x)
            return
        first, *others = self.gather(x)
        x.copy_(first)
        for other in others:
            x += other

    def gather(self, x: Tensor) -> Tensor:
        every = torch.empty(self.shard.size, *x.shape, dtype=x.dtype, device=x.device)
        if self._nccl is not None:
            self._nccl.gather(x, every)
        else:
            options = c10d.AllgatherOptions()
            self._gloo._allgather_base(every.flatten(0, 1), x, options).wait()
        return every

    def share(self, x: Tensor) -> None:
        if self._nccl is not None:
            self._nccl.share(x)
        else:
            options = c10d.BroadcastOptions()
            options.rootRank, options.rootTensor = 0, 0
            self._gloo.broadcast([x], options).wait()

    def least(self, number: int) -> int:
        return int(self.gather(torch.tensor([number], device=self._device)).min())

    def rank_is_lost(self) -> None:
        """End what waits for other ranks on the device, after those who use the group have left.

        It may not return: NCCL waits until graphs with its kernels are taken down.
        """
        if self._nccl is not None:
            time.sleep(GRACE)
            self.end()

    def end(self) -> None:
        """Give the connections up; nobody uses them any more."""
        if self._nccl is not None:
            with contextlib.suppress(RunError):  # they may be broken already
                self._nccl.abort()


def _gloo(store: Any, shard: Shard) -> Any:  # noqa: ANN401 - torch has no types here
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = PATIENCE
    return dist.ProcessGroupGloo(store, shard.rank, shard.size, options)
