"""Random small schemas against `jsonschema`, both ways.

What the automaton gives is valid, and what is valid, written in the order of the schema, is taken.
Values are drawn from a small world, so that schemas and values meet.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from jsonschema.exceptions import ValidationError

from lmc.constraints import automaton_of
from lmc.errors import ConstraintError

SCALARS: list[Any] = [None, True, False, 0, 1, 2, -3, 2.5, "", "a", "ab", "\nb", "é", "::1"]
NAMES = ["a", "b", "ab"]
VALUES: list[Any] = [
    *SCALARS,
    [], [0], ["a", 1], [None, "ab", 2.5], [1, 2, 2],
    {}, {"a": 1}, {"b": "a"}, {"a": 0, "b": "ab"}, {"a": [], "ab": None},
    {"a": 1, "b": 2, "ab": 2.5}, [{"a": 1}], {"b": {"a": 2}}, {"b": 0, "a": {"b": 1, "a": []}},
    {"ab": {"a": {"b": None}}}, [[0], [["a"]]], [2, "a", None, 2.5],
]  # fmt: skip

counts = st.integers(0, 3)
simple = st.one_of(
    st.sampled_from([True, True, False, {}]),
    st.fixed_dictionaries({"type": st.sampled_from(
        ["null", "boolean", "integer", "number", "string", "array", "object"])}),
    st.fixed_dictionaries({"enum": st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": st.sampled_from(VALUES)}),
    st.fixed_dictionaries({"minimum": st.sampled_from([0, 1, 1.5])}),
    st.fixed_dictionaries({"exclusiveMaximum": st.sampled_from([1, 2.5])}),
    st.fixed_dictionaries({"multipleOf": st.sampled_from([1, 2, 0.5])}),
    st.fixed_dictionaries({"minLength": counts, "maxLength": counts}),
    st.fixed_dictionaries({"pattern": st.sampled_from(["a", "^a", "b$", "^(a|b)*$", "[^a]"])}),
    st.fixed_dictionaries({"format": st.sampled_from(["ipv6", "date", "uuid"])}),
    st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/$defs/d", "#/$defs/e"])}),
)  # fmt: skip


def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    keywords = {
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(["a", "^b"]), inner, max_size=2),
        "additionalProperties": inner,
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        "propertyNames": inner,
        "minProperties": counts,
        "maxProperties": counts,
        "items": inner,
        "prefixItems": parts,
        "minItems": counts,
        "maxItems": counts,
        "contains": inner,
        "maxContains": counts,
        "uniqueItems": st.just(True),
        "allOf": parts,
        "anyOf": parts,
        "oneOf": parts,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "dependentRequired": st.dictionaries(
            st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            max_size=1,
        ),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
        "$ref": st.sampled_from(["#", "#/$defs/d", "#/$defs/e"]),
    }  # fmt: skip
    chosen = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=3, unique=True)
    made = chosen.flatmap(lambda words: st.fixed_dictionaries({w: keywords[w] for w in words}))
    return st.one_of(made, st.tuples(made, simple).map(merged)).map(without_idle_if)


def merged(pair: tuple[dict[str, Any], Any]) -> dict[str, Any]:
    first, second = pair
    return {**(second if isinstance(second, dict) else {}), **first}


def without_idle_if(schema: dict[str, Any]) -> dict[str, Any]:
    """An `if` by itself says nothing, but the oracle may follow it around in a circle."""
    if schema.keys().isdisjoint({"then", "else"}):
        schema.pop("if", None)
    return schema


parts = st.recursive(simple, deeper, max_leaves=5)
schemas = st.tuples(parts, parts, parts).map(
    lambda three: {
        **(three[0] if isinstance(three[0], dict) else {"allOf": [three[0]]}),
        **({"$defs": {"d": three[1], "e": three[2]}} if "$ref" in repr(three[0]) else {}),
    }
)


def spellings(value: Any) -> list[str]:
    """A value with its keys in every order."""
    if isinstance(value, list):
        rows = itertools.product(*map(spellings, value))
        return ["[" + ",".join(row) + "]" for row in rows]
    if isinstance(value, dict):
        found = []
        for order in itertools.permutations(value):
            for row in itertools.product(*(spellings(value[k]) for k in order)):
                pairs = zip(map(json.dumps, order), row, strict=True)
                found.append("{" + ",".join(f"{k}:{v}" for k, v in pairs) + "}")
        return found
    return [json.dumps(value, ensure_ascii=False)]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({k for k, _ in pairs}) == len(pairs)
    return dict(pairs)


def has_repeats(text: str) -> bool:
    try:
        json.loads(text, object_pairs_hook=unique)
    except AssertionError:
        return True
    return False


def is_huge(text: str) -> bool:
    """Whether a number in it may be beyond what the oracle can take for one."""
    return re.search(r"[eE]\+?\d{3}", text) is not None


def pattern(_: Any, pattern: str, instance: object, __: object) -> Iterator[ValidationError]:
    """As the standard has it: Python's `$` would also match before a last line feed."""
    if isinstance(instance, str) and not re.search(pattern.replace("$", r"\Z"), instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


Oracle = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern})


def is_valid(oracle: Any, value: object) -> bool:
    """What the oracle says; of a definition that is nothing but itself it has no verdict."""
    try:
        return bool(oracle.is_valid(value))
    except RecursionError:
        reject()


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(schemas)
@example({"not": {"pattern": "b$"}, "enum": ["b\n", "b"]})
def test_schemas_mean_what_jsonschema_says(schema: Any) -> None:
    oracle = Oracle(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    problem = ""
    try:
        found = automaton_of("json_schema", schema)
    except ConstraintError as error:
        problem = error.problem
    if "refers to itself" in problem or "all differ" in problem:
        return
    if problem:
        # What is refused is refused for its size, or since nothing is valid.
        assert "nothing can match" in problem or "too" in problem
        assert "too" in problem or not any(is_valid(oracle, v) for v in VALUES)
        return
    for value in VALUES:
        taken = any(found.matches(text) for text in spellings(value))
        assert taken == is_valid(oracle, value), value
    draw = random.Random(0)
    for about in (0, 5, 15, 30):
        text = found.sample(draw, about)
        if not has_repeats(text) and not is_huge(text):  # the matcher sees to the former
            assert is_valid(oracle, json.loads(text)), text
