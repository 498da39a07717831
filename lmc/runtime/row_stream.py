"""What of a row is streamed, and under which names, while it runs.

    instructions ──► spoken parts, in program order ──► pieces in a feed

A *channel* is the whole prompt, or one variable of one branch. Its parts (the instructions that add
to it) speak one after the other in program order: what a later part says is held back until those
before it are done, so that a reader sees the text grow at its end only.

For plans, `Outline` finds the parts: the prompt is the chain of states that leads to the end of the
program, a variable is the model call whose text it holds. Where ways part, only what lies on all
of them is known before the way is chosen. Eager rows say themselves in which branch they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmc.plan import (
    Attempt,
    Block,
    Gen,
    If,
    Instr,
    MakeList,
    Match,
    Plan,
    Reg,
    Ret,
    Select,
    unchained,
)
from lmc.runtime.context import Context
from lmc.runtime.feed import Feed, Piece

if TYPE_CHECKING:
    from lmc.runtime.row import Row

__all__ = ["PROMPT", "Outline", "RowStream", "Spoken", "outputs"]

Channel = tuple[str | None, tuple[int, ...]]
"""The name of a variable, or None for the prompt; and the branch."""

PROMPT: Channel = (None, ())


# ------------------------------------------------------------------------------------- outlines


def outputs(instr: Instr) -> tuple[tuple[str, Reg], ...]:
    """The texts that a model call gives, with their names."""
    if isinstance(instr, (Gen, Select)):
        return ((instr.name, instr.into_text),)
    if isinstance(instr, Match):
        return tuple(zip(instr.names, instr.into_texts, strict=True))
    return ()


@dataclass(frozen=True, slots=True)
class Spoken:
    """An instruction that adds to a channel: to the prompt, or by setting the register `text`."""

    instr: Instr = field(compare=False)  # the register says which it is
    channel: Channel
    text: Reg | None = None


@dataclass(frozen=True, slots=True)
class _Lines:
    """What is known to be spoken from a block on: the prompt's parts, and the variables'."""

    prompt: tuple[Spoken, ...]
    texts: tuple[Spoken, ...]


@dataclass
class Outline:
    """Which instructions of a plan speak, and in which channels.

    Attributes:
        exact: whether every model call has a channel and the program runs to its end as a plan.
    """

    exact: bool = True
    _blocks: dict[int, list[Spoken]] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan) -> Outline:
        """The outline of a plan. Costs O(instructions x ways)."""
        outline = Outline()
        ends: dict[int, _Lines | None] = {}
        texts: set[Reg] = set()
        _survey(plan.body, {}, ends, texts)
        outline._assign(plan.body, ends, _Lines((), ()))
        named = {spoken.text for parts in outline._blocks.values() for spoken in parts}
        outline.exact = texts <= named and all(held is not None for held in ends.values())
        return outline

    def _assign(self, block: Block, ends: dict[int, _Lines | None], given: _Lines) -> None:
        lines = ends[id(block)] or given
        known = set(given.texts)
        self._blocks[id(block)] = [
            *lines.prompt[len(given.prompt) :],
            *(spoken for spoken in lines.texts if spoken not in known),
        ]
        last = block.instrs[-1] if block.instrs else None
        if isinstance(last, If):
            for inner in (last.then, last.orelse):
                self._assign(inner, ends, lines)

    def parts(self, block: Block) -> Sequence[Spoken]:
        """What is known to be spoken once a block is entered."""
        return self._blocks.get(id(block), ())


def _survey(
    block: Block, around: dict[int, Instr], ends: dict[int, _Lines | None], texts: set[Reg]
) -> _Lines | None:
    """Note what all ways from a block on have in common; None if none of them ends in the plan."""
    makers = dict(around)
    for instr in unchained(block.instrs):
        makers.update(dict.fromkeys(instr.writes(), instr))
        texts.update(text for _, text in outputs(instr))
    last = block.instrs[-1] if block.instrs else None
    lines: _Lines | None = None
    if isinstance(last, Ret):
        lines = _lines(last, makers)
    elif isinstance(last, If):
        ways = [_survey(inner, makers, ends, texts) for inner in (last.then, last.orelse)]
        going = [way for way in ways if way is not None]
        lines = _common(*going) if len(going) == 2 else next(iter(going), None)
    ends[id(block)] = lines
    return lines


def _common(one: _Lines, other: _Lines) -> _Lines:
    pairs = enumerate(zip(one.prompt, other.prompt, strict=False))
    shorter = min(len(one.prompt), len(other.prompt))
    count = next((n for n, (a, b) in pairs if a.instr is not b.instr), shorter)
    there = set(other.texts)
    return _Lines(one.prompt[:count], tuple(spoken for spoken in one.texts if spoken in there))


def _lines(end: Ret, makers: dict[int, Instr]) -> _Lines:
    prompt = _chain(end.state, makers)
    main = {id(instr) for instr in prompt}
    named: dict[Reg, list[Channel]] = {}
    branches: list[Spoken] = []
    for name, operand in zip(end.names, end.values, strict=True):
        for call, text, branch in _calls(operand, makers, ()):
            if id(call) in main:
                named.setdefault(text, []).append((name, branch))
                continue
            own = {reg: said for said, reg in outputs(call)}[text]
            for instr in _chain(getattr(call, "into", None), makers):
                if id(instr) not in main:
                    branches += [
                        Spoken(instr, (name, branch), reg)
                        for said, reg in outputs(instr)
                        if reg == text or said == own
                    ]
    straight = [
        Spoken(instr, channel, reg)
        for instr in prompt
        for said, reg in outputs(instr)
        for channel in named.get(reg, [(said, ())])
    ]
    return _Lines(tuple(Spoken(instr, PROMPT) for instr in prompt), (*straight, *branches))


def _chain(state: object, makers: dict[int, Instr]) -> list[Instr]:
    """The instructions that lead to a state, the first one first."""
    found: list[Instr] = []
    while isinstance(state, Reg) and state.index in makers:
        instr = makers[state.index]
        found.append(instr)
        state = getattr(instr, "state", None)
    found.reverse()
    return found


def _calls(
    operand: object, makers: dict[int, Instr], branch: tuple[int, ...]
) -> Iterator[tuple[Instr, Reg, tuple[int, ...]]]:
    """The model calls whose texts a variable holds, and the registers of these texts."""
    instr = makers.get(operand.index) if isinstance(operand, Reg) else None
    if isinstance(instr, MakeList):
        for nth, item in enumerate(instr.items):
            yield from _calls(item, makers, (*branch, nth))
    elif isinstance(instr, Attempt):
        yield from _calls(instr.item, makers, branch)
    elif instr is not None and isinstance(operand, Reg):
        yield from ((instr, reg, branch) for _, reg in outputs(instr) if reg == operand)


# -------------------------------------------------------------------------------------- speaking


class _Part:
    """What one instruction adds to a channel."""

    __slots__ = ("channel", "done", "held", "reason", "said")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.said = 0  # characters so far
        self.held: list[str] = []  # of them, those not yet given to the feed
        self.done = False
        self.reason: str | None = None


class RowStream:
    """The streamed side of a row. Used on the executor's thread only.

    Args:
        feed: takes the pieces.
        outline: of the row's plan; None for eager rows.
    """

    def __init__(self, feed: Feed, outline: Outline | None = None) -> None:
        self._feed = feed
        self._outline = outline
        self._channels: dict[Channel, deque[_Part]] = {}
        self._parts: dict[int, list[_Part]] = {}  # by the register that ends them
        self._states: dict[int, Reg] = {}  # by register of a state: the state before

    def enter_block(self, row: Row, block: Block) -> None:
        """A block of the row's plan begins."""
        if self._outline is not None:
            for spoken in self._outline.parts(block):
                self.enter(row, spoken)

    def enter(self, row: Row, spoken: Spoken, after: Reg | None = None) -> None:
        """An instruction is going to add to a channel; called in program order.

        `after` is the state that the prompt has said so far, if not that of the instruction.
        """
        into = spoken.text
        if into is None:
            before: Reg | None = after or getattr(spoken.instr, "state", None)
            into = getattr(spoken.instr, "into", None)
            if before is None or into is None:  # it begins the prompt
                return
            self._states[into.index] = before
        part = _Part(spoken.channel)
        self._parts.setdefault(into.index, []).append(part)
        self._channels.setdefault(spoken.channel, deque()).append(part)
        if into.index < len(row.regs) and row.is_set(into.index):
            self.is_set(row, into.index, row.regs[into.index])

    def writer(self, *into: Reg, lead: str = "", skip: int = 0) -> Callable[[str], None] | None:
        """Takes the text of a model call piece by piece; None if nobody is to see it.

        Args:
            into: the registers that hold its state or its text in the end.
            lead: what was added to the prompt before it, when it was known that the model goes on.
            skip: characters at the beginning that repeat what was there before.
        """
        parts = [part for reg in into for part in self._parts.get(reg.index, ())]
        if not parts:
            return None
        for part in parts:
            if part.channel == PROMPT:
                self._say(part, lead)
        left = skip

        def write(text: str) -> None:
            nonlocal left
            text, left = text[left:], max(0, left - len(text))
            for part in parts:
                self._say(part, text)

        return write

    def is_set(self, row: Row, index: int, value: object) -> None:
        """A register of the row got its value: the parts that it ends are known as a whole."""
        for part in self._parts.pop(index, ()):
            whole = ""
            if part.channel == PROMPT:
                before = row.regs[self._states.pop(index).index]
                if isinstance(value, Context) and isinstance(before, Context):
                    whole = value.since(before)
            else:
                whole = value if isinstance(value, str) else ""
                part.reason = getattr(row.meta.get(index), "finish_reason", None)
            part.held.append(whole[part.said :])
            part.done = True
            self._advance(part.channel)

    def end(self) -> None:
        """The row is over: say what waits for model calls that nobody waited for.

        Their texts were set anew before they were complete; of these no more is said.
        """
        for channel, parts in self._channels.items():
            if channel != PROMPT:
                self._channels[channel] = deque(part for part in parts if part.done)
                self._advance(channel)

    def _say(self, part: _Part, text: str) -> None:
        if text and not part.done:
            part.said += len(text)
            part.held.append(text)
            self._advance(part.channel)

    def _advance(self, channel: Channel) -> None:
        """Give the feed what the first part that still speaks has said, and those that are done."""
        parts = self._channels[channel]
        while parts:
            part = parts[0]
            text = "".join(part.held)
            part.held.clear()
            if text or part.reason is not None:
                self._feed.put(Piece(*channel, text, part.reason))
            if not part.done:
                return
            parts.popleft()
