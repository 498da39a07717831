"""A runner for CUDA devices: `Step` in, `Outcome` out, by captured graphs where steps are small.

Owns        the model and the KV pool on the device, graphs, memory from which numbers are copied.
Promises    results equal those of the CPU up to rounding; with `deterministic=True`, what a row
            gives is a function of its sequence's keys up to it alone, bit by bit. One wait for the
            device a step, that for its results; the next one may be started before it.
            A step that there is no memory for leaves nothing behind, and may be run again.
Costs       KV memory is taken at once: what is free after weights and buffers, less some room.
            Graphs of all sizes are captured when the runner is made, and all kernels used once,
            which takes seconds.
Not here    the model's launches (`model`), attention (`attention`), drawing (`sampler`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lmc.constraints.token_classes import TokenClasses, TokenState
from lmc.errors import CapacityError, InternalError, RunError, UsageError
from lmc.runtime.attention.base import Batch
from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda.attention import StepRows
from lmc.runtime.cuda.backends import check_device_attention, choose_device_attention
from lmc.runtime.cuda.flight import (
    Answer,
    DrawnTokens,
    Pending,
    Started,
    Tables,
    Wanted,
    greatest,
    next_batch,
    to_host,
)
from lmc.runtime.cuda.layout import RowFields, RowLayout, UnitLayout
from lmc.runtime.cuda.model import DeviceModel
from lmc.runtime.cuda.planning import Division
from lmc.runtime.cuda.sampler import DeviceSampler, Drawn
from lmc.runtime.cuda.staging import Staging
from lmc.runtime.cuda.unit_attention import UnitAttention
from lmc.runtime.device_memory import DeviceMemoryError, is_out_of_memory
from lmc.runtime.request import Flight, IntArray, Outcome, Sampling, Segment, Step
from lmc.runtime.sampler import Wish

if TYPE_CHECKING:
    from lmc.runtime.tensor_parallel.group import Group

__all__ = ["CudaRunner", "cuda_dtype"]

_log = logging.getLogger("lmc.cuda")

LOGIT_ROWS = 512  # rows scored at once: bounds the memory of logits
MASK_ROWS = 4096
STEP_POSITIONS = 128  # a step of 4.8 ms beside prompts at 38,700 positions a second (an 8B model)
TABLE_STATES, TABLES = 16384, 64  # of constraints
MOST_REPEATS = 16  # of a step: what the CPU does in between is done once for so many tokens
TABLE = 1 << 22  # slots of a step that graphs have room for
PINNED = range(9, 19)  # powers of two: bytes of copies to the host that are made room for
SMALL_PINNED = 13  # up to this, for those of all repeats of the steps under way
BUCKETS = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024,
)  # fmt: skip
"""Rows of graphs. To launch a step one by one takes the CPU as long as 1,000 rows take."""
SPARE_MEMORY = 3 << 30  # bytes left to torch, the library's work space and the graphs
SHARE = 0.92  # of the memory that is free after weights, for the KV pool at most


def cuda_dtype(name: str) -> torch.dtype:
    """The number format of a name.

    Raises:
        UsageError: there is no such format here.
    """
    if name not in ("auto", "bfloat16", "float16", "float32"):
        raise UsageError(
            f"dtype is {name!r}", hint="give 'auto', 'bfloat16', 'float16' or 'float32'"
        )
    dtype: torch.dtype = torch.bfloat16 if name == "auto" else getattr(torch, name)
    return dtype


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured forward pass and where it reads its numbers."""

    rows: RowLayout
    units: UnitLayout
    buffer: Tensor
    fields: RowFields
    graph: torch.cuda.CUDAGraph


@dataclass(slots=True)
class _Lane:
    """Memory for the copies of every other step, and the answer of the last one that used it."""

    staging: Staging
    answer: Answer | None = None


class CudaRunner:
    """See the module; a `Runner`.

    Args:
        config: sizes and switches of the model.
        weights: tensors by Hugging Face name, on the device or not; emptied layer by layer, so
            that the device never holds all of them twice.
        dtype: "auto" (bfloat16), "bfloat16", "float16" or "float32".
        device: a torch device; "cpu" runs the kernels in Triton's interpreter, for tests.
        kv_tokens: slots of the KV pool; None takes what memory allows.
        max_batch_tokens: most rows of a step.
        attention: "auto" or one of `backends.DEVICE_ATTENTION`. Steps from graphs are computed by
            "triton" in any case, but with "torch" there are none.
        deterministic: results that do not depend on the batch, bit by bit; slower.
        graphs: capture small steps in CUDA graphs.
        group: of all parts of the model, if `config` and `weights` are those of one. What the
            first one gives is the whole model's; the others' outcomes say nothing.

    Raises:
        UsageError: an argument that means nothing here.
        ModelError: weights that do not fit.
        CapacityError: the device's memory is too small.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        *,
        dtype: str = "auto",
        device: str = "cuda",
        kv_tokens: int | None = None,
        max_batch_tokens: int = 8192,
        attention: str = "auto",
        deterministic: bool = False,
        graphs: bool = True,
        group: Group | None = None,
    ) -> None:
        check_device_attention(attention, deterministic=deterministic)
        self.config = config
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        self.dtype = cuda_dtype(dtype)
        self.device = torch.device(device)
        self.deterministic = deterministic
        self.most_repeats = MOST_REPEATS
        self.step_positions = STEP_POSITIONS
        self.follows_states = True
        self.seconds: dict[str, float] = {"plan": 0.0, "launch": 0.0, "wait": 0.0}
        self._max_rows = max_batch_tokens
        self._group = group
        self._given: Drawn | None = None  # by the last pass, for each row with logits
        self._rows_drawn: IntArray = np.zeros(0, np.int32)  # of each segment, the last such row
        with torch.inference_mode():
            try:
                self._make(weights, attention)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                raise CapacityError(
                    "the device has no room for the model and the numbers of its steps",
                    hint="use a smaller model, a smaller max_batch_tokens or tensor_parallel; "
                    "`lmc doctor` shows how much memory is free",
                ) from error
            self.kv_tokens = self._kv_room() if kv_tokens is None else kv_tokens
            if group is not None:
                self.kv_tokens = group.least(self.kv_tokens)
            try:
                self._model.make_pool(self.kv_tokens + 1)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                raise CapacityError(
                    f"the device has no room for {self.kv_tokens} KV tokens",
                    hint="give fewer kv_tokens",
                ) from error
        self._graphs: dict[tuple[int, bool], _Graph | None] = {}  # None: no memory for it
        self._use_graphs = graphs and self.device.type == "cuda" and attention != "torch"
        self._memory_pool: Any = None  # torch's own kind of handle
        self._buckets = [b for b in BUCKETS if b <= max_batch_tokens]
        if self._use_graphs:
            with torch.inference_mode():
                for bucket in reversed(self._buckets):
                    for wide in (True,) if deterministic else (False, True):
                        self._graph(bucket, wide)
        if self.device.type == "cuda":
            self._warm_up()

    def _make(self, weights: dict[str, Tensor], attention: str) -> None:
        """Make all that lies on the device but the KV pool and the graphs."""
        self._model = DeviceModel(
            self.config, weights, dtype=self.dtype, device=self.device, rows=self._max_rows,
            fixed=self.deterministic, group=self._group,
        )  # fmt: skip
        rows = min(LOGIT_ROWS, self._max_rows)
        self._logits = torch.zeros(rows, self.vocab_size, device=self.device)
        self._sampler = DeviceSampler(
            self.vocab_size, rows, MASK_ROWS, self.device, table_states=TABLE_STATES, tables=TABLES
        )  # fmt: skip
        self._lanes = deque(_Lane(Staging(1 << 22, self.device)) for _ in range(2))
        self._staging = self._lanes[0].staging
        self._table = torch.zeros(TABLE, dtype=torch.int32, device=self.device)
        self._numbers = torch.zeros(
            RowLayout(self._max_rows).size, dtype=torch.int32, device=self.device
        )
        self._units = UnitAttention(
            self.config, dtype=self.dtype, device=self.device, rows=self._max_rows,
            fixed=self.deterministic,
        )  # fmt: skip
        self._attention = choose_device_attention(
            attention, self.config, self._units, dtype=self.dtype, device=self.device
        )

    def _warm_up(self) -> None:
        """Do what is done at first use: compile and load kernels, take memory.

        Both may wait for the device, which a step under way must not.
        """
        held = [
            torch.empty(1 << power, dtype=torch.uint8, pin_memory=True)
            for power in PINNED
            for _ in range(3 * MOST_REPEATS if power <= SMALL_PINNED else 6)
        ]  # fmt: skip
        del held  # torch keeps it for what comes
        if not self.deterministic:
            with torch.inference_mode():
                self._model.try_sizes(self._max_rows, self._logits)
        for step in self._steps_of_all_kinds():
            try:
                with torch.inference_mode():
                    self._launch_or_free(step)
            except DeviceMemoryError as error:  # so large a step will be tried smaller
                _log.warning("%s", error.problem)
            torch.cuda.synchronize()
            self._staging.reset()

    def _steps_of_all_kinds(self) -> Iterator[Step]:
        """Steps that launch every kernel; they write to the slot that nobody reads."""
        drawn = Sampling(temperature=1.0, top_p=0.5)
        nothing = np.zeros(self.vocab_size, np.int16)
        one = np.zeros((1, 1), np.int32)
        state = TokenState(TokenClasses(nothing, one, one[0] - 1, one[0], {}), 0)
        most, each = self._max_rows, min(self._max_rows, self.context_length, 512)
        few = [count for count in (1, 40) if count < each]  # too few for some attention backends
        left = most - sum(few)
        sizes = [*few, *[each] * (left // each), *[left % each] * (left % each > 0)]
        for counts, sample in (([1], drawn), ([1], Sampling()), (sizes, Sampling())):
            segments = []
            for count in counts:
                slots = np.full(count, self.kv_tokens, np.int32)
                tokens = np.zeros(count, np.int32)
                targets = ((0,),) * count if len(counts) == 1 else ()
                segments.append(Segment(tokens, 0, slots, sample=sample, targets=targets))
            yield Step(tuple(segments))
            if len(counts) == 1:
                slots = np.full(2, self.kv_tokens, np.int32)
                moves = Segment(tokens, 0, slots, sample=sample, state=state)
                yield Step((moves,), repeats=2)

    def _kv_room(self) -> int:
        """Tokens that the free memory can hold."""
        config = self.config
        width = self.dtype.itemsize
        entry = 2 * config.layers * config.kv_heads * config.head_dim * width
        if self.device.type != "cuda":
            return 4096
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        tokens = int(min(free * SHARE, free - SPARE_MEMORY)) // entry
        if tokens < 256:
            raise CapacityError(
                f"after the weights, {free >> 20} MiB of the device are free: too few for a cache",
                hint="use a smaller model, or give kv_tokens",
            )
        return min(tokens, 4_000_000)

    @property
    def description(self) -> str:
        """What computes, in words, for reports."""
        dtype = str(self.dtype).removeprefix("torch.")
        where = "cpu" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
        products = "fixed" if self.deterministic else "cuBLAS"
        return f"{dtype} on {where}, {products} products, {self._attention.name} attention"

    def close(self) -> None:
        """Free the device's memory; the runner cannot be used afterwards."""
        self._graphs.clear()
        for name in (
            "_model",
            "_sampler",
            "_logits",
            "_units",
            "_attention",
            "_table",
            "_numbers",
        ):
            self.__dict__.pop(name, None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # A step

    def run(self, step: Step) -> Outcome:
        """Compute one step, and wait for its first pass.

        Raises:
            RunError: the model gave numbers that are not finite.
            DeviceMemoryError: the step is too large for the memory that is left. Of one part of a
                model it is a RunError, since the others are at it already.
            InternalError: the step cannot be computed: a token, slot or position out of range.
        """
        return self.start(step).outcome()

    def start(self, step: Step) -> Flight:
        """Put a step into the device's queue; raises like `run`, apart from what numbers are."""
        start = time.perf_counter()
        lane = self._lanes[0]
        self._lanes.rotate()
        if lane.answer is not None:
            lane.answer.wait()  # all copies of that step are done
            lane.answer = None
        self._staging = lane.staging
        self._staging.reset()
        with torch.inference_mode():
            self._check(step)
            pending = self._launch_or_free(step)
        lane.answer = pending[-1].answer
        self.seconds["launch"] += time.perf_counter() - start
        return Started(pending, self._outcomes(pending))

    def _launch_or_free(self, step: Step) -> list[Pending]:
        """Launch a step; if there is no memory for it, free what it has taken, and say so."""
        try:
            return self._launch_all(step)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        # Out here, as an exception that is handled keeps the tensors of its frames alive.
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what was launched may still read the staging
            torch.cuda.empty_cache()
        self._sampler.forget()  # some may not have been copied
        kind = DeviceMemoryError if self._group is None else RunError
        rows = sum(len(s.tokens) for s in step.segments)
        raise kind(
            f"the device has no memory left for a step of {rows} tokens: {reason}",
            hint="give the engine fewer kv_tokens or a smaller max_batch_tokens",
        )

    def _outcomes(self, pending: list[Pending]) -> Iterator[Outcome]:
        for one in pending:
            start = time.perf_counter()
            outcome = one.outcome()
            self.seconds["wait"] += time.perf_counter() - start
            yield outcome

    def _launch_all(self, step: Step) -> list[Pending]:
        """Put everything for a step and its repeats into the device's queue."""
        batch = Batch.of(step)
        wanted = Wanted.of(batch)
        tables = Tables.of(step)
        slots = self._slots(tables)
        pending: list[Pending] = []
        given: Drawn | None = None
        goes_on = max(step.after, default=-1) >= 0
        drawn = self._drawn_before(step, batch) if goes_on else None
        for number in range(step.repeats):
            if number:
                batch, wanted = next_batch(batch, step, number), wanted.next()
            if given is not None:
                if self._group is not None:
                    self._group.share(given.tokens)
                drawn = DrawnTokens(given.tokens)
            one, given = self._launch(batch, wanted, tables.after(number), slots, given, drawn)
            pending.append(one)
        self._given = given
        self._rows_drawn = np.zeros(len(step.segments), np.int32)
        for place, (segment, _) in enumerate(wanted.segments):
            self._rows_drawn[segment] = place
        return pending

    def _drawn_before(self, step: Step, batch: Batch) -> DrawnTokens:
        """The tokens of a step that the one started before draws."""
        assert self._given is not None, "checked"
        if self._group is not None:
            self._group.share(self._given.tokens)
        after = np.array(step.after, np.int32)
        tokens = self._given.tokens[self._to_device(self._rows_drawn[after[after >= 0]])]
        if (after >= 0).all():
            return DrawnTokens(tokens)
        rows = np.array(batch.first, np.int32)[after >= 0]
        return DrawnTokens(tokens, self._to_device(rows).long())

    def _slots(self, tables: Tables) -> Tensor:
        """The slots of all segments, on the device."""
        slots = self._table
        if len(tables.slots) > len(slots):
            slots = torch.empty(len(tables.slots), dtype=torch.int32, device=self.device)
        self._staging.copy(tables.slots, slots)
        return slots

    def _launch(
        self, batch: Batch, wanted: Wanted, tables: Tables, slots: Tensor, given: Drawn | None,
        drawn_before: DrawnTokens | None,
    ) -> tuple[Pending, Drawn | None]:  # fmt: skip
        """Put one pass into the device's queue.

        Args:
            given: of the pass that this one repeats.
            drawn_before: tokens that are computed in place of the batch's.
        """
        if self._group is not None and self._group.shard.rank > 0:
            return self._launch_beside(batch, wanted, tables, slots, drawn_before)
        rows_wanted = self._to_device(wanted.rows)
        trimmed = self._forward(batch, tables, slots, drawn_before, rows_wanted)
        # While the device computes: masks are packed, and all copies are made.
        states: IntArray | None = None
        wishes: Sequence[Wish | None] = wanted.wishes
        if given is None:
            states, wishes = self._sampler.states(wishes, self._staging)
        prepared = []
        for at in range(0, len(wanted.rows), LOGIT_ROWS):
            some = slice(at, at + LOGIT_ROWS)
            own = None if states is None else states[some]
            prepared.append(
                self._sampler.prepare(wishes[some], wanted.positions[some], own, self._staging)
            )
        drawn: list[Drawn] = []
        scores: list[Tensor] = []
        tops: list[tuple[Tensor, Tensor]] = []
        for nth, rows in enumerate(prepared):
            at = nth * LOGIT_ROWS
            among = self._model.first_rows(0, len(wanted.rows)) if trimmed else rows_wanted
            logits = self._model.logits(among[at : at + rows.count], self._logits)
            own_states = None if given is None else given.states[at : at + rows.count]
            drawn.append(self._sampler.draw(logits, rows, own_states))
            asked = wanted.asked(at, at + rows.count)
            if asked is not None:
                places = self._to_device(asked[0] - at).long()
                ids = self._to_device(asked[1]).long()
                scores.append(logits[places, ids] - drawn[-1].normalizers[places])
            tops += [
                greatest(logits[row], drawn[-1].normalizers[row], batch.segments[i].top)
                for row, i in wanted.with_top(batch, at, at + rows.count)
            ]
        lost = None if self._group is None else self._group.lost
        answer = to_host(drawn, scores, self.device, lost)
        pending = Pending(batch, wanted, answer, tops, repeat=given is not None)
        return pending, Drawn.joined(drawn)

    def _launch_beside(
        self, batch: Batch, wanted: Wanted, tables: Tables, slots: Tensor,
        drawn_before: DrawnTokens | None,
    ) -> tuple[Pending, Drawn | None]:  # fmt: skip
        """The same of another part than the first, which draws the tokens."""
        rows = self._to_device(wanted.rows)
        if self._forward(batch, tables, slots, drawn_before, rows):
            rows = self._model.first_rows(0, len(rows))
        for at in range(0, len(rows), LOGIT_ROWS):
            self._model.logits(rows[at : at + LOGIT_ROWS], self._logits)
        drawn = torch.empty_like(rows)  # the first part's tokens come here
        unused = torch.empty(0, device=self.device)
        return (
            Pending(batch, wanted, to_host([], [], self.device), []),
            Drawn(drawn, unused, unused, unused),
        )

    def _to_device(self, values: IntArray) -> Tensor:
        target = torch.empty(len(values), dtype=torch.int32, device=self.device)
        self._staging.copy(values, target)
        return target

    def _forward(
        self, batch: Batch, tables: Tables, slots: Tensor, drawn: DrawnTokens | None,
        wanted: Tensor,
    ) -> bool:  # fmt: skip
        """Compute the rows; whether the `wanted` ones are the first ones then."""
        start = time.perf_counter()
        rows = batch.rows
        bucket = next((b for b in self._buckets if b >= rows), None)
        if bucket is not None and self._use_graphs and slots is self._table:
            division = self._units.divide_small(tables, self._units.layout(bucket))
            graph = None
            if division is not None:
                graph = self._graph(bucket, wide=bool(len(division.wide)))
            if division is not None and graph is not None:
                self.seconds["plan"] += time.perf_counter() - start
                self._replay(graph, batch, division, drawn)
                return False
        layout = RowLayout(rows)
        fields = layout.fields(self._numbers)
        array, tensor = self._staging.piece(layout.size)
        layout.fill(array, batch.tokens, batch.positions, batch.slots, self.kv_tokens)
        self._numbers[: layout.size].copy_(tensor, non_blocking=True)
        if drawn is not None:
            drawn.write(fields.tokens)
        attend = self._attention.plan(StepRows(tables, slots, fields.positions), self._staging)
        self.seconds["plan"] += time.perf_counter() - start
        trims = 2 * len(wanted) <= rows
        self._model.forward(rows, fields, attend, wanted if trims else None)
        return trims

    def _graph(self, bucket: int, wide: bool) -> _Graph | None:
        """The captured graph of a size; None if there was no memory for it: launches do as well."""
        key = bucket, wide
        if key not in self._graphs:
            try:
                self._graphs[key] = self._capture(bucket, wide)
            except Exception as error:
                if self._group is not None or not is_out_of_memory(error):
                    raise
                self._graphs[key] = None
                _log.warning("there is no memory for the graph of steps of %d rows", bucket)
        return self._graphs[key]

    def _replay(
        self, graph: _Graph, batch: Batch, division: Division, drawn: DrawnTokens | None
    ) -> None:
        """Compute a small step by a captured graph."""
        array, tensor = self._staging.piece(len(graph.buffer))
        graph.rows.fill(array, batch.tokens, batch.positions, batch.slots, self.kv_tokens)
        graph.units.fill(array[graph.rows.size :], division)
        graph.buffer.copy_(tensor, non_blocking=True)
        if drawn is not None:
            drawn.write(graph.fields.tokens)
        graph.graph.replay()

    def _capture(self, bucket: int, wide: bool) -> _Graph:
        rows, units = RowLayout(bucket), self._units.layout(bucket)
        buffer = torch.zeros(rows.size + units.size, dtype=torch.int32, device=self.device)
        fields = rows.fields(buffer)
        fields.slots.fill_(self.kv_tokens)
        attend = self._units.bind(
            units, units.fields(buffer[rows.size :]), fields.positions, self._table, wide=wide
        )

        def compute() -> None:
            self._model.forward(bucket, fields, attend)

        return _Graph(rows, units, buffer, fields, self._record(compute))

    def _record(self, compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """What `compute` launches, as a graph."""
        current = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            compute()  # compiles the kernels
        current.wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # with other ranks there are other threads, which may ask the device meanwhile
        mode = "global" if self._group is None else "thread_local"
        with torch.cuda.graph(graph, pool=self._memory_pool, capture_error_mode=mode):
            compute()
        self._memory_pool = self._memory_pool or graph.pool()
        return graph

    def _check(self, step: Step) -> None:
        rows = sum(len(s.tokens) for s in step.segments)
        if not 0 < rows <= self._max_rows:
            raise InternalError(f"a step of {rows} rows, 1 to {self._max_rows} fit")
        last = 0
        for i, s in enumerate(step.segments):
            count = len(s.tokens)
            if s.start < 0 or len(s.slots) != s.start + count + step.repeats - 1:
                raise InternalError(
                    f"segment {i} of the step is wrong: {count} tokens from {s.start} on, "
                    f"{len(s.slots)} slots"
                )
            if s.targets and len(s.targets) != count:
                raise InternalError(f"segment {i} has {len(s.targets)} rows of targets")
            unknown = bool(step.after) and step.after[i] >= 0
            if (step.repeats > 1 or unknown) and (s.sample is None or s.targets):
                raise InternalError(f"segment {i} of a repeated step does not draw a token")
            if unknown and (count > 1 or s.state is not None):
                raise InternalError(f"segment {i} cannot go on from a token that is not known")
            last = max(last, len(s.slots))
        known = len(self._rows_drawn) if self._given is not None else 0
        if step.after and max(step.after) >= known:
            raise InternalError("a step continues one that has fewer segments")
        tokens = np.concatenate([s.tokens for s in step.segments])
        slots = np.concatenate([s.slots[s.start :] for s in step.segments])
        for name, low, high, limit in (
            ("token", tokens.min(), tokens.max(), self.vocab_size),
            ("slot", slots.min(), slots.max(), self.kv_tokens),
            ("position", 0, last - 1, self.context_length),
        ):
            if low < 0 or high >= limit:
                raise InternalError(f"the step has a {name} outside 0 to {limit - 1}")
