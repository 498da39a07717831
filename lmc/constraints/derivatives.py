"""Derivatives of terms: what may follow after one more character.

Owns        nothing but what it notes on the terms of its arena.
Promises    `moves(t)` partitions the characters that can come next; each term's are computed once.
Source      Brzozowski, Derivatives of Regular Expressions, 1964; Owens, Reppy and Turon,
            Regular-expression derivatives reexamined, 2009, on classes and weak equivalence.
"""

from __future__ import annotations

from collections.abc import Mapping

from lmc.constraints.terms import UNBOUNDED, Arena, Kind, Moves, Term

__all__ = ["Derivatives"]


class Derivatives:
    """See the module's text."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def nullable(self, term: Term) -> bool:
        """Whether the empty text is in `term`, whose front holds no BEHIND."""
        if term.empty_text is None:
            match term.kind:
                case Kind.CAT:
                    found = self.nullable(term.args[0]) and self.nullable(term.args[1])
                case Kind.ALT:
                    found = any(self.nullable(t) for t in term.args)
                case Kind.AND:
                    found = all(self.nullable(t) for t in term.args)
                case Kind.NOT:
                    found = not self.nullable(term.args[0])
                case Kind.VAR:
                    assert term.body is not None, "a name was used before its term was said"
                    found = self.nullable(term.body)
                case Kind.CLOSED:
                    found = self.nullable(term.args[0])
                case _:
                    raise AssertionError("a look-behind was left at the front of a term")
            term.empty_text = found
        return term.empty_text

    def moves(self, term: Term) -> Moves:
        """Disjoint sets of classes and the term after each; what is missing leads nowhere."""
        if term.derived is None:
            term.derived = self._derive(term)
        return term.derived

    def make_wide(self, arms: int, most: int) -> None:
        """Make the derivatives of the unions of at least so many arms now, not inside a mask.

        Args:
            most: arms of all of them; when there are so many, the rest is left for later.
        """
        while new := [t for t in self.arena.unions(arms) if t.derived is None]:
            for term in new:
                if (most := most - len(term.args)) < 0:
                    return
                self.moves(term)

    def _derive(self, term: Term) -> Moves:
        match term.kind:
            case Kind.CAT:
                return self._derive_chain(term)
            case Kind.ALT:
                return self._union([move for t in term.args for move in self.moves(t)])
            case Kind.REP:
                item, low, high = term.args
                rest = self.arena.rep(
                    item, max(low - 1, 0), high if high == UNBOUNDED else high - 1
                )
                return tuple((m, self.arena.cat(t, rest)) for m, t in self.moves(item))
            case Kind.VAR:
                assert term.body is not None, "a name was used before its term was said"
                return self.moves(term.body)
            case Kind.AND:
                first, *others = sorted(term.args, key=lambda t: len(self.moves(t)))
                found = list(self.moves(first))
                for other in others:
                    ahead = self.moves(other)
                    found = [
                        (common, self.arena.both((a, b)))
                        for m, a in found
                        for n, b in ahead
                        if (common := m & n)
                    ]
                return self._same_targets(found)
            case Kind.CHARS:
                return ((term.args[0], self.arena.eps),)
            case Kind.WORD:
                return ((term.args[0], self.arena.letters(term.args[1:])),)
            case Kind.NOT:
                left, found = self.arena.alphabet.full, []
                for mask, t in self.moves(term.args[0]):
                    left &= ~mask
                    found.append((mask, self.arena.neg(t)))
                if left:
                    found.append((left, self.arena.all))
                return self._same_targets(found)
            case Kind.ALL:
                return ((self.arena.alphabet.full, term),)
            case Kind.EMPTY | Kind.EPS | Kind.MARK:
                return ()
            case Kind.CLOSED:
                return self._derive_closed(term)
            case _:
                raise AssertionError("a look-behind was left at the front of a term")

    def _derive_closed(self, term: Term) -> Moves:
        """The term and all its trackers go on together, by the same characters."""
        inner, *trackers = term.args
        found: list[tuple[int, Term, tuple[Term, ...]]] = [
            (mask, t, ()) for mask, t in self.moves(inner)
        ]
        for tracker in trackers:
            ahead = list(self.moves(tracker))
            rest = self.arena.alphabet.full
            for mask, _ in ahead:
                rest &= ~mask
            if rest:
                ahead.append((rest, self.arena.empty))
            found = [
                (common, t, (*before, after))
                for mask, t, before in found
                for n, after in ahead
                if (common := mask & n)
            ]
        return self._same_targets([(m, self.closed(t, after)) for m, t, after in found])

    def closed(self, term: Term, trackers: tuple[Term, ...]) -> Term:
        """A term with its look-behinds: what they ask for is known at each place.

        `trackers` have read what was read so far; tracker n belongs to BEHIND(n), and may itself
        ask those before it.
        """
        if not trackers:
            return term
        arena = self.arena
        known: dict[Term, Term] = {}
        settled = []
        for number, tracker in enumerate(trackers):
            here = self.front(tracker, known)
            settled.append(here)
            known[arena.behind(number)] = self.at_mark(here)
        term = self.front(term, known)
        return arena.closed(term, tuple(settled)) if term.open else term

    def _derive_chain(self, term: Term) -> Moves:
        # Along the chain in a loop: hundreds of optional parts in a row must not recurse.
        arena = self.arena
        head, tail = term.args
        if head.kind == Kind.WORD:
            return ((head.args[0], arena.link(arena.letters(head.args[1:]), tail)),)
        if head.kind == Kind.CHARS:
            return ((head.args[0], arena.cat(arena.eps, tail)),)
        found: list[tuple[int, Term]] = []
        parts = 0
        while True:
            head, tail = term.args if term.kind == Kind.CAT else (term, self.arena.eps)
            parts += 1
            if term.kind == Kind.CAT:
                found.extend((m, self.arena.cat(t, tail)) for m, t in self.moves(head))
            else:
                found.extend(self.moves(term))
            if term.kind != Kind.CAT or not self.nullable(head):
                break
            term = tail
        return tuple(found) if parts == 1 else self._union(found)

    def _union(self, moves: list[tuple[int, Term]]) -> Moves:
        """One partition out of several laid over each other."""
        pieces: dict[int, tuple[Term, ...]] = {}
        for mask, term in moves:
            if mask in pieces:
                pieces[mask] += (term,)
                continue
            rest = mask
            for piece in list(pieces):
                common = piece & rest
                if common:
                    terms = pieces.pop(piece)
                    if piece != common:
                        pieces[piece ^ common] = terms
                    pieces[common] = (*terms, term)
                    rest ^= common
                    if not rest:
                        break
            if rest:
                pieces[rest] = (term,)
        return self._same_targets(
            [(m, ts[0] if len(ts) == 1 else self.arena.alt(ts)) for m, ts in pieces.items()]
        )

    def _same_targets(self, moves: list[tuple[int, Term]]) -> Moves:
        masks: dict[Term, int] = {}
        for mask, term in moves:
            if term.kind != Kind.EMPTY:
                masks[term] = masks.get(term, 0) | mask
        return tuple((m, t) for t, m in masks.items())

    # -- rewriting ---------------------------------------------------------------------------

    def front(self, term: Term, values: Mapping[Term, Term]) -> Term:
        """`term` with its VARs and BEHINDs that are in `values` replaced, at the front only.

        At the front means: where no character has been read yet.
        """
        if not term.open:
            return term
        if term in values:
            return values[term]
        match term.kind:
            case Kind.ALT:
                return self.arena.alt(self.front(t, values) for t in term.args)
            case Kind.AND:
                return self.arena.both(self.front(t, values) for t in term.args)
            case Kind.NOT:
                return self.arena.neg(self.front(term.args[0], values))
            case Kind.CAT:
                head, tail = term.args
                if head.empty_text is False:
                    return term
                later = self.front(tail, values)
                if later is tail:
                    return term
                some = self.arena.both((head, self.arena.neg(self.arena.eps)))
                return self.arena.alt((self.arena.cat(some, tail), later))
            case Kind.VAR:
                if term.body is None:
                    return term
                body = self.front(term.body, values)
                return term if body is term.body else body
            case _:
                return term

    def at_mark(self, term: Term) -> Term:
        """What must follow here, if the look-behind that `term` reads for ends here.

        EMPTY if it cannot end here; ALL if nothing is asked of what follows.
        """
        match term.kind:
            case Kind.MARK:
                return self.arena.all
            case Kind.ALT:
                return self.arena.alt(self.at_mark(t) for t in term.args)
            case Kind.AND:
                return self.arena.both(self.at_mark(t) if t.marked else t for t in term.args)
            case Kind.CAT:
                head, tail = term.args
                return self.at_mark(tail) if self.nullable(head) else self.arena.empty
            case Kind.VAR:
                assert term.body is not None, "a name was used before its term was said"
                return self.at_mark(term.body)
            case _:
                return self.arena.empty
