"""`lmc bench`: LM programs on this machine; on the CPU beside transformers in one process."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lmc.commands import options
from lmc.commands.output import say, writing
from lmc.errors import UsageError

__all__ = ["KEEP", "bench_command"]

KEEP = "<!-- what stands below was not written by this command -->"


def bench_command(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]...",
            help='Figures to measure; "cpu" is all of them, "gpu" those for a CUDA device, '
            '"programs" programs compiled beside eager (names after these are some of theirs).',
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the table as Markdown.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads for both.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each figure, after one more.")] = 3,
    no_peer: Annotated[
        bool, typer.Option("--no-peer", help="Do not measure transformers as well.")
    ] = False,
    peer: Annotated[
        Path | None,
        typer.Option(
            "--peer", metavar="FILE", help="With gpu: another engine's figures, as JSON lines."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Number format of both.")] = "auto",
    model: Annotated[
        str, typer.Option(help="With gpu or programs: a known name, a folder or a .gguf file.")
    ] = options.DEFAULT_MODEL,
    weights: Annotated[
        str | None, typer.Option(help='With gpu: "random" needs no weights but only a config.')
    ] = None,
    kv_share: Annotated[
        list[float] | None,
        typer.Option(
            "--kv-share",
            min=0.0,
            help="With programs: also with a KV cache of this share of all tokens.",
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="With gpu: results that do not depend on the batch."),
    ] = False,
    tensor_parallel: options.TensorParallel = 1,
    traceback: options.Traceback = False,  # noqa: ARG001
) -> None:
    """Measure, print a table, and say in which circumstances it was made."""
    report: Any
    from lmc.bench.cpu import as_markdown, run
    from lmc.bench.gpu import gpu_markdown, run_gpu
    from lmc.bench.peer_lines import beside, read_peer

    for option, path in (("--json", json), ("--write", write)):
        if path is not None:
            options.check_writable(path, option)
    if peer is not None and (workloads or ["cpu"])[0] != "gpu":
        raise UsageError(
            "--peer FILE goes with gpu",
            hint="on the CPU transformers is measured beside lmc, unless there is --no-peer",
        )
    if workloads and workloads[0] == "gpu":
        theirs = None if peer is None else read_peer(peer)
        report = run_gpu(
            workloads[1:],
            model=model,
            weights=weights,
            dtype=dtype,
            deterministic=deterministic,
            tensor_parallel=tensor_parallel,
            repeats=repeats,
            say=lambda line: print(line, file=sys.stderr),
        )
        report = report if theirs is None else beside(report, theirs)
        table = gpu_markdown(report)
    elif workloads and workloads[0] == "programs":
        from lmc.bench.programs import programs_markdown, run_programs

        report = run_programs(
            workloads[1:],
            shares=kv_share or (),
            model=model,
            threads=threads,
            repeats=repeats,
            dtype=dtype,
            say=lambda name: print(f"measuring {name}", file=sys.stderr),
        )
        table = programs_markdown(report)
    else:
        report = run(
            [name for name in workloads or () if name != "cpu"],
            threads=threads,
            repeats=repeats,
            peer=not no_peer,
            dtype=dtype,
            say=lambda name: print(f"measuring {name}", file=sys.stderr),
        )
        table = as_markdown(report)
    if json is not None:
        with writing(json):
            json.write_text(json_text.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    if write is not None:
        with writing(write):
            write.write_text(table + _kept_below(write), encoding="utf-8")
    say(table, sys.stdout)


def _kept_below(path: Path) -> str:
    """What a page that is written again keeps: all below a line that says so."""
    if not path.is_file():
        return ""
    _, mark, below = path.read_text(encoding="utf-8").partition(KEEP)
    return f"\n{KEEP}{below}" if mark else ""
