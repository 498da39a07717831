"""Every attention backend of a device gives what the definition gives, on steps of all kinds."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lmc.errors import UsageError
from lmc.runtime.attention.base import Batch
from lmc.runtime.attention.reference import ReferenceAttention
from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda import backends, flashinfer_attention
from lmc.runtime.cuda.attention import DeviceAttention, StepRows
from lmc.runtime.cuda.backends import (
    DEVICE_ATTENTION,
    check_device_attention,
    choose_device_attention,
)
from lmc.runtime.cuda.flashinfer_attention import FlashInferAttention, long_run
from lmc.runtime.cuda.flight import Tables
from lmc.runtime.cuda.staging import Staging
from lmc.runtime.cuda.unit_attention import UnitAttention
from lmc.runtime.request import Segment, Step
from tests.unit.runtime.random_models import TINY

GPU = torch.cuda.is_available()
HERE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32
SCALE = 8 if GPU else 1  # steps are longer where they cost nothing
POOL = 2000 * SCALE
HEADS = {"grouped": (4, 2), "threes": (6, 2), "alone": (2, 2)}

Piece = tuple[list[int], int]  # slots of a context, and how many rows it ends with


class FakeWrapper:
    """FlashInfer's paged prefill as its documentation says it, in torch."""

    def __init__(self, space: Tensor, layout: str) -> None:
        assert layout == "NHD"

    def plan(
        self, rows: Tensor, pages: Tensor, slots: Tensor, last: Tensor, heads: int, kv_heads: int,
        head_dim: int, page_size: int, *, causal: bool, window_left: int, q_data_type: Any,
        kv_data_type: Any, max_token_per_sequence: int,
    ) -> None:  # fmt: skip
        assert causal
        assert page_size == 1
        assert (last == 1).all()
        assert int(rows.diff().max()) == max_token_per_sequence
        self._rows, self._pages, self._slots = rows.tolist(), pages.tolist(), slots.long()
        self._window = window_left

    def run(self, q: Tensor, kv: tuple[Tensor, Tensor], *, out: Tensor) -> None:
        assert len(q) == self._rows[-1]
        for i, first in enumerate(self._rows[:-1]):
            some = slice(first, self._rows[i + 1])
            table = self._slots[self._pages[i] : self._pages[i + 1]]
            k, v = (
                side[table, 0].float().repeat_interleave(q.shape[1] // side.shape[2], 1)
                for side in kv
            )
            scores = torch.einsum("rhd,chd->hrc", q[some].float(), k) / math.sqrt(q.shape[2])
            row = torch.arange(len(k))[-len(q[some]) :, None]
            place = torch.arange(len(k))[None]
            seen = place <= row
            if self._window >= 0:
                seen &= place >= row - self._window
            shares = scores.masked_fill(~seen, -math.inf).softmax(-1)
            out[some] = torch.einsum("hrc,chd->rhd", shares, v).to(out.dtype)


@pytest.fixture
def _flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer where there is a GPU, else something that computes the same."""
    if not GPU:
        fake = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=FakeWrapper)
        monkeypatch.setattr(flashinfer_attention, "_package", lambda: fake)
        monkeypatch.setattr(flashinfer_attention, "LEAST_ROWS", 12)
    elif importlib.util.find_spec("flashinfer") is None:
        pytest.skip("FlashInfer is not installed")


def model(heads: str, *, window: int | None = None) -> ModelConfig:
    queries, keys = HEADS[heads]
    return replace(
        TINY, heads=queries, kv_heads=keys, head_dim=128 if GPU else 32, sliding_window=window
    )


def backend(name: str, config: ModelConfig, *, fixed: bool = False) -> DeviceAttention:
    units = UnitAttention(config, dtype=DTYPE, device=HERE, rows=POOL, fixed=fixed)
    if name == "flashinfer":  # the choice refuses it on a CPU
        return FlashInferAttention(config, units, dtype=DTYPE, device=HERE)
    return choose_device_attention(name, config, units, dtype=DTYPE, device=HERE)


def steps() -> Iterator[tuple[str, list[Piece]]]:
    """Names and pieces. Slots are drawn without order, as from a pool that was used for long."""
    slots = iter(np.random.default_rng(0).permutation(POOL).tolist())

    def own(count: int) -> list[int]:
        return [next(slots) for _ in range(count)]

    yield "one token, nothing before", [(own(1), 1)]
    yield "one token", [(own(70), 1)]
    yield "a prompt", [(own(90 * SCALE), 90 * SCALE)]
    yield "a piece of a prompt", [(own(100 * SCALE), 30 * SCALE)]
    prefix = own(70)
    shared = [(prefix + own(n), n) for n in (1, 1, 14, 1, 20)]
    yield "decodes and prompts after one prefix", shared
    yield "a prefix and what follows it", [(prefix, 70), (prefix + own(15), 15), (prefix, 1)]
    turns = [own(n) for n in (40, 25)]
    yield (
        "what was made and the text after it",
        [piece for t in turns for piece in ((t[:7], 1), (t[:-1], len(t) - 8), (t, 1))],
    )
    mixed = [(own(n), rows) for n, rows in ((9, 1), (80, 80), (30, 1), (64, 20), (64, 40), (5, 5))]
    yield "long and short in turns", [(table, rows) for table, rows in mixed]


def random_step(seed: int) -> list[Piece]:
    """Contexts of which some begin like an earlier one, cut anywhere."""
    random = np.random.default_rng(seed)
    slots = iter(random.permutation(POOL).tolist())
    pieces: list[Piece] = []
    for _ in range(random.integers(1, 7)):
        table: list[int] = []
        if pieces and random.random() < 0.6:
            other = pieces[random.integers(len(pieces))][0]
            table = other[: random.integers(len(other) + 1)]
        fresh = [next(slots) for _ in range(int(2 ** random.uniform(0, 5.5)) * SCALE)]
        rows = 1 if random.random() < 0.4 else int(random.integers(1, len(fresh) + 1))
        pieces.append((table + fresh, rows))
    return pieces


CASES = dict(steps()) | {f"random {seed}": random_step(seed) for seed in range(3)}


def step_of(pieces: list[Piece], repeats: int = 1) -> Step:
    later = list(range(repeats - 1))  # slots of the passes that follow
    return Step(
        tuple(
            Segment(np.zeros(rows, np.int32), len(table) - rows, np.array(table + later, np.int32))
            for table, rows in pieces
        ),
        repeats,
    )


def attended(attention: DeviceAttention, config: ModelConfig, step: Step, seed: int) -> Any:
    """What a backend gives for random queries, keys and values, and what the definition gives."""
    tables, batch = Tables.of(step), Batch.of(step)
    make = torch.Generator().manual_seed(seed)
    heads = config.heads + 2 * config.kv_heads
    qkv = torch.randn(batch.rows, heads * config.head_dim, generator=make)
    pool = torch.randn(2, POOL, config.kv_heads, config.head_dim, generator=make)
    qkv, pool = (2 * qkv).to(HERE, DTYPE), pool.to(HERE, DTYPE)
    width = config.heads * config.head_dim
    out = torch.full((batch.rows, width), torch.nan, dtype=DTYPE, device=HERE)
    slots = torch.from_numpy(tables.slots).to(HERE)
    positions = torch.from_numpy(batch.positions).to(HERE)
    attend = attention.plan(StepRows(tables, slots, positions), Staging(1 << 16, HERE))
    attend(qkv, pool[0], pool[1], out)
    expected = torch.empty(batch.rows, width, device=HERE)
    reference = ReferenceAttention(config)
    reference.begin(batch)
    queries = qkv[:, :width].float().view(batch.rows, config.heads, -1)
    reference.attend(queries, pool[0].float(), pool[1].float(), expected)
    return out.float().cpu().numpy(), expected.cpu().numpy()


def same(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, atol=2e-2 if GPU else 1e-4)


@pytest.mark.usefixtures("_flashinfer")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", DEVICE_ATTENTION)
def test_it_gives_what_the_definition_gives(name: str, case: str) -> None:
    config = model("grouped")
    same(*attended(backend(name, config), config, step_of(CASES[case]), seed=len(case)))


@pytest.mark.usefixtures("_flashinfer")
@pytest.mark.parametrize("heads", ["threes", "alone"])
@pytest.mark.parametrize("name", DEVICE_ATTENTION)
def test_with_other_heads_and_a_window(name: str, heads: str) -> None:
    if GPU and name == "flashinfer" and heads == "alone":
        pytest.skip("for a window FlashInfer has a module of its own: minutes of compiling")
    config = model(heads, window=None if GPU and name == "flashinfer" else 33)
    attention = backend(name, config)
    for case in ("decodes and prompts after one prefix", "long and short in turns"):
        same(*attended(attention, config, step_of(CASES[case]), seed=1))


@pytest.mark.usefixtures("_flashinfer")
@pytest.mark.parametrize("name", DEVICE_ATTENTION)
def test_one_backend_serves_one_step_after_another(name: str) -> None:
    config = model("grouped")
    attention = backend(name, config)
    for nth, case in enumerate(["random 0", "a prompt", "one token", "random 1"]):
        same(*attended(attention, config, step_of(CASES[case]), seed=nth))


@pytest.mark.usefixtures("_flashinfer")
@pytest.mark.parametrize("name", DEVICE_ATTENTION)
def test_the_first_of_several_passes(name: str) -> None:
    config = model("grouped")
    step = step_of(CASES["long and short in turns"], repeats=4)
    same(*attended(backend(name, config), config, step, seed=0))


def test_fixed_units_give_what_the_definition_gives() -> None:
    config = model("grouped")
    attention = backend("auto", config, fixed=True)
    same(*attended(attention, config, step_of(CASES["long and short in turns"]), seed=0))


def test_the_run_with_most_rows_is_taken() -> None:
    assert long_run(np.array([1, 3, 9]), 10) is None
    assert long_run(np.array([10]), 10) == slice(0, 1)
    assert long_run(np.array([30, 1, 12, 11, 10, 9, 25]), 10) == slice(2, 5)


def test_what_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no attention backend 'tiles' on a GPU"):
        check_device_attention("tiles", deterministic=False)
    for name in ("flashinfer", "torch"):
        with pytest.raises(UsageError, match="deterministic=True is not possible"):
            check_device_attention(name, deterministic=True)
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed") as refused:
        check_device_attention("flashinfer", deterministic=False)
    assert refused.value.hint == "pip install 'lmc[flashinfer]'"


def test_numbers_that_flashinfer_cannot_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    config = model("grouped")
    units = UnitAttention(config, dtype=torch.float32, device=HERE, rows=64)
    with pytest.raises(UsageError, match="cannot serve float32"):
        choose_device_attention("flashinfer", config, units, dtype=torch.float32, device=HERE)
    chosen = choose_device_attention("auto", config, units, dtype=torch.float32, device=HERE)
    assert chosen.name == "triton"


def test_a_failure_of_flashinfer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(FakeWrapper):
        def plan(self, *arguments: Any, **options: Any) -> None:
            raise RuntimeError("Ninja build failed.\n[1/9] nvcc ...")

    config = model("grouped")
    units = UnitAttention(config, dtype=DTYPE, device=HERE, rows=64)
    broken = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Broken)
    monkeypatch.setattr(flashinfer_attention, "_package", lambda: broken)
    with pytest.raises(UsageError, match="FlashInfer cannot be used: Ninja build failed"):
        FlashInferAttention(config, units, dtype=DTYPE, device=HERE)


def test_what_flashinfer_compiles_is_kept_with_lmc_s_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LMC_HOME", str(tmp_path))
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "")
    monkeypatch.delenv("FLASHINFER_WORKSPACE_BASE")
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(UsageError, match="FlashInfer is not installed"):
        flashinfer_attention._package()
    assert os.environ["FLASHINFER_WORKSPACE_BASE"] == str(tmp_path / "flashinfer")


def test_segments_that_go_on_are_one_context() -> None:
    told, other = list(range(10)), [*range(6), 20, 21]
    pieces = [(told[:4], 1), (told, 6), (other, 2), (other, 1), ([30, 31], 2)]
    tables = Tables.of(step_of(pieces))
    assert tables.sizes.tolist() == [7, 2, 1, 2]  # branches of one context stay apart
    assert tables.lengths.tolist() == [10, 8, 8, 2]
    assert tables.offsets.tolist() == [0, 10, 18, 26]
    assert tables.slots.tolist() == [*told, *other, *other, 30, 31]


def test_segments_of_a_repeated_step_stay_apart() -> None:
    step = step_of([(([7, 8]), 2), ([7, 8, 9], 1)], repeats=2)
    assert len(Tables.of(step).sizes) == 2
