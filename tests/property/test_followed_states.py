"""A runner that moves along tables of constraints gives what one asked for each token does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.constraints import Vocabulary, automaton_of, matcher_of
from lmc.constraints.tabulating import tabulate
from lmc.errors import LmcError
from lmc.params import GenParams
from lmc.runtime import composing, repeating
from lmc.runtime.engine import EngineCore
from lmc.runtime.fake import FakeRunner
from lmc.runtime.request import GenRequest, GenResult, Outcome, Sampling, Step, keys_of
from tests.property.test_engine_alone import Lagging
from tests.unit.constraints.small_tokenizers import small_vocabulary

PATTERNS = (
    r'\{"name": "[A-Za-z ]{1,9}", "age": \d{1,3}, "house": "(red|green|blue)"\}',
    r"(?:ha){2,6}|hah",
    r"[^\s]*é?",
    r"\w+(?: \w+)*[.!]",
    r"(yes|no)(, (yes|no)){0,9} and that is all of it",
    r"[a-z]{3}-[0-9]{20}",
)

ORDINARY = st.tuples(
    st.sampled_from([*PATTERNS, None]),
    st.lists(st.integers(0, 300), min_size=1, max_size=12),
    st.integers(30, 120),  # max_tokens
    st.just({}),
    st.sampled_from([0.0, 1.0]),
)
ODD = st.tuples(
    st.sampled_from(PATTERNS),
    st.lists(st.integers(0, 300), min_size=1, max_size=12),
    st.integers(5, 60),
    st.sampled_from(
        [{"jump_forward": False}, {"logprobs": True}, {"ignore_eos": True}, {"min_tokens": 5},
         {"presence_penalty": 1.0}, {"top_logprobs": 2}, {"stop": ("a",)}]
    ),
    st.just(0.0),
)  # fmt: skip


def give_tables(vocabulary: Vocabulary, lies: int | None) -> list[Any]:
    """Make all tables; with `lies`, such that what they say is forced is often wrong."""
    held = []
    for pattern in PATTERNS:
        automaton = automaton_of("regex", pattern)
        table = vocabulary.table(automaton.machine)
        table.classes = None
        tabulate(automaton.machine, table)
        classes = table.classes
        assert classes is not None
        if lies is not None:
            draw = np.random.default_rng(lies)
            wrong = draw.integers(0, len(vocabulary), len(classes.forced), np.int32)
            chosen = draw.integers(0, 3, len(classes.forced))
            forced = np.choose(chosen, [classes.forced, np.full_like(wrong, -1), wrong])
            table.classes = replace(classes, forced=forced)
        held.append(automaton)
    return held


def request_of(asked: Any, draw: int, vocabulary: Vocabulary) -> GenRequest:
    pattern, prompt, most, options, temperature = asked
    matcher = None
    if pattern is not None:
        matcher = matcher_of(automaton_of("regex", pattern), vocabulary)
    return GenRequest(
        keys_of(prompt, made=False), (), GenParams(max_tokens=most, **options),
        Sampling(temperature=temperature, draw=draw), matcher,
    )  # fmt: skip


def run(core: EngineCore, requests: list[GenRequest]) -> list[Any]:
    found: list[Any] = [None] * len(requests)
    for n, request in enumerate(requests):

        def done(outcome: Any, n: int = n) -> None:
            assert found[n] is None
            found[n] = outcome

        core.submit(request, done)
    while core.step():
        core.settle_for_few()
    return found


def shown(outcome: GenResult | LmcError) -> Any:
    if isinstance(outcome, LmcError):
        return str(outcome)
    return (
        outcome.tokens, outcome.text, outcome.rest, outcome.kept, outcome.finish, outcome.stop,
        [str(x) for x in outcome.logprobs], outcome.forced_tokens,
    )  # fmt: skip


def engine(
    vocabulary: Vocabulary, follows: bool, kv: int, repeats: int, tokens: int,
    kind: type[FakeRunner] = FakeRunner,
) -> EngineCore:  # fmt: skip
    runner = kind(
        len(vocabulary), kv, 200, vocabulary.token_bytes, frozenset(vocabulary.eos),
        most_repeats=repeats, follows_states=follows,
    )  # fmt: skip
    return EngineCore(
        runner, vocabulary.token_bytes, frozenset(vocabulary.eos), check=True,
        max_batch_tokens=tokens,
    )  # fmt: skip


@given(
    requests=st.lists(ORDINARY, min_size=1, max_size=8),
    odd=st.lists(ODD, max_size=1),
    kind=st.sampled_from(["gpt2", "llama3", "sentencepiece"]),
    kv_tokens=st.sampled_from([150, 1500]),
    repeats=st.sampled_from([2, 5, 16]),
    batch_tokens=st.sampled_from([12, 64]),
    worth=st.sampled_from([1, 1, 4]),
    lies=st.none() | st.integers(0, 5),
    runner=st.sampled_from([FakeRunner, Lagging]),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_texts_are_those_of_single_steps(
    requests: list[Any], odd: list[Any], kind: str, kv_tokens: int, repeats: int,
    batch_tokens: int, worth: int, lies: int | None, runner: type[FakeRunner],
) -> None:  # fmt: skip
    requests = requests + odd
    vocabulary = small_vocabulary(kind)
    held = give_tables(vocabulary, lies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeating, "_ROWS_WORTH_A_PASS", worth)
        patch.setattr(repeating, "_LEFT_BEHIND", 2)
        patch.setattr(composing, "SPREAD", 8)
        patch.setattr(composing, "MANY", 2)
        core = engine(vocabulary, True, kv_tokens, repeats, batch_tokens, runner)
        asked = [request_of(one, n, vocabulary) for n, one in enumerate(requests)]
        together = run(core, asked)
    for n, (one, outcome) in enumerate(zip(requests, together, strict=True)):
        alone = engine(vocabulary, False, 800, 1, 64)
        (expected,) = run(alone, [request_of(one, n, vocabulary)])
        assert shown(outcome) == shown(expected)
    del held  # the tables live as long as their automata


class Seen(FakeRunner):
    """A runner that keeps how often each step was repeated."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.repeats: list[int] = []

    def run(self, step: Step) -> Outcome:
        self.repeats.append(step.repeats)
        return super().run(step)


@pytest.mark.parametrize(
    ("pattern", "rows", "together"),
    [(PATTERNS[0], 40, True), (PATTERNS[0], 8, False), (r"[a-z ]{30,90}!", 2, True)],
)
def test_where_steps_with_constraints_are_repeated(pattern: str, rows: int, together: bool) -> None:
    """With many rows, or where little is forced: else a forced run is faster computed at once."""
    vocabulary = small_vocabulary("llama3")
    runner = Seen(
        len(vocabulary), 8000, 200, vocabulary.token_bytes, frozenset(vocabulary.eos),
        most_repeats=16, follows_states=True,
    )  # fmt: skip
    core = EngineCore(runner, vocabulary.token_bytes, frozenset(vocabulary.eos), check=True)
    automaton = automaton_of("regex", pattern)
    tabulate(automaton.machine, vocabulary.table(automaton.machine))
    asked = [request_of((pattern, [n], 190, {}, 1.0), n, vocabulary) for n in range(rows)]
    made = [len(result.tokens) for result in run(core, asked)]
    assert min(made) > 10
    if together:
        assert len(runner.repeats) < max(made) / 2
    else:
        assert set(runner.repeats) == {1}
