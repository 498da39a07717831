"""Grammars: both notations, left recursion, and what cannot be taken.

`grammars.jsonl` was written for this project; `chess` is after llama.cpp's chess.gbnf (MIT).
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import lark
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.constraints import TokenMatcher, Vocabulary, automaton_of, compile, load, matcher_of
from lmc.errors import ConstraintError

GRAMMARS = [
    json.loads(line)
    for line in (Path(__file__).parent / "grammars.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("notation", ["lark", "ebnf"])
@pytest.mark.parametrize("row", GRAMMARS, ids=lambda row: row["id"])
def test_grammars(row: dict[str, object], notation: str) -> None:
    found = automaton_of("ebnf", row[notation])
    valid, invalid = row["valid"], row["invalid"]
    assert isinstance(valid, list)
    assert isinstance(invalid, list)
    for text in valid:
        assert found.matches(text), text
    for text in invalid:
        assert not found.matches(text), text


@pytest.mark.parametrize(
    ("grammar", "valid", "invalid"),
    [
        ('start: e\ne: e "+" t | t\nt: t "*" f | f\nf: "x" | "(" e ")"',
         ["x", "x+x*x", "((x))*x"], ["", "x+", "+x", "(x"]),
        ('start: a\na: b "x" | "y"\nb: a "z" | "w"', ["y", "wx", "yzx", "yzxzx"], ["x", "yz"]),
        ('start: (start "+")? "1"', ["1", "1+1+1"], ["+1"]),
        ('start: A B?\nA: "a".."c"+\nB: /[0-9]/~2..3\n%import common.WS\n%ignore WS',
         ["a", "abc 123", " a 12 "], ["a1", "a1234", "a 1 2"]),
        ('start: list{"x", ","}\nlist{i, s}: i (s i)*', ["x", "x,x"], ["x,", ""]),
        ('start: "ab"i "\\"" ["é"]', ['ABé'.replace("é", '"é'), 'aB"'], ["abé"]),
        ("start: /a[b]c/i /x.y/s", ["ABCx\ny"], ["abcxy"]),
        ("?start: one -> x | two\n!one.2: \"1\"\ntwo.-1: \"2\"~3", ["1", "222"], ["2"]),
        ("%import common (INT, WORD)\nstart: INT WORD", ["1a", "12ab"], ["a1"]),
    ],
)  # fmt: skip
def test_lark_notation(grammar: str, valid: list[str], invalid: list[str]) -> None:
    found = automaton_of("ebnf", grammar)
    assert [found.matches(t) for t in valid] == [True] * len(valid)
    assert [found.matches(t) for t in invalid] == [False] * len(invalid)


@pytest.mark.parametrize(
    ("grammar", "valid", "invalid"),
    [
        ('root ::= "a"{2,3} [^b-d\\]]? other\nother ::= # nothing\n  "x" | .', ["aax", "aaaeé"],
         ["ax", "aab]x"]),
        ('root ::= (root ",")? [0-9]+', ["1", "1,22"], [",1"]),
        ('root ::= "\\n\\t\\"" | "\\u00e9"', ['\n\t"', "é"], ["n"]),
    ],
)  # fmt: skip
def test_gbnf_notation(grammar: str, valid: list[str], invalid: list[str]) -> None:
    found = automaton_of("ebnf", grammar)
    assert [found.matches(t) for t in valid] == [True] * len(valid)
    assert [found.matches(t) for t in invalid] == [False] * len(invalid)


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ("start: a", "'a'|`a`|not defined"),
        ("begin: \"a\"", "no rule `start`"),
        ("start: \"a", "cannot be read"),
        ("start: /a(?=b)/", "looks at what stands around it"),
        ("start: start", "nothing can match"),
        ('start: "a" start', "nothing can match"),
        ("root ::= other", "no rule `other`"),
        ("root ::= (", "cannot be read"),
        ("root ::= \"a\"\nroot ::= \"b\"", "defined twice"),
        ("%declare A\nstart: A", "declared, but not defined"),
        (7, "is a text"),
    ],
)  # fmt: skip
def test_refusals(grammar: object, problem: str) -> None:
    with pytest.raises(ConstraintError, match=problem):
        automaton_of("ebnf", grammar)


# -- against Lark --------------------------------------------------------------------------------

SYMBOLS = st.sampled_from(['"a"', '"b"', "x", "y", "x", "y"])
ITEMS = st.tuples(SYMBOLS, st.sampled_from(["", "", "?", "*", "+"])).map("".join)
ROWS = st.lists(ITEMS, min_size=1, max_size=3).map(" ".join)
BODIES = st.lists(ROWS, min_size=1, max_size=3).map(" | ".join)


@settings(max_examples=80, deadline=None)
@given(BODIES, BODIES)
def test_agrees_with_earley(x: str, y: str) -> None:
    grammar = f'start: x\nx: "c" | {x}\ny: "d"? | {y}'
    try:
        found = automaton_of("ebnf", grammar)
    except ConstraintError:
        return
    oracle = lark.Lark(grammar, parser="earley", lexer="dynamic_complete")
    draw = random.Random(0)
    texts = {found.sample(draw, 5) for _ in range(6)} | {"", "a", "c", "cd", "ac", "cab", "ddc"}
    for text in texts:
        try:
            oracle.parse(text)
            right = True
        except lark.exceptions.LarkError:
            right = False
        assert found.matches(text) == right, (grammar, text)


# -- left recursion that hides -------------------------------------------------------------------

HIDDEN = 'start: a\na: b a "x" | "y"\nb: "z"?'


def test_hidden_left_recursion(gpt2: Vocabulary) -> None:
    first = compile("ebnf", HIDDEN, gpt2)
    stored = json.loads(json.dumps(first.automaton.to_json()))
    for matcher in (first, matcher_of(load(stored), gpt2)):
        assert takes(matcher, "zyxx")
        assert takes(matcher, "yx")
        assert not takes(matcher, "zy")
        assert not takes(matcher, "yxz")


@pytest.mark.parametrize("tokens", [1, 2, 3, 7])
def test_hidden_left_recursion_ends_in_time(tokens: int, gpt2: Vocabulary) -> None:
    matcher = compile("ebnf", HIDDEN, gpt2)
    draw = random.Random(tokens)
    for left in range(tokens, 0, -1):
        if matcher.is_finished():
            break
        allowed = np.flatnonzero(matcher.mask_within(left)).tolist()
        texts = [t for t in allowed if t not in gpt2.eos]
        if not texts:
            break
        matcher.advance(draw.choice(texts))
    assert matcher.is_complete()


def takes(matcher: TokenMatcher, text: str) -> bool:
    matcher.reset()
    for token in matcher.vocabulary.encode(text):
        if not matcher.mask()[token]:
            return False
        matcher.advance(token)
    ends = [bool(matcher.mask()[e]) for e in matcher.vocabulary.eos]
    assert ends == [matcher.is_complete()] * len(ends)
    return matcher.is_complete()


@pytest.mark.parametrize("row", GRAMMARS, ids=lambda row: row["id"])
def test_masks_of_grammars(row: dict[str, object], gpt2: Vocabulary) -> None:
    matcher = compile("ebnf", row["lark"], gpt2)
    valid = row["valid"]
    assert isinstance(valid, list)
    for text in valid:
        assert takes(matcher, text), text
