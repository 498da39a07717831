"""The device's side of the engine: weights and KV tensors, `Step` in, `Outcome` out.

Owns: the model's weights, the KV tensors, work space.
Promises: what a row gives is a function of its sequence's keys up to it (and of its `Sampling` and
    position) alone, bit by bit: not of other rows, of chunks, or of what was cached. This holds for
    one configuration: processor, dtype, attention backend, threads.
Costs: KV memory is asked for at once and touched by use, 2 * layers * kv_heads * head_dim numbers a
    token. Logits are computed only for rows that need them.
Not here: which rows run (scheduler), what is cached (radix cache), reading of files.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from lmc.errors import InternalError, LmcError, RunError, UsageError
from lmc.runtime.attention.base import Batch
from lmc.runtime.attention.registry import choose_attention
from lmc.runtime.layers import row_ops
from lmc.runtime.limits import STEP_POSITIONS, TILED_STEP_POSITIONS
from lmc.runtime.linear import best_dtype, linear_kinds
from lmc.runtime.models.registry import model_class
from lmc.runtime.request import Outcome, Segment, Step, TopTokens
from lmc.runtime.sampler import Sampler, Wish, greatest

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.config import ModelConfig
    from lmc.runtime.kernels.parallel import Team
    from lmc.runtime.models.base import KVTensors, Model
    from lmc.runtime.tensor_parallel.group import Group

__all__ = ["ModelRunner", "physical_cores"]

LOGIT_ROWS = 256  # rows scored at once: bounds the memory of logits


def physical_cores() -> int:
    """Cores this process may use; two hardware threads of a core count once."""
    import os

    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if allowed is None:
        return os.cpu_count() or 1
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text(encoding="ascii"))
        except OSError:
            cores.add(str(cpu))
    return len(cores)


class ModelRunner:
    """A `Runner` on the CPU.

    Args:
        config: sizes and switches of the model.
        weights: tensors by Hugging Face name, in any floating type; not kept.
        dtype: "float32", "bfloat16", or "auto": bfloat16 where the processor is fast at it.
        device: "cpu".
        kv_tokens: slots of the KV pool.
        attention: name of a backend, or "auto".
        threads: that compute, the caller's included; None takes the physical cores.
        group: of all parts of the model, if `config` and `weights` are those of one. Then torch
            computes the products, and what the first one gives is the whole model's.

    Raises:
        UsageError: an argument that means nothing here.
        ModelError: a family that is not supported, or weights that do not fit.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        dtype: str = "auto",
        device: str = "cpu",
        kv_tokens: int = 16_384,
        attention: str = "auto",
        threads: int | None = None,
        group: Group | None = None,
    ) -> None:
        if device != "cpu":
            raise UsageError(f"there is no runner for device {device!r}", hint="give device='cpu'")
        if kv_tokens < 1:
            raise UsageError(f"kv_tokens is {kv_tokens}", hint="give the number of tokens to hold")
        self.threads = physical_cores() if threads is None else threads
        if self.threads < 1:
            raise UsageError(f"threads is {threads}", hint="give a positive number, or None")
        self._team = _team(self.threads, compiled=group is None)
        self._group = group
        self._beside = group is not None and group.shard.rank > 0
        self.config = config
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        self.kv_tokens = kv_tokens
        self.most_repeats = 1
        self.follows_states = False
        self.dtype = _dtype(dtype)
        self.seconds: dict[str, float] = {"forward": 0.0, "logits": 0.0, "sample": 0.0}
        with torch.inference_mode(), _one_torch_thread():
            self._model = self._load(weights)
            tiled = self._products == "amx"
            self.step_positions = TILED_STEP_POSITIONS if tiled else STEP_POSITIONS
            self._kv: KVTensors = [(self._pool(), self._pool()) for _ in range(config.layers)]
        self._attention = choose_attention(attention, config, self._team, dtype=self.dtype)
        self._sampler = Sampler(config.vocab_size, self._team)

    def _load(self, weights: Mapping[str, Tensor]) -> Model:
        kinds = linear_kinds(self.dtype, self._team)
        self._products = kinds[0].name
        return model_class(self.config.family)(
            self.config,
            weights,
            kinds=kinds,
            ops=row_ops(self.config, self._team, dtype=self.dtype),
            dtype=self.dtype,
            group=self._group,
        )

    def _pool(self) -> Tensor:
        # not zeroed: the system gives out memory page by page as slots are first written
        config = self.config
        return torch.empty(self.kv_tokens, config.kv_heads, config.head_dim, dtype=self.dtype)

    @property
    def description(self) -> str:
        """What computes, in words, for reports."""
        dtype = str(self.dtype).removeprefix("torch.")
        parts = f"{self._products} products, {self._attention.name} attention"
        return f"{dtype} on {self.threads} threads, {parts}"

    def run(self, step: Step) -> Outcome:
        """Compute one step.

        Raises:
            RunError: the model gave numbers that are not finite; the message names the segment.
            InternalError: the step cannot be computed: a token, slot or position out of range.
        """
        self._check(step)
        team = contextlib.nullcontext() if self._team is None else self._team.at_work()
        with torch.inference_mode(), team:
            batch = Batch.of(step)
            with self._timed("forward"):
                self._attention.begin(batch)
                self._model.forward(batch, self._kv, self._attention)
            return self._answer(batch)

    def close(self) -> None:
        """Free weights and KV memory; the runner cannot be used afterwards."""
        if self._team is not None:
            self._team.close()
        self._kv = []
        self.__dict__.pop("_model", None)

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start

    def _check(self, step: Step) -> None:
        if not step.segments:
            raise InternalError("a step without segments")
        for i, s in enumerate(step.segments):
            count = len(s.tokens)
            problem = None
            if count == 0 or s.start < 0 or len(s.slots) != s.start + count:
                problem = f"{count} tokens from {s.start} on, {len(s.slots)} slots"
            elif s.start + count > self.context_length:
                problem = f"position {s.start + count - 1} of {self.context_length}"
            elif int(s.tokens.min()) < 0 or int(s.tokens.max()) >= self.vocab_size:
                problem = f"a token outside 0 to {self.vocab_size - 1}"
            elif int(s.slots.min()) < 0 or int(s.slots.max()) >= self.kv_tokens:
                problem = f"a slot outside 0 to {self.kv_tokens - 1}"
            elif s.targets and len(s.targets) != count:
                problem = f"{len(s.targets)} rows of targets for {count} tokens"
            if problem is not None:
                raise InternalError(f"segment {i} of the step is wrong: {problem}")

    def _answer(self, batch: Batch) -> Outcome:
        """Score the rows that need it and draw."""
        found = _Found(batch)
        wanted: list[tuple[int, int]] = []  # segment, row in it
        for i, segment in enumerate(batch.segments):
            wanted += [(i, r) for r, targets in enumerate(segment.targets) if targets]
            last = len(segment.tokens) - 1
            if segment.sample is not None and not (segment.targets and segment.targets[last]):
                wanted.append((i, last))
        failed: LmcError | None = None
        for at in range(0, len(wanted), LOGIT_ROWS):
            some = wanted[at : at + LOGIT_ROWS]
            rows = np.array([batch.first[i] + r for i, r in some], np.int32)
            with self._timed("logits"):
                logits = self._model.logits(rows)
            if self._beside or failed is not None:
                continue  # the other parts of the model ask for these logits, too
            try:
                found.take(batch, some, logits.numpy(), *self._draw(batch, some, logits))
            except LmcError as error:
                failed = error
        if failed is not None:
            raise failed
        return found.outcome()

    def _draw(
        self, batch: Batch, some: list[tuple[int, int]], logits: Tensor
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The tokens after some rows, and the normalizers of their logits."""
        wishes = [_wish(batch.segments[i], r) for i, r in some]
        with self._timed("sample"):
            drawn, normalizers = self._sampler.run(logits, wishes)
        if not np.isfinite(normalizers).all():
            culprit = some[int(np.flatnonzero(~np.isfinite(normalizers))[0])][0]
            raise RunError(
                f"the model's scores are not finite (segment {culprit} of the step)",
                hint="the weights may be damaged; or try dtype='float32'",
            )
        return drawn, normalizers


class _Found:
    """What the rows of a step gave so far."""

    def __init__(self, batch: Batch) -> None:
        count = len(batch.segments)
        self._tokens, self._logprobs = [-1] * count, [0.0] * count
        self._scores: list[list[tuple[float, ...]]] = [
            [() for _ in segment.targets] for segment in batch.segments
        ]
        self._tops: list[TopTokens] = [() for _ in batch.segments]

    def take(
        self,
        batch: Batch,
        some: list[tuple[int, int]],
        values: npt.NDArray[np.float32],
        drawn: npt.NDArray[np.int64],
        normalizers: npt.NDArray[np.float64],
    ) -> None:
        """Take the logits after some rows and what was drawn from them."""
        for k, (i, r) in enumerate(some):
            normalizer, segment = float(normalizers[k]), batch.segments[i]
            if _wish(segment, r) is not None:
                token = self._tokens[i] = int(drawn[k])
                self._logprobs[i] = float(values[k, token]) - normalizer
                if segment.top:
                    self._tops[i] = tuple(
                        (int(t), float(values[k, t]) - normalizer)
                        for t in greatest(values[k], segment.top)
                    )
            if segment.targets:
                ids = segment.targets[r]
                self._scores[i][r] = tuple(float(values[k, t]) - normalizer for t in ids)

    def outcome(self) -> Outcome:
        return Outcome(
            tokens=tuple(self._tokens),
            logprobs=tuple(self._logprobs),
            scores=tuple(tuple(rows) for rows in self._scores),
            tops=tuple(self._tops) if any(self._tops) else (),
        )


def _team(threads: int, *, compiled: bool) -> Team | None:
    """Threads for compiled kernels, or None where numba cannot be had or is not wanted."""
    if not compiled or find_spec("numba") is None:
        torch.set_num_threads(threads)
        return None
    from lmc.runtime.kernels.parallel import Team

    return Team(threads)


def _wish(segment: Segment, row: int) -> Wish | None:
    """What is to be drawn after a row: only the last one of a segment may have a wish."""
    if segment.sample is None or row != len(segment.tokens) - 1:
        return None
    return Wish(segment.sample, segment.position, segment.mask, segment.banned, segment.adjustment)


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Loading is hundreds of small copies: on a busy machine, threads make them slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _dtype(name: str) -> torch.dtype:
    if name == "auto":
        return best_dtype()
    if name not in ("float32", "bfloat16"):
        raise UsageError(
            f"dtype is {name!r}", hint="give 'auto', 'float32' or 'bfloat16' on the CPU"
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype
