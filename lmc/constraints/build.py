"""Expressions to terms: where look-around and atomic groups go.

Every construct is translated together with what follows it, `k`. Then a look-ahead is just a
conjunction, `(?=x)k` is `x.* & k`, and a look-behind asks a *tracker*: the term `.*x`, derived by
all that was read, which says at each place whether `x` ends there. A loop whose body looks around
is a named term, `X = body X | k`. Expressions without look-around become ordinary terms.

An atomic group takes what a backtracking matcher would take first. That is a matter of look-ahead
too: the second arm of `(?>a|b)` is open only where the first one fails.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial

from lmc.constraints.alphabet import Alphabet
from lmc.constraints.budget import BudgetError
from lmc.constraints.charset import CharSet
from lmc.constraints.derivatives import Derivatives
from lmc.constraints.expression import (
    Alt,
    Atomic,
    Both,
    Chars,
    Except,
    Expression,
    Look,
    Not,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Words,
    children,
    walk,
)
from lmc.constraints.inclusion import Inclusion
from lmc.constraints.rules import facts_of
from lmc.constraints.terms import UNBOUNDED, Arena, Kind, Term

__all__ = ["Builder"]

_MOST_COPIES = 10_000  # of bodies that look around, which cannot be counted by a number


@dataclass(slots=True)
class Builder:
    """Makes the term of one expression that stands by itself.

    Parts that close over their items (`Both`, `Not`) get a builder of their own: a look-behind
    inside looks back to their beginning and no further.
    """

    derivatives: Derivatives
    names: tuple[Term, ...] = ()  # what a `Ref` stands for
    _trackers: list[Term] = field(default_factory=list)
    _simple: dict[int, bool] = field(default_factory=dict)
    _terms: dict[int, Term] = field(default_factory=dict)
    _behinds: dict[Expression, int] = field(default_factory=dict)
    _kept: list[Expression] = field(default_factory=list)
    _atomic: dict[tuple[tuple[_Step, ...], Term], Term] = field(default_factory=dict)
    _copies: int = 0

    @staticmethod
    def alphabet(expression: Expression) -> Alphabet:
        """The classes that `expression` can tell apart."""
        sets: dict[CharSet, None] = {}
        letters: set[str] = set()
        for node in walk(expression):
            if isinstance(node, Chars):
                sets[node.chars] = None
            elif isinstance(node, Text):
                letters.update(node.text)
            elif isinstance(node, Words | Except):
                letters.update(*node.texts)
        return Alphabet([*sets, *(CharSet.chars(c) for c in sorted(letters))])

    def build(self, expression: Expression) -> Term:
        """The texts of `expression`.

        Raises:
            BudgetError: it cannot be built in reasonable size.
        """
        term = self._with(expression, self.arena.eps)
        return self.derivatives.closed(term, tuple(self._trackers))

    @property
    def arena(self) -> Arena:
        """Where the terms are made."""
        return self.derivatives.arena

    def _closed(self, expression: Expression) -> Term:
        return Builder(self.derivatives, self.names).build(expression)

    # -- without look-around -----------------------------------------------------------------

    def _is_simple(self, node: Expression) -> bool:
        known = self._simple.get(id(node))
        if known is None:
            if isinstance(node, Look | Atomic):
                known = False
            elif isinstance(node, Both | Not | Rules):
                known = True  # these close over their items: nothing follows inside
            else:
                known = all(self._is_simple(child) for child in children(node))
            self._simple[id(node)] = known
            self._kept.append(node)  # while it lives its id is not given to another
        return known

    def _term(self, node: Expression) -> Term:
        """A simple expression by itself."""
        known = self._terms.get(id(node))
        if known is not None:
            return known
        arena = self.arena
        match node:
            case Chars(chars):
                made = arena.chars(arena.alphabet.mask(chars))
            case Text(text):
                made = self._text(text, arena.eps)
            case Seq(items):
                made = arena.eps
                for item in reversed(items):
                    made = self._with(item, made)
            case Alt(items):
                made = arena.alt([self._term(item) for item in items])
            case Repeat(item, low, high):
                made = arena.rep(self._term(item), low, UNBOUNDED if high is None else high)
            case Both(items):
                made = arena.both(self._needed([self._closed(item) for item in items]))
            case Not(item):
                made = arena.neg(self._closed(item))
            case Ref(index):
                made = self.names[index]
            case Rules(items):
                made = self._rules(items)
            case Words(texts):
                made = self._words(texts)
            case Except():
                made = self._except(node)
            case _:
                raise AssertionError("an expression that looks around has no term by itself")
        self._terms[id(node)] = made
        self._kept.append(node)
        return made

    def _needed(self, terms: list[Term]) -> list[Term]:
        """Terms without those that say only what others of them say too, as far as is seen soon."""
        inclusion = Inclusion(self.derivatives)
        kept = list(terms)
        for wide in terms:
            if wide.kind == Kind.REP and wide.args[1:] == (0, UNBOUNDED):
                others = [t for t in kept if t is not wide and t.plain]
                if any(inclusion.is_inside(t, wide) for t in others):
                    kept = [t for t in kept if t is not wide]
        return kept

    def _rules(self, items: tuple[Expression, ...]) -> Term:
        arena = self.arena
        names: list[Term] = []
        inner = Builder(self.derivatives)
        facts = facts_of(
            items,
            lambda c: arena.alphabet.least_bytes(arena.alphabet.mask(c)),
            lambda part: self.derivatives.nullable(inner.build(part)),
        )
        for item, fact in zip(items, facts, strict=True):
            if fact.least is None:
                names.append(arena.empty)
            else:
                names.append(
                    arena.rule(
                        partial(inner.build, item),
                        plain=fact.plain,
                        least=fact.least,
                        empty_text=fact.empty_text,
                    )
                )
        inner.names = tuple(names)
        return inner.build(items[0]) if facts[0].least is not None else arena.empty

    def _except(self, node: Except) -> Term:
        """The tree of the texts, a rule a place: what leaves it is free."""
        arena, alphabet = self.arena, self.arena.alphabet
        texts = sorted(set(node.texts))
        chars = alphabet.mask(node.chars.chars)
        others = self._term(node.others)
        free = arena.rep(arena.alt((arena.chars(chars), others)), 0, UNBOUNDED)

        def below(low: int, high: int, depth: int) -> Term:
            ends = low < high and len(texts[low]) == depth
            start = low + ends

            def make() -> Term:
                arms = [] if ends else [arena.eps]
                left, at = chars, start
                while at < high:
                    char, end = texts[at][depth], at
                    while end < high and texts[end][depth] == char:
                        end += 1
                    mask = 1 << alphabet.class_of(ord(char))
                    left &= ~mask
                    arms.append(arena.cat(arena.chars(mask), below(at, end, depth + 1)))
                    at = end
                arms.append(arena.cat(arena.alt((arena.chars(left), others)), free))
                return arena.alt(arms)

            if low == high:
                return free
            least = alphabet.least_bytes(chars) if ends else 0
            # Whatever is read, what leaves the tree is free, and what stays in it can still leave.
            return arena.rule(make, plain=True, least=least, empty_text=not ends, roams=chars)

        return below(0, len(texts), 0)

    def _words(self, texts: tuple[str, ...]) -> Term:
        """The tree of the texts, a rule a place where several go on."""
        arena, alphabet = self.arena, self.arena.alphabet
        lengths = [len(t.encode()) for t in texts]

        def below(low: int, high: int, depth: int) -> Term:
            rest = texts[low][depth:]
            if high - low == 1 and len(rest) < 2:
                return self._text(rest, arena.eps)
            begun = len(texts[low][:depth].encode())
            alone = partial(self._text, rest, arena.eps)
            return arena.rule(
                alone if high - low == 1 else partial(level, low, high, depth),
                plain=True,
                least=min(lengths[low:high]) - begun,
                empty_text=len(texts[low]) == depth,
            )

        def level(low: int, high: int, depth: int) -> Term:
            arms = []
            if len(texts[low]) == depth:
                arms.append(arena.eps)
                low += 1
            while low < high:
                char = texts[low][depth]
                end = bisect_right(texts, char, low, high, key=lambda t: t[depth])
                mask = 1 << alphabet.class_of(ord(char))
                arms.append(arena.cat(arena.chars(mask), below(low, end, depth + 1)))
                low = end
            return arena.alt(arms)

        return below(0, len(texts), 0)

    def _text(self, text: str, after: Term) -> Term:
        class_of = self.arena.alphabet.class_of
        return self.arena.word(tuple(1 << class_of(ord(char)) for char in text), after)

    # -- with what follows -------------------------------------------------------------------

    def _with(self, node: Expression, after: Term) -> Term:
        """`node`, then `after`."""
        arena = self.arena
        if isinstance(node, Text):
            return self._text(node.text, after)
        if self._is_simple(node):
            return arena.cat(self._term(node), after)
        match node:
            case Seq(items):
                for item in reversed(items):
                    after = self._with(item, after)
                return after
            case Alt(items):
                return arena.alt([self._with(item, after) for item in items])
            case Repeat():
                return self._repeat(node, after)
            case Look():
                return arena.both((self._condition(node), after))
            case Atomic(item):
                return self._first((item,), after)
            case _:
                raise AssertionError(f"{type(node).__name__} was taken for one that looks around")

    def _repeat(self, node: Repeat, after: Term) -> Term:
        arena = self.arena
        if node.high is None:
            name = arena.var(marked=after.marked)
            again = self._with(node.item, name)
            # A round that reads nothing adds nothing: the name may not stand at its own front.
            name.body = arena.alt((self.derivatives.front(again, {name: arena.empty}), after))
            after = name
        else:
            end = after
            for _ in range(node.high - node.low):
                self._count_copy()
                after = arena.alt((self._with(node.item, after), end))
        for _ in range(node.low):
            self._count_copy()
            after = self._with(node.item, after)
        return after

    def _count_copy(self) -> None:
        self._copies += 1
        if self._copies > _MOST_COPIES:
            raise BudgetError(
                f"repeats of what looks around are copied out, here more than {_MOST_COPIES} times",
                hint="lower the counts, or move the look-around out of the repeated group",
            )

    def _condition(self, look: Look) -> Term:
        arena = self.arena
        if look.behind:
            found = arena.behind(self._tracker(look.item))
        else:
            found = self._with(look.item, arena.all)
        return arena.neg(found) if look.negative else found

    def _tracker(self, item: Expression) -> int:
        number = self._behinds.get(item)
        if number is None:
            read = self._with(item, self.arena.mark)
            self._trackers.append(self.arena.cat(self.arena.all, read))
            number = self._behinds[item] = len(self._trackers) - 1
        return number

    # -- atomic groups -----------------------------------------------------------------------

    def _matches(self, steps: tuple[_Step, ...]) -> Term:
        """All texts that begin with a match of `steps`."""
        nodes: list[Expression] = []
        ahead = list(steps)
        while ahead:
            step = ahead.pop(0)
            if isinstance(step, _Turn):
                ahead = list(step.then)  # nothing stands behind the end of a round
            else:
                nodes.append(step)
        return self._with(Seq(tuple(nodes)), self.arena.all)

    def _first(self, steps: tuple[_Step, ...], after: Term) -> Term:
        """The match of `steps` that backtracking finds first, then `after`."""
        if not steps:
            return after
        key = (steps, after)
        known = self._atomic.get(key)
        if known is not None:
            return known
        self._count_copy()
        node, rest = steps[0], steps[1:]
        arena = self.arena
        match node:
            case _Turn():
                made = node.name
            case Text(text):
                made = self._text(text, self._first(rest, after))
            case Chars():
                made = arena.cat(self._term(node), self._first(rest, after))
            case Seq(items):
                made = self._first((*items, *rest), after)
            case Alt(items):
                made, tried = arena.empty, arena.empty
                for item in items:
                    arm = self._first((item, *rest), after)
                    made = arena.alt((made, arena.both((arm, arena.neg(tried)))))
                    tried = arena.alt((tried, self._matches((item, *rest))))
            case Repeat():
                made = self._first_repeat(node, rest, after)
            case Look():
                made = arena.both((self._condition(node), self._first(rest, after)))
            case Atomic(item):
                made = self._first((item,), self._first(rest, after))
            case _:
                made = self._with(node, self._first(rest, after))
        self._atomic[key] = made
        return made

    def _first_repeat(self, node: Repeat, rest: tuple[_Step, ...], after: Term) -> Term:
        arena = self.arena
        if node.high == 0:
            return self._first(rest, after)
        if not rest and isinstance(node.item, Chars) and not node.lazy:
            return self._first_chars(node, after)
        fewer = None if node.high is None else node.high - 1
        again = Repeat(node.item, max(node.low - 1, 0), fewer, node.lazy)
        go_on = (node.item, again, *rest)
        if node.low:
            return self._first(go_on, after)
        left = self._first(rest, after)
        if node.high is not None:
            return self._prefer(node.lazy, self._first(go_on, after), left, go_on, rest)
        # A round that reads nothing ends the loop, as it does in a backtracking matcher: the name
        # of the next round, where it stands at the front, means leaving.
        loop = arena.var(marked=after.marked)
        self._atomic[((node, *rest), after)] = loop
        turn = _Turn(arena.var(marked=after.marked), (node, *rest))
        turn.name.body = loop
        taken = self.derivatives.front(self._first((node.item, turn), after), {turn.name: left})
        loop.body = self._prefer(node.lazy, taken, left, go_on, rest)
        return loop

    def _prefer(
        self,
        lazy: bool,
        taken: Term,
        left: Term,
        go_on: tuple[_Step, ...],
        leave: tuple[_Step, ...],
    ) -> Term:
        """One more round or none: the second choice only where the first one fails."""
        arena = self.arena
        if lazy:
            return arena.alt((left, arena.both((taken, arena.neg(self._matches(leave))))))
        return arena.alt((taken, arena.both((left, arena.neg(self._matches(go_on))))))

    def _first_chars(self, node: Repeat, after: Term) -> Term:
        """`[..]{m,n}` taken greedily: it stops at `n`, or where no such character follows."""
        arena = self.arena
        char = self._term(node.item)
        stop = arena.both((arena.neg(arena.cat(char, arena.all)), after))
        if node.high is None:
            return arena.cat(arena.rep(char, node.low, UNBOUNDED), stop)
        full = arena.cat(arena.rep(char, node.high, node.high), after)
        if node.low == node.high:
            return full
        early = arena.cat(arena.rep(char, node.low, node.high - 1), stop)
        return arena.alt((early, full))


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """The end of a loop's round inside an atomic group."""

    name: Term
    then: tuple[_Step, ...]  # what is matched if the loop goes on


_Step = Expression | _Turn
