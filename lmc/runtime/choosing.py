"""How a select weighs its choices: pure functions of the log-probabilities of their tokens.

All choices are tokenized by one rule, each by itself after the settled prompt, so only their own
tokens count. Nothing here depends on the order in which the choices are given: equal scores go to
the text that comes first in code-point order, and random numbers belong to a text's place in that
order.

Methods:
    token_length_normalized: the mean log-probability of a choice's tokens.
    total_logprob: their sum, the log-probability of the choice as a whole.
    unconditional_normalized: the mean of what the prompt adds to each token's log-probability,
        compared with the same choice after the empty prompt.
    greedy_token: the first token decides, and among equal ones the next; a choice that has ended
        goes on with its mean.

Source: the first, third and fourth are the methods of SGLang's front end (Zheng et al.,
arXiv:2312.07104, and its documentation), without its fixed zero for the first unconditional token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lmc.runtime.request import Sampling
from lmc.runtime.sampler import keys_of_draw, noise

__all__ = ["UNCONDITIONAL", "pick", "scores_of"]

UNCONDITIONAL = "unconditional_normalized"
"""The method that also wants the choices' log-probabilities after the empty prompt."""

Logprobs = Sequence[Sequence[float]]


def scores_of(method: str, logprobs: Logprobs, alone: Logprobs | None = None) -> list[float]:
    """The score of each choice; the greatest one wins.

    Args:
        method: see above. The score of greedy_token is the log-probability of the first token.
        logprobs: of each choice's tokens, in nats; each choice has at least one.
        alone: for unconditional_normalized, the same after the empty prompt.
    """
    if method == "total_logprob":
        return [math.fsum(tokens) for tokens in logprobs]
    if method == "greedy_token":
        return [tokens[0] for tokens in logprobs]
    if method == UNCONDITIONAL:
        assert alone is not None, "asked for by who calls this"
        return [
            _mean([_gain(*pair) for pair in zip(tokens, before, strict=True)])
            for tokens, before in zip(logprobs, alone, strict=True)
        ]
    return [_mean(tokens) for tokens in logprobs]


def pick(
    method: str,
    choices: Sequence[str],
    scores: Sequence[float],
    logprobs: Logprobs,
    temperature: float = 0.0,
    sampling: Sampling | None = None,
) -> int:
    """The index of the choice that is taken.

    With a temperature it is drawn with probabilities proportional to exp(score / temperature), by
    the Gumbel-max trick.

    Args:
        method, scores, logprobs: as of `scores_of`.
        choices: different texts.
        temperature: 0 takes the best.
        sampling: seed, row and number of the draw; needed with a temperature.
    """
    order = sorted(range(len(choices)), key=choices.__getitem__)
    if method == "greedy_token":
        longest = max(map(len, logprobs))
        return max(order, key=lambda i: _padded(logprobs[i], longest))
    if temperature == 0:
        return max(order, key=scores.__getitem__)  # the first of equals
    assert sampling is not None, "a draw has a key"
    best = max(scores)
    if math.isinf(best):  # all are impossible alike, or some are certain
        weights = [0.0 if score == best else -math.inf for score in scores]
    else:
        weights = [(score - best) / temperature for score in scores]
    uniform = noise(np.arange(len(order)), keys_of_draw(sampling, 0)).tolist()
    drawn = [weights[i] - math.log(-math.log(u)) for i, u in zip(order, uniform, strict=True)]
    return order[max(range(len(order)), key=drawn.__getitem__)]


def _mean(values: Sequence[float]) -> float:
    # one impossible token makes all impossible, whatever the others add
    return -math.inf if -math.inf in values else math.fsum(values) / len(values)


def _gain(after: float, before: float) -> float:
    """What the prompt adds to the log-probability of a token that it makes possible."""
    return after if math.isinf(after) else after - before


def _padded(logprobs: Sequence[float], length: int) -> tuple[float, ...]:
    return (*logprobs, *[_mean(logprobs)] * (length - len(logprobs)))
