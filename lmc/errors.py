"""Every error that a user of lmc can meet, and how it is shown.

LmcError                    problem, where, hint; printed in one or two lines
├── UsageError              wrong arguments, unreadable input (exit code 2)
├── TraceError              the program does what cannot be traced or means nothing
├── IRError                 a graph or its text is wrong
│   ├── ParseError          with line, column and caret
│   └── VerifyError         all violations at once
├── ConstraintError         unsupported pattern, or one that nothing can match
├── PlanError               a plan or artifact of another version, tokenizer or kind
├── ModelError              a model that cannot be found, read or fetched
├── RunError                something failed while a program ran
│   ├── CapacityError       can never fit: what is needed and what there is
│   ├── ToolError           a tool raised; the cause is chained
│   └── Cancelled           by the caller, by a deadline, or by Ctrl-C
└── InternalError           a fault of lmc itself

All but `InternalError` are for the user to repair, and say how.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Cancelled",
    "CapacityError",
    "ConstraintError",
    "IRError",
    "InternalError",
    "LmcError",
    "Location",
    "ModelError",
    "ParseError",
    "PlanError",
    "RunError",
    "ToolError",
    "TraceError",
    "UsageError",
    "VerifyError",
    "told",
]


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's program; `line` counts from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class LmcError(Exception):
    """Base of all errors: what is wrong, where in the user's program, and what to do about it.

    >>> print(LmcError("max_tokens is -1", Location("p.py", 3), hint="give 0 or more"))
    max_tokens is -1 (p.py:3)
      hint: give 0 or more
    """

    def __init__(
        self, problem: str, where: Location | None = None, *, hint: str | None = None
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.hint = hint

    def at(self, where: Location | None) -> LmcError:
        """The same error, placed at `where` unless it has a place already."""
        if self.where is None:
            self.where = where
        return self

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.problem}{place}{hint}"

    def shown(self) -> str:
        """As `str`, with the place in the first line, however long the problem is."""
        first, *rest = self.problem.splitlines() or [""]
        place = f" ({self.where})" if self.where else ""
        hint = [f"  hint: {self.hint}"] if self.hint else []
        return "\n".join([f"{first}{place}", *rest, *hint])


class UsageError(LmcError):
    """Wrong arguments or unreadable input; the command line exits with 2."""


class TraceError(LmcError):
    """The program does something that cannot be traced, or that means nothing."""


class IRError(LmcError):
    """A graph, or the text of a graph, breaks a rule of the IR."""


class ParseError(IRError):
    """The text of a graph cannot be read."""


class VerifyError(IRError):
    """A graph breaks rules; `violations` lists all of them."""

    def __init__(self, violations: list[str], where: Location | None = None) -> None:
        super().__init__("the graph is not valid:\n  " + "\n  ".join(violations), where)
        self.violations = violations


class ConstraintError(LmcError):
    """A constraint is malformed, not supported, or can never be satisfied."""


class PlanError(LmcError):
    """A plan or artifact is damaged, of another version, or made for another target."""


class ModelError(LmcError):
    """A model cannot be found, read or fetched."""


class RunError(LmcError):
    """Something failed while a program ran."""


class CapacityError(RunError):
    """A request, or a model, can never fit into the memory or the context that there is."""


class ToolError(RunError):
    """A tool raised; the cause is chained."""


class Cancelled(RunError):  # noqa: N818 - it is an outcome, as asyncio names it
    """Stopped by the caller, by a deadline, or by Ctrl-C."""


class InternalError(LmcError):
    """A fault of lmc itself."""


def told(error: BaseException) -> str:
    """An exception in words: its class, and what it says, if it can.

    Exceptions are users' own classes: telling what they say may fail, too.

    >>> told(ValueError("no"))
    'ValueError: no'
    """
    try:
        text = error.problem if isinstance(error, LmcError) else str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
