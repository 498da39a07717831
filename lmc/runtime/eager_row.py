"""A row seen from the thread that runs its Python function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from lmc.constraints.automaton import Automaton
from lmc.errors import LmcError
from lmc.plan import Extend, Instr, Reg, Start
from lmc.runtime.results import CallMeta
from lmc.runtime.row import Fail, Failure, Pending, Reader, Row, Unset
from lmc.runtime.row_stream import PROMPT, Spoken, outputs

if TYPE_CHECKING:
    from lmc.runtime.executor import Executor
    from lmc.runtime.row_stream import RowStream
    from lmc.runtime.target import Target
    from lmc.runtime.tool_pool import HostFunction

__all__ = ["EagerRow"]


class EagerRow:
    """A row seen from the thread that runs its Python function.

    Instructions are handed over as they are met; `read` waits for a register.
    """

    def __init__(self, executor: Executor, row: Row) -> None:
        self._executor = executor
        self._row = row
        self._next = len(row.regs)
        self._automata: dict[int, int] = {}
        self._branches: dict[int, tuple[int, ...]] = {}  # of states, if the row is streamed

    @property
    def target(self) -> Target:
        """The engine's tokenizer, chat template and core."""
        return self._executor.target

    @property
    def over(self) -> bool:
        """Whether the row has ended: nothing that is done for it has an effect any more."""
        return self._row.finished

    def new_register(self) -> Reg:
        """A register that nothing has set yet."""
        reg = Reg(self._next)
        self._next += 1
        return reg

    def preset(self, value: object, meta: CallMeta | None = None) -> Reg:
        """A register that holds `value`, and what is known about the call that gave it."""
        reg = self.new_register()

        def put() -> None:
            if meta is not None:
                self._row.meta[reg.index] = meta
            self._executor.set(self._row, reg.index, value)

        self._post(put)
        return reg

    def tool(self, name: str, function: HostFunction) -> str:
        """The name of a tool for `HostCall.fn`: its own, with a number where it is taken."""
        held = self._row.tools.functions
        for known in (name, *(f"{name}.{n}" for n in range(1, len(held) + 1))):
            if known not in held or held[known].key == function.key:
                held[known] = function
                return known
        raise AssertionError("one of more names than there are is free")

    def constraint(self, automaton: Automaton) -> int:
        """The index of an automaton for `Gen.constraint`."""
        known = self._automata.get(id(automaton))
        if known is None:
            known = self._automata[id(automaton)] = len(self._row.constraints)
            self._row.constraints.append(automaton)
        return known

    def emit(self, instr: Instr, sample: int | None = None) -> None:
        """Hand over one instruction; `sample` numbers the gens that are drawn from one state."""
        pending = Pending(instr)
        if self._row.stream is not None:
            self._announce(instr, self._row.stream, sample)
        self._post(lambda: self._executor.emit(self._row, pending))

    def branch(self, state: Reg, index: int) -> Reg:
        """The state as branch `index` of a fork has it: what it says is the branch's own."""
        if self._row.stream is None:
            return state
        own = self.new_register()
        self.emit(Extend(into=own, state=state, parts=()))
        self._branches[own.index] = (*self._branches.get(state.index, ()), index)
        return own

    def moved(self, before: Reg, after: Reg) -> Reg:
        """The state `after` as what goes on where `before` was, in the same branch."""
        stream, branches = self._row.stream, self._branches
        if stream is None or branches.get(before.index) == branches.get(after.index):
            return after
        own = self.new_register()
        instr = Extend(into=own, state=after, parts=())
        branch = branches.get(before.index)
        if branch is not None:
            branches[own.index] = branch
            if not branch:
                spoken = Spoken(instr, PROMPT)
                self._post(functools.partial(stream.enter, self._row, spoken, before))
        self._post(lambda: self._executor.emit(self._row, Pending(instr)))
        return own

    def _announce(self, instr: Instr, stream: RowStream, sample: int | None) -> None:
        """Tell the row's stream what an instruction is going to add to."""
        if isinstance(instr, Start):  # a second one begins a prompt apart, which is not streamed
            if not self._branches:
                self._branches[instr.into.index] = ()
            return
        into, state = getattr(instr, "into", None), getattr(instr, "state", None)
        branch = self._branches.get(state.index) if isinstance(state, Reg) else None
        if into is None or branch is None:
            return
        spoken: list[Spoken] = []
        if not sample:  # the state goes on with the first
            self._branches[into.index] = branch
            spoken += [] if branch else [Spoken(instr, PROMPT)]
        own = branch if sample is None else (*branch, sample)
        spoken += [Spoken(instr, (name, own), text) for name, text in outputs(instr)]
        for part in spoken:
            self._post(functools.partial(stream.enter, self._row, part))

    def read(self, reg: Reg) -> Any:  # noqa: ANN401 - a register holds any value
        """The value of a register, waiting for it.

        Raises:
            LmcError: what the register depends on failed, or the row was cancelled.
        """
        future: Future[Any] = Future()
        reader = Reader(register=reg, future=future)
        pending = Pending(reader)

        def ask() -> None:
            if self._row.finished:
                reader.refuse(self._row)
            else:
                self._executor.emit(self._row, pending)

        self._post(ask, always=True)
        value = future.result()
        if type(value) is Failure:
            raise value.error
        return value

    def give(self, value: object) -> None:
        """Set what the function returned; before the final `Ret`."""
        self._row.value = value

    def fail(self, error: LmcError, names: Sequence[str], registers: Sequence[Reg]) -> None:
        """End the row with an error, once the variables set before are known; they are kept."""
        pending = Pending(Fail(error=error, names=tuple(names), values=tuple(registers)))
        self._post(lambda: self._executor.emit(self._row, pending))

    def _post(self, call: Callable[[], None], *, always: bool = False) -> None:
        size = self._next

        def run() -> None:
            row = self._row
            if row.finished and not always:
                return
            try:
                if len(row.regs) < size:
                    row.regs.extend([Unset] * (size - len(row.regs)))
                call()
            except Exception as error:
                self._executor.fault(row, error)

        self._executor.post(run)
