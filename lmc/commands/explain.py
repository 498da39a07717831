"""`lmc explain`: what compiled, what runs eagerly and why, what each pass did, what is shared."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from lmc.commands import options
from lmc.commands.constraint import Tokenizer, fixed_share, show_constraint
from lmc.commands.output import say
from lmc.commands.predicting import batch_prediction, prediction_lines
from lmc.errors import UsageError

__all__ = ["explain_command"]

MOST_SHAPES = 3  # of a batch; the others are only counted


def explain_command(
    source: Annotated[
        str | None,
        typer.Argument(metavar="PROGRAM.py[:NAME]", help="The file, and the function in it."),
    ] = None,
    arg: options.Arg = None,
    args: options.Args = None,
    batch: options.Batch = None,
    level: options.Level = 2,
    passes: options.Passes = None,
    reorder: options.Reorder = False,
    fuse: options.Fuse = None,
    regex: Annotated[
        str | None,
        typer.Option(
            "--regex",
            metavar="PATTERN",
            help="Explain a regular expression instead, as lmc constraint does.",
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Count in tokens of this model; else of the default one."),
    ] = None,
    kv_tokens: options.KVTokens = None,
    traceback: options.Traceback = False,  # noqa: ARG001 - its callback keeps it
) -> None:
    """Explain how a program compiles, and how to change it where it does not."""
    if (source is None) == (regex is None):
        raise UsageError(
            "explain a program or a regular expression", hint="give PROGRAM.py or --regex PATTERN"
        )
    if regex is not None:
        show_constraint("regex", regex, tokenizer)
        return
    if tokenizer is not None:
        raise UsageError("--tokenizer goes with --regex", hint="leave it out")
    assert source is not None, "one of them is given"
    if re.fullmatch(r"LMC\d+", source):
        there = "errors have no numbers in this version; docs/errors.md lists their kinds"
        say(f"{source}: {there}\n", sys.stdout)
        return
    from lmc.commands.counting import meter_of
    from lmc.commands.given import given_arguments
    from lmc.commands.grouping import groups_of, shape_of, shared_of
    from lmc.commands.report import report_of
    from lmc.commands.source import faults_of_program, load_program
    from lmc.frontend.arguments import flatten

    chosen = options.compile_options(level, passes, reorder=reorder, fuse=fuse)
    program = load_program(source)
    given = given_arguments(program, arg, args)
    groups = groups_of(program, batch, args, given)
    flat = groups[0].flat if groups else flatten(program.arguments(given, symbolic=True))
    with faults_of_program():
        shared = shared_of(program, groups, chosen)
        compiled = program.compiled_for(flat, shared, chosen)
    shapes = [shape_of(program, group, chosen, shared) for group in groups] if batch else None
    meter = meter_of(compiled.program, model)
    report = report_of(compiled, shapes, meter)
    if batch is not None:
        report["batch"]["predicted"] = batch_prediction(
            program, groups, meter.model, kv_tokens, chosen
        )
    say("\n".join(_lines(report)) + "\n", sys.stdout)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{report['program']} ({report['source']})"
    yield f"  arguments left open: {', '.join(report['parameters']) or 'none'}"
    if report["shared_parameters"]:
        yield f"  the same in all rows: {', '.join(report['shared_parameters'])}"
    yield ""
    yield from _compiled(report)
    yield ""
    yield f"passes (-O {report['level']})" if report["passes"] else "passes: none"
    for record in report["passes"]:
        did = "nothing to do"
        if record["changed"]:
            did = f"{record['nodes_before']} -> {record['nodes_after']} nodes"
        yield f"  {record['name']:<16} {did:<20} {record['seconds'] * 1e3:>6.1f} ms"
        yield from (f"      {deed}" for deed in record["did"])
    yield ""
    yield from _shared(report["shared"])
    yield ""
    yield from _late(report)
    if "batch" in report:
        yield from _batch(report["batch"])
    yield from _constraints(report["constraints"])


def _compiled(report: dict[str, Any]) -> Iterator[str]:
    ways = report["ways"]
    if report["compiled_fully"]:
        yield f"compiled: all of it, {ways} way{'s' * (ways != 1)} through it"
    else:
        ends = report["resumes"]
        yield f"compiled: {ways - len(ends)} of {ways} ways; the others go on eagerly from"
        told = Counter((end["at"], end["reason"], end["advice"]) for end in ends)
        for (at, reason, advice), count in told.items():
            yield f"  {at or 'an unknown line'}: {reason}" + f" ({count} ways)" * (count > 1)
            yield f"    to compile it: {advice}"
    yield f"  model calls a row: {_range(report['model_calls'])}"
    yield f"  tokens generated a row: at most {report['most_generated_tokens']}"
    yield (
        f"  constant text a row: {_range(report['known_characters'])} characters, "
        f"read {_range(report['repeated_characters'])} without a cache"
    )
    work = report["work"]["optimized"]
    yield (
        f"  on the longest way: {work['requests']} requests, at most {work['steps']} steps of the "
        f"model one after another"
    )
    if report["unit"] == "tokens":
        yield (
            f"    {work['prompt']} tokens of prompt are known, markup of messages among them, "
            f"read {work['prompt_repeated']} without a cache"
        )


def _range(bounds: dict[str, int]) -> str:
    least, most = bounds["least"], bounds["most"]
    return str(most) if least == most else f"{least} to {most}"


def _shared(shared: list[dict[str, Any]]) -> Iterator[str]:
    if not shared:
        yield "shared: nothing is computed ahead; the cache still finds equal beginnings"
        return
    yield "shared: computed once, then read from the cache"
    told: Counter[str] = Counter()  # the ways of a program may have one line
    for one in shared:
        calls = one["model_calls"]
        readers = f"{calls} model call{'s' * (calls != 1)} of a row"
        if one["all_rows"]:
            readers += ", the same in all rows"
        told[f"  {one['at'] or 'an unknown line'}: the prompt up to here, for {readers}"] += 1
    for line, count in told.items():
        yield line + (f" ({count} prompts)" if count > 1 else "")


def _late(report: dict[str, Any]) -> Iterator[str]:
    for late in report["late_arguments"]:
        whole = late["shared"] + late["behind"]
        yield f"{late['at'] or 'an unknown line'}: `{late['argument']}` stands before constant text"
        yield f"  rows share {late['shared']} bytes of it now, and {whole} if what varies came last"
        yield ""


def _batch(batch: dict[str, Any]) -> Iterator[str]:
    shapes = batch["shapes"]
    many = f"{len(shapes)} shapes" if len(shapes) > 1 else "one shape"
    yield f"batch: {batch['rows']} rows of {many}"
    for shape in shapes[:MOST_SHAPES]:
        if shape["rows"] > 1:
            yield from _difference(shape)
    if len(shapes) > MOST_SHAPES:
        yield f"  and {len(shapes) - MOST_SHAPES} more shapes"
    first = batch["first_prompts"]
    if first is not None and first["prompts"]:
        yield (
            f"  first prompts: {first['total_tokens']} tokens, {first['distinct_tokens']} without "
            f"repetition: the cache can give {first['hit_rate']:.0%}"
        )
    yield from prediction_lines(batch["predicted"])
    yield ""


def _difference(shape: dict[str, Any]) -> Iterator[str]:
    found = shape["first_difference"]
    if found is None:
        yield f"  {shape['rows']} rows: their first prompts do not differ, as far as they are known"
        return
    piece = f"`{found['piece']}`" if found["piece"] else "the ways that they take"
    yield (
        f"  {shape['rows']} rows: their first prompts share {found['shared']} bytes; then they "
        f"differ in {piece} ({found['at'] or 'an unknown line'})"
    )
    for row in found["rows"]:
        shown = json.dumps(found["before"], ensure_ascii=False)[1:-1]
        text = json.dumps(row["text"], ensure_ascii=False)[1:-1]
        yield f"    line {row['line']}: {shown}>>>{text}"
    if found["later"]:
        yield (
            f"    behind it {found['later']} bytes are the same in all rows: in front of it they "
            f"would be shared, too"
        )


def _constraints(constraints: list[dict[str, Any]]) -> Iterator[str]:
    if not constraints:
        yield "constraints: none"
        return
    from lmc.commands.automata import MOST_STATES

    yield "constraints"
    for one in constraints:
        # the branches of a fork have one line in the program
        gens = ", ".join(dict.fromkeys(f"{gen['name']} ({gen['at']})" for gen in one["gens"]))
        given = {**one["options"], "waive": ", ".join(one["options"].get("waive", ()))}
        more = "".join(f", {name} {value}" for name, value in given.items() if value)
        source = str(one["source"]).replace("\n", "\\n")
        yield f"  {gens}: {one['kind']} {source}{more}"
        if one["fixed"] is None:
            yield "    its texts are too long to look at"
            continue
        yield f"    {one['states'] or f'more than {MOST_STATES}'} states"
        shortest, random = one["fixed"]["shortest"], one["fixed"]["random"]
        share = fixed_share(shortest["fixed"], shortest["bytes"], random["least"], random["most"])
        yield f"    fixed, so that the model need not be asked: {share}"
