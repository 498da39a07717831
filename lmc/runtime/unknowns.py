"""What a dry run does not know, and what it does there.

The value of a register is unknown if it depends on what a model or a tool says. That matters where
it decides how many tokens are sent, made or computed; each such place is a reason why a prediction
is not exact. There the smaller or the larger way is taken: the shortest or the longest choice, the
branch with the fewest or the most model calls.

Owns        which registers of the rows that run hold unknown values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.runtime.handling import value_of
from lmc.runtime.results import RowResult
from lmc.runtime.row import Row
from lmc.runtime.scoring import select
from lmc.textops import PURE

if TYPE_CHECKING:
    from lmc.runtime.executor import Executor

__all__ = ["Unknowns"]

Handler = Callable[..., None]

_CALLS = (p.Gen, p.Match, p.Chain, p.Select, p.Score)
_PLACEHOLDERS: Mapping[str, Any] = {"text": "", "int": 0, "float": 0.0, "bool": False}


class Unknowns:
    """Handlers of instructions that know what they do not know.

    Attributes:
        longest: whether the larger way is taken.
        reasons: why the counters of the run may be others, each once.
        sampled: whether any text was drawn at a temperature.
    """

    def __init__(self, *, longest: bool) -> None:
        self.longest = longest
        self.sampled = False
        self._reasons: dict[str, None] = {}
        self._weights: dict[int, tuple[p.Block, tuple[int, int, int]]] = {}
        self._unknown: dict[int, set[int]] = {}  # by row: its registers
        self._plans: dict[int, p.Plan] = {}
        self._matters: set[int] = set()  # ids of instructions: what they give leads to a call
        self._current: p.Instr | None = None  # that is handled now

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(self._reasons)

    def learn(self, plan: p.Plan) -> None:
        """Find out where the states of a plan lead; to be called before its rows run."""
        if id(plan) not in self._plans:
            self._plans[id(plan)] = plan
            self._leading(plan.body)

    def _leading(self, block: p.Block) -> set[int]:
        """The registers at the beginning of a block whose states lead to model calls."""
        leading: set[int] = set()
        for instr in reversed(list(p.unchained(block.instrs))):
            if isinstance(instr, p.If):
                leading |= self._leading(instr.then) | self._leading(instr.orelse)
                if _has_calls(instr.then) or _has_calls(instr.orelse):
                    self._matters.add(id(instr))
                continue
            if any(index in leading for index in instr.writes()):
                self._matters.add(id(instr))
            elif not isinstance(instr, (*_CALLS, p.Prefill)):
                continue
            leading.update(instr.reads())
        return leading

    def handlers(self, real: Mapping[str, Handler]) -> dict[str, Handler]:
        """The handlers of a dry run, made from those of a real one."""
        own: dict[str, Handler] = {
            "if": self._if,
            "host": self._host,
            "resume": self._resume,
            "select": self._select,
            "compute": self._careful(real["compute"]),
            "typed": self._careful(real["typed"]),
        }
        return {op: self._watched(own.get(op, handler)) for op, handler in real.items()}

    def calls(self) -> tuple[p.Instr | None, ...]:
        """The model call that is handled now, or the gens of the chain."""
        if isinstance(self._current, p.Chain):
            return tuple(link for link in self._current.links if isinstance(link, p.Gen))
        return (self._current,)

    def note_length(self, call: p.Instr | None) -> None:
        """A model call may make any number of tokens."""
        names = getattr(call, "names", None) or (getattr(call, "name", "a gen"),)
        self._note(f"how long {' and '.join(map(repr, names))} will be", call)

    def _note(self, what: str, instr: p.Instr | None = None) -> None:
        at = getattr(instr or self._current, "at", None)
        self._reasons[f"{what} is not known ({at})" if at else f"{what} is not known"] = None

    def _knows(self, row: Row, operands: Sequence[p.Operand]) -> bool:
        unknown = self._unknown.get(row.order, ())
        return not any(isinstance(o, p.Reg) and o.index in unknown for o in operands)

    def _watched(self, handler: Handler) -> Handler:
        def handle(executor: Executor, row: Row, instr: p.Instr) -> None:
            self._current = instr
            unknown = self._unknown.setdefault(row.order, set())
            if isinstance(instr, p.Chain):
                unknown.update(instr.writes())
                for link in instr.links:
                    self._say(row, link)
            elif isinstance(instr, _CALLS) or not unknown.isdisjoint(instr.reads()):
                self._say(row, instr)
                unknown.update(instr.writes())
            handler(executor, row, instr)
            if row.finished:
                self._unknown.pop(row.order, None)

        return handle

    def _say(self, row: Row, instr: p.Instr) -> None:
        """Note what of an instruction is unknown and matters."""
        texts: tuple[p.Operand, ...] = ()
        match instr:
            case p.Extend() if id(instr) in self._matters:
                texts = instr.parts
            case p.Match():
                texts = instr.texts
            case p.Select():
                texts = instr.choices
            case p.Score():
                texts = (instr.text,)
            case p.Pick() if id(instr) in self._matters:
                texts = (instr.index,)
        if not self._knows(row, texts):
            self._note("the text put into a prompt", instr)

    # What is done otherwise

    def _if(self, executor: Executor, row: Row, instr: p.If) -> None:
        if self._knows(row, (instr.condition,)):
            taken = instr.then if value_of(row, instr.condition) else instr.orelse
        else:
            if id(instr) in self._matters:
                self._note("which way is taken")
            choose = max if self.longest else min
            taken = choose((instr.then, instr.orelse), key=self._weight)
        executor.emit_block(row, taken)

    def _weight(self, block: p.Block) -> tuple[int, int, int]:
        """Model calls, tokens they may make, and characters of constant text, for a block."""
        known = self._weights.get(id(block))
        if known is None or known[0] is not block:
            known = self._weights[id(block)] = block, self._weigh(block)
        return known[1]

    def _weigh(self, block: p.Block) -> tuple[int, int, int]:
        calls = tokens = characters = 0
        for instr in p.unchained(block.instrs):
            match instr:
                case p.If():
                    choose = max if self.longest else min
                    more = choose(map(self._weight, (instr.then, instr.orelse)))
                    calls, tokens = calls + more[0], tokens + more[1]
                    characters += more[2]
                case p.Gen():
                    calls, tokens = calls + 1, tokens + instr.params.max_tokens
                case p.Match():
                    calls, tokens = calls + 1, tokens + sum(g.max_tokens for g in instr.gens)
                case p.Select() | p.Score():
                    calls += 1
                case p.Extend():
                    constant = [o.value for o in instr.parts if isinstance(o, p.Const)]
                    characters += sum(len(str(text)) for text in constant)
        return calls, tokens, characters

    def _host(self, executor: Executor, row: Row, instr: p.HostCall) -> None:
        self._note(f"what {instr.fn}() gives")
        self._unknown[row.order].update(instr.writes())
        value = [] if instr.gives.startswith("list") else _PLACEHOLDERS.get(instr.gives)
        executor.set(row, instr.into.index, value)

    def _resume(self, executor: Executor, row: Row, _: p.Resume) -> None:
        self._note("what the program does where it runs eagerly")
        executor.finish(row, RowResult())

    def _select(self, executor: Executor, row: Row, instr: p.Select) -> None:
        tokenizer = executor.target.tokenizer
        texts = [value_of(row, choice) for choice in instr.choices]
        sizes = {len(tokenizer.encode(text, first=False)) for text in texts}
        if len(sizes) > 1 and id(instr) in self._matters:
            self._note(f"which choice {instr.name!r} will be")
        select(executor, row, instr, self._pick)
        if len(set(texts)) == 1 and self._knows(row, instr.choices):
            self._unknown[row.order].discard(instr.into_text.index)

    def _pick(self, _method: str, _choices: object, _scores: object, *rest: Any) -> int:  # noqa: ANN401
        sizes = [len(tokens) for tokens in rest[0]]
        return sizes.index(max(sizes) if self.longest else min(sizes))

    def _careful(self, real: Handler) -> Handler:
        """A handler whose instruction may be of no sense for a text that no model has made."""

        def handle(executor: Executor, row: Row, instr: Any) -> None:  # noqa: ANN401
            try:
                real(executor, row, instr)
            except Exception:
                if self._knows(row, (instr.into,)):
                    raise
                gives = PURE[instr.fn].gives if isinstance(instr, p.Compute) else "text"
                value = [] if gives.startswith("list") else _PLACEHOLDERS.get(gives)
                executor.set(row, instr.into.index, value)

        return handle


def _has_calls(block: p.Block) -> bool:
    """Whether anything in a block costs tokens, or can."""
    return any(
        isinstance(instr, (*_CALLS, p.Prefill, p.HostCall, p.Resume))
        or (isinstance(instr, p.If) and (_has_calls(instr.then) or _has_calls(instr.orelse)))
        for instr in block.instrs
    )
