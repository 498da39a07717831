"""The language of constraints: a small algebra of texts.

An expression stands for a set of texts. Front ends (regexes, choices, schemas) make expressions,
automata are made from them, and a plan keeps them as JSON (`stored`). Nothing here runs anything.

    Chars(set)                one character of a set
    Text(text)                just this text
    Seq(items) Alt(items)     one after the other; one or the other
    Repeat(item, low, high)   so often; `high` None is without bound
    Both(items)               texts that are in all
    Not(item)                 all texts that are not in `item`
    Look(item, ...)           nothing, where `item` follows (or does not, or lies behind)
    Atomic(item)              what a backtracking matcher takes first, and no second try
    Rules(items) Ref(index)   the first item; in the items, `Ref(n)` stands for item n, which may
                              contain itself: values in values, brackets in brackets
    Words(texts)              one of many texts
    Except(chars, .., texts)  any text but these, in characters that are written in some way
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lmc.constraints.charset import ANY, CharSet

__all__ = [
    "ALL",
    "END",
    "EPSILON",
    "NEVER",
    "START",
    "Alt",
    "Atomic",
    "Both",
    "Chars",
    "Except",
    "Expression",
    "Look",
    "Not",
    "Ref",
    "Repeat",
    "Rules",
    "Seq",
    "Text",
    "Words",
    "children",
    "one_of",
    "walk",
    "words",
]


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Seq:
    """The items one after the other; nothing at all if there are none."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the items; no text at all if there are none. Order matters inside `Atomic` only."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`item` at least `low` and at most `high` times; `lazy` matters inside `Atomic` only."""

    item: Expression
    low: int
    high: int | None
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class Both:
    """The texts that are in every item; all texts if there are none."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """All texts that are not in `item`."""

    item: Expression


@dataclass(frozen=True, slots=True)
class Look:
    """The empty text, at places where `item` matches what comes next, or what lies before."""

    item: Expression
    behind: bool = False
    negative: bool = False


@dataclass(frozen=True, slots=True)
class Atomic:
    """`item`, taken as a backtracking matcher takes it first, whatever follows."""

    item: Expression


@dataclass(frozen=True, slots=True)
class Ref:
    """The item of that number in the `Rules` around it."""

    index: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The first item. No item may begin with itself, nor look at what stands around it.

    Conjunctions and complements of rules can be walked, but whether anything is left of them may
    take too long to find out: no method answers that for all of them.
    """

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Except:
    """Characters of `chars`, or `others`, one after the other, but none of `texts` as a whole.

    The texts are made of `chars` only, and `others` begin with nothing in `chars`.
    """

    chars: Chars
    others: Expression
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """One of `texts`, which are sorted, each of them once, and many: it is taken apart when met."""

    texts: tuple[str, ...]


Expression = (
    Chars | Text | Seq | Alt | Repeat | Both | Not | Look | Atomic | Ref | Rules | Words | Except
)

_MANY = 200  # words; a tree of fewer is made in a millisecond

EPSILON = Seq(())
NEVER = Alt(())
ALL = Repeat(Chars(ANY), 0, None)
START = Look(Chars(ANY), behind=True, negative=True)
END = Look(Chars(ANY), negative=True)


def one_of(texts: Iterable[str]) -> Expression:
    """Any of `texts`, with common beginnings shared so that many of them cost little."""
    # One level of the tree is (texts from a stack slice that share `depth` characters).
    ordered = sorted(set(texts))

    def build(low: int, high: int, depth: int) -> Expression:
        arms: list[Expression] = []
        while low < high and len(ordered[low]) == depth:
            arms.append(EPSILON)
            low += 1
        while low < high:
            end = low
            while end < high and ordered[end][depth] == ordered[low][depth]:
                end += 1
            first, last = ordered[low], ordered[end - 1]
            shared = depth
            while shared < min(len(first), len(last)) and first[shared] == last[shared]:
                shared += 1
            head = Text(first[depth:shared])
            rest = EPSILON if end == low + 1 else build(low, end, shared)
            arms.append(head if rest == EPSILON else Seq((head, rest)))
            low = end
        return arms[0] if len(arms) == 1 else Alt(tuple(arms))

    return build(0, len(ordered), 0)


def words(texts: Iterable[str]) -> Expression:
    """Any of `texts`, however many they are."""
    ordered = tuple(sorted(set(texts)))
    return Words(ordered) if len(ordered) >= _MANY else one_of(ordered)


def children(expression: Expression) -> tuple[Expression, ...]:
    """The expressions directly inside."""
    match expression:
        case Chars() | Text() | Ref() | Words():
            return ()
        case Seq(items) | Alt(items) | Both(items) | Rules(items):
            return items
        case Repeat() | Not() | Look() | Atomic():
            return (expression.item,)
        case Except(chars, others, _):
            return (chars, others)


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and all inside it, each object once."""
    seen: set[int] = set()
    stack = [expression]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(children(node))
