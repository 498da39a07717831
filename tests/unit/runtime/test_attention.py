"""Attention backends against their definition, and the division of steps into units."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmc.errors import UsageError
from lmc.runtime.attention import tiles_numba
from lmc.runtime.attention.base import AttentionBackend, Batch
from lmc.runtime.attention.reference import ReferenceAttention
from lmc.runtime.attention.registry import ATTENTION, choose_attention
from lmc.runtime.attention.units import LEAD, PARTS, WHOLE, divide
from lmc.runtime.config import ModelConfig
from lmc.runtime.kernels.parallel import Team
from lmc.runtime.kernels.products import usable
from lmc.runtime.request import IntArray, Segment, Step

POOL = 2048
BASE = ModelConfig(
    family="llama",
    vocab_size=32,
    hidden_size=64,
    intermediate_size=64,
    layers=1,
    heads=6,
    kv_heads=2,
    head_dim=64,
    context_length=4096,
)
SHAPES = {  # (heads, kv_heads, head_dim, window)
    "grouped": (6, 2, 64, None),
    "one head": (1, 1, 32, None),
    "wide": (4, 4, 128, None),
    "uneven": (3, 1, 80, None),
    "narrow": (2, 2, 16, None),
    "many to one": (20, 1, 32, None),
    "window": (6, 2, 64, 70),
    "small window": (2, 1, 32, 3),
}
BACKENDS = [
    *((kernel, torch.bfloat16) for kernel in usable()),
    ("fma", torch.float32),
    ("torch", torch.float32),
    ("torch", torch.bfloat16),
]
# the kernels that multiply pairs of bfloat16 want heads of a multiple of 32
CASES = [
    (*backend, shape)
    for backend in BACKENDS
    for shape, (_, _, head_dim, _) in SHAPES.items()
    if backend[0] in ("fma", "torch") or head_dim % 32 == 0
]


@pytest.fixture(scope="module")
def team() -> Team:
    return Team(2)


def config_of(shape: str) -> ModelConfig:
    heads, kv_heads, head_dim, window = SHAPES[shape]
    return replace(BASE, heads=heads, kv_heads=kv_heads, head_dim=head_dim, sliding_window=window)


def make_backend(
    kernel: str, config: ModelConfig, dtype: torch.dtype, team: Team, patch: pytest.MonkeyPatch
) -> AttentionBackend:
    if kernel == "torch":
        return choose_attention("torch", config, team, dtype=dtype)
    patch.setattr(tiles_numba, "best_kernel", lambda *_: kernel)
    return choose_attention("tiles", config, team, dtype=dtype)


def segment(table: IntArray, count: int, *, made: bool = False) -> Segment:
    """The last `count` positions of a table."""
    return Segment(
        tokens=np.zeros(count, np.int32), start=len(table) - count, slots=table, made=made
    )


def mixed_step(seed: int = 0) -> Step:
    """Prompts, chunks and decodes; some share whole tiles, some part of one, some nothing."""
    slots = np.random.default_rng(seed).permutation(POOL).astype(np.int32)
    trunk = slots[:300]

    def branch(at: int, first: int, count: int) -> IntArray:
        return np.concatenate([trunk[:at], slots[first : first + count]])

    return Step(
        (
            segment(slots[1000:1130], 130),  # a whole prompt
            segment(trunk, 100),  # a chunk of it, which others stand on
            segment(branch(300, 400, 1), 1, made=True),
            segment(branch(300, 401, 30), 1, made=True),
            segment(branch(256, 450, 80), 20),
            segment(branch(200, 550, 5), 1, made=True),
            segment(branch(200, 560, 150), 1, made=True),
            segment(branch(63, 720, 2), 2),
            segment(slots[1200:1201], 1, made=True),
            segment(slots[1300:1364], 64),
        )
    )


def attend(
    backend: AttentionBackend, step: Step, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    batch = Batch.of(step)
    out = torch.full((batch.rows, queries.shape[1] * queries.shape[2]), 7.0, dtype=keys.dtype)
    with torch.inference_mode():
        backend.begin(batch)
        backend.attend(queries, keys, values, out)
    return out


def random_tensors(
    config: ModelConfig, rows: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    pool = (POOL, config.kv_heads, config.head_dim)
    return (
        2 * torch.randn(rows, config.heads, config.head_dim, generator=generator),
        torch.randn(pool, generator=generator).to(dtype),
        torch.randn(pool, generator=generator).to(dtype),
    )


@pytest.mark.parametrize(("kernel", "dtype", "shape"), CASES)
def test_backends_agree_with_the_definition(
    kernel: str, dtype: torch.dtype, shape: str, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(shape)
    backend = make_backend(kernel, config, dtype, team, monkeypatch)
    step = mixed_step()
    queries, keys, values = random_tensors(config, Batch.of(step).rows, dtype)
    # slots that nobody reads must not matter
    read = np.unique(np.concatenate([s.slots for s in step.segments]))
    unread = np.setdiff1d(np.arange(POOL), read)
    keys[unread], values[unread] = torch.nan, torch.nan
    expected = attend(ReferenceAttention(config), step, queries, keys, values).float()
    got = attend(backend, step, queries, keys, values).float()
    tolerance = 2e-5 if dtype == torch.float32 else 0.03
    assert (got - expected).abs().max() < tolerance
    if dtype == torch.bfloat16:  # the greatest error is of rounding; most are far smaller
        assert (got - expected).abs().mean() < 0.003


@pytest.mark.parametrize(("kernel", "dtype"), BACKENDS)
@pytest.mark.parametrize("shape", ["grouped", "window"])
def test_a_row_is_the_same_bits_alone(
    kernel: str, dtype: torch.dtype, shape: str, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(shape)
    backend = make_backend(kernel, config, dtype, team, monkeypatch)
    step = mixed_step(1)
    batch = Batch.of(step)
    queries, keys, values = random_tensors(config, batch.rows, dtype)
    together = attend(backend, step, queries, keys, values)
    for first, s in zip(batch.first, step.segments, strict=True):
        for row in {0, len(s.tokens) // 2, len(s.tokens) - 1}:
            table = s.slots[: s.start + row + 1]
            alone = Step((segment(np.ascontiguousarray(table), 1, made=s.made),))
            only = queries[first + row : first + row + 1].contiguous()
            got = attend(backend, alone, only, keys, values)
            assert torch.equal(got[0], together[first + row])


def test_long_contexts_are_cut_without_changing_a_bit(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("grouped")
    backend = choose_attention("tiles", config, team, dtype=torch.float32)
    step = Step((segment(np.arange(1500, dtype=np.int32)[::-1].copy(), 1),))
    tensors = random_tensors(config, 1, torch.float32)
    found = []
    for run in (1, 3, 1000):
        monkeypatch.setattr(tiles_numba, "LONG_RUN", run)
        found.append(attend(backend, step, *tensors))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[2])
    expected = attend(ReferenceAttention(config), step, *tensors)
    assert (found[0] - expected).abs().max() < 2e-5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows_per_unit=st.integers(1, 9),
    longest_run=st.sampled_from([1, 2, 1 << 30]),
)
def test_units_cover_each_tile_of_each_row_once(
    seed: int, rows_per_unit: int, longest_run: int
) -> None:
    tile, draw = 4, np.random.default_rng(seed).integers
    fresh = iter(range(10_000))
    tables: list[IntArray] = []
    segments = []
    for _ in range(draw(1, 9)):
        parent = tables[draw(len(tables))] if tables and draw(4) else np.zeros(0, np.int32)
        kept = parent[: draw(len(parent) + 1)]
        own = [next(fresh) for _ in range(draw(1, 12))]
        tables.append(np.concatenate([kept, np.array(own, np.int32)]).astype(np.int32))
        segments.append(segment(tables[-1], int(draw(1, len(own) + 1))))
    batch = Batch.of(Step(tuple(segments)))
    found = divide(
        batch, tile=tile, rows_per_unit=rows_per_unit, longest_run=longest_run, window=None
    )
    owner = np.repeat(np.arange(len(segments)), [len(s.tokens) for s in segments])
    covered: Counter[tuple[int, int]] = Counter()
    for first, rows, table, length, begin, end, kind in found.units.tolist():
        assert 0 < rows <= rows_per_unit
        for row in found.order[first : first + rows].tolist():
            own_tiles = -(-int(found.limits[row]) // tile)
            mine = tables[owner[row]]
            upto = min(end * tile, int(found.limits[row]))
            assert (
                found.slots[table + begin * tile : table + upto] == mine[begin * tile : upto]
            ).all()
            assert upto <= length
            covered.update((row, t) for t in range(begin, min(end, own_tiles)))
            if kind == PARTS:
                assert begin >= found.leads[row]
            else:
                assert begin == 0
                assert kind == (WHOLE if own_tiles <= found.leads[row] else LEAD)
    wanted = {
        (row, t) for row in range(batch.rows) for t in range(-(-int(found.limits[row]) // tile))
    }
    assert covered == Counter(wanted)
    assert sorted(found.folded) == [r for r in range(batch.rows) if found.counts[r]]
    assert found.parts == found.counts.sum()


def test_rows_with_the_same_prefix_are_computed_together() -> None:
    slots = np.arange(1000, dtype=np.int32)
    tables = [np.concatenate([slots[:256], slots[300 + 10 * i : 310 + 10 * i]]) for i in range(8)]
    batch = Batch.of(Step(tuple(segment(t, 1) for t in tables)))
    found = divide(batch, tile=64, rows_per_unit=16, longest_run=1 << 30, window=None)
    kinds = Counter(found.units[:, 6].tolist())
    assert kinds == {LEAD: 1, PARTS: 8}


def test_backends_are_chosen_by_what_there_is(team: Team) -> None:
    choose = choose_attention
    assert choose("auto", BASE, team, dtype=torch.float32).name == "tiles"
    assert choose("auto", BASE, None, dtype=torch.float32).name == "torch"
    odd = replace(BASE, head_dim=24)
    assert choose("auto", odd, team, dtype=torch.float32).name == "torch"
    with pytest.raises(UsageError, match="multiple of 16"):
        choose("tiles", odd, team, dtype=torch.float32)
    with pytest.raises(UsageError, match="no attention backend"):
        choose("flash", BASE, team, dtype=torch.float32)
    for name in ATTENTION:
        assert choose(name, BASE, team, dtype=torch.float32).name == name
