"""Exit codes, and which of them an error has."""

from __future__ import annotations

from lmc.errors import LmcError, ModelError, PlanError, UsageError

__all__ = ["FAILED", "INTERRUPTED", "WRONG_USAGE", "exit_code"]

FAILED = 1  # the program, or some row of a batch
WRONG_USAGE = 2  # or unreadable input
INTERRUPTED = 130  # as a shell reports Ctrl-C


def exit_code(error: LmcError) -> int:
    """2 if what was given is at fault (arguments, files, models), 1 if the program is."""
    return WRONG_USAGE if isinstance(error, (UsageError, PlanError, ModelError)) else FAILED
