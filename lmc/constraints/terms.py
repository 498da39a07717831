"""Terms: expressions over the classes of an alphabet, and their derivatives.

Equal terms are the same object (hash-consing), and the constructors bring terms into a form in
which the derivatives of a term are few: that is what makes automata out of them.

    EMPTY  EPS  ALL           no text; the empty text; every text
    CHARS(mask)               one character of a set of classes
    CAT(head, tail)           heads are never CAT: chains lean to the right
    REP(item, low, high)      a counter is a number in a term, never unrolled
    ALT, AND, NOT             sets of terms
    VAR(body)                 a term that may contain itself behind a character
    BEHIND(n)                 ALL or EMPTY (or more) by what was read: `build` and `machine`
    MARK                      the place where a look-behind ends

Owns        its terms, for the life of one automaton.
Promises    `moves(t)` partitions the characters that can come next; each term's are computed once.
Costs       a few microseconds a new term.
Source      Brzozowski, Derivatives of Regular Expressions, 1964; Owens, Reppy and Turon,
            Regular-expression derivatives reexamined, 2009, on classes and weak equivalence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lmc.constraints.alphabet import Alphabet

__all__ = ["UNBOUNDED", "Arena", "Kind", "Term"]

UNBOUNDED = -1


class Kind:
    """What a term is; plain integers, since they are compared a great deal."""

    EMPTY, EPS, ALL, CHARS, CAT, REP, ALT, AND, NOT, VAR, BEHIND, MARK = range(12)


class Term:
    """One node; made by an `Arena` only, compared by identity.

    Attributes:
        kind: see `Kind`.
        args: a mask; (head, tail); (item, low, high); a tuple of terms; (term,); a number.
        number: order of making; sorts the members of sets.
        plain: free of AND, NOT, VAR, BEHIND: then it is not empty, and `least` is exact.
        least: a lower bound of the length in bytes of its shortest text.
        open: contains VAR, BEHIND or MARK, so that its front may have to be replaced.
        marked: every text of it runs through MARK.
        empty_text: whether it holds the empty text; None until that is known.
    """

    __slots__ = (
        "args", "body", "derived", "empty_text", "kind", "least", "marked", "number", "open",
        "plain",
    )  # fmt: skip

    kind: int
    args: tuple  # type: ignore[type-arg]
    number: int
    plain: bool
    least: int
    open: bool
    marked: bool
    empty_text: bool | None
    derived: tuple[tuple[int, Term], ...] | None
    body: Term | None

    def __repr__(self) -> str:
        names = [k for k in vars(Kind) if k.isupper()]
        return f"{names[self.kind]}{self.args!r}"


Moves = tuple[tuple[int, Term], ...]


class Arena:
    """Makes the terms of one automaton."""

    def __init__(self, alphabet: Alphabet) -> None:
        self.alphabet = alphabet
        self._made: dict[tuple[object, ...], Term] = {}
        self._vars = 0
        self.empty = self._term(Kind.EMPTY, (), plain=True, least=0, empty_text=False)
        self.eps = self._term(Kind.EPS, (), plain=True, least=0, empty_text=True)
        self.all = self._term(Kind.ALL, (), plain=True, least=0, empty_text=True)
        self.mark = self._term(Kind.MARK, (), plain=False, least=0, empty_text=True, open=True)
        self.mark.marked = True

    def __len__(self) -> int:
        return len(self._made)

    def _term(
        self,
        kind: int,
        args: tuple[object, ...],
        *,
        plain: bool,
        least: int,
        empty_text: bool | None,
        open: bool = False,
    ) -> Term:
        key = (kind, *args)
        term = self._made.get(key)
        if term is None:
            term = Term()
            term.kind, term.args, term.number = kind, args, len(self._made)
            term.plain, term.least, term.empty_text, term.open = plain, least, empty_text, open
            term.derived = None
            term.body = None
            term.marked = open and any(isinstance(a, Term) and a.marked for a in args)
            self._made[key] = term
        return term

    # -- making ------------------------------------------------------------------------------

    def chars(self, mask: int) -> Term:
        """One character of the classes in `mask`."""
        if not mask:
            return self.empty
        known = self._made.get((Kind.CHARS, mask))
        return known or self._term(
            Kind.CHARS,
            (mask,),
            plain=True,
            least=self.alphabet.least_bytes(mask),
            empty_text=False,
        )

    def cat(self, head: Term, tail: Term) -> Term:
        """`head`, then `tail`."""
        kind = head.kind
        if kind == Kind.EMPTY or tail.kind == Kind.EMPTY:
            return self.empty
        if kind == Kind.EPS:
            return tail
        if tail.kind == Kind.EPS:
            return head
        if kind == Kind.CAT:
            return self.cat(head.args[0], self.cat(head.args[1], tail))
        if kind == Kind.ALL and (
            tail.kind == Kind.ALL or (tail.kind == Kind.CAT and tail.args[0].kind == Kind.ALL)
        ):
            return tail
        known = self._made.get((Kind.CAT, head, tail))
        if known is not None:
            return known
        if tail.kind == Kind.CAT and (joined := self._joined(head, tail.args[0])):
            return self.cat(joined, tail.args[1])
        if joined := self._joined(head, tail):
            return joined
        if head.empty_text is False:
            empty_text: bool | None = False
        elif head.empty_text and tail.empty_text is not None:
            empty_text = tail.empty_text
        else:
            empty_text = None
        return self._term(
            Kind.CAT,
            (head, tail),
            plain=head.plain and tail.plain,
            least=head.least + tail.least,
            empty_text=empty_text,
            open=head.open or tail.open,
        )

    def _joined(self, first: Term, second: Term) -> Term | None:
        """`x{a,b}x{c,d}` as one counter, where one of them at least is a counter."""
        if first.kind == Kind.REP:
            item, low, high = first.args
            if second is item:
                return self.rep(item, low + 1, high if high == UNBOUNDED else high + 1)
            if second.kind == Kind.REP and second.args[0] is item:
                low2, high2 = second.args[1:]
                unbounded = UNBOUNDED in (high, high2)
                return self.rep(item, low + low2, UNBOUNDED if unbounded else high + high2)
        elif second.kind == Kind.REP and second.args[0] is first:
            item, low, high = second.args
            return self.rep(item, low + 1, high if high == UNBOUNDED else high + 1)
        return None

    def rep(self, item: Term, low: int, high: int) -> Term:
        """`item` from `low` to `high` times."""
        if high == 0 or item.kind == Kind.EPS:
            return self.eps
        if item.kind == Kind.EMPTY:
            return self.eps if low == 0 else self.empty
        if low == high == 1:
            return item
        if item.kind == Kind.ALL:
            return self.all
        if (low, high) == (0, UNBOUNDED) and item.args == (self.alphabet.full,):
            return self.all
        if item.empty_text:
            low = 0
        if item.kind == Kind.REP and item.args[1] <= 1:
            inner, least, most = item.args
            # x{1,q} repeated m to n times is x from m to qn times: there are no gaps.
            most = UNBOUNDED if UNBOUNDED in (most, high) else most * high
            return self.rep(inner, low if least else 0, most)
        known = self._made.get((Kind.REP, item, low, high))
        return known or self._term(
            Kind.REP,
            (item, low, high),
            plain=item.plain,
            least=item.least * low,
            empty_text=low == 0,
            open=item.open,
        )

    def alt(self, terms: Iterable[Term]) -> Term:
        """What is in one of `terms`."""
        members: dict[Term, None] = {}
        stack = list(terms)
        while stack:
            term = stack.pop()
            if term.kind == Kind.ALT:
                stack.extend(term.args)
            elif term.kind == Kind.ALL:
                return self.all
            elif term.kind != Kind.EMPTY:
                members[term] = None
        if len(members) > 1:
            members = self._gathered(members)
        if not members:
            return self.empty
        if len(members) == 1:
            return next(iter(members))
        for term in members:
            if term.kind == Kind.ALL or (term.kind == Kind.NOT and term.args[0] in members):
                return self.all
        args = tuple(sorted(members, key=lambda t: t.number))
        known = self._made.get((Kind.ALT, *args))
        if known is not None:
            return known
        texts = [t.empty_text for t in args]
        return self._term(
            Kind.ALT,
            args,
            plain=all(t.plain for t in args),
            least=min(t.least for t in args),
            empty_text=True if True in texts else (None if None in texts else False),
            open=any(t.open for t in args),
        )

    def _gathered(self, members: dict[Term, None]) -> dict[Term, None]:
        """The same union with common beginnings and endings shared, and counters merged.

        `x{0,3}k | x{2,5}k` is `x{0,5}k`; `ak | bk` is `[ab]k`; `ak | aj` is `a(k|j)`. Without
        this the derivatives of ambiguous counters grow with the square of their bounds.
        """
        by_item: dict[tuple[Term, Term], list[tuple[int, int]]] = {}
        by_tail: dict[Term, int] = {}
        rest: list[Term] = []
        for term in members:
            if term.kind == Kind.CAT:
                head, tail = term.args
            elif term.kind in (Kind.CHARS, Kind.REP):
                head, tail = term, self.eps
            else:
                rest.append(term)
                continue
            if head.kind == Kind.CHARS:
                by_tail[tail] = by_tail.get(tail, 0) | head.args[0]
            elif head.kind == Kind.REP:
                by_item.setdefault((head.args[0], tail), []).append(head.args[1:])
            else:
                rest.append(term)
        found: dict[Term, None] = dict.fromkeys(rest)
        # A counter takes in the single item, and the tail by itself, if they stand beside it.
        for (item, tail), spans in by_item.items():
            if item.kind == Kind.CHARS and by_tail.get(tail) == item.args[0]:
                spans.append((1, 1))
                del by_tail[tail]
            elif (one := self.cat(item, tail)) in found:
                spans.append((1, 1))
                del found[one]
            if tail in found:
                spans.append((0, 0))
            merged = _merge_spans(spans)
            if (0, 0) in spans and (0, 0) not in merged:
                found.pop(tail, None)
            for low, high in merged:
                if (low, high) != (0, 0):
                    found[self.cat(self.rep(item, low, high), tail)] = None
        for tail, mask in by_tail.items():
            found[self.cat(self.chars(mask), tail)] = None
        if len(found) < 2:
            return found
        by_head: dict[Term, list[Term]] = {}
        for term in found:
            head = term.args[0] if term.kind == Kind.CAT else term
            by_head.setdefault(head, []).append(term)
        if len(by_head) == len(found):
            return found
        shared: dict[Term, None] = {}
        for head, group in by_head.items():
            if len(group) == 1:
                shared[group[0]] = None
            else:
                tails = [t.args[1] if t.kind == Kind.CAT else self.eps for t in group]
                joined = self.cat(head, self.alt(tails))
                for term in joined.args if joined.kind == Kind.ALT else (joined,):
                    shared[term] = None
        return shared

    def both(self, terms: Iterable[Term]) -> Term:
        """What is in all of `terms`."""
        members: dict[Term, None] = {}
        stack = list(terms)
        while stack:
            term = stack.pop()
            if term.kind == Kind.AND:
                stack.extend(term.args)
            elif term.kind == Kind.EMPTY:
                return self.empty
            elif term.kind != Kind.ALL:
                members[term] = None
        if not members:
            return self.all
        if len(members) == 1:
            return next(iter(members))
        if self.eps in members:
            texts = [t.empty_text for t in members]
            if False in texts:
                return self.empty
            if None not in texts and not any(t.open for t in members):
                return self.eps
        if any(t.kind == Kind.NOT and t.args[0] in members for t in members):
            return self.empty
        args = tuple(sorted(members, key=lambda t: t.number))
        known = self._made.get((Kind.AND, *args))
        if known is not None:
            return known
        texts = [t.empty_text for t in args]
        return self._term(
            Kind.AND,
            args,
            plain=False,
            least=max(t.least for t in args),
            empty_text=False if False in texts else (None if None in texts else True),
            open=any(t.open for t in args),
        )

    def neg(self, term: Term) -> Term:
        """Every text that is not in `term`."""
        if term.kind == Kind.NOT:
            inner = term.args[0]
            assert isinstance(inner, Term)
            return inner
        if term.kind == Kind.EMPTY:
            return self.all
        if term.kind == Kind.ALL:
            return self.empty
        empty_text = None if term.empty_text is None else not term.empty_text
        return self._term(
            Kind.NOT, (term,), plain=False, least=0, empty_text=empty_text, open=term.open
        )

    def var(self, *, marked: bool) -> Term:
        """A new name for a term that is still to be said: set its `body`."""
        self._vars += 1
        term = self._term(Kind.VAR, (self._vars,), plain=False, least=0, empty_text=None, open=True)
        term.marked = marked
        return term

    def behind(self, number: int) -> Term:
        """All texts or none, by look-behind `number`."""
        return self._term(Kind.BEHIND, (number,), plain=False, least=0, empty_text=None, open=True)

    # -- asking ------------------------------------------------------------------------------

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
                case _:
                    raise AssertionError("a look-behind was left at the front of a term")
            term.empty_text = found
        return term.empty_text

    def moves(self, term: Term) -> Moves:
        """Disjoint sets of classes and the term after each; what is missing leads nowhere."""
        if term.derived is None:
            term.derived = self._derive(term)
        return term.derived

    def _derive(self, term: Term) -> Moves:
        match term.kind:
            case Kind.EMPTY | Kind.EPS | Kind.MARK:
                return ()
            case Kind.ALL:
                return ((self.alphabet.full, term),)
            case Kind.CHARS:
                return ((term.args[0], self.eps),)
            case Kind.CAT:
                return self._derive_chain(term)
            case Kind.REP:
                item, low, high = term.args
                rest = self.rep(item, max(low - 1, 0), high if high == UNBOUNDED else high - 1)
                return tuple((m, self.cat(t, rest)) for m, t in self.moves(item))
            case Kind.ALT:
                return self._union([move for t in term.args for move in self.moves(t)])
            case Kind.AND:
                first, *others = sorted(term.args, key=lambda t: len(self.moves(t)))
                found = list(self.moves(first))
                for other in others:
                    ahead = self.moves(other)
                    found = [
                        (common, self.both((a, b)))
                        for m, a in found
                        for n, b in ahead
                        if (common := m & n)
                    ]
                return self._same_targets(found)
            case Kind.NOT:
                left, found = self.alphabet.full, []
                for mask, t in self.moves(term.args[0]):
                    left &= ~mask
                    found.append((mask, self.neg(t)))
                if left:
                    found.append((left, self.all))
                return self._same_targets(found)
            case Kind.VAR:
                assert term.body is not None, "a name was used before its term was said"
                return self.moves(term.body)
            case _:
                raise AssertionError("a look-behind was left at the front of a term")

    def _derive_chain(self, term: Term) -> Moves:
        # Along the chain in a loop: hundreds of optional parts in a row must not recurse.
        found: list[tuple[int, Term]] = []
        parts = 0
        while True:
            head, tail = term.args if term.kind == Kind.CAT else (term, self.eps)
            parts += 1
            if term.kind == Kind.CAT:
                found.extend((m, self.cat(t, tail)) for m, t in self.moves(head))
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
            [(m, ts[0] if len(ts) == 1 else self.alt(ts)) for m, ts in pieces.items()]
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
                return self.alt(self.front(t, values) for t in term.args)
            case Kind.AND:
                return self.both(self.front(t, values) for t in term.args)
            case Kind.NOT:
                return self.neg(self.front(term.args[0], values))
            case Kind.CAT:
                head, tail = term.args
                if head.empty_text is False:
                    return term
                later = self.front(tail, values)
                if later is tail:
                    return term
                some = self.both((head, self.neg(self.eps)))
                return self.alt((self.cat(some, tail), later))
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
                return self.all
            case Kind.ALT:
                return self.alt(self.at_mark(t) for t in term.args)
            case Kind.AND:
                return self.both(self.at_mark(t) if t.marked else t for t in term.args)
            case Kind.CAT:
                head, tail = term.args
                return self.at_mark(tail) if self.nullable(head) else self.empty
            case Kind.VAR:
                assert term.body is not None, "a name was used before its term was said"
                return self.at_mark(term.body)
            case _:
                return self.empty

    def saturate(self, limit: int) -> Callable[[Term], Term]:
        """A rewriting of plain terms that keeps what the next `limit` characters can be.

        Bounds of counters that lie further than `limit` are moved to infinity, so that counters
        far from their end become the same term. It says nothing about where texts may end.
        """
        done: dict[Term, Term] = {}

        def rewrite(term: Term) -> Term:
            known = done.get(term)
            if known is not None:
                return known
            match term.kind:
                case Kind.CAT:
                    chain: list[Term] = []  # in a loop: texts are long chains
                    rest = term
                    while rest.kind == Kind.CAT and rest not in done:
                        chain.append(rest)
                        rest = rest.args[1]
                    made = rewrite(rest)
                    for part in reversed(chain):
                        made = done[part] = self.cat(rewrite(part.args[0]), made)
                case Kind.ALT:
                    made = self.alt(rewrite(t) for t in term.args)
                case Kind.REP:
                    item, low, high = term.args
                    if high == UNBOUNDED or high > limit:
                        high = UNBOUNDED
                    made = self.rep(rewrite(item), min(low, limit + 1), high)
                case _:
                    made = term
            done[term] = made
            return made

        return rewrite


def _merge_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals of numbers with those joined that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and (merged[-1][1] == UNBOUNDED or low <= merged[-1][1] + 1):
            before, top = merged[-1]
            merged[-1] = (before, UNBOUNDED if UNBOUNDED in (top, high) else max(top, high))
        else:
            merged.append((low, high))
    return merged
