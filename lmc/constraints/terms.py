"""Terms: expressions over the classes of an alphabet.

Equal terms are the same object (hash-consing), and the constructors bring terms into a form in
which the derivatives of a term are few (`derivatives`): that is what makes automata of them.
`nodes` says what there is, `unions` how unions are brought into form.

Owns        its terms, for the life of one automaton.
Costs       a few microseconds a new term.
Source      Brzozowski, Derivatives of Regular Expressions, 1964; Owens, Reppy and Turon,
            Regular-expression derivatives reexamined, 2009, on classes and weak equivalence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from lmc.constraints.alphabet import Alphabet
from lmc.constraints.nodes import LETTERS, UNBOUNDED, Kind, Moves, Rule, Term
from lmc.constraints.unions import flattened, gathered

__all__ = ["UNBOUNDED", "Arena", "Kind", "Moves", "Term"]

_LONGEST_WORD = 16  # characters; a longer one is several, of which all but the first are full


class Arena:
    """Makes the terms of one automaton."""

    def __init__(self, alphabet: Alphabet) -> None:
        self.alphabet = alphabet
        self._made: dict[tuple[object, ...], Term] = {}
        self._unions: dict[frozenset[Term], Term] = {}
        self._vars = 0
        self.empty = self._term(Kind.EMPTY, (), plain=True, least=0, empty_text=False)
        self.eps = self._term(Kind.EPS, (), plain=True, least=0, empty_text=True)
        self.all = self._term(Kind.ALL, (), plain=True, least=0, empty_text=True)
        self.mark = self._term(Kind.MARK, (), plain=False, least=0, empty_text=True, open=True)
        self.mark.marked = True

    def __len__(self) -> int:
        return len(self._made)

    def make_bodies(self, most: int) -> None:
        """Make the bodies of rules now, and not when they are first met inside a mask.

        Args:
            most: terms; when there are so many, the rest is left for later.
        """
        done = 0
        while done < len(self._made) < most:
            new = list(itertools.islice(self._made.values(), done, None))
            done += len(new)
            for term in new:
                if isinstance(term, Rule) and len(self._made) < most:
                    _ = term.body

    def unions(self, arms: int) -> list[Term]:
        """The unions made so far that have at least so many arms."""
        return [t for t in self._made.values() if t.kind == Kind.ALT and len(t.args) >= arms]

    def dissolve(self) -> None:
        """Take its terms apart, which hold each other: so that they go without a collection.

        None of them may be used after.
        """
        made, self._made = self._made, {}
        self._unions = {}
        for term in made.values():
            term.args = ()
            term.derived = None
            if isinstance(term, Rule):
                term.forget()
            else:
                term.body = None

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

    def letters(self, masks: tuple[int, ...]) -> Term:
        """One character of each of some sets of classes, in a row; not more than a word has."""
        if len(masks) == 1:
            return self.chars(masks[0])
        known = self._made.get((Kind.WORD, *masks))
        return known or self._term(
            Kind.WORD,
            masks,
            plain=True,
            least=sum(map(self.alphabet.least_bytes, masks)),
            empty_text=False,
        )

    def word(self, masks: tuple[int, ...], tail: Term) -> Term:
        """One character of each of some sets of classes, then `tail`.

        What is in a row becomes one word, whichever way it is put together: words are filled
        from the end, so that what follows some of its characters is the end of the same word.
        """
        if tail.kind == Kind.EMPTY:
            return tail
        while masks:
            if tail.kind == Kind.EPS:
                break
            head, rest = tail.args if tail.kind == Kind.CAT else (tail, self.eps)
            if head.kind in LETTERS:
                masks, tail = masks + head.args, rest
                break
            if (
                head.kind != Kind.REP
                or (joined := self._joined(self.chars(masks[-1]), head)) is None
            ):
                break
            masks, tail = masks[:-1], self.cat(joined, rest)
        for end in range(len(masks), 0, -_LONGEST_WORD):
            tail = self.link(self.letters(masks[max(0, end - _LONGEST_WORD) : end]), tail)
        return tail

    def cat(self, head: Term, tail: Term) -> Term:
        """`head`, then `tail`."""
        kind = head.kind
        if kind == Kind.EMPTY or tail.kind == Kind.EMPTY:
            return self.empty
        if kind == Kind.EPS:
            return self.alt(tail.args) if tail.kind == Kind.ALT else tail
        if tail.kind == Kind.EPS:
            return head
        if kind == Kind.CAT:
            parts = []  # in a loop: chains may be long
            while head.kind == Kind.CAT:
                parts.append(head.args[0])
                head = head.args[1]
            tail = self.cat(head, tail)
            for part in reversed(parts):
                tail = self.cat(part, tail)
            return tail
        if kind == Kind.ALL and (
            tail.kind == Kind.ALL or (tail.kind == Kind.CAT and tail.args[0].kind == Kind.ALL)
        ):
            return tail
        known = self._made.get((Kind.CAT, head, tail))
        if known is not None:
            return known
        if kind in LETTERS:
            return self.word(head.args, tail)
        if kind == Kind.REP:
            first, rest = tail.args if tail.kind == Kind.CAT else (tail, self.eps)
            if joined := self._joined(head, first):
                return self.cat(joined, rest)
            item = head.args[0]
            if (
                first.kind == Kind.WORD
                and item.kind == Kind.CHARS
                and item.args[0] == first.args[0]
            ):
                joined = self._joined(head, item)
                assert joined is not None, "a counter takes in another item"
                return self.cat(joined, self.link(self.letters(first.args[1:]), rest))
        elif tail.kind == Kind.CAT and (joined := self._joined(head, tail.args[0])):
            return self.cat(joined, tail.args[1])
        elif joined := self._joined(head, tail):
            return joined
        return self.link(head, tail)

    def link(self, head: Term, tail: Term) -> Term:
        """`head`, then `tail`, which have nothing to do with each other."""
        if tail.kind == Kind.EPS:
            return head
        known = self._made.get((Kind.CAT, head, tail))
        if known is not None:
            return known
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
        if (
            (low, high) == (0, UNBOUNDED)
            and item.kind == Kind.CHARS
            and item.args == (self.alphabet.full,)
        ):
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
        members = flattened(terms)
        if len(members) < 2:
            return next(iter(members), self.empty)
        key = frozenset(members)
        known = self._unions.get(key)
        if known is None:
            known = self._unions[key] = self._alt(gathered(self, members))
        return known

    def later(self, terms: Iterable[Term]) -> Term:
        """The same as `alt`, gathered only when it is come to (`cat`).

        What many terms have in common may be long, and mostly only a part of it is walked.
        """
        return self._alt(flattened(terms))

    def _alt(self, members: dict[Term, None]) -> Term:
        """What is in one of some gathered terms."""
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
        for term in members:
            if term.kind == Kind.NOT and term.args[0] in members:
                return self.empty
        if any(t.empty_text is False for t in members):
            # That there is one item at least is said already.
            for term in [t for t in members if t.kind == Kind.REP and t.args[1] == 1]:
                wider = self.rep(term.args[0], 0, term.args[2])
                if any(t is not term and t.empty_text is False for t in members):
                    del members[term]
                    if wider.kind != Kind.ALL:
                        members[wider] = None
        # Of counters of the same items the narrowest says it all.
        counters = [t for t in members if (t.args[1] if t.kind == Kind.CAT else t).kind == Kind.REP]
        if len(counters) > 1:
            for term in [t for t in counters if any(_includes(t, o) for o in counters)]:
                del members[term]
        if len(members) == 1:
            return next(iter(members))
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

    def rule(
        self,
        make: Callable[[], Term],
        *,
        plain: bool,
        least: int,
        empty_text: bool,
        roams: int = 0,
    ) -> Term:
        """A name for what `make` makes when it is first asked for; see `Rule` for `roams`."""
        self._vars += 1
        term = Rule()
        term.kind, term.args, term.number = Kind.VAR, (self._vars,), len(self._made)
        term.plain, term.least, term.empty_text = plain, least, empty_text
        term.open = term.marked = False
        term.derived = None
        term.make, term.roams = make, roams
        self._made[Kind.VAR, self._vars] = term
        return term

    def closed(self, term: Term, trackers: tuple[Term, ...]) -> Term:
        """A term whose look-behinds have the given trackers, which have read what it has read."""
        return self._term(
            Kind.CLOSED,
            (term, *trackers),
            plain=False,
            least=term.least,
            empty_text=term.empty_text,
        )

    def behind(self, number: int) -> Term:
        """All texts or none, by look-behind `number`."""
        return self._term(Kind.BEHIND, (number,), plain=False, least=0, empty_text=None, open=True)


def _includes(wide: Term, narrow: Term) -> bool:
    """Whether both are counters of the same items, the one with the bounds of the other inside."""
    if wide.kind != narrow.kind or wide is narrow:
        return False
    if wide.kind == Kind.CAT:
        if wide.args[0] is not narrow.args[0]:
            return False
        wide, narrow = wide.args[1], narrow.args[1]
    if wide.kind != Kind.REP or narrow.kind != Kind.REP or wide.args[0] is not narrow.args[0]:
        return False
    _, low, high = wide.args
    _, low2, high2 = narrow.args
    return bool(low <= low2 and (high == UNBOUNDED or 0 <= high2 <= high))
