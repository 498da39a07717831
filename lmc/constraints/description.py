"""What can be said of a constraint: its size, its texts, and how much of them is fixed.

A character is *fixed* where nothing else could stand: neither another character nor the end. Such
text needs no model. How many of a text's tokens that saves is the tokenizer's matter: `forced_in`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from lmc.constraints.automaton import Automaton
from lmc.constraints.budget import BudgetError
from lmc.constraints.forcing import forced_text
from lmc.constraints.json_keys import JsonAutomaton, Keys
from lmc.constraints.machine import Machine
from lmc.constraints.matcher import TokenMatcher

__all__ = ["Description", "Fixed", "ForcedIn", "described", "fixed_in", "forced_in"]

_LONGEST = 10_000  # bytes of a shortest text; longer ones are not spelled out
_MOST_STATES = 2_000  # over bytes, made to measure an automaton as a whole
_SAMPLES = 5  # random texts shown
_TRIES = 8  # random texts drawn for one that is new and keeps the meaning
_SHARE_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Fixed:
    """How much of the texts is fixed, in bytes of UTF-8.

    Attributes:
        fixed, length: of a shortest text.
        least, most: shares of random texts, 0 to 1.
    """

    fixed: int
    length: int
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Description:
    """See `described`.

    Attributes:
        states: of the minimal automaton over bytes; None if it has too many.
        byte_classes: bytes that it cannot tell apart count once; None as `states`.
        texts: how many there are; None if there is no end of them, or `states` is None.
        exact: whether it counts only what is meant: that JSON objects have no key twice is seen to
            beside the automaton.
        least, most: length in bytes of the shortest text and of the longest, None for no bound
            or where `states` is None.
        begins: what all texts begin with.
        shortest: a shortest text; None if even that is longer than 10,000 bytes.
        samples: random ones, all different; none then.
        fixed: how much of them is fixed; None then.
        made: states of the lazy automaton over characters that were made to find all this out.
    """

    states: int | None
    byte_classes: int | None
    texts: int | None
    exact: bool
    least: int
    most: int | None
    begins: str
    shortest: str | None
    samples: tuple[str, ...]
    fixed: Fixed | None
    made: int


def described(automaton: Automaton) -> Description:
    """Look at a constraint in which something matches."""
    machine = automaton.machine
    assert machine.start is not None, "something matches"
    try:
        whole = automaton.dfa(_MOST_STATES)
    except BudgetError:
        whole = None
    least = machine.least_bytes(machine.start)
    short = least <= _LONGEST
    return Description(
        states=len(whole) if whole else None,
        byte_classes=whole.table.shape[1] if whole else None,
        texts=whole.count() if whole else None,
        exact=not isinstance(automaton, JsonAutomaton),
        least=least,
        most=whole.lengths()[1] if whole else None,
        begins=forced_text(machine, machine.start)[0],
        shortest=automaton.shortest() if short else None,
        samples=_samples(automaton, _SAMPLES) if short else (),
        fixed=fixed_in(automaton),
        made=len(machine),
    )


def _samples(automaton: Automaton, count: int) -> tuple[str, ...]:
    """Random texts, all different and always the same; fewer where no more are found."""
    draw = random.Random(0)
    found: dict[str, None] = {}
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        text = automaton.sample(draw)
        if not (isinstance(automaton, JsonAutomaton) and Keys().read(text.encode()).repeated):
            found[text] = None
    return tuple(found)


def fixed_in(automaton: Automaton) -> Fixed | None:
    """How much of a shortest text and of some random texts is fixed.

    None if all of them are longer than 10,000 bytes.
    """
    machine = automaton.machine
    assert machine.start is not None, "something matches"
    if machine.least_bytes(machine.start) > _LONGEST:
        return None
    shortest = automaton.shortest()
    shares = [
        _fixed_bytes(machine, text) / max(1, len(text.encode()))
        for text in _samples(automaton, _SHARE_SAMPLES) or (shortest,)
    ]
    return Fixed(_fixed_bytes(machine, shortest), len(shortest.encode()), min(shares), max(shares))


def _fixed_bytes(machine: Machine, text: str) -> int:
    assert machine.start is not None, "something matches"
    place, fixed = machine.start, 0
    for char in text:
        if not machine.accepts(place):
            ways = list(machine.targets(place // machine.nodes))
            if len(ways) == 1 and machine.alphabet.single(ways[0][0]) is not None:
                fixed += len(char.encode())
        place = machine.run(place, char.encode())
    return fixed


@dataclass(frozen=True, slots=True)
class ForcedIn:
    """The tokens of one text: how many there are, and how many the model is not asked for.

    Attributes:
        end: whether the model is asked once more, whether to end.
    """

    tokens: int
    forced: int
    end: bool

    @property
    def asked(self) -> int:
        """How often the model is asked."""
        return self.tokens - self.forced + self.end


def forced_in(matcher: TokenMatcher, text: str) -> ForcedIn:
    """Follow a text that matches, cut as the tokenizer cuts it, from a matcher's beginning."""
    matcher = matcher.fork()
    matcher.reset()
    tokens = matcher.vocabulary.encode(text)
    at = forced = 0
    while at < len(tokens):
        ahead = matcher.forced()
        taken = tokens[at : at + len(ahead)] if ahead else tokens[at : at + 1]
        if ahead:
            assert taken == ahead, "forced tokens are the tokenizer's own"
            forced += len(ahead)
        for token in taken:
            matcher.advance(token)
        at += len(taken)
    return ForcedIn(len(tokens), forced, not matcher.is_finished())
