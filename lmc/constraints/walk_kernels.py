"""The walks of a vocabulary's trie as numba compiles them: for masks, and for where tokens lead.

Both go through the trie in depth-first order and take the same step over a byte. They return the
state whose row they need and do not find, to be called again when it is filled. What they write to,
and what is in front of a walk, is the matter of `walking` and `token_steps`; this imports numba.

LLVM inlines the step: where numba does (`inline="always"`), walks take three times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import INVALID, LEAF
from lmc.constraints.machine import DEAD
from lmc.constraints.token_steps import MIDDLE

__all__ = ["compiled_mask_walk", "compiled_steps_walk"]

_INTS, _SHORTS, _FLAGS, _WORDS = "int32[::1]", "int16[::1]", "b1[::1]", "uint8[::1]"
_TABLE, _TALL = "int32[:,::1]", "uint64[:,::1]"


def compiled_mask_walk() -> Callable[..., Any]:
    """`_mask_walk`, compiled or loaded from numba's cache."""
    signature = (
        f"int64({_WORDS}, {_INTS}, {_INTS}, {_INTS}, {_INTS}, {_INTS}, {_INTS}, {_TABLE}, {_TALL}, "
        f"{_TABLE}, {_WORDS}, {_TALL}, {_INTS}, {_INTS}, {_INTS}, {_INTS}, {_WORDS}, {_INTS}, "
        f"{_INTS}, {_TABLE}, int64, int64, {_FLAGS}, {_FLAGS}, {_SHORTS}, {_INTS}, {_SHORTS}, "
        f"{_FLAGS}, {_INTS}, {_SHORTS}, {_INTS}, int64[::1])"
    )
    compiled: Callable[..., Any] = numba.njit(signature, cache=True, nogil=True)(_mask_walk)
    return compiled


def compiled_steps_walk() -> Callable[..., Any]:
    """`_steps_walk`, compiled or loaded from numba's cache."""
    signature = (
        f"int64({_WORDS}, {_INTS}, {_INTS}, {_INTS}, {_INTS}, {_INTS}, {_TABLE}, {_TALL}, "
        f"{_TABLE}, {_WORDS}, {_TALL}, {_INTS}, {_INTS}, {_INTS}, {_INTS}, int64[::1])"
    )
    compiled: Callable[..., Any] = numba.njit(signature, cache=True, nogil=True)(_steps_walk)
    return compiled


@numba.njit(forceinline=True)  # type: ignore[untyped-decorator]
def _target(b: int, node: int, first: npt.NDArray[np.int32], later: npt.NDArray[np.int32]) -> int:
    """What byte `b` leads to in the spelling: a node, a `LEAF`, or `INVALID`."""
    if node == 0:
        return first[b]  # type: ignore[no-any-return] # an int for numba
    if b & 0xC0 == 0x80:
        return later[node, b & 63]  # type: ignore[no-any-return] # as above
    return INVALID


@numba.njit(forceinline=True)  # type: ignore[untyped-decorator]
def _known(state: int, filled: npt.NDArray[np.uint8]) -> bool:
    """Whether a state's row is known."""
    return state < len(filled) and filled[state] != 0


@numba.njit(forceinline=True)  # type: ignore[untyped-decorator]
def _after(
    state: int,
    target: int,
    rows: npt.NDArray[np.int32],
    below: npt.NDArray[np.uint64],
    alive: npt.NDArray[np.uint64],
) -> int:
    """The state after a byte whose target is not `INVALID`; `DEAD` if it cannot come.

    Inside of a character it is the same state, if any character below lives.
    """
    if target <= LEAF:
        return rows[state, LEAF - target]  # type: ignore[no-any-return] # as above
    for word in range(below.shape[1]):
        if below[target, word] & alive[state, word]:
            return state
    return DEAD


def _mask_walk(
    byte: npt.NDArray[np.uint8],
    depth: npt.NDArray[np.int32],
    skip: npt.NDArray[np.int32],
    height: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int32],
    tokens_at: npt.NDArray[np.int32],
    first: npt.NDArray[np.int32],
    later: npt.NDArray[np.int32],
    below: npt.NDArray[np.uint64],
    rows: npt.NDArray[np.int32],
    filled: npt.NDArray[np.uint8],
    alive: npt.NDArray[np.uint64],
    loops: npt.NDArray[np.int32],
    roams: npt.NDArray[np.int32],
    states: npt.NDArray[np.int32],
    nodes: npt.NDArray[np.int32],
    clean: npt.NDArray[np.uint8],
    found: npt.NDArray[np.int32],
    gone: npt.NDArray[np.int32],
    contexts: npt.NDArray[np.int32],
    above: int,
    loop: int,
    inside: npt.NDArray[np.bool_],
    holds: npt.NDArray[np.bool_],
    foreign_end: npt.NDArray[np.int16],
    foreign: npt.NDArray[np.int32],
    foreign_before: npt.NDArray[np.int16],
    alone: npt.NDArray[np.bool_],
    exits: npt.NDArray[np.int32],
    exit_chars: npt.NDArray[np.int16],
    run: npt.NDArray[np.int32],
    cursor: npt.NDArray[np.int64],
) -> int:
    """Walk on from where `cursor` is; returns the state whose row it needs, or -1 at the end.

    Tokens are passed in the order of the trie. Below a node where a state loops over the slice (a
    *context*), tokens may come whose remaining characters are all of the slice, and the walk goes
    on only at characters that are not. A context is a column: where it ends, the next foreign
    character, its depth, where the walk around it ends, its state, and whether all before it is of
    the slice; if it is, the tokens of the slice and those that may come are the same.

    Where a state lets any text of the slice come (`roams`), but not by one state, the walk leaves
    out what hangs below a node with no other characters, and needs no row for it.
    """
    at, end, count, lost, passed, open, exit = cursor
    sliced = len(holds) > 0
    while True:
        if at >= end:
            if open > 0:
                # To the next foreign character, or out of the context.
                top = open - 1
                close = contexts[0, top]
                next = contexts[1, top]
                deep = contexts[2, top]
                while next < len(foreign) and foreign[next] < close:
                    if foreign[next] >= at and foreign_before[next] <= deep:
                        break
                    next += 1
                there = close
                if next < len(foreign) and foreign[next] < close:
                    there = foreign[next]
                if contexts[5, top] == 0:
                    for i in range(passed, tokens_at[there]):
                        if foreign_end[i] <= deep:
                            if not holds[i]:
                                found[count] = tokens[i]
                                count += 1
                        elif holds[i]:
                            gone[lost] = tokens[i]
                            lost += 1
                passed = tokens_at[there]
                if there == close:
                    open -= 1
                    at = close
                    end = contexts[3, top]
                else:
                    contexts[1, top] = next + 1
                    at = there
                    end = skip[there]
                    states[depth[there] - 1] = contexts[4, top]
                    nodes[depth[there] - 1] = 0
                    clean[depth[there] - 1] = contexts[5, top]
                continue
            if exit < len(exits):
                if exit_chars[exit] < len(run):
                    at = exits[exit]
                    end = skip[at]
                    states[depth[at] - 1] = run[exit_chars[exit]]
                    nodes[depth[at] - 1] = 0
                exit += 1
                continue
            if sliced:
                for i in range(passed, len(tokens)):
                    if holds[i]:
                        gone[lost] = tokens[i]
                        lost += 1
            cursor[2] = count
            cursor[3] = lost
            return -1
        d = depth[at]
        if height[at] <= above:
            at = skip[at]
            continue
        state = states[d - 1]
        node = nodes[d - 1]
        b = byte[at]
        pure = clean[d - 1]
        if node == 0 and not inside[b]:
            pure = 0
        target = _target(b, node, first, later)
        if target == INVALID:
            at = skip[at]
            continue
        if sliced and node == 0 and alone[at] and state < len(roams) and roams[state] == loop:
            for i in range(passed, tokens_at[at]):
                if holds[i]:
                    gone[lost] = tokens[i]
                    lost += 1
            passed = tokens_at[skip[at]]
            if pure == 0:
                for i in range(tokens_at[at], passed):
                    found[count] = tokens[i]
                    count += 1
            at = skip[at]
            continue
        wanted = -1
        if not _known(state, filled):
            wanted = state
        else:
            state = _after(state, target, rows, below, alive)
            if state == DEAD:
                at = skip[at]
                continue
            node = max(target, 0)
            if sliced and node == 0 and skip[at] > at + 1 and not _known(state, filled):
                # Whether it is a context; that does not matter if all below is left out.
                child = at + 1
                if state < len(roams) and roams[state] == loop:
                    while child < skip[at] and alone[child]:
                        child = skip[child]
                if child < skip[at]:
                    wanted = state
        if wanted >= 0:
            cursor[0] = at
            cursor[1] = end
            cursor[2] = count
            cursor[3] = lost
            cursor[4] = passed
            cursor[5] = open
            cursor[6] = exit
            return wanted
        states[d] = state
        nodes[d] = node
        clean[d] = pure
        if d > above:
            if sliced:
                for i in range(passed, tokens_at[at]):
                    if holds[i]:
                        gone[lost] = tokens[i]
                        lost += 1
                passed = tokens_at[at + 1]
                for i in range(tokens_at[at], passed):
                    if not holds[i]:
                        found[count] = tokens[i]
                        count += 1
            else:
                for i in range(tokens_at[at], tokens_at[at + 1]):
                    found[count] = tokens[i]
                    count += 1
        known = state < len(loops)
        if sliced and node == 0 and skip[at] > at + 1 and known and loops[state] == loop:
            low = 0
            high = len(foreign)
            while low < high:
                half = (low + high) // 2
                if foreign[half] <= at:
                    low = half + 1
                else:
                    high = half
            contexts[0, open] = skip[at]
            contexts[1, open] = low
            contexts[2, open] = d
            contexts[3, open] = end
            contexts[4, open] = state
            contexts[5, open] = pure
            open += 1
            at += 1
            end = at
            continue
        at += 1


def _steps_walk(
    byte: npt.NDArray[np.uint8],
    depth: npt.NDArray[np.int32],
    skip: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int32],
    tokens_at: npt.NDArray[np.int32],
    first: npt.NDArray[np.int32],
    later: npt.NDArray[np.int32],
    below: npt.NDArray[np.uint64],
    rows: npt.NDArray[np.int32],
    filled: npt.NDArray[np.uint8],
    alive: npt.NDArray[np.uint64],
    states: npt.NDArray[np.int32],
    nodes: npt.NDArray[np.int32],
    found: npt.NDArray[np.int32],
    after: npt.NDArray[np.int32],
    cursor: npt.NDArray[np.int64],
) -> int:
    """Walk on from the trie's node `cursor[0]`, with `cursor[1]` tokens found already.

    Returns the state whose row it needs, or -1 at the end.
    """
    at, count = cursor[0], cursor[1]
    while at < len(byte):
        d = depth[at]
        state, node, b = states[d - 1], nodes[d - 1], byte[at]
        target = _target(b, node, first, later)
        if target == INVALID:
            at = skip[at]
            continue
        if not _known(state, filled):
            cursor[0], cursor[1] = at, count
            return int(state)
        state = _after(state, target, rows, below, alive)
        if state == DEAD:
            at = skip[at]
            continue
        inside = max(target, 0)
        states[d], nodes[d] = state, inside
        for i in range(tokens_at[at], tokens_at[at + 1]):
            found[count] = tokens[i]
            after[count] = state if inside == 0 else MIDDLE
            count += 1
        at += 1
    cursor[0], cursor[1] = at, count
    return -1
