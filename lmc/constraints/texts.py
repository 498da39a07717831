"""Texts of an automaton: the shortest one, and random ones."""

from __future__ import annotations

import random

from lmc.constraints.alphabet import bits
from lmc.constraints.charset import CharSet
from lmc.constraints.machine import Machine

__all__ = ["random_text", "shortest_text"]


def shortest_text(machine: Machine, state: int) -> str:
    """The shortest text, in bytes, that can follow; of those, one with the least characters."""
    text: list[str] = []
    while not machine.accepts(state * machine.nodes):
        best: tuple[int, int, int] | None = None
        for mask, target in machine.targets(state):
            for c in bits(mask):
                code = machine.alphabet.classes[c].edges[0]
                length = len(chr(code).encode()) + machine.least_bytes(target * machine.nodes)
                if best is None or (length, code) < best[:2]:
                    best = (length, code, target)
        assert best is not None, "a state that exists can be completed"
        text.append(chr(best[1]))
        state = best[2]
    return "".join(text)


def random_text(machine: Machine, state: int, draw: random.Random, about: int = 20) -> str:
    """A random text; it heads for the nearest end once it has `about` characters."""
    text: list[str] = []
    while True:
        targets = list(machine.targets(state))
        if machine.accepts(state * machine.nodes) and (
            not targets or len(text) >= about or draw.random() < 0.15
        ):
            return "".join(text)
        if len(text) >= about:
            return "".join(text) + shortest_text(machine, state)
        mask, state = draw.choice(targets)
        chars = machine.alphabet.classes[draw.choice(list(bits(mask)))]
        text.append(chr(_any_of(chars, draw)))


def _any_of(chars: CharSet, draw: random.Random) -> int:
    """A character of the set, more often than not an ordinary one."""
    ranges = list(chars.ranges())
    plain = [(low, min(high, 0x7E)) for low, high in ranges if low <= 0x7E]
    low, high = draw.choice(plain if plain and draw.random() < 0.7 else ranges)
    return draw.randint(low, high)
