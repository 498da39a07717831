"""Which characters a term lets come next in any number and order, read off its form.

Inside a text of JSON any letters may follow, although each leads to another state where the text
could be a known name. Of such states no row is needed to say that tokens of these letters may come.

Owns        what it found out of the terms of one arena.
Promises    what is said may surely come; less may be said than is true.
Costs       a microsecond a new term, and nothing is made.
"""

from __future__ import annotations

from collections.abc import Callable

from lmc.constraints.nodes import UNBOUNDED, Kind, Rule, Term

__all__ = ["Roaming"]


class Roaming:
    """See the module's text.

    Args:
        weight: how much a set of classes counts, where a term has several such sets.
        is_live: whether a term has any text.
    """

    def __init__(self, weight: Callable[[int], int], is_live: Callable[[Term], bool]) -> None:
        self._weight = weight
        self._is_live = is_live
        self._known: dict[Term, int] = {}

    def of(self, term: Term) -> int:
        """A set of classes, of which any text may come at the front of a term that has a text."""
        known = self._known.get(term)
        if known is None:
            known = self._known[term] = self._of(term)
        return known

    def _of(self, term: Term) -> int:
        # What follows in a chain has a text, if the chain has one; an arm may have none.
        while term.kind == Kind.CAT:
            head, term = term.args
            found = self.of(head)
            if found or head.empty_text is not True:
                return found
        match term.kind:
            case Kind.REP if term.args[2] == UNBOUNDED:
                item = term.args[0]
                found = 0
                for arm in item.args if item.kind == Kind.ALT else (item,):
                    if arm.kind == Kind.CHARS:
                        found |= arm.args[0]
                return found
            case Kind.ALT:
                arms = [(self.of(t), t) for t in term.args if not t.open]
                arms.sort(key=lambda arm: -self._weight(arm[0]))
                return next((found for found, t in arms if found and self._is_live(t)), 0)
            case Kind.VAR:
                return term.roams if isinstance(term, Rule) else 0
            case _:
                return 0
