"""The compressed view of an automaton as lines of text, for Graphviz, and for Mermaid."""

from __future__ import annotations

from collections.abc import Iterator

from lmc.constraints.charset import ANY, CharSet
from lmc.constraints.compressed import Compressed, Edge

__all__ = ["dot_lines", "dot_text", "drawn", "label_of", "mermaid_text", "to_dot", "to_mermaid"]

_LONGEST_LABEL = 60  # characters of a text on an edge; its middle is left out
_MOST_RANGES = 12  # of a set of characters


def drawn(view: Compressed) -> str:
    """One edge a line; `*` marks the states in which a text may end.

    >>> from lmc.constraints import automaton_of
    >>> from lmc.constraints.compressed import compressed
    >>> print(drawn(compressed(automaton_of("choices", ["yes", "no", "nothing"]).machine)))
    0 -- "no" --> 1*
    0 -- "yes" --> 2*
    1* -- "thing" --> 2*
    """
    lines = [
        f"{_named(view, e.source)} -- {label_of(e)} --> {_named(view, e.target)}"
        for e in view.edges
    ]
    if view.unfinished:
        lines.append(f"... and more from {', '.join(map(str, sorted(view.unfinished)[:8]))}")
    return "\n".join(lines or [f"{_named(view, 0)} (nothing follows)"])


def _named(view: Compressed, state: int) -> str:
    return f"{state}*" if state in view.ends else str(state)


def label_of(edge: Edge) -> str:
    """What stands on an edge: a text in quotation marks, or a class of characters and a text."""
    if edge.text is not None:
        return _quoted(edge.text)
    return _class(edge.first) + (f", then {_quoted(edge.then)}" if edge.then else "")


def _quoted(text: str) -> str:
    if len(text) > _LONGEST_LABEL:
        half = _LONGEST_LABEL // 2
        text = f"{text[:half]}…{text[-half:]}"
    return f'"{"".join(_shown(c, "") for c in text)}"'


def _shown(char: str, escaped: str) -> str:
    if char in escaped:
        return "\\" + char
    if char.isprintable():
        return char
    return {"\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(char) or (
        f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\U{ord(char):08x}"
    )


def _class(chars: CharSet) -> str:
    """Characters as a class in brackets, of the others if those are fewer."""
    if chars == ANY:
        return "any character"
    sign, ranges = "", list(chars.ranges())
    if len(others := list((~chars).ranges())) < len(ranges) or 0x10FFFF in chars:
        sign, ranges = "^", others
    parts = []
    for low, high in ranges[:_MOST_RANGES]:
        first, final = _shown(chr(low), "-[]\\^"), _shown(chr(high), "-[]\\^")
        parts.append(first if low == high else f"{first}{'-' * (high > low + 1)}{final}")
    return f"[{sign}{''.join(parts)}{'…' * (len(ranges) > _MOST_RANGES)}]"


# -------------------------------------------------------------------------- Graphviz, Mermaid


def to_dot(view: Compressed, name: str) -> str:
    """The view as a graph of Graphviz; double circles are where a text may end."""
    lines = [
        f"digraph {dot_text(name)} {{",
        "  rankdir=LR;",
        '  node [fontname="monospace", fontsize=10];',
        '  edge [fontname="monospace", fontsize=9];',
        "  start [shape=point];",
        "  start -> s0;",
        *dot_lines(view, "s", "  "),
        "}",
    ]
    return "\n".join(lines) + "\n"


def dot_lines(view: Compressed, prefix: str, indent: str) -> Iterator[str]:
    """The nodes and edges of a view; `prefix` begins the names of its states."""
    for state in range(view.states):
        shape = "doublecircle" if state in view.ends else "circle"
        yield f'{indent}{prefix}{state} [label="{state}", shape={shape}];'
    for edge in view.edges:
        label = dot_text(label_of(edge))
        yield f"{indent}{prefix}{edge.source} -> {prefix}{edge.target} [label={label}];"
    if view.unfinished:
        yield f'{indent}{prefix}more [label="…", shape=plaintext];'
    for state in sorted(view.unfinished):
        yield f"{indent}{prefix}{state} -> {prefix}more [style=dotted];"


def dot_text(text: str) -> str:
    """A text in quotation marks, as Graphviz reads it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def to_mermaid(view: Compressed) -> str:
    """The view as a flowchart of Mermaid; double circles are where a text may end."""
    lines = ["flowchart LR"]
    for state in range(view.states):
        shape = f"((({state})))" if state in view.ends else f"(({state}))"
        lines.append(f"  s{state}{shape}")
    lines += [
        f'  s{edge.source} -->|"{mermaid_text(label_of(edge))}"| s{edge.target}'
        for edge in view.edges
    ]
    lines += [f'  s{state} -.-> more["#8230;"]' for state in sorted(view.unfinished)]
    return "\n".join(lines) + "\n"


def mermaid_text(text: str) -> str:
    """A label in which nothing is markup: all but letters, digits and a few marks as entities."""
    return "".join(c if c.isalnum() or c in " .,:=%_-" else f"#{ord(c)};" for c in text)
