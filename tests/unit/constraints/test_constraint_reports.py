"""Public reports about other engines that are about masks, ends and forced text; by their ids."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from small_tokenizers import byte_level

from lmc.constraints import TokenMatcher, Vocabulary, automaton_of, compile
from lmc.errors import ConstraintError

INTEGERS = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"], "additionalProperties": False,
}  # fmt: skip


def several_ends() -> Vocabulary:
    """A vocabulary with three end tokens, and the control token number 1 that ends nothing."""
    core = byte_level()
    size = core.get_vocab_size()
    plain: list[bytes | None] = [None, None, None, None, None]
    plain += [bytes((b,)) for b in range(256)]
    assert len(plain) < size
    return Vocabulary(plain, [0, 2, 3], lambda text: [b + 5 for b in text.encode()])


def greedy(matcher: TokenMatcher, liked: bytes, steps: int = 400) -> bytes:
    """What a model writes that likes tokens that begin with `liked`, and an end above all."""
    out, tokens = b"", matcher.vocabulary.token_bytes
    for _ in range(steps):
        row = matcher.mask()
        if matcher.is_finished() or row[list(matcher.vocabulary.eos)].any():
            break
        allowed = np.flatnonzero(row).tolist()
        token = max(allowed, key=lambda t: ((tokens[t] or b"")[:1] == liked, -t))
        matcher.advance(token)
        out += tokens[token] or b""
    return out


def test_b_36_white_space_between_tokens_ends() -> None:
    vocabulary = several_ends()
    matcher = compile("json_schema", INTEGERS, vocabulary, whitespace="flexible")
    text = greedy(matcher, b"\n").decode()
    assert max(len(run) for run in text.split("\n" * 16)) < 16
    assert "\n" * 17 not in text
    matcher.reset()
    for byte in b'{"a":1' + b"\n" * 16:
        matcher.advance(byte + 5)
    assert {vocabulary.token_bytes[t] for t in np.flatnonzero(matcher.mask())} == {b","}


def test_b_37_b_43_control_tokens_only_where_they_end() -> None:
    vocabulary = several_ends()
    matcher = compile("json_schema", {"type": "string"}, vocabulary)
    for byte in b'"ab':
        assert not matcher.mask()[:5].any()
        matcher.advance(byte + 5)
    for token in range(5):
        with pytest.raises(ValueError, match="not allowed"):
            matcher.advance(token)
    matcher.advance(ord('"') + 5)
    assert matcher.mask()[:5].tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("end", [0, 2, 3])
def test_b_39_every_end_token_ends(end: int) -> None:
    matcher = compile("json_schema", {"const": 1}, several_ends())
    matcher.advance(ord("1") + 5)
    matcher.advance(end)
    assert matcher.is_finished()
    assert not matcher.mask().any()


def test_b_40_no_end_before_the_first_token(vocabulary: Vocabulary) -> None:
    matcher = compile("json_schema", INTEGERS, vocabulary)
    row = matcher.mask()
    assert not row[list(vocabulary.eos)].any()
    assert {(vocabulary.token_bytes[t] or b"")[:1] for t in np.flatnonzero(row)} == {b"{"}


def test_b_42_nothing_that_does_not_match_is_ever_allowed(vocabulary: Vocabulary) -> None:
    matcher = compile("regex", r"[A-Za-z .]+", vocabulary)
    for token in vocabulary.encode("Привет, 日本語"):
        assert not matcher.mask()[token]
        with pytest.raises(ValueError, match="not allowed"):
            matcher.advance(token)
    spelled = b"".join(vocabulary.token_bytes[t] or b"" for t in np.flatnonzero(matcher.mask()))
    assert spelled.isascii()
    assert set(spelled.decode()) <= set(" .abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@pytest.mark.parametrize("seed", range(100))
def test_b_45_the_same_text_with_forced_tokens_and_without(seed: int, gpt2: Vocabulary) -> None:
    draw = random.Random(seed)
    names = draw.sample(["name", "age", "order", "orderId", "tags", "active", "score"], 3)
    value = {name: draw.choice(["yes", True, None, ["a", []], {"red": True}]) for name in names}
    texts = []
    for jump in (False, True):
        matcher, out = compile("json_schema", {"const": value}, gpt2), b""
        while not matcher.is_complete():
            step = matcher.forced() if jump else []
            for token in step or [int(draw.choice(np.flatnonzero(matcher.mask())))]:
                matcher.advance(token)
                out += gpt2.token_bytes[token] or b""
        texts.append(out.decode())
    assert texts == [json.dumps(value, separators=(",", ":"))] * 2


def test_b_48_only_free_tokens_are_steps(gpt2: Vocabulary) -> None:
    fields: dict[str, Any] = {name: {"enum": ["yes", "no"]} for name in ("order", "active")}
    source = {"type": "object", "properties": fields, "required": list(fields),
              "additionalProperties": False}  # fmt: skip
    matcher = compile("json_schema", source, gpt2)
    tokens = gpt2.encode('{"order":"yes","active":"no"}')
    asked, at = 0, 0
    while at < len(tokens):
        forced = matcher.forced()
        asked += not forced
        for token in forced or tokens[at : at + 1]:
            assert token == tokens[at]
            matcher.advance(token)
            at += 1
    assert asked <= 4  # two choices, and a token at each seam at most
    assert asked < len(tokens) / 2


def test_y_1_items_that_all_differ_are_refused_by_name() -> None:
    source = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(ConstraintError, match="/uniqueItems: items that all differ are"):
        automaton_of("json_schema", source)
