"""`lmc doctor`: what is here, what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from lmc import __version__
from lmc.commands import options
from lmc.commands.doctor_device import Line, device_facts, device_lines, version_of
from lmc.commands.model import size
from lmc.commands.output import say

__all__ = ["doctor_command"]

Kernels = Annotated[
    bool,
    typer.Option("--kernels", help="Compile the GPU kernels even if there is no GPU, for sm_90."),
]


def doctor_command(
    kernels: Kernels = False,
    traceback: options.Traceback = False,  # noqa: ARG001
) -> None:
    """Print what lmc finds on this machine, and how to mend what is missing."""
    missing = 0
    for what, found, mend in _findings(kernels):
        say(f"{what:<12} {found}\n", sys.stdout)
        if mend:
            missing += 1
            say(f"{'':<12} -> {mend}\n", sys.stdout)
    end = "all there" if not missing else f"{missing} to mend, if you need it"
    say(f"\n{end}\n", sys.stdout)


def _findings(kernels: bool) -> Iterator[Line]:
    yield "lmc", __version__, None
    yield "python", f"{platform.python_version()} ({sys.executable})", None
    yield "machine", f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}", None
    yield from _torch(kernels)
    for name, mend in (
        ("numba", "pip install numba"),
        ("transformers", "pip install transformers"),
        ("tokenizers", "pip install tokenizers"),
    ):
        version = version_of(name)
        yield name, version or "missing", None if version else mend
    yield from _models()


def _torch(kernels: bool) -> Iterator[Line]:
    if importlib.util.find_spec("torch") is None:
        yield "torch", "missing: only --model fake can run", "pip install torch"
        return
    try:
        import torch
    except (ImportError, OSError) as error:  # a build for other hardware
        yield "torch", f"cannot be imported: {error}", "pip install --force-reinstall torch"
        return
    native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    capability = torch.backends.cpu.get_cpu_capability()
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads", None
    yield "cpu", f"{capability}, bfloat16 {'in hardware' if native else 'emulated'}", None
    yield from device_lines(device_facts(), kernels)


def _kept() -> str:
    """What is kept of earlier runs, besides models."""
    from lmc.disk_cache import caches, is_on

    if not is_on():
        return "nothing, LMC_CACHE is off"
    held = [(cache.kind, *cache.size()) for cache in caches()]
    told = [f"{count} {kind}, {size(total)}" for kind, count, total in held if count]
    return "; ".join(told) + " (lmc cache clear)" if told else "nothing yet"


def _models() -> Iterator[Line]:
    from lmc.runtime.store import home, list_models

    moved = " (LMC_HOME)" if os.environ.get("LMC_HOME") else ""
    yield "cache", f"{home()}{moved}", None
    yield "kept", _kept(), None
    for entry in list_models():
        if entry.path is None and entry.cached:
            continue  # needs no files
        found = f"{size(entry.bytes)}, {entry.path}" if entry.cached else "not fetched yet"
        yield entry.name, found, None if entry.cached else f"lmc model pull {entry.name}"
