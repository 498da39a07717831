"""What a request for text wants of the model: tokens, until something ends it.

Owns        what was made so far, the place of its constraint and of its stops, its penalties.
Promises    the text ends where a stop string, an end token, a limit or the constraint ends it, and
            is the same whatever else runs; a constraint that fails takes only its own request.
Costs       a token: one mask, unless the runner follows states; forced tokens none.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lmc.constraints.stopping import Stops, stops_of
from lmc.constraints.token_classes import LEAST_CAP, TokenState
from lmc.errors import LmcError, RunError, UsageError
from lmc.runtime.adjustment import Adjuster
from lmc.runtime.output import TextAssembler, open_character
from lmc.runtime.request import (
    Finish,
    GenRequest,
    GenResult,
    IntArray,
    KeyArray,
    MaskArray,
    Segment,
    TopTokens,
    tokens_of,
)
from lmc.runtime.sequence import TokenSequence

__all__ = ["GenWork", "Vocabulary"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the scheduler knows of the tokens.

    Attributes:
        size: tokens have ids below it.
        token_bytes: of each id; None for special tokens, which have no text.
        eos_ids: the model's end tokens.
    """

    size: int
    token_bytes: Sequence[bytes | None]
    eos_ids: frozenset[int]


STEER_TOKENS = 8
"""With that many tokens left beyond what must be kept for an end, masks begin to lead to one."""


AHEAD, AHEAD_OF_LIMIT = 8, 64
"""Tokens drawn in advance where the text may end at any, and where it goes on to its limit."""

MORE_THAN_LEAST = 1.25
"""A constrained text has that many tokens left, in terms of the shortest one: a guess."""


class GenWork:
    """Draws tokens until a stop string, an end token, a limit or the constraint ends the text."""

    computes_last = True
    branches = 0

    def __init__(
        self, request: GenRequest, vocabulary: Vocabulary, limit: int, *, tables: bool = False
    ) -> None:
        """Args:
        limit: most tokens that may be made, here because of the context's length.
        tables: whether the runner follows states of constraints.
        """
        self._vocabulary = vocabulary
        self._sampling = request.sampling
        self._constraint = request.constraint
        self._tables = tables
        self._state: TokenState | None = None
        self._jump = request.params.jump_forward
        params = request.params
        # The first character of the closing text may be needed, to tell that what is before it has
        # ended; it may be spelled in as many tokens as it has bytes.
        seam = min(len(request.closing[:1].encode()), request.closing_tokens)
        self._limit = min(params.max_tokens + request.extra_tokens + seam, limit)
        self._closing = request.closing
        self._closing_tokens = request.closing_tokens - seam
        self._seam = seam
        self._closing_bytes = len(request.closing.encode())
        self._closed = ""  # what of the closing text was left out
        self._stops = frozenset(params.stop_token_ids)
        self._stoppable = bool(params.stop or params.stop_regex)
        self._ends = frozenset() if params.ignore_eos else vocabulary.eos_ids
        never = vocabulary.eos_ids - self._stops if params.ignore_eos else frozenset()
        self._banned_always = tuple(sorted(never))
        self._banned_early = tuple(sorted(never | self._ends | self._stops))
        self._least = params.min_tokens
        self._scored, self._top = params.scored, params.top_logprobs
        head = _open_end(request.keys, vocabulary)
        self.text = TextAssembler(
            vocabulary.token_bytes, _stops_of(request), head, params.min_tokens
        )
        self._adjuster: Adjuster | None = None
        if Adjuster.wanted(params, request.bias):
            self._adjuster = Adjuster(params, request.bias, tokens_of(request.keys))
        self.made: list[int] = []
        self.logprobs: list[float] = []
        self.tops: list[TopTokens] = []
        self._stop_token: int | None = None
        self._due: list[int] = []  # forced tokens that are computed one by one, to be scored
        self.forced = 0
        self.finish: Finish | None = None
        self._prompt = len(request.keys)
        self._mask: MaskArray | None = None
        self._banned: tuple[int, ...] = ()
        self._shortest = 0  # tokens of the shortest text that the constraint takes

    @property
    def finished(self) -> bool:
        return self.finish is not None

    def begin(self) -> list[int]:
        """What can be said before the model is asked: tokens forced at once, or the end.

        Raises:
            LmcError: the constraint fails.
        """
        if self._limit > 0 and self._constraint is not None:
            with _guard():
                if self._tables:
                    self._constraint.want_states()
                most = self._limit + self._closing_tokens
                self._shortest = self._constraint.shortest_tokens(most)
                if self._constraint.is_finished() or self._only_closing_left():
                    self.finish = Finish.CONSTRAINT
                elif self._shortest > most:
                    self._limit -= self._seam  # the end is out of reach anyway
        if self._limit == 0 and self.finish is None:
            self.finish = Finish.LENGTH
        return self._jump_forward()

    def to_make(self) -> int:
        return self._limit - len(self.made)

    def ahead(self) -> int:
        """How many tokens may be drawn one after the other before `prepare` is needed again.

        As far as that is known: `goes_on` says it for each. 0 if each is to be asked for.
        """
        if self._adjuster is not None or self._top > 0 or len(self.made) < self._least:
            return 0
        if self._constraint is None:
            return AHEAD if self._ends or self._stops or self._stoppable else AHEAD_OF_LIMIT
        if not self._tables or not self._jump or self._scored:
            return 0
        return 1 if self._state is None else max(1, self._before_the_end())

    def goes_on(self) -> bool:
        """Whether what a runner draws by itself after what it gave so far is what is wanted.

        Of a runner that has followed the tables since the last `prepare`.
        """
        constraint, held = self._constraint, self._state
        if constraint is None:
            return True
        with _guard():
            now = None if held is None else constraint.state()
        if now is None or held is None or now.classes is not held.classes:
            return False
        return now.classes.forced[now.number] < 0 and self._before_the_end() > 0

    def _before_the_end(self) -> int:
        """Tokens that may be made before masks begin to lead to an end in time."""
        assert self._constraint is not None, "only a constraint has an end to be led to"
        there = self.to_make() + self._closing_tokens - STEER_TOKENS
        with _guard():
            return there - self._constraint.reserve(there, self._shortest)

    @property
    def constrained(self) -> bool:
        """Whether there is a constraint."""
        return self._constraint is not None

    @property
    def jumps(self) -> bool:
        """Whether much is forced, so that a step for every token may be more than is needed."""
        return self._state is not None and self._state.classes.jumps

    def likely(self) -> int:
        """How many tokens are likely to be left."""
        if self._constraint is None:
            return self.to_make()
        least = self._shortest - len(self.made)
        if self._state is not None:
            least = int(self._state.classes.least[self._state.number])
        if least == LEAST_CAP:
            return self.to_make()
        return min(self.to_make(), round(MORE_THAN_LEAST * max(least, 0)) + 1)

    def prepare(self) -> None:
        """Ask the constraint what may come next.

        Raises:
            LmcError: nothing may, or the constraint fails.
        """
        early = self._least and len(self.made) < self._least
        self._banned = self._banned_early if early else self._banned_always
        self._state = None
        if self._constraint is None:
            return
        if self._due:
            self._mask = np.zeros(self._vocabulary.size, np.bool_)
            self._mask[self._due[0]] = True
            self._banned = ()
            return
        with _guard():
            room = self.to_make() + self._closing_tokens
            near = self._before_the_end() <= 0
            if self._tables and not near and not self._banned:
                self._state = self._constraint.state()
                if self._state is not None:
                    self._mask = None
                    return
            mask = self._constraint.mask_within(room) if near else self._constraint.mask()
            if near and not _any_but(mask, self._banned):
                mask = self._constraint.mask()  # it could only end here, and may not
        if early and not _any_but(mask, self._banned):
            self._banned = self._banned_always  # nothing is left but the end
        if not _any_but(mask, self._banned):
            raise RunError(
                f"no token is allowed after {self.text.text!r}: the constraint is at a dead end",
                hint="the vocabulary cannot spell what the constraint wants here",
            )
        self._mask = mask

    def last_segment(self, tokens: IntArray, start: int, slots: IntArray, made: bool) -> Segment:
        return Segment(
            tokens,
            start,
            slots,
            made,
            self._sampling,
            len(self.made),
            self._mask,
            self._banned,
            None if self._adjuster is None else self._adjuster.current(),
            self._top,
            self._state,
        )

    def place_branches(self, sequence: TokenSequence, slots: IntArray) -> list[Segment]:
        del sequence, slots
        return []

    def take(
        self,
        segment: Segment,
        token: int,
        logprob: float,
        scores: tuple[tuple[float, ...], ...],
        top: TopTokens = (),
    ) -> list[int]:
        """Take a drawn token.

        Raises:
            LmcError: the constraint refuses it.
        """
        del scores
        if segment.sample is None:
            return []
        if token in self._stops and len(self.made) >= self._least:
            self.finish, self._stop_token = Finish.STOP, token
            return []
        if token in self._ends:
            if self._constraint is not None and not self._constraint.is_complete():
                raise RunError(
                    f"the model ended the text at {self.text.text!r}, which does not match yet",
                    hint="a runner must not draw a token that the mask forbids",
                )
            self.finish = Finish.EOS
            return []
        self._add(token, logprob, top)
        return [token, *self._jump_forward()]

    def _jump_forward(self) -> list[int]:
        """Append what the constraint forces."""
        added: list[int] = []
        if self._constraint is None or not self._jump:
            return added
        if self._scored:
            if not self._due and self.finish is None:
                with _guard():
                    self._due = list(self._constraint.forced())
            return added
        while self.finish is None:
            with _guard():
                run = self._constraint.forced()
            if not run:
                break
            for token in run:
                if token in self._stops and len(self.made) >= self._least:
                    self.finish, self._stop_token = Finish.STOP, token
                    break
                self._add(token, math.nan)
                added.append(token)
                if self.finish is not None:
                    break
        self.forced += len(added)
        return added

    def _add(self, token: int, logprob: float, top: TopTokens = ()) -> None:
        self.made.append(token)
        self.logprobs.append(logprob)
        if self._top:
            self.tops.append(top)
        if self._due:
            self._due.pop(0)
        if self._adjuster is not None:
            self._adjuster.add(token)
        finished = False
        if self._constraint is not None:
            with _guard():
                self._constraint.advance(token)
                finished = self._constraint.is_finished() or self._only_closing_left()
        try:
            stopped = self.text.push(token)
        except LmcError:
            raise
        except Exception as error:  # a pattern must not take the other requests with it
            problem = f"the search for stops failed: {error or type(error).__name__}"
            raise RunError(problem) from error
        if stopped:
            self.finish = Finish.STOP
        elif finished:
            self.finish = Finish.CONSTRAINT
        elif len(self.made) >= self._limit:
            self.finish = Finish.LENGTH

    def _only_closing_left(self) -> bool:
        """Whether all that can follow is an end of the closing text; it is left out then."""
        if not self._closing or self._constraint is None:
            return False
        left = self._constraint.remaining(self._closing_bytes)
        if left is None or not self._closing.endswith(left):
            return False
        self._closed = left
        return True

    def retract(self) -> IntArray:
        return np.empty(0, np.int32)

    def kept(self) -> int:
        return self.text.split()[0]

    def result(self, cached_tokens: int) -> GenResult:
        kept, rest = self.text.split()
        return GenResult(
            tokens=self.made,
            kept=kept,
            text=self.text.text + self._closed,
            rest=rest + self._closed,
            finish=self.finish or Finish.CANCELLED,
            stop=self.text.stop if self._stop_token is None else self._stop_token,
            logprobs=self.logprobs,
            top_logprobs=self.tops,
            prompt_tokens=self._prompt,
            cached_tokens=cached_tokens,
            forced_tokens=self.forced,
        )


@contextlib.contextmanager
def _guard() -> Iterator[None]:
    """Whatever a constraint raises becomes an error of its own request.

    Raises:
        LmcError: what the constraint raised, or a `RunError` because of it.
    """
    try:
        yield
    except LmcError:
        raise
    except Exception as error:  # a constraint must not take the other requests with it
        raise RunError(f"the constraint failed: {error or type(error).__name__}") from error


def _any_but(mask: MaskArray, banned: tuple[int, ...]) -> bool:
    """Whether a mask allows any other token."""
    if not banned:
        return bool(mask.any())
    left = mask.copy()
    left[[*banned]] = False
    return bool(left.any())


def _stops_of(request: GenRequest) -> Stops | None:
    params = request.params
    if len(request.stop_automata) != len(params.stop_regex):
        raise UsageError("a request has stop patterns without automata")
    if not params.stop and not params.stop_regex:
        return None
    with _guard():
        return stops_of(params.stop, params.stop_regex, request.stop_automata)


def _open_end(keys: KeyArray, vocabulary: Vocabulary) -> bytes:
    """The bytes of a character that the prompt leaves open."""
    raw = b""
    for token in tokens_of(keys[-4:]).tolist():
        piece = vocabulary.token_bytes[token] if token < len(vocabulary.token_bytes) else None
        raw = raw + piece if piece else b""
    return open_character(raw)
