"""The walk of a vocabulary's trie along an automaton: which tokens can come next.

Two implementations of one thing. `walk_compiled` goes through the trie in depth-first order and
skips what hangs below a byte that cannot come; numba compiles it. `walk_arrays` goes level by
level with numpy. Both stop where a state's row is not known yet, have it filled, and go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import INVALID, LEAF
from lmc.constraints.machine import DEAD

if TYPE_CHECKING:
    from lmc.constraints.machine import Machine
    from lmc.constraints.vocabulary import Trie

__all__ = ["places_after", "wait_for_kernels", "walk", "walk_arrays"]

_COMPILE_FROM = 4096  # nodes of the trie; below that numpy is as fast as is worth waiting for


def walk(
    machine: Machine, trie: Trie, place: int, *, above: int = 0, up_to: int | None = None
) -> npt.NDArray[np.bool_]:
    """The tokens that can come at `place`.

    Args:
        above, up_to: only tokens longer than the one and no longer than the other, in bytes.

    Returns:
        bool, shape (vocabulary,).
    """
    up_to = trie.longest if up_to is None else up_to
    kernel = _kernels.get() if len(trie) >= _COMPILE_FROM else None
    if kernel is not None:
        return walk_compiled(machine, trie, place, kernel, above, up_to)
    found = walk_arrays(machine, trie, place)[0] != DEAD
    found[:-1] &= (trie.depth > above) & (trie.depth <= up_to)
    return np.asarray(found[trie.node_of])


def walk_arrays(
    machine: Machine, trie: Trie, place: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The walk with numpy, one level of the trie at a time.

    Returns:
        The place after each beginning of a token, as state and node, int32, shape (nodes + 1,);
        the state is `DEAD` where it cannot come, and in the last entry, which stands for tokens
        without text.
    """
    out_state = np.full(len(trie) + 1, DEAD, dtype=np.int32)
    out_node = np.zeros(len(trie) + 1, dtype=np.int32)
    spelling = machine.alphabet.spelling
    start_state, start_node = divmod(place, machine.nodes)
    for level, nodes in enumerate(trie.levels):
        if level == 0:
            state = np.full(len(nodes), start_state, dtype=np.int32)
            node = np.full(len(nodes), start_node, dtype=np.int32)
        else:
            parents = trie.parent[nodes]
            alive = out_state[parents] != DEAD
            nodes, parents = nodes[alive], parents[alive]
            state, node = out_state[parents], out_node[parents]
        if not len(nodes):
            break
        byte = trie.byte[nodes]
        target = np.where(
            node == 0,
            spelling.first[byte],
            np.where(byte & 0xC0 == 0x80, spelling.later[node, byte & 63], INVALID),
        )
        keep = target != INVALID
        nodes, state, target = nodes[keep], state[keep], target[keep]
        for unknown in np.unique(state[machine.filled[state] == 0]).tolist():
            machine.fill(unknown)
        ends = target <= LEAF
        after = np.where(ends, machine.rows[state, np.where(ends, LEAF - target, 0)], state)
        inside = np.where(ends, 0, target)
        partial = np.flatnonzero(~ends)
        if len(partial):
            hope = machine.alive[state[partial]] & machine.below[inside[partial]]
            after[partial[~hope.any(axis=1)]] = DEAD
        out_state[nodes] = after
        out_node[nodes] = inside
    return out_state, out_node


def places_after(machine: Machine, trie: Trie, place: int) -> npt.NDArray[np.int64]:
    """The place after each token, or `DEAD`; int64, shape (vocabulary,)."""
    state, node = walk_arrays(machine, trie, place)
    joined = np.where(state == DEAD, DEAD, state.astype(np.int64) * machine.nodes + node)
    return np.asarray(joined[trie.node_of])


def walk_compiled(
    machine: Machine,
    trie: Trie,
    place: int,
    kernel: Callable[..., Any],
    above: int,
    up_to: int,
) -> npt.NDArray[np.bool_]:
    """The walk by a compiled kernel; see `walk`."""
    spelling = machine.alphabet.spelling
    row = np.zeros(len(trie.node_of), dtype=np.bool_)
    stack_state = np.empty(trie.longest + 1, dtype=np.int32)
    stack_node = np.empty(trie.longest + 1, dtype=np.int32)
    stack_state[0], stack_node[0] = divmod(place, machine.nodes)
    at = 0
    while True:
        at, wanted = kernel(
            trie.byte, trie.depth, trie.skip, trie.height, trie.tokens, trie.tokens_at,
            spelling.first, spelling.later, machine.below,
            machine.rows, machine.filled, machine.alive,
            stack_state, stack_node, row, above, up_to, at,
        )  # fmt: skip
        if wanted < 0:
            return row
        machine.fill(wanted)


def _walk_from(
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
    stack_state: npt.NDArray[np.int32],
    stack_node: npt.NDArray[np.int32],
    row: npt.NDArray[np.bool_],
    above: int,
    up_to: int,
    at: int,
) -> tuple[int, int]:
    """Walk on from node `at`; returns where it stopped, and the state whose row it needs or -1."""
    while at < len(byte):
        d = depth[at]
        if d > up_to or height[at] <= above:
            at = skip[at]
            continue
        state = stack_state[d - 1]
        node = stack_node[d - 1]
        b = byte[at]
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
            return at, state
        if target < -1:
            state = rows[state, -2 - target]
            node = 0
            if state < 0:
                at = skip[at]
                continue
        else:
            hope = False
            for word in range(below.shape[1]):
                if below[target, word] & alive[state, word]:
                    hope = True
                    break
            if not hope:
                at = skip[at]
                continue
            node = target
        stack_state[d] = state
        stack_node[d] = node
        if d > above:
            for i in range(tokens_at[at], tokens_at[at + 1]):
                row[tokens[i]] = True
        at += 1
    return at, -1


class _Kernels:
    """The compiled walk. Compiling or loading it happens beside the work, not in its way."""

    def __init__(self) -> None:
        self._kernel: Callable[..., Any] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def get(self) -> Callable[..., Any] | None:
        """The kernel, or None while it is not ready."""
        if self._kernel is None and self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._load, name="lmc-kernels")
                    self._thread.start()
        return self._kernel

    def wait(self) -> None:
        """Wait until the kernel is ready."""
        self.get()
        assert self._thread is not None
        self._thread.join()

    def _load(self) -> None:
        try:
            import numba
        except ImportError:  # numpy does it too
            return
        signature = (
            "Tuple((int64, int64))(uint8[::1], int32[::1], int32[::1], int32[::1], int32[::1], "
            "int32[::1], int32[::1], int32[:,::1], uint64[:,::1], int32[:,::1], uint8[::1], "
            "uint64[:,::1], int32[::1], int32[::1], b1[::1], int64, int64, int64)"
        )
        self._kernel = numba.njit(signature, cache=True, nogil=True)(_walk_from)


_kernels = _Kernels()
wait_for_kernels = _kernels.wait
