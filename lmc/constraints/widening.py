"""Wider terms that allow the same next bytes: counters far from their bounds are all alike.

Bounds of counters that lie further off than a token is long are moved to infinity, so that all
counts far from the end become one term, with one row of tokens. What is changed must not change
which texts of up to `limit` bytes can come next, nor which of these may end a part.

Owns        what it found out of the terms of one arena.
Costs       a few microseconds for each part within `limit` bytes; more the first time a counter
            that is combined with other conditions is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lmc.constraints.derivatives import Derivatives
from lmc.constraints.inclusion import Inclusion
from lmc.constraints.terms import UNBOUNDED, Kind, Term

__all__ = ["Widening"]

_MOST = 1 << 30
_COUNTING = (Kind.CAT, Kind.ALT, Kind.REP, Kind.AND)


class Widening:
    """See the module's text.

    Args:
        is_live: whether a term has any text.
        far: where a counter is combined with another condition, that condition keeps what the next
            `far` bytes can be; so that of longer texts only the counter has to be asked (`room`).
    """

    def __init__(self, derivatives: Derivatives, is_live: Callable[[Term], bool], far: int) -> None:
        self._far = far
        self._derivatives = derivatives
        self._arena = derivatives.arena
        self._is_live = is_live
        self._wide: dict[tuple[Term, int], Term] = {}
        self._ends: dict[Term, int] = {}
        self._inside: dict[tuple[Term, Term], bool] = {}
        self._inclusion = Inclusion(derivatives)

    def widened(self, term: Term, limit: int) -> Term:
        """A wider term with the same beginnings of up to `limit` bytes."""
        if limit <= 0 or term.kind not in _COUNTING:
            return term
        known = self._wide.get((term, limit))
        if known is None:
            known = self._wide[term, limit] = self._widened(term, limit)
        return known

    def _widened(self, term: Term, limit: int) -> Term:
        # Terms that stay as they are, as most do, are not made again.
        match term.kind:
            case Kind.CAT:
                # What begins further off than `limit` may stay as it is.
                heads: list[Term] = []
                rest, left, same = term, limit, True
                while rest.kind == Kind.CAT and left > 0:
                    head = rest.args[0]
                    heads.append(self.widened(head, left))
                    same = same and heads[-1] is head
                    left -= head.least
                    rest = rest.args[1]
                made = self.widened(rest, left)
                if same and made is rest:
                    return term
                for head in reversed(heads):
                    made = self._arena.cat(head, made)
                return made
            case Kind.ALT:
                arms = [self.widened(t, limit) for t in term.args]
                if all(a is b for a, b in zip(arms, term.args, strict=True)):
                    return term
                return self._arena.alt(arms)
            case Kind.REP:
                item, low, high = term.args
                inner = self.widened(item, limit)
                if high > limit:
                    high = UNBOUNDED
                if inner is item and low <= limit + 1 and high == term.args[2]:
                    return term
                return self._arena.rep(inner, min(low, limit + 1), high)
            case _:
                found = self._counted(term)
                if found is None or found[1] < limit + found[2]:
                    return term
                return self.widened(found[0], max(limit, self._far))

    def counts(self, term: Term, limit: int) -> bool:
        """Whether a counter is at work at the front of a term: only then many are alike."""
        match term.kind:
            case Kind.CAT:
                rest = term
                while rest.kind == Kind.CAT:
                    head, rest = rest.args
                    if self.counts(head, limit):
                        return True
                    if head.empty_text is False:
                        return False
                return self.counts(rest, limit)
            case Kind.ALT:
                return any(self.counts(t, limit) for t in term.args)
            case Kind.REP:
                item, low, high = term.args
                return bool(high > limit or low > limit + 1 or self.counts(item, limit))
            case kind:
                return kind == Kind.AND

    def room(self, term: Term, classes: int, limit: int) -> tuple[int, int, int, int] | None:
        """What a counter says of characters of `classes` in a row, up to `far` bytes of them.

        Args:
            limit: of the widened term that is spoken of.

        Returns:
            So many may follow if they may in the widened term; so many at most, if none of them
            leads out of the counted part; the classes of characters of which this is true, those
            asked for among them; and the classes that lead out: without them, texts of no more
            bytes than the first number may follow if they may in the widened term. None if it is
            not a matter of one counter with a bound.
        """
        head, tail = term.args if term.kind == Kind.CAT else (term, self._arena.eps)
        slack, leading = 0, [tail]
        if head.kind == Kind.AND:
            found = self._counted(head)
            if found is None:
                return None
            slack = found[2]
            counter = next(t for t in head.args if t is not found[0])
        else:
            # What the counter of one arm lets come may come, whatever else may.
            arms = list(head.args) if head.kind == Kind.ALT else [head]
            fronts = [t.args if t.kind == Kind.CAT else (t, self._arena.eps) for t in arms]
            chosen = next((i for i, (t, _) in enumerate(fronts) if t.kind == Kind.REP), None)
            if chosen is None:
                return None
            counter, arms[chosen] = fronts[chosen]
            leading += arms
        if counter.kind != Kind.REP or counter.args[2] == UNBOUNDED:
            return None
        item, _, high = counter.args
        moves = self._derivatives.moves
        ones = next((m for m, t in moves(item) if not classes & ~m and t.kind == Kind.EPS), None)
        if ones is None or self.widened(item, limit) is not item:  # its own counters would count
            return None
        out = 0
        for part in leading:
            for mask, _ in moves(part):
                out |= mask
        return None if head.kind == Kind.AND and out & classes else (high - slack, high, ones, out)

    def counted_front(self, term: Term) -> tuple[Term, int] | None:
        """The member and the bound of a conjunction at the front that bounds how long it is."""
        head = term.args[0] if term.kind == Kind.CAT else term
        found = self._counted(head) if head.kind == Kind.AND else None
        return None if found is None else found[:2]

    def _counted(self, term: Term) -> tuple[Term, int, int] | None:
        """A conjunction that only bounds how long the texts of one of its members are.

        Returns:
            The member; a number of bytes that a text of it may have in any case; and how far off,
            in bytes, its nearest end is at most after any beginning. None if it is not so simple.
        """
        for member, high, free in self._bounds(term):
            far = self._end(member)
            if far < high and self._is_inside(self.widened(member, 1), free):
                return member, high, far
        return None

    def fits(self, term: Term) -> bool:
        """Whether a conjunction surely has a text: one whose shortest text a counter allows."""
        return any(
            member.least <= high and self._inclusion.is_inside(member, free)
            for member, high, free in self._bounds(term)
        )

    def _bounds(self, term: Term) -> Iterator[tuple[Term, int, Term]]:
        """The ways in which a conjunction is a term, a bound of how many items its texts have, and
        all texts of any number of these items.
        """
        if len(term.args) != 2 or not all(t.plain for t in term.args):
            return
        for member, other in (term.args, term.args[::-1]):
            front, counter = self._arena.eps, other
            while counter.kind == Kind.CAT:
                front, counter = self._arena.cat(front, counter.args[0]), counter.args[1]
            if counter.kind == Kind.REP and counter.args[1] == 0 and counter.args[2] != UNBOUNDED:
                item, _, high = counter.args
                yield member, high, self._arena.cat(front, self._arena.rep(item, 0, UNBOUNDED))

    def _is_inside(self, term: Term, other: Term) -> bool:
        known = self._inside.get((term, other))
        if known is None:
            known = self._inclusion.is_inside(term, other)
            if not known:
                beyond = self._arena.both((term, self._arena.neg(other)))
                known = not self._is_live(beyond)
            self._inside[term, other] = known
        return known

    def _end(self, term: Term) -> int:
        """How many bytes the nearest end is off at most, after any beginning of a plain term."""
        known = self._ends.get(term)
        if known is None:
            known = 0
            match term.kind:
                case Kind.CHARS:
                    known = 4
                case Kind.WORD:
                    known = 3 + term.least
                case Kind.CAT:
                    rest = term
                    while rest.kind == Kind.CAT:
                        head, rest = rest.args
                        known = max(known, self._end(head) + rest.least)
                    known = max(known, self._end(rest))
                case Kind.ALT:
                    known = max(self._end(t) for t in term.args)
                case Kind.REP:
                    item, low, _ = term.args
                    known = self._end(item) + item.least * max(low - 1, 0)
            known = self._ends[term] = min(max(known, term.least), _MOST)
        return known
