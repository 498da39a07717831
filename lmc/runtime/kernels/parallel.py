"""Run a compiled kernel on torch's own OpenMP threads.

A second thread pool beside torch's would compete with it: while a linear layer's threads still
spin for more work, the other pool's threads wait for a core, and the other way round at the next
call. So the kernels are called through `GOMP_parallel` of the OpenMP library that torch has loaded,
and run on the threads that are already awake.

A kernel is a `numba.cfunc` of one pointer to int64 arguments. Every thread of the team calls it;
work is handed out by a counter (`vector.atomic_next`) whose address is argument 0, and every item
writes its own results, so neither the number of threads nor their speed changes a bit of them. A
second counter, 8 bytes on, numbers the threads of the team.

Where torch uses no GNU OpenMP (macOS, Windows), kernels run on the calling thread.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Kernel", "bits_of"]


@cache
def _team() -> Callable[[int, Any, int, int], None] | None:
    """`GOMP_parallel` of the library that torch runs on, or None."""
    import torch

    library = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    try:
        # RTLD_NOLOAD (4): only the copy that is already at work is of any use
        found = ctypes.CDLL(str(library), mode=4 | ctypes.RTLD_LOCAL).GOMP_parallel
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    found.restype = None
    call: Callable[[int, Any, int, int], None] = found
    return call


class Kernel:
    """A compiled kernel of `count` int64 arguments, from argument 1 on.

    Not for use by two threads at a time: its argument block is kept between calls.
    """

    def __init__(self, compiled: Any, count: int) -> None:  # noqa: ANN401 - numba has no types
        self._compiled = compiled  # keeps the machine code alive
        self._address = int(compiled.address)
        self._serial = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address)
        self._block = ctypes.create_string_buffer(8 * (count + 3))
        self._counter = ctypes.addressof(self._block)
        self._arguments = self._counter + 16
        self._pack = struct.Struct(f"{count + 3}q").pack_into
        self._team = _team()

    def __call__(self, threads: int, *arguments: int) -> None:
        """Run to the end on at most `threads` threads."""
        self._pack(self._block, 0, 0, 0, self._counter, *arguments)
        if threads > 1 and self._team is not None:
            self._team(self._address, self._arguments, threads, 0)
        else:
            self._serial(self._arguments)


def bits_of(number: float) -> int:
    """A float32 as an integer argument; `vector.f32_of_bits` reads it."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits
