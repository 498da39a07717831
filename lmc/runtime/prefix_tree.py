"""The prefix tree of a batch: what its prompts share, in tokens, and the order that uses it best.

Prompts are sorted as byte strings; neighbours then tell all that is shared, as in a suffix array
with its LCP table. Walking the tree depth first visits every shared beginning once: a cache that
holds the longest prompt finds in it all that any cache could.

Promises    every prompt is in the order once; what a prompt shares with its predecessor is the most
            that it shares with any prompt before it; among equals, the earlier prompt comes first.
Costs       sorting: O(prompts log prompts) comparisons of bytes; all else O(tokens) in numpy and
            O(prompts) in Python. 10,000 prompts of 2,000 tokens take about half a second.
Source      LCP-interval trees: Abouelhoda, Kurtz, Ohlebusch, J. of Discrete Algorithms 2 (2004);
            depth-first order is optimal for prefix caches: Zheng et al., SGLang, arXiv:2312.07104,
            theorem 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lmc.runtime.request import KeyArray

__all__ = ["PrefixNode", "PrefixTree"]


@dataclass(frozen=True, slots=True)
class PrefixNode:
    """A run of tokens that the same prompts go through, and what follows it.

    Attributes:
        start, end: where it lies in its prompts: `tokens` of them, counted from 0.
        first, last: its prompts are `PrefixTree.order[first:last]`.
        children: what follows, in the order of the tree.
    """

    start: int
    end: int
    first: int
    last: int
    children: tuple[PrefixNode, ...]

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return self.end - self.start

    @property
    def prompts(self) -> int:
        """How many prompts go through it."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """All prompts of a batch.

    Attributes:
        root: has no tokens unless all prompts begin alike.
        order: numbers of the prompts, depth first.
        shared: what each prompt of `order` shares with the one before it, in tokens; int64,
            shape (prompts,), the first 0.
        total_tokens: of all prompts: what is computed without a cache.
        distinct_tokens: of the tree: what is computed with a cache that holds everything.
    """

    root: PrefixNode
    order: tuple[int, ...]
    shared: npt.NDArray[np.int64]
    total_tokens: int
    distinct_tokens: int

    @staticmethod
    def of(prompts: Sequence[KeyArray]) -> PrefixTree:
        """The tree of prompts, each an array of keys or token ids below 2**31."""
        raw = [np.ascontiguousarray(keys, dtype=">i4").tobytes() for keys in prompts]
        ranked = sorted(range(len(raw)), key=raw.__getitem__)
        root = _grow(ranked, raw)
        order: list[int] = []
        shared: list[int] = []
        frozen = _walk(root, order, shared)
        total = sum(map(len, raw)) // 4
        common = np.array(shared, np.int64)
        return PrefixTree(frozen, tuple(order), common, total, total - int(common.sum()))

    @property
    def hit_rate(self) -> float:
        """The largest share of prompt tokens that a cache can give; 0.0 without prompts."""
        return 1 - self.distinct_tokens / self.total_tokens if self.total_tokens else 0.0

    def to_json(self, most_nodes: int = 200) -> dict[str, Any]:
        """The tree as JSON values, at most so many nodes of it, the upper ones.

        A node has `start`, `tokens`, `prompts` (how many), `prompt` (the first one's number, for
        its text), `children`, and `more`, the number of children that are left out, if any are.
        """
        top = self._node_json(self.root)
        todo = [(self.root, top)]
        left = most_nodes - 1
        for node, held in todo:  # grows: level by level
            for child in node.children[: max(left, 0)]:
                held["children"].append(self._node_json(child))
                todo.append((child, held["children"][-1]))
            left -= len(held["children"])
            if len(held["children"]) < len(node.children):
                held["more"] = len(node.children) - len(held["children"])
        return {
            "prompts": len(self.order),
            "total_tokens": self.total_tokens,
            "distinct_tokens": self.distinct_tokens,
            "hit_rate": self.hit_rate,
            "root": top,
        }

    def _node_json(self, node: PrefixNode) -> dict[str, Any]:
        first = self.order[node.first] if self.order else None
        return {
            "start": node.start,
            "tokens": node.tokens,
            "prompts": node.prompts,
            "prompt": first,
            "children": [],
        }


@dataclass(slots=True)
class _Growing:
    """A node while the tree is made: where it ends, who ends there, who goes on."""

    end: int
    least: int  # the smallest number of its prompts
    ends: list[int]
    children: list[_Growing]

    def add(self, child: _Growing) -> None:
        self.children.append(child)
        self.least = min(self.least, child.least)


def _grow(ranked: list[int], raw: list[bytes]) -> _Growing:
    """The tree of sorted prompts, its nodes in the order of their bytes."""
    nobody = len(raw)
    root = _Growing(0, nobody, [], [])
    stack = [root]
    before = b""
    for number in ranked:
        mine = raw[number]
        common = _common(before, mine)
        _fold(stack, common)
        if len(mine) // 4 > stack[-1].end:
            stack.append(_Growing(len(mine) // 4, number, [number], []))
        else:  # the same prompt again, or an empty one
            stack[-1].ends.append(number)
            stack[-1].least = min(stack[-1].least, number)
        before = mine
    _fold(stack, 0)
    return root


def _fold(stack: list[_Growing], end: int) -> None:
    """Close the nodes that go beyond `end`; the last one left ends there."""
    while stack[-1].end > end:
        done = stack.pop()
        if stack[-1].end < end:
            stack.append(_Growing(end, done.least, [], [done]))
        else:
            stack[-1].add(done)


def _common(one: bytes, other: bytes) -> int:
    """How many leading tokens two prompts share."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // 4
    differ = np.frombuffer(one, np.int32, length // 4) != np.frombuffer(
        other, np.int32, length // 4
    )
    return int(differ.argmax())


def _walk(root: _Growing, order: list[int], shared: list[int]) -> PrefixNode:
    """Walk depth first: fill in order and what neighbours share; the finished nodes."""
    if not root.ends and len(root.children) == 1:
        root = root.children[0]  # all begin alike
    made: list[list[PrefixNode]] = [[]]  # the children finished so far, of each open node
    todo: list[tuple[_Growing, int, int | None]] = [(root, 0, None)]
    joint = 0  # what the next prompt shares with the one before
    while todo:
        node, start, first = todo.pop()
        if first is not None:  # all below it is done
            children = tuple(made.pop())
            made[-1].append(PrefixNode(start, node.end, first, len(order), children))
            joint = start
            continue
        todo.append((node, start, len(order)))
        made.append([])
        for number in sorted(node.ends):
            shared.append(joint if order else 0)
            order.append(number)
            joint = node.end
        children_first = sorted(node.children, key=lambda child: child.least, reverse=True)
        todo += [(child, node.end, None) for child in children_first]
    return made[0][0]
