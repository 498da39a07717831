"""Where each token leads from a place of an automaton: the walk of `walking`, with what is after.

Masks do not need to know where a token leads, and skip much of the trie by slices; this goes to
every token that may come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import LEAF
from lmc.constraints.machine import DEAD
from lmc.constraints.walking import COMPILE_FROM, places_after

if TYPE_CHECKING:
    from lmc.constraints.machine import Machine
    from lmc.constraints.vocabulary import Trie

__all__ = ["MIDDLE", "prepare", "steps_from", "steps_from_arrays"]

MIDDLE = -2
"""In place of the state after a token that ends inside of a character."""

Found = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


def steps_from(machine: Machine, trie: Trie, place: int) -> Found:
    """The tokens that are text and may come at a place, and the state after each.

    Returns:
        int32 twice, of one length: tokens, and states of the machine or `MIDDLE`.
    """
    kernel = prepare() if len(trie) >= COMPILE_FROM else None
    if kernel is None:
        return steps_from_arrays(machine, trie, place)
    spelling = machine.alphabet.spelling
    states = np.empty(trie.longest + 2, np.int32)
    nodes = np.empty(trie.longest + 2, np.int32)
    states[0], nodes[0] = divmod(place, machine.nodes)
    tokens, after = np.empty(len(trie.tokens), np.int32), np.empty(len(trie.tokens), np.int32)
    cursor = np.zeros(2, np.int64)
    while True:
        filled = machine.filled  # read first: when other threads add states, it grows last
        wanted = kernel(
            trie.byte, trie.depth, trie.skip, trie.tokens, trie.tokens_at,
            spelling.first, spelling.later, machine.below,
            machine.rows, filled, machine.alive,
            states, nodes, tokens, after, cursor,
        )  # fmt: skip
        if wanted < 0:
            break
        machine.fill(wanted)
    count = int(cursor[1])
    return tokens[:count].copy(), after[:count].copy()


def steps_from_arrays(machine: Machine, trie: Trie, place: int) -> Found:
    """The same with numpy."""
    places = places_after(machine, trie, place)[trie.tokens]
    there = places != DEAD
    state, node = np.divmod(places[there], machine.nodes)
    return trie.tokens[there], np.where(node == 0, state, MIDDLE).astype(np.int32)


def _walk_on(
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
        if node == 0:
            target = first[b]
        elif b & 0xC0 == 0x80:
            target = later[node, b & 63]
        else:
            target = -1
        if target == -1:
            at = skip[at]
            continue
        if state >= len(filled) or filled[state] == 0:
            cursor[0], cursor[1] = at, count
            return int(state)
        inside = 0
        if target <= LEAF:
            state = rows[state, LEAF - target]
            if state < 0:
                at = skip[at]
                continue
        else:
            hope = False
            for word in range(alive.shape[1]):
                if below[target, word] & alive[state, word]:
                    hope = True
            if not hope:
                at = skip[at]
                continue
            inside = target
        states[d], nodes[d] = state, inside
        for i in range(tokens_at[at], tokens_at[at + 1]):
            found[count] = tokens[i]
            after[count] = state if inside == 0 else MIDDLE
            count += 1
        at += 1
    cursor[0], cursor[1] = at, count
    return -1


_lock = threading.Lock()
_kernel: list[Callable[..., Any] | None] = []  # once it has been looked for


def prepare() -> Callable[..., Any] | None:
    """The compiled walk; None without numba. Compiles or loads it at first."""
    with _lock:
        if not _kernel:
            try:
                import numba
            except ImportError:  # numpy does it too
                _kernel.append(None)
                return None
            ints, words, table, tall = "int32[::1]", "uint8[::1]", "int32[:,::1]", "uint64[:,::1]"
            _kernel.append(
                numba.njit(
                    f"int64({words}, {ints}, {ints}, {ints}, {ints}, {ints}, {table}, {tall}, "
                    f"{table}, {words}, {tall}, {ints}, {ints}, {ints}, {ints}, int64[::1])",
                    cache=True,
                    nogil=True,
                )(_walk_on)
            )
        return _kernel[0]
