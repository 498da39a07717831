"""Runners by their description: which one, with which weights. In one process, or one of several.

`RunnerSpec` is data, so that another process can make its part of the same model.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lmc.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.config import ModelConfig
    from lmc.runtime.loading_bar import Shown
    from lmc.runtime.request import Runner
    from lmc.runtime.store import ModelFiles
    from lmc.runtime.tensor_parallel.group import Group
    from lmc.runtime.tensor_parallel.shards import Shard

__all__ = [
    "DEFAULT_KV_TOKENS",
    "RunnerSpec",
    "default_kv_tokens",
    "held_weights",
    "make_runner",
    "read_config",
]

KV_MEMORY_SHARE = 0.25  # of the machine's memory, at most, for the default KV pool
DEFAULT_KV_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """What a runner is made of; see `LocalEngine` for the fields."""

    files: ModelFiles
    kernels: Literal["torch", "triton"]
    device: str
    dtype: str = "auto"
    kv_tokens: int | None = None
    max_batch_tokens: int = 256
    weights: str | None = None
    attention: str = "auto"
    seed: int = 0
    threads: int | None = None
    deterministic: bool = False


def held_weights(
    spec: RunnerSpec,
    config: ModelConfig,
    shard: Shard | None = None,
    progress: Shown = False,
) -> dict[str, Tensor]:
    """The weights, or a rank's part of them.

    Args:
        config: of the whole model.
        progress: see `loading_bar`.

    Raises:
        ModelError: they are not there, or do not fit.
        CapacityError: the device has no memory for them.
    """
    import torch

    from lmc.runtime.weights import load_weights, random_weights

    dtype, device = torch.float32, "cpu"
    if spec.kernels == "triton":
        from lmc.runtime.cuda.runner import cuda_dtype

        dtype, device = cuda_dtype(spec.dtype), spec.device
    if spec.weights == "random":
        return random_weights(config, dtype, device, seed=spec.seed, shard=shard, progress=progress)
    return load_weights(spec.files, config, dtype, device, shard=shard, progress=progress)


def make_runner(
    spec: RunnerSpec, config: ModelConfig, weights: dict[str, Tensor], group: Group | None = None
) -> Runner:
    """A runner for one process.

    Args:
        config, weights: of the part that this process has.
        group: of all parts, if there are several.

    Raises:
        UsageError, ModelError, CapacityError: see the runners.
    """
    if spec.kernels == "triton":
        from lmc.runtime.cuda.runner import CudaRunner

        return CudaRunner(
            config,
            weights,
            device=spec.device,
            dtype=spec.dtype,
            kv_tokens=spec.kv_tokens,
            max_batch_tokens=spec.max_batch_tokens,
            attention=spec.attention,
            deterministic=spec.deterministic,
            group=group,
        )
    from lmc.runtime.model_runner import ModelRunner

    return ModelRunner(
        config,
        weights,
        dtype=spec.dtype,
        kv_tokens=spec.kv_tokens or default_kv_tokens(config),
        attention=spec.attention,
        threads=spec.threads,
        group=group,
    )


def read_config(files: ModelFiles) -> ModelConfig:
    """The configuration of a model's files.

    Raises:
        ModelError: it cannot be read, or the model is of a family that is not supported.
    """
    from lmc.runtime.config import config_from_gguf, config_from_hf
    from lmc.runtime.gguf_file import GGUFFile

    assert files.path is not None, "the fake model has no configuration"
    if files.kind == "gguf":
        with GGUFFile(files.path) as file:
            return config_from_gguf(file)
    path = files.path / "config.json"
    try:
        return config_from_hf(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the configuration of {files.name} cannot be read: {error}",
            hint="the directory needs a config.json in Hugging Face form",
        ) from error


def default_kv_tokens(config: ModelConfig) -> int:
    """Tokens of a KV pool that takes a reasonable share of the machine's memory."""
    entry = 2 * config.layers * config.kv_heads * config.head_dim * 4  # bytes, if float32
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1024, min(DEFAULT_KV_TOKENS, int(memory * KV_MEMORY_SHARE) // entry))
