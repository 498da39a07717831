"""How selects weigh their choices, on made-up log-probabilities."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from lmc.params import SELECT_METHODS
from lmc.runtime.choosing import pick, scores_of
from lmc.runtime.request import Sampling


def taken(method: str, given: dict[str, list[float]], **more: object) -> str:
    choices, logprobs = list(given), list(given.values())
    alone = [[-1.0] * len(tokens) for tokens in logprobs]
    scores = scores_of(method, logprobs, alone)
    return choices[pick(method, choices, scores, logprobs, **more)]  # type: ignore[arg-type]


def test_the_mean_prefers_a_long_word_and_the_sum_does_not() -> None:  # B-54
    given = {"A": [-1.0], "B": [-2.5, -0.01, -0.01, -0.01]}
    assert taken("token_length_normalized", given) == "B"
    assert taken("total_logprob", given) == "A"
    assert taken("greedy_token", given) == "A"


def test_several_tokens_count_on_their_own_way() -> None:  # B-52
    given = {"YesNo": [math.log(0.5), math.log(0.2)], "NoYes": [math.log(0.4), math.log(0.5)]}
    assert taken("total_logprob", given) == "NoYes"
    assert taken("greedy_token", given) == "YesNo"


def test_greedy_goes_on_with_the_mean_of_a_shorter_choice() -> None:  # B-51
    assert taken("greedy_token", {"a": [-1.0], "aa": [-1.0, -0.5]}) == "aa"
    assert taken("greedy_token", {"a": [-1.0], "aa": [-1.0, -1.5]}) == "a"
    assert taken("greedy_token", {"ab": [-1.0, -3.0], "ac": [-1.0, -2.0], "x": [-4.0]}) == "ac"


def test_what_is_likely_anyway_counts_less() -> None:
    logprobs = [[-2.0, -0.5], [-3.0]]
    scores = scores_of("unconditional_normalized", logprobs, [[-2.0, -0.5], [-6.0]])
    assert scores == [0.0, 3.0]
    assert pick("unconditional_normalized", ["the", "rare"], scores, logprobs) == 1


@pytest.mark.parametrize("method", SELECT_METHODS)
def test_certain_and_impossible_tokens(method: str) -> None:  # B-60
    assert taken(method, {"b": [0.0, 0.0], "a": [0.0]}) == "a"
    assert taken(method, {"x": [-math.inf], "a": [-5.0, -1.0]}) == "a"
    alone = [[-math.inf], [-math.inf]]
    assert not any(map(math.isnan, scores_of(method, [[-math.inf], [-1.0]], alone)))


@pytest.mark.parametrize("method", SELECT_METHODS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_order_of_choices_has_no_influence(method: str, temperature: float) -> None:
    given = {"b": [-1.0], "a": [-1.0], "aa": [-1.0, -1.0], "c": [-1.0, -1.2]}
    heat = 0.0 if method == "greedy_token" else temperature
    for draw in range(5):
        key = Sampling(seed=1, draw=draw)
        found = {
            taken(method, dict(order), temperature=heat, sampling=key)
            for order in itertools.permutations(given.items())
        }
        assert len(found) == 1
        if not heat and method != "total_logprob":
            assert found == {"a"}  # the first of equals in code-point order


def test_draws_follow_the_scores() -> None:
    given = {"a": [math.log(0.7)], "b": [math.log(0.2)], "c": [math.log(0.1)]}
    counts = Counter(
        taken("total_logprob", given, temperature=1.0, sampling=Sampling(seed=3, draw=draw))
        for draw in range(3000)
    )
    for choice, tokens in given.items():
        assert counts[choice] / 3000 == pytest.approx(math.exp(tokens[0]), abs=0.03)
    tiny = {"a": [-0.7], "b": [-0.8]}
    assert taken("total_logprob", tiny, temperature=1e-300, sampling=Sampling()) == "a"
