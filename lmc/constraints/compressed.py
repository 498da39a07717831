"""An automaton drawn small: states with a single way out become the text on an edge.

Such edges are what jumping forward takes at once; printing them shows where a constraint leaves
the model a choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmc.constraints.dfa import Dfa

__all__ = ["Edge", "drawn", "edges"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one state to another: one byte of a set, then a fixed text.

    Attributes:
        choice: the bytes of which one leads in, ascending.
        then: what must follow until `target`, which may be nothing.
    """

    source: int
    choice: tuple[int, ...]
    then: bytes
    target: int


def edges(automaton: Dfa) -> list[Edge]:
    """The compressed view: only the start, ends and states with a choice are left."""
    steps: list[dict[int, list[int]]] = []
    for row in automaton.table.tolist():
        by_target: dict[int, list[int]] = {}
        for byte, c in enumerate(automaton.class_of.tolist()):
            if row[c] >= 0:
                by_target.setdefault(row[c], []).append(byte)
        steps.append(by_target)

    def only(state: int) -> tuple[int, int] | None:
        if automaton.accepting[state] or len(steps[state]) != 1:
            return None
        ((target, choice),) = steps[state].items()
        return (choice[0], target) if len(choice) == 1 else None

    found: list[Edge] = []
    kept, seen = [0], {0}
    for source in kept:
        for target, choice in steps[source].items():
            then, at = bytearray(), target
            # No circle has a single way out all along: nothing could ever be completed from it.
            while at not in seen and (way := only(at)):
                then.append(way[0])
                at = way[1]
            found.append(Edge(source, tuple(choice), bytes(then), at))
            if at not in seen:
                seen.add(at)
                kept.append(at)
    return found


def drawn(automaton: Dfa) -> str:
    """The compressed view as text, one edge a line; ends are marked with `*`.

    >>> from lmc.constraints.algebra import literal
    >>> print(drawn(literal("yes", "no", "nothing")))
    0 -- n, then "o" --> 1*
    0 -- y, then "es" --> 2*
    1* -- t, then "hing" --> 2*
    """
    found = edges(automaton)
    order = {0: 0}
    for edge in found:
        order.setdefault(edge.target, len(order))

    def named(state: int) -> str:
        return f"{order[state]}{'*' if automaton.accepting[state] else ''}"

    lines = []
    for edge in found:
        then = f", then {_quoted(edge.then)}" if edge.then else ""
        if len(edge.choice) == 1 and not edge.then:
            label = _quoted(bytes(edge.choice))
        else:
            label = _class(edge.choice) + then
        lines.append(f"{named(edge.source)} -- {label} --> {named(edge.target)}")
    return "\n".join(lines or [f"{named(0)} (nothing follows)"])


def _quoted(text: bytes) -> str:
    shown = text.decode("utf-8", "backslashreplace").replace("\n", "\\n").replace("\t", "\\t")
    return f'"{shown}"'


def _class(choice: tuple[int, ...]) -> str:
    """Bytes as a class in brackets; a single one as it is."""

    def shown(byte: int) -> str:
        return chr(byte) if 0x20 < byte < 0x7F and chr(byte) not in "-[]\\" else f"\\x{byte:02x}"

    if len(choice) == 1:
        return shown(choice[0])
    runs: list[tuple[int, int]] = []
    for byte in choice:
        if runs and byte == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], byte)
        else:
            runs.append((byte, byte))
    parts = [
        shown(a) if a == b else f"{shown(a)}-{shown(b)}" if b > a + 1 else shown(a) + shown(b)
        for a, b in runs
    ]
    return f"[{''.join(parts)}]"
