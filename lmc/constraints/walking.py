"""The walk of a vocabulary's trie along an automaton: which tokens can come next.

Two implementations of one thing. `walk` goes through the trie in depth-first order and skips what
hangs below a byte that cannot come; numba compiles it (`walk_kernels`). Given a slice of the
vocabulary, it also skips what the slice says (`slices`). `walk_arrays` goes level by level with
numpy. All stop where a state's row is not known yet, have it filled, and go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import INVALID, LEAF
from lmc.constraints.machine import DEAD
from lmc.constraints.slices import Slice, slice_of, sliced

if TYPE_CHECKING:
    from lmc.constraints.machine import Machine
    from lmc.constraints.vocabulary import Trie

__all__ = [
    "COMPILE_FROM",
    "kernels_ready",
    "places_after",
    "prepare_kernels",
    "slice_by",
    "wait_for_kernels",
    "walk",
    "walk_arrays",
    "walk_beside",
    "walk_exits",
]

Tokens = npt.NDArray[np.int32]

COMPILE_FROM = 4096  # nodes of the trie; below that numpy is as fast as is worth waiting for


def walk(machine: Machine, trie: Trie, place: int, *, above: int = 0) -> Tokens:
    """The tokens that can come at `place`, int32.

    Args:
        above: only tokens that are longer, in bytes.
    """
    if kernels_ready(trie):
        buffer = _buffer(trie)
        buffer.states[0], buffer.nodes[0] = divmod(place, machine.nodes)
        buffer.cursor[:] = (0, len(trie), 0, 0, 0, 0, 0)
        return _walked(machine, trie, buffer, above=above)[0]
    found = walk_arrays(machine, trie, place)[0] != DEAD
    found[:-1] &= trie.depth > above
    return np.flatnonzero(found[trie.node_of]).astype(np.int32)


def walk_beside(
    machine: Machine, trie: Trie, state: int, part: Slice, loop: int
) -> tuple[Tokens, Tokens]:
    """The tokens that can come and are not of a slice, and those of it that cannot come.

    Args:
        loop: the name of the slice in `machine.loops` and `roams`: where states loop over its
            characters or let any of them come, only others are looked at.
    """
    buffer = _buffer(trie)
    buffer.states[0], buffer.nodes[0], buffer.clean[0] = state, 0, 1
    buffer.cursor[:] = (0, len(trie), 0, 0, 0, 0, 0)
    machine.fill(state)
    if machine.loops[state] == loop:
        buffer.contexts[:, 0] = (len(trie), 0, 0, len(trie), state, 1)
        buffer.cursor[:] = (0, 0, 0, 0, 0, 1, 0)
    return _walked(machine, trie, buffer, part=part, loop=loop)


def walk_exits(machine: Machine, trie: Trie, part: Slice, run: npt.NDArray[np.int32]) -> Tokens:
    """The tokens that can come and are not of a slice, int32.

    Args:
        run: the state after 0, 1, .. characters of the slice; there are no more characters of it
            where it ends.
    """
    buffer = _buffer(trie)
    buffer.cursor[:] = (0, 0, 0, 0, 0, 0, 0)
    first = part.foreign_before == 0
    exits = (part.foreign[first], part.foreign_chars[first], run)
    return _walked(machine, trie, buffer, exits=exits)[0]


def slice_by(trie: Trie, firsts: int) -> Slice:
    """A slice of the vocabulary; see `slice_of`."""
    return slice_of(trie, firsts, _kernels.slicing)


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


def _walked(
    machine: Machine,
    trie: Trie,
    buffer: _Buffer,
    *,
    above: int = 0,
    part: Slice | None = None,
    loop: int = 0,
    exits: tuple[npt.NDArray[np.int32], npt.NDArray[np.int16], npt.NDArray[np.int32]] | None = None,
) -> tuple[Tokens, Tokens]:
    kernel = _kernels.get()
    assert kernel is not None, "this is for compiled walks"
    spelling = machine.alphabet.spelling
    sliced = (
        (part.inside, part.holds, part.foreign_end, part.foreign, part.foreign_before, part.alone)
        if part is not None
        else _NO_SLICE
    )
    while True:
        wanted = kernel(
            trie.byte, trie.depth, trie.skip, trie.height, trie.tokens, trie.tokens_at,
            spelling.first, spelling.later, machine.below,
            machine.rows, machine.filled, machine.alive, machine.loops, machine.roams,
            buffer.states, buffer.nodes, buffer.clean, buffer.found, buffer.gone, buffer.contexts,
            above, loop, *sliced, *(exits or _NO_EXITS), buffer.cursor,
        )  # fmt: skip
        if wanted < 0:
            found, gone = buffer.cursor[2], buffer.cursor[3]
            return buffer.found[:found].copy(), buffer.gone[:gone].copy()
        machine.fill(wanted)


class _Buffer:
    """What a walk writes to; one a thread.

    The cursor holds: the node where the walk is, and where it ends; how many tokens were found and
    how many of the slice were not; up to which token that is known; how many contexts are open;
    which exit is next.
    """

    def __init__(self, trie: Trie) -> None:
        levels = trie.longest + 2
        self.states = np.empty(levels, dtype=np.int32)
        self.nodes = np.empty(levels, dtype=np.int32)
        self.clean = np.empty(levels, dtype=np.uint8)
        self.contexts = np.empty((6, levels), dtype=np.int32)
        self.found = np.empty(len(trie.tokens), dtype=np.int32)
        self.gone = np.empty(len(trie.tokens), dtype=np.int32)
        self.cursor = np.zeros(7, dtype=np.int64)


_buffers = threading.local()
_INTS, _SHORTS = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int16)
_BOOLS = np.empty(0, dtype=np.bool_)
_NO_SLICE = (np.zeros(256, dtype=np.bool_), _BOOLS, _SHORTS, _INTS, _SHORTS, _BOOLS)
_NO_EXITS = (_INTS, _SHORTS, _INTS)


def _buffer(trie: Trie) -> _Buffer:
    size = (trie.longest, len(trie.tokens))
    held: tuple[tuple[int, int], _Buffer] | None = getattr(_buffers, "held", None)
    if held is None or held[0] != size:
        held = _buffers.held = (size, _Buffer(trie))
    return held[1]


class _Kernels:
    """The compiled walk. Compiling or loading it happens beside the work, not in its way."""

    def __init__(self) -> None:
        self._kernel: Callable[..., Any] | None = None
        self.slicing: Callable[..., Any] | None = None
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

            from lmc.constraints.walk_kernels import compiled_mask_walk
        except ImportError:  # numpy does it too
            return
        ints, words = "int32[::1]", "uint8[::1]"
        shorts, flags, table = "int16[::1]", "b1[::1]", "int32[:,::1]"
        self.slicing = numba.njit(
            f"int64({words}, {ints}, {ints}, {ints}, {ints}, {flags}, {ints}, {table}, {table}, "
            f"{shorts}, {shorts}, {ints}, {shorts}, {shorts}, {flags})",
            cache=True,
            nogil=True,
        )(sliced)
        self._kernel = compiled_mask_walk()


_kernels = _Kernels()
wait_for_kernels = _kernels.wait


def prepare_kernels(trie: Trie) -> None:
    """Wait until walks of this trie are compiled, if they are to be."""
    if len(trie) >= COMPILE_FROM:
        _kernels.wait()


def kernels_ready(trie: Trie) -> bool:
    """Whether walks of this trie are compiled by now."""
    return len(trie) >= COMPILE_FROM and _kernels.get() is not None
