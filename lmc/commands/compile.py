"""`lmc compile`: a program's graph, plan or artifact. Needs no model and no torch."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmc.commands import options
from lmc.commands.output import note, say, writing

if TYPE_CHECKING:
    from lmc.api import Program
    from lmc.commands.report import Shape
    from lmc.driver import Compiled
    from lmc.ir.core import Program as Graph

__all__ = ["compile_command"]

MOST_EDGES = 60  # drawn of a constraint


class Emit(enum.StrEnum):
    """What `--emit` can show."""

    ir = "ir"
    json = "json"
    dot = "dot"
    mermaid = "mermaid"
    svg = "svg"
    html = "html"
    plan = "plan"
    report = "report"


def compile_command(
    source: options.Source,
    arg: options.Arg = None,
    args: options.Args = None,
    batch: options.Batch = None,
    level: options.Level = 2,
    passes: options.Passes = None,
    reorder: options.Reorder = False,
    fuse: options.Fuse = None,
    emit: Annotated[
        Emit | None, typer.Option("--emit", help="What to show; by default the graph, as text.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The file to write: an artifact if it ends in .lmc."),
    ] = None,
    dump_ir: Annotated[
        Path | None,
        typer.Option("--dump-ir", metavar="DIR", help="Keep the graph before and after each pass."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Let the artifact run with this model's tokenizer only."),
    ] = None,
    kv_tokens: options.KVTokens = None,
    traceback: options.Traceback = False,  # noqa: ARG001 - its callback keeps it
) -> None:
    """Compile a program, without a model.

    Texts among the arguments stay open: a program is compiled for their number and shape, and for
    the values of everything else. lmc run runs what was compiled, lmc bench measures how fast.
    """
    from lmc.commands.given import given_arguments
    from lmc.commands.grouping import groups_of, shape_of, shared_of
    from lmc.commands.predicting import batch_prediction
    from lmc.commands.source import faults_of_program, load_program, source_path
    from lmc.frontend.arguments import flatten

    if options.to_stdout(output):
        output = None
    artifact = output is not None and (emit is None or output.suffix == ".lmc")
    if model is not None and not artifact and emit not in (Emit.html, Emit.report):
        note("--model only matters for artifacts, --emit html and --emit report")
    if output is not None:
        options.check_writable(output, "-o")
        options.check_apart(
            [(output, "-o")], [(batch, "--batch"), (source_path(source), "the program")]
        )
    chosen = options.compile_options(level, passes, dump_ir, reorder=reorder, fuse=fuse)
    program = load_program(source)
    given = given_arguments(program, arg, args)
    groups = groups_of(program, batch, args, given)
    shared = {} if artifact else shared_of(program, groups, chosen)  # it runs on other rows, too
    flat = groups[0].flat if groups else flatten(program.arguments(given, symbolic=True))
    with faults_of_program():
        compiled = program.compiled_for(flat, shared, chosen)
    shapes = None
    if emit in (Emit.report, Emit.html) and batch is not None:
        shapes = [shape_of(program, group, chosen, shared) for group in groups]
    elif len(groups) > 1:
        note(f"the rows of {batch} have {len(groups)} shapes; this is the first one's")
    if artifact:
        assert output is not None, "an artifact has a file"
        _write_artifact(output, program, compiled, model)
    if emit is None and artifact:
        return
    predicted = None
    if shapes is not None:
        predicted = batch_prediction(program, groups, model, kv_tokens, chosen)
    text = _emitted(emit or Emit.ir, compiled, shapes, model, predicted)
    if output is None or artifact:
        say(text, sys.stdout)
    else:
        with writing(output):
            output.write_text(text, encoding="utf-8")


def _write_artifact(path: Path, program: Program, compiled: Compiled, model: str | None) -> None:
    from lmc.codegen.artifact import Artifact, write_artifact

    tokenizer = template = None
    if model is not None:
        from lmc.runtime.load import load_tokenizer
        from lmc.runtime.store import resolve

        loaded = load_tokenizer(resolve(model))
        tokenizer, template = loaded.fingerprint, loaded.template_fingerprint
    with writing(path):
        write_artifact(
            path,
            Artifact(compiled.plan, str(compiled.program), tokenizer, template, program.defaults()),
        )
    for warning in dict.fromkeys(_ends(compiled.program)):
        note(warning)


def _ends(graph: Graph) -> Iterator[str]:
    """Warnings: where an artifact cannot go on, because it has no source to run eagerly."""
    from lmc.commands.report import advice
    from lmc.ir.ops import HostCall, Resume

    for node in graph.walk():
        if isinstance(node.op, HostCall):
            yield (
                f"warning: the artifact does not hold the tool {node.op.fn}()\n"
                f"  hint: give it to lmc.load(..., tools=[{node.op.fn}])"
            )
        if isinstance(node.op, Resume):
            yield (
                f"warning: the artifact cannot go on from {node.at or 'an unknown line'}: "
                f"{node.op.reason}\n  hint: {advice(node.op.reason)}"
            )


def _emitted(
    emit: Emit,
    compiled: Compiled,
    shapes: list[Shape] | None,
    model: str | None,
    predicted: dict[str, Any] | None,
) -> str:
    from lmc.commands.automata import automata_beside
    from lmc.ir import export

    graphs: dict[Emit, Callable[[Graph], str]] = {
        Emit.ir: str,
        Emit.dot: lambda graph: export.to_dot(graph, automata_beside(graph, MOST_EDGES)),
        Emit.mermaid: export.to_mermaid,
        Emit.svg: export.to_svg,
    }
    if emit in graphs:
        return graphs[emit](compiled.program)
    if emit is Emit.html:
        from lmc.commands.counting import meter_of
        from lmc.commands.page import page_of

        meter = meter_of(compiled.program, model)
        return page_of(compiled, meter, shapes=shapes, predicted_costs=predicted)
    held: dict[str, Any]
    if emit is Emit.json:
        held = export.to_json(compiled.program)
    elif emit is Emit.plan:
        held = compiled.plan.to_json()
    else:
        from lmc.commands.counting import CHARACTERS, meter_of
        from lmc.commands.report import report_of

        meter = CHARACTERS if model is None else meter_of(compiled.program, model)
        held = report_of(compiled, shapes, meter)
        if shapes is not None:
            held["batch"]["predicted"] = predicted
    return json.dumps(held, indent=1, ensure_ascii=False) + "\n"
