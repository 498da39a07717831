"""Products with packed weights: right, and the same bits for a row whatever stands beside it."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import Tensor

from lmc.errors import UsageError
from lmc.runtime.kernels import products
from lmc.runtime.kernels.codes import encode
from lmc.runtime.kernels.parallel import Kernel, Team
from lmc.runtime.kernels.products import Product, usable
from lmc.runtime.linear import (
    KernelLinear,
    Linear,
    PlainLinear,
    best_dtype,
    linear_kinds,
    rows_read,
)

KINDS = [*((name, torch.bfloat16) for name in usable() if name != "fma"), ("fma", torch.float32)]
KINDS += [("plain", torch.bfloat16), ("plain", torch.float32)]
SIZES = [(96, 64), (48, 576), (960, 160), (576, 1536)]


@pytest.fixture(scope="module")
def team() -> Team:
    return Team(2)


def make(
    name: str, weight: Tensor, bias: Tensor | None, team: Team, *, gated: bool = False
) -> Linear:
    if name == "plain":
        return PlainLinear(weight, bias)
    return KernelLinear(Product(name, team), weight, bias, gated, coded=True)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def padded(x: Tensor) -> Tensor:
    """x at the beginning of a buffer whose further rows are as bad as can be."""
    buffer = torch.full((rows_read(len(x)), x.shape[1]), torch.nan, dtype=x.dtype)
    buffer[: len(x)] = x
    return buffer[: len(x)]


@pytest.mark.parametrize(("columns", "inner"), SIZES)
@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_products_are_right(
    name: str, dtype: torch.dtype, columns: int, inner: int, team: Team
) -> None:
    weight, bias = random(columns, inner).to(dtype) / inner**0.5, random(columns, seed=1)
    x = random(45, inner, seed=2).to(dtype)
    exact = x.double() @ weight.double().T
    # sums are float32 in the kernels; the library rounds a bfloat16 product to bfloat16
    tolerance = 0.03 if (name, dtype) == ("plain", torch.bfloat16) else 1e-5
    linear = make(name, weight, bias, team)
    with torch.inference_mode():
        out = torch.full((45, columns), torch.nan)
        linear.write(padded(x), out)
        assert (out - (exact + bias)).abs().max() < tolerance
        residual = random(45, columns, seed=3)
        wanted = residual.double() + exact
        linear.add(padded(x), residual)
        assert (residual - wanted).abs().max() < tolerance


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_gates_are_right(name: str, dtype: torch.dtype, team: Team) -> None:
    weight = random(2 * 176, 96).to(dtype) / 3
    x = random(37, 96, seed=2).to(dtype)
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=1)
    wanted = gate * torch.sigmoid(gate) * up
    out = torch.zeros(37, 176, dtype=dtype)
    with torch.inference_mode():
        make(name, weight, None, team, gated=True).gate(padded(x), out)
    tolerance = (1e-5 if dtype == torch.float32 else 0.02) * (1 + wanted.abs())
    assert ((out.double() - wanted).abs() < tolerance).all()


@pytest.mark.parametrize(("columns", "inner"), SIZES)
@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_rows_do_not_depend_on_how_many_there_are(
    name: str, dtype: torch.dtype, columns: int, inner: int, team: Team
) -> None:
    linear = make(name, random(columns, inner).to(dtype), None, team)
    x = random(300, inner, seed=2).to(dtype)
    whole = torch.zeros(300, columns)
    with torch.inference_mode():
        linear.write(padded(x), whole)
        for rows in (*range(1, 36), 47, 48, 63, 64, 65, 127, 128, 129, 200, 299):
            for first in {0, 300 - rows, 7}:
                if first + rows <= 300:
                    part = torch.zeros(rows, columns)
                    linear.write(padded(x[first : first + rows]), part)
                    assert torch.equal(part, whole[first : first + rows]), (rows, first)


def quantized(columns: int, inner: int, bits: int) -> Tensor:
    """Weights as they come out of a file: in blocks of 32, few numbers at even distances."""
    blocks = (columns, inner // 32, 1)
    scale = (random(*blocks, seed=1).abs() / 10 + 0.01).half().float()
    if bits == 8:
        steps = (40 * random(columns, inner // 32, 32)).round().clamp(-127, 127)
        steps[..., 3] = 127  # the greatest of a block has the greatest number
        return (scale * (steps + 0.0)).flatten(1)  # a negative zero is another number
    steps = (8 + 4 * random(columns, inner // 32, 32)).round().clamp(0, 15)
    steps[..., 5], steps[..., 7] = 0, 15
    return (scale * steps + (random(*blocks, seed=2) - 1).half().float()).flatten(1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", [n for n in usable() if n != "fma"])
def test_coded_weights_give_the_same_bits(
    name: str, bits: int, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = quantized(208, 160, bits)
    weight[17] = 0
    weight[18] = 0.5
    codes = encode(weight)
    assert codes is not None
    assert codes.bits == bits
    for gated in (False, True):
        linear = make(name, weight if not gated else weight[:192], None, team, gated=gated)
        assert isinstance(linear, KernelLinear)
        assert linear.codes is not None
        for rows in (1, 7, 32):
            x = random(rows, 160, seed=rows).bfloat16()
            found = []
            for limit in (0, 1000):
                monkeypatch.setattr("lmc.runtime.linear.CODED_ROWS", limit)
                out = torch.zeros(rows, 96 if gated else 208, dtype=torch.bfloat16)
                if gated:
                    linear.gate(padded(x), out)
                else:
                    out = out.float()
                    linear.write(padded(x), out)
                found.append(out)
            assert torch.equal(*found)
            assert found[0].abs().max() > 0


def test_weights_are_coded_only_without_loss() -> None:
    assert encode(random(64, 64)) is None
    whole = quantized(64, 64, 4)
    assert encode(whole) is not None
    spoiled = whole.clone()
    spoiled[40, 50] *= 1.02  # one weight that is nobody's multiple
    assert encode(spoiled) is None
    for number in (torch.inf, torch.nan, 1e30):
        spoiled = whole.clone()
        spoiled[3, 3] = number
        assert encode(spoiled) is None
    assert encode(torch.zeros(16, 32)) is not None


def test_codes_are_kept_where_they_are_faster(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = linear_kinds(torch.bfloat16, team)[0]
    if kind.name == "plain":
        pytest.skip("no kernel for bfloat16 on this processor")
    for gain, kept in ((1e9, True), (0.0, False)):
        monkeypatch.setattr("lmc.runtime.linear.CLEAR_GAIN", gain)
        kind = linear_kinds(torch.bfloat16, team)[0]
        first = kind.pack(quantized(64, 64, 4), None, False)
        kind.settle([first])
        later = kind.pack(quantized(64, 64, 8), None, False)
        for linear in (first, later):
            assert isinstance(linear, KernelLinear)
            assert (linear.codes is not None) == kept


def test_threads_do_not_change_a_bit() -> None:
    weight, x = random(96, 64).bfloat16(), random(70, 64, seed=1).bfloat16()
    name = next(iter(usable()))
    if name == "fma":
        weight, x = weight.float(), x.float()
    found = []
    for threads in (1, 2, 3):
        team = Team(threads)
        out = torch.zeros(70, 96)
        with team.at_work():
            make(name, weight, None, team).write(padded(x), out)
        found.append(out)
        team.close()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_helpers_take_part_and_never_twice() -> None:
    """Many short kernels in a row: every item is computed exactly once."""
    team = Team(3)
    product = Product("fma", team)
    weight = products.pack(torch.eye(320))
    x, out = random(96, 320), torch.zeros(96, 320)
    with team.at_work():
        for _ in range(300):
            out.zero_()
            product(x.data_ptr(), weight.data_ptr(), 0, out.data_ptr(), 96, 320, 320, products.ADD)
            assert torch.equal(out, x)
    team.close()


def test_work_is_done_while_helpers_sleep() -> None:
    team = Team(4)
    time.sleep(0.01)
    out = torch.zeros(40, 64)
    make("fma", torch.eye(64), None, team).write(padded(random(40, 64)), out)
    assert torch.equal(out, random(40, 64))
    team.close()


def test_kernels_of_several_teams_run_at_the_same_time() -> None:
    import threading

    results: list[bool] = []

    def work(seed: int) -> None:
        team = Team(2)
        linear = make("fma", torch.eye(64), None, team)
        x, out = random(64, 64, seed=seed), torch.zeros(64, 64)
        with team.at_work():
            for _ in range(100):
                out.zero_()
                linear.write(x, out)
                results.append(torch.equal(out, x))
        team.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 300
    assert all(results)


def test_kinds_suit_type_and_shape(team: Team) -> None:
    assert [k.name for k in linear_kinds(torch.float32, team)] == ["fma", "plain"]
    assert [k.name for k in linear_kinds(torch.float32, None)] == ["plain"]
    assert linear_kinds(torch.bfloat16, None)[0].name == "plain"
    fast = linear_kinds(torch.float32, team)[0]
    assert fast.supports(48, 100)
    assert not fast.supports(50, 100)
    for kind in linear_kinds(torch.bfloat16, team)[:-1]:
        assert kind.supports(48, 96)
        assert not kind.supports(48, 80)
    with pytest.raises(UsageError, match="float16"):
        linear_kinds(torch.float16, team)


def test_the_best_type_has_a_kernel(team: Team) -> None:
    assert linear_kinds(best_dtype(), team)[0].name in usable()


def test_kernel_arguments_survive_calls(team: Team) -> None:
    """A kernel keeps its own argument block: calls of two kernels do not mix."""
    one, two = Product("fma", team), Product("fma", team)
    assert isinstance(one._kernel, Kernel)
    eye, double = products.pack(torch.eye(32)), products.pack(2 * torch.eye(32))
    x = random(32, 32)
    a, b = torch.zeros(32, 32), torch.zeros(32, 32)
    for product, weight, out in ((one, eye, a), (two, double, b), (one, eye, a)):
        product(x.data_ptr(), weight.data_ptr(), 0, out.data_ptr(), 32, 32, 32, products.WRITE)
    assert torch.equal(a, x)
    assert torch.equal(b, 2 * x)
    assert np.isfinite(a.numpy()).all()
