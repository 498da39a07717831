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


_lock = threading.Lock()
_kernel: list[Callable[..., Any] | None] = []  # once it has been looked for


def prepare() -> Callable[..., Any] | None:
    """The compiled walk; None without numba. Compiles or loads it at first."""
    with _lock:
        if not _kernel:
            try:
                from lmc.constraints.walk_kernels import compiled_steps_walk
            except ImportError:  # numpy does it too
                _kernel.append(None)
                return None
            _kernel.append(compiled_steps_walk())
        return _kernel[0]
