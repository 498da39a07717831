"""Draw tokens on the device, by the definitions of `lmc.runtime.sampler`.

Owns        the masks and tables on the device, buffers for the rows of a step.
Promises    the same logits give the token that `sampler.draw` gives, except where rounding decides
            which tokens `top_p` keeps.
Costs       two launches a step; a sort of the rows that have `top_k`, `top_p` or wanted the most
            likely tokens; two more launches for rows with penalties or biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmc.constraints.token_classes import MOST_CLASSES, NEVER
from lmc.runtime.cuda.masks import MaskArena
from lmc.runtime.cuda.sampling_kernels import choose_tokens, scan_scores
from lmc.runtime.cuda.staging import Staging
from lmc.runtime.cuda.tables import FREE, ONCE, TableArena
from lmc.runtime.request import Sampling
from lmc.runtime.sampler import Wish, keys_of_draws

__all__ = ["DeviceSampler", "Drawn"]

PIECE = 4096  # tokens a program goes over
NUMBERS = 7  # int32 of a row: kind, two keys, row of the mask, state, temperature (two words)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn, on the device: int32, float32, float32 and int32, one for each row.

    `states` are those after the tokens.
    """

    tokens: Tensor
    logprobs: Tensor
    normalizers: Tensor
    states: Tensor

    @staticmethod
    def joined(parts: Sequence[Drawn]) -> Drawn | None:
        """All rows of several parts; None if there are none."""
        if len(parts) < 2:
            return parts[0] if parts else None
        names = ("tokens", "logprobs", "normalizers", "states")
        return Drawn(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


class DeviceSampler:
    """See the module."""

    def __init__(
        self, vocab_size: int, rows: int, mask_rows: int, device: torch.device, *,
        table_states: int = 1024, tables: int = 8,
    ) -> None:  # fmt: skip
        self._vocab_size = vocab_size
        self._pieces = -(-vocab_size // PIECE)
        self._masks = MaskArena(vocab_size, mask_rows, device)
        self._tables = TableArena(vocab_size, table_states, tables, device)
        self._numbers = torch.zeros(rows * NUMBERS, dtype=torch.int32, device=device)
        self._partial = torch.zeros(3, rows, self._pieces, dtype=torch.int32, device=device)
        self._bests = torch.zeros(rows, self._pieces, dtype=torch.float64, device=device)
        self._nothing = torch.zeros(1, dtype=torch.uint8, device=device)
        self._device = device

    def forget(self) -> None:
        """Bring masks and tables to the device again when they are used next."""
        self._masks.forget()
        self._tables.forget()

    def states(
        self, wishes: Sequence[Wish | None], staging: Staging
    ) -> tuple[npt.NDArray[np.int32], Sequence[Wish | None]]:
        """Bring the tables of a whole step to the device.

        Returns:
            The rows' states there; and the wishes, with masks where there is no room for a table.
        """
        states = self._tables.numbers([None if w is None else w.state for w in wishes], staging)
        if not (states == ONCE).any():
            return states, wishes
        return states, [
            replace(w, mask=w.state.classes.mask(w.state.number))
            if w is not None and w.state is not None and state == ONCE else w
            for w, state in zip(wishes, states.tolist(), strict=True)
        ]  # fmt: skip

    def prepare(
        self,
        wishes: Sequence[Wish | None],
        positions: npt.NDArray[np.int64],
        states: npt.NDArray[np.int32] | None,
        staging: Staging,
    ) -> PreparedRows:
        """Bring to the device what the rows of a step want.

        Args:
            wishes: one per row, or None where no token is wanted.
            positions: the counters of the draws; `Wish.position` is not read.
            states: what `states` gave for these rows; None if the device knows them.
        """
        count = len(wishes)
        numbers = np.zeros((count, NUMBERS), np.int32)
        numbers[:, 3] = self._masks.places(
            [None if w is None else (w.mask, w.banned) for w in wishes], staging
        )
        numbers[:, 4] = FREE if states is None else states
        temperatures = np.ones(count)
        drawn = []
        filtered = []
        adjusted = []
        for i, wish in enumerate(wishes):
            if wish is None:
                continue
            numbers[i, 0] = 1
            if wish.adjustment is not None:
                adjusted.append(i)  # drawn again, from other logits
                continue
            if wish.sampling.temperature > 0:
                drawn.append(i)
                temperatures[i] = wish.sampling.temperature
                if _filters(wish.sampling, self._vocab_size):
                    filtered.append((i, wish.sampling))
        if drawn:
            numbers[drawn, 0] = 2
            samplings = [w.sampling for i in drawn if (w := wishes[i]) is not None]
            numbers[drawn, 1:3] = keys_of_draws(samplings, positions[drawn]).view(np.int32)
        # Fields lie one after another on the device, each with room for a multiple of four rows:
        # for another alignment Triton would compile the kernels again.
        room = _room(count)
        flat = np.zeros(NUMBERS * room, np.int32)
        at = 0
        for field in (
            temperatures.view(np.int32), numbers[:, 0], numbers[:, 1:3], numbers[:, 3],
            numbers[:, 4],
        ):  # fmt: skip
            flat[at : at + field.size] = field.ravel()
            at += field.size // count * room
        target = torch.empty(len(flat), dtype=torch.int32, device=self._device)
        staging.copy(flat, target)
        return PreparedRows(
            count,
            target,
            tuple(filtered),
            self._prepare_adjusted(wishes, adjusted, positions, numbers[:, 4], staging),
        )

    def _prepare_adjusted(
        self, wishes: Sequence[Wish | None], places: list[int], positions: npt.NDArray[np.int64],
        states: npt.NDArray[np.int32], staging: Staging,
    ) -> _Adjusted | None:  # fmt: skip
        """What the rows with adjustments want of their changed logits."""
        if not places:
            return None
        plain, rows, adjustments = [], [], []
        for nth, i in enumerate(places):
            wish = wishes[i]
            if wish is not None and wish.adjustment is not None:
                plain.append(replace(wish, adjustment=None))
                adjustments.append(wish.adjustment)
                rows.append(np.full(len(wish.adjustment.ids), nth))
        ids = np.concatenate([a.ids for a in adjustments])
        factors = np.concatenate(
            [np.where(a.seen, np.float32(a.factor), np.float32(1)) for a in adjustments]
        )
        added = np.concatenate([a.added for a in adjustments])
        numbers = np.concatenate([
            np.array(places, np.int32), np.concatenate(rows).astype(np.int32),
            ids.astype(np.int32), factors.astype(np.float32).view(np.int32), added.view(np.int32),
        ])  # fmt: skip
        target = torch.empty(len(numbers), dtype=torch.int32, device=self._device)
        staging.copy(numbers, target)
        return _Adjusted(
            len(places),
            len(ids),
            target,
            self.prepare(plain, positions[places], states[places], staging),
        )

    def draw(self, logits: Tensor, rows: PreparedRows, states: Tensor | None = None) -> Drawn:
        """Draw after each row.

        Args:
            logits: float32, (rows, vocab_size), contiguous.
            states: `Drawn.states` of the step before, if this is a repeat of it.
        """
        drawn = self._draw(logits, rows, states)
        if rows.adjusted is not None:
            some = rows.adjusted
            changed, places = some.apply(logits)
            again = self._draw(changed, some.rows, None)
            tokens = again.tokens.long()
            own = logits[places, tokens.clamp(min=0)] - drawn.normalizers[places]
            drawn.tokens[places] = again.tokens
            drawn.logprobs[places] = own
        return drawn

    def _draw(self, logits: Tensor, rows: PreparedRows, states: Tensor | None) -> Drawn:
        count, pieces = rows.count, self._pieces
        numbers = rows.numbers
        room = _room(count)
        temperatures = numbers[: 2 * room].view(torch.float64)
        kinds = numbers[2 * room : 3 * room]
        keys = numbers[3 * room : 5 * room]
        mask_rows = numbers[5 * room : 6 * room]
        later = states is not None
        if states is None:
            states = numbers[6 * room : 7 * room]
        tables = self._tables
        keep_rows, keeps = kinds, self._nothing
        if rows.filtered:
            keep_rows, keeps = self._filter(logits, rows, mask_rows, states)
        tops = self._partial[0].view(torch.float32)
        sums = self._partial[1].view(torch.float32)
        scan_scores[(count, pieces)](
            logits, kinds, temperatures, keys, mask_rows, self._masks.bits, keep_rows, keeps,
            states, tables.next, tables.table_of, tables.class_of,
            tops, sums, self._bests, self._partial[2], VOCABULARY=self._vocab_size,
            WORDS=self._masks.words, BLOCK=PIECE, PIECES=pieces, KEEP=bool(rows.filtered),
            CLASSES=MOST_CLASSES, WIDTH=tables.width, num_warps=8,
        )  # fmt: skip
        drawn = Drawn(
            torch.empty(count, dtype=torch.int32, device=self._device),
            torch.empty(count, dtype=torch.float32, device=self._device),
            torch.empty(count, dtype=torch.float32, device=self._device),
            torch.empty(count, dtype=torch.int32, device=self._device),
        )
        choose_tokens[(count,)](
            logits, kinds, tops, sums, self._bests, self._partial[2],
            states, tables.next, tables.table_of, tables.class_of, tables.forced,
            drawn.tokens, drawn.logprobs, drawn.normalizers, drawn.states,
            VOCABULARY=self._vocab_size, PIECES=pieces,
            BLOCK=max(2, 1 << (pieces - 1).bit_length()),
            CLASSES=MOST_CLASSES, WIDTH=tables.width, LATER=later, num_warps=1,
        )  # fmt: skip
        return drawn

    def _filter(
        self, logits: Tensor, rows: PreparedRows, mask_rows: Tensor, states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Which tokens `min_p`, `top_k` and `top_p` keep, for the rows that have them."""
        device, vocabulary = self._device, self._vocab_size
        places = torch.tensor([i for i, _ in rows.filtered]).to(device, non_blocking=True)
        chosen = logits.index_select(0, places)
        masks = mask_rows.index_select(0, places).long()
        bits = self._masks.bits.index_select(0, masks.clamp(min=0))
        shifts = torch.arange(32, dtype=torch.int32, device=device)
        allowed = ((bits[:, :, None] >> shifts) & 1).bool().flatten(1)[:, :vocabulary]
        allowed |= (masks < 0)[:, None]
        allowed &= self._tables_allow(states.index_select(0, places))
        chosen = chosen.masked_fill(~allowed, -torch.inf)
        ranked, order = torch.sort(chosen, dim=1, descending=True, stable=True)
        settings = torch.tensor(
            [[s.temperature, s.top_p, s.top_k if s.top_k > 0 else vocabulary, s.min_p]
             for _, s in rows.filtered],
            dtype=torch.float64,
        ).to(device, non_blocking=True)  # fmt: skip
        place = torch.arange(vocabulary, device=device)[None]
        kept = place < settings[:, 2:3]
        floors = ranked[:, :1].double() + settings[:, :1] * settings[:, 3:].log()
        kept &= ranked.double() >= floors
        shares = ((ranked - ranked[:, :1]).double() / settings[:, :1]).exp().masked_fill(~kept, 0.0)
        before = shares.cumsum(1) - shares
        kept &= (before < settings[:, 1:2] * shares.sum(1, keepdim=True)) | (settings[:, 1:2] >= 1)
        keeps = torch.zeros(len(places), vocabulary, dtype=torch.uint8, device=device)
        keeps.scatter_(1, order, kept.to(torch.uint8))
        keep_rows = torch.full((rows.count,), -1, dtype=torch.int32, device=device)
        keep_rows[places] = torch.arange(len(places), dtype=torch.int32, device=device)
        return keep_rows, keeps

    def _tables_allow(self, states: Tensor) -> Tensor:
        """Which tokens tables allow, bool, (rows, vocabulary); all where a row has none."""
        tables = self._tables
        at = states.clamp(min=0).long()
        classes = tables.class_of[tables.table_of[at].long(), : self._vocab_size].long()
        return (tables.next[at].gather(1, classes) != NEVER) | (states < 0)[:, None]


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """What the rows of a step want, on the device; see `DeviceSampler.prepare`."""

    count: int
    numbers: Tensor
    filtered: tuple[tuple[int, Sampling], ...]
    adjusted: _Adjusted | None


@dataclass(frozen=True, slots=True)
class _Adjusted:
    """Rows whose logits are changed before the draw, and how; `Adjustment` says what is meant.

    Attributes:
        count, changes: rows, and tokens of all of them that change.
        numbers: int32 on the device: places of the rows; of each change its row among them, its
            token, factor and addend (float32).
        rows: what is wanted of them.
    """

    count: int
    changes: int
    numbers: Tensor
    rows: PreparedRows

    def apply(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The changed rows, and their places in `logits`."""
        places = self.numbers[: self.count].long()
        changed = logits.index_select(0, places)
        rows, ids, factors, added = self.numbers[self.count :].view(4, self.changes)
        at = (rows.long(), ids.long())
        some, factor = changed[at], factors.view(torch.float32)
        changed[at] = torch.where(some > 0, some / factor, some * factor) + added.view(
            torch.float32
        )
        return changed, places


def _room(rows: int) -> int:
    """The next multiple of four."""
    return -(-rows // 4) * 4


def _filters(sampling: Sampling, vocabulary: int) -> bool:
    """Whether a draw leaves out tokens by their rank or likelihood."""
    return sampling.top_p < 1 or sampling.min_p > 0 or 0 < sampling.top_k < vocabulary
