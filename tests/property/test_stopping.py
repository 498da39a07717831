"""Stops of any pattern, against `re.search` on every beginning of the text."""

from __future__ import annotations

import re
import warnings

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lmc.constraints import automaton_of
from lmc.constraints.stopping import Stops, StopSearch
from lmc.errors import ConstraintError
from tests.property.constraints_patterns import patterns, texts
from tests.stop_oracle import first_stop


@given(
    patterns(looking=True, atomic=True),
    st.lists(texts(), min_size=1, max_size=4),
    st.sampled_from([(), ("ab",), ("b", "a-")]),
)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_text_ends_where_re_first_finds_the_pattern(
    pattern: str, some: list[str], strings: tuple[str, ...]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except re.error:
            assume(False)
    refused = ""
    try:
        automaton = automaton_of("stop_regex", pattern)
    except ConstraintError as error:
        refused = error.problem
    if refused:
        if "empty text" in refused:
            assert re.search(pattern, "") is not None
        elif "nothing can match" in refused:
            assert not any(re.search(pattern, text) for text in some)
        else:
            assert "looks too far" in refused or "too large" in refused
        return
    assert re.search(pattern, "") is None
    stops = Stops(strings, [(pattern, automaton)])
    for text in some:
        search = StopSearch(stops)
        search.start(0)
        given_out = 0
        expected = first_stop(text, strings, [pattern])
        for end, char in enumerate(text, 1):
            if search.feed(char, end):
                assert search.begin is not None
                assert search.begin >= given_out
                found = (search.begin, search.name or text[search.begin : end], end)
                assert found == expected
                break
            given_out = search.earliest(end)
        else:
            assert expected is None
