"""The error of a constraint that is understood, but too large."""

from __future__ import annotations

from lmc.errors import ConstraintError

__all__ = ["BudgetError"]


class BudgetError(ConstraintError):
    """An automaton outgrew its budget. Front ends say which part of the source is to blame."""
