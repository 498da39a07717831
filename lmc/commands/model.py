"""`lmc model`: fetch, list and show models."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from lmc.commands import options
from lmc.commands.output import say
from lmc.errors import ModelError, RunError

__all__ = ["model_commands", "size"]

model_commands = typer.Typer(help="Fetch, list and show models.", no_args_is_help=False)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A known name, a folder, or a .gguf file.")
]


@model_commands.command("pull")
def pull_command(name: Name, traceback: options.Traceback = False) -> None:  # noqa: ARG001
    """Fetch a known model, and print where it is."""
    from lmc.runtime.store import KNOWN, pull

    try:
        say(f"{pull(name)}\n", sys.stdout)
    except ModelError as error:
        if name in KNOWN:  # the name is right: what failed is the fetching
            raise RunError(error.problem, hint=error.hint) from error
        raise


@model_commands.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
    traceback: options.Traceback = False,  # noqa: ARG001
) -> None:
    """List the known models, and whether they are on this machine."""
    from dataclasses import asdict

    from lmc.runtime.store import list_models

    entries = list_models()
    if as_json:
        say(json.dumps([asdict(entry) for entry in entries], indent=1) + "\n", sys.stdout)
        return
    for entry in entries:
        state = "here" if entry.cached else "not fetched"
        line = f"{entry.name:<16} {size(entry.bytes):>8}  {state:<12} {entry.about}"
        say(f"{line}\n", sys.stdout)


@model_commands.command("show")
def show_command(
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    traceback: options.Traceback = False,  # noqa: ARG001
) -> None:
    """Show what is known of a model: its files, configuration and tokenizer."""
    from lmc.runtime.store import show

    facts = show(name)
    if as_json:
        say(json.dumps(facts, indent=1, ensure_ascii=False, default=str) + "\n", sys.stdout)
        return
    say("".join(f"{line}\n" for line in _lines(facts, "")), sys.stdout)


def _lines(facts: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in facts.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif key == "bytes":
            yield f"{indent}size: {size(value)}"
        elif value is not None:
            shown = (
                {True: "yes", False: "no"}.get(value, value) if value in (True, False) else value
            )
            yield f"{indent}{key}: {shown}"


def size(count: int) -> str:
    """A number of bytes for people, in powers of ten."""
    number = float(count)
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if number else "-"
        number /= 1000
    return f"{number:.1f} GB"
