"""Rows that are known together: in which order they start, and what each leaves to the others.

    rows ──prompts──► prefix tree ──depth first──► order of the rows, and their `Place`s

Rows that begin alike follow each other, so that what they share is computed once and in use until
the last of them is done. When a row ends, its place says which part of its prompt the rows beside
it still want: the cache lets go of the rest first, and of that part last.

Rows are started as long as those in flight fit into the KV cache to their ends: a row that is
between two model calls would lose its states to others, and compute them again. Where a step costs
much whatever is in it, more rows are started than that: they fill the steps of those before them as
long as these are short, and have to give way, and compute again, less than these steps cost.

Owns        which rows of a batch are not done yet, and what those in flight will hold.
Promises    advice only: what a row gives does not depend on when it runs.
Costs       the tokens of each row's first prompt, which are kept by the tokenizer's memory of texts
            for when the row runs; then see `prefix_tree`. A row's end takes O(its prompt).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmc.runtime.prefix_tree import PrefixTree
from lmc.runtime.prompts import NO_KEYS, FirstPrompts, Needs
from lmc.runtime.request import KeyArray
from lmc.runtime.room import MostHeld, most_held

if TYPE_CHECKING:
    from lmc.plan import Plan
    from lmc.runtime.engine import EngineCore
    from lmc.runtime.host_calls import RowTools
    from lmc.runtime.request import Runner
    from lmc.runtime.results import RowResult
    from lmc.runtime.row import ResumeFn
    from lmc.runtime.target import Target

__all__ = ["Ample", "Ledger", "Place", "RowSpec", "places_of"]

_DEAR_STEP = 64  # positions: where a step costs as many, rows are given most memory
_MOST = 3  # times the memory there is


@dataclass(frozen=True, slots=True)
class RowSpec:
    """A row that is to run: what `Executor.submit_row` takes."""

    plan: Plan
    arguments: list[str]
    seed: int
    index: int
    done: Callable[[RowResult], None]
    resume: ResumeFn | None = None
    deadline: float | None = None
    tools: RowTools | None = None


@dataclass(slots=True)
class Ledger:
    """How many tokens of the KV cache the rows in flight will hold before they are done."""

    claimed: int = 0

    def fits(self, place: Place, runner: Runner) -> bool:
        """Whether a row is of use beside those in flight.

        Up to their ends they may hold all that the cache has if a step costs no more than what is
        in it, and up to three times as much if it costs `_DEAR_STEP` positions besides.
        """
        over = (_MOST - 1) * min(runner.step_positions, _DEAR_STEP) * runner.kv_tokens
        return self.claimed + place.tokens <= runner.kv_tokens + over // _DEAR_STEP


class Place:
    """Where a row stands among those of its batch that are not done.

    Attributes:
        number: in the order in which they start.
        tokens: that it will hold of the KV cache, by estimate, beside those that it shares with
            the row before.
    """

    __slots__ = (
        "_after", "_before", "_head", "_ledger", "_length", "_shared", "_started", "number",
        "tokens",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        needs: Needs,
        shared: int,
        before: Place | None,
        ledger: Ledger | None = None,
    ) -> None:
        """Args:
        shared: how many tokens of its first prompt are those of the row before.
        ledger: where what it holds is counted while it runs.
        """
        self.number = number
        self.tokens = needs.tokens - shared
        self._shared = shared
        self._before = before
        self._after: Place | None = None
        self._length = len(needs.prompt)
        self._head = hash(needs.prompt.tobytes())
        self._ledger = ledger or Ledger()
        self._started = False
        if before is not None:
            before._after = self

    def start(self) -> None:
        """The row begins to run."""
        self._started = True
        self._ledger.claimed += self.tokens

    def leave(self) -> tuple[int, int | None]:
        """The row is done; calling again does nothing.

        Returns:
            How many tokens of its prompt others want, and the number of the next one that does.
        """
        before, after = self._before, self._after
        with_before = self._shared if before is not None else 0
        with_after = after._shared if after is not None else 0
        if self._started:
            self._ledger.claimed -= self.tokens
            self._started = False
        if before is not None:
            before._after = after
        if after is not None:
            after._before = before
            after._shares(min(with_before, with_after))
        self._before = self._after = None
        self._shared = 0
        keep = max(with_before, with_after)
        if not keep:
            return 0, None
        wanted = after if after is not None and with_after == keep else before
        return keep, None if wanted is None else wanted.number

    def _shares(self, shared: int) -> None:
        """The row before is another one now; what is not shared with it is held by this one."""
        more = self._shared - shared
        self._shared = shared
        self.tokens += more
        if self._started:
            self._ledger.claimed += more

    def release(self, core: EngineCore, keys: KeyArray) -> None:
        """The row is done and came to the state `keys`: say what of it is still of use."""
        begins = len(keys) >= self._length and self._length > 0
        if not begins or hash(keys[: self._length].tobytes()) != self._head:
            return  # the prompts of others say nothing about it
        keep, wanted = self.leave()
        core.release(keys, keep)
        if wanted is not None:
            core.expect(keys[:keep], wanted)


def places_of(
    specs: Sequence[RowSpec], target: Target, ledger: Ledger
) -> list[tuple[RowSpec, Place]]:
    """The rows in the order in which they are best started, each with its place.

    If all of them fit into the KV cache, whatever their tokens are, that is the order in which they
    came, and their prompts are not looked at.
    """
    ample = Ample(target, ledger).places(specs)
    if ample is not None:
        return ample
    finders: dict[int, FirstPrompts] = {}
    needs: list[Needs] = []
    for spec in specs:
        finder = finders.get(id(spec.plan))
        if finder is None:
            finder = FirstPrompts(spec.plan, target.tokenizer, target.template)
            finders[id(spec.plan)] = finder
        needs.append(finder.needs(spec.arguments))
    tree = PrefixTree.of([need.prompt for need in needs])
    placed: list[tuple[RowSpec, Place]] = []
    before: Place | None = None
    for number, (which, shared) in enumerate(zip(tree.order, tree.shared.tolist(), strict=True)):
        before = Place(number, needs[which], shared, before, ledger)
        placed.append((specs[which], before))
    return placed


class Ample:
    """Gives rows their places as they come, while the KV cache has room for all they can hold."""

    def __init__(self, target: Target, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left = target.core.runner.kv_tokens - ledger.claimed
        self._bounds: dict[int, MostHeld | None] = {}
        self._number = 0

    def places(
        self, specs: Sequence[RowSpec], to_come: int = 0
    ) -> list[tuple[RowSpec, Place]] | None:
        """The rows as they came, each with its place; None if there is no room for all of them.

        Args:
            to_come: rows of which nothing is known yet; they may hold as much as these on average.
        """
        left = self._left
        held: list[int] = []
        for spec in specs:
            if id(spec.plan) not in self._bounds:
                bound = self._bounds[id(spec.plan)] = most_held(spec.plan)
                left -= 0 if bound is None else bound.shared
            bound = self._bounds[id(spec.plan)]
            if bound is None:
                return None
            held.append(bound.of(spec.arguments))
            left -= held[-1]
            if left < 0:
                return None
        if to_come and sum(held) * to_come > left * len(held):
            return None
        self._left = left
        first, self._number = self._number, self._number + len(held)
        return [
            (spec, Place(number, Needs(NO_KEYS, tokens), 0, None, self._ledger))
            for number, (spec, tokens) in enumerate(zip(specs, held, strict=True), first)
        ]
