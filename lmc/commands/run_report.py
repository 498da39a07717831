"""`lmc run --report`: the page of the program that was run, with what the run was like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lmc.commands.output import writing
from lmc.commands.running import How, What
from lmc.commands.source import faults_of_program
from lmc.errors import LmcError

if TYPE_CHECKING:
    from lmc.api import Loaded
    from lmc.driver import Compiled

__all__ = ["write_report"]


def write_report(path: Path, what: What, how: How) -> None:
    """Write the page of a run; nothing if the program did not compile for any row.

    Raises:
        RunError: the file cannot be written.
    """
    from lmc.commands.counting import meter_of
    from lmc.commands.page import Ran, page_of

    assert how.recording is not None, "the run was recorded"
    found = _compiled(what, how)
    if found is None:
        return
    compiled, texts = found
    result = how.result
    ran = Ran(
        how.model,
        how.recording,
        how.counted,
        texts if what.rows is None else (),
        {} if result is None else result.variables,
        None if result is None or result.error is None else str(result.error),
    )
    with writing(path):
        path.write_text(page_of(compiled, meter_of(compiled.program, how.model), ran), "utf-8")


def _compiled(what: What, how: How) -> tuple[Compiled, tuple[str, ...]] | None:
    """The program as it ran, for the first row that it compiles for, and the texts of that row."""
    from lmc.api import Loaded
    from lmc.frontend.arguments import flatten

    program = what.program
    if isinstance(program, Loaded):
        return _of_artifact(program), ()
    rows: Iterable[Mapping[str, object]] = [what.arguments] if what.rows is None else what.rows
    for row in rows:
        try:
            with faults_of_program():
                flat = flatten(program.arguments(row))
                return program.compiled(flat, how.options), flat.texts
        except LmcError:  # the row has failed with it
            continue
    return None


def _of_artifact(program: Loaded) -> Compiled:
    """The graph and the plan of an artifact: its passes ran when it was made."""
    from lmc.driver import Compiled, Options
    from lmc.ir import parse

    plan, graph = program.artifact.plan, parse(program.artifact.graph)
    return Compiled(graph, graph, plan, Options(level=plan.level, passes=""), ())
