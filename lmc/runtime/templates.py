"""Templates at run time: the one constraint of a template, and its variables out of the text.

A template follows an open span. The last tokens of that span which the template's beginning could
change are not computed with the prompt but matched again, as fixed text before the first gen; so
no boundary is forced between a text and the gen behind it.

Owns        nothing. Automata of templates are kept by the `Target`.
Promises    what it gives depends on the texts alone, not on what was cached or batched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lmc.constraints.automaton import Automaton
from lmc.constraints.joining import Piece, cut, held_back
from lmc.errors import ConstraintError
from lmc.params import GenParams
from lmc.runtime.context import Context
from lmc.runtime.request import Finish, GenResult
from lmc.runtime.results import CallMeta, MadePart
from lmc.runtime.target import Target

__all__ = ["Filled", "Template", "begin", "filled"]

_MOST_HELD_BACK = 8  # tokens


@dataclass(frozen=True, slots=True)
class Template:
    """A template behind a prompt.

    Attributes:
        state: the prompt, settled, without the tokens held back.
        before: the text of these tokens.
        automata, texts: of the gens, and behind each.
        whole: the automaton of `before` and all that follows.
        fixed_tokens: of `before` and the texts between gens, cut by themselves.
        closing_tokens: of the last text, which is not generated.
    """

    state: Context
    before: str
    automata: tuple[Automaton, ...]
    texts: tuple[str, ...]
    whole: Automaton
    fixed_tokens: int
    closing_tokens: int


def begin(
    target: Target,
    state: Context,
    automata: Sequence[Automaton],
    texts: Sequence[str],
    *,
    heal: bool,
) -> Template:
    """The template behind a state.

    Args:
        target: whose tokenizer it is.
        state: the prompt; its open span may be cut anew at its end if `heal`.
        automata: of the gens.
        texts: the text behind each gen.

    Raises:
        ConstraintError: a constraint keeps a record of its own, and cannot be followed.
    """
    for automaton in automata:
        if type(automaton) is not Automaton:
            raise ConstraintError(
                "a constraint of this template cannot be joined with what stands around it",
                hint="append the gen in a statement of its own",
            )
    automata, texts = tuple(automata), tuple(texts)
    settled, before, held = state.settle(target.tokenizer), "", 0
    if heal:
        without = target.template_automaton(automata, texts, "")
        token_bytes = target.vocabulary.token_bytes
        tokens, text = state.end_of_span(target.tokenizer, _MOST_HELD_BACK)
        raw = [token_bytes[token] for token in tokens]
        held = held_back(raw, without, target.vocabulary)
        held = min(held, len(settled.keys) - 1)  # a model call needs a token to follow
        while held and not text.endswith(_text(raw[-held:])):
            held -= 1  # a tokenizer may write what is not in the text, as a first blank
        before = _text(raw[-held:]) if held else ""
    whole = target.template_automaton(automata, texts, before)
    *between, closing = [len(target.tokenizer.encode(t, first=False)) if t else 0 for t in texts]
    fixed = held + sum(between)
    return Template(settled.without_last(held), before, automata, texts, whole, fixed, closing)


def _text(tokens: Sequence[bytes | None]) -> str:
    """The text of tokens; something that no text holds if they are none."""
    try:
        return b"".join(t or b"" for t in tokens).decode()
    except UnicodeDecodeError:
        return "\x00\ufffd"


@dataclass(frozen=True, slots=True)
class Filled:
    """What came of a template: the text behind the prompt, and each gen's part of it."""

    text: str
    parts: tuple[MadePart, ...]


def filled(
    template: Template,
    result: GenResult,
    token_bytes: Sequence[bytes | None],
    gens: Sequence[GenParams],
) -> Filled:
    """The variables of a template, read back from its text."""
    raw = bytearray()
    spans = []
    for token in result.tokens:
        begin = len(raw)
        raw += token_bytes[token] or b""
        spans.append((begin, len(raw)))
    complete = result.finish in (Finish.CONSTRAINT, Finish.EOS)
    if complete:
        raw += result.rest.encode()
    skipped = min(len(template.before.encode()), len(raw))
    body = bytes(raw[skipped:])
    pieces = cut(template.automata, template.texts, body, complete=complete)
    meta = CallMeta.of_gen(result, gens[0])

    def part(nth: int, piece: Piece) -> MadePart:
        first, end = piece.begin + skipped, piece.end + skipped
        own = [i for i, (a, b) in enumerate(spans) if a < end and b > first]
        return MadePart(
            body[piece.begin : piece.end].decode(errors="replace"),
            dataclasses.replace(
                meta,
                type=gens[nth].type,
                finish_reason=_reason(template, result, nth, piece, len(body)),
                token_ids=tuple(result.tokens[i] for i in own),
                logprobs=tuple(result.logprobs[i] for i in own),
                top_logprobs=tuple(result.top_logprobs[i] for i in own if result.top_logprobs),
                forced_tokens=sum(1 for i in own if result.logprobs[i] != result.logprobs[i]),
            ),
        )

    parts = tuple(part(nth, piece) for nth, piece in enumerate(pieces))
    return Filled(body.decode(errors="replace"), parts)


def _reason(template: Template, result: GenResult, nth: int, piece: Piece, size: int) -> str:
    """Why a gen of a template ended: by what follows it, or as the whole did."""
    last = nth + 1 == len(template.automata) and not template.texts[nth]
    if result.finish in (Finish.CONSTRAINT, Finish.EOS):
        return str(result.finish if last else Finish.CONSTRAINT)
    return str(Finish.CONSTRAINT if piece.complete and piece.end < size else result.finish)
