"""Constraints as automata over bytes; knows no IR and no model.

`automaton_of` is the compiler's side: a pattern becomes an `Automaton`, which a plan stores as
JSON. `TokenMatcher` is the runtime's: a place in an automaton over a `Vocabulary`; `load` and
`matcher_of` make it of what a plan stores. `compile` does both. Parsers (and Lark) are loaded only
by `automaton_of` and `compile`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TypedDict, Unpack

from lmc.constraints.automaton import Automaton
from lmc.constraints.loading import load, matcher_of
from lmc.constraints.matcher import TokenMatcher
from lmc.constraints.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = [
    "KINDS",
    "Automaton",
    "TokenMatcher",
    "Vocabulary",
    "automaton_of",
    "compile",
    "load",
    "matcher_of",
]

KINDS = ("regex", "json_schema", "ebnf", "choices")


class Options(TypedDict, total=False):
    """What can be said of a constraint besides its source."""

    whitespace: str
    waive: Collection[str]


def automaton_of(
    kind: str, source: str | Sequence[str] | object, **options: Unpack[Options]
) -> Automaton:
    """The automaton of a constraint.

    Args:
        kind: one of `KINDS`.
        source: the pattern of a regex; a JSON Schema as a dictionary, JSON text or pydantic model;
            a grammar in Lark's notation; the texts of choices.
        options: of JSON schemas: `whitespace` ("compact", "pretty" or "flexible"), and `waive`,
            keywords that are dropped where they cannot be honoured.

    Raises:
        ConstraintError: the source is malformed, not supported, or nothing can match it.
    """
    # By name: the runtime imports this package, and must not come to depend on the parsers.
    fronts = importlib.import_module("lmc.constraints.fronts")
    made = fronts.automaton_of(kind, source, **options)
    assert isinstance(made, Automaton)
    return made


def compile(
    kind: str,
    source: str | Sequence[str] | object,
    tokenizer: object,
    **options: Unpack[Options],
) -> TokenMatcher:
    """A matcher at the beginning of a constraint.

    Args:
        kind, source, options: see `automaton_of`.
        tokenizer: the path of a `tokenizer.json`, a `tokenizers.Tokenizer`, a fast tokenizer of
            transformers, or a `Vocabulary`.

    Raises:
        ConstraintError: the source is malformed, not supported, nothing can match it, or the
            vocabulary cannot spell anything that does.
    """
    from lmc.constraints.tokenizer import vocabulary_of

    automaton = automaton_of(kind, source, **options)
    vocabulary = vocabulary_of(tokenizer)
    vocabulary.prepare()
    return matcher_of(automaton, vocabulary)
