"""From a model's name to a running engine: files, tokenizer, template, runner, core, executor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import Future
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lmc.errors import CapacityError, UsageError
from lmc.runtime.chat import ChatTemplate, template_text
from lmc.runtime.device_memory import is_out_of_memory
from lmc.runtime.dry_run import Rehearsal
from lmc.runtime.dry_runner import DryRunner
from lmc.runtime.engine import EngineCore
from lmc.runtime.executor import Executor
from lmc.runtime.limits import TILED_STEP_POSITIONS, Limits
from lmc.runtime.runners import (
    DEFAULT_KV_TOKENS,
    RunnerSpec,
    default_kv_tokens,
    held_weights,
    read_config,
)
from lmc.runtime.target import Target
from lmc.runtime.tokenizer import Tokenizer
from lmc.runtime.tool_pool import DEFAULT_TOOL_WORKERS

if TYPE_CHECKING:
    from lmc.runtime.loading_bar import Shown
    from lmc.runtime.request import Runner
    from lmc.runtime.stats import EngineStats
    from lmc.runtime.store import ModelFiles

__all__ = ["DEFAULT_MODEL", "LocalEngine", "load_tokenizer", "rehearsal_of"]

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_BATCH_TOKENS = 512  # a step: beside so many, reading the weights takes little
DEFAULT_GPU_BATCH_TOKENS = 8192
CPU_RUNNING = 128  # requests at once
GPU_RUNNING = 512
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTIONS = ("auto", "tiles", "torch", "reference", "triton", "flashinfer")


class LocalEngine:
    """A model ready to run programs in this process.

    Args:
        model: a known name, "fake", a directory in Hugging Face form, or a .gguf file.
        device: "auto", "cpu" or "cuda".
        dtype: "auto", "float32", "bfloat16" or "float16".
        kv_tokens: tokens that the KV pool holds; by default as many as memory reasonably allows.
        max_batch_tokens: tokens computed in one step at most.
        deterministic: on a GPU, results that do not depend on what else runs, bit by bit, which is
            slower. On the CPU it is always so.
        tensor_parallel: processes that the model is divided among, each with a GPU of its own, or,
            on the CPU, with its share of the threads.
        weights: None for the model's own, "random" to need only a config and a tokenizer.
        attention: "auto" or the name of an attention backend.
        seed: of the random draws of runs that name no other, and of random weights.
        threads: CPU threads for the model; by default one a physical core.
        tool_workers: tools of programs that run at the same time at most.
        chat_template: Jinja text, or the file it is in, instead of the model's own; "" for none.
        chat_options: variables for the chat template, such as {"enable_thinking": False}.
        progress: of fetching and reading the model: True for a bar on standard error if that is a
            terminal, False for none, or a function of the bytes done and the bytes in all.

    Raises:
        ModelError: the model cannot be found, read or fetched, or its chat template cannot be used.
        UsageError: an argument is out of its range.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        device: str = "auto",
        dtype: str = "auto",
        kv_tokens: int | None = None,
        max_batch_tokens: int | None = None,
        weights: str | None = None,
        attention: str = "auto",
        seed: int = 0,
        threads: int | None = None,
        tool_workers: int = DEFAULT_TOOL_WORKERS,
        chat_template: str | None = None,
        chat_options: Mapping[str, Any] | None = None,
        deterministic: bool = False,
        tensor_parallel: int = 1,
        progress: Shown = True,
    ) -> None:
        from lmc.runtime.store import resolve

        for name, value in (("kv_tokens", kv_tokens), ("max_batch_tokens", max_batch_tokens)):
            if value is not None:
                _check_count(name, value, "give a positive number of tokens, of 31 bits")
        if threads is not None:
            _check_count("threads", threads, "give a positive number, or None")
        _check_count("tool_workers", tool_workers, "give a positive number")
        _check_count("tensor_parallel", tensor_parallel, "give a number of processes, or 1")
        if type(seed) is not int:
            raise UsageError(f"seed is {seed!r}, must be an integer")
        if not isinstance(chat_options or {}, Mapping):
            raise UsageError(f"chat_options is {chat_options!r}", hint="give a dictionary")
        if weights not in (None, "random"):
            raise UsageError(f"weights is {weights!r}", hint='use "random" or leave it out')
        if device not in DEVICES:  # also where none of them is used, as by the fake model
            raise UsageError(f"there is no device {device!r}", hint=_one_of(DEVICES))
        if dtype not in DTYPES:
            raise UsageError(f"dtype is {dtype!r}", hint=_one_of(DTYPES))
        if attention not in ATTENTIONS:
            raise UsageError(
                f"there is no attention backend {attention!r}", hint=_one_of(ATTENTIONS)
            )
        self.model = model
        self.seed = seed
        files = resolve(model, progress)
        on_gpu = files.kind != "fake" and _on_gpu(device)
        if on_gpu:
            from lmc.runtime.cuda.backends import check_device_attention

            check_device_attention(attention, deterministic=deterministic)
        batch_tokens = max_batch_tokens or (
            DEFAULT_GPU_BATCH_TOKENS if on_gpu else DEFAULT_BATCH_TOKENS
        )
        self._tokenizer = load_tokenizer(files)
        if chat_template is not None:
            self._tokenizer.chat_template = template_text(chat_template)
        self._chat_options = dict(chat_options or {})
        template = ChatTemplate(
            self._tokenizer.chat_template,
            self._tokenizer.named,
            model=model,
            options=self._chat_options,
        )
        if template.source is not None:
            template.check()
        spec = RunnerSpec(
            files,
            kernels="triton" if on_gpu else "torch",
            device="cuda" if on_gpu else "cpu",
            dtype=dtype,
            kv_tokens=kv_tokens,
            max_batch_tokens=batch_tokens,
            weights=weights,
            attention=attention,
            seed=seed,
            threads=threads,
            deterministic=deterministic,
        )
        try:
            self._runner = _runner(spec, self._tokenizer, tensor_parallel, progress)
            self.core = EngineCore(
                self._runner,
                self._tokenizer.token_bytes,
                self._tokenizer.eos_ids,
                max_batch_tokens=batch_tokens,
                max_running=GPU_RUNNING if on_gpu else CPU_RUNNING,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise CapacityError(
                f"there is no memory for a KV cache of {kv_tokens or 'so many'} tokens",
                hint="give a smaller kv_tokens",
            ) from error
        self.executor = Executor(Target(self.core, self._tokenizer, template), tool_workers)
        self.closed = False

    @property
    def tokenizer(self) -> Any:  # noqa: ANN401 - transformers' own class
        """The Hugging Face tokenizer of the model."""
        return self._tokenizer.hf

    @property
    def tokenizer_fingerprint(self) -> str:
        """Identifies the vocabulary and the rules of tokenization."""
        return self._tokenizer.fingerprint

    @property
    def template_fingerprint(self) -> str:
        """Identifies the chat template, and the options that it is rendered with."""
        plain = self._tokenizer.template_fingerprint
        if not self._chat_options:
            return plain
        options = json.dumps(self._chat_options, sort_keys=True, default=repr)
        return hashlib.sha256(f"{plain} {options}".encode()).hexdigest()

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        return self.core.stats

    def rehearsal(self) -> Rehearsal:
        """What a dry run on this engine needs; nothing of it is changed by one."""
        return Rehearsal(
            self.executor.target,
            self.core.limits,
            self.seed,
            self.tokenizer_fingerprint,
            self.template_fingerprint,
        )

    def forget(self) -> None:
        """Empty the cache of computed prompts, except for what running requests hold."""
        done: Future[None] = Future()

        def call() -> None:
            try:
                self.core.forget()
                self.executor.target.forget_prefills()
            except BaseException as error:  # the caller waits: it must hear of it
                done.set_exception(error)
            else:
                done.set_result(None)

        self.executor.post(call)
        done.result()

    def close(self) -> None:
        """End what runs and free the memory. Closing twice does nothing."""
        if not self.closed:
            self.closed = True
            self.executor.close()
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


def _one_of(names: tuple[str, ...]) -> str:
    return f"give one of {', '.join(names)}"


def _check_count(name: str, value: object, hint: str) -> None:
    """Refuse what is no positive number of 31 bits; slots are numbered so."""
    if type(value) is not int or not 0 < value < 2**31:
        raise UsageError(f"{name} is {value!r}", hint=hint)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a model's files; imports no torch."""
    if files.kind == "fake":
        return Tokenizer.fake()
    assert files.path is not None, "only the fake model has no files"
    if files.kind == "gguf":
        return Tokenizer.from_gguf(files.path)
    return Tokenizer.from_hf_dir(files.path)


def rehearsal_of(model: str, kv_tokens: int | None = None) -> Rehearsal:
    """What a dry run needs of a model whose weights are not loaded, on the CPU; imports no torch.

    Raises:
        ModelError: the model cannot be found, read or fetched.
    """
    from lmc.runtime.fake import CONTEXT
    from lmc.runtime.store import resolve

    files = resolve(model)
    tokenizer = load_tokenizer(files)
    template = ChatTemplate(tokenizer.chat_template, tokenizer.named, model=model)
    vocab_size, context = tokenizer.vocab_size, CONTEXT
    room, step_positions = kv_tokens or DEFAULT_KV_TOKENS, 0
    if files.kind != "fake":
        config = read_config(files)
        vocab_size, context = config.vocab_size, config.context_length
        room = kv_tokens or default_kv_tokens(config)
        step_positions = TILED_STEP_POSITIONS
    limits = Limits(vocab_size, room, context, DEFAULT_BATCH_TOKENS, CPU_RUNNING, 1, step_positions)
    core = EngineCore(
        DryRunner(limits, tokenizer.token_bytes, tokenizer.eos_ids, longest=False),
        tokenizer.token_bytes,
        tokenizer.eos_ids,
    )
    target = Target(core, tokenizer, template)
    return Rehearsal(target, limits, 0, tokenizer.fingerprint, tokenizer.template_fingerprint)


def _runner(spec: RunnerSpec, tokenizer: Tokenizer, ranks: int, progress: Shown) -> Runner:
    if spec.files.kind == "fake":
        if ranks > 1:
            raise UsageError("the fake model cannot be divided", hint="leave tensor_parallel out")
        from lmc.runtime.fake import FakeRunner

        return FakeRunner(
            tokenizer.vocab_size,
            spec.kv_tokens or DEFAULT_KV_TOKENS,
            token_bytes=tokenizer.token_bytes,
            eos_ids=tokenizer.eos_ids,
        )
    if ranks > 1:
        from lmc.runtime.tensor_parallel.runner import start_ranks

        return start_ranks(spec, ranks, progress)
    from lmc.runtime.runners import make_runner

    config = read_config(spec.files)
    return make_runner(spec, config, held_weights(spec, config, progress=progress))


def _on_gpu(device: str) -> bool:
    """Whether the model is to run on a CUDA device; "auto" takes one that is there.

    Raises:
        UsageError: what it needs is not there.
    """
    if device == "cpu":
        return False
    import torch

    triton = find_spec("triton") is not None
    if torch.cuda.is_available() and triton:
        return True
    if device == "auto":
        return False
    if not triton:
        raise UsageError("device='cuda' needs triton", hint="pip install 'lmc[cuda]'")
    raise UsageError(
        "torch finds no CUDA device", hint="give device='cpu', or install a torch with CUDA"
    )
