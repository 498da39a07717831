"""What must be kept back for an end: no place may be further from one than was said."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from small_tokenizers import small_vocabulary

from lmc.constraints import TokenMatcher, Vocabulary, automaton_of

RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {f"a_long_key_{n}": {"type": "integer"} for n in range(9)},
    "required": [f"a_long_key_{n}" for n in range(9)],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"value": {"enum": ["one", "two"]}, "children": {"items": {"$ref": "#"}}},
    "required": ["value", "children"],
    "additionalProperties": False,
}
SOURCES: list[tuple[str, Any]] = [
    ("regex", "no|yes, but only if there is nothing at all that speaks against it"),
    ("regex", r"\d{1,3}(?:,\d{3})*|[a-z]{40}"),
    ("regex", r"(?:x[a-f]{30}y)*"),
    ("regex", r"[\u0430-\u044f]{0,4}|\U0001F600{9}"),
    ("choices", ("a", "a b", "a long one " * 9, "bc")),
    ("json_schema", {"type": "array", "items": RECORD}),
    ("json_schema", {"anyOf": [{"type": "null"}, RECORD]}),
    ("json_schema", {"type": "array", "items": {"type": "string", "minLength": 25}}),
    ("json_schema", TREE),
    ("ebnf", 'start: "[" (start ("," start)*)? "]" | "{" start ":" start "}"'),
]
SPARE = 8  # tokens, as the runtime leaves


@pytest.mark.parametrize("kind", ["gpt2", "sentencepiece"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda pair: str(pair[1])[:20])
def test_with_more_left_no_token_is_left_out(source: tuple[str, Any], kind: str) -> None:
    matcher = TokenMatcher(automaton_of(*source), small_vocabulary(kind))
    draw = random.Random(3)
    for _ in range(3):
        matcher.reset()
        for step in range(60):
            row = matcher.mask()
            left = matcher.reserve() + SPARE + 1
            assert np.array_equal(matcher.mask_within(left), row), step
            allowed = np.flatnonzero(row).tolist()
            allowed = [t for t in allowed if t not in matcher.vocabulary.eos]
            if not allowed:
                break
            matcher.advance(draw.choice(allowed))


def test_it_is_what_the_furthest_way_takes(gpt2: Vocabulary) -> None:
    record = TokenMatcher(automaton_of("json_schema", RECORD), gpt2).shortest_tokens()
    matcher = TokenMatcher(automaton_of("json_schema", {"type": "array", "items": RECORD}), gpt2)
    assert matcher.shortest_tokens() <= 2
    assert record <= matcher.reserve() <= 1.5 * record + 10
    for token in gpt2.encode('[{"a_long_key_0":1,"a_long_key_1":1,"a_long_key_2":12'):
        matcher.advance(token)
    assert matcher.shortest_tokens() < record
    assert matcher.reserve() >= record  # another one may be begun


def test_little_is_kept_where_little_can_follow(gpt2: Vocabulary) -> None:
    matcher = TokenMatcher(automaton_of("json_schema", RECORD), gpt2)
    for token in gpt2.encode("{" + ",".join(f'"a_long_key_{n}":1' for n in range(8))):
        matcher.advance(token)
    assert matcher.reserve() < matcher.fork().shortest_tokens() + 8


def test_bytes_are_enough_where_there_is_plenty(gpt2: Vocabulary) -> None:
    matcher = TokenMatcher(automaton_of("json_schema", RECORD), gpt2)
    rough = matcher.reserve(10_000)
    assert matcher.reserve() < rough <= matcher.shortest() + 1
    assert matcher.reserve(rough) == matcher.reserve()


def test_a_guess_is_not_below_what_is_known(gpt2: Vocabulary) -> None:
    matcher = TokenMatcher(automaton_of("regex", r"(?!.{0,30}$)[a-z]*"), gpt2)
    assert matcher.reserve(least=31) >= 31
    assert TokenMatcher(automaton_of("regex", "[a-z]*"), gpt2).reserve(least=31) < 31
