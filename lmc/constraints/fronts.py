"""The languages in which constraints are written, each by the function that reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from lmc.constraints.automaton import Automaton
from lmc.constraints.budget import BudgetError
from lmc.constraints.expression import words
from lmc.errors import ConstraintError

if TYPE_CHECKING:
    from lmc.constraints.regex import Part

__all__ = ["automaton_of"]


def automaton_of(kind: str, source: object, **options: object) -> Automaton:
    """See `lmc.constraints.automaton_of`."""
    front = _FRONTS.get(kind)
    if front is None:
        raise ConstraintError(
            f"there is no kind of constraint {kind!r}", hint=f"kinds are {', '.join(_FRONTS)}"
        )
    wrong = options.keys() - _OPTIONS.get(kind, frozenset())
    if wrong:
        raise ConstraintError(f"constraints of kind {kind} have no option {min(wrong)}")
    try:
        return front(source, **options)
    except BudgetError as error:
        raise ConstraintError(
            f"this constraint is too large: {error.problem}", hint=error.hint
        ) from None
    except RecursionError:
        raise ConstraintError(
            f"the {kind} is nested too deeply", hint="take groups apart, or write them in a row"
        ) from None


def _regex(source: object) -> Automaton:
    from lmc.constraints.regex import parse_parts

    if not isinstance(source, str):
        raise ConstraintError(f"a regex is a text, not {type(source).__name__}")
    pattern = parse_parts(source)
    try:
        return Automaton(pattern.expression).checked(f"the regex {_shown(source)}")
    except BudgetError as error:
        raise _blamed(source, pattern, error) from None


def _stop_regex(source: object) -> Automaton:
    """A pattern that ends a text where it is found; see `stopping`."""
    from lmc.constraints.regex import parse_parts
    from lmc.constraints.stopping import anywhere, seen_before

    if not isinstance(source, str):
        raise ConstraintError(f"a stop_regex is a text, not {type(source).__name__}")
    pattern = parse_parts(source)
    try:
        seen_before(pattern.expression)
        found = anywhere(pattern.expression).checked(f"the stop_regex {_shown(source)}")
        if found.matches(""):
            raise ConstraintError(
                f"the stop_regex {_shown(source)} matches the empty text: it would end every text "
                "at once",
                hint="let it match at least one character",
            )
    except BudgetError as error:
        raise _blamed(source, pattern, error) from None
    return Automaton(pattern.expression)


def _blamed(source: str, part: Part, error: BudgetError) -> ConstraintError:
    """The error, with the smallest part of the pattern that is too large by itself marked."""
    from lmc.constraints.pattern_escapes import pattern_error

    while True:
        for inner in part.inner:
            try:
                Automaton(inner.expression).is_empty()
            except BudgetError as found:
                part, error = inner, found
                break
        else:
            break
    return pattern_error(
        source, max(part.begin, 0), f"{error.problem}:", end=part.end, hint=error.hint
    )


def _choices(source: object) -> Automaton:
    if isinstance(source, str) or not isinstance(source, Sequence):
        raise ConstraintError(
            f"choices is {source!r:.60}", hint='give a list of texts, as in choices=["yes", "no"]'
        )
    if not source:
        raise ConstraintError("there are no choices", hint="give at least one text")
    for choice in source:
        if not isinstance(choice, str):
            raise ConstraintError(
                f"a choice is {choice!r:.60}, which is no text", hint="give a list of texts"
            )
        try:
            choice.encode()
        except UnicodeEncodeError:
            raise ConstraintError(f"the choice {choice!r} is no valid text") from None
    return Automaton(words(source))


def _json_schema(
    source: object, whitespace: str = "compact", waive: Collection[str] = ()
) -> Automaton:
    from lmc.constraints.json_keys import JsonAutomaton
    from lmc.constraints.json_schema import expression_of_schema

    expression, is_open = expression_of_schema(source, whitespace=whitespace, waive=waive)
    found = JsonAutomaton(expression) if is_open else Automaton(expression)
    return found.checked("this schema")


def _ebnf(source: object) -> Automaton:
    from lmc.constraints.ebnf import parse_grammar

    if not isinstance(source, str):
        raise ConstraintError(f"a grammar is a text, not {type(source).__name__}")
    return Automaton(parse_grammar(source)).checked("the grammar")


def _shown(source: str) -> str:
    return repr(source if len(source) <= 60 else source[:57] + "...")


_FRONTS: dict[str, Callable[..., Automaton]] = {
    "regex": _regex,
    "stop_regex": _stop_regex,
    "choices": _choices,
    "json_schema": _json_schema,
    "ebnf": _ebnf,
}
_OPTIONS = {"json_schema": frozenset({"whitespace", "waive"})}
