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
from typing import TYPE_CHECKING, Any

from lmc.plan import Attempt, Block, Gen, If, Instr, MakeList, Plan, Reg, Ret, Select
from lmc.runtime.context import Context
from lmc.runtime.feed import Feed, Piece

if TYPE_CHECKING:
    from lmc.runtime.row import Row

__all__ = ["Outline", "RowStream"]

Channel = tuple[str | None, tuple[int, ...]]
"""The name of a variable, or None for the prompt; and the branch."""

PROMPT: Channel = (None, ())


# ------------------------------------------------------------------------------------- outlines


@dataclass(frozen=True, slots=True)
class _Lines:
    """What is known to be spoken from a block on: the prompt's parts, and the variables'."""

    prompt: tuple[Instr, ...]
    calls: tuple[tuple[Instr, Channel], ...]


@dataclass
class Outline:
    """Which instructions of a plan speak, and in which channels.

    Attributes:
        exact: whether every model call has a channel and the program runs to its end as a plan.
    """

    exact: bool = True
    _blocks: dict[int, list[tuple[Instr, Channel]]] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan) -> Outline:
        """The outline of a plan. Costs O(instructions x ways)."""
        outline = Outline()
        ends: dict[int, _Lines | None] = {}
        calls: set[int] = set()
        _survey(plan.body, {}, ends, calls)
        outline._assign(plan.body, ends, _Lines((), ()))
        named = {
            id(instr) for parts in outline._blocks.values() for instr, ch in parts if ch != PROMPT
        }
        outline.exact = calls <= named and all(held is not None for held in ends.values())
        return outline

    def _assign(self, block: Block, ends: dict[int, _Lines | None], given: _Lines) -> None:
        lines = ends[id(block)] or given
        held: list[tuple[Instr, Channel]] = [
            (instr, PROMPT) for instr in lines.prompt[len(given.prompt) :]
        ]
        known = {(id(instr), channel) for instr, channel in given.calls}
        held += [(i, ch) for i, ch in lines.calls if (id(i), ch) not in known]
        self._blocks[id(block)] = held
        last = block.instrs[-1] if block.instrs else None
        if isinstance(last, If):
            for inner in (last.then, last.orelse):
                self._assign(inner, ends, lines)

    def parts(self, block: Block) -> Sequence[tuple[Instr, Channel]]:
        """What is known to be spoken once a block is entered."""
        return self._blocks.get(id(block), ())


def _survey(
    block: Block,
    around: dict[int, Instr],
    ends: dict[int, _Lines | None],
    calls: set[int],
) -> _Lines | None:
    """Note what all ways from a block on have in common; None if none of them ends in the plan."""
    makers = dict(around)
    for instr in block.instrs:
        for index in instr.writes():
            makers[index] = instr
        if isinstance(instr, (Gen, Select)):
            calls.add(id(instr))
    last = block.instrs[-1] if block.instrs else None
    lines: _Lines | None = None
    if isinstance(last, Ret):
        lines = _lines(last, makers)
    elif isinstance(last, If):
        ways = [_survey(inner, makers, ends, calls) for inner in (last.then, last.orelse)]
        going = [way for way in ways if way is not None]
        lines = _common(*going) if len(going) == 2 else next(iter(going), None)
    ends[id(block)] = lines
    return lines


def _common(one: _Lines, other: _Lines) -> _Lines:
    count = 0
    for mine, theirs in zip(one.prompt, other.prompt, strict=False):
        if mine is not theirs:
            break
        count += 1
    there = {(id(instr), channel) for instr, channel in other.calls}
    return _Lines(one.prompt[:count], tuple(c for c in one.calls if (id(c[0]), c[1]) in there))


def _lines(end: Ret, makers: dict[int, Instr]) -> _Lines:
    prompt = _chain(end.state, makers)
    main = {id(instr) for instr in prompt}
    named: dict[int, list[Channel]] = {}
    branches: list[tuple[Instr, Channel]] = []
    for name, operand in zip(end.names, end.values, strict=True):
        for call, branch in _calls(operand, makers, ()):
            if id(call) in main:
                named.setdefault(id(call), []).append((name, branch))
                continue
            own = [i for i in _chain(call.into, makers) if id(i) not in main]
            branches += [
                (i, (name, branch))
                for i in own
                if i is call or (isinstance(i, (Gen, Select)) and i.name == call.name)
            ]
    straight: list[tuple[Instr, Channel]] = [
        (i, channel)
        for i in prompt
        if isinstance(i, (Gen, Select))
        for channel in named.get(id(i), [(i.name, ())])
    ]
    return _Lines(tuple(prompt), (*straight, *branches))


def _chain(state: Reg, makers: dict[int, Instr]) -> list[Instr]:
    """The instructions that lead to a state, the first one first."""
    found: list[Instr] = []
    at: Any = state
    while isinstance(at, Reg) and at.index in makers:
        instr = makers[at.index]
        found.append(instr)
        at = getattr(instr, "state", None)
    found.reverse()
    return found


def _calls(
    operand: object, makers: dict[int, Instr], branch: tuple[int, ...]
) -> Iterator[tuple[Gen | Select, tuple[int, ...]]]:
    """The model calls whose texts a variable holds."""
    instr = makers.get(operand.index) if isinstance(operand, Reg) else None
    if isinstance(instr, MakeList):
        for nth, item in enumerate(instr.items):
            yield from _calls(item, makers, (*branch, nth))
    elif isinstance(instr, Attempt):
        yield from _calls(instr.item, makers, branch)
    elif isinstance(instr, (Gen, Select)):
        yield instr, branch


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
            for instr, channel in self._outline.parts(block):
                self.enter(row, instr, channel)

    def enter(self, row: Row, instr: Instr, channel: Channel) -> None:
        """An instruction is going to add to a channel; called in program order."""
        into: Reg | None = getattr(instr, "into", None)
        before: Reg | None = getattr(instr, "state", None)
        if channel == PROMPT and before is not None and into is not None:
            self._states[into.index] = before
        elif channel != PROMPT and isinstance(instr, (Gen, Select)):
            into = instr.into_text
        else:
            return
        part = _Part(channel)
        self._parts.setdefault(into.index, []).append(part)
        self._channels.setdefault(channel, deque()).append(part)
        if into.index < len(row.regs) and row.is_set(into.index):
            self.is_set(row, into.index, row.regs[into.index])

    def writer(self, instr: Gen, lead: str = "") -> Callable[[str], None] | None:
        """Takes the text of a gen piece by piece; None if nobody is to see it.

        Args:
            instr: the gen.
            lead: markup that the prompt has before that text, and has not been said.
        """
        parts = [
            part for reg in (instr.into, instr.into_text) for part in self._parts.get(reg.index, ())
        ]
        if not parts:
            return None
        for part in parts:
            if part.channel == PROMPT:
                self._say(part, lead)

        def write(text: str) -> None:
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
            self._say(part, whole[part.said :])
            part.done = True
            self._advance(part.channel)

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
