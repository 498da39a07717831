"""The instructions that ask how likely given texts are: `select` and `score`.

Both tokenize their texts by one rule, each by itself after the settled prompt, and ask for all of
them in one request: one batch, from one prefix.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.errors import LmcError, RunError, UsageError
from lmc.runtime.choosing import UNCONDITIONAL, pick, scores_of
from lmc.runtime.context import Context
from lmc.runtime.handling import fail, submit, value_of
from lmc.runtime.request import Sampling, ScoreRequest, ScoreResult
from lmc.runtime.results import CallMeta
from lmc.runtime.row import Row

if TYPE_CHECKING:
    from lmc.runtime.executor import Executor

__all__ = ["score", "select"]

_log = logging.getLogger("lmc.program")


def select(executor: Executor, row: Row, instr: p.Select, pick: Callable[..., int] = pick) -> None:
    """Handle `Select`; `pick` decides as `choosing.pick` does.

    Raises:
        UsageError: a choice is empty.
        RunError: the model's tokenizer has no tokens for a choice.
    """
    tokenizer = executor.target.tokenizer
    state: Context = row.regs[instr.state.index].settle(tokenizer)
    given = [value_of(row, choice) for choice in instr.choices]
    choices = list(dict.fromkeys(given))
    if len(choices) < len(given):
        _warn(instr, given)
    if "" in choices:
        raise UsageError("select() has an empty choice", hint="leave it out")
    tokens = [tokenizer.encode(choice, first=False) for choice in choices]
    if not all(tokens):
        raise RunError(
            f"the choice {choices[tokens.index([])]!r} of select({instr.name!r}) has no tokens",
            hint="leave out what the tokenizer of this model drops",
        )
    prompts = [state]
    if instr.method == UNCONDITIONAL:
        prompts.append(Context().settle(tokenizer))
    answers: list[ScoreResult | None] = [None] * len(prompts)

    def take(nth: int, result: Any) -> None:  # noqa: ANN401 - a ScoreResult or an error
        if isinstance(result, LmcError):
            fail(executor, row, instr, result)
            return
        answers[nth] = result
        known = [answer for answer in answers if answer is not None]
        if len(known) == len(answers) and not row.finished:
            choose(known[0], known[1].logprobs if len(known) > 1 else None)

    def choose(result: ScoreResult, alone: list[list[float]] | None) -> None:
        scores = scores_of(instr.method, result.logprobs, alone)
        sampling = Sampling(seed=row.seed, row=row.index, draw=instr.draw)
        taken = pick(instr.method, choices, scores, result.logprobs, instr.temperature, sampling)
        row.meta[instr.into_text.index] = CallMeta(
            finish_reason="select",
            token_ids=tuple(tokens[taken]),
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            logprobs=tuple(result.logprobs[taken]),
            method=instr.method,
            scores=dict(zip(choices, scores, strict=True)),
            choice_logprobs=_by_choice(choices, result.logprobs),
            unconditional_logprobs=None if alone is None else _by_choice(choices, alone),
        )
        executor.set(row, instr.into.index, state.after_choice(tokens[taken], choices[taken]))
        executor.set(row, instr.into_text.index, choices[taken])

    for nth, prompt in enumerate(prompts):
        request = ScoreRequest(
            keys=prompt.keys, priority=(row.order, instr.priority), continuations=tokens
        )
        submit(executor, row, request, partial(take, nth), call=instr.into_text.index, instr=instr)


def _warn(instr: p.Select, given: list[str]) -> None:
    """Say once for a line of the program that equal choices count once."""
    if (instr.at, instr.name) in _warned:
        return
    _warned[instr.at, instr.name] = None
    twice = next(choice for choice in given if given.count(choice) > 1)
    where = f" ({instr.at})" if instr.at else ""
    _log.warning(
        "select(%r) has the choice %r more than once; it counts once%s", instr.name, twice, where
    )


_warned: dict[object, None] = {}


def _by_choice(choices: list[str], logprobs: list[list[float]]) -> dict[str, tuple[float, ...]]:
    return dict(zip(choices, map(tuple, logprobs), strict=True))


def score(executor: Executor, row: Row, instr: p.Score) -> None:
    """Handle `Score`."""
    tokenizer = executor.target.tokenizer
    text = value_of(row, instr.text)
    state: Context = row.regs[instr.state.index].settle(tokenizer)
    tokens = tokenizer.encode(text, first=False)

    def done(result: Any) -> None:  # noqa: ANN401 - a ScoreResult or an error
        if isinstance(result, LmcError):
            fail(executor, row, instr, result)
            return
        assert isinstance(result, ScoreResult), "a score request gives a ScoreResult"
        if row.finished:
            return
        logprobs = tuple(result.logprobs[0])
        row.meta[instr.into_value.index] = CallMeta(
            finish_reason="score",
            token_ids=tuple(tokens),
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            logprobs=logprobs,
            top_logprobs=tuple(result.tops[0]) if result.tops else (),
        )
        executor.set(row, instr.into.index, state.after_choice(tokens, text))
        executor.set(row, instr.into_value.index, math.fsum(logprobs))

    if not tokens:  # certain, and nothing to ask
        done(ScoreResult([[]], len(state.keys)))
        return
    request = ScoreRequest(
        keys=state.keys,
        priority=(row.order, instr.priority),
        continuations=[tokens],
        top=instr.top_logprobs,
    )
    submit(executor, row, request, done, call=instr.into_value.index, instr=instr)
