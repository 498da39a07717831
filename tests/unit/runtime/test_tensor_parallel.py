"""A model in parts gives what it gives as a whole; a lost part is an error, never a hang."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import lmc
from lmc.errors import ModelError, RunError, UsageError
from lmc.runtime import weights as weights_module
from lmc.runtime.config import ModelConfig
from lmc.runtime.model_runner import ModelRunner
from lmc.runtime.request import Outcome, Sampling, Segment, Step
from lmc.runtime.runners import RunnerSpec, read_config
from lmc.runtime.store import ModelFiles
from lmc.runtime.tensor_parallel.shards import Shard, check_divisible
from lmc.runtime.tensor_parallel.wire import pack_step, unpack_step
from lmc.runtime.tensor_parallel.workers import LOADED, Task, Workers
from lmc.runtime.weights import load_weights, weight_shapes
from tests.unit.runtime.lockstep import ThreadGroup, together
from tests.unit.runtime.random_models import (
    VARIANTS,
    Sequence,
    random_tokens,
    random_weights,
    some_slots,
)
from tests.unit.runtime.tiny_models import byte_level_core, write_folder, write_gguf

EVERY = (0, 5, 17, 318)
POOL = 512
DIVISIONS = [("llama", 2), ("qwen2", 2), ("qwen3", 4), ("mistral", 2)]  # 4: more than kv heads
SMALL = {name: replace(config, layers=2) for name, config in VARIANTS.items()}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def part_of(weights: dict[str, torch.Tensor], config: ModelConfig, shard: Shard) -> Any:
    return {name: w[shard.where(name, config)].clone() for name, w in weights.items()}


# Parts


@pytest.mark.parametrize(("variant", "size"), DIVISIONS)
def test_parts_make_up_the_whole(variant: str, size: int) -> None:
    config = SMALL[variant]
    seen = {name: torch.zeros(shape) for name, shape in weight_shapes(config).items()}
    shapes = []
    for rank in range(size):
        shard = Shard(rank, size)
        for name, count in seen.items():
            count[shard.where(name, config)] += 1
        part = part_of(random_weights(config), config, shard)
        shapes.append({name: tuple(w.shape) for name, w in part.items() if "lm_head" not in name})
        expected = weight_shapes(shard.config(config))
        expected.pop("lm_head.weight", None)
        assert shapes[-1] == expected
    shared = size // config.kv_heads
    for name, count in seen.items():
        own = "proj" in name or "lm_head" in name
        times = 1 if own else size
        if "k_proj" in name or "v_proj" in name:
            times = max(1, shared)
        assert (count == times).all(), name


def test_what_cannot_be_divided_is_refused() -> None:
    config = VARIANTS["llama"]  # 6 heads, 2 key-value heads, 160 columns
    check_divisible(config, 2)
    for size, able in ((3, "1 or 2"), (4, "1 or 2"), (12, "1 or 2")):
        with pytest.raises(UsageError, match=f"among {size} processes") as caught:
            check_divisible(config, size)
        assert caught.value.hint == f"tensor_parallel may be {able}"


@pytest.mark.parametrize("kind", ["safetensors", "gguf", "random"])
def test_a_rank_reads_its_part_of_the_weights(tmp_path: Path, kind: str) -> None:
    config = SMALL["llama"]

    def read(shard: Shard | None) -> dict[str, torch.Tensor]:
        if kind == "random":
            return weights_module.random_weights(config, torch.float32, seed=3, shard=shard)
        files = ModelFiles("tiny", "gguf" if kind == "gguf" else "hf", path)
        return load_weights(files, config, torch.float32, shard=shard)

    held = random_weights(config)
    path = tmp_path
    if kind == "safetensors":
        save_file(held, path / "model.safetensors")
    elif kind == "gguf":
        inside = {new: old for old, new in weights_module._GGUF_INSIDE.items()}
        outside = {new: old for old, new in weights_module._GGUF_OUTSIDE.items()}
        tensors = {}
        for name, tensor in held.items():
            stem = name.removesuffix(".weight")
            if stem in outside:
                new = outside[stem]
            else:
                _, _, layer, stem = stem.split(".", 3)
                new = f"blk.{layer}.{inside[stem]}"
            tensors[f"{new}.weight"] = tensor.numpy()
        path = write_gguf(tmp_path / "tiny.gguf", tensors=tensors)
    whole = read(None)
    for rank in range(2):
        shard = Shard(rank, 2)
        part = read(shard)
        expected = part_of(whole, config, shard)
        assert part.keys() == expected.keys()
        for name, tensor in part.items():
            assert torch.equal(tensor, expected[name]), name
            assert tensor.is_contiguous()


# Steps as bytes

segments = st.builds(
    lambda count, start, made, drawn, wanted, more: Segment(
        tokens=np.arange(count, dtype=np.int32) + 7,
        start=start,
        slots=np.arange(start + count + more, dtype=np.int32)[::-1].copy(),
        made=made,
        sample=Sampling(temperature=0.5, seed=9) if drawn else None,
        targets=tuple((3, 4) if wanted >> i & 1 else () for i in range(count)) if wanted else (),
    ),
    count=st.integers(1, 5),
    start=st.integers(0, 4),
    made=st.booleans(),
    drawn=st.booleans(),
    wanted=st.integers(0, 31),
    more=st.integers(0, 2),
)


@given(st.lists(segments, min_size=1, max_size=4), st.integers(1, 16), st.booleans())
def test_other_ranks_get_the_rows_of_a_step(
    held: list[Segment], repeats: int, continues: bool
) -> None:
    step = Step(tuple(held), repeats, tuple(range(2, 2 + len(held))) if continues else ())
    got = unpack_step(pack_step(step))
    assert (got.repeats, got.after) == (repeats, step.after)
    for mine, theirs in zip(step.segments, got.segments, strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        assert mine.slots.tolist() == theirs.slots.tolist()
        assert (mine.start, mine.made) == (theirs.start, theirs.made)
        assert (mine.sample is None) == (theirs.sample is None)
        assert [bool(t) for t in mine.targets] == [bool(t) for t in theirs.targets]


# Numbers


def the_steps(config: ModelConfig) -> list[Step]:
    slots = some_slots(400, seed=1, pool=POOL)
    one = Sequence(random_tokens(config, 90, 1), slots[:90])
    two = Sequence(random_tokens(config, 60, 2), slots[90:150])
    return [
        Step((one.piece(68, every=EVERY),)),
        Step((two.piece(40), one.piece(1, every=EVERY, made=True))),
        Step((two.piece(1, every=EVERY, made=True), one.piece(1, made=True))),
    ]


@pytest.mark.parametrize(("variant", "size"), DIVISIONS)
def test_logits_of_parts_are_those_of_the_whole(
    variant: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.runtime.model_runner.LOGIT_ROWS", 50)
    config = replace(SMALL[variant], vocab_size=319)  # no multiple of the parts
    weights = random_weights(config)
    options: dict[str, Any] = {"dtype": "float32", "kv_tokens": POOL, "threads": 1}
    whole = ModelRunner(config, weights, **options)
    steps = the_steps(config)
    expected = [whole.run(step) for step in steps]
    whole.close()

    def work(group: ThreadGroup) -> list[Outcome]:
        shard = group.shard
        part = part_of(weights, config, shard)
        runner = ModelRunner(shard.config(config), part, group=group, **options)
        sent = steps if shard.rank == 0 else [unpack_step(pack_step(step)) for step in steps]
        return [runner.run(step) for step in sent]

    for mine, theirs in zip(together(size, work)[0], expected, strict=True):
        assert mine.tokens == theirs.tokens
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-4)
        for ours, others in zip(mine.scores, theirs.scores, strict=True):
            np.testing.assert_allclose(ours, others, atol=1e-4)


def test_a_step_that_fails_leaves_the_parts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that are not finite, in the first of two runs of rows."""
    monkeypatch.setattr("lmc.runtime.model_runner.LOGIT_ROWS", 4)
    config = SMALL["llama"]
    weights = random_weights(config)
    weights["model.embed_tokens.weight"][7] = torch.nan
    slots = some_slots(8, seed=1, pool=POOL)
    steps = [
        Step((Segment(np.full(8, token, np.int32), 0, slots, targets=((1,),) * 8),))
        for token in (7, 8)
    ]

    def work(group: ThreadGroup) -> list[object]:
        part = part_of(weights, config, group.shard)
        runner = ModelRunner(group.shard.config(config), part, group=group, kv_tokens=POOL)
        given: list[object] = []
        for step in steps:
            try:
                given.append(runner.run(step))
            except RunError as error:
                given.append(error)
        return given

    first, second = together(2, work)[0]
    assert "not finite" in str(first)
    assert isinstance(second, Outcome)


# Processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    core = byte_level_core()
    config = replace(SMALL["llama"], vocab_size=core.get_vocab_size())
    sizes = asdict(config)
    names = {
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "context_length": "max_position_embeddings",
    }
    kept = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", *names)
    path = write_folder(
        tmp_path_factory.mktemp("tiny"),
        core,
        config={names.get(k, k): sizes[k] for k in kept} | {"rms_norm_eps": config.rms_eps},
    )
    save_file(random_weights(config), path / "model.safetensors")
    return path


def engine(folder: Path, size: int) -> lmc.Engine:
    return lmc.Engine(
        str(folder), device="cpu", dtype="float32", kv_tokens=POOL, threads=size,
        tensor_parallel=size,
    )  # fmt: skip


@lmc.jit
def review(s: lmc.State, topic: str) -> None:
    s += f"On {topic}.\n"
    sides = s.fork(2)
    for side, word in zip(sides, ("good", "bad"), strict=True):
        side += f"What is {word} about it:"
        side += lmc.gen("side", max_tokens=12, stop="\n")
    sides.join()
    for text in s["side"]:
        s += text + "\n"
    s += lmc.gen("mark", max_tokens=4, regex=r"[1-9](\.[05])?")
    s += lmc.gen("drawn", max_tokens=12, temperature=0.8)
    s += lmc.select("verdict", [" print it", " send it back", " burn it"])


ROWS = [{"topic": topic} for topic in ("rivers", "trains")]


def test_a_model_in_two_processes(folder: Path) -> None:
    """The texts of one process; then a process is killed, and who waits hears of it."""
    with engine(folder, 1) as whole:
        expected = review.run_batch(ROWS, engine=whole, seed=3)
    before = threading.active_count()
    with engine(folder, 2) as parts:
        assert parts._runner.description.endswith("in 2 processes")
        got = review.run_batch(ROWS, engine=parts, seed=3)
        for mine, theirs in zip(got, expected, strict=True):
            assert mine.error is None
            assert mine.variables == theirs.variables
        parts.forget()
        eager = review.run_batch(ROWS[:1], engine=parts, seed=3, eager=True)
        assert eager[0].to_json() == got[0].to_json()  # bit by bit

        workers: Any = parts._runner._workers
        (process,) = workers._processes.values()
        killer = threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL))
        killer.start()
        lost = parts.generate(["On and on"] * 8, 300, ignore_eos=True)
        killer.join()
        for one in [*lost, *parts.generate("more", 4)]:  # no new request waits, either
            assert isinstance(one.error, RunError)
            assert "process 1 of 2 of the model was ended by the signal SIGKILL" in str(one.error)
    assert process.poll() is not None
    assert threading.active_count() <= before + 1  # the listener ends by itself


def test_what_a_process_cannot_do_is_said(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        if file.name != "model.safetensors":
            (broken / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        engine(broken, 2)


def test_a_process_ends_when_the_first_one_is_gone(folder: Path, tmp_path: Path) -> None:
    """Whatever it waits for: here, for the first one to meet it."""
    spec = RunnerSpec(ModelFiles("tiny", "hf", folder), "torch", "cpu", "float32", POOL)
    task = Task(spec, read_config(spec.files), Shard(1, 2), tmp_path / "meeting")
    workers = Workers([task])
    workers.wait_for(LOADED)
    (process,), (connection,) = workers._processes.values(), workers._connections.values()
    assert process.poll() is None
    workers._closing = True
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
    assert process.wait(20) in (0, 1)
    workers.close()


def test_refusals(folder: Path) -> None:
    for size in (0, -1, True, 1.5):
        with pytest.raises(UsageError, match="tensor_parallel is"):
            lmc.Engine(str(folder), device="cpu", tensor_parallel=size)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be divided among 3 processes"):
        engine(folder, 3)
    with pytest.raises(UsageError, match="the fake model cannot be divided"):
        lmc.Engine("fake", tensor_parallel=2)


two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


def on_devices(folder: Path, size: int, *, deterministic: bool = False) -> lmc.Engine:
    return lmc.Engine(
        str(folder), device="cuda", dtype="float32", kv_tokens=20 * POOL, max_batch_tokens=256,
        tensor_parallel=size, deterministic=deterministic,
    )  # fmt: skip


@pytest.mark.gpu
@two_devices
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_model_on_two_devices(folder: Path, deterministic: bool) -> None:
    results = []
    for size in (1, 2):
        with on_devices(folder, size, deterministic=deterministic) as one:
            results.append([r.variables for r in review.run_batch(ROWS, engine=one, seed=3)])
            if deterministic:
                one.forget()
                eager = review.run_batch(ROWS, engine=one, seed=3, eager=True)
                assert [r.variables for r in eager] == results[-1]
    assert results[0] == results[1]


@pytest.mark.gpu
@two_devices
def test_a_device_is_lost(folder: Path) -> None:
    """The last one: the first device's memory is not freed before the process ends."""
    with on_devices(folder, 2) as engine:
        runner: Any = engine._runner
        (process,) = runner._workers._processes.values()
        killer = threading.Timer(0.5, os.kill, (process.pid, signal.SIGKILL))
        killer.start()
        errors = []
        for _ in range(200):
            given = engine.generate(["On and on"] * 8, 400, ignore_eos=True)
            errors += [str(one.error) for one in given if one.error is not None]
            if errors:
                break
        assert errors
        assert all("was ended by the signal SIGKILL" in error for error in errors)
