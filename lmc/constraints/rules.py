"""What is known of rules before they are taken apart: are they empty, do they begin with themselves.

Rules are expressions that name each other (`expression.Rules`). Derivatives of a rule are found by
looking at what it begins with, so that no rule may begin with itself; how a set of rules is brought
into that form is for those who write them (`ebnf`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lmc.constraints.charset import CharSet
from lmc.constraints.expression import (
    Alt,
    Atomic,
    Both,
    Chars,
    Expression,
    Look,
    Not,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
)
from lmc.errors import ConstraintError

__all__ = ["Fact", "facts_of", "first_refs", "nullable_rules"]


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


def facts_of(items: Sequence[Expression], least_bytes: Callable[[CharSet], int]) -> list[Fact]:
    """The facts of each rule.

    Args:
        items: the rules; `Ref(n)` is `items[n]`.
        least_bytes: the length of the shortest character of a set, which is not empty.

    Raises:
        ConstraintError: a rule begins with itself.
    """
    nullable = nullable_rules(items)
    _check_fronts(items, nullable)
    least: list[int | None] = [None] * len(items)
    parts = [_Least(item, least_bytes) for item in items]
    changed = True
    while changed:
        changed = False
        for n, part in enumerate(parts):
            found = part.of(items[n], least)
            if found is not None and (least[n] is None or found < least[n]):  # type: ignore[operator]
                least[n], changed = found, True
    plain = [_is_plain(item) for item in items]
    users = [set(_refs(item)) for item in items]
    changed = True
    while changed:
        changed = False
        for n, used in enumerate(users):
            if plain[n] and not all(plain[i] for i in used):
                plain[n], changed = False, True
    return [Fact(e, l, p) for e, l, p in zip(nullable, least, plain, strict=True)]


class _Least:
    """Lengths of the shortest texts of one rule's parts; parts without names are looked at once."""

    def __init__(self, item: Expression, least_bytes: Callable[[CharSet], int]) -> None:
        self._bytes = least_bytes
        self._fixed: dict[int, int | None] = {}
        self._named: dict[int, bool] = {}
        self._has_refs(item)

    def _has_refs(self, node: Expression) -> bool:
        known = self._named.get(id(node))
        if known is None:
            match node:
                case Ref():
                    known = True
                case Seq(items) | Alt(items) | Both(items):
                    known = any([self._has_refs(i) for i in items])
                case Repeat(item):
                    known = self._has_refs(item)
                case _:
                    known = False
            self._named[id(node)] = known
        return known

    def of(self, node: Expression, least: Sequence[int | None]) -> int | None:
        """The shortest text of a part, given those of the rules so far."""
        if not self._named.get(id(node), False) and id(node) in self._fixed:
            return self._fixed[id(node)]
        found: int | None
        match node:
            case Ref(index):
                found = least[index]
            case Chars(chars):
                found = self._bytes(chars) if chars else None
            case Text(text):
                found = len(text.encode())
            case Seq(items):
                found = 0
                for item in items:
                    step = self.of(item, least)
                    if step is None:
                        found = None
                        break
                    found += step
            case Alt(items):
                known = [x for i in items if (x := self.of(i, least)) is not None]
                found = min(known, default=None)
            case Both(items):
                each = [self.of(i, least) for i in items]
                found = None if None in each else max((e for e in each if e is not None), default=0)
            case Repeat(item, low, _):
                step = self.of(item, least)
                found = 0 if low == 0 else (None if step is None else low * step)
            case _:
                found = 0
        if not self._named.get(id(node), False):
            self._fixed[id(node)] = found
        return found


def _refs(node: Expression) -> Iterator[int]:
    seen: set[int] = set()
    stack = [node]
    while stack:
        at = stack.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        match at:
            case Ref(index):
                yield index
            case Seq(items) | Alt(items) | Both(items):
                stack.extend(items)
            case Repeat(item) | Not(item):
                stack.append(item)
            case _:
                pass


def _is_plain(node: Expression) -> bool:
    match node:
        case Chars() | Text() | Ref():
            return True
        case Seq(items) | Alt(items):
            return all(_is_plain(item) for item in items)
        case Repeat(item):
            return _is_plain(item)
        case _:
            return False


def nullable_rules(items: Sequence[Expression]) -> list[bool]:
    """Which rules hold the empty text.

    Raises:
        ConstraintError: a rule is inside a complement or a look-around, where it may not be.
    """
    found = [False] * len(items)
    changed = True
    while changed:
        changed = False
        for n, item in enumerate(items):
            if not found[n] and is_nullable(item, found):
                found[n] = changed = True
    return found


def is_nullable(node: Expression, rules: Sequence[bool]) -> bool:
    """Whether an expression holds the empty text, given which rules do."""
    match node:
        case Chars():
            return False
        case Text(text):
            return not text
        case Ref(index):
            return rules[index]
        case Seq(items) | Both(items):
            return all(is_nullable(i, rules) for i in items)
        case Alt(items):
            return any(is_nullable(i, rules) for i in items)
        case Repeat(item, low, _):
            return low == 0 or is_nullable(item, rules)
        case Not(item):
            return not is_nullable(item, rules)
        case Rules(items):
            return nullable_rules(items)[0]
        case Look() | Atomic():
            raise ConstraintError("a rule must not look at what stands around it")


def first_refs(node: Expression, rules: Sequence[bool]) -> set[int]:
    """The rules with which a text of `node` may begin."""
    match node:
        case Ref(index):
            return {index}
        case Seq(items):
            found: set[int] = set()
            for item in items:
                found |= first_refs(item, rules)
                if not is_nullable(item, rules):
                    break
            return found
        case Alt(items) | Both(items):
            return set().union(*(first_refs(i, rules) for i in items))
        case Repeat(item) | Not(item):
            return first_refs(item, rules)
        case _:
            return set()


def _check_fronts(items: Sequence[Expression], nullable: Sequence[bool]) -> None:
    fronts = [first_refs(item, nullable) for item in items]
    done: set[int] = set()
    for root in range(len(items)):
        path: list[int] = []
        on_path: set[int] = set()
        stack: list[tuple[int, bool]] = [(root, False)]
        while stack:
            rule, leaving = stack.pop()
            if leaving:
                path.pop()
                on_path.discard(rule)
                done.add(rule)
            elif rule in on_path:
                raise ConstraintError(f"rule {rule} begins with itself")
            elif rule not in done:
                path.append(rule)
                on_path.add(rule)
                stack.append((rule, True))
                stack.extend((next_rule, False) for next_rule in fronts[rule])
