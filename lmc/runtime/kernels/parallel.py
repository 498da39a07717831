"""Run compiled kernels on several threads, without ever waiting for one that has not begun.

An OpenMP team ends each loop at a barrier that all its threads must reach. When the machine is busy
with something else, one of them is often not running, and the others wait for the system to give
it a core: each of the hundreds of small loops of a step may then take as long as a time slice. Here
work is handed out item by item from a counter, and the caller takes items like the others; when
none is left it closes the door and waits only for helpers that are inside. A helper that comes late
finds the door closed. Every item writes its own results, so who computes it changes no bit.

A kernel is a `numba.cfunc` of one pointer to int64 arguments: argument 0 is the address of the
counter (`vector.atomic_next`), and 8 bytes on, that of a second one that numbers those at work.
The helpers look for work all the time while a step is computed (`Team.at_work`), letting others run
now and then, and sleep between steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numba
from numba import cfunc, types

from lmc.runtime.kernels import SOURCES
from lmc.runtime.kernels.vector import (
    atomic_add,
    atomic_enter,
    atomic_load,
    atomic_store,
    call,
    load_i64,
    pause,
)

__all__ = ["Kernel", "Team", "bits_of"]

# int64 places of a team's block
_DOOR = 0  # 1 while open, and 2 for each helper inside
_ROUND = 8  # counts the kernels that were run
_STOP = 16  # not 0: helpers go to sleep
_FUNCTION, _ARGUMENTS = 24, 32
_OWN = 40  # the address of the block
_YIELD = 48  # the system's function that lets others run, or 0
_BLOCK_BYTES = 128  # two cache lines, so that nothing else lies near

_SIGNATURE = types.void(types.CPointer(types.int64))


SPINS = 200  # looks of about 50 ns before others are let run: longer than most waits


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _rest(block: int, waited: int) -> int:
    """Wait a moment; count how often. On a busy machine, who is waited for may need this core."""
    pause(0)
    if waited < SPINS:
        return waited + 1
    function = load_i64(block + _YIELD)
    if function != 0:
        call(function, 0)
    return 0


@cache
def _lead() -> Any:  # noqa: ANN401 - numba has no types
    """Run a kernel and let helpers in; the caller's part."""

    @cfunc(_SIGNATURE, cache=True)  # type: ignore[untyped-decorator]
    def lead(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        block = a[_OWN // 8]
        atomic_add(block + _ROUND, 1)
        atomic_store(block + _DOOR, 1)
        call(load_i64(block + _FUNCTION), load_i64(block + _ARGUMENTS))
        left = atomic_add(block + _DOOR, -1) - 1
        waited = 0
        while left != 0:
            waited = _rest(block, waited)
            left = atomic_load(block + _DOOR)

    return lead


@cache
def _help() -> Any:  # noqa: ANN401
    """Take part in every kernel until told to stop; a helper's part."""

    @cfunc(_SIGNATURE, cache=True)  # type: ignore[untyped-decorator]
    def assist(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        block = a[_OWN // 8]
        done, waited = 0, 0
        while atomic_load(block + _STOP) == 0:
            if atomic_load(block + _ROUND) == done or atomic_enter(block + _DOOR) == 0:
                waited = _rest(block, waited)
                continue
            waited = 0
            # nothing changes while somebody is inside, so this is the round that was entered
            done = atomic_load(block + _ROUND)
            call(load_i64(block + _FUNCTION), load_i64(block + _ARGUMENTS))
            atomic_add(block + _DOOR, -2)

    return assist


def _yield_address() -> int:
    """Where POSIX's sched_yield lies, or 0 where there is none."""
    try:
        function = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError, TypeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Team:
    """The caller and `threads - 1` helpers.

    Kernels of one team run one at a time: a team is used by one thread, or by turns.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._memory = ctypes.create_string_buffer(_BLOCK_BYTES + 64)
        start = ctypes.addressof(self._memory)
        self._block = start + -start % 64
        self._words = (ctypes.c_int64 * (_BLOCK_BYTES // 8)).from_address(self._block)
        self._words[_OWN // 8] = self._block
        self._words[_YIELD // 8] = _yield_address()
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._lead, self._assist = entry(_lead().address), entry(_help().address)
        self._wake = [threading.Event() for _ in range(threads - 1)]
        self._closed = False
        for i, wake in enumerate(self._wake):
            threading.Thread(
                target=self._serve, args=(wake,), name=f"lmc-helper-{i}", daemon=True
            ).start()

    def _serve(self, wake: threading.Event) -> None:
        while True:
            wake.wait()
            wake.clear()
            if self._closed:
                return
            self._assist(self._block)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the helpers awake. Kernels run outside of this too, on the caller alone."""
        self._words[_STOP // 8] = 0
        for wake in self._wake:
            wake.set()
        try:
            yield
        finally:
            self._words[_STOP // 8] = 1

    def run(self, function: int, arguments: int) -> None:
        """Run the kernel at address `function` to its end."""
        self._words[_FUNCTION // 8] = function
        self._words[_ARGUMENTS // 8] = arguments
        self._lead(self._block)

    def close(self) -> None:
        """End the helpers' threads."""
        self._closed = True
        self._words[_STOP // 8] = 1
        for wake in self._wake:
            wake.set()


class Kernel:
    """A compiled kernel of `count` int64 arguments, from argument 1 on, with a team to run it."""

    def __init__(self, compiled: Any, count: int, team: Team) -> None:  # noqa: ANN401
        self._compiled = compiled  # keeps the machine code alive
        self._address = int(compiled.address)
        self._alone: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address)
        self._block = ctypes.create_string_buffer(8 * (count + 3))
        self._counter = ctypes.addressof(self._block)
        self._arguments = self._counter + 16
        self._pack = struct.Struct(f"{count + 3}q").pack_into
        self._team = team
        self._together = team.threads > 1

    def __call__(self, *arguments: int, small: bool = False) -> None:
        """Run to the end; `small` work is not worth sharing."""
        self._pack(self._block, 0, 0, 0, self._counter, *arguments)
        if self._together and not small:
            self._team.run(self._address, self._arguments)
        else:
            self._alone(self._arguments)


def bits_of(number: float) -> int:
    """A float32 as an integer argument; `vector.f32_of_bits` reads it."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits
