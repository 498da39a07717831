"""What a request for scores wants of the model: the tree of its continuations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lmc.runtime.request import (
    IntArray,
    KeyArray,
    Sampling,
    ScoreRequest,
    ScoreResult,
    Segment,
    TopTokens,
)
from lmc.runtime.sequence import TokenSequence

__all__ = ["ScoreWork"]


@dataclass(slots=True)
class _Branch:
    """A token of some continuation, shared by all continuations that begin alike."""

    token: int
    parent: _Branch | None
    depth: int  # tokens from the end of the prompt: 0 for the first
    children: dict[int, _Branch]
    logprob: float = math.nan
    slot: int = -1
    top: TopTokens = ()  # the most likely tokens in its place

    def path_slots(self) -> list[int]:
        """The slots of the tokens from the end of the prompt up to this one."""
        slots: list[int] = []
        node: _Branch | None = self
        while node is not None:
            slots.append(node.slot)
            node = node.parent
        return slots[::-1]


class ScoreWork:
    """Asks for the probabilities of the tokens of several continuations.

    The continuations form a tree. The prompt's last row answers for the first tokens, and every
    token that another one follows is computed once, with the next ones as its targets.
    """

    computes_last = True

    def __init__(self, request: ScoreRequest) -> None:
        self._continuations = request.continuations
        self._first: dict[int, _Branch] = {}
        self._order: list[_Branch] = []  # those to compute, parents first
        self._placed = 0
        self._asked: dict[int, list[_Branch]] = {}  # by segment in flight: the branches, or none
        self._given: set[int] = set()
        self._answered = -1  # branches answered for; the prompt's last row is number 0
        self._prompt = len(request.keys)
        self._top = request.top
        # a runner gives the most likely tokens along with a draw after the last row of a segment
        self._draw = Sampling() if request.top else None
        for tokens in request.continuations:
            level, parent = self._first, None
            for depth, token in enumerate(tokens):
                if token not in level:
                    level[token] = _Branch(token, parent, depth, {})
                parent = level[token]
                level = parent.children
        stack = list(self._first.values())[::-1]
        while stack:
            branch = stack.pop()
            if branch.children:
                self._order.append(branch)
                stack += list(branch.children.values())[::-1]

    @property
    def size(self) -> int:
        """How many tokens are computed after the prompt."""
        return len(self._order)

    @property
    def depth(self) -> int:
        """Positions after the prompt that are computed."""
        return max((branch.depth + 1 for branch in self._order), default=0)

    @property
    def branches(self) -> int:
        return len(self._order) - self._placed

    def own_slots(self) -> IntArray:
        """The slots of the branches placed so far."""
        return np.array([branch.slot for branch in self._order[: self._placed]], np.int32)

    @property
    def finished(self) -> bool:
        return self._answered == len(self._order)

    def to_make(self) -> int:
        return 0

    def prepare(self) -> None:
        pass

    def last_segment(self, tokens: IntArray, start: int, slots: IntArray, made: bool) -> Segment:
        targets = (*((),) * (len(tokens) - 1), tuple(self._first))
        segment = Segment(
            tokens, start, slots, made, sample=self._draw, top=self._top, targets=targets
        )
        self._asked[id(segment)] = []
        return segment

    def place_branches(self, sequence: TokenSequence, slots: IntArray) -> list[Segment]:
        batch = self._order[self._placed : self._placed + len(slots)]
        self._placed += len(batch)
        chains: list[list[_Branch]] = []
        for branch, slot in zip(batch, slots.tolist(), strict=True):
            branch.slot = slot
            if chains and chains[-1][-1] is branch.parent and not self._top:
                chains[-1].append(branch)
            else:
                chains.append([branch])
        return [self._segment(chain, sequence) for chain in chains]

    def _segment(self, chain: list[_Branch], sequence: TokenSequence) -> Segment:
        end = sequence.total
        segment = Segment(
            tokens=np.array([branch.token for branch in chain], np.int32),
            start=end + chain[0].depth,
            slots=np.concatenate(
                [sequence.slots[:end], np.array(chain[-1].path_slots(), np.int32)]
            ),
            made=True,
            sample=self._draw,
            top=self._top,
            targets=tuple(tuple(branch.children) for branch in chain),
        )
        self._asked[id(segment)] = chain
        return segment

    def take(
        self,
        segment: Segment,
        token: int,
        logprob: float,
        scores: tuple[tuple[float, ...], ...],
        top: TopTokens = (),
    ) -> list[int]:
        del token, logprob
        chain = self._asked.pop(id(segment), None)
        if chain is None:
            return []  # a part of the prompt that nothing is asked about
        levels = [branch.children for branch in chain] or [self._first]
        for level, row in zip(levels, scores[-len(levels) :], strict=True):
            for branch, value in zip(level.values(), row, strict=True):
                branch.logprob, branch.top = value, top
        self._answered += len(levels)
        return []

    def retract(self) -> IntArray:
        own = self.own_slots()
        own = own[~np.isin(own, list(self._given))] if self._given else own
        self._placed, self._answered = 0, -1
        self._asked.clear()
        return own

    def give_away(self, slots: set[int]) -> None:
        """Own these slots no longer."""
        self._given = slots

    def paths(self) -> list[tuple[KeyArray, IntArray]]:
        """Keys and slots after the prompt, of each longest chain of computed tokens."""
        found: list[tuple[KeyArray, IntArray]] = []
        for branch in self._order:
            if any(child.children for child in branch.children.values()):
                continue  # a longer chain has it
            tokens: list[int] = []
            node: _Branch | None = branch
            while node is not None:
                tokens.append(node.token)
                node = node.parent
            keys = np.array(tokens[::-1], np.int64) * 2 + 1
            found.append((keys, np.array(branch.path_slots(), np.int32)))
        return found

    def kept(self) -> int:
        return 0

    def result(self, cached_tokens: int) -> ScoreResult:
        logprobs: list[list[float]] = []
        tops: list[list[TopTokens]] = []
        for tokens in self._continuations:
            level, way = self._first, []
            for token in tokens:
                way.append(level[token])
                level = level[token].children
            logprobs.append([branch.logprob for branch in way])
            tops.append([branch.top for branch in way])
        return ScoreResult(logprobs, self._prompt, cached_tokens, tops=tops if self._top else [])
