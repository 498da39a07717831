"""Stops, against `re.search` on every beginning of the text."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.constraints import automaton_of
from lmc.constraints.stopping import Stops, StopSearch
from lmc.errors import ConstraintError
from tests.stop_oracle import first_stop

PATTERNS = (
    r"a+b", r"\bab\b", r"^b", r"(?m)^b", r"b$", r"a(?=b)", r"(?<=a)b", r"(?<!a)b+a", r"a(?!b)",
    r"(?>a|ab)b", r"\Bb", r"(?<=ab)", r"[^a]b", r"a.*b", r"é|ba", r" a?+b", r"(?i:B)\n",
    r"\b(?:a|é)\s", r"(?<=\b.)a", r"(a|b)*é", r"a{2,3}$",
)  # fmt: skip
STRINGS = ("a", "ab", "bab", "b\n", "é", "aab", " ")
STOPS = {source: automaton_of("stop_regex", source) for source in PATTERNS}


def found(
    text: str, strings: tuple[str, ...], patterns: tuple[str, ...]
) -> tuple[int, str, int] | None:
    """As `first_stop` gives it, and checks what is held back on the way."""
    search = StopSearch(Stops(strings, [(p, STOPS[p]) for p in patterns]))
    search.start(0)
    held = [0]
    for end, char in enumerate(text, 1):
        if search.feed(char, end):
            assert search.begin is not None
            assert search.begin >= max(held), "a part of the stop was given out"
            return search.begin, search.name or text[search.begin : end], end
        held.append(search.earliest(end))
    return None


@given(
    st.text("ab \né", max_size=12),
    st.lists(st.sampled_from(STRINGS), max_size=2, unique=True).map(tuple),
    st.lists(st.sampled_from(PATTERNS), max_size=2, unique=True).map(tuple),
)
@settings(max_examples=600, deadline=None)
def test_a_text_ends_where_re_first_finds_a_stop(
    text: str, strings: tuple[str, ...], patterns: tuple[str, ...]
) -> None:
    assert found(text, strings, patterns) == first_stop(text, strings, patterns)


def test_of_overlapping_strings_the_inner_one_ends_first() -> None:
    assert found("xabab", ("bab", "ab"), ()) == (1, "ab", 3)
    assert found("aab", ("ab", "aab"), ()) == (0, "aab", 3), "equal ends: the longer one"


@pytest.mark.parametrize("source", ["", "a*", "(?=b)?", r"\Z", "^"])
def test_a_pattern_that_matches_the_empty_text_is_refused(source: str) -> None:
    with pytest.raises(ConstraintError, match="matches the empty text"):
        automaton_of("stop_regex", source)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (r"a(?<!a)", "nothing can match the stop_regex"),
        (r"(?<=a+)b", "looks too far behind"),
        (r"(a)\1", "back reference"),
        (r"(a", "never closed"),
    ],
)
def test_what_cannot_stop_a_text_is_refused(source: str, problem: str) -> None:
    with pytest.raises(ConstraintError, match=problem):
        automaton_of("stop_regex", source)


def test_only_what_may_belong_to_a_stop_is_held_back() -> None:
    search = StopSearch(Stops(["END"], [("\\s+x", automaton_of("stop_regex", r"\s+x"))]))
    search.start(0)
    held = []
    for end, char in enumerate("a  bEN E", 1):
        search.feed(char, end)
        held.append(search.earliest(end))
    assert held == [1, 1, 1, 4, 4, 4, 6, 7]


def test_a_pattern_that_makes_re_backtrack_takes_linear_time() -> None:
    source = r"(a|aa)+(b|bb)+c"
    stops = Stops([], [(source, automaton_of("stop_regex", source))])
    seconds = []
    for size in (2_000, 8_000):
        search = StopSearch(stops)
        search.start(0)
        begin = time.process_time()
        for end in range(1, size + 1):
            search.feed("a", end)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 40 * seconds[0] / 4, "four times the text took far more than that"


def test_a_search_needs_no_parser() -> None:
    code = (
        "import sys; from lmc.constraints.stopping import Stops, StopSearch; "
        "s = StopSearch(Stops(['ab'])); s.start(0); s.feed('a', 1); assert s.feed('b', 2); "
        "assert 'lark' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
