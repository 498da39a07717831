"""The ranks of a model as threads of one process, of which one computes at a time.

Kernels in Triton's interpreter cannot run in two threads at once; and so a test sees everything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from lmc.runtime.tensor_parallel.shards import Shard

__all__ = ["ThreadGroup", "together"]

Given = TypeVar("Given")


class ThreadGroup:
    """A `Group`; use `together`."""

    def __init__(self, shard: Shard, held: list[Tensor], barrier: threading.Barrier) -> None:
        self.shard, self._held, self._barrier = shard, held, barrier
        self.turn = threading.Lock()

    def gather(self, x: Tensor) -> Tensor:
        assert x.is_contiguous()
        self._held[self.shard.rank] = x.clone()
        self.turn.release()
        self._barrier.wait()
        shapes = {(tuple(part.shape), part.dtype) for part in self._held}
        assert len(shapes) == 1, "the ranks are not at the same place"
        every = torch.stack(self._held)
        self._barrier.wait()
        self.turn.acquire()
        return every

    def add_up(self, x: Tensor) -> None:
        first, *others = self.gather(x)
        x.copy_(first)
        for other in others:
            x += other

    def share(self, x: Tensor) -> None:
        x.copy_(self.gather(x)[0])

    def least(self, number: int) -> int:
        return int(self.gather(torch.tensor([number])).min())

    def lost(self) -> bool:
        return False


def together(size: int, work: Callable[[ThreadGroup], Given]) -> list[Given]:
    """What each rank's `work` gives; an error of one is raised."""
    barrier, turn = threading.Barrier(size, timeout=120), threading.Lock()
    held = [torch.empty(0)] * size

    def run(rank: int) -> Given:
        group = ThreadGroup(Shard(rank, size), held, barrier)
        group.turn = turn
        turn.acquire()
        try:
            return work(group)
        except BaseException:
            barrier.abort()
            raise
        finally:
            turn.release()

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None and not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]
