"""Tokens that are made of certain characters only, known once a vocabulary for all constraints.

Inside a text most tokens lead on inside the text, whatever the constraint: after a character of a
set, any character of the set may follow, and so on. A *slice* is what a set of first bytes says of
a vocabulary by itself: the tokens whose characters all begin so, and where in the trie other
characters stand. A mask is then the slice and a walk from where other characters stand, which is
in few places (`walking`).

Owns        nothing; `Vocabulary.slice` keeps what was met last.
Costs       one walk of the trie a slice, about a millisecond at 49,000 tokens.
Source      the idea of slices is that of llguidance, where they are chosen beforehand; here the
            sets are those that states of an automaton loop over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import Alphabet

if TYPE_CHECKING:
    from lmc.constraints.vocabulary import Trie

__all__ = ["Slice", "slice_of", "sliced"]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """See the module's text. Characters of the set are called its own, all others foreign.

    Attributes:
        inside: bool, shape (256,): the first bytes of its own characters.
        row: bool, shape (vocabulary,): tokens of own characters only. The last character may be cut
            off.
        chars: int16, shape (vocabulary,): how many characters such a token has, a last one that is
            cut off too; 0 for all others.
        most_chars: the greatest of `chars`.
        count: how many such tokens there are.
        holds: bool, in the order of `Trie.tokens`: the same as `row`.
        foreign_end: int16, in the order of `Trie.tokens`: how many bytes stand up to the end of the
            last foreign character; 0 if there is none.
        foreign: int32: the nodes of the trie where a foreign character begins, ascending.
        foreign_before: int16: for each of them, where the last foreign one before it ends.
        foreign_chars: int16: and how many characters stand before it.
        alone: bool, shape (nodes,): whether from this node on there are only own characters.
    """

    inside: npt.NDArray[np.bool_]
    row: npt.NDArray[np.bool_]
    chars: npt.NDArray[np.int16]
    most_chars: int
    count: int
    holds: npt.NDArray[np.bool_]
    foreign_end: npt.NDArray[np.int16]
    foreign: npt.NDArray[np.int32]
    foreign_before: npt.NDArray[np.int16]
    foreign_chars: npt.NDArray[np.int16]
    alone: npt.NDArray[np.bool_]


_any = Alphabet([]).spelling
_BROKEN = 0x7FFF  # of tokens that are no UTF-8, wherever they begin


def slice_of(trie: Trie, firsts: int, kernel: Callable[..., Any] | None = None) -> Slice:
    """The slice of a set of bytes.

    Args:
        firsts: the first bytes of the characters that are in the set, a bit for each.
        kernel: `sliced`, compiled.
    """
    inside = np.array([firsts >> b & 1 for b in range(256)], dtype=np.bool_)
    chars = np.zeros(len(trie.node_of), dtype=np.int16)
    foreign_end = np.full(len(trie.tokens), _BROKEN, dtype=np.int16)
    foreign = np.empty(len(trie), dtype=np.int32)
    before = np.empty(len(trie), dtype=np.int16)
    chars_before = np.empty(len(trie), dtype=np.int16)
    alone = np.ones(len(trie), dtype=np.bool_)
    stacks = np.zeros((3, trie.longest + 1), dtype=np.int32)
    found = (kernel or sliced)(
        trie.byte, trie.depth, trie.skip, trie.tokens, trie.tokens_at, inside, _any.first,
        _any.later, stacks, chars, foreign_end, foreign, before, chars_before,
        alone,
    )  # fmt: skip
    row = chars > 0
    for made in (row, chars):
        made.flags.writeable = False
    return Slice(
        inside=inside,
        row=row,
        chars=chars,
        most_chars=int(chars.max(initial=0)),
        count=int(row.sum()),
        holds=foreign_end == 0,
        foreign_end=foreign_end,
        foreign=foreign[:found].copy(),
        foreign_before=before[:found].copy(),
        foreign_chars=chars_before[:found].copy(),
        alone=alone,
    )


def sliced(
    byte: npt.NDArray[np.uint8],
    depth: npt.NDArray[np.int32],
    skip: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int32],
    tokens_at: npt.NDArray[np.int32],
    inside: npt.NDArray[np.bool_],
    first: npt.NDArray[np.int32],
    later: npt.NDArray[np.int32],
    stacks: npt.NDArray[np.int32],
    chars: npt.NDArray[np.int16],
    foreign_end: npt.NDArray[np.int16],
    foreign: npt.NDArray[np.int32],
    before: npt.NDArray[np.int16],
    chars_before: npt.NDArray[np.int16],
    alone: npt.NDArray[np.bool_],
) -> int:
    """Go through the trie; writes the last six, and returns how many places are foreign.

    A byte in the middle of a character, where none was begun, counts as a foreign character: a
    token may begin with it.
    """
    found = 0
    at = 0
    while at < len(byte):
        d = depth[at]
        node = stacks[0, d - 1]
        count = stacks[1, d - 1]
        end = stacks[2, d - 1]
        b = byte[at]
        if node == 0:
            node = first[b]
            if not inside[b]:
                alone[at] = False
                foreign[found] = at
                before[found] = end
                chars_before[found] = count
                found += 1
                end = d
                if node == -1:
                    node = 0
            count += 1
        else:
            if end == d - 1:  # of a foreign character
                end = d
            node = later[node, b & 63] if b & 0xC0 == 0x80 else -1
            if node == -1:
                alone[at] = False
                at = skip[at]
                continue
        if node < -1:
            node = 0
        stacks[0, d] = node
        stacks[1, d] = count
        stacks[2, d] = end
        for i in range(tokens_at[at], tokens_at[at + 1]):
            foreign_end[i] = end
            if end == 0:
                chars[tokens[i]] = count
        at += 1
    next = len(byte)
    for at in range(len(byte) - 1, -1, -1):
        if not alone[at]:
            next = at
        elif next < skip[at]:
            alone[at] = False
    return found
