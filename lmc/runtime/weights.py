"""Weights by their Hugging Face names, from GGUF and safetensors files or from a seed.

Promises    exactly the tensors that a configuration asks for, in its shapes, or a ModelError that
            names what is missing, too many or of another shape.
Costs       SmolLM2-135M from GGUF: 0.6 s and its float32 size in memory; safetensors are mapped
            and read one tensor at a time.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lmc.errors import CapacityError, ModelError
from lmc.runtime.config import ModelConfig
from lmc.runtime.device_memory import is_out_of_memory
from lmc.runtime.gguf_file import GGUFFile
from lmc.runtime.hf_tokenizer import read_json
from lmc.runtime.loading_bar import Shown, shown
from lmc.runtime.store import ModelFiles

if TYPE_CHECKING:
    from lmc.runtime.tensor_parallel.shards import Shard

__all__ = ["Weights", "load_weights", "random_weights", "weight_shapes"]

Weights = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]
Where = tuple[slice, ...]
_WHOLE: Where = (slice(None),)

_STD = 0.02  # of random weights, as models of this kind are initialised
_LISTED = 5  # names in an error message

# Names in GGUF files -> names in Hugging Face files, outside and inside of a layer.
_GGUF_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GGUF_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_GGUF_IGNORED = ("rope_freqs.weight",)  # `config` has read it
_HF_IGNORED = re.compile(r".*rotary_emb\.inv_freq")  # old files store what is computed


def weight_shapes(config: ModelConfig) -> Shapes:
    """The name and shape of every tensor of a model; `lm_head.weight` is absent if it is tied."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for n in range(config.layers):
        at = f"model.layers.{n}."
        shapes[at + "input_layernorm.weight"] = (hidden,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[at + f"self_attn.{name}_proj.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[at + f"self_attn.{name}_proj.bias"] = (rows,)
        if config.qk_norm:
            shapes[at + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[at + "self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[at + "self_attn.o_proj.weight"] = (hidden, q)
        shapes[at + "post_attention_layernorm.weight"] = (hidden,)
        shapes[at + "mlp.gate_proj.weight"] = (inner, hidden)
        shapes[at + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[at + "mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def load_weights(
    files: ModelFiles,
    config: ModelConfig,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    *,
    shard: Shard | None = None,
    progress: Shown = False,
) -> Weights:
    """All weights of a model in `dtype` on `device`, with the shapes of `weight_shapes`.

    With a shard, its part of each: of safetensors files nothing else is read.

    Args:
        progress: see `loading_bar`; bytes are those of the tensors in `dtype`.

    Raises:
        ModelError: the files have no weights, cannot be read, or do not fit the configuration.
        CapacityError: the device has no memory for them.
    """
    if files.path is None:
        raise ModelError(f"the model {files.name} has no weights")
    with _one_thread():
        if files.kind == "gguf":
            with GGUFFile(files.path) as file:
                tensors = _gguf_tensors(file, config)
                return _collect(tensors, config, dtype, device, files.name, shard, progress)
        with contextlib.ExitStack() as opened:
            tensors = _safetensors(files.path, opened)
            return _collect(tensors, config, dtype, device, files.name, shard, progress)


def random_weights(
    config: ModelConfig,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    *,
    seed: int = 0,
    shard: Shard | None = None,
    progress: Shown = False,
) -> Weights:
    """Weights that mean nothing: normal with deviation 0.02, norms one, biases zero.

    The same seed gives the same weights on the same kind of device; a shard gets its part of them.

    Raises:
        CapacityError: the device has no memory for them.
    """
    generator = torch.Generator(device).manual_seed(seed)
    weights: Weights = {}
    shapes = weight_shapes(config)
    with _counting(shapes, dtype, device, "making random weights", progress) as count:
        for name, shape in shapes.items():
            tensor = torch.empty(shape, dtype=dtype, device=device)
            if name.endswith("norm.weight"):
                tensor.fill_(1.0)
            elif name.endswith(".bias"):
                tensor.zero_()
            else:
                tensor.normal_(0.0, _STD, generator=generator)
            weights[name] = tensor if shard is None else tensor[shard.where(name, config)].clone()
            count(name)
    return weights


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor in a file: its shape, and how a part of it is read."""

    shape: tuple[int, ...]
    read: Callable[[Where], torch.Tensor]


def _collect(
    tensors: Mapping[str, _Source],
    config: ModelConfig,
    dtype: torch.dtype,
    device: str | torch.device,
    model: str,
    shard: Shard | None,
    progress: Shown,
) -> Weights:
    """Read what the configuration asks for, and refuse files that have anything else."""
    shapes = weight_shapes(config)
    missing = shapes.keys() - tensors.keys()
    extra = tensors.keys() - shapes.keys()
    if config.tied:
        extra -= {"lm_head.weight"}  # some files repeat the embedding
    for names, problem in ((missing, "lack"), (extra, "have unknown")):
        if names:
            raise ModelError(
                f"the weights of {model} {problem} {_listed(names)}",
                hint="the files are of another architecture, or not complete",
            )
    weights: Weights = {}
    with _counting(shapes, dtype, device, f"loading {model}", progress) as count:
        for name, shape in shapes.items():
            source = tensors[name]
            if source.shape != shape:
                raise ModelError(
                    f"the tensor {name} of {model} has the shape {source.shape}, not {shape}",
                    hint="the weights and the configuration are of different models",
                )
            tensor = source.read(_WHOLE if shard is None else shard.where(name, config))
            # a device converts faster, and what it converts is one tensor
            weights[name] = tensor.to(device).to(dtype).contiguous()
            count(name)
    return weights


@contextlib.contextmanager
def _counting(
    shapes: Shapes, dtype: torch.dtype, device: str | torch.device, title: str, progress: Shown
) -> Iterator[Callable[[str], None]]:
    """A function to call after each tensor: it is shown how far that is.

    Raises:
        CapacityError: in the block, memory was short.
    """
    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()}
    total, done = sum(sizes.values()), 0
    with shown(title, total, progress) as report:

        def count(name: str) -> None:
            nonlocal done
            done += sizes[name]
            report(done, total)

        try:
            yield count
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise CapacityError(
                f"{device} has no memory for the weights: {done >> 20} of {total >> 20} MiB fit",
                hint="use a smaller model, another dtype or tensor_parallel; "
                "`lmc doctor` shows how much memory is free",
            ) from error


def _listed(names: set[str]) -> str:
    some = sorted(names)[:_LISTED]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(some)}{more}"


def _gguf_tensors(file: GGUFFile, config: ModelConfig) -> dict[str, _Source]:
    permuted = file.metadata.get("general.architecture") == "llama"
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}

    def source(name: str, rotated_heads: int | None) -> _Source:
        def read(where: Where) -> torch.Tensor:
            tensor = torch.from_numpy(file.read(name))
            if rotated_heads is not None:
                tensor = _half_split(tensor, rotated_heads, name)
            return tensor[where]

        return _Source(tuple(file.tensors[name].shape), read)

    tensors: dict[str, _Source] = {}
    for name in file.tensors:
        if name in _GGUF_IGNORED:
            continue
        if match := _GGUF_LAYER.fullmatch(name):
            layer, part, kind = match.groups()
            inside = _GGUF_INSIDE.get(part)
            new = f"model.layers.{layer}.{inside}.{kind}" if inside else name
            tensors[new] = source(name, heads.get(part) if permuted else None)
        else:
            part, _, kind = name.rpartition(".")
            new = f"{_GGUF_OUTSIDE[part]}.{kind}" if part in _GGUF_OUTSIDE else name
            tensors[new] = source(name, None)
    return tensors


def _half_split(tensor: torch.Tensor, heads: int, name: str) -> torch.Tensor:
    """Undo the row order of llama.cpp, which keeps the two elements of a rotated pair together.

    Hugging Face models have the first elements of all pairs in the first half of a head.
    """
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise ModelError(f"the {rows} rows of {name} are not those of {heads} heads")
    paired = tensor.reshape(heads, rows // heads // 2, 2, -1)
    return paired.transpose(1, 2).reshape(tensor.shape)


def _safetensors(folder: Path, opened: contextlib.ExitStack) -> dict[str, _Source]:
    """All tensors of a folder, whose files stay open in `opened`."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, _Source] = {}
    for path in _shards(folder):
        try:
            file = opened.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            if not _HF_IGNORED.fullmatch(name):
                held = file.get_slice(name)
                tensors[name] = _Source(tuple(held.get_shape()), held.__getitem__)
    return tensors


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(read_json(index)["weight_map"].values()))
        except (KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index} cannot be read: it has no weight_map") from error
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise ModelError(f"{folder} lacks the file {absent[0]} that its index names")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    raise ModelError(
        f"{folder} has no model.safetensors",
        hint="write it with AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR), "
        'or use weights="random"',
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Loading is thousands of small operations, which waiting for other threads only slows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
