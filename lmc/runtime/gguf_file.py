"""GGUF files: the header as Python values, tensors as float32 arrays, each read when asked for.

Owns        a read-only memory map of one file.
Promises    dequantised values are bit for bit those of the `gguf` package, for every type that it
            knows; a damaged, cut off or foreign file is a ModelError, never a wrong tensor.
Costs       the header of a 49,152-token vocabulary takes about 0.03 s.
Not here    what the metadata mean (`config`, `tokenizer`), how weights are named (`weights`).
Source      the GGUF specification, versions 2 and 3, in the ggml repository (docs/gguf.md).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmc.errors import ModelError

__all__ = ["GGUFFile", "TensorInfo"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32  # bytes
_MAX_DEPTH = 4  # of arrays in arrays; none is in use, so deeper ones are damage
_MAX_DIMS = 8
_MAX_ELEMENTS = 2**60  # of a tensor; numpy counts bytes in 63 bits, even where a dimension is 0

# Metadata value types by number. Strings (8) and arrays (9) are read by hand.
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

# ggml tensor types: number -> (name, elements in a block, bytes of a block).
_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One line of the tensor table.

    Attributes:
        shape: row-major, as torch and numpy have it; the file lists the fastest dimension first.
        type: ggml's number of the element type; `type_name` its name.
        offset: of the data, in bytes from the start of the file.
        size: of the data, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    type_name: str
    offset: int
    size: int


class GGUFFile:
    """A GGUF file, open for reading until `close`.

    Attributes:
        metadata: the key-value pairs; arrays are lists.
        tensors: the tensor table, in the file's order.

    Raises:
        ModelError: the file cannot be opened, is no GGUF file, or is damaged or cut off.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < 24:
                    raise self._damaged("it is too short to be a GGUF file")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"cannot read {self.path}: {error.strerror or error}") from error
        try:
            self.metadata, self.tensors = _Header(self._map).read()
        except _Damage as damage:
            self.close()
            raise self._damaged(str(damage)) from None
        except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as error:
            self.close()
            raise self._damaged("its header ends early or holds impossible sizes") from error

    def raw(self, name: str) -> Bytes:
        """The bytes of a tensor as the file has them, uint8, shape (size,), until `close`."""
        info = self._info(name)
        return np.frombuffer(self._map, dtype=np.uint8, count=info.size, offset=info.offset)

    def read(self, name: str) -> Floats:
        """A tensor in float32, in its shape; a fresh array.

        Raises:
            ModelError: there is no such tensor, or its type cannot be decoded.
        """
        info = self._info(name)
        decode = _DECODERS.get(info.type, _decode_by_package)
        return decode(self.raw(name), info, self.path).reshape(info.shape)

    def close(self) -> None:
        """Unmap the file. Arrays that `raw` gave must not be used any more."""
        with contextlib.suppress(BufferError):  # an array of `raw` is alive: the map goes with it
            self._map.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelError(f"{self.path} has no tensor {name!r}") from None

    def _damaged(self, why: str) -> ModelError:
        return ModelError(
            f"{self.path} cannot be used: {why}",
            hint="get the file again, or give a GGUF file of version 2 or 3",
        )


class _Damage(Exception):  # noqa: N818 - never leaves this module
    """What is wrong with a file."""


class _Header:
    """One pass over the header of a mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        if self._data[:4] != _MAGIC:
            raise _Damage("it does not begin with the mark of a GGUF file")
        self._at = 4
        version = self._number("<I")
        if version in (0x02000000, 0x03000000):
            raise _Damage("its numbers are big-endian")
        if version not in (2, 3):
            raise _Damage(f"it has GGUF version {version}")
        tensor_count, pair_count = self._number("<Q"), self._number("<Q")
        self._check_count(tensor_count, 24)
        self._check_count(pair_count, 12)
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string()
            metadata[key] = self._value(self._number("<I"))
        table = [self._table_line() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise _Damage(f"its alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return metadata, self._place(table, start)

    def _place(
        self, table: list[tuple[str, tuple[int, ...], int, int]], start: int
    ) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in table:
            type_name, block, block_bytes = _layout(kind, name)
            if math.prod(max(length, 1) for length in shape) > _MAX_ELEMENTS:
                raise _Damage(f"its tensor {name!r} has the impossible shape {shape}")
            if (shape[-1] if shape else 1) % block:  # without a dimension it is one number
                raise _Damage(f"rows of its tensor {name!r} are no whole {type_name} blocks")
            size = math.prod(shape) // block * block_bytes
            if start + offset + size > self._size:
                raise _Damage(f"it is cut off: tensor {name!r} lies beyond its end")
            if name in tensors:
                raise _Damage(f"it has two tensors named {name!r}")
            tensors[name] = TensorInfo(name, shape, kind, type_name, start + offset, size)
        return tensors

    def _table_line(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dims = self._number("<I")
        if dims > _MAX_DIMS:
            raise _Damage(f"its tensor {name!r} has {dims} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dims))
        return name, shape[::-1], self._number("<I"), self._number("<Q")

    def _number(self, form: str) -> Any:  # noqa: ANN401 - of the type that `form` says
        value = struct.unpack_from(form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._number("<Q")
        self._check_count(length, 1)
        start, self._at = self._at, self._at + length
        return self._data[start : self._at].decode()

    def _value(self, kind: int, depth: int = 0) -> Any:  # noqa: ANN401 - as the file says
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth == _MAX_DEPTH:
            raise _Damage(f"it holds a value of the unknown type {kind}")
        of, count = self._number("<I"), self._number("<Q")
        if of in _SCALARS:
            form = np.dtype(_SCALARS[of])
            self._check_count(count, form.itemsize)
            items = np.frombuffer(self._data, dtype=form, count=count, offset=self._at).tolist()
            self._at += count * form.itemsize
            return items
        if of == _STRING:
            self._check_count(count, 8)
            return self._strings(count)
        self._check_count(count, 12)
        return [self._value(of, depth + 1) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        # A vocabulary and its merges are 100,000 strings, most of the header: no calls per string.
        data, at, size = self._data, self._at, self._size
        unpack = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0]
            if at > size:
                raise _Damage("it is cut off in its header")
            strings.append(data[start:at].decode())
        self._at = at
        return strings

    def _check_count(self, count: int, item_bytes: int) -> None:
        """Refuse counts that the rest of the file cannot hold, before memory is taken for them."""
        if count * item_bytes > self._size - self._at:
            raise _Damage("it is cut off in its header")


def _layout(kind: int, tensor: str) -> tuple[str, int, int]:
    """Name, elements and bytes of a block of a type; a newer `gguf` may know more than we do."""
    if kind in _TYPES:
        return _TYPES[kind]
    import gguf

    try:
        known = gguf.GGMLQuantizationType(kind)
        block, block_bytes = gguf.GGML_QUANT_SIZES[known]
    except (ValueError, KeyError):
        raise _Damage(f"its tensor {tensor!r} has the unknown type {kind}") from None
    return known.name, block, block_bytes


Decoder = Callable[[Bytes, TensorInfo, Path], Floats]

_CHUNK = 8192  # blocks decoded at a time: the halves of one chunk stay in the processor's cache


def _blocks(
    raw: Bytes, block_bytes: int, width: int, fill: Callable[[Bytes, Floats], None]
) -> Floats:
    """Decode blocks chunk by chunk into a new array of `width` elements a block."""
    blocks = raw.reshape(-1, block_bytes)
    out = np.empty((len(blocks), width), dtype=np.float32)
    for at in range(0, len(blocks), _CHUNK):
        fill(blocks[at : at + _CHUNK], out[at : at + _CHUNK])
    return out


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as a float32 column."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _q4_1(raw: Bytes, _info: TensorInfo, _path: Path) -> Floats:
    # w = scale * nibble + minimum; low nibbles are elements 0 to 15, high ones 16 to 31.
    def fill(blocks: Bytes, out: Floats) -> None:
        out[:, :16] = blocks[:, 4:] & 15
        out[:, 16:] = blocks[:, 4:] >> 4
        out *= _half(blocks, 0)
        out += _half(blocks, 2)

    return _blocks(raw, 20, 32, fill)


def _q4_0(raw: Bytes, _info: TensorInfo, _path: Path) -> Floats:
    # w = scale * (nibble - 8), in the same order as Q4_1.
    def fill(blocks: Bytes, out: Floats) -> None:
        out[:, :16] = (blocks[:, 2:] & 15).view(np.int8) - 8
        out[:, 16:] = (blocks[:, 2:] >> 4).view(np.int8) - 8
        out *= _half(blocks, 0)

    return _blocks(raw, 18, 32, fill)


def _q8_0(raw: Bytes, _info: TensorInfo, _path: Path) -> Floats:
    # w = scale * signed byte.
    def fill(blocks: Bytes, out: Floats) -> None:
        np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out)

    return _blocks(raw, 34, 32, fill)


def _f32(raw: Bytes, _info: TensorInfo, _path: Path) -> Floats:
    return raw.view(np.float32).copy()


def _f16(raw: Bytes, _info: TensorInfo, _path: Path) -> Floats:
    return raw.view(np.float16).astype(np.float32)


def _bf16(raw: Bytes, _info: TensorInfo, _path: Path) -> Floats:
    wide = raw.view(np.uint16).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


_DECODERS: Mapping[int, Decoder] = {0: _f32, 1: _f16, 2: _q4_0, 3: _q4_1, 8: _q8_0, 30: _bf16}


def _decode_by_package(raw: Bytes, info: TensorInfo, path: Path) -> Floats:
    """Every other type, by the `gguf` package; it takes 0.1 s to import."""
    import gguf

    if not info.size:
        return np.empty(0, dtype=np.float32)
    try:
        rows = raw.reshape(math.prod(info.shape[:-1]), -1)
        values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(info.type))
    except (NotImplementedError, ValueError, KeyError, IndexError) as error:
        raise ModelError(
            f"tensor {info.name!r} of {path} is {info.type_name}, which cannot be decoded",
            hint="give a file with another quantisation, such as Q8_0 or Q4_K_M",
        ) from error
    return np.asarray(values, dtype=np.float32)
