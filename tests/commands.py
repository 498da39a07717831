"""`lmc`, called in the process of the tests, without what only a process of its own needs.

The parser is built once. Nothing is taken out of garbage collections: what all tests together hold
is many times what a run holds, and looking through it takes seconds. `test_long_lived.py` has it.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from lmc.cli import app

__all__ = ["call"]


@cache
def _parser(app: typer.Typer) -> Any:
    return typer.main.get_command(app)


def call(*args: str, stdin: str | None = None) -> Result:
    """What `lmc` with these arguments writes, and its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", _parser)
        patch.setattr("lmc.commands.running.spared_collections", contextlib.nullcontext)
        return CliRunner().invoke(app, args, input=stdin)
