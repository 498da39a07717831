"""`lmc run`: run a program, or an artifact, on one or many rows of arguments."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from lmc.commands import options
from lmc.commands.exits import FAILED
from lmc.commands.run_batch import run_batch
from lmc.commands.run_one import run_one
from lmc.commands.run_report import write_report
from lmc.commands.running import How, what_to_run
from lmc.errors import UsageError

__all__ = ["run_command"]


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
    model: options.Model = options.DEFAULT_MODEL,
    backend: Annotated[str, typer.Option("--backend", help="Where requests go: local.")] = "local",
    device: options.DeviceOption = options.Device.auto,
    dtype: options.DTypeOption = options.DType.auto,
    kv_tokens: options.KVTokens = None,
    tensor_parallel: options.TensorParallel = 1,
    level: options.Level = 2,
    passes: options.Passes = None,
    reorder: options.Reorder = False,
    fuse: options.Fuse = None,
    eager: Annotated[
        bool, typer.Option("--eager", help="Run the Python function itself, not its graph.")
    ] = False,
    seed: options.Seed = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: variables, text, error, meta.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Show variables while they come.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Run only the rows that an earlier run has not done.")
    ] = False,
    stats: Annotated[
        Path | None,
        typer.Option("--stats", metavar="FILE.json", help="Write the engine's counters there."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE.json", help="Write a trace of the run there, for Perfetto."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE.html", help="Write a page about the program and the run."
        ),
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
    if report is not None and eager:
        raise UsageError(
            "--report and --eager exclude each other",
            hint="the page is about what was compiled; --trace FILE.json shows an eager run",
        )
    if options.to_stdout(output):
        output, as_json = None, as_json or batch is None
    _check_together(batch is not None, output is not None, as_json, stream, resume)
    chosen = options.compile_options(level, passes, reorder=reorder, fuse=fuse)
    how = How(
        model, device, dtype, kv_tokens, eager, seed, chosen, stats, trace, report,
        tensor_parallel=tensor_parallel,
    )  # fmt: skip
    what = what_to_run(source, arg, args, batch, eager)
    given = ((output, "-o"), (stats, "--stats"), (trace, "--trace"), (report, "--report"))
    for path, option in given:
        if path is not None:
            options.check_writable(path, option)
    options.check_apart(given, ((batch, "--batch"), (what.path, "the program")))
    results = sys.stdout
    # What the program itself prints is no result of the run.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if what.rows is None:
                run_one(what, how, output, results, as_json, stream)
            else:
                run_batch(what, what.rows, how, output, results, resume)
        finally:
            if report is not None and how.recording is not None:
                write_report(report, what, how)
    if how.failed:
        raise typer.Exit(FAILED)


def _check_together(batch: bool, output: bool, json: bool, stream: bool, resume: bool) -> None:
    if stream and batch:
        raise UsageError(
            "--stream and --batch exclude each other",
            hint="a batch writes each row as soon as it is there",
        )
    if stream and json:
        raise UsageError(
            "--stream and --json exclude each other", hint="write the JSON to a file with -o"
        )
    if resume and not (batch and output):
        raise UsageError(
            "--resume is for a batch that writes a file", hint="give --batch FILE and -o FILE"
        )
