"""NCCL, called directly: sums and collections in the device's own queue, and nothing beside them.

torch's process group for NCCL has threads that watch it and end the process when a peer is gone,
and processes hung when it was taken down. A communicator that is called from here has none of this;
torch brings the library.

Promises    a call puts work into the current stream and returns, so it can be captured in a graph.
            `abort` ends what waits for other ranks.
Source      the interface is that of nccl.h, version 2.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from lmc.errors import RunError, UsageError

__all__ = ["Communicator", "new_meeting"]

_ID_BYTES = 128
_SUM = 0
_TYPES = {
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.bfloat16: 9,
}


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


def _library() -> Any:  # noqa: ANN401 - a C library
    try:
        library = ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        raise UsageError(
            f"NCCL cannot be loaded: {error}", hint="install a torch with CUDA for Linux"
        ) from error
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.ncclGetErrorString.restype = ctypes.c_char_p
    library.ncclGetErrorString.argtypes = [number]
    for name, arguments in (
        ("ncclGetUniqueId", [ctypes.POINTER(_Id)]),
        ("ncclCommInitRank", [ctypes.POINTER(pointer), number, _Id, number]),
        ("ncclAllReduce", [pointer, pointer, size, number, number, pointer, pointer]),
        ("ncclAllGather", [pointer, pointer, size, number, pointer, pointer]),
        ("ncclBroadcast", [pointer, pointer, size, number, number, pointer, pointer]),
        ("ncclCommAbort", [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = number, arguments
    return library


def new_meeting() -> bytes:
    """By what the ranks of a new communicator find each other."""
    library, meeting = _library(), _Id()
    _check(library, library.ncclGetUniqueId(ctypes.byref(meeting)))
    return bytes(meeting)


def _check(library: Any, result: int) -> None:  # noqa: ANN401 - a C library
    if result:
        what = library.ncclGetErrorString(result).decode()
        raise RunError(f"NCCL failed: {what}", hint="NCCL_DEBUG=WARN shows more")


class Communicator:
    """A rank's end of a communicator, on the current device; made by all ranks at once."""

    def __init__(self, meeting: bytes, rank: int, size: int) -> None:
        self._library = _library()
        self._comm = ctypes.c_void_p()
        self._do(
            "CommInitRank", ctypes.byref(self._comm), size, _Id.from_buffer_copy(meeting), rank
        )

    def add_up(self, x: Tensor) -> None:
        """Replace x by the sum of all ranks'."""
        self._do(
            "AllReduce", x.data_ptr(), x.data_ptr(), x.numel(), _TYPES[x.dtype], _SUM, self._comm,
            _stream(),
        )  # fmt: skip

    def gather(self, x: Tensor, every: Tensor) -> None:
        """Write what all ranks have into `every`, one after another."""
        self._do(
            "AllGather", x.data_ptr(), every.data_ptr(), x.numel(), _TYPES[x.dtype], self._comm,
            _stream(),
        )  # fmt: skip

    def share(self, x: Tensor) -> None:
        """Replace x by what rank 0 has."""
        self._do(
            "Broadcast", x.data_ptr(), x.data_ptr(), x.numel(), _TYPES[x.dtype], 0, self._comm,
            _stream(),
        )  # fmt: skip

    def abort(self) -> None:
        """Give it up; it cannot be used any more."""
        self._do("CommAbort", self._comm)

    def _do(self, name: str, *arguments: object) -> None:
        _check(self._library, getattr(self._library, f"nccl{name}")(*arguments))


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)
