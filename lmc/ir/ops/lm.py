"""Ops on prompt states. A state is everything that the model has read so far."""

from __future__ import annotations

import itertools
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from lmc.errors import IRError, Location, UsageError
from lmc.ir.attributes import read_attribute, suggestion, written
from lmc.ir.core import Effect, Op, Operand, Value, check_type
from lmc.ir.types import FLOAT, INT, STATE, TEXT, Type
from lmc.params import SELECT_METHODS, GenParams, check_choosing, check_top_logprobs

__all__ = [
    "EDGES", "Chain", "Extend", "Gen", "Match", "Prefill", "Race", "Release", "Role", "Score",
    "Select", "Start", "StateText",
]  # fmt: skip

EDGES = ("begin", "end")


@dataclass(frozen=True)
class Start(Op):
    """The state in which the model has read nothing.

    %s0 = lm.start
    """

    op: ClassVar[str] = "lm.start"

    def result_types(self) -> tuple[Type, ...]:
        return (STATE,)


@dataclass(frozen=True)
class Extend(Op):
    """The state with texts appended, in order, as plain text (never special tokens).

    %s1 = lm.extend %s0, "Essay: ", %essay
    """

    op: ClassVar[str] = "lm.extend"
    state: Value
    parts: tuple[Operand, ...]

    def result_types(self) -> tuple[Type, ...]:
        return (STATE,)

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)
        for nth, part in enumerate(self.parts, 1):
            check_type(self, f"part {nth}", part, TEXT)


@dataclass(frozen=True)
class Role(Op):
    """The state with a chat message of `role` begun or ended.

    %s1 = lm.role %s0 {role = "user", edge = "begin"}
    """

    op: ClassVar[str] = "lm.role"
    state: Value
    role: str
    edge: str

    def result_types(self) -> tuple[Type, ...]:
        return (STATE,)

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)
        if self.edge not in EDGES:
            raise IRError(f'lm.role: edge must be "begin" or "end", found "{self.edge}"')


@dataclass(frozen=True)
class Gen(Op):
    """A model call: the longer state, and the text that the model wrote.

    %s1, %answer = lm.gen %s0 {name = "answer", max_tokens = 8, regex = "yes|no", draw = 2}

    Pure even where it samples: `draw`, the number of the call in program order, is the key of its
    random numbers, so no pass can mistake two samples for one. The attributes beside `name` and
    `draw` are the fields of `GenParams` that differ from their defaults.
    """

    op: ClassVar[str] = "lm.gen"
    state: Value
    name: str
    params: GenParams = GenParams()  # noqa: RUF009 - frozen
    draw: int = 0

    def attributes(self) -> dict[str, Any]:
        held = _written(self.params)
        return {"name": self.name, **held, **({"draw": self.draw} if self.draw else {})}

    @classmethod
    def read(cls, operands: list[Any], attributes: dict[str, Any]) -> Self:
        known = {f.name: f for f in fields(GenParams)}
        own = {k: v for k, v in attributes.items() if k in ("name", "draw")}
        for name in attributes:
            if name not in known and name not in own:
                hint = suggestion(name, ["name", *known, "draw"])
                raise IRError(f"lm.gen: there is no attribute `{name}`", hint=hint)
        held = {k: v for k, v in attributes.items() if k in known}
        return super().read(operands, {**own, "params": _params("lm.gen", held)})

    def result_types(self) -> tuple[Type, ...]:
        return (STATE, TEXT)

    def result_hints(self) -> tuple[str, ...]:
        return ("", self.name)

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)
        if self.draw < 0:
            raise IRError(f"lm.gen: draw is {self.draw}, must be 0 or more")


@dataclass(frozen=True)
class Match(Op):
    """A model call that fills a template: gens with constraints, and the text behind each.

    %s1, %m, %a, %b = lm.match %s0, ", ", "." {names = ["a", "b"],
                      gens = [{"regex": "[0-9]+"}, {"choices": ["x", "y"]}], heal = true}

    Gives the longer state, the whole text, and what each gen wrote. Texts and constraints are one
    automaton, so tokens may run over the seams between them; with `heal`, also over the end of the
    text that stands before. All gens are drawn in the same way; their `max_tokens` add up.
    """

    op: ClassVar[str] = "lm.match"
    state: Value
    texts: tuple[Operand, ...]
    names: tuple[str, ...]
    gens: tuple[GenParams, ...]
    heal: bool = False
    draw: int = 0

    @property
    def params(self) -> GenParams:
        """How it is drawn: as its first gen, without the constraint."""
        return self.gens[0]

    def attributes(self) -> dict[str, Any]:
        return {**super().attributes(), "gens": [_written(gen) for gen in self.gens]}

    @classmethod
    def read(cls, operands: list[Any], attributes: dict[str, Any]) -> Self:
        gens = _read_gens("lm.match", attributes)
        made = super().read(operands, {**attributes, "gens": []})
        return replace(made, gens=gens)

    def result_types(self) -> tuple[Type, ...]:
        return (STATE, TEXT, *(TEXT for _ in self.names))

    def result_hints(self) -> tuple[str, ...]:
        return ("", "", *self.names)

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)
        if not self.gens or not len(self.gens) == len(self.names) == len(self.texts):
            raise IRError("lm.match: needs a name and a text behind it for each of its gens")
        for nth, text in enumerate(self.texts, 1):
            check_type(self, f"text {nth}", text, TEXT)
        if any(g.constraint is None for g in self.gens):
            raise IRError("lm.match: a gen has no constraint")
        if self.draw < 0:
            raise IRError(f"lm.match: draw is {self.draw}, must be 0 or more")


def _written(params: GenParams) -> dict[str, Any]:
    """Parameters of a gen as JSON values, without those that have their default."""
    return {name: written(value) for name, value in params.non_default().items()}


def _read_gens(what: str, attributes: dict[str, Any]) -> tuple[GenParams, ...]:
    """The parameters of gens in the attribute `gens` of an op.

    Raises:
        IRError: it is no list of such.
    """
    gens = attributes.get("gens")
    if not isinstance(gens, list) or not all(isinstance(g, dict) for g in gens):
        raise IRError(f"{what}: gens must be a list of objects")
    return tuple(_params(what, held) for held in gens)


def _params(what: str, held: dict[str, Any]) -> GenParams:
    """Parameters of a gen out of JSON values.

    Raises:
        IRError: one is unknown, of the wrong type, or out of its range.
    """
    known = {f.name: f for f in fields(GenParams)}
    read: dict[str, Any] = {}
    for name, value in held.items():
        if name not in known:
            raise IRError(f"{what}: there is no parameter `{name}`", hint=suggestion(name, known))
        read[name] = read_attribute(f"{what}: {name}", str(known[name].type), value)
    try:
        return GenParams(**read)
    except UsageError as error:
        raise IRError(f"{what}: {error.problem}", hint=error.hint) from error


@dataclass(frozen=True)
class Chain(Op):
    """Gens that follow each other on one state, and the text between them, as one request.

    %s1, %a, %s2, %b = lm.chain %s0, " and then ", %x {
                      links = ["gen", "text", "made 0", "text", "end user", "gen"],
                      names = ["a", "b"], gens = [{"max_tokens": 8}, {"top_k": 5}], draws = [1, 2]}

    Gives the longer state and the text of each gen. Links stand in order: `gen` is the next of the
    gens, `text` appends the next of the texts, `made N` what gen number N of the chain wrote, and
    `begin ROLE` and `end ROLE` are the edges of chat messages. Each gen ends by its own rule; it is
    the same as the ops by themselves, but an engine goes on from gen to gen without being asked.

    Attributes:
        places: of the links in the user's program; not a part of the textual form.
    """

    op: ClassVar[str] = "lm.chain"
    state: Value
    texts: tuple[Operand, ...]
    links: tuple[str, ...]
    names: tuple[str, ...]
    gens: tuple[GenParams, ...]
    draws: tuple[int, ...]
    places: tuple[Location | None, ...] = field(default=(), compare=False)

    def attributes(self) -> dict[str, Any]:
        held = {k: v for k, v in super().attributes().items() if k != "places"}
        return {**held, "gens": [_written(gen) for gen in self.gens]}

    @classmethod
    def read(cls, operands: list[Any], attributes: dict[str, Any]) -> Self:
        if "places" in attributes:
            raise IRError("lm.chain: there is no attribute `places`")
        gens = _read_gens("lm.chain", attributes)
        made = super().read(operands, {**attributes, "gens": []})
        return replace(made, gens=gens)

    def result_types(self) -> tuple[Type, ...]:
        return (STATE, TEXT) * len(self.gens)

    def result_hints(self) -> tuple[str, ...]:
        return tuple(hint for name in self.names for hint in ("", name))

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)
        for nth, text in enumerate(self.texts, 1):
            check_type(self, f"text {nth}", text, TEXT)
        if not self.gens or not len(self.gens) == len(self.names) == len(self.draws):
            raise IRError("lm.chain: needs a name and a draw for each of its gens")
        if self.links[:1] != ("gen",) or self.links[-1] != "gen":
            raise IRError("lm.chain: the first link and the last one must be gens")
        counts = {"gen": 0, "text": 0}
        for link in self.links:
            kind, _, what = link.partition(" ")
            if link in counts:
                counts[link] += 1
            elif kind == "made" and what.isdecimal() and int(what) < counts["gen"]:
                pass
            elif kind not in EDGES or not what:
                raise IRError(
                    f"lm.chain: there is no link {link!r} here",
                    hint="links are gen, text, made NUMBER, begin ROLE and end ROLE",
                )
        if counts != {"gen": len(self.gens), "text": len(self.texts)}:
            raise IRError("lm.chain: the links name other numbers of gens or texts than there are")
        if min(self.draws) < 0:
            raise IRError(f"lm.chain: draw is {min(self.draws)}, must be 0 or more")


@dataclass(frozen=True)
class Select(Op):
    """A model call: the state longer by the best of the choices, and that choice.

    %s1, %related = lm.select %s0, "yes", "no" {name = "related"}

    With a temperature the choice is drawn, and `draw` is the key of its random numbers.
    """

    op: ClassVar[str] = "lm.select"
    state: Value
    choices: tuple[Operand, ...]
    name: str
    method: str = SELECT_METHODS[0]
    temperature: float = 0.0
    draw: int = 0

    def result_types(self) -> tuple[Type, ...]:
        return (STATE, TEXT)

    def result_hints(self) -> tuple[str, ...]:
        return ("", self.name)

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)
        for nth, choice in enumerate(self.choices, 1):
            check_type(self, f"choice {nth}", choice, TEXT)
        if not self.choices:
            raise IRError("lm.select: there are no choices", hint="give at least one text")
        try:
            check_choosing(self.method, self.temperature)
        except UsageError as error:
            raise IRError(f"lm.select: {error.problem}", hint=error.hint) from error
        if self.draw < 0:
            raise IRError(f"lm.select: draw is {self.draw}, must be 0 or more")


@dataclass(frozen=True)
class Score(Op):
    """A model call: the state longer by a text, and the log-probability of the text there.

    %s1, %fit = lm.score %s0, "a text" {name = "fit"}
    """

    op: ClassVar[str] = "lm.score"
    state: Value
    text: Operand
    name: str
    top_logprobs: int = 0

    def result_types(self) -> tuple[Type, ...]:
        return (STATE, FLOAT)

    def result_hints(self) -> tuple[str, ...]:
        return ("", self.name)

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)
        check_type(self, "the text", self.text, TEXT)
        try:
            check_top_logprobs(self.top_logprobs)
        except UsageError as error:
            raise IRError(f"lm.score: {error.problem}", hint=error.hint) from error


@dataclass(frozen=True)
class Race(Op):
    """Numbers of the k branches whose calls make the fewest tokens, and how many these make.

    %first, %tokens = lm.race %a, %b, %c {sizes = [2, 1]}

    The operands are the results of the branches' calls, `sizes` of them for each branch, and the
    tokens of races inside of a branch. Ties go to the first. Calls of the others are cancelled
    unless something else needs them; what follows the last branch's names values that the program
    has read.
    """

    op: ClassVar[str] = "lm.race"
    calls: tuple[Operand, ...]
    sizes: tuple[int, ...]
    k: int = 1

    def groups(self) -> tuple[tuple[Operand, ...], ...]:
        """The results of each branch's calls."""
        ends = list(itertools.accumulate(self.sizes, initial=0))
        return tuple(self.calls[a:b] for a, b in itertools.pairwise(ends))

    def read_before(self) -> tuple[Operand, ...]:
        """Values that the program has read before."""
        return self.calls[sum(self.sizes) :]

    def result_types(self) -> tuple[Type, ...]:
        return (INT,) * (self.k + 1)

    def verify(self) -> None:
        for nth, call in enumerate(self.calls, 1):
            if call.type == STATE:
                raise IRError(f"lm.race: operand {nth} is a state, not the result of a call")
        if any(size < 0 for size in self.sizes) or sum(self.sizes) > len(self.calls):
            raise IRError(
                f"lm.race: the sizes {list(self.sizes)} do not fit {len(self.calls)} calls"
            )
        if not 1 <= self.k <= len(self.sizes):
            raise IRError(f"lm.race: k is {self.k}, there are {len(self.sizes)} branches")


@dataclass(frozen=True)
class StateText(Op):
    """All text of a state, the markup of the chat template included.

    %text = lm.text %s0
    """

    op: ClassVar[str] = "lm.text"
    state: Value

    def result_types(self) -> tuple[Type, ...]:
        return (TEXT,)

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)


@dataclass(frozen=True)
class Prefill(Op):
    """The same state, with the advice to compute its KV now because several calls share it.

    %s1 = lm.prefill %s0

    Computed are the tokens that later text cannot change, so it never alters a result. With `ahead`
    it is not sure that any call needs it: it waits for all other work.
    """

    op: ClassVar[str] = "lm.prefill"
    state: Value
    ahead: bool = False

    def result_types(self) -> tuple[Type, ...]:
        return (STATE,)

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)


@dataclass(frozen=True)
class Release(Op):
    """The advice that the state is not used again: what only it holds of the KV may be dropped.

    lm.release %s0

    Its effect is `io`, because its place is its meaning.
    """

    op: ClassVar[str] = "lm.release"
    state: Value

    @property
    def effect(self) -> Effect:
        return Effect.IO

    def verify(self) -> None:
        check_type(self, "the state", self.state, STATE)


assert all(f.default is not MISSING for f in fields(GenParams)), "every parameter has a default"
