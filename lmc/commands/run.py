"""`lmc run`: run a program, or an artifact, on one or many rows of arguments."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from lmc.commands import options
from lmc.commands.exits import FAILED, WRONG_USAGE, exit_code
from lmc.commands.output import JsonLines, note, show
from lmc.commands.source import faults_of_program, load_source
from lmc.errors import LmcError, ModelError, RunError, UsageError

if TYPE_CHECKING:
    from lmc.api import Loaded, Program
    from lmc.commands.given import Rows
    from lmc.driver import Options
    from lmc.engine import Engine
    from lmc.result import Result

__all__ = ["run_command"]

SHOWN_FAILURES = 5  # of a batch; the others are only counted


class Device(enum.StrEnum):
    """Where the model runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class DType(enum.StrEnum):
    """The numbers that the model computes with."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def run_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM.py[:NAME] | ARTIFACT.lmc", help="The file, and the function in it."
        ),
    ],
    arg: options.Arg = None,
    args: options.Args = None,
    batch: options.Batch = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT.jsonl", help="Write results there."),
    ] = None,
    model: Annotated[
        str,
        typer.Option("--model", help="A known name, a Hugging Face folder, a .gguf file, or fake."),
    ] = "smollm2-135m",
    backend: Annotated[str, typer.Option("--backend", help="Where requests go: local.")] = "local",
    device: Annotated[Device, typer.Option("--device", help="Where the model runs.")] = Device.auto,
    dtype: Annotated[DType, typer.Option("--dtype", help="Numbers of the model.")] = DType.auto,
    kv_tokens: Annotated[
        int | None, typer.Option("--kv-tokens", min=1, help="Tokens that the KV cache holds.")
    ] = None,
    level: options.Level = 2,
    passes: options.Passes = None,
    eager: Annotated[
        bool, typer.Option("--eager", help="Run the Python function itself, not its graph.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the random draws.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: variables, text, error, meta.")
    ] = False,
    stats: Annotated[
        Path | None,
        typer.Option("--stats", metavar="FILE.json", help="Write the engine's counters there."),
    ] = None,
    traceback: options.Traceback = False,  # noqa: ARG001 - its callback keeps it
) -> None:
    """Run a program. Results go to standard output, or to the file of -o.

    A batch writes a JSON object a line, in the order of the rows, each as soon as it is there.
    An older file of -o is kept if the program does not compile, or the model cannot be loaded.
    How fast this machine runs programs is measured by lmc bench.
    """
    if backend != "local":
        raise UsageError(
            f"the backend {backend!r} is not available in this version", hint="use --backend local"
        )
    chosen = options.compile_options(level, passes)
    how = _Run(model, device, dtype, kv_tokens, eager, seed, chosen, stats)
    what = _read(source, arg, args, batch, eager)
    for path, option in ((output, "-o"), (stats, "--stats")):
        if path is not None:
            options.check_writable(path, option)
    if batch is not None and output is not None and _same_file(batch, output):
        raise UsageError("--batch and -o name the same file", hint="write to another one")
    results = sys.stdout
    # What the program itself prints is no result of the run.
    with contextlib.redirect_stdout(sys.stderr):
        if what.rows is None:
            _run_one(what, how, output, results, as_json)
        else:
            _run_batch(what, what.rows, how, output, results)
    if how.failed:
        raise typer.Exit(FAILED)


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and os.path.samefile(one, other)


@dataclass(frozen=True)
class _What:
    """What is to be run: a program on one row of arguments, or on many."""

    program: Program | Loaded
    arguments: dict[str, object]
    rows: Rows | None


@dataclass
class _Run:
    """How it is to be run, and what became of it."""

    model: str
    device: str
    dtype: str
    kv_tokens: int | None
    eager: bool
    seed: int
    options: Options
    stats: Path | None
    rows: int = 0
    failed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def engine(self, name: str) -> Iterator[Engine]:
        """The engine; when the block ends, however it does, its counters are written."""
        from lmc.engine import Engine

        started = time.perf_counter()
        _fetch(self.model)
        with Engine(
            self.model,
            device=str(self.device),
            dtype=str(self.dtype),
            kv_tokens=self.kv_tokens,
            seed=self.seed,
        ) as engine:
            loaded = time.perf_counter()
            self.seconds["load"] = loaded - started
            try:
                yield engine
            finally:
                self.seconds["run"] = time.perf_counter() - loaded
                if self.stats is not None:
                    self._write_stats(engine, name, self.stats)

    def _write_stats(self, engine: Engine, name: str, path: Path) -> None:
        counted: dict[str, Any] = engine.stats.to_json()
        counted["seconds"] = {**self.seconds, **counted["seconds"]}
        held = {
            "program": name,
            "model": self.model,
            "rows": self.rows,
            "failed_rows": self.failed,
            **counted,
        }
        try:
            path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise RunError(f"--stats {path} cannot be written: {error.strerror}") from error


def _read(
    source: str, arg: list[str] | None, args: str | None, batch: Path | None, eager: bool
) -> _What:
    from lmc.api import Loaded
    from lmc.commands.given import Rows, given_arguments

    if args is not None and batch is not None:
        raise UsageError(
            "--args and --batch exclude each other", hint="give what varies by --batch"
        )
    program = load_source(source)
    if isinstance(program, Loaded) and eager:
        raise UsageError(
            "an artifact cannot run eagerly", hint="run the .py file that it was made from"
        )
    given = given_arguments(program, arg, args)
    if batch is not None:
        return _What(program, given, Rows(batch, given))
    if not isinstance(program, Loaded):
        program.arguments(given)  # refuses what the program does not take
    return _What(program, given, None)


def _fetch(model: str) -> None:
    """Fetch a known model at its first use; a failure is not the caller's mistake."""
    from lmc.runtime.store import KNOWN, resolve

    try:
        resolve(model)
    except ModelError as error:
        if model in KNOWN:
            raise RunError(error.problem, hint=error.hint) from error
        raise


# ------------------------------------------------------------------------------------ one row


def _run_one(what: _What, how: _Run, output: Path | None, results: TextIO, as_json: bool) -> None:
    """Run a single row.

    Raises:
        LmcError: it failed; what it gave until then was written all the same.
    """
    how.rows = 1
    with JsonLines(output, results) as lines:
        try:
            result = _result(what, how)
        except LmcError as error:
            if as_json and lines.begun and exit_code(error) != WRONG_USAGE:
                lines.write(_failure(error))
            raise
        if as_json or output is not None:
            lines.write(_as_json(result))
        else:
            show(result, results)
    if result.error is not None:
        with faults_of_program():
            raise result.error


def _result(what: _What, how: _Run) -> Result:
    from lmc.api import Loaded
    from lmc.frontend.arguments import flatten

    program = what.program
    if isinstance(program, Loaded):
        result = _only(what, how)
        if isinstance(result.error, UsageError):  # of the arguments: the rest is compiled
            raise result.error
        return result
    if not how.eager:
        with faults_of_program():  # before the model is loaded
            program.compiled(flatten(program.arguments(what.arguments)), how.options)
    return _only(what, how)


def _only(what: _What, how: _Run) -> Result:
    """The result of the only row."""
    program = what.program
    with how.engine(program.name) as engine:
        # not run(): the program's arguments may be called as its parameters are
        rows = program.iter_batch(
            [what.arguments], engine=engine, eager=how.eager, options=how.options
        )
        with contextlib.closing(rows):
            result = next(rows)
        how.failed = int(result.error is not None)
    return result


def _as_json(result: Result) -> dict[str, Any]:
    """A result as JSON values; with what the program returned, if it did."""
    held = result.to_json()
    return held if result.value is None else {**held, "value": result.value}


def _failure(error: LmcError) -> dict[str, Any]:
    from lmc.result import Result
    from lmc.runtime.results import RowResult

    return Result(RowResult(error=error)).to_json()


# ------------------------------------------------------------------------------------- a batch


def _run_batch(what: _What, rows: Rows, how: _Run, output: Path | None, results: TextIO) -> None:
    """Run all rows.

    Raises:
        LmcError: none can run; an older file is left as it is.
    """
    from lmc.progress import progress_bar

    _check_compiles(what, rows, how)
    name = what.program.name
    bar = output is not None or not results.isatty()  # not between the lines of results
    with JsonLines(output, results) as lines, how.engine(name) as engine:
        given = what.program.iter_batch(rows, engine=engine, eager=how.eager, options=how.options)
        lines.open()
        started = time.perf_counter()
        try:
            with contextlib.closing(given), progress_bar(name, len(rows), bar) as advance:
                for result in given:
                    how.rows += 1
                    how.failed += result.error is not None
                    lines.write({"index": result.index, **_as_json(result)})
                    _report(result, rows, how.failed)
                    advance()
        finally:
            seconds = time.perf_counter() - started
            _summarize(how, len(rows), seconds, engine)


def _check_compiles(what: _What, rows: Rows, how: _Run) -> None:
    """Compile the program for a first row, before the model is loaded.

    Rows for which it does not compile fail on their own, unless there are no others.

    Raises:
        LmcError: it compiles for no row.
    """
    from lmc.api import Loaded
    from lmc.frontend.arguments import flatten

    program = what.program
    if isinstance(program, Loaded) or how.eager:
        return
    problem: LmcError | None = None
    tried = set()
    for row in rows:
        try:
            flat = flatten(program.arguments(row))
        except LmcError:  # of the arguments: nothing is said about the program
            continue
        if flat.key in tried:
            continue
        tried.add(flat.key)
        try:
            with faults_of_program():
                program.compiled(flat, how.options)
        except LmcError as error:
            problem = problem or error
        else:
            return
    if problem is not None:
        raise problem


def _report(result: Result, rows: Rows, failed: int) -> None:
    if result.error is not None and failed <= SHOWN_FAILURES:
        note(f"error: line {rows.lines[result.index]}: {result.error}")


def _summarize(how: _Run, total: int, seconds: float, engine: Engine) -> None:
    stats = engine.stats
    rows = f"{how.rows} row{'s' * (how.rows != 1)}"
    if how.rows < total:
        rows = f"{how.rows} of {total} rows"
    failed = f", {how.failed} failed" if how.failed else ""
    note(
        f"{rows}{failed} in {seconds:.1f} s: {stats.prompt_tokens} prompt tokens "
        f"({stats.hit_rate:.0%} cached), {stats.generated_tokens} generated"
    )
