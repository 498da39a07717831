"""Rows that are known together: in which order they start, and what each leaves to the others.

    rows ──prompts──► prefix tree ──depth first──► order of the rows, and their `Place`s

Rows that begin alike follow each other, so that what they share is computed once and in use until
the last of them is done. When a row ends, its place says which part of its prompt the rows beside
it still want: the cache lets go of the rest first, and of that part last.

Owns        which rows of a batch are not done yet.
Promises    advice only: what a row gives does not depend on when it runs.
Costs       the tokens of each row's first prompt, which are kept by the tokenizer's memory of texts
            for when the row runs; then see `prefix_tree`. A row's end takes O(its prompt).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmc.runtime.prefix_tree import PrefixTree
from lmc.runtime.prompts import FirstPrompts
from lmc.runtime.request import KeyArray

if TYPE_CHECKING:
    from lmc.plan import Plan
    from lmc.runtime.engine import EngineCore
    from lmc.runtime.host_calls import RowTools
    from lmc.runtime.results import RowResult
    from lmc.runtime.row import ResumeFn
    from lmc.runtime.target import Target

__all__ = ["Place", "RowSpec", "places_of"]

_NO_KEYS: KeyArray = np.empty(0, np.int64)


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


class Place:
    """Where a row stands among those of its batch that are not done.

    Attributes:
        number: in the order in which they start.
    """

    __slots__ = ("_after", "_before", "_head", "_length", "_shared", "number")

    def __init__(self, number: int, prompt: KeyArray, shared: int, before: Place | None) -> None:
        """Args:
        prompt: the row's first.
        shared: how many tokens of it are those of the row before.
        """
        self.number = number
        self._shared = shared
        self._before = before
        self._after: Place | None = None
        self._length = len(prompt)
        self._head = hash(prompt.tobytes())
        if before is not None:
            before._after = self

    def leave(self) -> tuple[int, int | None]:
        """The row is done; calling again does nothing.

        Returns:
            How many tokens of its prompt others want, and the number of the next one that does.
        """
        before, after = self._before, self._after
        with_before = self._shared if before is not None else 0
        with_after = after._shared if after is not None else 0
        if before is not None:
            before._after = after
        if after is not None:
            after._before = before
            after._shared = min(with_before, with_after)
        self._before = self._after = None
        self._shared = 0
        keep = max(with_before, with_after)
        if not keep:
            return 0, None
        wanted = after if after is not None and with_after == keep else before
        return keep, None if wanted is None else wanted.number

    def release(self, core: EngineCore, keys: KeyArray) -> None:
        """The row is done and came to the state `keys`: say what of it is still of use."""
        begins = len(keys) >= self._length and self._length > 0
        if not begins or hash(keys[: self._length].tobytes()) != self._head:
            return  # the prompts of others say nothing about it
        keep, wanted = self.leave()
        core.release(keys, keep)
        if wanted is not None:
            core.expect(keys[:keep], wanted)


def places_of(specs: Sequence[RowSpec], target: Target) -> list[tuple[RowSpec, Place]]:
    """The rows in the order in which they are best started, each with its place."""
    finders: dict[int, FirstPrompts] = {}
    prompts: list[KeyArray] = []
    for spec in specs:
        finder = finders.get(id(spec.plan))
        if finder is None:
            finder = FirstPrompts(spec.plan, target.tokenizer, target.template)
            finders[id(spec.plan)] = finder
        found = finder.of(spec.arguments, most=1)
        prompts.append(found[0] if found else _NO_KEYS)
    tree = PrefixTree.of(prompts)
    placed: list[tuple[RowSpec, Place]] = []
    before: Place | None = None
    for number, (which, shared) in enumerate(zip(tree.order, tree.shared.tolist(), strict=True)):
        before = Place(number, prompts[which], shared, before)
        placed.append((specs[which], before))
    return placed
