"""Draw tokens. A draw depends on its `Sampling`, its position and its row of logits, nothing else.

Greedy takes the greatest logit, the lowest id among equals. Otherwise, in this order: adjust, mask,
divide by the temperature, keep those at least `min_p` times as likely as the most likely one, of
these the `top_k` greatest, of these the fewest most likely ones whose probabilities reach `top_p`
(equals rank by id), and draw by the Gumbel-max trick: the token with
the greatest `logit / temperature + g`, with g = -log(-log(1 - u)) of a uniform u in (0, 1) for each
token id.

The uniform numbers are counter-based, u = (h + 1/2) / 2**32, with a hash h of 32 bits:

    key(c) = s(.. s(s(c ^ seed_low) ^ seed_high) ^ row) ^ draw) ^ position)
    h(id)  = s(s(id * 0x9E3779B1 + key(1)) ^ key(2))        all modulo 2**32

where s is the mixer `scramble`. Two keys make 64 bits, so that no two draws of a job share theirs.
A token with a small chance needs a great g, that is a small u; few ids have one, and only for these
are logarithms computed: the choice is exactly the same.

Source: Gumbel-max: Maddison et al., 2014. Counter-based numbers: Salmon et al., 2011. The mixer is
"lowbias32" of Wellons, 2018 (public domain), found there by search for low bias.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lmc.constraints.token_classes import TokenState
from lmc.errors import InternalError
from lmc.runtime.adjustment import Adjustment
from lmc.runtime.request import MaskArray, Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.kernels.parallel import Team

__all__ = [
    "Sampler",
    "Wish",
    "allowed_tokens",
    "draw",
    "greatest",
    "keys_of_draw",
    "keys_of_draws",
    "noise",
    "scramble",
]

FloatArray = npt.NDArray[np.float32]
WordArray = npt.NDArray[np.uint32]

NEAR_ENOUGH = 0.01  # nats by which float32 may be wrong about a distance


@dataclass(frozen=True, slots=True)
class Wish:
    """A token to be drawn after one row; see `Segment` for the fields.

    Only a device's sampler knows of `state`.
    """

    sampling: Sampling
    position: int = 0
    mask: MaskArray | None = None
    banned: tuple[int, ...] = ()
    adjustment: Adjustment | None = None
    state: TokenState | None = None


def scramble(x: WordArray) -> WordArray:
    """Mix 32-bit words: each bit of the result depends on each bit of the argument."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def keys_of_draw(sampling: Sampling, position: int) -> tuple[int, int]:
    """The two 32-bit keys of the random numbers of one draw."""
    keys = np.array([1, 2], np.uint32)
    seed = sampling.seed & 0xFFFF_FFFF_FFFF_FFFF
    for part in (seed & 0xFFFF_FFFF, seed >> 32, sampling.row, sampling.draw, position):
        keys = scramble(keys ^ np.uint32(part & 0xFFFF_FFFF))
    return int(keys[0]), int(keys[1])


def keys_of_draws(
    samplings: Sequence[Sampling], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Like `keys_of_draw`, for many draws at once; shape (draws, 2)."""
    fields = np.array(
        [[s.seed & 0xFFFF_FFFF_FFFF_FFFF, s.row & 0xFFFF_FFFF, s.draw & 0xFFFF_FFFF]
         for s in samplings],
        np.uint64,
    ).reshape(-1, 3)  # fmt: skip
    keys = np.empty((len(samplings), 2), np.uint32)
    keys[:] = (1, 2)
    low = np.uint64(0xFFFF_FFFF)
    seeds = fields[:, 0]
    parts = (
        seeds & low, seeds >> np.uint64(32), fields[:, 1], fields[:, 2],
        positions.astype(np.uint64) & low,
    )  # fmt: skip
    for part in parts:
        keys = scramble(keys ^ part.astype(np.uint32)[:, None])
    return keys


def noise(ids: npt.NDArray[np.integer], keys: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Uniform numbers in (0, 1) for token ids."""
    words = ids.astype(np.uint32) * np.uint32(0x9E3779B1) + np.uint32(keys[0])
    return (scramble(scramble(words) ^ np.uint32(keys[1])).astype(np.float64) + 0.5) / 2**32


def allowed_tokens(
    logits: FloatArray, sampling: Sampling, mask: MaskArray | None
) -> MaskArray | None:
    """Which tokens are left after mask, min-p, top-k and top-p; None for all.

    Equal logits rank by id, the lowest first, so that no more than `top_k` are left.
    """
    vocabulary = len(logits)
    k = sampling.top_k if 0 < sampling.top_k < vocabulary else vocabulary
    every = k == vocabulary and sampling.top_p >= 1.0
    if sampling.temperature == 0 or (every and sampling.min_p == 0):
        return mask
    scores = logits if mask is None else np.where(mask, logits, np.float32(-np.inf))
    most, whole = scores.max(), math.nan
    if sampling.min_p > 0:
        floor = float(most) + sampling.temperature * math.log(sampling.min_p)
        likely = scores >= np.float64(floor)
        mask = likely if mask is None else likely & mask
        if every:
            return mask
        scores = np.where(mask, logits, np.float32(-np.inf))
    if k < vocabulary:
        ranked = greatest(scores, k)
    else:
        distances = (scores - most) / np.float32(sampling.temperature)
        whole = float(np.exp(distances).sum(dtype=np.float64))
        # tokens further off share less than 1 - top_p of the greatest one's probability
        far = math.log((1 - sampling.top_p) / vocabulary) - NEAR_ENOUGH
        near = np.flatnonzero(distances >= far)
        ranked = near[np.argsort(-scores[near], kind="stable")]
    if sampling.top_p < 1.0:
        weights = np.exp((scores[ranked] - most).astype(np.float64) / sampling.temperature)
        whole = float(weights.sum()) if k < vocabulary else whole
        before = np.cumsum(weights) - weights
        ranked = ranked[before < sampling.top_p * whole]
    left = np.zeros(vocabulary, np.bool_)
    left[ranked] = True
    return left if mask is None else left & mask


def greatest(scores: FloatArray, count: int) -> npt.NDArray[np.int64]:
    """The ids of the `count` greatest scores, greatest first, equals by id."""
    ids = np.arange(len(scores))
    if count < len(scores):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        above = np.flatnonzero(scores > least)
        ids = np.concatenate([above, np.flatnonzero(scores == least)[: count - len(above)]])
    return ids[np.lexsort((ids, -scores[ids]))]


def draw(logits: FloatArray, wish: Wish) -> int:
    """The token that a wish gets from a row of logits, or -1 if none is allowed: the definition."""
    mask = _unbanned(wish, len(logits))
    if mask is not None and not mask.any():
        return -1
    if wish.adjustment is not None:
        logits = wish.adjustment.apply(logits)
    left = allowed_tokens(logits, wish.sampling, mask)
    scores = logits.astype(np.float64)
    if wish.sampling.temperature > 0:
        uniform = noise(np.arange(len(logits)), keys_of_draw(wish.sampling, wish.position))
        scores = scores / wish.sampling.temperature - np.log(-np.log1p(-uniform))
    return int(np.argmax(scores if left is None else np.where(left, scores, -np.inf)))


def _unbanned(wish: Wish, vocabulary: int) -> MaskArray | None:
    """A wish's mask without the banned tokens."""
    if not wish.banned:
        return wish.mask
    mask = np.ones(vocabulary, np.bool_) if wish.mask is None else wish.mask.copy()
    mask[[*wish.banned]] = False
    return mask


class Sampler:
    """Draws for the rows of a step: compiled with a team, by the definitions without one."""

    def __init__(self, vocab_size: int, team: Team | None) -> None:
        self._vocab_size = vocab_size
        self._kernel = None
        if team is not None and vocab_size % 16 == 0:
            from lmc.runtime.kernels.draw import draw_kernel

            self._kernel = draw_kernel(team)

    def run(
        self, logits: Tensor, wishes: Sequence[Wish | None]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Draw a token after each row that has a wish.

        Args:
            logits: float32 on the CPU, shape (rows, vocab_size), contiguous.
            wishes: one per row, or None where no token is wanted.

        Returns:
            The tokens, -1 where none was wanted, and of each row the logarithm of the sum of its
            exponentials: a logit less this is a log-probability. It is NaN or infinite where the
            logits are not all finite; then the token means nothing.

        Raises:
            InternalError: a mask allows no token.
        """
        values = logits.numpy()
        if self._kernel is None:
            tokens, normalizers = self._by_definition(values, wishes)
        else:
            tokens, normalizers = self._compiled(values, wishes)
            self._draw_adjusted(values, wishes, tokens)
        for wish, token, normalizer in zip(wishes, tokens, normalizers, strict=True):
            if wish is not None and token < 0 and np.isfinite(normalizer):
                raise InternalError("a mask allows no token at all")
        return tokens, normalizers

    def _draw_adjusted(
        self, logits: FloatArray, wishes: Sequence[Wish | None], tokens: npt.NDArray[np.int64]
    ) -> None:
        """Draw again where logits are to be adjusted; their normalizers are those before."""
        changed: dict[int, Wish] = {}
        rows = []
        for i, wish in enumerate(wishes):
            if wish is not None and wish.adjustment is not None:
                changed[i] = dataclasses.replace(wish, adjustment=None)
                rows.append(wish.adjustment.apply(logits[i]))
        if rows:
            tokens[list(changed)], _ = self._compiled(np.stack(rows), list(changed.values()))

    def _by_definition(
        self, logits: FloatArray, wishes: Sequence[Wish | None]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        tokens = np.full(len(wishes), -1, np.int64)
        normalizers = np.full(len(wishes), np.nan)
        for i, wish in enumerate(wishes):
            row = logits[i]
            if not np.isfinite(row.max()):  # NaN and +inf; -inf is a token that never comes
                continue
            normalizers[i] = row.max() + np.log(np.exp((row - row.max()).astype(np.float64)).sum())
            if wish is not None:
                tokens[i] = draw(row, wish)
        return tokens, normalizers

    def _compiled(
        self, logits: FloatArray, wishes: Sequence[Wish | None]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        assert self._kernel is not None
        masks: list[MaskArray | None] = []
        rows = np.zeros((len(wishes), 5), np.int64)
        temperatures = np.zeros(len(wishes))
        drawn: list[int] = []
        for i, wish in enumerate(wishes):
            if wish is None:
                masks.append(None)
                continue
            if wish.adjustment is not None:  # what would be drawn here is drawn again
                masks.append(None)
                rows[i, 0] = 1
                continue
            mask = allowed_tokens(logits[i], wish.sampling, _unbanned(wish, self._vocab_size))
            if mask is not None:
                mask = np.ascontiguousarray(mask)
                rows[i, 1] = mask.ctypes.data
            masks.append(mask)  # kept alive until the kernel has read it
            rows[i, 0] = 1
            if wish.sampling.temperature > 0:
                rows[i, 0] = 2
                drawn.append(i)
                temperatures[i] = wish.sampling.temperature
        if drawn:
            asked = [wish for wish in map(wishes.__getitem__, drawn) if wish is not None]
            positions = np.array([wish.position for wish in asked], np.int64)
            rows[drawn, 2:4] = keys_of_draws([wish.sampling for wish in asked], positions)
        tokens = np.full(len(wishes), -1, np.int64)
        normalizers = np.zeros(len(wishes))
        self._kernel(
            logits.ctypes.data, len(wishes),
            self._vocab_size, rows.ctypes.data, temperatures.ctypes.data, tokens.ctypes.data,
            normalizers.ctypes.data, small=len(wishes) == 1,
        )  # fmt: skip
        return tokens, normalizers
