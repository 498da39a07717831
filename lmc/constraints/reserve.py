"""How many tokens must be kept back for an end, wherever the next token may lead.

A token may lead from a place that is near an end (an empty array, the word `null`) to one that is
far from any (into a record of a hundred keys). So the distance from here to the end says little of
when a generation with a limit has to be led; what counts is the greatest distance that may be met.

    reserve(x y) = max(reserve(x) + least(y), reserve(y))        reserve(x | y) = the greater one

and so on along a term: each part that may be begun, with the least of all that must follow it.

Owns        what is known of the terms of one machine over one vocabulary.
Promises    for terms without conjunctions and complements an upper bound, but for where the
            tokenizer cuts the rest of a word into more tokens than the whole; of rules, the bodies
            of three within each other are looked into, so that recursion ends: what is opened is
            counted as soon as it is part of the term. For other terms a guess.
Costs       a few microseconds for each term that was never seen; a look-up for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lmc.constraints.alphabet import bits
from lmc.constraints.machine import Machine
from lmc.constraints.nodes import LETTERS, Kind, Rule, Term

__all__ = ["Reserve"]

_DEPTH = 3  # rules within rules


class _Need(NamedTuple):
    """In tokens: of the shortest text, and of the shortest end after whatever was begun."""

    least: int
    most: int


_NOTHING = _Need(0, 0)


class Reserve:
    """Knows how far from an end the texts of a machine may come.

    Args:
        machine: whose texts.
        encode: the tokenizer's; without it a token is taken for a byte, which costs a tenth.
    """

    def __init__(
        self, machine: Machine, encode: Callable[[str], Sequence[int]] | None = None
    ) -> None:
        self._machine = machine
        self._encode = encode
        self._needs: dict[tuple[Term, int], _Need] = {}
        self._known: dict[int, tuple[int, bool]] = {}

    def after(self, state: int) -> tuple[int, bool]:
        """The most tokens that the shortest end takes after what may come next at a state.

        Returns:
            The number, and whether it is an upper bound.
        """
        known = self._known.get(state)
        if known is None:
            known = self._known[state] = self._machine.measured(state, self._measured)
        return known

    def _measured(self, term: Term) -> tuple[int, bool]:
        return self._need(term).most, term.plain

    def _need(self, whole: Term) -> _Need:
        """Of a term, its parts first; not by recursion, since unions of long texts are deep."""
        needs = self._needs
        stack = [(whole, _DEPTH)]
        while stack:
            term, depth = key = stack[-1]
            if key not in needs:
                parts = _parts(term, depth)
                missing = [part for part in parts if part not in needs]
                if missing:
                    stack += missing
                    continue
                needs[key] = self._of(term, [needs[part] for part in parts])
            stack.pop()
        return needs[whole, _DEPTH]

    def _of(self, term: Term, parts: list[_Need]) -> _Need:
        match term.kind:
            case Kind.CHARS:
                return _Need(term.least, term.least)
            case Kind.WORD:
                encode = self._encode
                tokens = term.least if encode is None else len(encode(self._spelled(term)))
                return _Need(tokens, tokens)
            case Kind.CAT:
                head, tail = parts
                return _Need(head.least + tail.least, max(head.most + tail.least, tail.most))
            case Kind.REP:
                (item,), low = parts, term.args[1]
                more = item.least * max(low - 1, 0)
                return _Need(item.least * low, item.most + more)
            case Kind.ALT:
                return _Need(min(p.least for p in parts), max(p.most for p in parts))
            case Kind.AND:  # each part may want its own
                return _Need(sum(p.least for p in parts), sum(p.most for p in parts))
            case Kind.VAR | Kind.CLOSED if parts:
                return parts[0]
            case Kind.VAR:
                return _Need(term.least, term.least)
            case _:
                return _NOTHING

    def _spelled(self, word: Term) -> str:
        """The shortest text of a word."""
        alphabet = self._machine.alphabet
        text = []
        for mask in word.args:
            firsts = [chr(alphabet.classes[c].edges[0]) for c in bits(mask)]
            text.append(min(firsts, key=lambda char: len(char.encode())))
        return "".join(text)


def _parts(term: Term, depth: int) -> list[tuple[Term, int]]:
    """The terms that the need of a term is made of."""
    match term.kind:
        case kind if kind in LETTERS:
            return []
        case Kind.CAT | Kind.ALT | Kind.AND:
            return [(part, depth) for part in term.args]
        case Kind.REP | Kind.CLOSED:
            return [(term.args[0], depth)]
        case Kind.VAR if isinstance(term, Rule) and depth:
            return [(term.body, depth - 1)]
        case _:
            return []
