"""The tracer: runs a program on symbolic texts, once for each way through it, into a graph.

    def p(s, x): ...   ──►   program @p(%x: text) { ... flow.if %c { ... } else { ... } }

Concolic tracing: where the program asks for the truth of a symbolic condition, the current run
takes one way and a later run, which repeats the same steps up to there, takes the other. Runs
share their common beginning in the graph. Where a value is needed that has no finite set of ways,
the way ends in `flow.resume`: at run time the rest is executed eagerly.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lmc.errors import LmcError, Location, TraceError
from lmc.frontend.arguments import Arguments, unflatten
from lmc.frontend.dsl import State
from lmc.frontend.location import here, in_library, of_traceback
from lmc.frontend.rewrite import rewritten
from lmc.frontend.symbolic import Bool, Int, NeedsValue, Text, TextList
from lmc.ir.core import Const, Node, Op, Operand, Program, Region, Value
from lmc.ir.ops.flow import If, Resume, Ret
from lmc.ir.ops.lm import Extend, Gen, Role, Select, Start
from lmc.ir.ops.text import MakeList, Pack, Pure
from lmc.ir.types import BOOL, INT, TEXT, Type, list_of
from lmc.params import GenParams

__all__ = ["MAX_NODES", "MAX_PATHS", "trace"]

MAX_PATHS = 64  # ways through a program; the rest of a longer one runs eagerly
MAX_NODES = 20_000  # of all ways together

_MARK = "\U000f6c6d"  # in no text that a person writes; placeholders carry a random key besides


@dataclass
class _Way:
    """A region while it is traced."""

    nodes: list[Node] = field(default_factory=list)
    end: Op | None = None
    end_at: Location | None = None
    branch: tuple[Value, _Way, _Way] | None = None

    def freeze(self) -> Region:
        if self.branch is not None:
            condition, then, orelse = self.branch
            end: Op = If(condition, then.freeze(), orelse.freeze())
        else:
            assert self.end is not None, "every way ends"
            end = self.end
        return Region((*self.nodes, Node(end, (), self.end_at)))


class _PathOver(BaseException):
    """The way that this run follows ended earlier than the run: nothing more to record."""


def trace(
    function: Callable[..., object], name: str, arguments: Arguments, source: Location | None
) -> Program:
    """The graph of a program.

    Args:
        function: takes a state and the arguments.
        name: of the program.
        arguments: their texts become parameters, all else is known.
        source: file and line of the function.

    Raises:
        TraceError, UsageError: the program is wrong on every way; the message names its line.
    """
    return _Tracer(function, name, arguments, source).trace()


class _Tracer:
    """Records the runs of one program; the `Recorder` of its states while it traces."""

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        arguments: Arguments,
        source: Location | None,
    ) -> None:
        self._function = rewritten(function)
        self._name = name
        self._arguments = arguments
        self._source = source
        key = secrets.token_hex(4)
        self._pattern = re.compile(f"{_MARK}{key}:([0-9]+){_MARK}")
        self._key = f"{_MARK}{key}:"
        self._by_id: list[Value] = []
        self._symbolic_seen = bool(arguments.paths)
        self._params = tuple(Value(TEXT, _hint(path)) for path in arguments.paths)
        self._root = _Way()
        self._todo: list[list[bool]] = [[]]
        self._paths = 0
        self._nodes = 0

    # ------------------------------------------------------------------------- all ways

    def trace(self) -> Program:
        while self._todo:
            self._paths += 1
            self._run(self._todo.pop())
        return Program(
            name=self._name,
            params=self._params,
            body=self._root.freeze(),
            static=_shown_static(self._arguments),
            paths=self._arguments.paths,
            source=self._source,
        )

    def _run(self, decisions: list[bool]) -> None:
        """Follow one way: `decisions` first, then always the first one."""
        self._decisions = decisions
        self._taken = 0
        self._decided: dict[Value, bool] = {}
        self._way = self._root
        self._index = 0
        self._calls: list[tuple[Value, Value]] = []
        self._loose: dict[int, tuple[_Way, int, Location | None, int]] = {}
        self._ended = False
        state = State(self, self._emit(Start(), self._source)[0])
        given = unflatten(self._arguments, lambda n: Text(self, self._params[n]))
        try:
            value = self._function(state, **given)
            self._check_loose()
            self._return(state, value)
        except _PathOver:
            pass
        except NeedsValue as need:
            self._end_eagerly(need.reason, here_of(need))
        except LmcError as error:
            if not self._taken:
                raise
            self._end_eagerly(f"{type(error).__name__}: {error.problem}", error.where)
        except Exception as error:
            where = of_traceback(error.__traceback__)
            if isinstance(error, (NameError, ImportError, SyntaxError)) or not self._symbolic_seen:
                raise TraceError(f"{type(error).__name__}: {error}", where) from error
            self._end_eagerly(f"{type(error).__name__}: {error}", where)

    def _return(self, state: State, value: object) -> None:
        if state._role is not None:  # only by hand: `with` closes its message
            raise TraceError("the program returned inside an open message", self._source)
        at = self._source
        names = tuple(state._variables)
        values = tuple(self._listed(state._variables[name], at) for name in names)
        packed = self._packed(value)
        self._end(Ret(state._ref, names, values, packed), at)

    def _end(self, op: Op, at: Location | None) -> None:
        way = self._way
        if self._index < len(way.nodes) or way.end is not None or way.branch is not None:
            if way.end == op or isinstance(way.end, Resume):
                return
            self._unstable(at)
        way.end, way.end_at = op, at

    def _end_eagerly(self, reason: str, at: Location | None) -> None:
        """The rest of this way runs eagerly."""
        self._check_loose(over=True)
        way = self._way
        if way.end is not None or way.branch is not None:
            return  # a shorter way was found
        del way.nodes[self._index :]
        way.end, way.end_at = Resume(tuple(self._calls), reason), at

    def _check_loose(self, *, over: bool = False) -> None:
        """Cut the graph where a placeholder was made that never reached a prompt.

        The program did something else with the text (printed it, compared it): what it does from
        there on may depend on the characters, so it must run eagerly from there on.
        """
        if not self._loose:
            return
        way, index, at, calls = next(iter(self._loose.values()))
        del way.nodes[index:]
        way.branch = None
        way.end = Resume(
            tuple(self._calls[:calls]),
            "a formatted text that is not known yet was used outside of the prompt",
        )
        way.end_at = at
        self._loose.clear()
        self._way, self._index = way, index
        if not over:
            raise _PathOver

    def _unstable(self, at: Location | None) -> NoReturn:
        raise TraceError(
            "the program did something else when it was traced again",
            at,
            hint="it must depend on its arguments alone: no random numbers, time, or outside state",
        )

    # ------------------------------------------------------------------------- one way

    def _emit(self, op: Op, at: Location | None) -> tuple[Value, ...]:
        if self._ended:
            raise _PathOver
        way = self._way
        if self._index < len(way.nodes):
            node = way.nodes[self._index]
            if node.op != op:
                self._unstable(at)
            self._index += 1
            return node.results
        if way.end is not None:
            self._ended = True
            raise _PathOver
        if way.branch is not None:
            self._unstable(at)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self.need(f"more than {MAX_NODES} operations")
        op.verify()
        results = tuple(map(Value, op.result_types(), op.result_hints()))
        way.nodes.append(Node(op, results, at))
        self._index += 1
        return results

    def decide(self, value: object) -> bool:
        """Which way this run takes at a condition."""
        if isinstance(value, Const):
            return bool(value.value)
        assert isinstance(value, Value), "conditions are values"
        if value in self._decided:
            return self._decided[value]
        if self._ended:
            raise _PathOver
        way = self._way
        if self._index < len(way.nodes):
            self._unstable(here())
        if way.end is not None:
            self._ended = True
            raise _PathOver
        if way.branch is None:
            if in_library():
                self.need("a library asked for the truth of a value that is not known yet")
            if self._paths + len(self._todo) >= MAX_PATHS:
                self.need(f"more than {MAX_PATHS} ways through the program")
            way.branch = (value, _Way(), _Way())
            way.end_at = here()
            self._todo.append([*self._decisions[: self._taken], False])
            if self._taken == len(self._decisions):
                self._decisions = [*self._decisions, True]
        elif way.branch[0] is not value:
            self._unstable(here())
        choice = self._decisions[self._taken] if self._taken < len(self._decisions) else True
        if self._taken == len(self._decisions):
            self._decisions = [*self._decisions, choice]
        self._taken += 1
        self._decided[value] = choice
        self._way = way.branch[1] if choice else way.branch[2]
        self._index = 0
        return choice

    # ---------------------------------------------------------------- Source of symbolic values

    def pure(self, fn: str, *args: object) -> Any:
        """The symbolic result of a pure function."""
        operands: list[Operand] = []
        for arg in args:
            if type(arg) is not Text and isinstance(arg, str):
                operands.append(self._joined(self.resolve(arg)))
            else:
                operands.append(self._operand(arg))
        return self._symbolic(self._emit(Pure(fn, tuple(operands)), here())[0])

    def formatted(self, value: object) -> str:
        """A placeholder that must reach a prompt, or the graph ends where it was made."""
        assert isinstance(value, Value), "placeholders stand for values"
        number = len(self._by_id)
        self._by_id.append(value)
        self._loose[number] = (self._way, self._index, here(), len(self._calls))
        return f"{self._key}{number}{_MARK}"

    def need(self, what: str) -> NoReturn:
        """End the graph here."""
        raise NeedsValue(what)

    def resolve(self, text: str | Text) -> list[Operand]:
        """The constant and symbolic parts of a string with placeholders."""
        if type(text) is Text:
            held: Operand = text.value
            return [held]
        assert isinstance(text, str)
        if _MARK not in text:
            return [Const(str(text))] if text else []
        parts: list[Operand] = []
        for n, piece in enumerate(self._pattern.split(text)):
            if n % 2:
                number = int(piece)
                self._loose.pop(number, None)
                parts.append(self._by_id[number])
            elif _MARK in piece:
                raise TraceError(
                    "a formatted text that is not known yet was changed before it was appended",
                    here(),
                    hint="change the text before formatting it, as in f'{s[\"x\"].upper()}'",
                )
            elif piece:
                parts.append(Const(piece))
        return parts

    def _joined(self, parts: list[Operand]) -> Operand:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Const("")
        return self._emit(Pure("text.concat", tuple(parts)), here())[0]

    def _operand(self, value: object) -> Operand:
        if type(value) in (Text, Bool, Int, TextList):
            held = value.value  # type: ignore[attr-defined] # one of these four
            assert isinstance(held, (Value, Const)), "symbolic values hold operands"
            return held
        if isinstance(value, (Value, Const)):
            return value
        if value is None or isinstance(value, (str, bool, int, float)):
            return Const(value)
        raise NeedsValue(f"a {type(value).__name__} together with a text that is not known yet")

    def _symbolic(self, value: Value) -> Any:
        self._symbolic_seen = True
        kinds: dict[Type, Any] = {BOOL: Bool, INT: Int, list_of(TEXT): TextList}
        if value.type == TEXT:
            return Text(self, value)
        return kinds[value.type](self, value)

    # ---------------------------------------------------------------------- the Recorder

    def extend(self, state: Value, text: str, at: Location | None) -> Value:
        parts = self.resolve(text)
        return self._emit(Extend(state, tuple(parts)), at)[0] if parts else state

    def role(self, state: Value, role: str, edge: str, at: Location | None) -> Value:
        return self._emit(Role(state, role, edge), at)[0]

    def gen(
        self, state: Value, name: str, params: GenParams, at: Location | None
    ) -> tuple[Value, Value]:
        for text in (*params.stop, params.regex or ""):
            if _MARK in text:
                self.need("a gen whose stop strings or constraint are not known yet")
        after, text_value = self._emit(Gen(state, name, params, len(self._calls)), at)
        self._calls.append((after, text_value))
        return after, text_value

    def select(
        self, state: Value, name: str, choices: Sequence[str], method: str, at: Location | None
    ) -> tuple[Value, Value]:
        operands = tuple(self._joined(self.resolve(choice)) for choice in choices)
        op = Select(state, operands, name, method, len(self._calls))
        after, text_value = self._emit(op, at)
        self._calls.append((after, text_value))
        return after, text_value

    def read(self, ref: Value) -> Any:
        return self._symbolic(ref)

    def known(self, value: object, what: str) -> Any:
        if type(value) in (Int, Text, Bool):
            self.need(f"{what} is not known yet")
        return value

    # ----------------------------------------------------------------- variables, results

    def _listed(self, ref: Any, at: Location | None) -> Operand:
        if isinstance(ref, list):
            items = tuple(self._listed(item, at) for item in ref)
            return self._emit(MakeList(items), at)[0]
        assert isinstance(ref, Value), "a variable is a value or a list of them"
        return ref

    def _packed(self, value: object) -> Operand:
        """What the function returned, as one operand."""
        if value is None or isinstance(value, (bool, int, float)):
            return Const(value)
        if isinstance(value, str):
            return self._joined(self.resolve(value))
        items: list[Operand] = []

        def walk(node: object) -> object:
            if isinstance(node, str):
                parts = self.resolve(node)
                items.append(self._joined(parts))
                return {"$": len(items) - 1}
            if type(node) in (Bool, Int, TextList):
                items.append(self._operand(node))
                return {"$": len(items) - 1}
            if node is None or isinstance(node, (bool, int, float)):
                return node
            if type(node) is list:
                return [walk(item) for item in node]
            if type(node) is tuple:
                return {"tuple": [walk(item) for item in node]}
            if type(node) is dict:
                return {"dict": [[walk(k), walk(v)] for k, v in node.items()]}
            raise NeedsValue(f"the program returns a {type(node).__name__}")

        template = json.dumps(walk(value))
        return self._emit(Pack(tuple(items), template), self._source)[0]


def _shown_static(arguments: Arguments) -> str:
    """The template, or an empty object where the arguments are just the texts named in it."""
    plain = {"dict": [[path[0], {"$": n}] for n, path in enumerate(arguments.paths)]}
    return "{}" if arguments.template == json.dumps(plain) else arguments.template


def _hint(path: tuple[str | int, ...]) -> str:
    return "_".join(str(part) for part in path)


def here_of(error: BaseException) -> Location | None:
    """The user's line at which an error was raised."""
    return of_traceback(error.__traceback__)
