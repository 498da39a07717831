"""Triton kernels that draw tokens by the definitions of `lmc.runtime.sampler`.

`scan_scores` goes over a piece of a row of logits: greatest logit, sum of exponentials, and the
token with the greatest score among those allowed. `choose_tokens` puts the pieces together, and
moves rows along the tables of their constraints (`tables`).

Promises    the random numbers are those of the CPU's sampler; scores of sampled rows in float64,
            so that the same logits give the same token.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["choose_tokens", "scan_scores"]


@triton.jit
def _scramble(x):
    """`lmc.runtime.sampler.scramble`, on uint32."""
    x = x ^ (x >> 16)
    x = x * tl.full((), 0x7FEB352D, tl.uint32)
    x = x ^ (x >> 15)
    x = x * tl.full((), 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def scan_scores(
    logits, kinds, temperatures, key_words, mask_rows, masks, keep_rows, keeps,
    states, next_states, table_of, class_of,
    tops, sums, bests, ids,
    VOCABULARY: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    KEEP: tl.constexpr, CLASSES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program for a piece of BLOCK tokens of a row.

    Args:
        logits: float32, (rows, VOCABULARY).
        kinds: int32 per row: 0 nothing is drawn, 1 greedy, 2 drawn.
        temperatures: float64 per row.
        key_words: int32, (rows, 2), the keys of the row's draw.
        mask_rows, masks: which row of `masks`, int32 words of 32 tokens each, or -1 for all.
        keep_rows, keeps: the same with bytes of 0 and 1; read if KEEP.
        states: int32 per row: its state in the tables, or less than 0.
        next_states, table_of, class_of: see `TableArena`; CLASSES and WIDTH are lengths of rows.
        tops, sums, bests, ids: float32, float32, float64 and int32, (rows, PIECES).
    """
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    at = piece * BLOCK + tl.arange(0, BLOCK)
    there = at < VOCABULARY
    x = tl.load(logits + row * VOCABULARY + at, mask=there, other=float("-inf"))
    top = tl.max(x, axis=0)
    bad = tl.sum(tl.where(there & (x != x), 1, 0), axis=0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.where(there, tl.exp(x - safe), 0.0), axis=0)
    total = tl.where(bad > 0, float("nan"), total)
    tl.store(tops + row * PIECES + piece, top)
    tl.store(sums + row * PIECES + piece, total)
    kind = tl.load(kinds + row)
    if kind > 0:
        allowed = there
        mask_row = tl.load(mask_rows + row).to(tl.int64)
        if mask_row >= 0:
            word = tl.load(masks + mask_row * WORDS + at // 32, mask=there, other=0)
            allowed = allowed & (((word >> (at % 32)) & 1) != 0)
        state = tl.load(states + row).to(tl.int64)
        if state >= 0:
            table = tl.load(table_of + state).to(tl.int64)
            of = tl.load(class_of + table * WIDTH + at, mask=there, other=0).to(tl.int32)
            after = tl.load(next_states + state * CLASSES + of, mask=there, other=-1)
            allowed = allowed & (after != -1)
        if KEEP:
            keep_row = tl.load(keep_rows + row).to(tl.int64)
            if keep_row >= 0:
                byte = tl.load(keeps + keep_row * VOCABULARY + at, mask=there, other=0)
                allowed = allowed & (byte != 0)
        if kind == 1:
            plain = tl.where(allowed, x, float("-inf"))
            best = tl.max(plain, axis=0)
            first = tl.min(tl.where((plain == best) & allowed, at, 0x7FFFFFFF), axis=0)
            tl.store(bests + row * PIECES + piece, best.to(tl.float64))
            tl.store(ids + row * PIECES + piece, first)
        else:
            low = tl.load(key_words + row * 2).to(tl.uint32, bitcast=True)
            high = tl.load(key_words + row * 2 + 1).to(tl.uint32, bitcast=True)
            word = at.to(tl.uint32) * tl.full((), 0x9E3779B1, tl.uint32) + low
            word = _scramble(_scramble(word) ^ high)
            uniform = (word.to(tl.float64) + 0.5) / 4294967296.0
            score = x.to(tl.float64) / tl.load(temperatures + row)
            score = score - tl.log(-tl.log(1.0 - uniform))
            score = tl.where(allowed, score, float("-inf"))
            greatest = tl.max(score, axis=0)
            at_it = tl.min(tl.where((score == greatest) & allowed, at, 0x7FFFFFFF), axis=0)
            tl.store(bests + row * PIECES + piece, greatest)
            tl.store(ids + row * PIECES + piece, at_it)


@triton.jit
def choose_tokens(
    logits, kinds, tops, sums, bests, ids,
    states, next_states, table_of, class_of, forced,
    tokens, logprobs, normalizers, states_after,
    VOCABULARY: tl.constexpr, PIECES: tl.constexpr, BLOCK: tl.constexpr,
    CLASSES: tl.constexpr, WIDTH: tl.constexpr, LATER: tl.constexpr,
):  # fmt: skip
    """One program a row: the token (-1 if none is allowed), its log-probability, the normalizer.

    `states_after` gets the state after the token. If LATER, a token that the tables force is taken
    instead of the one that was drawn, and none where the state is not known any more.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < PIECES
    top = tl.load(tops + row * PIECES + at, mask=there, other=float("-inf"))
    total = tl.load(sums + row * PIECES + at, mask=there, other=0.0)
    greatest = tl.max(top, axis=0)
    share = tl.where(there & (top > float("-inf")), tl.exp(top - greatest) * total, 0.0)
    share = tl.where(there & (total != total), float("nan"), share)
    normalizer = greatest + tl.log(tl.sum(share, axis=0))
    tl.store(normalizers + row, normalizer)
    token = -1
    value = 0.0
    state = tl.load(states + row).to(tl.int64)
    after = tl.where(state == -1, -1, -2).to(tl.int32)
    if tl.load(kinds + row) > 0:
        best = tl.load(bests + row * PIECES + at, mask=there, other=float("-inf"))
        first = tl.load(ids + row * PIECES + at, mask=there, other=0x7FFFFFFF)
        greatest_score = tl.max(best, axis=0)
        token = tl.min(tl.where(best == greatest_score, first, 0x7FFFFFFF), axis=0)
        found = token < 0x7FFFFFFF
        token = tl.where(found, token, -1)
        if state >= 0:
            if LATER:
                must = tl.load(forced + state)
                token = tl.where(must >= 0, must, token)
                found = token >= 0
            table = tl.load(table_of + state).to(tl.int64)
            of = tl.load(class_of + table * WIDTH + token, mask=found, other=0).to(tl.int32)
            after = tl.load(next_states + state * CLASSES + of, mask=found, other=-2)
            after = tl.where(after < 0, -2, after)
        if state == -2:
            token = -1
            found = token >= 0
        logit = tl.load(logits + row * VOCABULARY + token, mask=found, other=0.0)
        value = tl.where(found, logit - normalizer, 0.0)
    tl.store(states_after + row, after)
    tl.store(tokens + row, token)
    tl.store(logprobs + row, value)
