"""Where the prompts of rows begin to differ, and what could be shared if that came later.

A cache shares beginnings. Text that is the same in all rows is read once if it stands in front of
what varies, and once a row if it stands behind it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lmc.errors import Location
from lmc.ir.analysis import Parts
from lmc.ir.core import Const, Operand, Program, Region, Value
from lmc.ir.ops import MODEL_CALLS, Extend, If, MakeList, Pure
from lmc.ir.printer import name_values
from lmc.ir.prompts import Piece, prompt_tree
from lmc.ir.types import STATE
from lmc.textops import PURE

__all__ = ["Difference", "Late", "first_difference", "late_arguments"]

WORTH_TELLING = 24  # bytes of constant text behind an argument
AROUND = 32  # characters shown before and behind the first difference


@dataclass(frozen=True, slots=True)
class Late:
    """An argument in front of constant text of a prompt; sizes are bytes in UTF-8.

    Attributes:
        at: the line that appends it.
        argument: its name.
        shared: constant text in front of it, which rows share.
        behind: constant text behind it, up to the first text of the model.
    """

    at: Location | None
    argument: str
    shared: int
    behind: int

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {**asdict(self), "at": self.at and str(self.at)}


def late_arguments(program: Program) -> list[Late]:
    """The first argument of each prompt that has much constant text behind it."""
    found = []
    for pieces in _beginnings(program):
        nth = next((n for n, piece in enumerate(pieces) if piece.kind == "open"), None)
        if nth is None:
            continue
        shared, behind = (
            sum(_bytes(piece.text) for piece in part if piece.kind == "text")
            for part in (pieces[:nth], pieces[nth:])
        )
        if behind >= WORTH_TELLING:
            found.append(Late(pieces[nth].at, pieces[nth].text, shared, behind))
    return found


def _beginnings(program: Program) -> Iterator[list[Piece]]:
    """What each prompt begins with, up to the first text of the model or the first fork."""
    for stretch in prompt_tree(program):
        if stretch.parent is None and stretch.readers:
            made = next((n for n, p in enumerate(stretch.pieces) if p.kind == "made"), None)
            yield [piece for piece in stretch.pieces[:made] if piece.kind != "role"]


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


# --------------------------------------------------------------------------- rows of a batch


@dataclass(frozen=True, slots=True)
class Difference:
    """The first byte in which the first prompts of rows differ; sizes are bytes in UTF-8.

    Attributes:
        at: the line of the program that appends the text in which they differ.
        piece: the name of that text; "" for a constant, where the rows go other ways.
        shared: what all rows begin with.
        later: behind it, texts that all rows have again.
        before: the last characters that are the same.
        rows: two rows that differ, by number, with the next characters of each.
    """

    at: Location | None
    piece: str
    shared: int
    later: int
    before: str
    rows: tuple[tuple[int, str], tuple[int, str]]

    def to_json(self, lines: Sequence[int]) -> dict[str, Any]:
        """All of it, as JSON values; rows by their line in the file."""
        rows = [{"line": lines[row], "text": text} for row, text in self.rows]
        return {**asdict(self), "at": self.at and str(self.at), "rows": rows}


def first_difference(program: Program, texts: Sequence[Sequence[str]]) -> Difference | None:
    """Where the first prompts of rows begin to differ; None if they do not, as far as known.

    Args:
        program: that the rows are compiled to.
        texts: per row those of its parameters.
    """
    rows = [_first_prompt(program, row) for row in texts]
    whole = ["".join(part.text for part in row) for row in rows]
    if len(rows) < 2 or not all(whole):
        return None
    common = _common(whole)
    at = len(common)
    if all(len(text) == at for text in whole):
        return None
    # a row that ends here differs from one that goes on
    first = next(row for row, text in enumerate(whole) if len(text) > at)
    other = next(row for row, text in enumerate(whole) if text[at : at + 1] != whole[first][at])
    ends = itertools.accumulate(len(part.text) for part in rows[first])
    nth = next(n for n, end in enumerate(ends) if end > at)
    part = rows[first][nth]
    before = sum(len(p.text) for p in rows[first][:nth])
    behind = Counter(rows[first][nth + 1 :])
    for row in rows:
        behind &= Counter(row[_index(row, at) + 1 :])
    one, two = sorted((first, other))
    return Difference(
        part.at,
        part.name,
        _bytes(common),
        sum(_bytes(p.text) * count for p, count in behind.items()),
        common[max(before, at - AROUND) :] or common[-AROUND:],
        ((one, whole[one][at : at + AROUND]), (two, whole[two][at : at + AROUND])),
    )


def _common(texts: Sequence[str]) -> str:
    """What all texts begin with: in order, the first and the last differ first."""
    low, high = min(texts), max(texts)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((n for n, (one, other) in pairs if one != other), len(low))]


@dataclass(frozen=True, slots=True)
class _Part:
    """A text of a row's prompt, where it was appended, and what it is; "" for constants."""

    text: str
    at: Location | None
    name: str


def _index(row: Sequence[_Part], at: int) -> int:
    """The part of a row's prompt in which a place lies."""
    ends = itertools.accumulate(len(part.text) for part in row)
    return next((n for n, end in enumerate(ends) if end > at), len(row))


def _first_prompt(program: Program, texts: Sequence[str]) -> list[_Part]:
    """The prompt of a row's first model call, without markup; empty if only a run can tell."""
    names, parts = name_values(program), Parts(program)
    known: dict[Value, Any] = dict(zip(program.params, texts, strict=True))
    prompts: dict[Value, tuple[Value | None, list[_Part]]] = {}  # by state: the one before, more

    def value(operand: Operand) -> Any:  # noqa: ANN401 - of any type; None if it is not known
        return operand.value if isinstance(operand, Const) else known.get(operand)

    def appended(op: Extend, at: Location | None) -> list[_Part] | None:
        found = []
        for operand in parts.of(op):
            text = value(operand)
            if not isinstance(text, str):
                return None
            name = "" if isinstance(operand, Const) else names[operand]
            found.append(_Part(text, at, name))
        return found

    region: Region | None = program.body
    while region is not None:
        nodes, region = region.nodes, None
        for node in nodes:
            op = node.op
            before = next((v for v in op.value_operands() if v.type == STATE), None)
            if isinstance(op, If):
                if (held := value(op.condition)) is not None:
                    region = op.then if held else op.orelse
            elif isinstance(op, MODEL_CALLS) and before in prompts:
                return _whole(before, prompts)
            elif isinstance(op, (Pure, MakeList)):
                _compute(op, node.results[0], known)
            elif node.results and node.results[0].type == STATE:
                more = appended(op, node.at) if isinstance(op, Extend) else []
                if more is not None and (before is None or before in prompts):
                    prompts[node.results[0]] = (before, more)
    return []


def _whole(
    state: Value | None, prompts: Mapping[Value, tuple[Value | None, list[_Part]]]
) -> list[_Part]:
    found: list[list[_Part]] = []
    while state is not None:
        state, more = prompts[state]
        found.append(more)
    return [part for more in reversed(found) for part in more]


def _compute(op: Pure | MakeList, result: Value, known: dict[Value, Any]) -> None:
    if any(v not in known for v in op.value_operands()):
        return
    args = [o.value if isinstance(o, Const) else known[o] for o in op.operands()]
    with contextlib.suppress(LookupError, ValueError, TypeError):  # the row will fail there
        known[result] = args if isinstance(op, MakeList) else PURE[op.fn].compute(*args)
