"""The rows of a batch by shape: those of one shape share a compiled program."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lmc.errors import LmcError, UsageError

if TYPE_CHECKING:
    from lmc.api import Program
    from lmc.commands.given import Rows
    from lmc.commands.report import Shape
    from lmc.driver import Options
    from lmc.frontend.arguments import Arguments
    from lmc.frontend.sharing import Shared

__all__ = ["Group", "groups_of", "shape_of", "shapes_that_compile", "shared_of"]


@dataclass
class Group:
    """Rows of a batch that are compiled alike.

    Attributes:
        flat: the arguments of the first of them.
        where: which one that is.
        lines: of the file, one a row.
        texts: of each row, in the order of the program's parameters.
        rows: as they are given.
    """

    flat: Arguments
    where: str
    lines: list[int] = field(default_factory=list)
    texts: list[tuple[str, ...]] = field(default_factory=list)
    rows: list[dict[str, object]] = field(default_factory=list)


def groups_of(
    program: Program, batch: Path | None, args: str | None, given: dict[str, object]
) -> list[Group]:
    """The rows of the batch, by shape.

    Raises:
        LmcError: a row cannot be read, or is not for this program; the message says which.
    """
    from lmc.commands.given import Rows

    if batch is None:
        return []
    if args is not None:
        raise UsageError(
            "--args and --batch exclude each other", hint="give what varies by --batch"
        )
    return _grouped(program, Rows(batch, given), str(batch))


def _grouped(program: Program, rows: Rows, name: str, *, lenient: bool = False) -> list[Group]:
    """Rows by shape; with `lenient`, those that are not for this program are left out."""
    from lmc.frontend.arguments import flatten

    groups: dict[tuple[object, ...], Group] = {}
    for line, row in zip(rows.lines, rows, strict=True):
        where = f"line {line} of {name}"
        try:
            flat = flatten(program.arguments(row))
        except LmcError as error:
            if lenient:
                continue
            error.problem = f"{where}: {error.problem}"
            raise
        group = groups.setdefault(flat.key, Group(flat, where))
        group.lines.append(line)
        group.texts.append(flat.texts)
        group.rows.append(row)
    return list(groups.values())


def shapes_that_compile(program: Program, rows: Rows, chosen: Options) -> list[Shape]:
    """The shapes of rows that were run; those that did not compile are left out."""
    shapes = []
    groups = _grouped(program, rows, "the rows", lenient=True)
    shared = shared_of(program, groups, chosen)
    for group in groups:
        with contextlib.suppress(LmcError):
            shapes.append(shape_of(program, group, chosen, shared))
    return shapes


def shared_of(program: Program, groups: list[Group], chosen: Options) -> Shared:
    """The texts that all rows have in common, as a run of them would find."""
    return program.shared([row for group in groups for row in group.rows], chosen)


def shape_of(program: Program, group: Group, chosen: Options, shared: Shared) -> Shape:
    """The program compiled for a group of rows, of which all share some texts.

    Raises:
        LmcError: it does not compile; the message says for which row.
    """
    from lmc.commands.report import Shape
    from lmc.commands.source import faults_of_program

    try:
        with faults_of_program():
            compiled = program.compiled_for(group.flat, shared, chosen)
            return Shape(compiled, group.lines, group.texts)
    except LmcError as error:
        error.problem = f"{group.where}: {error.problem}"
        raise
