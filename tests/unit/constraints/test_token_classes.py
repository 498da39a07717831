"""Tables of token classes: the masks and steps of matchers, dense."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from lmc.constraints import TokenMatcher, Vocabulary, automaton_of, matcher_of, tabulating
from lmc.constraints import token_classes as module
from lmc.constraints.budget import BudgetError
from lmc.constraints.tabulating import WORTHWHILE, tabulate
from lmc.constraints.token_classes import ENDED, LEAST_CAP, LOST, TokenClasses, token_classes
from lmc.constraints.token_steps import steps_from, steps_from_arrays
from tests.unit.constraints.small_tokenizers import VOCABULARIES, small_vocabulary

PATTERNS = (
    r'\{"name": "[A-Za-z ]{1,9}", "age": \d{1,3}\}',
    r"(?:ha){2,6}|hah",
    r"[^\s]*é?",
    r"(?=.*a)[ab]{3,5}(?<!bb)",
    r"\w+(?: \w+)*[.!]",
)


def table_of(pattern: str, vocabulary: Vocabulary, **bounds: Any) -> TokenClasses:
    matcher = TokenMatcher(automaton_of("regex", pattern), vocabulary)
    machine, table = matcher.automaton.machine, matcher._table
    return token_classes(machine, vocabulary, lambda at: table.forced(at, None), **bounds)


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("bounds", [{}, {"most_states": 3}, {"most_steps": 40}])
def test_walks_agree_with_the_matcher(kind: str, pattern: str, bounds: dict[str, int]) -> None:
    vocabulary = small_vocabulary(kind)
    automaton = automaton_of("regex", pattern)
    table = table_of(pattern, vocabulary, **bounds)
    draw = random.Random(pattern)
    met = set()
    for _ in range(8):
        matcher, state = TokenMatcher(automaton, vocabulary), 0
        for _ in range(30):
            wanted = matcher.mask()
            assert (table.mask(state) == wanted).all()
            assert table.numbers[matcher.place[0]] == state
            forced = matcher._table.forced(matcher.place[0], None)
            if not forced:
                assert table.forced[state] == -1 or state in met
            token = draw.choice(np.flatnonzero(wanted).tolist())
            matcher.advance(token)
            state = table.step(state, token)
            if state < 0:
                assert (state == ENDED) == (token in vocabulary.eos)
                inside = matcher.place[0] % automaton.machine.nodes > 0
                assert (
                    state == ENDED or inside or (bounds and matcher.place[0] not in table.numbers)
                )
                break
            if forced and token == forced[0]:
                met.add(state)
    assert table.next.shape[1] < len(vocabulary) / 3
    assert (table.next[:, 0] == -1).all()


def test_what_is_forced_and_how_far_the_end_is() -> None:
    vocabulary = small_vocabulary("gpt2")
    table = table_of(r"(yes|no), said the other", vocabulary)
    state, found = table.step(0, vocabulary.encode("yes")[0]), []
    while (token := int(table.forced[state])) >= 0:
        assert table.mask(state)[token]
        assert table.least[state] <= len(vocabulary.encode(", said the other")) - len(found)
        found.append(token)
        state = table.step(state, token)
    assert found == vocabulary.encode(", said the other")
    assert table.least[state] == 0
    assert table.jumps
    assert not table_of("[a-z]+", vocabulary).jumps
    assert table_of("[a-z]{900}", small_vocabulary("unsplit")).least[0] == LEAST_CAP


def test_what_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = small_vocabulary("gpt2")
    part = table_of("[a-z]{1,20000}", vocabulary, most_states=50)
    assert len(part.next) == 50
    assert (part.next == LOST).any()
    monkeypatch.setattr(module, "MOST_CLASSES", 10)
    with pytest.raises(BudgetError, match="more than 10 classes"):
        table_of(PATTERNS[0], vocabulary)
    matcher = TokenMatcher(automaton_of("regex", PATTERNS[0]), vocabulary)
    tabulate(matcher.automaton.machine, matcher._table)
    assert matcher.state() is None


def test_a_table_is_made_when_it_has_been_wanted_often_enough() -> None:
    vocabulary = small_vocabulary("llama3")
    automaton = automaton_of("regex", r"a table of (one|two) \d+")
    matchers = [matcher_of(automaton, vocabulary) for _ in range(WORTHWHILE)]
    for matcher in matchers[1:]:
        matcher.want_states()
        assert matcher.state() is None
    assert not tabulating._thread
    matchers[0].want_states()
    end = time.monotonic() + 30
    while matchers[0].state() is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    state = matchers[3].state()
    assert state is not None
    assert state.number == 0
    matchers[3].advance(int(np.flatnonzero(matchers[3].mask())[0]))
    assert matchers[3].state() != state


def test_keys_that_may_come_once_have_no_table() -> None:
    vocabulary = small_vocabulary("llama3")
    matcher = matcher_of(automaton_of("json_schema", {"type": "object"}), vocabulary)
    for _ in range(2 * WORTHWHILE):
        matcher.want_states()
    assert matcher.state() is None
    assert matcher._table.wanted == 0


def test_what_cannot_be_spelled_is_left_to_masks() -> None:
    encode = lambda text: [0]  # noqa: E731 - never asked
    vocabulary = Vocabulary([b"a", b"ab", b"c", None], [3], encode)
    matcher = TokenMatcher(automaton_of("regex", "a(?:bd|c)?"), vocabulary)
    tabulate(matcher.automaton.machine, matcher._table)
    assert matcher.state() is None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_compiled_walk_is_that_of_numpy(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmc.constraints.token_steps.COMPILE_FROM", 0)
    vocabulary = small_vocabulary("gpt2")
    machine = automaton_of("regex", pattern).machine
    assert machine.start is not None
    places = [machine.start]
    for place in places[:12]:
        tokens, after = steps_from(machine, vocabulary.trie, place)
        again = steps_from_arrays(machine, vocabulary.trie, place)
        assert (tokens == again[0]).all()
        assert (after == again[1]).all()
        places += [state * machine.nodes for state in after[after >= 0][-3:].tolist()]
