"""How long the prompts of a program are, as far as they are known: in tokens, or in characters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmc.errors import LmcError
from lmc.ir.analysis import Parts, known_characters
from lmc.ir.chains import unchained
from lmc.ir.core import Const, Program, Value
from lmc.ir.ops import Extend, Role
from lmc.ir.types import STATE

if TYPE_CHECKING:
    from lmc.runtime.chat import ChatTemplate
    from lmc.runtime.tokenizer import Tokenizer

__all__ = ["CHARACTERS", "Meter", "meter_of"]

MOST_MEASURED = 2000  # states whose tokens are counted: each of them is tokenized


@dataclass(frozen=True)
class Meter:
    """Measures prompts.

    Attributes:
        model: whose tokens are counted; None for characters.
        tokenizer, template: of that model.
    """

    model: str | None = None
    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None

    @property
    def unit(self) -> str:
        """ "tokens" or "characters"."""
        return "characters" if self.tokenizer is None else "tokens"

    def own(self, program: Program, given: Mapping[Value, str] | None = None) -> dict[Value, int]:
        """What each state adds to the one before it.

        In tokens it is exact up to the first text that is not known: the spans after texts of the
        model are tokenized as in a run, those around an unknown text on both sides of it. Markup
        of the chat template counts in tokens only.

        Args:
            program: whose prompts.
            given: the texts of parameters that are known.
        """
        program = unchained(program)
        if self.tokenizer is None or self.template is None:
            return known_characters(program, given)
        from lmc.runtime.context import Context

        tokenizer, template = self.tokenizer, self.template
        given, parts = given or {}, Parts(program)
        held: dict[Value, Context] = {}
        length: dict[Value, int] = {}
        own: dict[Value, int] = {}
        for node in program.walk():
            state = next((v for v in node.results if v.type == STATE), None)
            if state is None:
                continue
            before = next((v for v in node.op.value_operands() if v.type == STATE), None)
            context = Context() if before is None else held[before]
            match node.op:
                case Extend():
                    for part in parts.of(node.op):
                        text = str(part.value) if isinstance(part, Const) else given.get(part)
                        if text is None:
                            context = _closed(context, tokenizer)
                        else:
                            context = context.extend(text)
                case Role(_, role, edge):
                    context = context.role(role, edge, template)
                case _ if len(node.results) > 1:  # a model call: its text is a span of its own
                    context = _closed(context, tokenizer)
            held[state] = context
            count = len(_closed(context, tokenizer).keys)
            length[state] = count
            own[state] = count - (length[before] if before is not None else 0)
        return own


def _closed(context: object, tokenizer: Tokenizer) -> Context:
    """The context with its open span tokenized, if there is one."""
    from lmc.runtime.context import Context

    assert isinstance(context, Context)
    if not context.pieces and context.opening is None:
        return context
    return context.settle(tokenizer).after_choice([], "")


if TYPE_CHECKING:
    from lmc.runtime.context import Context

CHARACTERS = Meter()


def meter_of(program: Program, model: str | None) -> Meter:
    """The meter for a program: of the model, or of the default one where it is on this machine.

    Raises:
        ModelError: the model that was named cannot be found or read.
    """
    from lmc.commands.options import DEFAULT_MODEL
    from lmc.runtime.store import KNOWN, list_models

    name = model or DEFAULT_MODEL
    if model is None and not any(entry.name == name and entry.cached for entry in list_models()):
        return CHARACTERS
    if sum(len(node.results) > 0 for node in program.walk()) > MOST_MEASURED:
        return CHARACTERS
    from lmc.runtime.chat import ChatTemplate
    from lmc.runtime.load import load_tokenizer
    from lmc.runtime.store import resolve

    assert model is not None or name in KNOWN
    tokenizer = load_tokenizer(resolve(name))
    template = ChatTemplate(tokenizer.chat_template, tokenizer.named, model=name, options={})
    meter = Meter(name, tokenizer, template)
    try:
        meter.own(program)
    except LmcError:  # the template has no such role, or the prompt is empty: told by a run
        return CHARACTERS
    return meter
