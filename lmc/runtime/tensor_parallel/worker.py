"""A process that computes one part of a model: `python -m lmc.runtime.tensor_parallel.worker FD`.

Owns        a runner for its part.
Promises    it ends when the first process closes the socket, at the latest three seconds later,
            whatever it waits for. It prints nothing; an error is told to the first process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from lmc.runtime.runners import RunnerSpec, held_weights, make_runner
from lmc.runtime.tensor_parallel.wire import unpack_step
from lmc.runtime.tensor_parallel.workers import LOADED, READY, Task, as_problem

if TYPE_CHECKING:
    from lmc.runtime.request import Runner
    from lmc.runtime.tensor_parallel.shards import Shard

__all__ = ["main", "spec_of_rank"]

LAST_SECONDS = 3.0  # for the step that is under way


def spec_of_rank(spec: RunnerSpec, shard: Shard) -> RunnerSpec:
    """The description of a rank's runner: on a device of its own, or with its share of threads."""
    if spec.device == "cuda":
        return dataclasses.replace(spec, device=f"cuda:{shard.rank}")
    if spec.kernels == "torch":
        from lmc.runtime.model_runner import physical_cores

        threads = spec.threads or physical_cores()
        return dataclasses.replace(spec, threads=max(1, threads // shard.size))
    return spec


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it says that it is enough."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(descriptor)
    task: Task = pickle.loads(connection.recv_bytes())
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages), daemon=True).start()
    try:
        _serve(task, connection, messages)
    except Exception as error:  # whatever it is, the first process must hear of it
        with contextlib.suppress(OSError):  # unless that is what happened: it is gone
            connection.send_bytes(pickle.dumps(as_problem(error, task.shard)))
        os._exit(1)
    os._exit(0)  # libraries that wait for other ranks when they are taken down are left alone


def _receive(connection: Connection[Any, Any], messages: queue.SimpleQueue[bytes]) -> None:
    """Take messages, the last of which is empty; then end, if the process does not by itself."""
    message = b"?"
    while message:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            message = b""
        messages.put(message)
    time.sleep(LAST_SECONDS)
    os._exit(1)


def _serve(
    task: Task, connection: Connection[Any, Any], messages: queue.SimpleQueue[bytes]
) -> None:
    import torch

    from lmc.runtime.tensor_parallel.group import TorchGroup

    shard, spec = task.shard, spec_of_rank(task.spec, task.shard)
    device = torch.device(spec.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    weights = held_weights(spec, task.config, shard)
    connection.send_bytes(pickle.dumps(LOADED))
    group = TorchGroup(shard, task.meeting, device, exact=spec.deterministic)
    runner: Runner = make_runner(spec, shard.config(task.config), weights, group)
    del weights
    connection.send_bytes(pickle.dumps(READY))
    compute = getattr(runner, "start", None) or runner.run
    while message := messages.get():
        compute(unpack_step(message))
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(int(sys.argv[1]))
