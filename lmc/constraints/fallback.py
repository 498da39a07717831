"""Grammars that the engine here cannot take, matched by llguidance behind the same methods.

What is left for it are grammars in Lark's notation whose rules begin with themselves behind parts
that may be empty. It is an optional package, loaded when such a grammar is met.

Promises    masks, ends and forced tokens as `TokenMatcher` gives them; special tokens are no text.
Costs       a mask is computed anew at each place, microseconds to milliseconds.
Not here    steering into a token budget: `mask_within` is `mask`.
"""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from typing import Any

import numpy as np

from lmc.constraints.automaton import Automaton
from lmc.constraints.expression import NEVER
from lmc.constraints.machine import Machine
from lmc.constraints.matcher import TokenMatcher
from lmc.constraints.rows import MaskArray
from lmc.constraints.vocabulary import Vocabulary
from lmc.errors import ConstraintError, PlanError

__all__ = ["FallbackGrammar", "FallbackMatcher"]

_VERSION = 1


def _llguidance() -> Any:  # noqa: ANN401 - a module without types of its own here
    try:
        import llguidance
    except ImportError:
        raise ConstraintError(
            "this grammar needs the package llguidance, which is not installed",
            hint="pip install 'llguidance>=1.5,<2', or write the rules so that none begins with "
            "itself behind parts that may be empty",
        ) from None
    return llguidance


class FallbackGrammar(Automaton):
    """A grammar in Lark's notation, which has no automaton here.

    Raises:
        ConstraintError: llguidance is missing, or refuses the grammar.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.expression = NEVER
        self._machine = None
        self._data = {"version": _VERSION, "kind": "llguidance", "lark": source}
        self.digest = hashlib.sha256(json.dumps(self._data, sort_keys=True).encode()).hexdigest()
        problem = _llguidance().LLMatcher.validate_grammar(self.grammar)
        if problem:
            raise ConstraintError(f"llguidance refuses the grammar: {' '.join(problem.split())}")

    @property
    def grammar(self) -> str:
        """The grammar as llguidance reads it."""
        made = _llguidance().LLMatcher.grammar_from_lark(self.source)
        assert isinstance(made, str)
        return made

    @property
    def machine(self) -> Machine:
        """There is none.

        Raises:
            ConstraintError: always.
        """
        raise ConstraintError("a grammar that llguidance matches has no automaton")

    @staticmethod
    def from_json(data: dict[str, Any]) -> FallbackGrammar:
        """Read what `to_json` wrote.

        Raises:
            PlanError: the data is damaged or of another version.
        """
        if data.get("version") != _VERSION or not isinstance(data.get("lark"), str):
            raise PlanError(
                "this grammar was written by another version of lmc",
                hint="compile the program again with this lmc",
            )
        return FallbackGrammar(data["lark"])


class _Wrapped:
    """A vocabulary as llguidance wants to see it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        self.eos_token_id = vocabulary.eos[0]
        self.bos_token_id = None
        # A token that is no text begins with 0xFF, which llguidance takes for a special token.
        self.tokens = [
            text or b"\xff<%d>" % token for token, text in enumerate(vocabulary.token_bytes)
        ]
        self.special_token_ids = [t for t, b in enumerate(vocabulary.token_bytes) if not b]

    def __call__(self, text: str) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


_tokenizers: weakref.WeakKeyDictionary[Vocabulary, Any] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _tokenizer(vocabulary: Vocabulary) -> Any:  # noqa: ANN401 - llguidance's own
    if not vocabulary.eos:
        raise ConstraintError(
            "llguidance needs a vocabulary with an end token", hint="use another tokenizer"
        )
    with _lock:
        found = _tokenizers.get(vocabulary)
        if found is None:
            package = _llguidance()
            wrapper = package.TokenizerWrapper(_Wrapped(vocabulary))
            found = package.LLTokenizer(
                wrapper, n_vocab=len(vocabulary), eos_token=list(vocabulary.eos)
            )
            _tokenizers[vocabulary] = found
        return found


class FallbackMatcher(TokenMatcher):
    """A place in a grammar that llguidance matches; see `TokenMatcher` for the methods."""

    __slots__ = ("_inner",)

    def __init__(self, grammar: FallbackGrammar, vocabulary: Vocabulary) -> None:
        self.automaton = grammar
        self._table = _OnlyVocabulary(vocabulary)  # type: ignore[assignment]
        self._ended = False
        inner = _llguidance().LLMatcher(_tokenizer(vocabulary), grammar.grammar)
        if inner.is_error():
            raise ConstraintError(f"llguidance refuses the grammar: {inner.get_error()}")
        self._inner = inner

    def mask(self) -> MaskArray:
        size = len(self.vocabulary)
        if self._ended:
            return np.zeros(size, dtype=np.bool_)
        packed = np.frombuffer(self._inner.compute_bitmask(), dtype=np.uint8)
        row = np.unpackbits(packed, bitorder="little")[:size].astype(np.bool_)
        row[[t for t, text in enumerate(self.vocabulary.token_bytes) if not text]] = False
        row[list(self.vocabulary.eos)] = self.is_complete()
        row.flags.writeable = False
        return row

    def mask_within(self, tokens: int) -> MaskArray:
        del tokens
        return self.mask()

    def shortest_tokens(self) -> int:
        return 0

    def shortest(self) -> int:
        return 0

    def advance(self, token: int) -> None:
        if not self._ended:
            if token in self.vocabulary.eos:
                if self.is_complete():
                    self._ended = True
                    return
            elif self.vocabulary.token_bytes[token] and self._inner.validate_tokens([token]):
                self._inner.consume_token(token)
                return
        raise ValueError(f"token {token} is not allowed here")

    def forced(self) -> list[int]:
        if self._ended:
            return []
        ends = self.vocabulary.eos
        return [int(t) for t in self._inner.compute_ff_tokens() if t not in ends]

    def is_complete(self) -> bool:
        return self._ended or bool(self._inner.is_accepting())

    def is_finished(self) -> bool:
        return (
            self._ended
            or bool(self._inner.is_stopped())
            or (self.is_complete() and not self._may_go_on())
        )

    def _may_go_on(self) -> bool:
        row = self.mask().copy()
        row[list(self.vocabulary.eos)] = False
        return bool(row.any())

    def reset(self) -> None:
        self._inner.reset()
        self._ended = False

    def fork(self) -> FallbackMatcher:
        twin = object.__new__(FallbackMatcher)
        twin.automaton, twin._table = self.automaton, self._table
        twin._inner, twin._ended = self._inner.deep_copy(), self._ended
        return twin


class _OnlyVocabulary:
    """Stands where other matchers have their table."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
