"""`lmc run` on a single row of arguments."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lmc.commands.exits import WRONG_USAGE, exit_code
from lmc.commands.output import JsonLines, show
from lmc.commands.running import How, What, as_json
from lmc.commands.source import faults_of_program
from lmc.commands.speaking import Speaker
from lmc.errors import LmcError, UsageError

if TYPE_CHECKING:
    from lmc.engine import Engine
    from lmc.result import Result

__all__ = ["run_one"]


def run_one(
    what: What, how: How, output: Path | None, results: TextIO, json: bool, stream: bool
) -> None:
    """Run a single row.

    Raises:
        LmcError: it failed; what it gave until then was written all the same.
    """
    how.rows = 1
    with JsonLines(output, results) as lines:
        speaker = Speaker(results) if stream else None
        try:
            result = _result(what, how, speaker)
        except LmcError as error:
            if json and lines.begun and exit_code(error) != WRONG_USAGE:
                lines.write(_failure(error))
            raise
        if json or output is not None:
            lines.write(as_json(result))
        if speaker is not None:
            show(result, results, speaker.shown)
        elif not json and output is None:
            show(result, results)
    if result.error is not None:
        with faults_of_program():
            raise result.error


def _result(what: What, how: How, speaker: Speaker | None) -> Result:
    from lmc.api import Loaded
    from lmc.frontend.arguments import flatten

    program = what.program
    if isinstance(program, Loaded):
        result = _only(what, how, speaker)
        if isinstance(result.error, UsageError):  # of the arguments: the rest is compiled
            raise result.error
        return result
    if not how.eager:
        with faults_of_program():  # before the model is loaded
            program.compiled(flatten(program.arguments(what.arguments)), how.options)
    return _only(what, how, speaker)


def _only(what: What, how: How, speaker: Speaker | None) -> Result:
    """The result of the only row."""
    program = what.program
    with how.engine(program.name) as engine:
        how.predict(what, engine, [what.arguments])
        # not run(): the program's arguments may be called as its parameters are
        if speaker is not None:
            result = _spoken(what, how, engine, speaker)
        else:
            rows = program.iter_batch(
                [what.arguments], engine=engine, eager=how.eager, options=how.options
            )
            with contextlib.closing(rows):
                result = next(rows)
        how.failed = int(result.error is not None)
        how.result = result
    return result


def _spoken(what: What, how: How, engine: Engine, speaker: Speaker) -> Result:
    """The result of a row whose variables are shown as they come."""
    stream = what.program.stream_row(
        what.arguments, engine=engine, eager=how.eager, options=how.options
    )
    with stream:
        try:
            for piece in stream.pieces():
                speaker.take(piece)
        except LmcError:  # it is in the result, too
            pass
        speaker.end()
        return stream.result()


def _failure(error: LmcError) -> dict[str, Any]:
    from lmc.result import Result
    from lmc.runtime.results import RowResult

    return Result(RowResult(error=error)).to_json()
