"""The most tokens that rows of a plan can hold, reckoned from the lengths of texts alone.

Where that fits into the KV cache, nothing is ever dropped from it, and rows may start in any order:
none has to be tokenized before the first one runs.

Costs       once a plan: its instructions; then a multiplication for each argument of a row.
Not here    how much a row is likely to hold, in tokens (`prompts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmc import plan as p

__all__ = ["MostHeld", "most_held"]

_MARKUP = 64  # tokens that one edge of a message can add
_SLACK = 16  # tokens of a model call: cut otherwise at its ends, or room that it is to grow


@dataclass(frozen=True, slots=True)
class MostHeld:
    """A bound in tokens, as no token of a text stands for less than a byte.

    Attributes:
        shared: what all rows of the plan begin with.
        fixed: what a row adds beside its arguments.
        times: how often a row may hold each argument, in the order of `plan.params`.
    """

    shared: int
    fixed: int
    times: tuple[int, ...]

    def of(self, arguments: Sequence[str]) -> int:
        """The most tokens of one row, beside what it shares with all."""
        pairs = zip(self.times, arguments, strict=True)
        return self.fixed + sum(n * _bytes(text) for n, text in pairs if n)


def most_held(plan: p.Plan) -> MostHeld | None:
    """The bound for a plan; None if it has texts of unknown length, or goes on eagerly.

    Both ways of a branch count. A text that a model makes has no more tokens than its limit.
    """
    made: dict[int, int] = {}  # of registers with texts of a model: their tokens
    uses: Counter[int] = Counter()  # of other registers in prompts
    constant = {instr.into.index for instr in _all(plan.body) if isinstance(instr, p.Start)}
    shared = fixed = 0
    for instr in _all(plan.body):
        texts: tuple[p.Operand, ...] = ()
        match instr:
            case p.Extend():
                texts = instr.parts
            case p.Role():
                fixed += _MARKUP
            case p.Prefill() if instr.state.index in constant:
                constant.add(instr.into.index)
            case p.Gen():
                fixed += instr.params.max_tokens + _SLACK
                made[instr.into_text.index] = instr.params.max_tokens
            case p.Match():
                texts = instr.texts
                most = [gen.max_tokens for gen in instr.gens]
                fixed += sum(most) + _SLACK
                made.update(zip([reg.index for reg in instr.into_texts], most, strict=True))
            case p.Select():
                texts = instr.choices
                fixed += _SLACK
                if all(isinstance(choice, p.Const) for choice in instr.choices):
                    made[instr.into_text.index] = max(_size(choice) for choice in instr.choices)
            case p.Score():
                texts = (instr.text,)
                fixed += _SLACK
            case p.Resume():
                return None
        known = sum(_size(text) for text in texts if isinstance(text, p.Const))
        held = [text.index for text in texts if isinstance(text, p.Reg)]
        if isinstance(instr, p.Extend) and instr.state.index in constant and not held:
            constant.add(instr.into.index)
            shared += known
            continue
        fixed += known + sum(made[index] for index in held if index in made)
        uses.update(index for index in held if index not in made)
    times = tuple(uses.pop(param.into.index, 0) for param in plan.params)
    return None if uses else MostHeld(shared, fixed, times)


def _all(block: p.Block) -> Iterator[p.Instr]:
    """All instructions of a block and of those inside, the links of chains in place of these."""
    for instr in p.unchained(block.instrs):
        yield instr
        if isinstance(instr, p.If):
            yield from _all(instr.then)
            yield from _all(instr.orelse)


def _size(text: p.Operand) -> int:
    return _bytes(str(text.value)) if isinstance(text, p.Const) else 0


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
