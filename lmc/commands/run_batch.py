"""`lmc run --batch`: many rows, a JSON object a line."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lmc.commands.checkpoint import Done, Record, program_digest
from lmc.commands.output import JsonLines, encoded, note
from lmc.commands.running import How, What, as_json, check_compiles
from lmc.errors import UsageError

if TYPE_CHECKING:
    from lmc.commands.given import Rows
    from lmc.engine import Engine
    from lmc.result import Result

__all__ = ["run_batch"]

SHOWN_FAILURES = 5  # of a batch; the others are only counted


def run_batch(
    what: What, rows: Rows, how: How, output: Path | None, results: TextIO, resume: bool
) -> None:
    """Run all rows, or with `resume` those that an earlier run has not done.

    Raises:
        LmcError: none can run; an older file is left as it is.
    """
    record = _record(what, rows, how, output)
    done = Done()
    if resume:
        if record is None:
            raise UsageError("--resume needs -o with the name of a file")
        found = record.done(len(rows))
        if found is None:
            note("nothing to resume: this is the first run")
        else:
            done = found
            how.rows, how.failed = done.total, done.failed
            note(f"{done.total} of {len(rows)} rows were done before")
            if done.rows == len(rows):
                record.finish()
                return
    check_compiles(what.program, rows, how)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(JsonLines(output, results))
        engine = stack.enter_context(how.engine(what.program.name))
        lines.open(done.size)
        if record is not None:
            record.begin(done)
            stack.callback(record.close)
        _run(what, rows, how, _Out(lines, record, done), engine, output, results)
        if record is not None:
            record.finish()


def _record(what: What, rows: Rows, how: How, output: Path | None) -> Record | None:
    """The record of a batch that writes a file; there is none of pipes and devices."""
    if output is None or (output.exists() and not output.is_file()):
        return None
    from lmc import __version__

    given = {
        "program": program_digest(what.program, what.path),
        "rows": rows.digest,
        "model": how.model,
        "seed": how.seed,
        "device": str(how.device),
        "dtype": str(how.dtype),
        "tensor_parallel": how.tensor_parallel,
        "lmc": __version__,
    }
    return Record(output, given)


class _Out:
    """Where results go: into the file in the order of the rows, into the record until then."""

    def __init__(self, lines: JsonLines, record: Record | None, done: Done) -> None:
        self._lines = lines
        self._record = record
        self._due = done.rows
        self._ahead = dict(done.ahead)  # of the run before
        self.skip = done.indices()
        self.recorded = record is not None

    def early(self, result: Result) -> None:
        """A result that waits for those of earlier rows."""
        if self._record is not None:
            self._record.add(encoded(_row(result)).encode())

    def write(self, result: Result) -> None:
        """The next result; those of the run before follow where it is their turn."""
        self.catch_up()
        self._lines.write(_row(result))
        self._due = result.index + 1
        self.catch_up()

    def catch_up(self) -> None:
        """Write what of the run before is due."""
        while self._due in self._ahead:
            self._lines.write_line(self._ahead.pop(self._due))
            self._due += 1


def _row(result: Result) -> dict[str, object]:
    return {"index": result.index, **as_json(result)}


def _run(
    what: What,
    rows: Rows,
    how: How,
    out: _Out,
    engine: Engine,
    output: Path | None,
    results: TextIO,
) -> None:
    from lmc.progress import progress_bar

    before = how.rows
    left = [row for index, row in enumerate(rows) if index not in out.skip] if out.skip else rows
    how.predict(what, engine, left)
    given = what.program.resumed_batch(
        rows, engine=engine, eager=how.eager, options=how.options, skip=out.skip, early=out.early
    )
    wanted = output is not None or not results.isatty()  # not between the lines of results
    bar = progress_bar(what.program.name, len(rows), wanted, engine.stats, before)
    started = time.perf_counter()
    try:
        with contextlib.closing(given), bar as advance:
            out.catch_up()
            for result in given:
                out.write(result)
                how.rows += 1
                how.failed += result.error is not None
                _report(result, rows, how.failed)
                advance()
    finally:
        _summarize(how, len(rows), time.perf_counter() - started, engine, out.recorded)


def _report(result: Result, rows: Rows, failed: int) -> None:
    if result.error is not None and failed <= SHOWN_FAILURES:
        note(f"error: line {rows.lines[result.index]}: {result.error.shown()}")


def _summarize(how: How, total: int, seconds: float, engine: Engine, recorded: bool) -> None:
    stats = engine.stats
    rows = f"{how.rows} row{'s' * (how.rows != 1)}"
    if how.rows < total:
        rows = f"{how.rows} of {total} rows"
    failed = f", {how.failed} failed" if how.failed else ""
    note(
        f"{rows}{failed} in {seconds:.1f} s: {stats.prompt_tokens} prompt tokens "
        f"({stats.hit_rate:.0%} cached), {stats.generated_tokens} generated"
    )
    if recorded and how.rows < total:
        note("go on with --resume and the same arguments")
