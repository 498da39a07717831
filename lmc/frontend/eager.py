"""Eager execution: runs a program on real values, each primitive handed over as it is met.

This is what programs mean; compiled ones must give the same. A read of a variable waits for it,
everything else goes on, so branches of a fork run side by side here too.

The same code resumes a compiled program where its graph ended: the function runs from the start,
and the model calls that the graph has made already give their known results at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lmc.constraints.automaton import Automaton
from lmc.constraints.known import automaton_for
from lmc.errors import LmcError, Location, RunError, told
from lmc.frontend.advice import advice
from lmc.frontend.dsl import State
from lmc.frontend.fusing import fusion_of_run
from lmc.frontend.location import here, of_traceback
from lmc.frontend.tools import Tool, recording
from lmc.frontend.variables import Given, Life, Made, copied, plain
from lmc.frontend.variables import Row as TextRow
from lmc.params import GenParams
from lmc.plan import (
    Attempt,
    Compute,
    Const,
    Extend,
    Gen,
    HostCall,
    Instr,
    MakeList,
    Match,
    Operand,
    Pick,
    Race,
    Reg,
    Ret,
    Role,
    Score,
    Select,
    Start,
    StateText,
    Typed,
)
from lmc.typed import lookup

__all__ = ["Known", "Row", "joins", "run_eagerly"]


class Row(Protocol):
    """A row of the runtime that takes one instruction at a time."""

    def new_register(self) -> Reg: ...

    def preset(self, value: object, meta: Any = None) -> Reg: ...

    def constraint(self, automaton: Automaton) -> int: ...

    def tool(self, name: str, function: Tool) -> str: ...

    def branch(self, state: Reg, index: int) -> Reg: ...

    def moved(self, before: Reg, after: Reg) -> Reg: ...

    def emit(self, instr: Instr, sample: int | None = None) -> None: ...

    def read(self, reg: Reg) -> Any: ...

    def give(self, value: object) -> None: ...

    def fail(self, error: LmcError, names: Sequence[str], registers: Sequence[Reg]) -> None: ...


class Known(Protocol):
    """The result of a model call that was made before."""

    @property
    def state(self) -> Any: ...

    @property
    def value(self) -> Any: ...

    @property
    def meta(self) -> Any: ...


def joins(params: GenParams, at: Location | None) -> bool:
    """Whether the constraint of a gen can be a part of a template.

    A record of keys or a parser of its own cannot be followed by another automaton.
    """
    assert params.constraint is not None, "asked for gens with constraints"
    try:
        return type(automaton_for(params.constraint)) is Automaton
    except LmcError as error:
        raise error.at(at) from None


def run_eagerly(
    function: Callable[..., object],
    row: Row,
    arguments: Mapping[str, object],
    known: Sequence[Known] = (),
    tools: Sequence[Any] = (),
    where: Location | None = None,
) -> None:
    """Run a program on `row` to its end; its result, or its error, is the row's.

    Args:
        function: takes a state and the arguments.
        row: takes the instructions.
        arguments: by name; the program may change them, so they are this run's own.
        known: results of the first model calls, in program order.
        tools: results of the first tools, in program order.
        where: file and line of the function.
    """
    recorder = _EagerRecorder(row, known, tools)
    state = State(recorder, recorder.start(where), fusion_of_run())
    try:
        with recording(recorder):
            value = function(state, **arguments)
        if inspect.isawaitable(value) or inspect.isgenerator(value):
            raise RunError(
                "the program is a coroutine or a generator and did not run",
                where,
                hint="write it as an ordinary function",
            )
        state._settle()
        recorder.finish(state, value, where)
    except LmcError as error:
        recorder.fail(state, error.at(of_traceback(error.__traceback__)))
    except BaseException as error:  # SystemExit and the like end the row, not the process
        where = of_traceback(error.__traceback__)
        wrapped = RunError(told(error), where, hint=advice(error))
        wrapped.__cause__ = error
        recorder.fail(state, wrapped)


class _EagerRecorder:
    """Turns each primitive into one plan instruction."""

    def __init__(self, row: Row, known: Sequence[Known], tools: Sequence[Any]) -> None:
        self._row = row
        self._known = known
        self._calls = 0
        self._tools = tools
        self._called = 0
        self._types: dict[Reg, tuple[str, str]] = {}  # of texts: the type, and the variable's name

    def start(self, at: Location | None) -> Reg:
        into = self._row.new_register()
        self._row.emit(Start(into=into, at=at))
        return into

    def extend(self, state: Reg, part: str | Made, at: Location | None) -> Reg:
        if not part:
            return state
        into = self._row.new_register()
        operand = part.ref if isinstance(part, Made) else Const(part)
        self._row.emit(Extend(into=into, state=state, parts=(operand,), at=at))
        return into

    def role(self, state: Reg, role: str, edge: str, at: Location | None) -> Reg:
        into = self._row.new_register()
        self._row.emit(Role(into=into, state=state, role=role, edge=edge, at=at))
        return into

    def gen(
        self,
        state: Reg,
        name: str,
        params: GenParams,
        at: Location | None,
        sample: int | None = None,
    ) -> tuple[Reg, Reg]:
        draw, self._calls = self._calls, self._calls + 1
        if draw < len(self._known):
            return self._recall(draw)
        constraint = self._constraint(params, at)
        try:
            stops = tuple(
                self._row.constraint(automaton_for(stop)) for stop in params.stop_constraints
            )
        except LmcError as error:
            raise error.at(at) from None
        into, text = self._row.new_register(), self._row.new_register()
        self._row.emit(
            Gen(
                into=into,
                into_text=text,
                state=state,
                name=name,
                params=params,
                draw=draw,
                constraint=constraint,
                stops=stops,
                priority=draw,
                at=at,
            ),
            sample,
        )
        return into, text

    def _constraint(self, params: GenParams, at: Location | None) -> int | None:
        if params.constraint is None:
            return None
        try:
            return self._row.constraint(automaton_for(params.constraint))
        except LmcError as error:
            raise error.at(at) from None

    def match(
        self,
        state: Reg,
        gens: Sequence[tuple[str, GenParams]],
        texts: Sequence[str],
        heal: bool,
        at: Location | None,
    ) -> tuple[Reg, Reg, Sequence[Reg]]:
        draw, self._calls = self._calls, self._calls + 1
        if draw < len(self._known):
            after, whole = self._recall(draw)
            parts = self._known[draw].meta.parts
            return after, whole, [self._row.preset(part.text, part.meta) for part in parts]
        into, whole = self._row.new_register(), self._row.new_register()
        made = tuple(self._row.new_register() for _ in gens)
        constraints = [self._constraint(params, at) for _, params in gens]
        self._row.emit(
            Match(
                into=into,
                into_text=whole,
                into_texts=made,
                state=state,
                texts=tuple(Const(plain(text)) for text in texts),
                names=tuple(name for name, _ in gens),
                gens=tuple(params for _, params in gens),
                constraints=tuple(c for c in constraints if c is not None),
                heal=heal,
                draw=draw,
                priority=draw,
                at=at,
            )
        )
        return into, whole, made

    def joins(self, params: GenParams, at: Location | None) -> bool:
        return joins(params, at)

    def select(
        self,
        state: Reg,
        name: str,
        choices: Sequence[str],
        method: str,
        temperature: float,
        at: Location | None,
    ) -> tuple[Reg, Reg]:
        draw, self._calls = self._calls, self._calls + 1
        if draw < len(self._known):
            return self._recall(draw)
        into, text = self._row.new_register(), self._row.new_register()
        self._row.emit(
            Select(
                into=into,
                into_text=text,
                state=state,
                name=name,
                choices=tuple(Const(plain(choice)) for choice in choices),
                method=method,
                draw=draw,
                temperature=temperature,
                priority=draw,
                at=at,
            )
        )
        return into, text

    def score(
        self, state: Reg, name: str, text: str, top_logprobs: int, at: Location | None
    ) -> tuple[Reg, Reg]:
        draw, self._calls = self._calls, self._calls + 1
        if draw < len(self._known):
            return self._recall(draw)
        into, value = self._row.new_register(), self._row.new_register()
        self._row.emit(
            Score(
                into=into,
                into_value=value,
                state=state,
                name=name,
                text=Const(plain(text)),
                top_logprobs=top_logprobs,
                priority=draw,
                at=at,
            )
        )
        return into, value

    def _recall(self, draw: int) -> tuple[Reg, Reg]:
        known = self._known[draw]
        return self._row.preset(known.state), self._row.preset(known.value, known.meta)

    def row(self, parts: Sequence[str | Made], at: Location | None) -> Reg:
        into = self._row.new_register()
        args = tuple(part.ref if isinstance(part, Made) else Const(part) for part in parts)
        self._row.emit(Compute(into=into, fn="text.concat", args=args, at=at))
        return into

    def text(self, state: Reg, at: Location | None) -> Reg:
        into = self._row.new_register()
        self._row.emit(StateText(into=into, state=state, at=at))
        return into

    def race(self, lives: Sequence[Life], k: int, at: Location | None) -> tuple[Reg, ...]:
        *into, tokens = (self._row.new_register() for _ in range(k + 1))
        self._row.emit(
            Race(
                into=tuple(into),
                into_tokens=tokens,
                groups=tuple(tuple(life.calls_that_count()) for life in lives),
                stops=tuple(tuple(life.all_calls()) for life in lives),
                k=k,
                at=at,
            )
        )
        return (*into, tokens)

    def pick(self, index: Reg, items: Sequence[Reg], at: Location | None) -> Reg:
        into = self._row.new_register()
        self._row.emit(Pick(into=into, index=index, items=tuple(items), at=at))
        if len(kinds := {self._types.get(item) for item in items}) == 1 and (kind := kinds.pop()):
            self._types[into] = kind
        return into

    def attempt(self, ref: Reg, at: Location | None) -> Reg:
        into = self._row.new_register()
        self._row.emit(Attempt(into=into, item=ref, at=at))
        if ref in self._types:
            self._types[into] = self._types[ref]
        return into

    def typed(self, ref: Reg, type_text: str, name: str) -> None:
        self._types[ref] = type_text, name

    def call(
        self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: Location | None
    ) -> Any:
        nth, self._called = self._called, self._called + 1
        if nth < len(self._tools):  # or it failed, which is raised here
            return self._row.read(self._row.preset(self._tools[nth]))
        into = self._row.new_register()
        self._row.emit(
            HostCall(
                into=into,
                fn=self._row.tool(tool.name, tool),
                args=tuple(map(self._given, (*args, *kwargs.values()))),
                names=tuple(kwargs),
                gives=tool.gives,
                pure=tool.pure,
                at=at,
            )
        )
        return self._row.read(into)

    def _given(self, arg: Any) -> Operand:
        """An argument of a tool; containers are copied, so that it cannot change the program's."""
        if arg is None or type(arg) in (str, int, float, bool):
            return Const(arg)
        return self._row.preset(copied(arg))

    def read(self, ref: Reg) -> Any:
        if ref not in self._types:
            return self._row.read(ref)
        kind, name = self._types[ref]
        into = self._row.new_register()
        self._row.emit(Typed(into=into, text=ref, type=kind, name=name, at=here()))
        value, spec = self._row.read(into), lookup(kind)
        return spec.values[value] if spec and spec.values and type(value) is str else value

    def moved(self, before: Reg, after: Reg) -> Reg:
        return self._row.moved(before, after)

    def branch(self, state: Reg, index: int) -> Reg:
        return self._row.branch(state, index)

    def prepare(self, function: Callable[..., object]) -> Callable[..., object]:
        return function

    def known(self, value: object, what: str) -> Any:  # noqa: ARG002 - all is known
        return value

    # ---------------------------------------------------------------------------- the end

    def finish(self, state: State, value: object, at: Location | None) -> None:
        names = tuple(state._variables)
        self._row.give(value)
        self._row.emit(
            Ret(
                state=state._ref,
                names=names,
                values=tuple(self.held(state._variables[name], at) for name in names),
                at=at,
            )
        )

    def fail(self, state: State, error: LmcError) -> None:
        known = {
            name: self._row.preset(ref.value) if isinstance(ref, Given) else ref
            for name, ref in state._known.items()  # what is held back is not made any more
            if isinstance(ref, (Reg, Given))
        }
        self._row.fail(error, tuple(known), tuple(known.values()))

    def held(self, ref: Any, at: Location | None) -> Reg:
        """What a variable holds, in one register."""
        if isinstance(ref, list):
            into = self._row.new_register()
            items = tuple(self.held(item, at) for item in ref)
            self._row.emit(MakeList(into=into, items=items, at=at))
            return into
        if isinstance(ref, Given):
            return self._row.preset(ref.value)
        if isinstance(ref, TextRow):
            return self.row(ref.parts, at)
        assert isinstance(ref, Reg), "all else is a register"
        return ref
