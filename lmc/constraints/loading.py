"""Constraints out of plans, and matchers for them, whatever kind they are.

load(data)                      what `to_json` wrote
matcher_of(constraint, vocab)   a matcher at its beginning
"""

from __future__ import annotations

from typing import Any

from lmc.constraints.automaton import Automaton
from lmc.constraints.json_keys import JsonAutomaton, JsonMatcher
from lmc.constraints.matcher import TokenMatcher
from lmc.constraints.vocabulary import Vocabulary

__all__ = ["load", "matcher_of"]


def load(data: dict[str, Any]) -> Automaton:
    """Read a constraint that a plan stores.

    Raises:
        PlanError: the data is damaged or of another version.
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    found = Automaton.from_json(data)
    return JsonAutomaton(found.expression) if kind == "json" else found


def matcher_of(constraint: Automaton, vocabulary: Vocabulary) -> TokenMatcher:
    """A matcher at the beginning of a constraint.

    Raises:
        ConstraintError: nothing matches, or the vocabulary cannot spell anything that does.
    """
    if isinstance(constraint, JsonAutomaton):
        return JsonMatcher(constraint, vocabulary)
    return TokenMatcher(constraint, vocabulary)
