"""The prompts of a row that are known before it runs: those of its first model calls.

A plan is followed as far as its arguments alone decide: texts are put together, conditions on
arguments are taken, branches are gone into. Where a model call or a tool is met, its prompt is
noted, and what depends on its answer is left out. Spans are tokenized as when the row runs.

What a row will hold of the KV cache before it is done is estimated from the same walk: by the texts
of all its prompts, and by what its gens may make.

Costs       a microsecond or two an instruction, and the tokens of the prompts.
Not here    what prompts share (`prefix_tree`), running anything (`executor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmc import plan as p
from lmc.params import GenParams
from lmc.runtime.context import Context, SpanTokenizer, Template
from lmc.runtime.request import KeyArray
from lmc.textops import PURE

__all__ = ["NO_KEYS", "FirstPrompts", "Needs"]

_CALLS = (p.Gen, p.Match, p.Select, p.Score)
NO_KEYS: KeyArray = np.empty(0, np.int64)
_GROWTH = 16  # tokens that the scheduler leaves for a request to grow, too
_UNKNOWN_LENGTH = 64  # tokens of a text that may end before its limit, by guess
_CHOICE = 2  # tokens of what is selected
_MARKUP = 12  # characters at each end of a message


@dataclass(frozen=True, slots=True)
class Needs:
    """What a row needs.

    Attributes:
        prompt: of its first model call; empty if that is not known.
        tokens: that it will hold in the KV cache before it is done, by estimate.
    """

    prompt: KeyArray
    tokens: int


class _Size(NamedTuple):
    """Model calls of a block, tokens of their texts, and characters of other texts in prompts."""

    calls: int
    tokens: int
    characters: int


_Use = tuple[p.Instr, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""An instruction, and the registers that it waits for, reads and sets."""


class FirstPrompts:
    """Finds the prompts of rows of one plan."""

    def __init__(self, plan: p.Plan, tokenizer: SpanTokenizer, template: Template) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._template = template
        self._blocks: dict[int, tuple[_Use, ...]] = {}

    def of(self, texts: Sequence[str], most: int | None = None) -> list[KeyArray]:
        """The prompts of the first model calls of a row, in program order.

        Args:
            texts: the row's arguments, in the order of `plan.params`.
            most: stop after so many.

        Prompts that cannot be made (the row will fail there) are left out.
        """
        return self._walk(texts, most)[0]

    def needs(self, texts: Sequence[str]) -> Needs:
        """The first prompt of a row, and how many tokens all its states will have, by estimate."""
        found, known, characters = self._walk(texts, 1, to_the_end=True)
        prompt = found[0] if found else NO_KEYS
        size = self._size(self._plan.body, known, {})
        if size.calls <= 1:  # it can wait for its place no more once it runs
            return Needs(prompt, len(prompt) + min(size.tokens, _GROWTH))
        by_text = size.characters * len(prompt) // max(characters, 1)
        return Needs(prompt, max(len(prompt), by_text) + size.tokens)

    def _walk(
        self, texts: Sequence[str], most: int | None, *, to_the_end: bool = False
    ) -> tuple[list[KeyArray], dict[int, Any], int]:
        """The first `most` prompts, what is known of the registers, and the last one's length.

        Args:
            to_the_end: go on, for the registers, when there are so many prompts.
        """
        known: dict[int, Any] = {
            param.into.index: text for param, text in zip(self._plan.params, texts, strict=True)
        }
        found: list[KeyArray] = []
        characters = 0
        block: p.Block | None = self._plan.body
        while block is not None:
            instrs, block = self._read(block), None
            for instr, waits, _, _ in instrs:
                if not all(index in known for index in waits):
                    continue
                try:
                    if isinstance(instr, _CALLS):
                        if most is not None and len(found) >= most:
                            continue
                        state: Context = known[instr.state.index]
                        found.append(state.settle(self._tokenizer).keys)
                        characters = len(state.text)
                        if len(found) == most and not to_the_end:
                            return found, known, characters
                    elif isinstance(instr, p.If):
                        block = instr.then if _value(known, instr.condition) else instr.orelse
                    else:
                        self._follow(known, instr)
                except Exception:  # whatever is wrong: the row will say so itself
                    continue
        return found, known, characters

    def _size(self, block: p.Block, known: dict[int, Any], made: dict[int, int]) -> _Size:
        """What a block adds to states; where its way is not known, the larger one.

        Args:
            known: the values of registers.
            made: of registers with texts of the model, or made of these: their tokens, by guess.
        """
        calls = tokens = characters = 0
        for instr, _, reads, writes in self._read(block):
            match instr:
                case p.Extend():
                    tokens += sum(_made_in(part, made) for part in instr.parts)
                    characters += sum(_length(part, known) for part in instr.parts)
                case p.Role():
                    characters += _MARKUP
                case p.Gen() | p.Match() | p.Select() | p.Score():
                    more = _expected(instr)
                    calls, tokens = calls + 1, tokens + more
                    made.update(dict.fromkeys(writes, more))
                case p.If():
                    ways: tuple[p.Block, ...] = (instr.then, instr.orelse)
                    if isinstance(instr.condition, p.Const) or instr.condition.index in known:
                        ways = ways[:1] if _value(known, instr.condition) else ways[1:]
                    found = max(self._size(way, known, dict(made)) for way in ways)
                    calls, tokens = calls + found.calls, tokens + found.tokens
                    characters += found.characters
                case _:
                    if made and (more := sum([made.get(index, 0) for index in reads])):
                        made.update(dict.fromkeys(writes, more))
        return _Size(calls, tokens, characters)

    def _read(self, block: p.Block) -> tuple[_Use, ...]:
        """The instructions of a block, each with the registers that it uses."""
        known = self._blocks.get(id(block))
        if known is None:
            instrs = p.unchained(block.instrs)
            known = tuple(
                (instr, tuple(instr.waits()), tuple(instr.reads()), tuple(instr.writes()))
                for instr in instrs
            )
            self._blocks[id(block)] = known
        return known

    def _follow(self, known: dict[int, Any], instr: p.Instr) -> None:
        """Do what an instruction does, if that needs neither a model nor a tool."""
        match instr:
            case p.Start():
                known[instr.into.index] = Context()
            case p.Extend():
                text = "".join([_value(known, part) for part in instr.parts])
                known[instr.into.index] = known[instr.state.index].extend(text)
            case p.Role():
                state: Context = known[instr.state.index]
                known[instr.into.index] = state.role(instr.role, instr.edge, self._template)
            case p.Prefill():
                known[instr.into.index] = known[instr.state.index]
            case p.StateText():
                known[instr.into.index] = known[instr.state.index].text
            case p.Compute():
                args = [_value(known, arg) for arg in instr.args]
                known[instr.into.index] = PURE[instr.fn].compute(*args)
            case p.MakeList():
                known[instr.into.index] = [_value(known, item) for item in instr.items]
            case p.Pick():
                item = instr.items[_value(known, instr.index)]
                if isinstance(item, p.Const) or item.index in known:
                    known[instr.into.index] = _value(known, item)
            case _:
                pass  # its result is not known, or nothing of a prompt


def _expected(call: p.Gen | p.Match | p.Select | p.Score) -> int:
    """Tokens that a model call adds, by guess if its text may end before its limit."""
    match call:
        case p.Gen():
            return _expected_of(call.params)
        case p.Match():
            return sum(map(_expected_of, call.gens))
        case _:
            return _CHOICE


def _expected_of(params: GenParams) -> int:
    stops = params.stop or params.stop_regex or params.stop_token_ids or params.constraint
    if params.ignore_eos and not stops:
        return params.max_tokens
    return min(params.max_tokens, max(_UNKNOWN_LENGTH, params.min_tokens))


def _made_in(part: p.Operand, made: dict[int, int]) -> int:
    """Tokens of texts of the model in a part of a prompt."""
    return made.get(part.index, 0) if isinstance(part, p.Reg) else 0


def _length(part: p.Operand, known: dict[int, Any]) -> int:
    """Characters of a part of a prompt, as far as it is known."""
    if isinstance(part, p.Reg) and part.index not in known:
        return 0
    return len(str(_value(known, part)))


def _value(known: dict[int, Any], operand: p.Operand) -> Any:  # noqa: ANN401 - any value
    return known[operand.index] if isinstance(operand, p.Reg) else operand.value
