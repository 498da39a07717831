"""What is known of rules before they are taken apart: are they empty, where do they begin.

Rules are expressions that name each other (`expression.Rules`). Derivatives of a rule are found by
looking at what it begins with, so that no rule may begin with itself; how a set of rules is brought
into that form is for those who write them (`ebnf`).

Costs       each part of a rule is looked at once; then only what names other rules is, a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmc.constraints.charset import CharSet
from lmc.constraints.expression import (
    Alt,
    Chars,
    Except,
    Expression,
    Ref,
    Repeat,
    Seq,
    Text,
    Words,
    walk,
)
from lmc.errors import ConstraintError

__all__ = ["Fact", "facts_of"]


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of one rule.

    Attributes:
        empty_text: whether it holds the empty text.
        least: the length in bytes of its shortest text, or a lower bound if it is not `plain`; None
            if it has no text at all.
        plain: it is made without conjunction and complement, all the way down.
    """

    empty_text: bool
    least: int | None
    plain: bool


class _Part:
    """A part of a rule, reduced to what matters here.

    Attributes:
        kind: "fixed" (nothing in it names a rule), "ref", "seq", "alt" or "repeat".
        least, empty_text, plain: see `Fact`; of a part that is fixed.
        parts: what a sequence or an alternative is made of.
        index: of the rule that is named; or how often at least, for a repeat.
    """

    __slots__ = ("empty_text", "index", "kind", "least", "parts", "plain")

    def __init__(
        self,
        kind: str,
        parts: tuple[_Part, ...] = (),
        index: int = 0,
        least: int | None = None,
        empty_text: bool = False,
        plain: bool = True,
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.index = index
        self.least = least
        self.empty_text = empty_text
        self.plain = plain


def facts_of(
    items: Sequence[Expression],
    least_bytes: Callable[[CharSet], int],
    holds_empty: Callable[[Expression], bool],
) -> list[Fact]:
    """The facts of each rule.

    Args:
        items: the rules; `Ref(n)` is `items[n]`.
        least_bytes: the length of the shortest character of a set, which is not empty.
        holds_empty: whether a part with conjunctions, complements or look-around, which stands by
            itself, holds the empty text.

    Raises:
        ConstraintError: a rule begins with itself, or stands inside of a conjunction or complement.
    """
    reduce = _Reducing(least_bytes, holds_empty)
    parts = [reduce.part(item) for item in items]
    facts: list[Fact] = [Fact(False, None, True)] * len(items)
    # What is named later is mostly made later: backwards, most facts are known when asked for.
    changed = True
    while changed:
        changed = False
        seen: dict[_Part, Fact] = {}
        for n in range(len(parts) - 1, -1, -1):
            found = _fact(parts[n], facts, seen)
            if found != facts[n]:
                facts[n], changed = found, True
                seen = {}
    _check_fronts(parts, facts)
    return facts


class _Reducing:
    """Reduces expressions to parts; equal objects are looked at once."""

    def __init__(
        self, least_bytes: Callable[[CharSet], int], holds_empty: Callable[[Expression], bool]
    ) -> None:
        self._least_bytes = least_bytes
        self._holds_empty = holds_empty
        self._done: dict[int, _Part] = {}

    def part(self, node: Expression) -> _Part:
        found = self._done.get(id(node))
        if found is None:
            found = self._done[id(node)] = self._part(node)
        return found

    def _part(self, node: Expression) -> _Part:
        match node:
            case Chars(chars):
                return _Part("fixed", least=self._least_bytes(chars) if chars else None)
            case Text(text):
                return _Part("fixed", least=len(text.encode()), empty_text=not text)
            case Ref(index):
                return _Part("ref", index=index)
            case Seq(items):
                return self._joined("seq", [self.part(i) for i in items])
            case Alt(items):
                return self._joined("alt", [self.part(i) for i in items])
            case Repeat(item, low, _):
                return self._joined("repeat", [self.part(item)], low)
            case Words(texts):
                least = min(len(t.encode()) for t in texts)
                return _Part("fixed", least=least, empty_text=not texts[0])
            case Except(chars, _, texts):
                empty = "" not in texts
                least = 0 if empty else self._least_bytes(chars.chars)
                return _Part("fixed", least=least, empty_text=empty)
            case _:
                if any(isinstance(inner, Ref) for inner in walk(node)):
                    raise ConstraintError("a rule stands inside of a conjunction or complement")
                return _Part("fixed", least=0, empty_text=self._holds_empty(node), plain=False)

    @staticmethod
    def _joined(kind: str, parts: list[_Part], index: int = 0) -> _Part:
        made = _Part(kind, tuple(parts), index)
        if any(part.kind != "fixed" for part in parts):
            return made
        fact = _fact(made, (), {})
        return _Part("fixed", (), 0, fact.least, fact.empty_text, fact.plain)


def _fact(part: _Part, facts: Sequence[Fact], seen: dict[_Part, Fact]) -> Fact:
    """The fact of a part, given those of the rules so far."""
    if part.kind == "fixed":
        return Fact(part.empty_text, part.least, part.plain)
    if part.kind == "ref":
        return facts[part.index]
    found = seen.get(part)
    if found is not None:
        return found
    each = [_fact(p, facts, seen) for p in part.parts]
    plain = all(f.plain for f in each)
    lengths = [f.least for f in each if f.least is not None]
    if part.kind == "seq":
        least = sum(lengths) if len(lengths) == len(each) else None
        found = Fact(all(f.empty_text for f in each), least, plain)
    elif part.kind == "alt":
        found = Fact(any(f.empty_text for f in each), min(lengths, default=None), plain)
    else:
        one = each[0].least
        least = 0 if part.index == 0 else (None if one is None else one * part.index)
        found = Fact(part.index == 0 or each[0].empty_text, least, plain)
    seen[part] = found
    return found


def _fronts(
    part: _Part, facts: Sequence[Fact], seen: dict[_Part, frozenset[int]]
) -> frozenset[int]:
    """The rules with which a text of a part may begin."""
    if part.kind == "fixed":
        return frozenset()
    if part.kind == "ref":
        return frozenset({part.index})
    found = seen.get(part)
    if found is None:
        fronts: set[int] = set()
        for inner in part.parts:
            fronts |= _fronts(inner, facts, seen)
            if part.kind == "seq" and not _fact(inner, facts, {}).empty_text:
                break
        found = seen[part] = frozenset(fronts)
    return found


def _check_fronts(parts: Sequence[_Part], facts: Sequence[Fact]) -> None:
    seen: dict[_Part, frozenset[int]] = {}
    fronts = [_fronts(part, facts, seen) for part in parts]
    state = [0] * len(parts)  # 1 while what it begins with is looked at, 2 when that is done
    for root in range(len(parts)):
        stack = [root]
        while stack:
            rule = stack[-1]
            if state[rule] == 0:
                state[rule] = 1
                for other in fronts[rule]:
                    if state[other] == 1:
                        raise ConstraintError(f"rule {other} begins with itself")
                    if state[other] == 0:
                        stack.append(other)
            else:
                stack.pop()
                state[rule] = 2
