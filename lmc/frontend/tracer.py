"""The tracer: runs a program on symbolic texts, once for each way through it, into a graph.

    def p(s, x): ...   ──►   program @p(%x: text) { ... flow.if %c { ... } else { ... } }

Concolic tracing: where the program asks for the truth of a symbolic condition, the current run
takes one way and a later run, which repeats the same steps up to there, takes the other. Runs
share their common beginning in the graph.

A way that cannot be followed to its end is cut, and ends in `flow.resume`: at run time the rest is
executed eagerly. It is cut where the program

* needs a value that has no finite set of ways (`int(x)`, a dictionary key, ...);
* meets an exception that a known value might not have raised, even if it catches it;
* raises an exception itself, on a way that not all rows take;
* does something else than it did on the run before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from lmc.constraints.known import automaton_for
from lmc.errors import LmcError, Location, TraceError, told
from lmc.frontend.advice import advice, reason
from lmc.frontend.arguments import Arguments, unflatten
from lmc.frontend.dsl import State
from lmc.frontend.eager import joins
from lmc.frontend.fusing import fusion_of_run
from lmc.frontend.knowledge import MAX_TEXTS, Knowledge
from lmc.frontend.location import here, in_library, of_traceback, unwatched
from lmc.frontend.outside import Outside, refusal
from lmc.frontend.rewrite import rewritten, unread
from lmc.frontend.symbolic import NeedsValue, Text, TextList, Unknown, is_symbolic
from lmc.frontend.symbolic_numbers import Bool, Float, Int
from lmc.frontend.tools import Tool, held_by, recording
from lmc.frontend.variables import Given, Life, Made, Row, plain
from lmc.frontend.watching import handled, watching
from lmc.frontend.ways import Cut, PathOver, Way
from lmc.ir.core import Const, Node, Op, Operand, Program, Value
from lmc.ir.ops.flow import Resume, Ret
from lmc.ir.ops.host import HostCall
from lmc.ir.ops.lm import Extend, Gen, Match, Race, Role, Score, Select, Start, StateText
from lmc.ir.ops.text import Attempt, MakeList, Pack, Pick, Pure
from lmc.ir.ops.typed import Typed
from lmc.ir.types import BOOL, FLOAT, INT, TEXT, VALUE, Type, list_of
from lmc.params import GenParams
from lmc.textops import PURE
from lmc.typed import lookup

__all__ = ["MAX_NODES", "MAX_PATHS", "trace"]

_ALWAYS_THE_SAME = (Pure, StateText, Typed)  # of equal operands
_RAISING = frozenset({"value.get"})  # functions whose failure the program sees at once

MAX_PATHS = 64  # ways through a program; the rest of a longer one runs eagerly
MAX_NODES = 20_000  # of all ways together

_KINDS: dict[Type, Any] = {
    TEXT: Text,
    BOOL: Bool,
    INT: Int,
    FLOAT: Float,
    list_of(TEXT): TextList,
    VALUE: Unknown,
}


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
        TraceError, UsageError, ConstraintError: the program is wrong on every way; the message
            names its line.
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
        self._as_written = function
        self._function = rewritten(function)
        self._unread = unread(function, self._function)
        self._name = name
        self._arguments = arguments
        self._source = source
        self._symbolic_seen = bool(arguments.paths)
        self._makers: dict[Value, Op] = {}
        self._known = Knowledge()
        self._params = tuple(Value(TEXT, _hint(path)) for path in arguments.paths)
        self._root = Way()
        # the first way is run again at the end, to see that it is the same
        self._todo: list[list[bool]] = [[], []]
        self._paths = 0
        self._nodes = 0
        self._over = False
        self._steady = True  # so far, runs of the same way were alike
        self._tools: dict[Hashable, tuple[str, Tool]] = {}

    # ------------------------------------------------------------------------- all ways

    def trace(self) -> Program:
        outside = Outside(self._as_written, self._arguments.opaque)
        ways: list[list[bool]] = []
        try:
            while self._todo:
                self._paths += 1
                self._run(self._todo.pop())
                ways.append(self._decisions)
                if len(ways) == 1:
                    outside.look()
            outside.look()
            self._check_unchanged(outside, ways)
        finally:
            self._over = True
        return Program(
            name=self._name,
            params=self._params,
            body=self._root.freeze(),
            static=_shown_static(self._arguments),
            paths=self._arguments.paths,
            source=self._source,
            tools=dict(self._tools.values()),
        )

    def _check_unchanged(self, outside: Outside, ways: Sequence[list[bool]]) -> None:
        """A program that changes what lies outside of it runs eagerly, from its beginning on."""
        what = outside.change()
        if what is None:
            if not self._steady and (used := outside.used_up()) is not None:
                raise refusal(used, self._source)
            return
        steady = self._steady
        for decisions in ways[1:]:  # the first way has been the last one, too
            self._run(decisions)
            outside.look()
            if (again := outside.last_change()) is not None:
                what, steady = again, False
                break
        if steady:  # it was made once, and is kept
            return
        outside.put_back()
        root, reason = self._root, f"the program changes {what}, which lies outside of it"
        del root.nodes[1:]
        root.branch = None
        root.end, root.end_at = Resume((), reason), self._source

    def _run(self, decisions: list[bool]) -> None:
        """Follow one way: `decisions` first, then always the first one."""
        self._decisions = decisions
        self._taken = 0
        self._known.begin()
        self._way = self._root
        self._index = 0
        self._calls: list[tuple[Value, Value]] = []
        self._reads: list[Value] = []  # variables and texts that the program has read
        self._results: list[Value] = []  # of tools
        self._raising: list[Value] = []  # where one of these fails, the program raises
        self._types: dict[Value, tuple[str, str]] = {}  # of texts: the type, the variable's name
        self._awaited: list[Value] = []  # since the last tool that keeps its place
        self._cut: Cut | None = None
        self._ended = False
        state = State(self, self.start(self._source), fusion_of_run())
        given = unflatten(self._arguments, lambda n: Text(self, self._params[n]))
        try:
            with self._watched(), recording(self):
                value = self._function(state, **given)
            if self._cut is None:
                self._return(state, value)
        except (PathOver, NeedsValue):
            pass
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._raised(error)
        if self._cut is not None:
            self._make_cut(self._cut)

    def _watched(self) -> AbstractContextManager[None]:
        def met(error: BaseException, at: Location | None) -> None:
            if self._symbolic_seen:
                self._stop(reason(error), at, error)

        return watching(self, met, self._stop, self._unread)

    def _raised(self, error: BaseException) -> None:
        """The program raised: the way ends there, unless it is wrong on all ways."""
        where = of_traceback(error.__traceback__)
        everywhere = not self._taken and (self._cut is None or self._cut.error is error)
        if isinstance(error, LmcError):
            if everywhere:
                raise error
            self._stop(told(error), error.where or where)
            return
        hopeless = isinstance(error, (NameError, ImportError, SyntaxError))
        if everywhere and (hopeless or not self._symbolic_seen) and isinstance(error, Exception):
            raise TraceError(told(error), where, hint=advice(error)) from error
        self._stop(told(error), where)

    def _return(self, state: State, value: object) -> None:
        at = self._source
        names = tuple(state._variables)
        values = tuple(self.held(state._variables[name], at) for name in names)
        packed = self._packed(value)
        way = self._way
        end = Ret(state._ref, names, values, packed, tuple(self._raising))
        if way.end is None and way.branch is None and self._index == len(way.nodes):
            way.end, way.end_at = end, at
        elif way.end != end and not isinstance(way.end, Resume):
            self._unstable()

    def _stop(
        self, reason: str, at: Location | None = None, error: BaseException | None = None
    ) -> None:
        """End this way here. What the program still does on it is not recorded."""
        if self._cut is None:
            at = at or here()
            calls, tools = len(self._calls), len(self._results)
            self._cut = Cut(self._way, self._index, calls, tools, reason, at, error)

    def _make_cut(self, cut: Cut) -> None:
        way = cut.way
        if isinstance(way.end, Resume) and len(way.nodes) <= cut.index:
            return
        del way.nodes[cut.index :]
        way.branch = None
        calls, tools = tuple(self._calls[: cut.calls]), tuple(self._results[: cut.tools])
        way.end, way.end_at = Resume(calls, cut.reason, tools), cut.at

    def _unstable(self) -> NoReturn:
        self._steady = False
        self.need("the program did something else when it was traced again")

    # ------------------------------------------------------------------------- one way

    def _check_going(self) -> None:
        if self._over:
            raise TraceError(
                f"a value of the program {self._name} was used after it had been traced",
                here(),
                hint="do not keep values of a program in lists or globals; return them",
            )
        if self._ended:
            raise PathOver
        if self._cut is not None:
            raise NeedsValue(self._cut.reason)

    def _emit(self, op: Op, at: Location | None) -> tuple[Value, ...]:
        self._check_going()
        way = self._way
        if self._index < len(way.nodes):
            node = way.nodes[self._index]
            if node.op != op:
                self._unstable()
            self._index += 1
            return node.results
        if way.end is not None:
            if not isinstance(way.end, Resume):
                self._unstable()
            self._ended = True
            raise PathOver
        if way.branch is not None:
            self._unstable()
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self.need(f"more than {MAX_NODES} operations")
        op.verify()
        results = tuple(map(Value, op.result_types(), op.result_hints()))
        self._makers.update((result, op) for result in results)
        if isinstance(op, _ALWAYS_THE_SAME):
            self._known.made(results[0], op)
        way.nodes.append(Node(op, results, at))
        self._index += 1
        return results

    def decide(self, value: object) -> bool:
        """Which way this run takes at a condition."""
        if isinstance(value, Const):
            return bool(value.value)
        assert isinstance(value, Value), "conditions are values"
        self._check_going()
        fact, holds = self._known.fact_of(value)
        decided = self._known.decided(fact)
        if decided is not None:
            return decided is holds
        way = self._way
        if self._index < len(way.nodes):
            self._unstable()
        if way.end is not None:
            if not isinstance(way.end, Resume):
                self._unstable()
            self._ended = True
            raise PathOver
        if way.branch is None:
            if in_library():
                self.need("a library asked for the truth of a value that is not known yet")
            if self._paths + len(self._todo) > MAX_PATHS:
                self.need(f"more than {MAX_PATHS} ways through the program")
            way.branch = (value, Way(), Way())
            way.after = self._raising_before(value)
            way.end_at = here()
            self._todo.append([*self._decisions[: self._taken], False])
        elif way.branch[0] is not value:
            self._unstable()
        if self._taken == len(self._decisions):
            self._decisions = [*self._decisions, True]
        choice = self._decisions[self._taken]
        self._taken += 1
        self._way = way.branch[1] if choice else way.branch[2]
        self._index = 0
        self._known.learn(fact, choice is holds)
        return choice

    def _raising_before(self, condition: Value) -> tuple[Value, ...]:
        """What has to succeed before a condition is asked for, but for the last if it follows."""
        if not self._raising:
            return ()
        last, todo, seen = self._raising[-1], [condition], {condition}
        while todo and last not in seen:
            op = self._makers.get(todo.pop())
            new = [v for v in (op.value_operands() if op else ()) if v not in seen]
            todo += new
            seen.update(new)
        return tuple(dict.fromkeys(self._raising[:-1] if last in seen else self._raising))

    def one_of_few(self, value: object) -> str | None:
        """What a text is on this way, if it can be one of a few; takes a way for each."""
        assert isinstance(value, Value), "symbolic texts are values"
        self._check_going()
        for text in self._known.open_texts(value):
            self.decide(self._pure("text.eq", (value, Const(text))))
        return self._known.text(value)

    # ---------------------------------------------------------------- Source of symbolic values

    def pure(self, fn: str, *args: object) -> Any:
        """The symbolic result of a pure function."""
        operands = tuple(self._operand(arg) for arg in args)
        if all(isinstance(operand, Const) for operand in operands):
            return PURE[fn].compute(*(o.value for o in operands if isinstance(o, Const)))
        value = self._pure(fn, operands)
        if fn in _RAISING:
            if self._guarded:
                self.need(
                    f"`{fn.partition('.')[2]}` inside `try` or `with`, which may catch its failure"
                )
            self._raising.append(value)
        return self._symbolic(value)

    @property
    def _guarded(self) -> bool:
        """Whether the program might catch what fails here."""
        return handled(_Tracer._run.__code__)

    def _pure(self, fn: str, operands: tuple[Operand, ...]) -> Value:
        made = self._emit(Pure(fn, operands), here())[0]
        if fn in ("text.eq", "text.ne"):
            self._known.compared(made, operands, equal=fn == "text.eq")
        return made

    def need(self, what: str) -> NoReturn:
        """End the graph here."""
        self._check_going()
        self._stop(what)
        raise NeedsValue(what)

    def _operand(self, value: object) -> Operand:
        if is_symbolic(value):
            if value._source is not self:  # type: ignore[attr-defined] # it is symbolic
                raise TraceError(
                    f"a value of another program was used in {self._name}",
                    here(),
                    hint="do not keep values of a program in lists or globals; return them",
                )
            held: Operand = value.value  # type: ignore[attr-defined] # it is symbolic
            text = self._known.text(held) if isinstance(held, Value) else None
            return held if text is None else Const(text)
        if value is None or type(value) in (bool, int, float):
            return Const(value)  # type: ignore[arg-type] # one of these
        if isinstance(value, str):
            return Const(plain(value))
        self.need(f"a {type(value).__name__} together with a text that is not known yet")

    def _symbolic(self, value: Value) -> Any:
        self._symbolic_seen = True
        return _KINDS[value.type](self, value)

    # ---------------------------------------------------------------------- the Recorder

    def prepare(self, function: Callable[..., object]) -> Callable[..., object]:
        return rewritten(function)

    def start(self, at: Location | None) -> Value:
        return self._emit(Start(), at)[0]

    def extend(self, state: Value, part: str | Made, at: Location | None) -> Value:
        operand = part.ref if isinstance(part, Made) else self._operand(part)
        empty = isinstance(operand, Const) and not operand.value
        return state if empty else self._emit(Extend(state, (operand,)), at)[0]

    def role(self, state: Value, role: str, edge: str, at: Location | None) -> Value:
        return self._emit(Role(state, role, edge), at)[0]

    def gen(
        self,
        state: Value,
        name: str,
        params: GenParams,
        at: Location | None,
        sample: int | None = None,  # noqa: ARG002 - each has a draw of its own
    ) -> tuple[Value, Value]:
        try:
            with unwatched():
                if params.constraint is not None:
                    automaton_for(params.constraint)
                for stop in params.stop_constraints:
                    automaton_for(stop)
        except LmcError as error:
            raise error.at(at) from None
        after, text = self._call(Gen(state, name, params, len(self._calls)), at)
        self._note_choices(text, params)
        return after, text

    def _note_choices(self, text: Value, params: GenParams) -> None:
        """What a gen with choices gives, if its tokens suffice, is one of these."""
        if params.choices and text.type == TEXT:
            self._known.limit(text, params.choices, exact=False)

    def select(
        self,
        state: Value,
        name: str,
        choices: Sequence[str],
        method: str,
        temperature: float,
        at: Location | None,
    ) -> tuple[Value, Value]:
        operands = tuple(map(self._operand, choices))
        op = Select(state, operands, name, method, temperature, len(self._calls))
        after, choice = self._call(op, at)
        if all(isinstance(operand, Const) for operand in operands):
            texts = (str(o.value) for o in operands if isinstance(o, Const))
            self._known.limit(choice, texts, exact=True)
        return after, choice

    def score(
        self, state: Value, name: str, text: str, top_logprobs: int, at: Location | None
    ) -> tuple[Value, Value]:
        return self._call(Score(state, self._operand(text), name, top_logprobs), at)

    def match(
        self,
        state: Value,
        gens: Sequence[tuple[str, GenParams]],
        texts: Sequence[str],
        heal: bool,
        at: Location | None,
    ) -> tuple[Value, Value, Sequence[Value]]:
        operands = tuple(map(self._operand, texts))
        names, params = (tuple(held) for held in zip(*gens, strict=True))
        op = Match(state, operands, names, params, heal, len(self._calls))
        after, whole, *made = self._emit(op, at)
        self._calls.append((after, whole))
        for text, gen_params in zip(made, params, strict=True):
            self._note_choices(text, gen_params)
        return after, whole, made

    def joins(self, params: GenParams, at: Location | None) -> bool:
        with unwatched():
            return joins(params, at)

    def _call(self, op: Op, at: Location | None) -> tuple[Value, Value]:
        after, result = self._emit(op, at)
        self._calls.append((after, result))
        return after, result

    def row(self, parts: Sequence[str | Made], at: Location | None) -> Value:
        operands = tuple(p.ref if isinstance(p, Made) else self._operand(p) for p in parts)
        return self._apart(self._emit(Pure("text.concat", operands), at)[0], at)

    def text(self, state: Value, at: Location | None) -> Value:
        return self._emit(StateText(state), at)[0]

    def _apart(self, operand: Operand, at: Location | None) -> Value:
        """The same text as a value of its own, behind which no model call stands."""
        return self._emit(Pure("text.copy", (operand,)), at)[0]

    def read(self, ref: Value) -> Any:
        if self._guarded:
            self.need(
                "a variable is read inside `try` or `with`, which may catch the failure of its call"
            )
        if ref.type == VALUE or ref.type not in _KINDS:
            self.need("a variable is read that may hold values of several kinds")
        self._reads.append(ref)
        self._awaited.append(ref)
        if ref in self._types:
            return self._read_typed(ref, *self._types[ref])
        return self._known.text(ref) or self._symbolic(ref)

    def typed(self, ref: Value, type_text: str, name: str) -> None:
        self._types[ref] = type_text, name

    def _read_typed(self, ref: Value, kind: str, name: str) -> Any:
        """The value of a type: on a way of its own, where there are few of them."""
        (value,) = self._emit(Typed(ref, kind, name), here())
        self._raising.append(value)
        self._awaited.append(value)
        spec = lookup(kind)
        if spec is None or not spec.values:
            return self._symbolic(value)
        self._known.limit(value, spec.values, exact=True)
        if all(type(one) is str for one in spec.values.values()):
            return self._known.text(value) or self._symbolic(value)
        if kind == "bool" and self._known.text(value) is None:
            return self._symbolic(self._pure("text.eq", (value, Const("true"))))
        text = self.one_of_few(value)
        if text is None:
            self.need(f"one of more than {MAX_TEXTS} values")
        return spec.values[text]

    def race(self, lives: Sequence[Life], k: int, at: Location | None) -> tuple[Value, ...]:
        branches = [life.calls_that_count() for life in lives]
        calls = [call for branch in branches for call in branch]
        sizes = tuple(map(len, branches))
        return self._emit(Race((*calls, *dict.fromkeys(self._reads)), sizes, k), at)

    def pick(self, index: Value, items: Sequence[Operand], at: Location | None) -> Value:
        picked = self._emit(Pick(index, tuple(items)), at)[0]
        if picked.type == TEXT:
            self._known.limit_to_one_of(picked, items)
        kinds = {self._types.get(item) if isinstance(item, Value) else None for item in items}
        if len(kinds) == 1 and (kind := kinds.pop()):
            self._types[picked] = kind
        return picked

    def attempt(self, ref: Operand, at: Location | None) -> Value:
        return self._emit(Attempt(ref), at)[0]

    def call(
        self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: Location | None
    ) -> Any:
        if self._guarded:
            self.need("a tool is called inside `try` or `with`, which may catch its failure")
        if any(is_symbolic(held) or isinstance(held, State) for held in held_by(tool.function)):
            self.need(f"the tool {tool.name}() uses a value of the program that it is not given")
        name = self._tool_name(tool)
        operands = tuple(self._packed(arg) for arg in (*args, *kwargs.values()))
        after = () if tool.pure else tuple(dict.fromkeys(self._awaited))
        op = HostCall(operands, name, tuple(kwargs), tool.gives, tool.pure, after)
        (result,) = self._emit(op, at)
        self._results.append(result)
        self._raising.append(result)
        self._reads.append(result)
        self._awaited = [*self._awaited, result] if tool.pure else [result]
        return self._symbolic(result)

    def _tool_name(self, tool: Tool) -> str:
        """The name of a tool in the graph: its own, with a number where that is taken."""
        if tool.key not in self._tools:
            taken = {name for name, _ in self._tools.values()}
            name, n = tool.name, 1
            while name in taken:
                name, n = f"{tool.name}.{n}", n + 1
            self._tools[tool.key] = name, tool
        return self._tools[tool.key][0]

    def moved(self, before: Value, after: Value) -> Value:  # noqa: ARG002 - nobody listens here
        return after

    def branch(self, state: Value, index: int) -> Value:  # noqa: ARG002 - all are alike here
        return state

    def known(self, value: object, what: str) -> Any:
        if is_symbolic(value):
            self.need(f"{what} is not known yet")
        return value

    # ----------------------------------------------------------------- variables, results

    def held(self, ref: Any, at: Location | None) -> Operand:
        """What a variable holds, as one operand."""
        if isinstance(ref, list):
            items = tuple(self.held(item, at) for item in ref)
            return self._emit(MakeList(items), at)[0]
        if isinstance(ref, Given):
            if type(ref.value) is Text:
                return self._apart(self._operand(ref.value), at)
            if is_symbolic(ref.value):
                return self._emit(Pack((self._operand(ref.value),), '{"$": 0}'), at)[0]
            return self._packed(ref.value)
        if isinstance(ref, Row):
            return self.row(ref.parts, at)
        assert isinstance(ref, Value), "all else is a value"
        return ref

    def _packed(self, value: object) -> Operand:
        """A value of the program, with what is not known yet inside of it, as one operand."""
        if value is None or is_symbolic(value) or type(value) in (bool, int, float, str):
            return self._operand(value)
        items: list[Operand] = []

        def walk(node: object) -> object:
            if is_symbolic(node) or type(node) is str:
                items.append(self._operand(node))
                return {"$": len(items) - 1}
            if node is None or type(node) in (bool, int, float):
                return node
            if type(node) is list:
                return [walk(item) for item in node]
            if type(node) is tuple:
                return {"tuple": [walk(item) for item in node]}
            if type(node) is dict:
                return {"dict": [[walk(k), walk(v)] for k, v in node.items()]}
            self.need(f"a {type(node).__name__} together with values that are not known yet")

        template = json.dumps(walk(value))
        return self._emit(Pack(tuple(items), template), self._source)[0]


def _shown_static(arguments: Arguments) -> str:
    """The template, or an empty object where the arguments are just the texts named in it."""
    plain = {"dict": [[path[0], {"$": n}] for n, path in enumerate(arguments.paths)]}
    return "{}" if arguments.template == json.dumps(plain) else arguments.template


def _hint(path: tuple[str | int, ...]) -> str:
    return "_".join(str(part) for part in path)
