"""Unions of terms in a form in which they are few: what members have in common is shared.

Owns        nothing; the terms are those of an `Arena`.
Costs       a few microseconds a member. What stands behind a beginning that several share is left
            as it is until it is come to: it may be long, and mostly only a part of it is walked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lmc.constraints.nodes import LETTERS, UNBOUNDED, Kind, Term

if TYPE_CHECKING:
    from lmc.constraints.terms import Arena

__all__ = ["flattened", "gathered"]


def gathered(arena: Arena, members: dict[Term, None]) -> dict[Term, None]:
    """The same union with common beginnings and endings shared, and counters merged.

    `x{0,3}k | x{2,5}k` is `x{0,5}k`; `ak | bk` is `[ab]k`; `ak | aj` is `a(k|j)`. Without
    this the derivatives of ambiguous counters grow with the square of their bounds.
    """
    by_item: dict[tuple[Term, Term], list[tuple[int, int]]] = {}
    by_rest: dict[tuple[tuple[int, ...], Term], tuple[int, Term | None]] = {}
    found: dict[Term, None] = {}
    for term in members:
        head, tail = term.args if term.kind == Kind.CAT else (term, arena.eps)
        if head.kind in LETTERS:
            masks = head.args
            key = masks[1:], tail
            other = by_rest.get(key)
            by_rest[key] = (masks[0], term) if other is None else (masks[0] | other[0], None)
        elif head.kind == Kind.REP:
            by_item.setdefault((head.args[0], tail), []).append(head.args[1:])
        else:
            found[term] = None
    # A counter takes in the single item, and the tail by itself, if they stand beside it.
    for (item, tail), spans in by_item.items():
        if _taken(arena, arena.cat(item, tail), found, by_rest):
            spans.append((1, 1))
        if tail in found:
            spans.append((0, 0))
        merged = _merge_spans(spans)
        if (0, 0) in spans and (0, 0) not in merged:
            found.pop(tail, None)
        for low, high in merged:
            if (low, high) != (0, 0):
                found[arena.cat(arena.rep(item, low, high), tail)] = None
    if len(found) > 1:
        found = _shared(arena, found)
    by_first: dict[int, list[tuple[tuple[int, ...], Term, Term | None]]] = {}
    for (masks, tail), (mask, one) in by_rest.items():
        by_first.setdefault(mask, []).append((masks, tail, one))
    for mask, group in by_first.items():
        if len(group) == 1:
            masks, tail, one = group[0]
            found[one or arena.word((mask, *masks), tail)] = None
            continue
        size = _common([masks for masks, _, _ in group])
        tails = [
            arena.link(arena.letters(masks[size:]), tail) if len(masks) > size else tail
            for masks, tail, _ in group
        ]
        found[arena.word((mask, *group[0][0][:size]), arena.later(tails))] = None
    return found


def _taken(
    arena: Arena,
    term: Term,
    found: dict[Term, None],
    by_rest: dict[tuple[tuple[int, ...], Term], tuple[int, Term | None]],
) -> bool:
    """Take a term out of those that are gathered; false if it is not among them."""
    head, tail = term.args if term.kind == Kind.CAT else (term, arena.eps)
    if head.kind in LETTERS:
        key = head.args[1:], tail
        if by_rest.get(key, (0, None))[0] != head.args[0]:
            return False
        del by_rest[key]
        return True
    return found.pop(term, term) is None


def _shared(arena: Arena, members: dict[Term, None]) -> dict[Term, None]:
    """The same union, terms that begin with the same head as one."""
    by_head: dict[Term, list[Term]] = {}
    for term in members:
        head = term.args[0] if term.kind == Kind.CAT else term
        by_head.setdefault(head, []).append(term)
    if len(by_head) == len(members):
        return members
    shared: dict[Term, None] = {}
    for head, group in by_head.items():
        if len(group) == 1:
            shared[group[0]] = None
        else:
            tails = [t.args[1] if t.kind == Kind.CAT else arena.eps for t in group]
            joined = arena.cat(head, arena.later(tails))
            for term in joined.args if joined.kind == Kind.ALT else (joined,):
                shared[term] = None
    return shared


def flattened(terms: Iterable[Term]) -> dict[Term, None]:
    """The members of a union, none of them a union; only ALL where that is one of them."""
    members: dict[Term, None] = {}
    stack = list(terms)
    while stack:
        term = stack.pop()
        if term.kind == Kind.ALT:
            stack.extend(term.args)
        elif term.kind == Kind.ALL:
            return {term: None}
        elif term.kind != Kind.EMPTY:
            members[term] = None
    return members


def _common(words: list[tuple[int, ...]]) -> int:
    """How many members the beginning has that all of them share."""
    low, high = min(words), max(words)
    count = 0
    for a, b in zip(low, high, strict=False):
        if a != b:
            break
        count += 1
    return count


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
