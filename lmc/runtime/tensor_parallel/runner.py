"""The runner of a model that several processes compute: the first one's, which tells the others.

    engine ──Step──► this ──Step──► the first part's runner ──► Outcome
                       └───bytes──► workers' runners, which hand in sums and logits

Owns        the first part's runner, the workers, their meeting place.
Promises    what a runner of the whole model gives, up to the rounding of sums in parts. If a
            process fails, the step does, and every step after it, with an error that says so.
Costs       see `group` and `workers`.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmc.errors import LmcError, UsageError
from lmc.runtime.loading_bar import Shown
from lmc.runtime.request import Flight, Outcome, Runner, Step
from lmc.runtime.runners import (
    RunnerSpec,
    default_kv_tokens,
    held_weights,
    make_runner,
    read_config,
)
from lmc.runtime.tensor_parallel.group import TorchGroup
from lmc.runtime.tensor_parallel.shards import Shard, check_divisible
from lmc.runtime.tensor_parallel.wire import pack_step
from lmc.runtime.tensor_parallel.worker import spec_of_rank
from lmc.runtime.tensor_parallel.workers import LOADED, READY, Task, Workers

__all__ = ["ParallelRunner", "start_ranks"]

PATIENCE = 3.0  # seconds until it is known which process made a step fail


class ParallelRunner:
    """See the module; a `Runner`."""

    def __init__(self, own: Runner, group: TorchGroup, workers: Workers, folder: Path) -> None:
        known: Any = own  # all runners of models have more than the protocol says
        self._own = known
        self._group, self._workers, self._folder = group, workers, folder
        self._closed = False
        self.vocab_size = own.vocab_size
        self.context_length = own.context_length
        self.kv_tokens = own.kv_tokens
        self.most_repeats = own.most_repeats
        self.step_positions = own.step_positions
        self.follows_states = own.follows_states
        self.config = known.config
        self.seconds: dict[str, float] = known.seconds

    @property
    def description(self) -> str:
        """What computes, in words, for reports."""
        return f"{self._own.description}, in {self._group.shard.size} processes"

    def run(self, step: Step) -> Outcome:
        """Compute one step; raises like the first part's runner, or what happened to a worker."""
        self._workers.send(pack_step(step))
        with self._together():
            outcome: Outcome = self._own.run(step)
        return outcome

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """If the first part leaves a step before the others, none can go on."""
        try:
            yield
        except LmcError:  # raised when all parts have done the step
            self._workers.check()
            raise
        except BaseException as error:
            raise self._workers.problem(PATIENCE, error) from error
        self._workers.check()  # what is computed when others are gone means nothing

    def close(self) -> None:
        """End the other processes and free all memory; the runner cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            lost = self._workers.failed()
            self._workers.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            if not lost:
                self._own.close()
                self._group.end()
            elif isinstance(self, ParallelDeviceRunner):
                # Graphs whose kernels wait for a rank that is gone cannot be taken down: not here,
                # and not when the interpreter ends. The process's end frees the device.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._own))
            else:
                self._own.close()


class ParallelDeviceRunner(ParallelRunner):
    """The same on devices that compute while other things are done."""

    def start(self, step: Step) -> Flight:
        """Put a step into all devices' queues."""
        self._workers.send(pack_step(step))
        try:
            flight: Flight = self._own.start(step)
        except BaseException as error:  # the others are at it already
            raise self._workers.problem(PATIENCE, error) from error
        return _Flight(flight, self)

    def run(self, step: Step) -> Outcome:
        """Compute one step, and wait for its first pass."""
        return self.start(step).outcome()


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that all devices compute; its outcomes are worth something if all still do."""

    own: Flight
    runner: ParallelDeviceRunner

    def ready(self) -> bool:
        try:
            return self.runner._workers.failed() or self.own.ready()
        except RuntimeError:  # of the device: `outcome` says what it means
            return True

    def outcome(self) -> Outcome:
        with self.runner._together():
            first = self.own.outcome()
        return replace(first, later=self._checked(first.later)) if first.later else first

    def _checked(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        rest = iter(outcomes)
        while True:
            with self.runner._together():
                one = next(rest, None)
            if one is None:
                return
            yield one


def start_ranks(spec: RunnerSpec, size: int, progress: Shown = False) -> ParallelRunner:
    """A runner whose model is divided among `size` processes, this one among them.

    Args:
        spec: with the device "cpu" or "cuda"; rank n takes the n-th CUDA device.
        progress: of this process's reading of its weights; see `loading_bar`.

    Raises:
        UsageError: the model cannot be divided so, or there are fewer devices.
        ModelError, CapacityError, RunError: see the runners; of any process.
    """
    import torch

    if spec.device == "cuda" and torch.cuda.device_count() < size:
        raise UsageError(
            f"tensor_parallel={size} needs as many CUDA devices, torch finds "
            f"{torch.cuda.device_count()}",
            hint="give fewer, or name more in CUDA_VISIBLE_DEVICES",
        )
    config = read_config(spec.files)
    check_divisible(config, size)
    if spec.kernels == "torch" and spec.kv_tokens is None:  # the same on all ranks
        spec = replace(spec, kv_tokens=default_kv_tokens(config))
    folder = Path(tempfile.mkdtemp(prefix="lmc-ranks-"))
    workers: Workers | None = None
    ready: ParallelRunner | None = None
    try:
        tasks = [Task(spec, config, Shard(n, size), folder / "meeting") for n in range(size)]
        workers = Workers(tasks[1:])
        ready = _first(tasks[0], workers, folder, progress)
    except Exception as error:
        if workers is not None and (workers.failed() or not isinstance(error, LmcError)):
            problem = workers.problem(PATIENCE, error)  # says more than what followed from it
            if problem is not error:
                raise problem from error
        raise
    else:
        return ready
    finally:
        if ready is None:
            if workers is not None:
                workers.close()
            shutil.rmtree(folder, ignore_errors=True)


def _first(task: Task, workers: Workers, folder: Path, progress: Shown) -> ParallelRunner:
    """The first part of a model, and what makes it the whole."""
    import torch

    spec = spec_of_rank(task.spec, task.shard)
    device = torch.device(spec.device)
    weights = held_weights(spec, task.config, task.shard, progress)
    workers.wait_for(LOADED)
    group = TorchGroup(
        task.shard, task.meeting, device, exact=spec.deterministic, lost=workers.failed
    )
    workers.on_problem(group.rank_is_lost)
    own = make_runner(spec, task.shard.config(task.config), weights, group)
    workers.wait_for(READY)
    kind = ParallelDeviceRunner if hasattr(own, "start") else ParallelRunner
    return kind(own, group, workers, folder)
