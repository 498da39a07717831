"""Whether all texts of one term are texts of another, by the term's parts.

The exact answer is a search through the states of both. Mostly the other is simple, such as all
texts of certain characters, and then it is enough to follow each part of the term through its few
states: a repeated part that always leads back to where it began may be repeated at will.

Owns        what it found out of the terms of one arena.
Promises    what it says is inside is inside; where it cannot say, that means nothing.
Costs       a few microseconds a part and state, once.
"""

from __future__ import annotations

from lmc.constraints.derivatives import Derivatives
from lmc.constraints.terms import Kind, Term

__all__ = ["Inclusion"]

_States = frozenset[Term]
_MOST_STATES = 64


class Inclusion:
    """See the module's text."""

    def __init__(self, derivatives: Derivatives) -> None:
        self._derivatives = derivatives
        self._known: dict[tuple[Term, Term], _States | None] = {}

    def is_inside(self, term: Term, other: Term) -> bool:
        """Whether every text of `term` is surely one of `other`, which holds no look-behind."""
        ends = self._after(term, other)
        return ends is not None and all(map(self._derivatives.nullable, ends))

    def _after(self, term: Term, state: Term) -> _States | None:
        """The states in which texts of `term` may end from `state`; None if one leads nowhere.

        Counters are not counted, so they may be fewer in truth. None also where it is not known.
        """
        key = term, state
        if key not in self._known:
            self._known[key] = None  # what names itself is not followed
            self._known[key] = self._followed(term, state)
        return self._known[key]

    def _followed(self, term: Term, state: Term) -> _States | None:
        match term.kind:
            case Kind.EMPTY:
                return frozenset()
            case Kind.EPS:
                return frozenset((state,))
            case Kind.CHARS | Kind.WORD:
                states: _States | None = frozenset((state,))
                for mask in term.args:
                    states = None if states is None else self._read(states, mask)
                return states
            case Kind.CAT:
                states = frozenset((state,))
                while term.kind == Kind.CAT and states is not None:
                    head, term = term.args
                    states = self._all_after(head, states)
                return None if states is None else self._all_after(term, states)
            case Kind.ALT:
                found: set[Term] = set()
                for arm in term.args:
                    ends = self._after(arm, state)
                    if ends is None:
                        return None
                    found |= ends
                return frozenset(found)
            case Kind.REP:
                item, low, _ = term.args
                found, new = {state}, [state]
                later: set[Term] = set()
                while new:
                    ends = self._after(item, new.pop())
                    if ends is None or len(found) > _MOST_STATES:
                        return None
                    later |= ends
                    new += ends - found
                    found |= ends
                return frozenset(found if low == 0 else later)
            case Kind.VAR if term.plain and term.body is not None:
                return self._after(term.body, state)
            case _:
                return None

    def _all_after(self, term: Term, states: _States) -> _States | None:
        if len(states) == 1:
            return self._after(term, *states)
        found: set[Term] = set()
        for state in states:
            ends = self._after(term, state)
            if ends is None:
                return None
            found |= ends
        return frozenset(found)

    def _read(self, states: _States, mask: int) -> _States | None:
        found = set()
        for state in states:
            left = mask
            for other, after in self._derivatives.moves(state):
                if left & other:
                    found.add(after)
                    left &= ~other
            if left:
                return None
        return frozenset(found)
