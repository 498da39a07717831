"""Hopcroft's algorithm: the states of an automaton that nothing can tell apart.

Written on flat arrays so that numba can compile it; for small automata it runs as it stands.

Source: Hopcroft, An n log n algorithm for minimizing states in a finite automaton, 1971; the
partition as in Valmari and Lehtinen, Efficient minimization of DFAs, 2008.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["equal_states"]

_COMPILE_FROM = 40_000  # transitions


def equal_states(
    table: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    """A number for each state, the same for states with the same future.

    Args:
        table: int32, shape (states, classes): next states, all of them given.
        accepting: bool, shape (states,).

    Returns:
        int32, shape (states,): numbers from 0 on.
    """
    states, classes = table.shape
    order = np.argsort(table, axis=0, kind="stable").T.astype(np.int32)
    counts = np.zeros((classes, states + 1), dtype=np.int32)
    for c in range(classes):
        counts[c, 1:] = np.cumsum(np.bincount(table[:, c], minlength=states))
    args = (np.ascontiguousarray(order), counts, accepting.astype(np.int32))
    if states * classes >= _COMPILE_FROM and (compiled := _compiled()) is not None:
        block_of = compiled(*args)
    else:
        block_of = _refine(*(a.tolist() for a in args))
    return np.asarray(block_of, dtype=np.int32)


@cache
def _compiled() -> Callable[..., Any] | None:
    try:
        import numba
    except ImportError:
        return None
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(_refine)
    return compiled


def _refine(order: Any, counts: Any, accepting: Any) -> Any:  # noqa: ANN401 - lists or arrays
    """The block of each state. `order[c][counts[c][t]:counts[c][t + 1]]` lead to t by c."""
    classes = len(order)
    states = len(accepting)
    members = [0] * states  # states ordered by block
    place = [0] * states  # where each state stands in `members`
    block_of = [0] * states
    begin = [0] * (states + 1)
    end = [0] * (states + 1)
    marked = [0] * (states + 1)  # how many at the beginning of a block are marked

    at = 0
    for wanted in (1, 0):
        for s in range(states):
            if accepting[s] == wanted:
                members[at] = s
                place[s] = at
                at += 1
        if wanted == 1:
            end[0] = at
    blocks = 1
    if 0 < end[0] < states:
        begin[1], end[1] = end[0], states
        blocks = 2
        for i in range(begin[1], end[1]):
            block_of[members[i]] = 1
    else:
        end[0] = states

    waiting = [0] * (states * classes + 1)
    is_waiting = [0] * (states * classes + 1)
    count = 0
    first = 0
    if blocks == 2 and end[1] - begin[1] < end[0] - begin[0]:
        first = 1
    for c in range(classes):
        waiting[count] = first * classes + c
        is_waiting[first * classes + c] = 1
        count += 1

    splitter = [0] * states
    touched = [0] * (states + 1)
    while count:
        count -= 1
        pair = waiting[count]
        is_waiting[pair] = 0
        block, c = pair // classes, pair % classes
        size = end[block] - begin[block]
        for i in range(size):
            splitter[i] = members[begin[block] + i]
        touched_count = 0
        for i in range(size):
            target = splitter[i]
            for j in range(counts[c][target], counts[c][target + 1]):
                s = order[c][j]
                b = block_of[s]
                front = begin[b] + marked[b]
                if place[s] >= front:
                    if marked[b] == 0:
                        touched[touched_count] = b
                        touched_count += 1
                    other = members[front]
                    members[front], members[place[s]] = s, other
                    place[other] = place[s]
                    place[s] = front
                    marked[b] += 1
        for i in range(touched_count):
            b = touched[i]
            half = marked[b]
            marked[b] = 0
            if half == end[b] - begin[b]:
                continue
            new = blocks
            blocks += 1
            begin[new], end[new] = begin[b], begin[b] + half
            begin[b] += half
            for j in range(begin[new], end[new]):
                block_of[members[j]] = new
            smaller = new if half <= end[b] - begin[b] else b
            for d in range(classes):
                add = new if is_waiting[b * classes + d] else smaller
                if not is_waiting[add * classes + d]:
                    is_waiting[add * classes + d] = 1
                    waiting[count] = add * classes + d
                    count += 1
    return block_of
