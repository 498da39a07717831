"""Sets of texts: boxes of patterns, lengths and lists, as decoded from JSON.

A box is what several string keywords allow together. Like boxes of numbers they are closed under
intersection, and the complement of a box is a few boxes that share no text.

Patterns are searched for anywhere, in the sense of ECMAScript; they become expressions that match a
whole text (`searched`), without look-around where their anchors stand at their ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from lmc.constraints.automaton import Automaton
from lmc.constraints.charset import ANY
from lmc.constraints.expression import (
    ALL,
    END,
    EPSILON,
    START,
    Alt,
    Both,
    Chars,
    Expression,
    Look,
    Not,
    Repeat,
    Seq,
    Text,
    walk,
)

__all__ = ["ANY_TEXT", "Atom", "TextBox", "disjoint", "pattern_atom", "searched"]


@dataclass(frozen=True, slots=True)
class Atom:
    """A named set of texts: a pattern or a format.

    Attributes:
        name: tells atoms apart; equal names mean equal sets.
        expression: the whole text.
    """

    name: str
    expression: Expression

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def holds(self, text: str) -> bool:
        """Whether a text is in the set."""
        return _automaton(self).matches(text)


@lru_cache(maxsize=256)
def _automaton(atom: Atom) -> Automaton:
    return Automaton(atom.expression)


@dataclass(frozen=True, slots=True)
class TextBox:
    """Texts that fulfil everything that is said here.

    Attributes:
        only: nothing but these, if given; then nothing else is said.
        without: none of these.
        inside, outside: sets that hold the text, or do not.
        low, high: how many characters it has.
    """

    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()
    inside: frozenset[Atom] = frozenset()
    outside: frozenset[Atom] = frozenset()
    low: int = 0
    high: int | None = None

    @staticmethod
    def just(texts: Iterable[str]) -> TextBox:
        """Nothing but these texts."""
        return TextBox(only=frozenset(texts))

    def __and__(self, other: TextBox) -> TextBox:
        if other.only is not None:
            return TextBox.just(t for t in other.only if self.holds(t))
        if self.only is not None:
            return TextBox.just(t for t in self.only if other.holds(t))
        highs = [h for h in (self.high, other.high) if h is not None]
        return TextBox(
            None,
            self.without | other.without,
            self.inside | other.inside,
            self.outside | other.outside,
            max(self.low, other.low),
            min(highs, default=None),
        )

    def complement(self) -> list[TextBox]:
        """Boxes without common texts that together hold all other texts."""
        if self.only is not None:
            return [TextBox(without=self.only)]
        found = []
        so_far = TextBox()

        def add(other: TextBox, this: TextBox) -> None:
            nonlocal so_far
            found.append(so_far & other)
            so_far = so_far & this

        if self.without:
            add(TextBox.just(self.without), TextBox(without=self.without))
        if self.low:
            add(TextBox(high=self.low - 1), TextBox(low=self.low))
        if self.high is not None:
            add(TextBox(low=self.high + 1), TextBox(high=self.high))
        for atom in sorted(self.inside, key=lambda a: a.name):
            add(TextBox(outside=frozenset({atom})), TextBox(inside=frozenset({atom})))
        for atom in sorted(self.outside, key=lambda a: a.name):
            add(TextBox(inside=frozenset({atom})), TextBox(outside=frozenset({atom})))
        return [box for box in found if not box.is_empty()]

    def excluding(self, texts: frozenset[str]) -> TextBox:
        """Without some texts."""
        return self & TextBox(without=texts) if texts else self

    def holds(self, text: str) -> bool:
        """Whether a text is in the box."""
        if self.only is not None:
            return text in self.only
        return (
            text not in self.without
            and self.low <= len(text)
            and (self.high is None or len(text) <= self.high)
            and all(a.holds(text) for a in self.inside)
            and not any(a.holds(text) for a in self.outside)
        )

    def is_empty(self) -> bool:
        """Whether no text is in the box.

        Raises:
            BudgetError: that cannot be found out in reasonable time.
        """
        if self.only is not None:
            return not self.only
        if self.high is not None and self.low > self.high:
            return True
        if self.inside & self.outside:
            return True
        if not self.inside and not self.outside:
            return self.high == 0 and "" in self.without
        return _is_empty(self)

    @property
    def is_all(self) -> bool:
        """Whether nothing is asked."""
        return self == ANY_TEXT

    def expression(self) -> Expression:
        """The texts of a box that is no list, decoded, without those in `without` taken out."""
        parts = [a.expression for a in sorted(self.inside, key=lambda a: a.name)]
        parts += [Not(a.expression) for a in sorted(self.outside, key=lambda a: a.name)]
        if self.low or self.high is not None:
            if len(parts) == 1 and (joined := _with_length(parts[0], self.low, self.high)):
                return joined
            parts.append(Repeat(Chars(ANY), self.low, self.high))
        if not parts:
            return ALL
        return parts[0] if len(parts) == 1 else Both(tuple(parts))


ANY_TEXT = TextBox()


@lru_cache(maxsize=1024)
def _is_empty(box: TextBox) -> bool:
    found = box.expression()
    if box.without:
        found = Both((found, Not(Alt(tuple(Text(t) for t in sorted(box.without))))))
    return Automaton(found).is_empty()


def disjoint(boxes: Iterable[TextBox]) -> list[TextBox]:
    """Boxes without common texts that together hold what the given ones hold."""
    found: list[TextBox] = []
    for box in boxes:
        left = [box]
        for other in found:
            left = [part & rest for part in left for rest in other.complement()]
            left = [part for part in left if not part.is_empty()]
        found += left
    return found


def _with_length(expression: Expression, low: int, high: int | None) -> Expression | None:
    """An expression with bounds on its length, if they are but the bounds of its only repeat."""
    match expression:
        case Repeat(Chars() as item, least, most, _):
            highs = [h for h in (most, high) if h is not None]
            top = min(highs, default=None)
            bottom = max(least, low)
            return None if top is not None and bottom > top else Repeat(item, bottom, top)
        case _:
            return None


def pattern_atom(pattern: str) -> Atom:
    """The texts in which an ECMAScript pattern is found.

    Raises:
        ConstraintError: the pattern is malformed or not regular.
    """
    return _pattern_atom(pattern)


@lru_cache(maxsize=512)
def _pattern_atom(pattern: str) -> Atom:
    from lmc.constraints.regex import parse

    return Atom(f"pattern {pattern}", searched(parse(pattern, ecma=True)))


def searched(expression: Expression) -> Expression:
    """The texts in which an expression is found."""
    if isinstance(expression, Alt):
        return Alt(tuple(searched(item) for item in expression.items))
    items = list(_flat(expression))
    begin: Expression = ALL
    end: Expression = ALL
    while items and items[0] == START:
        items.pop(0)
        begin = EPSILON
    while items and items[-1] == END:
        items.pop()
        end = EPSILON
    inside = Seq(tuple(items)) if len(items) != 1 else items[0]
    found = Seq(tuple(p for p in (begin, inside, end) if p is not EPSILON))
    if any(isinstance(node, Look) for node in walk(found)):
        return Both((found,))  # what looks around sees the text and not what stands around it
    if begin is EPSILON and end is EPSILON:
        return inside
    return ALL if inside in (ALL, EPSILON) else found


def _flat(expression: Expression) -> Iterable[Expression]:
    """The items of a sequence, and of sequences in it."""
    if isinstance(expression, Seq):
        for item in expression.items:
            yield from _flat(item)
    else:
        yield expression
