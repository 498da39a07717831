"""The other processes of a model, seen from the first: started, told, watched, ended.

Owns        one process a rank but the first, a socket to each, a thread that listens to them.
Promises    when a process ends or fails, everybody who waits for it hears of it at once, with what
            happened; `close` leaves none behind. If this process dies, the others notice that their
            socket is closed, and end. Ctrl-C in a terminal reaches this process alone.
Costs       a message a step and process.
Not here    what they compute (`worker`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lmc.errors import InternalError, LmcError, RunError, UsageError
from lmc.runtime.config import ModelConfig
from lmc.runtime.runners import RunnerSpec
from lmc.runtime.tensor_parallel.shards import Shard

__all__ = ["LOADED", "READY", "Task", "Workers", "as_problem"]

LOADED, READY = "loaded", "ready"  # what a worker says when it is so far
END_PATIENCE = 5.0  # seconds for a worker to end by itself


@dataclass(frozen=True, slots=True)
class Task:
    """All that a worker must know.

    Attributes:
        spec: of its runner.
        config: of the whole model.
        meeting: the file by which the ranks find each other.
    """

    spec: RunnerSpec
    config: ModelConfig
    shard: Shard
    meeting: Path


class Workers:
    """See the module.

    Args:
        tasks: one for each process to be started.

    Raises:
        UsageError: this system cannot do it.
        RunError: a process cannot be started.
    """

    def __init__(self, tasks: list[Task]) -> None:
        if os.name != "posix":
            raise UsageError("tensor_parallel needs Linux or macOS", hint="leave it out")
        self._changed = threading.Condition()
        self._stages: dict[int, set[str]] = {task.shard.rank: set() for task in tasks}
        self._problem: LmcError | None = None
        self._on_problem: list[Callable[[], None]] = []
        self._closing = False
        self._sizes = f"of {len(tasks) + 1}"
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection[Any, Any]] = {}
        try:
            for task in tasks:
                self._start(task)
        except OSError as error:
            self.close()
            raise RunError(f"a process cannot be started: {error}") from error
        threading.Thread(target=self._listen, name="lmc ranks", daemon=True).start()

    def _start(self, task: Task) -> None:
        ours, theirs = socket.socketpair()
        self._connections[task.shard.rank] = connection = Connection(ours.detach())
        with theirs:
            self._processes[task.shard.rank] = subprocess.Popen(
                [sys.executable, "-P", "-m", "lmc.runtime.tensor_parallel.worker",
                 str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        connection.send_bytes(pickle.dumps(task))

    def send(self, message: bytes) -> None:
        """Tell all workers.

        Raises:
            LmcError: one has failed.
        """
        self.check()
        for connection in self._connections.values():
            try:
                connection.send_bytes(message)
            except OSError:  # the listener knows, or will at once
                raise self.problem(patience=1.0) from None

    def wait_for(self, stage: str) -> None:
        """Wait until all workers are so far.

        Raises:
            LmcError: one has failed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._problem is not None or all(stage in s for s in self._stages.values())
            )
        self.check()

    def check(self) -> None:
        """Raise what has happened to a worker, if something has."""
        if self._problem is not None:
            raise self._problem

    def problem(self, patience: float, cause: BaseException | None = None) -> LmcError:
        """What has happened to a worker, or will be heard of within some seconds.

        If nothing is, it is `cause` that makes this process leave the others alone: from now on
        that is the problem.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._problem is not None, patience)
        if self._problem is None:
            what = "the processes of the model do not answer" if cause is None else str(cause)
            self._fail(RunError(f"{what or type(cause).__name__}; the model must be loaded anew"))
        assert self._problem is not None
        return self._problem

    def on_problem(self, call: Callable[[], None]) -> None:
        """Call this, from another thread, when a worker fails."""
        self._on_problem.append(call)
        if self._problem is not None:
            call()

    def failed(self) -> bool:
        """Whether something has happened to a worker."""
        return self._problem is not None

    def close(self) -> None:
        """End all workers, and wait until they have ended."""
        self._closing = True
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # it has ended already
                connection.send_bytes(b"")
        end = time.monotonic() + END_PATIENCE
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if self._problem else max(0.0, end - time.monotonic()))
            process.kill()
            process.wait()

    # The listener

    def _listen(self) -> None:
        """Hear what the workers say, until they have ended."""
        ranks = {connection: rank for rank, connection in self._connections.items()}
        while ranks:
            for ready in wait(list(ranks)):
                assert isinstance(ready, Connection)
                rank = ranks[ready]
                try:
                    self._take(rank, pickle.loads(ready.recv_bytes()))
                except (EOFError, OSError):
                    del ranks[ready]
                    self._lost(rank)
        for connection in self._connections.values():
            connection.close()

    def _take(self, rank: int, message: str | LmcError) -> None:
        if isinstance(message, LmcError):
            self._fail(message)
            return
        with self._changed:
            self._stages[rank].add(message)
            self._changed.notify_all()

    def _lost(self, rank: int) -> None:
        """A worker has closed its socket: it has ended, or will at once."""
        if self._closing or self._problem is not None:
            return
        try:
            code = self._processes[rank].wait(END_PATIENCE)
        except subprocess.TimeoutExpired:
            code = 0
        how = f"with the exit code {code}"
        if code < 0:
            how = f"by the signal {signal.Signals(-code).name}"
        self._fail(
            RunError(
                f"process {rank} {self._sizes} of the model was ended {how}",
                hint="the engine cannot go on; on GPUs, start the program anew",
            )
        )

    def _fail(self, problem: LmcError) -> None:
        with self._changed:
            if self._problem is not None or self._closing:
                return
            self._problem = problem
            self._changed.notify_all()
        for call in self._on_problem:
            call()


def as_problem(error: Exception, shard: Shard) -> LmcError:
    """An error of a worker as it is told to the first process."""
    if isinstance(error, LmcError):
        return error
    return InternalError(
        f"process {shard.rank} of {shard.size} of the model failed: "
        f"{type(error).__name__}: {error or 'it does not say why'}"
    )
