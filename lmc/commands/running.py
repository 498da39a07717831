"""What a command runs, how, and what became of it: shared by `run` and `check`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.commands.output import plain
from lmc.commands.source import faults_of_program, load_source, source_path
from lmc.errors import LmcError, ModelError, RunError, UsageError
from lmc.runtime.long_lived import spared_collections

if TYPE_CHECKING:
    from lmc.api import Loaded, Program
    from lmc.commands.given import Rows
    from lmc.driver import Options
    from lmc.engine import Engine
    from lmc.result import Result
    from lmc.runtime.recording import Recorder, Recording

__all__ = ["How", "What", "as_json", "check_compiles", "what_to_run"]


@dataclass(frozen=True)
class What:
    """What is to be run: a program on one row of arguments, or on many."""

    program: Program | Loaded
    path: Path  # its file
    arguments: dict[str, object]
    rows: Rows | None


@dataclass
class How:
    """How it is to be run, and what became of it."""

    model: str
    device: str
    dtype: str
    kv_tokens: int | None
    eager: bool
    seed: int
    options: Options
    stats: Path | None
    trace: Path | None = None
    report: Path | None = None
    recording: Recording | None = None  # of the run, for the report
    counted: dict[str, Any] = field(default_factory=dict)  # as --stats writes it
    result: Result | None = None  # of a single row
    tensor_parallel: int = 1
    rows: int = 0
    failed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    predicted: dict[str, Any] | None = None

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
            tensor_parallel=self.tensor_parallel,
        ) as engine:
            loaded = time.perf_counter()
            self.seconds["load"] = loaded - started
            recorder = self._recorder(engine)
            try:
                with spared_collections():
                    yield engine
            finally:
                spent = self.seconds.get("predict", 0.0)
                self.seconds["run"] = time.perf_counter() - loaded - spent
                self._count(engine, name)
                if self.stats is not None:
                    self._write_stats(self.stats)
                if recorder is not None:
                    engine.executor.close()  # what was cancelled has ended then
                    self.recording = recorder.recording()
                    self._write_trace(name, self.recording)

    def predict(
        self, what: What, engine: Engine, rows: Sequence[Mapping[str, object]] | Rows
    ) -> None:
        """Find out what the run will cost, if anybody wants to know; before anything runs."""
        if (self.stats is None and self.report is None) or self.eager:
            return
        from lmc.commands.predicting import prediction_of

        started = time.perf_counter()
        self.predicted = prediction_of(what.program, rows, engine.rehearsal(), self.options)
        self.seconds["predict"] = time.perf_counter() - started

    def _recorder(self, engine: Engine) -> Recorder | None:
        """What watches the run, if anybody wants to know."""
        if self.trace is None and self.report is None:
            return None
        from lmc.runtime.recording import record

        return record(engine)

    def _write_trace(self, name: str, recording: Recording) -> None:
        if self.trace is not None:
            from lmc.commands.trace import write_trace

            way = "eager" if self.eager else f"compiled at -O {self.options.level}"
            write_trace(self.trace, recording, {"program": name, "model": self.model, "run": way})

    def _count(self, engine: Engine, name: str) -> None:
        counted: dict[str, Any] = engine.stats.to_json()
        counted["seconds"] = {**self.seconds, **counted["seconds"]}
        self.counted = {
            "program": name,
            "model": self.model,
            "rows": self.rows,
            "failed_rows": self.failed,
            **counted,
            "predicted": self.predicted,
        }

    def _write_stats(self, path: Path) -> None:
        try:
            path.write_text(json.dumps(self.counted, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise RunError(f"--stats {path} cannot be written: {error.strerror}") from error


def what_to_run(
    source: str, arg: list[str] | None, args: str | None, batch: Path | None, eager: bool
) -> What:
    """Load the program and read its arguments.

    Raises:
        LmcError: one of them is not there, or not as it must be.
    """
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
        return What(program, source_path(source), given, Rows(batch, given))
    if not isinstance(program, Loaded):
        program.arguments(given)  # refuses what the program does not take
    return What(program, source_path(source), given, None)


def _fetch(model: str) -> None:
    """Fetch a known model at its first use; a failure is not the caller's mistake."""
    from lmc.runtime.store import KNOWN, resolve

    try:
        resolve(model)
    except ModelError as error:
        if model in KNOWN:
            raise RunError(error.problem, hint=error.hint) from error
        raise


def as_json(result: Result) -> dict[str, Any]:
    """A result as JSON values; with what the program returned, if it did."""
    held = result.to_json()
    held["variables"] = {name: plain(value) for name, value in held["variables"].items()}
    return held if result.value is None else {**held, "value": plain(result.value)}


def check_compiles(
    program: Program | Loaded, rows: Iterable[Mapping[str, object]], how: How
) -> None:
    """Compile the program for a first row, before the model is loaded.

    Rows for which it does not compile fail on their own, unless there are no others.

    Raises:
        LmcError: it compiles for no row.
    """
    from lmc.api import Loaded
    from lmc.frontend.arguments import flatten

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
