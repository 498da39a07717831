"""The prompts of a row that are known before it runs: those of its first model calls.

A plan is followed as far as its arguments alone decide: texts are put together, conditions on
arguments are taken, branches are gone into. Where a model call or a tool is met, its prompt is
noted, and what depends on its answer is left out. Spans are tokenized as when the row runs.

Costs       a microsecond or two an instruction, and the tokens of the prompts.
Not here    what prompts share (`prefix_tree`), running anything (`executor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmc import plan as p
from lmc.runtime.context import Context, SpanTokenizer, Template
from lmc.runtime.request import KeyArray
from lmc.textops import PURE

__all__ = ["FirstPrompts"]

_CALLS = (p.Gen, p.Match, p.Select, p.Score)


class FirstPrompts:
    """Finds the prompts of rows of one plan."""

    def __init__(self, plan: p.Plan, tokenizer: SpanTokenizer, template: Template) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._template = template
        self._blocks: dict[int, tuple[tuple[p.Instr, tuple[int, ...]], ...]] = {}

    def of(self, texts: Sequence[str], most: int | None = None) -> list[KeyArray]:
        """The prompts of the first model calls of a row, in program order.

        Args:
            texts: the row's arguments, in the order of `plan.params`.
            most: stop after so many.

        Prompts that cannot be made (the row will fail there) are left out.
        """
        known: dict[int, Any] = {
            param.into.index: text for param, text in zip(self._plan.params, texts, strict=True)
        }
        found: list[KeyArray] = []
        block: p.Block | None = self._plan.body
        while block is not None:
            instrs, block = self._read(block), None
            for instr, reads in instrs:
                if any(index not in known for index in reads):
                    continue
                try:
                    if isinstance(instr, _CALLS):
                        found.append(known[instr.state.index].settle(self._tokenizer).keys)
                        if len(found) == most:
                            return found
                    elif isinstance(instr, p.If):
                        block = instr.then if _value(known, instr.condition) else instr.orelse
                    else:
                        self._follow(known, instr)
                except Exception:  # whatever is wrong: the row will say so itself
                    continue
        return found

    def _read(self, block: p.Block) -> tuple[tuple[p.Instr, tuple[int, ...]], ...]:
        """The instructions of a block, each with the registers that it waits for."""
        known = self._blocks.get(id(block))
        if known is None:
            known = tuple((instr, tuple(instr.waits())) for instr in block.instrs)
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


def _value(known: dict[int, Any], operand: p.Operand) -> Any:  # noqa: ANN401 - any value
    return known[operand.index] if isinstance(operand, p.Reg) else operand.value
