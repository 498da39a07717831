"""Weights come under the names, in the shapes and with the values that transformers has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tiny_models import write_gguf

from lmc.errors import CapacityError, ModelError
from lmc.runtime.config import ModelConfig, config_from_gguf, config_from_hf
from lmc.runtime.gguf_file import GGUFFile
from lmc.runtime.hf_tokenizer import read_json
from lmc.runtime.store import ModelFiles, resolve
from lmc.runtime.weights import load_weights, random_weights, weight_shapes

TINY = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def model_of(family: str, **more: Any) -> Any:
    torch.manual_seed(0)
    name = family.capitalize()
    config = getattr(transformers, f"{name}Config")(**{**TINY, **more})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in model.parameters():  # norms and biases, too, are random
        torch.nn.init.normal_(parameter)
    return model


def saved(folder: Path, family: str = "llama", *, shard: str = "5GB", **more: Any) -> Any:
    model = model_of(family, **more)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    config = config_from_hf(read_json(folder / "config.json"))
    return load_weights(ModelFiles("tiny", "hf", folder), config, dtype)


def agree(got: dict[str, torch.Tensor], model: Any, *, tied: bool = False) -> None:
    expected = dict(model.state_dict())
    if tied:
        del expected["lm_head.weight"]
    assert got.keys() == expected.keys()
    for name, tensor in got.items():
        assert tensor.is_contiguous()
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_folders_give_the_weights_of_transformers(family: str, tied: bool, tmp_path: Path) -> None:
    model = saved(tmp_path, family, tie_word_embeddings=tied)
    agree(loaded(tmp_path), model, tied=tied)


def test_sharded_folders_are_read(tmp_path: Path) -> None:
    model = saved(tmp_path, shard="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    agree(loaded(tmp_path), model)
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(ModelError, match="lacks the file"):
        loaded(tmp_path)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_weights_are_converted(stored: torch.dtype, wanted: torch.dtype, tmp_path: Path) -> None:
    model = model_of("llama").to(stored)
    model.save_pretrained(tmp_path)
    got = loaded(tmp_path, wanted)
    assert {tensor.dtype for tensor in got.values()} == {wanted}
    agree(got, model.to(wanted))


def changed(folder: Path, change: Any) -> None:
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.pop("model.norm.weight"), "lack model.norm.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), "have unknown extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(47)}),
            r"model.norm.weight of tiny has the shape \(47,\), not \(48,\)",
        ),
        (lambda t: t.clear(), "and 16 more"),
    ],
)
def test_files_that_do_not_fit_are_refused(change: Any, problem: str, tmp_path: Path) -> None:
    saved(tmp_path)
    changed(tmp_path, change)
    with pytest.raises(ModelError, match=problem):
        loaded(tmp_path)


def test_what_is_computed_or_repeated_is_ignored(tmp_path: Path) -> None:
    model = saved(tmp_path, tie_word_embeddings=True)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    changed(tmp_path, lambda t: t.update({name: torch.ones(4), "lm_head.weight": torch.ones(1)}))
    agree(loaded(tmp_path), model, tied=True)


def test_missing_and_damaged_files_are_errors(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a safetensors file at all")
    with pytest.raises(ModelError, match="cannot be read"):
        loaded(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        loaded(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": 3}))
    with pytest.raises(ModelError, match="weight_map"):
        loaded(tmp_path)
    config = config_from_hf(read_json(tmp_path / "config.json"))
    with pytest.raises(ModelError, match="fake has no weights"):
        load_weights(ModelFiles("fake", "fake"), config, torch.float32)


# GGUF.


def paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The row order of llama.cpp, written as its converter's rule: pairs next to each other."""
    size = weight.shape[0] // heads
    rows = [
        head * size + half * (size // 2) + plane
        for head in range(heads)
        for plane in range(size // 2)
        for half in range(2)
    ]
    return weight[rows]


def gguf_of(path: Path, model: Any, arch: str) -> Path:
    names = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module.startswith("model.layers."):
            _, _, layer, inside = module.split(".", 3)
            if arch == "llama" and inside in ("self_attn.q_proj", "self_attn.k_proj"):
                tensor = paired(tensor, 6 if "q_proj" in inside else 2)
            new = f"blk.{layer}.{names[inside]}.{kind}"
        else:
            tops = {
                "model.embed_tokens": "token_embd",
                "model.norm": "output_norm",
                "lm_head": "output",
            }
            new = f"{tops[module]}.{kind}"
        tensors[new] = tensor.numpy()
    metadata = {
        ".block_count": 2,
        ".context_length": 128,
        ".embedding_length": 48,
        ".feed_forward_length": 80,
        ".attention.head_count": 6,
        ".attention.head_count_kv": 2,
        ".attention.key_length": 8,
        ".attention.value_length": 8,
    }
    return write_gguf(path, arch=arch, metadata=metadata, tensors=tensors)


def loaded_gguf(path: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    with GGUFFile(path) as file:
        config = config_from_gguf(file)
    return config, load_weights(ModelFiles("tiny", "gguf", path), config, torch.float32)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_gguf_files_give_the_weights_of_transformers(arch: str, tmp_path: Path) -> None:
    model = model_of(arch)
    config, weights = loaded_gguf(gguf_of(tmp_path / "m.gguf", model, arch))
    agree(weights, model)
    assert {n: tuple(t.shape) for n, t in weights.items()} == weight_shapes(config)


def test_unknown_tensors_in_gguf_are_refused(tmp_path: Path) -> None:
    model = model_of("llama")
    model.register_buffer("lm_head2", torch.zeros(1))
    path = tmp_path / "m.gguf"
    source = GGUFFile(gguf_of(tmp_path / "good.gguf", model_of("llama"), "llama"))
    tensors = {name: source.read(name) for name in source.tensors}
    metadata = {k: v for k, v in source.metadata.items() if k != "general.architecture"}
    for name, problem in (("blk.0.ffn_gate_exps.weight", "ffn_gate_exps"), ("odd.weight", "odd")):
        write_gguf(path, metadata=metadata, tensors={**tensors, name: np.zeros(4, np.float32)})
        with pytest.raises(ModelError, match=f"have unknown .*{problem}"):
            loaded_gguf(path)


# Random.


@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_fit_and_are_those_of_the_seed(family: str) -> None:
    config = config_from_hf(model_of(family).config.to_dict())
    one = random_weights(config, torch.float32, seed=1)
    assert {n: tuple(t.shape) for n, t in one.items()} == weight_shapes(config)
    again, other = (random_weights(config, torch.float32, seed=s) for s in (1, 2))
    for name, tensor in one.items():
        assert torch.equal(tensor, again[name])
        if name.endswith("norm.weight"):
            assert torch.all(tensor == 1)
        elif name.endswith("bias"):
            assert torch.all(tensor == 0)
        else:
            assert not torch.equal(tensor, other[name])
            assert abs(tensor.std().item() - 0.02) < 0.002
    assert random_weights(config, torch.bfloat16)["model.norm.weight"].dtype == torch.bfloat16


def test_transformers_takes_random_weights() -> None:
    model = model_of("qwen3")
    weights = random_weights(config_from_hf(model.config.to_dict()), torch.float32)
    model.load_state_dict(weights, strict=True)


def test_loading_leaves_the_number_of_threads_alone(tmp_path: Path) -> None:
    saved(tmp_path)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        loaded(tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.model
def test_the_default_model_answers_as_transformers_computes_it() -> None:
    """A whole forward pass with our weights: wrong rows or names would not know Paris."""
    from lmc.runtime.tokenizer import Tokenizer

    files = resolve("smollm2-135m")
    assert files.path
    with GGUFFile(files.path) as file:
        config = config_from_gguf(file)
    weights = load_weights(files, config, torch.float32)
    theirs = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        rms_norm_eps=config.rms_eps,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(theirs).eval()
    model.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
    tokenizer = Tokenizer.from_gguf(files.path)
    ids = tokenizer.encode("The capital of France is", first=True)
    with torch.inference_mode():
        made = model.generate(torch.tensor([ids]), max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(made[0].tolist()) == "The capital of France is Paris"


@pytest.mark.parametrize("how", ["files", "random"])
def test_a_function_hears_how_far_it_is(how: str, tmp_path: Path) -> None:
    saved(tmp_path)
    config = config_from_hf(read_json(tmp_path / "config.json"))
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    if how == "files":
        files = ModelFiles("tiny", "hf", tmp_path)
        weights = load_weights(files, config, torch.bfloat16, progress=progress)
    else:
        weights = random_weights(config, torch.bfloat16, progress=progress)
    size = 2 * sum(weight.numel() for weight in weights.values())
    assert told[-1] == (size, size)
    assert len(told) == len(weights)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


@pytest.mark.parametrize(("terminal", "wanted"), [(True, True), (True, False), (False, True)])
def test_a_bar_is_drawn_in_a_terminal_only(
    terminal: bool,
    wanted: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    saved(tmp_path)
    config = config_from_hf(read_json(tmp_path / "config.json"))
    capsys.readouterr()  # what transformers said
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    load_weights(ModelFiles("tiny", "hf", tmp_path), config, torch.float32, progress=wanted)
    out, err = capsys.readouterr()
    assert not out
    assert ("loading tiny" in err) is (terminal and wanted)


def test_a_device_without_room_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_from_hf(model_of("llama").config.to_dict())

    def no(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", no)
    with pytest.raises(CapacityError, match="cpu has no memory for the weights: 0 of 0 MiB"):
        random_weights(config, torch.float32)
