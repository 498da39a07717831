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

__all__ = ["Reached", "walk"]

_COMPILE_FROM = 4096  # nodes of the trie; below that numpy is as fast as is worth waiting for


class Reached:
    """Where every beginning of a token leads.

    Attributes:
        state, node: int32, shape (nodes + 1,): the place after each beginning; state `DEAD` where
            it cannot come, and in the last entry, which stands for tokens without text.
        deepest: the length of the longest beginning that can come.
    """

    __slots__ = ("deepest", "node", "state")

    def __init__(self, count: int) -> None:
        self.state = np.full(count + 1, DEAD, dtype=np.int32)
        self.node = np.zeros(count + 1, dtype=np.int32)
        self.deepest = 0


def walk(machine: Machine, trie: Trie, place: int) -> Reached:
    """Walk all tokens from `place`."""
    kernel = _kernels.get() if len(trie) >= _COMPILE_FROM else None
    if kernel is None:
        return walk_arrays(machine, trie, place)
    return walk_compiled(machine, trie, place, kernel)


def walk_arrays(machine: Machine, trie: Trie, place: int) -> Reached:
    """The walk with numpy, one level of the trie at a time."""
    reached = Reached(len(trie))
    spelling = machine.alphabet.spelling
    below = _below_words(machine)
    start_state, start_node = divmod(place, machine.nodes)
    for level, nodes in enumerate(_levels(trie), start=1):
        if level == 1:
            state = np.full(len(nodes), start_state, dtype=np.int32)
            node = np.full(len(nodes), start_node, dtype=np.int32)
        else:
            parents = trie.parent[nodes]
            alive = reached.state[parents] != DEAD
            nodes, parents = nodes[alive], parents[alive]
            state, node = reached.state[parents], reached.node[parents]
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
            hope = machine.alive[state[partial]] & below[inside[partial]]
            after[partial[~hope.any(axis=1)]] = DEAD
        reached.state[nodes] = after
        reached.node[nodes] = inside
        if (after != DEAD).any():
            reached.deepest = level
    return reached


def walk_compiled(machine: Machine, trie: Trie, place: int, kernel: Callable[..., Any]) -> Reached:
    """The walk by a compiled kernel."""
    reached = Reached(len(trie))
    spelling = machine.alphabet.spelling
    below = _below_words(machine)
    stack_state = np.zeros(trie.longest + 1, dtype=np.int32)
    stack_node = np.zeros(trie.longest + 1, dtype=np.int32)
    stack_state[0], stack_node[0] = divmod(place, machine.nodes)
    at = 0
    while True:
        at, wanted, deepest = kernel(
            trie.byte, trie.depth, trie.skip, spelling.first, spelling.later, below,
            machine.rows, machine.filled, machine.alive,
            stack_state, stack_node, reached.state, reached.node, at,
        )  # fmt: skip
        reached.deepest = max(reached.deepest, deepest)
        if wanted < 0:
            return reached
        machine.fill(wanted)


def _walk_from(
    byte: Any, depth: Any, skip: Any, first: Any, later: Any, below: Any,
    rows: Any, filled: Any, alive: Any,
    stack_state: Any, stack_node: Any, out_state: Any, out_node: Any, at: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Walk on from node `at`; returns where it stopped, the row it needs or -1, the depth."""
    deepest = 0
    while at < len(byte):
        d = depth[at]
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
            return at, state, deepest
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
        out_state[at] = state
        out_node[at] = node
        if d > deepest:
            deepest = d
        at += 1
    return at, -1, deepest


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
            "Tuple((int64, int64, int64))(uint8[::1], int32[::1], int32[::1], int32[::1], "
            "int32[:,::1], uint64[:,::1], int32[:,::1], uint8[::1], uint64[:,::1], int32[::1], "
            "int32[::1], int32[::1], int32[::1], int64)"
        )
        self._kernel = numba.njit(signature, cache=True, nogil=True)(_walk_from)


_kernels = _Kernels()
wait_for_kernels = _kernels.wait


def _levels(trie: Trie) -> list[npt.NDArray[np.int64]]:
    order = np.argsort(trie.depth, kind="stable")
    counts = np.bincount(trie.depth, minlength=trie.longest + 1)[1:]
    return np.split(order, np.cumsum(counts)[:-1]) if len(order) else []


def _below_words(machine: Machine) -> npt.NDArray[np.uint64]:
    words = machine.alive.shape[1]
    below = machine.alphabet.spelling.below
    return np.array(
        [[mask >> (64 * w) & 0xFFFFFFFFFFFFFFFF for w in range(words)] for mask in below],
        dtype=np.uint64,
    )
