"""Tables of constraints on the device: where repeats of a step read masks and next states.

Owns        one arena of states of all tables, and which table lies where.
Promises    a table is copied when a row first stands in it, without waiting; in a long run nothing
            is copied any more.
Costs       2 KiB a state, two bytes a token and table, taken when the arena is made.
Not here    what the tables say (`lmc.constraints.token_classes`); the kernels that read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from lmc.constraints.token_classes import MOST_CLASSES, NEVER, TokenClasses, TokenState
from lmc.runtime.cuda.staging import Staging

__all__ = ["FREE", "GONE", "ONCE", "TableArena"]

FREE, GONE, ONCE = -1, -2, -3
"""Of rows, instead of states: not constrained by a table; where no table knows what comes next; the
same, from the next token on (a mask says which ones may come now)."""


class TableArena:
    """See the module's text.

    Attributes:
        next: int32, shape (states, `MOST_CLASSES`): the state after a token of a class; as in
            `TokenClasses`, but states are numbers in the arena.
        forced, table_of: int32, shape (states,): the forced token or -1, and the state's table.
        class_of: int16, shape (tables, vocabulary, a little more): classes of tokens.
    """

    def __init__(self, vocab_size: int, states: int, tables: int, device: torch.device) -> None:
        self.width = -(-vocab_size // 8) * 8
        self.next = torch.full((states, MOST_CLASSES), NEVER, dtype=torch.int32, device=device)
        self.forced = torch.full((states,), -1, dtype=torch.int32, device=device)
        self.table_of = torch.zeros(states, dtype=torch.int32, device=device)
        self.class_of = torch.zeros(tables, self.width, dtype=torch.int16, device=device)
        self._begins: dict[TokenClasses, int] = {}  # holds the tables, so that none is made anew
        self._used = 0

    def forget(self) -> None:
        """Have no table any more."""
        self._begins.clear()
        self._used = 0

    def numbers(
        self, wanted: Sequence[TokenState | None], staging: Staging
    ) -> npt.NDArray[np.int32]:
        """The number of each state in the arena; `FREE` for None, `ONCE` where there is no room."""
        different = {one.classes for one in wanted if one is not None}
        if not different:
            return np.full(len(wanted), FREE, np.int32)
        new = [classes for classes in different if classes not in self._begins]
        if new and not self._fit(new):
            self.forget()
            new = list(different)
        for classes in new:
            if self._fit([classes]):
                self._copy(classes, staging)
        begins = {classes: self._begins.get(classes) for classes in different}
        found = np.full(len(wanted), FREE, np.int32)
        for i, one in enumerate(wanted):
            if one is not None:
                begin = begins[one.classes]
                found[i] = ONCE if begin is None else begin + one.number
        return found

    def _fit(self, tables: Sequence[TokenClasses]) -> bool:
        states = self._used + sum(len(classes.next) for classes in tables)
        return states <= len(self.next) and len(self._begins) + len(tables) <= len(self.class_of)

    def _copy(self, classes: TokenClasses, staging: Staging) -> None:
        begin, table = self._used, len(self._begins)
        states = len(classes.next)
        end = begin + states
        rows = np.full((states, MOST_CLASSES), NEVER, np.int32)
        rows[:, : classes.next.shape[1]] = np.where(
            classes.next >= 0, classes.next + begin, classes.next
        )
        kinds = np.zeros(self.width, np.int16)
        kinds[: len(classes.class_of)] = classes.class_of
        staging.copy(rows.ravel(), self.next[begin:end].view(-1))
        staging.copy(classes.forced, self.forced[begin:end])
        staging.copy(np.full(states, table, np.int32), self.table_of[begin:end])
        staging.copy(kinds.view(np.int32), self.class_of[table].view(torch.int32))
        self._begins[classes] = begin
        self._used = end
