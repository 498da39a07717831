"""What a graph means: runs it on texts against a `Model`. The oracle of all passes.

A prompt state is its text, written so that two states are equal exactly if the runtime would see
the same prompt: texts of the program as they are, texts that a model call made between `«` and
`»`, and messages between `⟦role⟧` and `⟦/role⟧`. These characters and the backslash are escaped by
a backslash where they occur in a text. How a prompt was cut into extends does not show, because
the runtime tokenizes the text between two model outputs as a whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmc.errors import InternalError, RunError
from lmc.ir.core import Const, Node, Operand, Program, Value
from lmc.ir.ops import (
    Attempt,
    Chain,
    Extend,
    Gen,
    HostCall,
    If,
    MakeList,
    Match,
    Pack,
    Pick,
    Prefill,
    Pure,
    Race,
    Release,
    Resume,
    Ret,
    Role,
    Score,
    Select,
    Start,
    StateText,
    Typed,
)
from lmc.params import GenParams
from lmc.textops import PURE
from lmc.typed import gives, typed_value

__all__ = ["HashModel", "Meaning", "Model", "arguments_of", "interpret"]


class Model(Protocol):
    """What a program talks to."""

    def gen(self, context: str, params: GenParams, draw: int) -> str:
        """The text that follows; `draw` is 0 where the gen is greedy."""

    def select(
        self, context: str, choices: Sequence[str], method: str, temperature: float, draw: int
    ) -> str:
        """One of the choices; `draw` is 0 where the temperature is."""

    def score(self, context: str, text: str) -> float:
        """The log-probability of a text."""

    def host(self, fn: str, args: Sequence[object], names: Sequence[str], gives: str) -> object:
        """What a tool gives."""


@dataclass(frozen=True)
class HashModel:
    """A deterministic model: each answer is a hash of everything that it may depend on.

    Attributes:
        seed: models with different seeds give different answers.
        answers: what gens choose from; empty gives texts of up to 8 hexadecimal digits.
    """

    seed: int = 0
    answers: tuple[str, ...] = ()

    def gen(self, context: str, params: GenParams, draw: int) -> str:
        digest = self._digest("gen", context, repr(params), draw)
        if self.answers:
            return self.answers[int(digest, 16) % len(self.answers)]
        return digest[: min(8, params.max_tokens)]

    def select(
        self,
        context: str,
        choices: Sequence[str],
        method: str,
        temperature: float = 0.0,
        draw: int = 0,
    ) -> str:
        digest = self._digest("select", context, *choices, method, temperature, draw)
        return choices[int(digest, 16) % len(choices)]

    def score(self, context: str, text: str) -> float:
        return -int(self._digest("score", context, text)[:4], 16) / 256

    def host(self, fn: str, args: Sequence[object], names: Sequence[str], gives: str) -> object:
        digest = self._digest("host", fn, *args, *names)
        makers: dict[str, Callable[[str], object]] = {
            "text": lambda text: text[:4],
            "int": lambda text: int(text[:2], 16),
            "float": lambda text: int(text[:2], 16) / 4,
            "bool": lambda text: int(text[0], 16) > 7,
            "list<text>": lambda text: [text[:2], text[2:4]],
            "value": lambda text: [None, text[:4], {"a": int(text[1], 16)}][int(text[0], 16) % 3],
        }
        return makers[gives](digest)

    def _digest(self, *held: object) -> str:
        text = json.dumps([self.seed, *held])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Meaning:
    """What a run gives.

    Attributes:
        state: the final prompt; empty where the program goes on eagerly.
        variables: the named variables, in order.
        value: what the function returned.
        calls: where the program goes on eagerly, the (state, text) of its model calls; else None.
        reason: why it goes on eagerly.
        io: the calls of tools that are not pure, in order, each with its arguments.
    """

    state: str = ""
    variables: dict[str, object] = field(default_factory=dict)
    value: object = None
    calls: tuple[tuple[str, str], ...] | None = None
    reason: str = ""
    io: tuple[tuple[object, ...], ...] = ()


def arguments_of(program: Program, arguments: Sequence[object]) -> list[object]:
    """The arguments with those that are known in the place of others."""
    known = program.known or (None,) * len(arguments)
    return [a if k is None else k for a, k in zip(arguments, known, strict=True)]


def interpret(program: Program, arguments: Sequence[object], model: Model) -> Meaning:
    """Run a program.

    Args:
        program: a valid one.
        arguments: the value of each parameter.
        model: answers its model calls.

    Raises:
        RunError: a pure function does not accept its arguments, or the program is for others.
    """
    if arguments_of(program, arguments) != list(arguments):
        raise RunError(f"{program.name} was compiled for other arguments", program.source)
    held: dict[Value, Any] = dict(zip(program.params, arguments, strict=True))

    def get(operand: Operand) -> Any:  # noqa: ANN401 - by the operand's type
        return operand.value if isinstance(operand, Const) else held[operand]

    io: list[tuple[object, ...]] = []
    nodes = iter(program.body.nodes)
    while True:
        node = next(nodes)
        match node.op:
            case If(condition, then, orelse):
                nodes = iter((then if get(condition) else orelse).nodes)
            case Ret(state, names, values, value):
                variables = dict(zip(names, map(get, values), strict=True))
                return Meaning(get(state), variables, get(value), io=tuple(io))
            case Resume(calls, reason):
                pairs = tuple((get(state), get(text)) for state, text in calls)
                return Meaning(calls=pairs, reason=reason, io=tuple(io))
            case _:
                if isinstance(node.op, HostCall) and not node.op.pure:
                    io.append((node.op.fn, *map(get, node.op.args)))
                held.update(zip(node.results, _results(node, get, model), strict=True))


def _results(node: Node, get: Callable[[Operand], Any], model: Model) -> tuple[Any, ...]:
    """The values that a node defines."""
    match node.op:
        case Start():
            return ("",)
        case Extend(state, parts):
            return (get(state) + "".join(_escaped(get(part)) for part in parts),)
        case Role(state, role, edge):
            return (_with_edge(get(state), role, edge),)
        case Gen(state, _, params, draw):
            text = model.gen(get(state), params, 0 if params.greedy else draw)
            return _made(get(state), text), text
        case Match(state, texts, _, gens, heal, draw):
            said: list[str] = []
            whole = ""
            for nth, (params, behind) in enumerate(zip(gens, texts, strict=True)):
                place = f"{get(state)}⟦match {heal} {nth} {get(behind)}⟧{whole}"
                said.append(model.gen(place, params, 0 if params.greedy else draw))
                whole += said[-1] + get(behind)
            return _made(get(state), whole), whole, *said
        case Chain():
            return tuple(_chained(node.op, get, model))
        case Select(state, choices, _, method, temperature, draw):
            options = [get(choice) for choice in choices]
            draw = draw if temperature else 0
            text = model.select(get(state), options, method, temperature, draw)
            return _made(get(state), text), text
        case Score(state, text):
            return _made(get(state), get(text)), model.score(get(state), get(text))
        case Race(_, _, k):
            costs = [sum(_tokens(get(c)) for c in group) for group in node.op.groups()]
            first = sorted(range(len(costs)), key=costs.__getitem__)[:k]
            return (*sorted(first), sum(costs[n] for n in first))
        case Pick(index, items):
            return (get(items[get(index)]),)
        case Attempt(item):
            return (get(item),)
        case StateText(state):
            return (re.sub(r"\\(.)|[«»]", r"\1", get(state), flags=re.DOTALL),)
        case Prefill(state):
            return (get(state),)
        case Release():
            return ()
        case Pure(fn, args):
            try:
                return (PURE[fn].compute(*map(get, args)),)
            except (LookupError, ValueError, TypeError) as error:
                raise RunError(f"{type(error).__name__}: {error}", node.at) from error
        case Typed(text, kind, name):
            return (_typed_text(kind, get(text), name),)
        case HostCall(args, fn, names, gives):
            return (model.host(fn, [get(arg) for arg in args], names, gives),)
        case MakeList(items):
            return ([get(item) for item in items],)
        case Pack(items, template):
            return (_unpacked(json.loads(template), [get(item) for item in items]),)
        case _:
            raise InternalError(f"interpret has no rule for {node.op.mnemonic}")


def _chained(op: Chain, get: Callable[[Operand], Any], model: Model) -> Iterator[str]:
    """The state and the text of each gen of a chain."""
    state, said = get(op.state), list[str]()
    texts, gens = iter(op.texts), iter(zip(op.gens, op.draws, strict=True))
    for link in op.links:
        kind, _, what = link.partition(" ")
        if link == "text":
            state += _escaped(get(next(texts)))
        elif link == "gen":
            params, draw = next(gens)
            said.append(model.gen(state, params, 0 if params.greedy else draw))
            state = _made(state, said[-1])
            yield from (state, said[-1])
        elif kind == "made":
            state += _escaped(said[int(what)])
        else:
            state = _with_edge(state, what, kind)


def _with_edge(state: str, role: str, edge: str) -> str:
    return f"{state}{'⟦' if edge == 'begin' else '⟦/'}{_escaped(role)}⟧"


def _tokens(result: object) -> int:
    """The tokens behind the result of a call, or of a race; here a character is one."""
    return result if type(result) is int else len(str(result))


def _typed_text(kind: str, text: str, name: str) -> Any:  # noqa: ANN401 - by the type
    value = typed_value(kind, text, None, name)
    return text if gives(kind) == "text" else value


def _escaped(text: str) -> str:
    return re.sub(r"[«»⟦⟧\\]", r"\\\g<0>", text)


def _made(state: str, text: str) -> str:
    return f"{state}«{_escaped(text)}»"


def _unpacked(template: Any, items: Sequence[Any]) -> Any:  # noqa: ANN401 - any structure
    """The structure that a template of `value.pack` stands for."""
    if isinstance(template, list):
        return [_unpacked(item, items) for item in template]
    if not isinstance(template, dict):
        return template
    if "$" in template:
        return items[template["$"]]
    if "tuple" in template:
        return tuple(_unpacked(template["tuple"], items))
    return {_unpacked(k, items): _unpacked(v, items) for k, v in template["dict"]}
