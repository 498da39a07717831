"""Any regular expression means what Python's `re.fullmatch` says."""

from __future__ import annotations

import itertools
import random
import re
import warnings

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from lmc.constraints import Automaton
from lmc.constraints.regex import parse
from lmc.errors import ConstraintError
from tests.property.constraints_patterns import ALPHABET, patterns, texts

SHORT = ["".join(t) for n in range(4) for t in itertools.product("ab0é\n", repeat=n)]


def compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return re.compile(pattern)
        except re.error:  # look-behinds of changing width, which we take and `re` does not
            assume(False)
            raise


def agree(pattern: str, seen: list[str]) -> None:
    oracle = compiled(pattern)
    automaton = Automaton(parse(pattern))
    for text in (*SHORT, *seen):
        assert automaton.matches(text) == bool(oracle.fullmatch(text)), (pattern, text)
    if automaton.is_empty():
        return
    draw = random.Random(len(pattern))
    for _ in range(4):
        text = automaton.sample(draw, 8)
        assert oracle.fullmatch(text), (pattern, text)
        at = draw.randrange(len(text) + 1)  # and a text that is nearly one
        near = text[:at] + draw.choice(["", *ALPHABET]) + text[at + draw.randrange(2) :]
        assert automaton.matches(near) == bool(oracle.fullmatch(near)), (pattern, near)


@settings(max_examples=300, deadline=None)
@given(patterns(), st.lists(texts(), max_size=12))
@example(r"(?:\b(?=a)|b)*a", [])
@example(r"(?<=^|b)a|(?:a(?!b)){1,3}", ["aaa"])
@example(r"\s*ab(?=0)", [])
def test_patterns_with_look_around(pattern: str, seen: list[str]) -> None:
    agree(pattern, seen)


@settings(max_examples=300, deadline=None)
@given(patterns(atomic=True), st.lists(texts(), max_size=12))
@example("(?:(?:[\\w-])*?)++", [])
@example(r"[\w-](?:(?:(?:[ab]){1,3}){2}+)*+", ["abb"])
def test_patterns_that_take_the_first_match(pattern: str, seen: list[str]) -> None:
    agree(pattern, seen)


@settings(max_examples=150, deadline=None)
@given(patterns(), st.sampled_from(["i", "s", "m", "a", "x", "im", "sx"]))
def test_flags_for_the_whole_pattern(pattern: str, flags: str) -> None:
    agree(f"(?{flags}){pattern}", [])


@settings(max_examples=400, deadline=None)
@given(st.text(r"ab0\[](){}?*+|^$.-,=!<>:#&PiwdsBx", max_size=10))
def test_what_re_takes_we_take_and_what_it_refuses_we_refuse(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            re.compile(pattern)
            problem = ""
        except re.error as error:
            problem = str(error)
        except (OverflowError, RecursionError):
            return
    try:
        parse(pattern)
        ours = ""
    except ConstraintError as error:
        ours = str(error)
    if ours:
        assert problem or "not regular" in ours, (pattern, ours)
    else:  # we take look-behinds of any width, and properties
        extra = ("look-behind", r"bad escape \p", r"bad escape \P")
        assert not problem or problem.startswith(extra), (pattern, problem)


@settings(max_examples=100, deadline=None)
@given(patterns(atomic=True))
def test_stored_automata_are_the_same(pattern: str) -> None:
    automaton = Automaton(parse(pattern))
    again = Automaton.from_json(automaton.to_json())
    assert again == automaton
    assert again.expression == automaton.expression
