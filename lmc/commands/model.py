"""`lmc model`: fetch, list and show models."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from lmc.commands import options
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
        print(pull(name))
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
        print(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    for entry in entries:
        state = "here" if entry.cached else "not fetched"
        print(f"{entry.name:<16} {size(entry.bytes):>8}  {state:<12} {entry.about}")


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
        print(json.dumps(facts, indent=1, ensure_ascii=False, default=str))
        return
    _print(facts, "")


def _print(facts: dict[str, Any], indent: str) -> None:
    for key, value in facts.items():
        if isinstance(value, dict):
            print(f"{indent}{key}:")
            _print(value, indent + "  ")
        elif key == "bytes":
            print(f"{indent}size: {size(value)}")
        elif value is not None:
            shown = (
                {True: "yes", False: "no"}.get(value, value) if value in (True, False) else value
            )
            print(f"{indent}{key}: {shown}")


def size(count: int) -> str:
    """A number of bytes for people, in powers of ten."""
    number = float(count)
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if number else "-"
        number /= 1000
    return f"{number:.1f} GB"
