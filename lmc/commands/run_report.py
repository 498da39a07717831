"""`lmc run --report`: the page of the program that was run, with what the run was like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lmc.commands.output import writing
from lmc.commands.running import How, What

if TYPE_CHECKING:
    from lmc.api import Loaded
    from lmc.driver import Compiled

__all__ = ["write_report"]


def write_report(path: Path, what: What, how: How) -> None:
    """Write the page of a run; nothing if the program did not compile for any row of a batch.

    Raises:
        RunError: the file cannot be written.
    """
    from lmc.api import Loaded
    from lmc.commands.counting import meter_of
    from lmc.commands.grouping import shapes_that_compile
    from lmc.commands.page import Ran, page_of
    from lmc.frontend.arguments import flatten

    assert how.recording is not None, "the run was recorded"
    shapes = None
    texts: tuple[str, ...] = ()
    if isinstance(what.program, Loaded):
        compiled = _of_artifact(what.program)
    elif what.rows is None:
        flat = flatten(what.program.arguments(what.arguments))
        compiled, texts = what.program.compiled(flat, how.options), flat.texts
    else:
        shapes = shapes_that_compile(what.program, what.rows, how.options)
        if not shapes:
            return
        compiled = shapes[0].compiled
    result = how.result
    ran = Ran(
        how.model,
        how.recording,
        how.counted,
        texts,
        {} if result is None else result.variables,
        None if result is None or result.error is None else str(result.error),
    )
    meter = meter_of(compiled.program, how.model)
    with writing(path):
        path.write_text(page_of(compiled, meter, ran, shapes), "utf-8")


def _of_artifact(program: Loaded) -> Compiled:
    """The graph and the plan of an artifact: its passes ran when it was made."""
    from lmc.driver import Compiled, Options
    from lmc.ir import parse

    plan, graph = program.artifact.plan, parse(program.artifact.graph)
    return Compiled(graph, graph, plan, Options(level=plan.level, passes=""), ())
