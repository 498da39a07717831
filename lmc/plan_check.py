"""The rules that every plan keeps. `Plan.from_json` makes sure of them before anything runs.

Lowering keeps them by itself. A file may hold anything, though, and what breaks a rule would fail
in the middle of a run, or wait for ever for a register that nothing sets.

Promises    a plan that passes has no register, item or automaton out of its range, and no operand
            of a type that its instruction cannot take; what can fail then is what can fail in any
            program.
Costs       O(instructions), and for each `If` a copy of the registers that are set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lmc import plan as p
from lmc.errors import LmcError, PlanError
from lmc.params import check_choosing, check_top_logprobs
from lmc.textops import HOST_TYPES, PURE
from lmc.typed import gives

__all__ = ["check", "opaque_values", "texts_in"]

_STATE, _TEXT, _BOOL, _INT, _FLOAT, _VALUE = "state", "text", "bool", "int", "float", "value"
_ENDS = (p.If, p.Resume, p.Ret)

Path = tuple[str | int, ...]
Types = dict[int, str]  # of the registers that are set

_KEY: Path = ("key",)  # begins the path of what is in a key


def check(plan: p.Plan) -> None:
    """Check a plan.

    The rules:
        * parameters are the texts of `static`, in its order;
        * a register is below `registers`, all of these are set somewhere, each at most once on a
          way and before it is read;
        * a block ends in an `If`, a `Resume` or a `Ret`, and has none before its end;
        * operands are of the types that the instruction takes;
        * constraints, functions, methods, edges and items of templates are there.

    Raises:
        PlanError: it breaks a rule.
    """
    _Check(plan).run()


class _Check:
    def __init__(self, plan: p.Plan) -> None:
        self.plan = plan
        self.written: set[int] = set()

    def run(self) -> None:
        plan = self.plan
        paths = texts_in(plan.static)
        if paths != [param.path for param in plan.params]:
            given = ", ".join(".".join(map(str, param.path)) for param in plan.params)
            texts = ", ".join(".".join(map(str, path)) for path in paths)
            raise _broken(f"its parameters ({given}) are not the texts of its arguments ({texts})")
        for nth, data in enumerate(plan.constraints):
            _check_automaton(nth, data)
        types: Types = {}
        for param in plan.params:
            self.set(types, param.into.index, _TEXT)
        # (block, registers set on the way to it) still to check; a stack, as plans nest deeply
        todo = [(plan.body, types)]
        while todo:
            block, types = todo.pop()
            if not block.instrs or not isinstance(block.instrs[-1], _ENDS):
                raise _broken("a block does not end in ret, resume or if")
            for instr in block.instrs:
                try:
                    self.instruction(instr, types)
                except PlanError as error:
                    raise error.at(instr.at) from None
                if isinstance(instr, _ENDS) and instr is not block.instrs[-1]:
                    raise _broken(f"instructions follow {instr.op}, which ends a block")
                if isinstance(instr, p.If):
                    todo += [(instr.orelse, dict(types)), (instr.then, dict(types))]
        if plan.registers != len(self.written):
            raise _broken(f"it has {plan.registers} registers and sets {len(self.written)}")

    def set(self, types: Types, index: int, kind: str) -> None:
        if not 0 <= index < self.plan.registers:
            raise _broken(f"there is no register {index}, there are {self.plan.registers}")
        if index in types:
            raise _broken(f"register {index} is set twice")
        types[index] = kind
        self.written.add(index)

    def instruction(self, instr: p.Instr, types: Types) -> None:
        for index in instr.reads():
            if index not in types:
                raise _broken(f"{instr.op} reads register {index}, which nothing before it sets")
        if isinstance(instr, p.Chain):
            _check_links(instr)
            for link in instr.links:
                self.instruction(link, types)
            return
        gives = _RULES[type(instr)](_Place(instr.op, types, len(self.plan.constraints)), instr)
        for index, kind in zip(instr.writes(), gives, strict=True):
            self.set(types, index, kind)


def _broken(problem: str) -> PlanError:
    return PlanError(f"the plan is damaged: {problem}")


def _check_links(chain: p.Chain) -> None:
    links = chain.links
    if not links or not isinstance(links[0], p.Gen) or not isinstance(links[-1], p.Gen):
        raise _broken("chain: the first link and the last one must be gens")
    before: p.Reg | None = None
    for link in links:
        if not isinstance(link, (p.Gen, p.Extend, p.Role)):
            raise _broken(f"chain: {link.op} cannot be a link of it")
        if before is not None and link.state != before:
            raise _broken("chain: a link does not go on from the one before it")
        before = link.into


def _check_automaton(nth: int, data: dict[str, Any]) -> None:
    from lmc.constraints.automaton import Automaton

    try:
        Automaton.from_json(data)
    except LmcError as error:
        raise PlanError(f"constraint {nth}: {error.problem}", hint=error.hint) from error
    except Exception as error:  # data may hold anything
        raise _broken(f"constraint {nth} cannot be read: {error!r}") from error


# ------------------------------------------------------------------------------ instructions


@dataclass(frozen=True)
class _Place:
    """An instruction's: the registers that are set before it, and how many automata there are."""

    op: str
    types: Types
    automata: int

    def type(self, operand: p.Operand) -> str:
        if isinstance(operand, p.Reg):
            return self.types[operand.index]
        value = operand.value
        if isinstance(value, str):
            return _TEXT
        if isinstance(value, bool):
            return _BOOL
        if isinstance(value, int):
            return _INT
        return _FLOAT if isinstance(value, float) else _VALUE

    def need(self, what: str, operand: p.Operand, wanted: str) -> None:
        found = self.type(operand)
        if found != wanted:
            raise self.broken(f"{what} must be of type {wanted}, found {found}")

    def no_state(self, what: str, operand: p.Operand) -> None:
        if self.type(operand) == _STATE:
            raise self.broken(f"{what} is a state, which no value can hold")

    def broken(self, problem: str) -> PlanError:
        return _broken(f"{self.op}: {problem}")


# One function an instruction: checks what it reads and gives the types of what it sets.


def _extend(place: _Place, instr: p.Extend) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    for nth, part in enumerate(instr.parts, 1):
        place.need(f"part {nth}", part, _TEXT)
    return (_STATE,)


def _role(place: _Place, instr: p.Role) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    if instr.edge not in ("begin", "end"):
        raise place.broken(f'edge must be "begin" or "end", found {instr.edge!r}')
    return (_STATE,)


def _gen(place: _Place, instr: p.Gen) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    _check_draw(place, instr)
    held = place.automata
    for index in (instr.constraint, *instr.stops):
        if index is not None and not 0 <= index < held:
            raise place.broken(f"there is no constraint {index}, there are {held}")
    if len(instr.stops) != len(instr.params.stop_regex):
        raise place.broken("its stop patterns have no automata")
    if instr.constraint is None and instr.params.constraint is not None:
        raise place.broken("its constraint has no automaton")
    return (_STATE, _TEXT)


def _match(place: _Place, instr: p.Match) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    _check_draw(place, instr)
    per_gen = (instr.gens, instr.names, instr.texts, instr.constraints, instr.into_texts)
    if not instr.gens or len({len(held) for held in per_gen}) != 1:
        raise place.broken("needs a name, a text, a constraint and a result for each of its gens")
    for nth, text in enumerate(instr.texts, 1):
        place.need(f"text {nth}", text, _TEXT)
    for index in instr.constraints:
        if not 0 <= index < place.automata:
            raise place.broken(f"there is no constraint {index}, there are {place.automata}")
    return (_STATE, _TEXT, *(_TEXT for _ in instr.gens))


def _select(place: _Place, instr: p.Select) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    _check_draw(place, instr)
    check_choosing(instr.method, instr.temperature)
    if not instr.choices:
        raise place.broken("there are no choices")
    for nth, choice in enumerate(instr.choices, 1):
        place.need(f"choice {nth}", choice, _TEXT)
    return (_STATE, _TEXT)


def _score(place: _Place, instr: p.Score) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    place.need("the text", instr.text, _TEXT)
    check_top_logprobs(instr.top_logprobs)
    return (_STATE, _FLOAT)


def _check_draw(place: _Place, instr: p.Gen | p.Match | p.Select) -> None:
    if instr.draw < 0:
        raise place.broken(f"draw is {instr.draw}, must be 0 or more")


def _text(place: _Place, instr: p.StateText) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    return (_TEXT,)


def _race(place: _Place, instr: p.Race) -> tuple[str, ...]:
    if not 1 <= instr.k == len(instr.into) <= len(instr.groups) == len(instr.stops):
        raise place.broken("the numbers of branches do not fit each other")
    for group in (*instr.groups, *instr.stops):
        for nth, call in enumerate(group, 1):
            place.no_state(f"call {nth} of a branch", call)
    return (_INT,) * (instr.k + 1)


def _pick(place: _Place, instr: p.Pick) -> tuple[str, ...]:
    place.need("the index", instr.index, _INT)
    if not instr.items:
        raise place.broken("there are no items")
    kinds = {place.type(item) for item in instr.items}
    if _STATE in kinds and len(kinds) > 1:
        raise place.broken("its items are states and others")
    return (kinds.pop() if len(kinds) == 1 else _VALUE,)


def _attempt(place: _Place, instr: p.Attempt) -> tuple[str, ...]:
    place.no_state("the item", instr.item)
    return (_VALUE,)


def _prefill(place: _Place, instr: p.Prefill) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    return (_STATE,)


def _release(place: _Place, instr: p.Release) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    return ()


def _compute(place: _Place, instr: p.Compute) -> tuple[str, ...]:
    fn = PURE.get(instr.fn)
    if fn is None:
        raise place.broken(f"there is no function {instr.fn!r}")
    fixed = [t for t in fn.takes if not t.endswith("*")]
    extra = len(instr.args) - len(fixed)
    if extra < 0 or (extra and not fn.variadic):
        raise _broken(
            f"{instr.fn} takes ({', '.join(fn.takes)}), found {len(instr.args)} arguments"
        )
    wanted = fixed + [fn.takes[-1][:-1]] * extra
    for nth, (arg, kind) in enumerate(zip(instr.args, wanted, strict=True), 1):
        if kind == "any":
            place.no_state(f"argument {nth} of {instr.fn}", arg)
        else:
            place.need(f"argument {nth} of {instr.fn}", arg, kind)
    return (fn.gives,)


def _typed(place: _Place, instr: p.Typed) -> tuple[str, ...]:
    if place.type(instr.text) not in (_TEXT, _VALUE):  # a value may be a failed branch's error
        place.need("the text", instr.text, _TEXT)
    kind = gives(instr.type)
    if kind is None:
        raise place.broken(f"there is no type {instr.type!r}")
    return (kind,)


def _host(place: _Place, instr: p.HostCall) -> tuple[str, ...]:
    for nth, arg in enumerate((*instr.args, *instr.after), 1):
        place.no_state(f"argument {nth} of {instr.fn}()", arg)
    if len(instr.names) > len(instr.args):
        raise place.broken(f"{len(instr.names)} names for {len(instr.args)} arguments")
    if len(set(instr.names)) != len(instr.names):
        raise place.broken("an argument is given twice")
    if instr.gives not in HOST_TYPES:
        raise place.broken(f"tools give no {instr.gives!r}")
    return (instr.gives,)


def _list(place: _Place, instr: p.MakeList) -> tuple[str, ...]:
    for nth, item in enumerate(instr.items, 1):
        place.no_state(f"item {nth}", item)
    kinds = {place.type(item) for item in instr.items} or {_TEXT}
    return (f"list<{kinds.pop() if len(kinds) == 1 else _VALUE}>",)


def _pack(place: _Place, instr: p.Pack) -> tuple[str, ...]:
    for nth, item in enumerate(instr.items, 1):
        place.no_state(f"item {nth}", item)
    try:
        holes = dict.fromkeys(_leaves(json.loads(instr.template), (), packed=True))
    except (ValueError, TypeError) as error:
        raise place.broken(f"its template cannot be read: {error}") from error
    for n, path in holes:
        if not 0 <= n < len(instr.items):
            raise place.broken(f"there is no item {n}, there are {len(instr.items)}")
        if path[:1] == _KEY and place.type(instr.items[n]).startswith("list<"):
            raise place.broken(f"item {n} is a list, which cannot be a key")
    return (_VALUE,)


def _if(place: _Place, instr: p.If) -> tuple[str, ...]:
    place.need("the condition", instr.condition, _BOOL)
    for nth, value in enumerate(instr.after, 1):
        place.no_state(f"what it waits for, {nth},", value)
    return ()


def _resume(place: _Place, instr: p.Resume) -> tuple[str, ...]:
    for nth, result in enumerate(instr.tools, 1):
        place.no_state(f"the result of tool {nth}", result)
    for nth, (state, text) in enumerate(instr.calls, 1):
        place.need(f"the state of call {nth}", state, _STATE)
        place.no_state(f"the result of call {nth}", text)
    return ()


def _ret(place: _Place, instr: p.Ret) -> tuple[str, ...]:
    place.need("the state", instr.state, _STATE)
    if len(instr.names) != len(instr.values):
        raise place.broken(f"{len(instr.names)} names for {len(instr.values)} values")
    if len(set(instr.names)) != len(instr.names):
        raise place.broken("a variable is given twice")
    for name, value in zip(instr.names, instr.values, strict=True):
        place.no_state(f"the variable {name!r}", value)
    place.no_state("the value", instr.value)
    for nth, value in enumerate(instr.after, 1):
        place.no_state(f"what it waits for, {nth},", value)
    return ()


_RULES: dict[type[p.Instr], Callable[..., tuple[str, ...]]] = {
    p.Start: lambda *_: (_STATE,),
    p.Extend: _extend,
    p.Role: _role,
    p.Gen: _gen,
    p.Match: _match,
    p.Select: _select,
    p.Score: _score,
    p.StateText: _text,
    p.Race: _race,
    p.Pick: _pick,
    p.Attempt: _attempt,
    p.Prefill: _prefill,
    p.Release: _release,
    p.Compute: _compute,
    p.HostCall: _host,
    p.Typed: _typed,
    p.MakeList: _list,
    p.Pack: _pack,
    p.If: _if,
    p.Resume: _resume,
    p.Ret: _ret,
}


# --------------------------------------------------------------------------------- templates


def texts_in(static: str) -> list[Path]:
    """Where the texts lie in the arguments of a plan, in order.

    Raises:
        PlanError: it is no template of arguments by name.
    """
    try:
        tree = json.loads(static)
        if not (isinstance(tree, dict) and list(tree) == ["dict"]):
            raise ValueError('it has no "dict" of names')
        leaves = list(_leaves(tree, (), packed=False))
        names = [pair[0] for pair in tree["dict"]]
    except (ValueError, TypeError) as error:
        raise _broken(f"its arguments cannot be read: {error}") from error
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise _broken("the names of its arguments are no texts, or one is there twice")
    if [n for n, _ in leaves] != list(range(len(leaves))):
        raise _broken("the texts of its arguments are not numbered in order")
    return [path for _, path in leaves]


def opaque_values(static: str) -> list[str]:
    """The values among a plan's arguments that JSON cannot hold: type and number of each."""
    found: list[str] = []
    todo = [json.loads(static)]
    while todo:
        node = todo.pop()
        match node:
            case list():
                todo += reversed(node)
            case {"opaque": str(value)}:
                found.append(value)
            case {"tuple": list(items)}:
                todo += reversed(items)
            case {"dict": list(pairs)}:
                todo += [item for _, item in reversed(pairs)]
    return found


def _leaves(node: object, path: Path, *, packed: bool) -> Iterator[tuple[int, Path]]:
    """The numbers in a template, and where they stand.

    Args:
        node: of the template.
        path: of the node.
        packed: whether it is one of `Pack`: keys may be items, and no value is opaque.

    Raises:
        ValueError: the node is none that a template may have.
    """
    match node:
        case list():
            for n, item in enumerate(node):
                yield from _leaves(item, (*path, n), packed=packed)
        case {"$": int(n), **rest} if not rest and type(n) is int:
            yield n, path
        case {"tuple": list(items), **rest} if not rest:
            yield from _leaves(items, path, packed=packed)
        case {"dict": list(pairs), **rest} if not rest:
            for pair in pairs:
                if not (isinstance(pair, list) and len(pair) == 2):
                    raise ValueError('"dict" takes a list of [key, value]')
                key, item = pair
                if packed:
                    if not _hashable(key):
                        raise ValueError(f"{key} cannot be a key")
                    yield from _leaves(key, _KEY, packed=True)
                elif not isinstance(key, (str, int)):
                    raise ValueError(f"{key!r} cannot be a key")
                yield from _leaves(item, path if packed else (*path, key), packed=packed)
        case {"opaque": str(), **rest} if not rest and not packed:
            pass
        case None | bool() | int() | float():
            pass
        case _:
            raise ValueError(f"it has {str(node)[:80]!r}, which stands for nothing")


def _hashable(key: object) -> bool:
    """Whether a node of a template makes something that a dictionary takes as a key."""
    match key:
        case {"tuple": list(items)}:
            return all(map(_hashable, items))
        case list() | {"dict": _}:
            return False
    return True
