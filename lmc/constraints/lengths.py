"""How many bytes the shortest text of a term has.

Terms without conjunctions and complements know that by themselves (`Term.least`). Of others it is
found by their parts: what is in a row is added up, of a union the least counts. So a search is
needed only inside of a conjunction or a complement, and not through all that stands beside it.

Owns        what is known of the terms of one machine.
Promises    exact lengths; an error instead of a long search.
Costs       a search is Dijkstra's, over derivatives.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from lmc.constraints.budget import BudgetError
from lmc.constraints.derivatives import Derivatives
from lmc.constraints.nodes import Kind, Rule, Term

__all__ = ["SMALLER", "Lengths"]

SMALLER = "use fewer patterns or look-arounds at once, or smaller counts beside them"
_MOST_WORK = 2_000_000  # ways out of terms in a search, each times the parts of its term
_MOST_STEPS = 100_000  # parts looked at, before a term is searched as a whole
_NEVER = 1 << 60  # the length of what cannot be


class Lengths:
    """Finds the lengths of shortest texts. Not for several threads at once, but for `known`.

    Args:
        derivatives: of the machine's terms.
        is_live: whether anything matches a term.
    """

    def __init__(self, derivatives: Derivatives, is_live: Callable[[Term], bool]) -> None:
        self._derivatives = derivatives
        self._is_live = is_live
        self._known: dict[Term, int] = {}
        self._steps = 0

    def known(self, term: Term) -> int | None:
        """The length, if it is known already."""
        return term.least if term.plain else self._known.get(term)

    def of(self, term: Term) -> int:
        """The length of the shortest text of a term that something matches.

        Raises:
            BudgetError: it takes too long to find it.
        """
        self._steps = 0
        return self._shortest(term, frozenset())[0]

    def _shortest(self, term: Term, inside: frozenset[Term]) -> tuple[int, bool]:
        """The length by parts.

        Args:
            term: something matches it.
            inside: rules, of which none is used again: no shortest text needs one within itself.

        Returns:
            The length, `_NEVER` if there is no such text; and whether that is the length as well
            where the rules may be used.
        """
        known = self.known(term)
        if known is not None:
            return known, True
        self._steps += 1
        if term.open or self._steps > _MOST_STEPS:
            return self._searched(term), True
        total, holds = 0, True
        match term.kind:
            case Kind.CAT:
                rest = term
                while rest.kind == Kind.CAT and self.known(rest) is None:
                    head, rest = rest.args  # in a loop: chains may be long
                    length, sure = self._shortest(head, inside)
                    total, holds = total + length, holds and sure
                length, sure = self._shortest(rest, inside)
                total, holds = total + length, holds and sure
            case Kind.ALT:
                total = _NEVER
                for arm in sorted(term.args, key=lambda arm: arm.least):
                    if arm.least >= total:
                        break
                    if self._is_live(arm):
                        length, sure = self._shortest(arm, inside)
                        total, holds = min(total, length), holds and sure
            case Kind.REP:
                item, low, _ = term.args
                if low:
                    length, holds = self._shortest(item, inside)
                    total = low * length
            case Kind.VAR if isinstance(term, Rule):
                if term in inside:
                    return _NEVER, False
                total, holds = self._shortest(term.body, inside | {term})
                holds = holds or not inside
            case _:
                total = self._searched(term)
        if holds:
            self._known[term] = total
        return total, holds

    def _searched(self, start: Term) -> int:
        """Dijkstra's way to the next end. What it learns of the terms on that way is kept."""
        least_bytes = self._derivatives.arena.alphabet.least_bytes
        best = {start: 0}
        came_from: dict[Term, Term] = {}
        heap = [(0, 0, False, start)]  # with the rest of the way, where that is known
        work = pushed = 0
        while heap:
            length, _, whole, at = heapq.heappop(heap)
            if whole or self._derivatives.nullable(at):
                term: Term | None = at
                while term is not None:
                    self._known[term] = length - best[term]
                    term = came_from.get(term)
                return length
            if length > best[at]:
                continue
            moves = self._derivatives.moves(at)
            work += len(moves) * len(at.args)
            if work > _MOST_WORK:
                raise BudgetError(
                    "it takes too long to find the shortest text that matches", hint=SMALLER
                )
            for mask, after in moves:
                total = length + least_bytes(mask)
                if total < best.get(after, total + 1) and self._is_live(after):
                    best[after] = total
                    came_from[after] = at
                    rest = self.known(after)
                    pushed += 1
                    heapq.heappush(heap, (total + (rest or 0), pushed, rest is not None, after))
        raise AssertionError("a term that something matches can be completed")
