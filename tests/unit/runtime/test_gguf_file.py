"""GGUF files are read as the gguf package reads them, and damaged ones are refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_gguf

from lmc.errors import ModelError
from lmc.runtime.gguf_file import _TYPES, GGUFFile
from lmc.runtime.store import resolve

Types = gguf.GGMLQuantizationType


def quantised(path: Path, kind: gguf.GGMLQuantizationType, raw: np.ndarray[Any, Any]) -> Path:
    """A file with one tensor "t" of the given type, whose rows are the rows of `raw` in bytes."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_come_back(tmp_path: Path) -> None:
    metadata = {
        "a.text": "Grüße 😀",
        "a.true": True,
        "a.count": 7,
        "a.share": 0.5,
        "a.numbers": [1, -2, 3],
        "a.floats": [0.25, -1.5],
        "a.texts": ["x", "", "日本"],
        "a.flags": [True, False],
    }
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", metadata=metadata))
    assert {key: file.metadata[key] for key in metadata} == metadata
    assert file.metadata["general.architecture"] == "llama"


def test_nested_arrays_and_wide_numbers_come_back(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_uint64("wide", 2**63)
    writer.add_int8("small", -5)
    writer.add_float64("fine", 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = GGUFFile(tmp_path / "m.gguf").metadata
    assert [metadata[k] for k in ("nested", "wide", "small", "fine")] == [
        [[1, 2], [3]],
        2**63,
        -5,
        0.1,
    ]


def test_sizes_of_types_are_those_of_the_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {k: theirs[k] for k in _TYPES} == _TYPES


DECODABLE = [k for k in gguf.quants._type_traits if k not in (Types.F32, Types.F16)]


@pytest.mark.parametrize("kind", DECODABLE, ids=lambda kind: kind.name)
def test_all_types_decode_bit_by_bit_as_in_the_package(
    kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(int(kind))
    raw = random.integers(0, 256, (6, 4 * block_bytes), dtype=np.uint8)
    with GGUFFile(quantised(tmp_path / "m.gguf", kind, raw)) as file, np.errstate(all="ignore"):
        got, expected = file.read("t"), gguf.quants.dequantize(raw, kind)
        assert got.shape == expected.shape == file.tensors["t"].shape
        # Random bytes make NaNs as scales: equal bits, so NaNs equal themselves.
        same = got.view(np.uint32) == expected.astype(np.float32).view(np.uint32)
        assert np.all(same | (np.isnan(got) & np.isnan(expected)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_plain_floats_come_back(dtype: type, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(dtype)
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", tensors={"t": values}))
    assert file.tensors["t"].shape == (3, 5)
    assert np.array_equal(file.read("t"), values.astype(np.float32))


def test_many_blocks_decode_like_few(tmp_path: Path) -> None:
    """More than one chunk of the decoders."""
    values = np.random.default_rng(0).standard_normal((64, 32 * 300)).astype(np.float32)
    for kind in (Types.Q4_0, Types.Q4_1, Types.Q8_0):
        raw = gguf.quants.quantize(values, kind)
        file = GGUFFile(quantised(tmp_path / f"{kind.name}.gguf", kind, raw))
        assert np.array_equal(file.read("t"), gguf.quants.dequantize(raw, kind))


def test_what_is_read_is_the_callers_own(tmp_path: Path) -> None:
    values = np.ones((2, 2), dtype=np.float32)
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", tensors={"t": values}))
    file.read("t")[:] = 5
    assert np.array_equal(file.read("t"), values)
    raw = file.raw("t")
    file.close()
    assert raw.nbytes == 16


def test_types_that_nothing_decodes_are_refused(tmp_path: Path) -> None:
    raw = np.zeros((1, gguf.GGML_QUANT_SIZES[Types.Q8_K][1]), dtype=np.uint8)
    file = GGUFFile(quantised(tmp_path / "m.gguf", Types.Q8_K, raw))
    with pytest.raises(ModelError, match="Q8_K, which cannot be decoded"):
        file.read("t")


def test_a_tensor_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tensor 'nope'"):
        GGUFFile(write_gguf(tmp_path / "m.gguf")).read("nope")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    metadata = {"a.texts": ["x", "yy"], "a.n": 3, "a.list": [1, 2]}
    tensors = {"t": np.ones((4, 32), dtype=np.float32), "u": np.ones(3, dtype=np.float32)}
    return write_gguf(path, metadata=metadata, tensors=tensors).read_bytes()


def test_a_file_cut_off_anywhere_is_refused(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    padding = 32 - 3 * 4  # after the last tensor; nothing is lost with it
    for length in [*range(0, 400, 7), len(small) - padding - 1]:
        path.write_bytes(small[:length])
        with pytest.raises(ModelError, match=r"cut off|ends early|too short|end early"):
            GGUFFile(path)


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 500), value=st.integers(0, 255))
def test_a_damaged_header_never_crashes(
    at: int, value: int, small: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    data = bytearray(small)
    data[at % len(data)] = value
    path.write_bytes(data)
    try:
        with GGUFFile(path) as file:
            for name in file.tensors:
                file.read(name)
    except ModelError:
        pass


def with_shape(small: bytes, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> bytes:
    """The small file whose tensor "t", the first one, has another shape and type in the table."""
    at = small.index(struct.pack("<Q", 1) + b"t") + 9
    there = struct.calcsize("<IQQI")  # two dimensions
    said = struct.pack(f"<I{len(shape)}QI", len(shape), *shape[::-1], int(kind))
    return small[:at] + said + small[at + there :]


def test_a_number_is_no_block(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(with_shape(small, (), Types.Q8_0))
    with pytest.raises(ModelError, match="'t' are no whole Q8_0 blocks"):
        GGUFFile(path)


@pytest.mark.parametrize("kind", [Types.F32, Types.Q8_0, Types.Q5_1])
def test_tensors_of_nothing_are_read_and_impossible_ones_refused(
    kind: gguf.GGMLQuantizationType, small: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(with_shape(small, (4, 0), kind))
    with GGUFFile(path) as file:
        assert file.read("t").shape == (4, 0)
    path.write_bytes(with_shape(small, (2**62, 0), kind))
    with pytest.raises(ModelError, match="impossible shape"):
        GGUFFile(path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "too short"),
        (b"PK\x03\x04" + bytes(100), "mark of a GGUF file"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(100), "cut off"),
    ],
)
def test_foreign_files_are_refused(data: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=problem):
        GGUFFile(path)


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.gguf"):
        with pytest.raises(ModelError, match="cannot read"):
            GGUFFile(path)


@pytest.mark.model
def test_the_default_model_is_read_as_by_the_package() -> None:
    path = resolve("smollm2-135m").path
    assert path
    file = GGUFFile(path)
    assert len(file.tensors) == 272
    names = ("blk.0.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight")
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors if t.name in names}
    for name in names:
        expected = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
        assert np.array_equal(file.read(name), expected)
