"""The instruction `host`: a call of a tool, its place in the row, and results that rows share.

A tool may be `pure`: the same arguments give the same result, and calling it is not seen from
outside. One run calls a pure tool once for each arguments, however many rows ask.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.errors import PlanError, RunError, ToolError
from lmc.runtime.handling import fail, value_of
from lmc.runtime.row import Row, Unset
from lmc.runtime.tool_pool import HostFunction, ToolCall, copied, depth

if TYPE_CHECKING:
    from lmc.runtime.executor import Executor

__all__ = ["Memo", "RowTools", "host"]

REMEMBERED = 10_000  # results of pure tools in one run

Done = Callable[[Any], None]


@dataclass(eq=False)
class _Shared:
    """A call in flight that several rows wait for."""

    call: ToolCall
    waiting: list[Done] = field(default_factory=list)


@dataclass(eq=False)
class Memo:
    """What the pure tools of one run gave; used on the loop thread only."""

    known: dict[Hashable, tuple[HostFunction, Any]] = field(default_factory=dict)
    running: dict[Hashable, _Shared] = field(default_factory=dict)

    def tools_of_row(self, functions: Mapping[str, HostFunction]) -> RowTools:
        """The tools of a row of the run, which is started now and here."""
        return RowTools(dict(functions), self)

    def start(
        self, key: Hashable, call: ToolCall, executor: Executor, done: Done
    ) -> Callable[[], None]:
        """Have `done` called with what the call gives, now or later; gives what cancels that."""
        if key in self.known:
            done(copied(self.known[key][1]))
            return lambda: None
        shared = self.running.get(key)
        if shared is None:
            shared = self.running[key] = _Shared(call)
            _start(executor, call, lambda result: self._finish(key, shared, result))
        waiting = shared
        waiting.waiting.append(done)

        def cancel() -> None:
            if done in waiting.waiting:
                waiting.waiting.remove(done)
                if not waiting.waiting:  # nobody is left
                    self.running.pop(key, None)
                    executor.tool_pool.cancel(waiting.call)

        return cancel

    def _finish(self, key: Hashable, shared: _Shared, result: Any) -> None:  # noqa: ANN401
        self.running.pop(key, None)
        if not isinstance(result, ToolError):  # who asks after a failure tries again
            while len(self.known) >= REMEMBERED:
                del self.known[next(iter(self.known))]
            self.known[key] = shared.call.function, result
            result = copied(result)
        for done in list(shared.waiting):
            done(result)


@dataclass(eq=False)
class RowTools:
    """The tools of a row, by the names that its instructions have for them.

    Attributes:
        functions: by name.
        memo: of the run that the row belongs to.
        context: the context variables that tools see: those of who started the row.
        depth: how many tools who started the row runs inside of.
        cancels: one a call in flight.
    """

    functions: dict[str, HostFunction] = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    depth: int = field(default_factory=depth.get)
    cancels: set[Callable[[], None]] = field(default_factory=set)

    def cancel(self) -> None:
        """Give up the calls in flight: the row is over."""
        for cancel in list(self.cancels):
            cancel()
        self.cancels.clear()


def host(executor: Executor, row: Row, instr: p.HostCall) -> None:
    """Handle `HostCall`.

    Raises:
        PlanError: the row has no tool of that name.
    """
    tools = row.tools
    function = tools.functions.get(instr.fn)
    if function is None:
        raise PlanError(
            f"the program calls the tool {instr.fn}(), which an artifact cannot hold",
            hint=f"give it to lmc.load(..., tools=[{instr.fn}]), or run the .py file",
        )
    values = [value_of(row, arg) for arg in instr.args]
    split = len(values) - len(instr.names)
    kwargs = dict(zip(instr.names, values[split:], strict=True))
    call = ToolCall(function, values[:split], kwargs, tools.context.copy(), tools.depth + 1)
    cancel: Callable[[], None] | None = None

    def take(result: Any) -> None:  # noqa: ANN401 - a value, or a ToolError
        if cancel is not None:
            tools.cancels.discard(cancel)
        if isinstance(result, ToolError):
            mine = ToolError(result.problem, hint=result.hint)  # rows may share the other one
            mine.__cause__ = result.__cause__
            fail(executor, row, instr, mine)
        else:
            executor.set(row, instr.into.index, result)

    done: Done = take
    if executor.observer is not None:
        done = executor.observer.tool(row, instr.fn, instr.at, take)
    key = _key(function, call) if instr.pure else None
    if key is not None:
        cancel = tools.memo.start(key, call, executor, done)
    else:
        _start(executor, call, done)
        cancel = partial(executor.tool_pool.cancel, call)
    if row.regs[instr.into.index] is Unset:
        tools.cancels.add(cancel)


def _start(executor: Executor, call: ToolCall, done: Done) -> None:
    """Run a call; `done` is called with its result on the executor's thread."""

    def post(result: Any) -> None:  # noqa: ANN401 - a value, or a ToolError
        with contextlib.suppress(RunError):  # the engine is closed: nobody waits
            executor.post(lambda: done(result))

    executor.tool_pool.start(call, post)


def _key(function: HostFunction, call: ToolCall) -> Hashable | None:
    """What equal calls have in common; None if an argument may change unseen."""
    try:
        return (function.key, _frozen(list(call.args)), _frozen(dict(call.kwargs)))
    except TypeError:
        return None


def _frozen(value: Any) -> Hashable:  # noqa: ANN401 - any argument
    kind = type(value)
    if kind in (list, tuple):
        return kind, tuple(map(_frozen, value))
    if kind is dict:
        return kind, tuple((_frozen(k), _frozen(v)) for k, v in value.items())
    if value is None or kind in (bool, int, str):
        return kind, value
    if kind is float:
        return kind, repr(value)  # tells -0.0 from 0.0, and one NaN from none
    raise TypeError(f"a {kind.__name__} may change")
