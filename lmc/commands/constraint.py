"""A constraint looked at: `lmc constraint`, `lmc explain --regex`, `python -m lmc.constraints`."""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmc.commands import options
from lmc.commands.output import say
from lmc.errors import ConstraintError, UsageError

if TYPE_CHECKING:
    from lmc.constraints import Automaton, Vocabulary
    from lmc.constraints.description import Description

__all__ = ["Tokenizer", "constraint_command", "fixed_share", "show_constraint"]

MOST_DRAWN = {"text": 40, "dot": 200, "mermaid": 100}  # edges
_MOST_SHOWN = 100  # characters of a text
_MOST_TOKENS = 8  # of a list


class Emit(enum.StrEnum):
    """What `--emit` can show."""

    text = "text"
    dot = "dot"
    mermaid = "mermaid"


Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="TOKENIZER",
        help="Show tokens too: a tokenizer.json, its folder, a model file, or a known model.",
    ),
]


def constraint_command(
    pattern: Annotated[
        str | None, typer.Argument(metavar="[PATTERN]", help="A regular expression.")
    ] = None,
    json_schema: Annotated[
        str | None,
        typer.Option("--json-schema", metavar="FILE|TEXT", help="A JSON schema instead."),
    ] = None,
    ebnf: Annotated[
        str | None,
        typer.Option("--ebnf", metavar="FILE|TEXT", help="A grammar instead."),
    ] = None,
    whitespace: Annotated[
        str | None,
        typer.Option(
            "--whitespace",
            metavar="compact|pretty|flexible",
            help="Blanks in the JSON of a schema; compact by default.",
        ),
    ] = None,
    waive: Annotated[
        list[str] | None,
        typer.Option(
            "--waive",
            metavar="KEYWORD",
            help="Drop this keyword of a schema where it cannot be honoured. Repeatable.",
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    emit: Annotated[Emit, typer.Option("--emit", help="The whole view, or its drawing.")] = (
        Emit.text
    ),
    traceback: options.Traceback = False,  # noqa: ARG001 - its callback keeps it
) -> None:
    """Look at a constraint: its size, fixed text, samples, and its automaton.

    Write -- before a pattern that begins with a minus sign.
    """
    given = {"regex": pattern, "json_schema": json_schema, "ebnf": ebnf}
    chosen = [(kind, source) for kind, source in given.items() if source is not None]
    if len(chosen) != 1:
        raise UsageError(
            f"{len(chosen) or 'no'} constraints are given",
            hint="give one: PATTERN, --json-schema FILE|TEXT or --ebnf FILE|TEXT",
        )
    ((kind, source),) = chosen
    more: dict[str, Any] = {}
    if whitespace is not None:
        more["whitespace"] = whitespace
    if waive:
        more["waive"] = tuple(waive)
    if more and kind != "json_schema":
        raise UsageError(
            f"--{min(more)} says how JSON is written", hint="give it with --json-schema"
        )
    if kind != "regex":
        source = _source(source)
    show_constraint(kind, source, tokenizer, emit, **more)


def _source(given: str) -> str:
    """The text of a file, or what was given if it is a schema or a grammar itself."""
    if given in ("true", "false") or any(mark in given for mark in "{:"):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{given} cannot be read: {reason}") from error


def show_constraint(
    kind: str,
    source: str,
    tokenizer: str | None = None,
    emit: Emit = Emit.text,
    **more: Any,  # noqa: ANN401 - options of the kind
) -> None:
    """Print what there is to see of a constraint.

    Raises:
        UsageError: it is malformed, nothing can match it, or there is no such tokenizer.
    """
    from lmc.constraints import automaton_of
    from lmc.constraints.compressed import compressed
    from lmc.constraints.drawing import to_dot, to_mermaid

    try:
        automaton = automaton_of(kind, source, **more)
        if emit is Emit.text:
            vocabulary = None if tokenizer is None else _vocabulary(tokenizer)
            text = "\n".join(_lines(automaton, kind, source, tokenizer, vocabulary)) + "\n"
        else:
            view = compressed(automaton.machine, MOST_DRAWN[emit])
            text = to_dot(view, source) if emit is Emit.dot else to_mermaid(view)
    except ConstraintError as error:  # here it is no program that is at fault, but what was given
        raise UsageError(error.problem, error.where, hint=error.hint) from error
    say(text, sys.stdout)


def _vocabulary(name: str) -> Vocabulary:
    path = Path(name)
    if path.suffix == ".json" or (path / "tokenizer.json").is_file():
        from lmc.constraints.tokenizer import vocabulary_of

        return vocabulary_of(path)
    from lmc.constraints import Vocabulary
    from lmc.runtime.load import load_tokenizer
    from lmc.runtime.store import resolve

    loaded = load_tokenizer(resolve(name))
    return Vocabulary(
        loaded.token_bytes, loaded.eos_ids, lambda text: loaded.encode(text, first=False)
    )


def _lines(
    automaton: Automaton,
    kind: str,
    source: str,
    tokenizer: str | None,
    vocabulary: Vocabulary | None,
) -> Iterator[str]:
    from lmc.constraints.compressed import compressed
    from lmc.constraints.description import described
    from lmc.constraints.drawing import drawn

    # The edges first: what is made for the rest would only count as states.
    view = compressed(automaton.machine, MOST_DRAWN["text"])
    facts = described(automaton)
    yield f"{kind}  {_clipped(' '.join(source.split()))}"
    yield from (f"  {name:<9} {text}" for name, text in _facts(facts))
    if facts.samples:
        yield "samples"
    yield from (f"  {_clipped(repr(text))}" for text in facts.samples)
    if vocabulary is not None:
        yield f"tokens ({tokenizer})"
        yield from _tokens(automaton, vocabulary, facts)
    yield "automaton, where a text may end at *"
    yield from (f"  {line}" for line in drawn(view).splitlines())


def _facts(facts: Description) -> Iterator[tuple[str, str]]:
    if facts.states is None:
        yield "size", f"too large to be made whole; lazy, {facts.made:,} states made"
        yield "texts", f"of {facts.least:,} bytes and more"
    else:
        yield "size", f"{facts.states:,} states, {facts.byte_classes} classes of bytes"
        at_most = "" if facts.exact else "at most "
        count = f"{at_most}{_count(facts.texts)}" if facts.texts else "without end"
        lengths = f"of {facts.least:,} bytes"
        if facts.least != facts.most:
            longest = "any length" if facts.most is None else f"{facts.most:,} bytes"
            lengths += f" to {longest}"
        yield "texts", f"{count}, {lengths}"
    yield "begins", _clipped(repr(facts.begins)) if facts.begins else "in more than one way"
    yield "shortest", "too long" if facts.shortest is None else _clipped(repr(facts.shortest))
    fixed = facts.fixed
    if fixed is not None:
        yield "fixed", fixed_share(fixed.fixed, fixed.length, fixed.least, fixed.most)


def _tokens(automaton: Automaton, vocabulary: Vocabulary, facts: Description) -> Iterator[str]:
    import numpy as np

    from lmc.constraints import matcher_of
    from lmc.constraints.description import forced_in

    def shown(tokens: list[int]) -> str:
        texts = (vocabulary.token_bytes[t] or b"" for t in tokens[:_MOST_TOKENS])
        found = " ".join(repr(text.decode("utf-8", "backslashreplace")) for text in texts)
        return found + " ..." * (len(tokens) > _MOST_TOKENS)

    matcher = matcher_of(automaton, vocabulary)
    first = np.flatnonzero(matcher.mask()).tolist()
    ends = [t for t in first if t in vocabulary.eos]
    texts = [t for t in first if t not in vocabulary.eos]
    end = ", or the end" if ends else ""
    yield f"  first     {len(texts):,} of {len(vocabulary):,} tokens{end}: {shown(texts)}"
    yield f"  forced    {shown(matcher.forced()) or 'none'} at the beginning"
    for text in dict.fromkeys((facts.shortest, *facts.samples)):
        if text is None:
            continue
        found = forced_in(matcher, text)
        yield (
            f"  {found.forced:>4} of {found.tokens:>4} forced, {found.asked:>4} for the model  "
            f"{_clipped(repr(text), 48)}"
        )


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**9 else f"about 10^{math.floor(math.log10(number))}"


def fixed_share(fixed: int, length: int, least: float, most: float) -> str:
    """How much of a constraint's texts is fixed, in words; see `description.Fixed`."""
    low, high = f"{least * 100:.0f}", f"{most * 100:.0f}"
    shares = low if low == high else f"{low} to {high}"
    return f"{fixed} of {length} bytes of the shortest text, {shares} % of random ones"


def _clipped(text: str, most: int = _MOST_SHOWN) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
