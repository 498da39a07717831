"""What the engine must give, computed one request at a time: no scheduler, no cache, no batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmc.params import GenParams
from lmc.runtime.adjustment import Adjustment
from lmc.runtime.fake import FakeRunner
from lmc.runtime.output import open_character
from lmc.runtime.request import (
    Finish,
    GenRequest,
    KeyArray,
    MaskArray,
    Sampling,
    ScoreRequest,
    Segment,
    Step,
    TopTokens,
)
from tests.stop_oracle import first_stop

VOCABULARY = [bytes([n]) for n in b"abcd .\n"] + [b"ab", b"cab", "é".encode(), b"\xc3", b"\xa9"]
TOKEN_BYTES: list[bytes | None] = [*VOCABULARY, None, None]
EOS = frozenset({len(VOCABULARY), len(VOCABULARY) + 1})
SIZE = len(TOKEN_BYTES)
CONTEXT = 40


class Words:
    """A constraint: the text is one of some token sequences. Equal to what `lmc.constraints` does,
    but for the segmentation of forced text, which here is any single way on."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self.words = [tuple(word) for word in words]
        self.taken: tuple[int, ...] = ()

    def _next(self, taken: tuple[int, ...]) -> set[int]:
        end = len(taken)
        return {w[end] for w in self.words if w[:end] == taken and len(w) > end}

    def mask(self) -> MaskArray:
        allowed = np.zeros(SIZE, np.bool_)
        allowed[list(self._next(self.taken))] = True
        if self.is_complete():
            allowed[list(EOS)] = True
        return allowed

    def mask_within(self, tokens: int) -> MaskArray:
        return self.mask()  # no steering: the oracle has none either

    def shortest_tokens(self, most: int | None = None) -> int:
        return 0

    def reserve(self, there: int = 0, least: int = 0) -> int:
        return 0

    def want_states(self) -> None:
        pass

    def state(self) -> None:
        return None

    def advance(self, token: int) -> None:
        if token not in self._next(self.taken):
            raise ValueError(f"{token} may not follow {self.taken}")
        self.taken += (token,)

    def forced(self) -> list[int]:
        taken, run = self.taken, []
        while taken not in self.words and len(way := self._next(taken)) == 1:
            taken += tuple(way)
            run += way
        return run

    def is_complete(self) -> bool:
        return self.taken in self.words

    def is_finished(self) -> bool:
        return self.is_complete() and not self._next(self.taken)


class DeadEnd(Words):
    """A constraint that allows nothing once the words are over."""

    def is_complete(self) -> bool:
        return False


@dataclass
class Expected:
    """A result, and the longest sequence that had to lie in KV slots for it."""

    kind: str  # "result", "dead end"
    tokens: list[int]
    text: str
    finish: Finish | None
    stop: str | int | None
    logprobs: list[float]
    tops: list[TopTokens]
    slots: int


def run_alone(
    keys: Sequence[int],
    *,
    sample: Sampling | None = None,
    position: int = 0,
    mask: MaskArray | None = None,
    banned: tuple[int, ...] = (),
    targets: tuple[int, ...] = (),
    adjustment: Adjustment | None = None,
    top: int = 0,
) -> tuple[int, float, tuple[float, ...], TopTokens]:
    """One fresh runner computes all of `keys` in one step; what follows the last one."""
    runner = FakeRunner(SIZE, max(len(keys), 1), CONTEXT, TOKEN_BYTES, EOS)
    slots = np.arange(len(keys), dtype=np.int32)
    segments = []
    for at, key in enumerate(keys):
        last = at == len(keys) - 1
        segments.append(
            Segment(
                tokens=np.array([key >> 1], np.int32),
                start=at,
                slots=slots[: at + 1],
                made=bool(key & 1),
                sample=sample if last else None,
                position=position,
                mask=mask if last else None,
                banned=banned if last else (),
                adjustment=adjustment if last else None,
                top=top if last else 0,
                targets=(targets,) if last and targets else (),
            )
        )
    outcome = runner.run(Step(tuple(segments)))
    scores = outcome.scores[-1][0] if targets else ()
    tops = outcome.tops[-1] if top else ()
    return outcome.tokens[-1], outcome.logprobs[-1], scores, tops


def naive_adjustment(request: GenRequest, made: list[int]) -> Adjustment | None:
    """What penalties and biases do, for every token of the vocabulary."""
    params, prompt = request.params, {key >> 1 for key in request.keys.tolist()}
    bias = dict(request.bias)
    added = [
        bias.get(t, 0.0)
        - params.frequency_penalty * made.count(t)
        - params.presence_penalty * (t in made)
        for t in range(SIZE)
    ]
    seen = [t in prompt or t in made for t in range(SIZE)]
    return Adjustment(
        np.arange(SIZE, dtype=np.int64),
        params.repetition_penalty,
        np.array(seen),
        np.array(added, np.float32),
    )


def expect_gen(request: GenRequest, words: Sequence[Sequence[int]] | None) -> Expected:
    """What a gen gives. `words` are those of its constraint, for a fresh one is needed here."""
    params = request.params
    constraint = None
    if request.constraint is not None:
        assert words is not None
        constraint = type(request.constraint)(words)  # type: ignore[call-arg]
    keys = request.keys.tolist()
    limit = min(params.max_tokens, CONTEXT - len(keys))
    head = _open_tail(b"".join(TOKEN_BYTES[k >> 1] or b"" for k in keys[-4:]))
    tokens: list[int] = []
    logprobs: list[float] = []
    tops: list[TopTokens] = []
    slots = 0

    def ended(kind: str, finish: Finish | None, stop_token: int | None = None) -> Expected:
        text, stop = _text(tokens, params, head)
        ended_by = stop if stop_token is None else stop_token
        return Expected(kind, tokens, text, finish, ended_by, logprobs, tops, slots)

    while True:
        if _text(tokens, params, head)[1] is not None:
            return ended("result", Finish.STOP)
        if constraint is not None and constraint.is_finished():
            return ended("result", Finish.CONSTRAINT)
        if len(tokens) >= limit:
            return ended("result", Finish.LENGTH)
        forced = constraint.forced() if constraint is not None and params.jump_forward else []
        scored = params.logprobs or params.top_logprobs
        early = len(tokens) < params.min_tokens
        stops = set(params.stop_token_ids)
        never = EOS - stops if params.ignore_eos else frozenset()
        ends = frozenset() if params.ignore_eos else EOS
        top: TopTokens = ()
        if forced and not scored:
            token, logprob = forced[0], math.nan
        else:
            slots = len(keys)
            mask = None if constraint is None else constraint.mask()
            banned = never | ends | stops if early else never
            if forced:
                mask, banned = np.arange(SIZE) == forced[0], frozenset()
            if mask is not None:
                if not set(np.flatnonzero(mask).tolist()) - banned:
                    banned = never
                if not set(np.flatnonzero(mask).tolist()) - banned:
                    return ended("dead end", None)
            token, logprob, _, top = run_alone(
                keys,
                sample=request.sampling,
                position=len(tokens),
                mask=mask,
                banned=tuple(banned),
                adjustment=naive_adjustment(request, tokens),
                top=params.top_logprobs,
            )
        if token in stops and not early:
            return ended("result", Finish.STOP, token)
        if token in ends:
            return ended("result", Finish.EOS)
        tokens.append(token)
        logprobs.append(logprob)
        if params.top_logprobs:
            tops.append(top)
        keys.append(2 * token + 1)
        if constraint is not None:
            constraint.advance(token)


def _open_tail(raw: bytes) -> bytes:
    return b"\xc3" if raw.endswith(b"\xc3") else b""


def _text(tokens: list[int], params: GenParams, head: bytes) -> tuple[str, str | None]:
    """The text of the tokens up to a stop string, and that string."""
    data, skipped = b"", 0
    for count, token in enumerate(tokens, 1):
        raw = TOKEN_BYTES[token] or b""
        if raw and not data and raw[0] & 0xC0 == 0x80:
            data = head
        data += raw
        if count <= params.min_tokens:
            skipped = len(data)
            continue
        searched = data[skipped : len(data) - len(open_character(data))]
        text = searched.decode(errors="surrogateescape")
        found = first_stop(text, params.stop, params.stop_regex)
        if found is not None:
            cut = data[:skipped] + text[: found[0]].encode(errors="surrogateescape")
            return cut.decode(errors="replace"), found[1]
    return data.decode(errors="replace"), None


def expect_scores(request: ScoreRequest) -> list[list[float]]:
    """Log-probabilities of the continuations, each token by a computation of its own."""
    rows: list[list[float]] = []
    for tokens in request.continuations:
        keys = request.keys.tolist()
        row = []
        for token in tokens:
            row.append(run_alone(keys, targets=(token,))[2][0])
            keys.append(2 * token + 1)
        rows.append(row)
    return rows


def score_slots(request: ScoreRequest) -> int:
    """KV slots that a score request needs at once."""
    paths = {tuple(c[:end]) for c in request.continuations for end in range(1, len(c))}
    return len(request.keys) + len(paths)


def array(keys: Sequence[int]) -> KeyArray:
    return np.array(keys, np.int64)
