"""An automaton seen small: states with a single way out become the text on an edge.

Such edges are what jumping forward takes at once; the states that are left show where a constraint
leaves the model a choice. Its letters are characters, and its states those of the machine, made
only as far as edges are asked for, so that automata without end can be looked at too.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmc.constraints.charset import CharSet
from lmc.constraints.machine import Machine

__all__ = ["Compressed", "Edge", "compressed"]

_LONGEST = 2048  # characters on one edge
_MOST_FOLLOWED = 10_000  # characters on all edges; none is added after these


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one state to another: one character of a set, then a fixed text.

    Attributes:
        first: the characters of which one leads in.
        then: what must follow until `target`, which may be nothing.
    """

    source: int
    first: CharSet
    then: str
    target: int

    @property
    def text(self) -> str | None:
        """The only text of the edge; None if its first character can be chosen."""
        return chr(self.first.edges[0]) + self.then if len(self.first) == 1 else None


@dataclass(frozen=True, slots=True)
class Compressed:
    """The start, the ends and the states with a choice, numbered as they are met; 0 is the start.

    Attributes:
        states: how many there are.
        edges: breadth first.
        ends: the states in which a text may end.
        unfinished: the states of which not all edges are listed.
    """

    states: int
    edges: tuple[Edge, ...]
    ends: frozenset[int]
    unfinished: frozenset[int] = frozenset()


def compressed(machine: Machine, most: int = 10_000) -> Compressed:
    """The compressed view of an automaton in which something matches.

    Args:
        machine: of the automaton.
        most: edges to list; those nearest to the start are. There are fewer if they are very long.
    """
    assert machine.start is not None, "something matches"

    def accepts(state: int) -> bool:
        return machine.accepts(state * machine.nodes)

    def only(state: int) -> tuple[int, int] | None:
        if accepts(state):
            return None
        ways = list(machine.targets(state))
        code = machine.alphabet.single(ways[0][0]) if len(ways) == 1 else None
        return None if code is None else (code, ways[0][1])

    kept = [machine.start // machine.nodes]
    number = {kept[0]: 0}
    found: list[Edge] = []
    unfinished: set[int] = set()
    followed = 0
    for source, state in enumerate(kept):
        for mask, target in machine.targets(state):
            if len(found) == most or followed > _MOST_FOLLOWED:
                unfinished.add(source)
                break
            then: list[str] = []
            # No circle has a single way out all along: nothing could ever be completed from it.
            while target not in number and len(then) < _LONGEST and (way := only(target)):
                then.append(chr(way[0]))
                target = way[1]
            followed += len(then)
            if target not in number:
                number[target] = len(kept)
                kept.append(target)
            found.append(Edge(source, machine.chars_of(mask), "".join(then), number[target]))
    ends = frozenset(n for state, n in number.items() if accepts(state))
    return Compressed(len(kept), tuple(found), ends, frozenset(unfinished))
