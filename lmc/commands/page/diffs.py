"""The text of a graph before and after a pass, line by line.

Printed names are numbers, and a pass renumbers everything behind what it changes. So that a line
differs only if its node does, values keep the names that they had before; new ones end in '.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lmc.ir.core import Program, Value
from lmc.ir.printer import Line, name_values, printed_lines

__all__ = ["DiffLine", "diff_of", "plain_lines"]

MOST_LINES = 4000  # of a program: the rest is left out
CONTEXT = 3  # lines around a difference, of a long program
LONG = 400  # lines


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A printed line: "same", "new", "del", or "skip" for lines that are left out."""

    kind: Literal["same", "new", "del", "skip"]
    text: str
    at: str = ""


def plain_lines(program: Program) -> list[DiffLine]:
    """A program without a difference."""
    return [_line("same", line) for line in printed_lines(program)[:MOST_LINES]]


def diff_of(before: Program, after: Program) -> list[DiffLine]:
    """What a pass changed in the text of a program."""
    old_names = name_values(before)
    old = printed_lines(before)[:MOST_LINES]
    new = printed_lines(after, names=_names(after, old_names))[:MOST_LINES]
    found = list(_diff(old, new))
    return found if len(found) <= LONG else list(_near(found))


def _names(after: Program, old: dict[Value, str]) -> dict[Value, str]:
    return {value: old.get(value, f"{name}'") for value, name in name_values(after).items()}


def _diff(old: list[Line], new: list[Line]) -> Iterator[DiffLine]:
    before, after = [line.text for line in old], [line.text for line in new]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            yield from (_line("same", line) for line in new[c:d])
        else:
            yield from (_line("del", line) for line in old[a:b])
            yield from (_line("new", line) for line in new[c:d])


def _line(kind: Literal["same", "new", "del"], line: Line) -> DiffLine:
    at = "" if line.node is None or line.node.at is None else str(line.node.at)
    return DiffLine(kind, line.text, at)


def _near(lines: list[DiffLine]) -> Iterator[DiffLine]:
    """The lines that differ, and a few around them."""
    kept = {
        near
        for nth, line in enumerate(lines)
        if line.kind != "same"
        for near in range(nth - CONTEXT, nth + CONTEXT + 1)
    }
    skipped = 0
    for nth, line in enumerate(lines):
        if nth not in kept:
            skipped += 1
            continue
        if skipped:
            yield DiffLine("skip", f"… {skipped} lines …")
            skipped = 0
        yield line
    if skipped:
        yield DiffLine("skip", f"… {skipped} lines …")
