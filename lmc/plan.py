"""The plan: the only door between the compiler and the runtime. Data only, JSON both ways.

A plan is instructions over numbered registers. A register is set once in a row's life; an
instruction runs as soon as the registers it reads are set, so the order of a block is only a
preference, as long as registers are set before they are read. `Block`s nest: the last instruction
of a block is an `If`, a `Resume` or a `Ret`.

Eager mode speaks the same language: each primitive becomes one instruction, handed to the runtime
at the moment it is met. So there is one meaning for both.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lmc.errors import Location, PlanError, UsageError
from lmc.params import GenParams

__all__ = [
    "PLAN_VERSION",
    "Attempt",
    "Block",
    "Chain",
    "Compute",
    "Const",
    "Extend",
    "Gen",
    "HostCall",
    "If",
    "Instr",
    "MakeList",
    "Match",
    "Operand",
    "Pack",
    "Param",
    "Pick",
    "Plan",
    "Prefill",
    "Race",
    "Reg",
    "Release",
    "Resume",
    "Ret",
    "Role",
    "Score",
    "Select",
    "Start",
    "StateText",
    "Typed",
    "operand_registers",
    "unchained",
]

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class Reg:
    """A register, by number."""

    index: int


@dataclass(frozen=True, slots=True)
class Const:
    """A constant operand: a text, a number, a truth value or None."""

    value: str | int | float | bool | None


Operand = Reg | Const


@dataclass(frozen=True, slots=True, kw_only=True)
class Instr:
    """Base of all instructions; `at` is the line of the user's program it came from."""

    op: ClassVar[str]
    tolerant: ClassVar[bool] = False  # it runs even if what it reads has failed
    at: Location | None = None

    def reads(self) -> Iterator[int]:
        """The registers that it reads; they are set by instructions before it."""
        kind: Any = type(self)
        for name in _field_names(kind)[0]:
            yield from operand_registers(getattr(self, name))

    def waits(self) -> Iterator[int]:
        """The registers that must be set before this can run."""
        return self.reads()

    def writes(self) -> Iterator[int]:
        """The registers that this sets."""
        kind: Any = type(self)
        for name in _field_names(kind)[1]:
            yield from operand_registers(getattr(self, name))


@functools.cache  # asked at every instruction of every row
def _field_names(kind: type[Instr]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields of a kind of instruction that it reads, and those that it sets."""
    names = [f.name for f in dataclasses.fields(kind)]
    into = tuple(name for name in names if name.startswith("into"))
    return tuple(name for name in names if name not in into), into


def unchained(instrs: Iterable[Instr]) -> Iterator[Instr]:
    """Instructions, with the links of chains in place of these."""
    for instr in instrs:
        if isinstance(instr, Chain):
            yield from instr.links
        else:
            yield instr


def operand_registers(value: object) -> Iterator[int]:
    """Every register index that occurs in an operand or a tuple of operands."""
    if isinstance(value, Reg):
        yield value.index
    elif isinstance(value, tuple):
        for item in value:
            yield from operand_registers(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Instr):
    """The empty prompt state."""

    op: ClassVar[str] = "start"
    into: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend(Instr):
    """The state with `parts` appended, as plain text (never special tokens)."""

    op: ClassVar[str] = "extend"
    into: Reg
    state: Reg
    parts: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role(Instr):
    """Begin or end a chat message of `role`; `edge` is "begin" or "end"."""

    op: ClassVar[str] = "role"
    into: Reg
    state: Reg
    role: str
    edge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gen(Instr):
    """A model call: the longer state and the text that was generated.

    `draw` numbers the model calls of a program in program order: the key of its random numbers.
    `constraint` indexes `Plan.constraints`, or is None; `stops` are those of `params.stop_regex`.
    """

    op: ClassVar[str] = "gen"
    into: Reg
    into_text: Reg
    state: Reg
    name: str
    params: GenParams
    draw: int
    constraint: int | None = None
    stops: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Instr):
    """A model call that fills a template: each gen is followed by its text.

    Gives the longer state, the whole text, and what each gen wrote. `constraints` index
    `Plan.constraints`, one a gen. With `heal`, the last tokens of the text before it may be cut
    otherwise. For `draw` see `Gen`.
    """

    op: ClassVar[str] = "match"
    into: Reg
    into_text: Reg
    into_texts: tuple[Reg, ...]
    state: Reg
    texts: tuple[Operand, ...]
    names: tuple[str, ...]
    gens: tuple[GenParams, ...]
    constraints: tuple[int, ...]
    heal: bool
    draw: int
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(Instr):
    """Gens that follow each other on one state and what is between them, as one request.

    `links` are instructions: the first and the last one are a `Gen`, those between them are `Gen`,
    `Extend` or `Role`, and each goes on from the state of the one before it. What the chain waits
    for is there before the first one starts; each register is set as soon as its link is done.
    """

    op: ClassVar[str] = "chain"
    links: tuple[Instr, ...]

    @property
    def state(self) -> Reg:
        """The state that the first gen follows."""
        first = self.links[0]
        assert isinstance(first, Gen), "a chain begins with a gen"
        return first.state

    def reads(self) -> Iterator[int]:
        """What the links read of other instructions."""
        own = set(self.writes())
        return (index for link in self.links for index in link.reads() if index not in own)

    def writes(self) -> Iterator[int]:
        """What the links set."""
        return (index for link in self.links for index in link.writes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Instr):
    """A model call: the best of `choices` by `method`, or one drawn at `temperature`."""

    op: ClassVar[str] = "select"
    into: Reg
    into_text: Reg
    state: Reg
    name: str
    choices: tuple[Operand, ...]
    method: str
    draw: int
    temperature: float = 0.0
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(Instr):
    """A model call: the state with `text` appended, and its log-probability there, in nats.

    `top_logprobs` of the most likely tokens are wanted in the place of each.
    """

    op: ClassVar[str] = "score"
    into: Reg
    into_value: Reg
    state: Reg
    name: str
    text: Operand
    top_logprobs: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateText(Instr):
    """All text of a state, the markup of the chat template included."""

    op: ClassVar[str] = "text"
    into: Reg
    state: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Instr):
    """A pure function of `lmc.textops.PURE`."""

    op: ClassVar[str] = "compute"
    into: Reg
    fn: str
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed(Instr):
    """The text of a gen as the value that the gen's type reads it back as.

    Attributes:
        type: the text of the type, as in `lmc.typed`.
        name: of the variable, for messages.
    """

    op: ClassVar[str] = "typed"
    into: Reg
    text: Operand
    type: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall(Instr):
    """A call of a tool, a Python function that is passed in beside the plan.

    Attributes:
        fn: its name there.
        args: the last ones are given by `names`.
        gives: the type of the result, as the IR writes it; checked when it comes.
        pure: the same arguments give the same result, and the call is not seen from outside.
        after: registers that are waited for, and that must not have failed.
    """

    op: ClassVar[str] = "host"
    into: Reg
    fn: str
    args: tuple[Operand, ...]
    names: tuple[str, ...] = ()
    gives: str = "value"
    pure: bool = False
    after: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeList(Instr):
    """A list of the given items."""

    op: ClassVar[str] = "list"
    into: Reg
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(Instr):
    """A Python structure, `template`, whose leaves `{"$": n}` are replaced by `items[n]`.

    The template is JSON text in which dictionaries are written `{"dict": [[key, value], ...]}`,
    tuples `{"tuple": [...]}` and lists as arrays.
    """

    op: ClassVar[str] = "pack"
    into: Reg
    template: str
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Race(Instr):
    """Which `k` branches make the fewest tokens, by number in rising order; ties go to the first.

    Attributes:
        into: a register for each of them.
        into_tokens: how many tokens they have made together.
        groups: per branch, the results of its model calls, and the tokens of races inside of it.
        stops: per branch, those of them that are to be cancelled if it loses.
        k: how many branches win.
    """

    op: ClassVar[str] = "race"
    into: tuple[Reg, ...]
    into_tokens: Reg
    groups: tuple[tuple[Reg, ...], ...]
    stops: tuple[tuple[Reg, ...], ...]
    k: int = 1

    def waits(self) -> Iterator[int]:
        """Nothing: it looks on while they run."""
        return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick(Instr):
    """Item number `index`; of the others it is not even asked whether they failed."""

    op: ClassVar[str] = "pick"
    into: Reg
    index: Operand
    items: tuple[Operand, ...]

    def waits(self) -> Iterator[int]:
        """The index; then, once that is known, the item."""
        return operand_registers(self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Instr):
    """The item, or the error with which it failed."""

    op: ClassVar[str] = "attempt"
    tolerant: ClassVar[bool] = True
    into: Reg
    item: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill(Instr):
    """Compute the KV of a state that several model calls share, as far as its tokens are settled.

    Advice: it never changes what any other instruction gives. With `ahead` it is for a way that may
    not be taken: it waits for all other work, and is dropped when the way is known.
    """

    op: ClassVar[str] = "prefill"
    into: Reg
    state: Reg
    ahead: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Instr):
    """The state is not used again: what only it holds of the KV cache may be dropped first."""

    op: ClassVar[str] = "release"
    tolerant: ClassVar[bool] = True
    state: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class If(Instr):
    """Go on in one of two blocks.

    If the condition failed, the first of `after` that failed, too, is the row's error: there the
    program raised. Else they are of no concern.
    """

    op: ClassVar[str] = "if"
    condition: Operand
    then: Block
    orelse: Block
    after: tuple[Operand, ...] = ()

    def waits(self) -> Iterator[int]:
        """The condition."""
        return operand_registers(self.condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Instr):
    """Run the rest of the program eagerly, replaying it with the results of its model calls.

    `calls` holds, per model call made so far in program order, its (state, result) registers, and
    `tools` the results of the tools called so far.
    """

    op: ClassVar[str] = "resume"
    tolerant: ClassVar[bool] = True
    tools: tuple[Operand, ...] = ()
    calls: tuple[tuple[Operand, Operand], ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ret(Instr):
    """The end: the final state, the named variables, and what the function returned.

    If one of `after` failed, the first of them is the row's error: there the program raised.
    """

    op: ClassVar[str] = "ret"
    tolerant: ClassVar[bool] = True
    after: tuple[Operand, ...] = ()
    state: Reg
    names: tuple[str, ...]
    values: tuple[Operand, ...]
    value: Operand = Const(None)


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions in preferred order; nested blocks may read the registers of outer ones."""

    instrs: tuple[Instr, ...]


@dataclass(frozen=True, slots=True)
class Param:
    """One symbolic leaf of the arguments: `path` leads to it, as in `("choices", 0)`."""

    path: tuple[str | int, ...]
    into: Reg


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled program.

    Attributes:
        name: of the program.
        params: the texts that a row supplies, and their registers.
        static: JSON text of the arguments that were known when the program was compiled; a row
            must agree with them. Texts in it are replaced by null.
        registers: how many a row has.
        body: what each row does.
        constraints: automata as `lmc.constraints` writes them to JSON, each once.
        source: file and line of the function, for messages.
        level: optimization level it was compiled at.
    """

    name: str
    params: tuple[Param, ...]
    static: str
    registers: int
    body: Block
    constraints: tuple[dict[str, Any], ...] = ()
    source: Location | None = None
    level: int = 2
    version: int = field(default=PLAN_VERSION)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values, read back by `from_json`."""
        from lmc.plan_json import encoded

        return encoded(self)

    @staticmethod
    def from_json(data: object) -> Plan:
        """Read what `to_json` wrote; for the rules that it must keep see `lmc.plan_check`.

        Raises:
            PlanError: the data is damaged or of another version.
        """
        from lmc.plan_check import check
        from lmc.plan_json import decoded

        if not isinstance(data, dict) or "version" not in data:
            raise PlanError("this is not a plan")
        if data["version"] != PLAN_VERSION:
            raise PlanError(
                f"the plan has version {data['version']}, this lmc reads {PLAN_VERSION}",
                hint="compile the program again with this lmc",
            )
        try:
            plan = decoded(data)
            check(plan)
        except UsageError as error:  # of the parameters of a model call
            raise PlanError(f"the plan is damaged: {error.problem}") from error
        except RecursionError as error:
            raise PlanError("the plan is damaged: it is nested too deeply") from error
        except (TypeError, ValueError) as error:
            raise PlanError(f"the plan is damaged: {error}") from error
        return plan
