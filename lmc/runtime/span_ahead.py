"""The span behind a gen, tokenized before the gen has ended.

Once something is before it, a span's tokens depend on its pieces alone (`Context.settle`). So where
the texts that will follow a gen are known, their tokens can be made while a device computes. If the
gen ends inside of a token, the span begins with the rest of it; then it is another one, and is
tokenized when it is known.

Owns        the tokens of one span.
Promises    the tokenizer's own tokens, whatever was looked at before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmc import plan as p
from lmc.runtime.context import Context

if TYPE_CHECKING:
    from lmc.runtime.context import SpanTokenizer, Template
    from lmc.runtime.row import Row

__all__ = ["SpanAhead", "state_ahead"]


class SpanAhead:
    """A tokenizer that remembers the last span in the middle of a sequence."""

    def __init__(self, tokenizer: SpanTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: tuple[tuple[str, bool], ...] | None = None
        self._tokens: list[int] = []

    @property
    def bos_id(self) -> int | None:
        return self._tokenizer.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._tokenizer.eos_ids

    def encode_markup(self, pieces: Sequence[tuple[str, bool]], *, first: bool) -> list[int]:
        """As the tokenizer's; the list belongs to this."""
        if first:
            return self._tokenizer.encode_markup(pieces, first=True)
        if self._pieces is None or tuple(pieces) != self._pieces:
            self._tokens = self._tokenizer.encode_markup(pieces, first=False)
            self._pieces = tuple(pieces)
        return self._tokens


def state_ahead(
    row: Row, before: Context, links: Sequence[p.Instr], template: Template
) -> Context | None:
    """A state with the span that the next gen of a chain will have, if this one cuts no token.

    Args:
        before: the settled state that the gen going on follows.
        links: what comes after it, of a chain.

    Returns:
        A state with other tokens before the span; None if a text is not known yet or is empty.

    Raises:
        LmcError: of a chat template.
    """
    state = Context(before.keys[:1], (), before.roles, before.inside)
    for link in links:
        if isinstance(link, p.Extend):
            for part in link.parts:
                text = row.regs[part.index] if isinstance(part, p.Reg) else part.value
                if not isinstance(text, str):
                    return None
                state = state.extend(text)
        elif isinstance(link, p.Role):
            state = state.role(link.role, link.edge, template)
        else:
            return state if state.pieces or state.opening else None
    return None
