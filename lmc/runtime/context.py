"""A prompt state at run time: settled tokens, the open span of text after them, and chat roles.

Contexts are values: every method gives a new one, so a fork is a second use. The text between two
model outputs is one span; it is kept as text until a model call needs it, then tokenized as a
whole (`settle`). Tokens that the model made are never merged with what follows.

Costs       extend O(pieces); settle O(tokens), once per context, however many forks use it.
Not here    rendering of chat templates (`chat`), tokenization itself (`tokenizer`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from lmc.errors import RunError, TraceError
from lmc.params import REASONING
from lmc.runtime.request import GenResult, KeyArray, keys_of, tokens_of

__all__ = ["Context", "SpanTokenizer", "Template"]

_NO_KEYS: KeyArray = np.empty(0, dtype=np.int64)


class SpanTokenizer(Protocol):
    """What a context needs of a tokenizer."""

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def encode_markup(self, pieces: Sequence[tuple[str, bool]], *, first: bool) -> list[int]: ...


class Template(Protocol):
    """What a context needs of a chat template: the markup around a message's content."""

    def begin(self, history: tuple[str, ...], role: str, *, given: bool = False) -> str: ...

    def end(self, history: tuple[str, ...]) -> str: ...


class _Rope:
    """Text as a chain of additions, shared by all contexts that continue it."""

    __slots__ = ("added", "before")

    def __init__(self, before: _Rope | None, added: str) -> None:
        self.before = before
        self.added = added

    def __str__(self) -> str:
        parts = [rope.added for rope in _ropes(self)]
        return "".join(reversed(parts))


def _ropes(rope: _Rope | None) -> Iterator[_Rope]:
    """A rope and those before it, the newest first."""
    while rope is not None:
        yield rope
        rope = rope.before


class Context:
    """A prompt state.

    Attributes:
        keys: of the settled tokens.
        pieces: the open span after them, texts and whether each is markup.
        roles: those of the messages begun so far.
        inside: whether the last one is open.
        opening: the markup that begins it, as it is before an answer of the model and before a
            text that is given, where these differ and nothing has been appended yet; else None.
    """

    __slots__ = ("_rope", "_settled", "inside", "keys", "opening", "pieces", "roles")

    def __init__(
        self,
        keys: KeyArray = _NO_KEYS,
        pieces: tuple[tuple[str, bool], ...] = (),
        roles: tuple[str, ...] = (),
        inside: bool = False,
        rope: _Rope | None = None,
        opening: tuple[str, str] | None = None,
    ) -> None:
        self.keys = keys
        self.pieces = pieces
        self.roles = roles
        self.inside = inside
        self.opening = opening
        self._rope = rope
        self._settled: Context | None = None

    @property
    def text(self) -> str:
        """All text so far, the template's markup included."""
        said = str(self._rope) if self._rope else ""
        return said + self.opening[0] if self.opening else said

    def since(self, before: Context) -> str:
        """The text added since `before`, or since both were one.

        The markup that begins an answer is not added before it is known how the answer begins.
        """
        added = list(itertools.takewhile(lambda r: r is not before._rope, _ropes(self._rope)))
        if before._rope is not None and added and added[-1].before is None:
            shared = set(map(id, _ropes(before._rope)))  # it is no beginning of this one
            added = list(itertools.takewhile(lambda r: id(r) not in shared, added))
        return "".join(rope.added for rope in reversed(added))

    def extend(self, text: str, *, markup: bool = False) -> Context:
        """With `text` appended; special tokens are recognized in markup only."""
        if not text:
            return self
        if self.opening is not None:
            return self._opened(given=True).extend(text, markup=markup)
        return Context(
            self.keys,
            (*self.pieces, (text, markup)),
            self.roles,
            self.inside,
            _Rope(self._rope, text),
        )

    def role(self, role: str, edge: str, template: Template) -> Context:
        """With a message of `role` begun or ended, as the chat template writes it.

        The role "reasoning" is the part before an answer in which a model thinks.
        """
        if role == "reasoning":
            return self._reasoning(edge)
        if edge == "end":
            ended = self._opened(given=True).extend(template.end(self.roles), markup=True)
            return Context(ended.keys, ended.pieces, self.roles, False, ended._rope)
        asked = template.begin(self.roles, role)
        given = asked
        if role == "assistant":
            with contextlib.suppress(TraceError):  # a template may know answers of the model only
                given = template.begin(self.roles, role, given=True)
        opening = None if asked == given else (asked, given)
        began = self.extend("" if opening else asked, markup=True)
        return Context(began.keys, began.pieces, (*self.roles, role), True, began._rope, opening)

    def _reasoning(self, edge: str) -> Context:
        opens, closes = REASONING
        if edge == "end":
            return self.extend(f"\n{closes}\n\n", markup=True)
        # The prompt for an answer may begin the reasoning itself, or have an empty one.
        asked = self.opening[0] if self.opening else self.pieces[-1][0] if self.pieces else ""
        if asked.rstrip().endswith(opens):
            return self._opened(given=False)
        return self._opened(given=True).extend(f"{opens}\n", markup=True)

    def _opened(self, *, given: bool) -> Context:
        """With the markup that begins its message, now that one knows how it goes on."""
        if self.opening is None:
            return self
        closed = Context(self.keys, self.pieces, self.roles, self.inside, self._rope)
        return closed.extend(self.opening[given], markup=True)

    def settle(self, tokenizer: SpanTokenizer) -> Context:
        """With the open span tokenized, ready for a model call: at least one key, no pieces.

        Raises:
            RunError: nothing was written yet and the model has no token to begin with.
        """
        if self.opening is not None:
            if self._settled is None:
                self._settled = self._opened(given=False).settle(tokenizer)
            return self._settled
        if not self.pieces and len(self.keys):
            return self
        if self._settled is None:
            tokens = tokenizer.encode_markup(self.pieces, first=not len(self.keys))
            if not tokens and not len(self.keys):
                first = tokenizer.bos_id
                if first is None:
                    first = min(tokenizer.eos_ids, default=None)
                if first is None:
                    raise RunError(
                        "the prompt is empty and the model has no token to begin with",
                        hint="append some text before the first model call",
                    )
                tokens = [first]
            keys = np.concatenate((self.keys, keys_of(tokens, made=False)))
            self._settled = Context(keys, (), self.roles, self.inside, self._rope)
        return self._settled

    def end_of_span(self, tokenizer: SpanTokenizer, most: int) -> tuple[list[int], str]:
        """The last tokens of the open span, and the text behind its markup.

        Args:
            most: how many tokens are wanted.
        """
        plain: list[str] = []
        for text, markup in reversed(self._opened(given=False).pieces):
            if markup:
                break
            plain.append(text)
        keys = self.settle(tokenizer).keys[len(self.keys) :]
        return tokens_of(keys[max(0, len(keys) - most) :]).tolist(), "".join(reversed(plain))

    def without_last(self, count: int) -> Context:
        """This settled context without its last tokens, of which at least one stays.

        Its text stays the same; see `after_match`.
        """
        if not count:
            return self
        return Context(self.keys[:-count], (), self.roles, self.inside, self._rope)

    def after_match(self, result: GenResult, before: str) -> Context:
        """This settled context with what a template made.

        Args:
            before: the text of the tokens that were left out by `without_last`, with which what
                was made begins; what is missing of it at the end is put back.
        """
        made = keys_of(result.tokens[: result.kept], made=True)
        missing = "" if result.text.startswith(before) else before[len(result.text) :]
        rest, added = result.rest + missing, result.text[len(before) :]
        return Context(
            np.concatenate((self.keys, made)),
            ((rest, False),) if rest else (),
            self.roles,
            self.inside,
            _Rope(self._rope, added) if added else self._rope,
        )

    def after_gen(self, result: GenResult) -> Context:
        """This settled context with what a gen made; text cut inside a token opens a span."""
        made = keys_of(result.tokens[: result.kept], made=True)
        return Context(
            np.concatenate((self.keys, made)),
            ((result.rest, False),) if result.rest else (),
            self.roles,
            self.inside,
            _Rope(self._rope, result.text) if result.text else self._rope,
        )

    def after_choice(self, tokens: Sequence[int], text: str) -> Context:
        """This settled context with a selected choice."""
        return Context(
            np.concatenate((self.keys, keys_of(tokens, made=True))),
            (),
            self.roles,
            self.inside,
            _Rope(self._rope, text) if text else self._rope,
        )
