"""Rules that begin with themselves, rewritten so that none does.

`a: a "+" t | t` becomes `a: t ("+" t)*`; where several rules begin with each other, they are first
put into each other. Where a rule begins with itself behind parts that may be empty, all rules are
first split into the empty text and the rest. The set of texts stays the same.

Source      the method of M. Paull, as in Hopcroft and Ullman, Introduction to Automata Theory,
            1979, section 4.6, on expressions instead of productions; section 4.4 on empty texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lmc.constraints.expression import EPSILON, NEVER, Alt, Expression, Ref, Repeat, Seq, Text
from lmc.errors import ConstraintError

__all__ = ["without_left_recursion"]

_MOST_ARMS = 2000


_Arm = tuple[int | None, Expression]
"""The rule that an alternative begins with, if it begins with one, and what follows."""


def without_left_recursion(rules: Sequence[Expression]) -> list[Expression]:
    """The same rules, none of which begins with itself.

    Raises:
        ConstraintError: the rules grow beyond measure.
    """
    found = _rewritten(rules)
    if _is_recursive(found):
        found = _rewritten(_without_empty_texts(rules))
        assert not _is_recursive(found), "nothing can hide where no text is empty"
    return found


def _is_recursive(rules: Sequence[Expression]) -> bool:
    nullable = _nullable(rules)
    return bool(_groups([_fronts(rule, nullable) for rule in rules]))


def _rewritten(rules: Sequence[Expression]) -> list[Expression]:
    """The rules without left recursion that can be seen."""
    found = list(rules)
    nullable = _nullable(found)
    for group in _groups([_fronts(rule, nullable) for rule in found]):
        members = sorted(group)
        done: dict[int, list[_Arm]] = {}
        for rule in members:
            arms = list(_arms(found[rule], nullable))
            for earlier in done:
                arms = [new for arm in arms for new in _put_in(arm, earlier, done[earlier])]
                if len(arms) > _MOST_ARMS:
                    raise ConstraintError("rules of the grammar that begin with each other grow")
            again = [rest for head, rest in arms if head == rule and rest != EPSILON]
            others = [arm for arm in arms if arm[0] != rule]
            if again:
                tail = Repeat(_either(again), 0, None)
                others = [(head, _then(rest, tail)) for head, rest in others]
            done[rule] = others
            found[rule] = _either([_whole(arm) for arm in others])
    return found


def _without_empty_texts(rules: Sequence[Expression]) -> list[Expression]:
    """The same rules, of which only the first may have an empty text, and none names it."""
    nullable = _nullable(rules)

    def whole(node: Expression) -> Expression:
        match node:
            case Ref(index):
                rest = Ref(index + 1)
                return Alt((EPSILON, rest)) if nullable[index] else rest
            case Seq(items):
                return Seq(tuple(map(whole, items)))
            case Alt(items):
                return Alt(tuple(map(whole, items)))
            case Repeat(item, low, high):
                return Repeat(whole(item), low, high)
            case _:
                return node

    def filled(node: Expression) -> Expression:
        """The texts of `node` that are not empty."""
        match node:
            case Ref(index):
                return Ref(index + 1)
            case Seq(items) if items:
                rest = Seq(items[1:])
                first = Seq((filled(items[0]), whole(rest)))
                return Alt((first, filled(rest))) if _is_nullable(items[0], nullable) else first
            case Alt(items):
                return Alt(tuple(map(filled, items)))
            case Repeat(item, low, high) if high != 0:
                # With an empty item fewer will do; else one at least is not empty.
                least = 0 if _is_nullable(item, nullable) else max(low - 1, 0)
                more = Repeat(filled(item), least, None if high is None else high - 1)
                return Seq((filled(item), more))
            case _:
                return NEVER if _is_nullable(node, nullable) else node

    return [whole(Ref(0)), *map(filled, rules)]


def _put_in(arm: _Arm, rule: int, arms: list[_Arm]) -> list[_Arm]:
    head, rest = arm
    return [arm] if head != rule else [(h, _then(r, rest)) for h, r in arms]


def _whole(arm: _Arm) -> Expression:
    head, rest = arm
    return rest if head is None else _then(Ref(head), rest)


def _then(first: Expression, second: Expression) -> Expression:
    if first == EPSILON or second == EPSILON:
        return second if first == EPSILON else first
    return Seq((first, second))


def _either(arms: list[Expression]) -> Expression:
    return arms[0] if len(arms) == 1 else Alt(tuple(arms))


def _arms(node: Expression, nullable: Sequence[bool]) -> Iterator[_Arm]:
    """The alternatives of an expression, each with the rule it begins with laid open."""
    match node:
        case Ref(index):
            yield index, EPSILON
        case Alt(items):
            for item in items:
                yield from _arms(item, nullable)
        case Seq(items) if items:
            rest = Seq(items[1:]) if len(items) > 2 else (items[1] if len(items) == 2 else EPSILON)
            for head, first in _arms(items[0], nullable):
                if head is None and first == EPSILON:
                    yield from _arms(rest, nullable)
                else:
                    yield head, _then(first, rest)
        case Repeat(item, low, high) if _fronts(item, nullable):
            if low == 0:
                yield None, EPSILON
            if high != 0:
                less = Repeat(item, max(low - 1, 0), None if high is None else high - 1)
                for head, first in _arms(item, nullable):
                    if head is not None or first != EPSILON:
                        yield head, _then(first, less)
        case _:
            yield None, node


def _nullable(rules: Sequence[Expression]) -> list[bool]:
    found = [False] * len(rules)
    changed = True
    while changed:
        changed = False
        for n, rule in enumerate(rules):
            if not found[n] and _is_nullable(rule, found):
                found[n] = changed = True
    return found


def _is_nullable(node: Expression, nullable: Sequence[bool]) -> bool:
    match node:
        case Ref(index):
            return nullable[index]
        case Seq(items):
            return all(_is_nullable(i, nullable) for i in items)
        case Alt(items):
            return any(_is_nullable(i, nullable) for i in items)
        case Repeat(item, low, _):
            return low == 0 or _is_nullable(item, nullable)
        case Text(text):
            return not text
        case _:
            return False


def _fronts(node: Expression, nullable: Sequence[bool]) -> set[int]:
    match node:
        case Ref(index):
            return {index}
        case Seq(items):
            found: set[int] = set()
            for item in items:
                found |= _fronts(item, nullable)
                if not _is_nullable(item, nullable):
                    break
            return found
        case Alt(items):
            return {r for item in items for r in _fronts(item, nullable)}
        case Repeat(item, _, _):
            return _fronts(item, nullable)
        case _:
            return set()


def _groups(fronts: Sequence[set[int]]) -> list[set[int]]:
    """The sets of rules that begin with each other, directly or not; rules by themselves too."""
    reach = [set(front) for front in fronts]
    changed = True
    while changed:
        changed = False
        for own in reach:
            more = set().union(*(reach[r] for r in own)) if own else set()
            if not more <= own:
                own |= more
                changed = True
    groups: list[set[int]] = []
    for n, own in enumerate(reach):
        if n in own and not any(n in g for g in groups):
            groups.append({m for m in own if n in reach[m]} | {n})
    return groups
