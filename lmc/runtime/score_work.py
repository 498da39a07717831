"""What a request for scores wants of the model: the tree of its continuations.

Owns        the slots of the tokens that it computes, until they are given away or retracted.
Promises    what several continuations begin with is computed once, and nothing after which no
            probability is asked for; probabilities are those of each continuation by itself.
Costs       building and answering take a few list operations for each place where continuations
            part; only the rows of a step take time in their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

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

_NO_SLOTS: IntArray = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class _Run:
    """Tokens that follow each other in all continuations that have the first of them.

    Attributes:
        tokens: at least one.
        parent: what they follow; None for the prompt.
        depth: tokens from the end of the prompt to the first of them.
        children: what can follow the last token, by first token.
        first, rows: which rows are those of its tokens; a last token that ends all its
            continuations has none.
        nth: which child of its parent it is.
    """

    tokens: list[int]
    parent: _Run | None
    depth: int
    children: dict[int, _Run] = field(default_factory=dict)
    first: int = 0
    rows: int = 0
    nth: int = 0

    def split(self, at: int) -> None:
        """Leave the first `at` tokens to this run, and make the others its child."""
        lower = _Run(self.tokens[at:], self, self.depth + at, self.children)
        for child in lower.children.values():
            child.parent = lower
        self.children = {lower.tokens[0]: lower}
        self.tokens = self.tokens[:at]

    @property
    def before(self) -> int:
        """The row that is asked for its first token; -1 is the last one of the prompt."""
        return -1 if self.parent is None else self.parent.first + self.parent.rows - 1

    def upward(self) -> Iterator[_Run]:
        """This run and those before it."""
        run: _Run | None = self
        while run is not None:
            yield run
            run = run.parent


class ScoreWork:
    """Asks for the probabilities of the tokens of several continuations.

    The continuations form a tree. The prompt's last row answers for the first tokens, and every
    token that another one follows is a row that is computed once, with the next ones as its
    targets. Rows are in depth-first order.
    """

    computes_last = True

    def __init__(self, request: ScoreRequest) -> None:
        self._prompt = len(request.keys)
        self._top = request.top
        # a runner gives the most likely tokens along with a draw after the last row of a segment
        self._draw = Sampling() if request.top else None
        self._roots: dict[int, _Run] = {}
        self._continuations = request.continuations
        for tokens in request.continuations:
            self._add(tokens)
        self._runs: list[_Run] = []  # depth first
        self._tokens: list[int] = []  # of each row
        self._targets: list[tuple[int, ...]] = []
        self._run_of: list[_Run] = []
        self._lay_out()
        self._slots = np.full(len(self._tokens), -1, np.int32)
        self._placed = 0
        self._open = len(self._tokens) + 1  # rows to be answered for, the prompt's last one too
        self._asked: dict[int, tuple[int, int]] = {}  # by segment in flight: its rows
        self._answers: dict[int, tuple[float, ...]] = {}  # by row; the prompt's last one is -1
        self._tops: dict[int, TopTokens] = {}
        self._given: set[int] = set()

    def _add(self, tokens: list[int]) -> None:
        """Let the tree have a continuation."""
        level, parent, depth = self._roots, None, 0
        while depth < len(tokens):
            run = level.get(tokens[depth])
            if run is None:
                level[tokens[depth]] = _Run(tokens[depth:], parent, depth, nth=len(level))
                return
            rest = tokens[depth : depth + len(run.tokens)]
            if rest != run.tokens:
                pairs = zip(rest, run.tokens, strict=False)
                shared = next((n for n, (a, b) in enumerate(pairs) if a != b), len(rest))
                run.split(shared)
            level, parent, depth = run.children, run, depth + len(run.tokens)

    def _lay_out(self) -> None:
        """Number the rows."""
        stack = list(self._roots.values())[::-1]
        while stack:
            run = stack.pop()
            self._runs.append(run)
            run.first = len(self._tokens)
            self._targets += zip(run.tokens[1:])
            if run.children:
                self._targets.append(tuple(run.children))
            run.rows = len(self._targets) - run.first
            self._tokens += run.tokens[: run.rows]
            self._run_of += itertools.repeat(run, run.rows)
            stack += list(run.children.values())[::-1]

    @property
    def size(self) -> int:
        """How many tokens are computed after the prompt."""
        return len(self._tokens)

    @property
    def depth(self) -> int:
        """Positions after the prompt that are computed."""
        return max((run.depth + run.rows for run in self._runs), default=0)

    @property
    def branches(self) -> int:
        return len(self._tokens) - self._placed

    def own_slots(self) -> IntArray:
        """The slots of the rows placed so far."""
        return self._slots[: self._placed]

    @property
    def finished(self) -> bool:
        return not self._open

    def to_make(self) -> int:
        return 0

    def prepare(self) -> None:
        pass

    def last_segment(self, tokens: IntArray, start: int, slots: IntArray, made: bool) -> Segment:
        targets = (*((),) * (len(tokens) - 1), tuple(self._roots))
        segment = Segment(
            tokens, start, slots, made, sample=self._draw, top=self._top, targets=targets
        )
        self._asked[id(segment)] = (-1, 0)
        return segment

    def place_branches(self, sequence: TokenSequence, slots: IntArray) -> list[Segment]:
        begin = self._placed
        self._placed = end = begin + len(slots)
        self._slots[begin:end] = slots
        return [self._segment(low, high, sequence) for low, high in self._chains(begin, end)]

    def _chains(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The rows `begin..end` in pieces of which each row follows the one before."""
        if self._top:
            yield from zip(range(begin, end), range(begin + 1, end + 1), strict=True)
            return
        low = at = begin
        while low < end:
            run = self._run_of[at]
            at = min(run.first + run.rows, end)
            if at == end or self._run_of[at].parent is not run:
                yield low, at
                low = at

    def _segment(self, low: int, high: int, sequence: TokenSequence) -> Segment:
        end, last = sequence.total, self._run_of[high - 1]
        segment = Segment(
            tokens=np.array(self._tokens[low:high], np.int32),
            start=end + self._run_of[low].depth + low - self._run_of[low].first,
            slots=np.concatenate([sequence.slots[:end], *self._slots_to(last, high)]),
            made=True,
            sample=self._draw,
            top=self._top,
            targets=tuple(self._targets[low:high]),
        )
        self._asked[id(segment)] = (low, high)
        return segment

    def _slots_to(self, last: _Run, end: int) -> list[IntArray]:
        """The slots of the rows from the end of the prompt up to row `end` of the run `last`."""
        above = [self._slots[run.first : run.first + run.rows] for run in last.upward()]
        above[0] = self._slots[last.first : end]
        return above[::-1]

    def take(
        self,
        segment: Segment,
        token: int,
        logprob: float,
        scores: tuple[tuple[float, ...], ...],
        top: TopTokens = (),
    ) -> list[int]:
        del token, logprob
        rows = self._asked.pop(id(segment), None)
        if rows is None:
            return []  # a part of the prompt that nothing is asked about
        low, high = rows
        self._answers.update(zip(range(low, high), scores[low - high :], strict=True))
        self._open -= high - low
        if self._top:
            self._tops[low] = top
        return []

    def retract(self) -> IntArray:
        own, given = self.own_slots(), self._given
        if given:
            own = np.array([slot for slot in own.tolist() if slot not in given], np.int32)
        self._placed, self._open = 0, len(self._tokens) + 1
        self._asked.clear()
        return own

    def give_away(self, slots: set[int]) -> None:
        """Own these slots no longer."""
        self._given = slots

    def paths(self) -> list[tuple[KeyArray, IntArray]]:
        """Keys and slots after the prompt, of each longest chain of computed tokens."""
        found: list[tuple[KeyArray, IntArray]] = []
        for run in self._runs:
            if not run.rows or any(child.rows for child in run.children.values()):
                continue  # a longer chain has it
            above = [self._tokens[r.first : r.first + r.rows] for r in run.upward()]
            tokens = [token for part in reversed(above) for token in part]
            slots = np.concatenate(self._slots_to(run, run.first + run.rows))
            found.append((np.array(tokens, np.int64) * 2 + 1, slots))
        return found

    def kept(self) -> int:
        return 0

    def result(self, cached_tokens: int) -> ScoreResult:
        logprobs: dict[_Run | None, list[float]] = {None: []}  # up to the end of each run
        tops: dict[_Run | None, list[TopTokens]] = {None: []}
        for run in self._runs:
            asked = [run.before, *range(run.first, run.first + len(run.tokens) - 1)]
            first, *others = (self._answers[row] for row in asked)
            logprobs[run] = [*logprobs[run.parent], first[run.nth], *(one for (one,) in others)]
            if self._top:
                tops[run] = [*tops[run.parent], *(self._tops[row] for row in asked)]
        ends = [self._end_of(tokens) for tokens in self._continuations]
        return ScoreResult(
            [logprobs[run] for run in ends],
            self._prompt,
            cached_tokens,
            tops=[tops[run] for run in ends] if self._top else [],
        )

    def _end_of(self, tokens: list[int]) -> _Run:
        """The run in which a continuation ends."""
        run = self._roots[tokens[0]]
        while run.depth + len(run.tokens) < len(tokens):
            run = run.children[tokens[run.depth + len(run.tokens)]]
        return run
