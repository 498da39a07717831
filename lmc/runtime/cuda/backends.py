"""Which attention backends a CUDA device has, and which one a model gets."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec

import torch

from lmc.errors import UsageError
from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda.attention import DeviceAttention
from lmc.runtime.cuda.unit_attention import UnitAttention

__all__ = ["DEVICE_ATTENTION", "check_device_attention", "choose_device_attention"]

DEVICE_ATTENTION = ("triton", "flashinfer", "torch")
AUTO = ("flashinfer", "triton")  # the first one that can be used


def check_device_attention(name: str, *, deterministic: bool) -> None:
    """See that a backend may be asked for, before anything is loaded.

    Raises:
        UsageError: there is none of this name, or not here, or not with what else is asked.
    """
    if name not in ("auto", *DEVICE_ATTENTION):
        raise UsageError(
            f"there is no attention backend {name!r} on a GPU",
            hint=f"give one of auto, {', '.join(DEVICE_ATTENTION)}",
        )
    if deterministic and name not in ("auto", "triton"):
        raise UsageError(
            f"deterministic=True is not possible with attention={name!r}",
            hint="its results depend on the batch: give attention='triton'",
        )
    if name == "flashinfer" and find_spec("flashinfer") is None:
        raise UsageError(
            "attention='flashinfer': FlashInfer is not installed",
            hint="pip install 'lmc[flashinfer]'",
        )


def choose_device_attention(
    name: str,
    config: ModelConfig,
    units: UnitAttention,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> DeviceAttention:
    """The backend `name`, or with "auto" the fastest that can be used.

    Args:
        config: of the model, or of the part of it that this process has.
        units: what is there in any case.

    Raises:
        UsageError: the backend cannot be used here, or not for this model.
    """
    check_device_attention(name, deterministic=units.fixed)
    if name == "auto" and not units.fixed:
        for one in AUTO:
            with contextlib.suppress(UsageError):
                return choose_device_attention(one, config, units, dtype=dtype, device=device)
    if name == "flashinfer":
        if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
            raise UsageError(
                f"attention='flashinfer' cannot serve {str(dtype).removeprefix('torch.')} on "
                f"{device.type}",
                hint="it needs a CUDA device and bfloat16 or float16; or give attention='triton'",
            )
        from lmc.runtime.cuda.flashinfer_attention import FlashInferAttention

        return FlashInferAttention(config, units, dtype=dtype, device=device)
    if name == "torch":
        from lmc.runtime.cuda.torch_attention import TorchAttention

        return TorchAttention(config)
    return units
