"""Stored automata that were tampered with: refused with one clear error, or of some meaning."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.constraints import automaton_of, load
from lmc.errors import ConstraintError, PlanError

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 20}, "b": {"items": {"$ref": "#"}}},
    "additionalProperties": {"type": "string", "maxLength": 3},
}
STORED = [
    json.dumps(automaton.to_json())
    for automaton in (
        automaton_of("regex", r"(?i)stra[^\d]{2,30}(?<!x)(?=!)!|a*+b|(?!c)\p{Lu}"),
        automaton_of("regex", r"(?:ab|[^a-c]){3,}?") & automaton_of("regex", r".{0,9}"),
        automaton_of("json_schema", SCHEMA),
        automaton_of("ebnf", 'start: "(" start* ")" | /[a-f]+/'),
        automaton_of("choices", ["yes", "no", "never"]),
    )
]
VALUES: list[Any] = [
    None, True, -1, 0, 1, 2, 7, 10**9, 10**30, 0.5, "", "a", "\ud800", "rules", "repeat", "ref",
    "not", "chars", [], [3], [0, 97], {}, "eJwzMgQAAZQAyA==",
]  # fmt: skip


def changed(value: Any, draw: st.DataObject) -> Any:
    """A value in which one place is replaced, left out or doubled."""
    inside = isinstance(value, list | dict) and value
    if not inside or draw.draw(st.integers(0, 9)) == 0:
        return draw.draw(st.sampled_from(VALUES))
    if isinstance(value, dict):
        key = draw.draw(st.sampled_from(sorted(value)))
        return {**value, key: changed(value[key], draw)}
    at = draw.draw(st.integers(0, len(value) - 1))
    match draw.draw(st.integers(0, 9)):
        case 0:
            middle = []
        case 1:
            middle = [value[at], value[at]]
        case 2:
            middle = [value[draw.draw(st.integers(0, len(value) - 1))]]
        case _:
            middle = [changed(value[at], draw)]
    return [*value[:at], *middle, *value[at + 1 :]]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(STORED), st.integers(1, 3), st.data())
def test_tampered_data_is_refused_or_works(stored: str, times: int, draw: st.DataObject) -> None:
    data = json.loads(stored)
    for _ in range(times):
        data = changed(data, draw)
    try:
        found = load(data)
    except PlanError:
        return
    try:
        for text in ("", "ab", '{"a":1}', "(a())", "never"):
            found.matches(text)
        if not found.is_empty():
            assert found.matches(found.sample(random.Random(0), 5))
    except ConstraintError:
        pass  # rules that begin with themselves, or too many states
