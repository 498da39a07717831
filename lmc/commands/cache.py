"""`lmc cache`: what is kept on disk of earlier runs, besides models."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from lmc.commands import options
from lmc.commands.model import size
from lmc.commands.output import say

__all__ = ["cache_commands"]

cache_commands = typer.Typer(help="List or clear what is kept on disk.", no_args_is_help=False)


@cache_commands.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
    traceback: options.Traceback = False,  # noqa: ARG001
) -> None:
    """List the kinds of what is kept, how many of each, and their size."""
    from lmc.disk_cache import caches, is_on

    held = [(cache.kind, *cache.size(), str(cache.folder)) for cache in caches()]
    if as_json:
        names = ("kind", "entries", "bytes", "path")
        rows = [dict(zip(names, entry, strict=True)) for entry in held]
        say(json.dumps(rows, indent=1) + "\n", sys.stdout)
        return
    for kind, count, total, path in held:
        say(f"{kind:<12} {count:>6}  {size(total):>8}  {path}\n", sys.stdout)
    if not is_on():
        say("LMC_CACHE is off: nothing is read or written\n", sys.stdout)
    elif not held:
        say("nothing is kept yet\n", sys.stdout)


@cache_commands.command("clear")
def clear_command(traceback: options.Traceback = False) -> None:  # noqa: ARG001
    """Remove what is kept; it is made again when it is needed. Models stay."""
    from lmc.disk_cache import caches

    removed = sum(cache.clear() for cache in caches())
    say(f"{removed} entries removed\n", sys.stdout)
