"""What each plan instruction does: one function an op, called when its registers are set.

`HANDLERS` maps the op of an instruction to its function. To add an instruction, add a class to
`lmc.plan` and a function here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.errors import LmcError, PlanError, RunError
from lmc.runtime.context import Context
from lmc.runtime.generating import chain, extend, gen, role
from lmc.runtime.handling import submit, value_of
from lmc.runtime.host_calls import host
from lmc.runtime.matching import match
from lmc.runtime.race import race
from lmc.runtime.request import AHEAD, KeyArray, PrefillRequest
from lmc.runtime.results import KnownCall, RowResult
from lmc.runtime.row import Blame, Fail, Failure, Pending, Reader, Row
from lmc.runtime.scoring import score, select
from lmc.textops import PURE
from lmc.typed import gives, lookup, typed_value

if TYPE_CHECKING:
    from lmc.runtime.executor import Executor

__all__ = ["HANDLERS"]


def _start(executor: Executor, row: Row, instr: p.Start) -> None:
    executor.set(row, instr.into.index, Context())


def _text(executor: Executor, row: Row, instr: p.StateText) -> None:
    executor.set(row, instr.into.index, row.regs[instr.state.index].text)


def _prefill(executor: Executor, row: Row, instr: p.Prefill) -> None:
    state: Context = row.regs[instr.state.index]
    executor.set(row, instr.into.index, state)
    begins = not len(state.keys) and state.opening is None
    if begins and executor.target.has_prefilled(state.pieces):
        return
    settled = state.settle(executor.target.tokenizer)
    # The last tokens of an open span may merge with what follows: their KV would be of no use.
    keys = settled.keys[: -UNSETTLED_TOKENS or None] if state.pieces else settled.keys
    if len(keys) < MIN_PREFILL_TOKENS:
        return
    if not executor.target.first_prefill(keys, state.pieces if begins else None):
        return
    order = (row.order, instr.priority)
    if not instr.ahead:
        request = PrefillRequest(keys=keys, priority=order)
        submit(executor, row, request, lambda _: None, instr=instr)
        return

    def done(result: Any) -> None:  # noqa: ANN401 - a result or an error
        if isinstance(result, LmcError):  # it was dropped: another row may ask for it
            executor.target.forget_prefill(keys)

    request = PrefillRequest(keys=keys, priority=(AHEAD, *order))
    submit(executor, row, request, done, call=AHEAD, instr=instr)


UNSETTLED_TOKENS = 2  # at the end of an open span; more may change, rarely, and cost little
MIN_PREFILL_TOKENS = 8  # below that a request of its own costs more than it saves


def _release(executor: Executor, row: Row, instr: p.Release) -> None:
    state = row.regs[instr.state.index]
    if isinstance(state, Context) and (state.pieces or len(state.keys)):  # it may have failed
        keys = state.settle(executor.target.tokenizer).keys
        executor.core.release(keys, _still_wanted(executor, row, keys))


def _still_wanted(executor: Executor, row: Row, keys: KeyArray) -> int:
    """How many of the leading keys are those of a state that the row goes on from."""
    states: dict[int, Context] = {}
    for index in executor.still_read(row):
        if isinstance(row.regs[index], Context):
            states[index] = row.regs[index]
    wanted = 0
    for state in states.values():
        if state.pieces or len(state.keys):
            other = state.settle(executor.target.tokenizer).keys
            length = min(len(keys), len(other))
            differ = keys[:length] != other[:length]
            wanted = max(wanted, int(differ.argmax()) if differ.any() else length)
    return wanted


def _compute(executor: Executor, row: Row, instr: p.Compute) -> None:
    args = [value_of(row, arg) for arg in instr.args]
    try:
        value = PURE[instr.fn].compute(*args)
    except (LookupError, ValueError, TypeError) as error:  # as the program itself would fail
        raise RunError(f"{type(error).__name__}: {error}") from error
    executor.set(row, instr.into.index, value)


def _list(executor: Executor, row: Row, instr: p.MakeList) -> None:
    row.meta[instr.into.index] = [
        row.meta.get(item.index) if isinstance(item, p.Reg) else None for item in instr.items
    ]
    executor.set(row, instr.into.index, [value_of(row, item) for item in instr.items])


def _pack(executor: Executor, row: Row, instr: p.Pack) -> None:
    items = [value_of(row, item) for item in instr.items]

    def build(node: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(node, list):
            return [build(item) for item in node]
        if isinstance(node, dict):
            if "$" in node:
                return items[node["$"]]
            if "tuple" in node:
                return tuple(build(item) for item in node["tuple"])
            return {build(key): build(item) for key, item in node["dict"]}
        return node

    executor.set(row, instr.into.index, build(json.loads(instr.template)))


def _typed(executor: Executor, row: Row, instr: p.Typed) -> None:
    text = value_of(row, instr.text)
    meta = row.meta.get(instr.text.index) if isinstance(instr.text, p.Reg) else None
    if instr.type.startswith("object:") and lookup(instr.type) is None:
        raise PlanError(
            f"the program reads {instr.name!r} as a class, which an artifact cannot hold",
            hint="run the .py file instead of the artifact",
        )
    value = typed_value(instr.type, text, getattr(meta, "finish_reason", None), instr.name)
    executor.set(row, instr.into.index, text if gives(instr.type) == "text" else value)


def _pick(executor: Executor, row: Row, instr: p.Pick) -> None:
    index = value_of(row, instr.index)
    if not 0 <= index < len(instr.items):
        raise RunError(f"there is no item {index}, there are {len(instr.items)}")
    executor.emit(row, Pending(_Copy(into=instr.into, item=instr.items[index])))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy(p.Instr):
    """Not part of plans: the second half of `Pick`, which waits for the item."""

    op = "copy"
    into: p.Reg
    item: p.Operand


def _copy(executor: Executor, row: Row, instr: _Copy) -> None:
    if isinstance(instr.item, p.Reg) and instr.item.index in row.meta:
        row.meta[instr.into.index] = row.meta[instr.item.index]
    executor.set(row, instr.into.index, value_of(row, instr.item))


def _attempt(executor: Executor, row: Row, instr: p.Attempt) -> None:
    value = value_of(row, instr.item)
    if isinstance(instr.item, p.Reg) and instr.item.index in row.meta:
        row.meta[instr.into.index] = row.meta[instr.item.index]
    executor.set(row, instr.into.index, value.error if type(value) is Failure else value)


def _if(executor: Executor, row: Row, instr: p.If) -> None:
    for handle, call in list(row.handles.items()):
        if call == AHEAD:  # what the way needs of it is asked for now
            executor.core.cancel(handle)
    taken = instr.then if value_of(row, instr.condition) else instr.orelse
    executor.emit_block(row, taken)


def _resume(executor: Executor, row: Row, instr: p.Resume) -> None:
    if row.resume is None:
        raise PlanError(
            f"the rest of the program needs its source: {instr.reason or 'tracing ended here'}",
            hint="run the .py file instead of the artifact",
        )
    executor.resume(
        row,
        [
            KnownCall(
                value_of(row, state),
                value_of(row, text),
                row.meta.get(text.index) if isinstance(text, p.Reg) else None,
            )
            for state, text in instr.calls
        ],
        [value_of(row, result) for result in instr.tools],
    )


def _ret(executor: Executor, row: Row, instr: p.Ret) -> None:
    result = RowResult()
    for operand in instr.after:  # in program order: at the first that failed the program raised
        value = value_of(row, operand)
        if type(value) is Failure:
            result.error = result.error or value.error
    raised = result.error is not None
    for name, operand in zip(instr.names, instr.values, strict=True):
        value = value_of(row, operand)
        if type(value) is Failure:
            result.error = result.error or value.error
            continue
        result.variables[name] = value
        if isinstance(operand, p.Reg) and operand.index in row.meta:
            result.meta[name] = row.meta[operand.index]
    state, value = row.regs[instr.state.index], value_of(row, instr.value)
    for held in (state, value):
        if type(held) is Failure:
            result.error = result.error or held.error
    if not raised:  # else the program did not come to its end
        if isinstance(state, Context):
            result.text = state.text
            if row.place is not None:
                row.place.release(executor.core, state.keys)
        result.value = row.value if value is None or type(value) is Failure else value
    executor.finish(row, result)


def _blame(executor: Executor, row: Row, instr: Blame) -> None:
    values = (value_of(row, operand) for operand in instr.after)  # in program order
    first = next((value.error for value in values if type(value) is Failure), instr.error)
    executor.fail_row(row, first)


def _fail(executor: Executor, row: Row, instr: Fail) -> None:
    result = RowResult(error=instr.error)
    for name, reg in zip(instr.names, instr.values, strict=True):
        if type(row.regs[reg.index]) is not Failure:
            result.variables[name] = row.regs[reg.index]
            if reg.index in row.meta:
                result.meta[name] = row.meta[reg.index]
    executor.finish(row, result)


def _read(_: Executor, row: Row, instr: Reader) -> None:
    instr.future.set_result(row.regs[instr.register.index])


HANDLERS: dict[str, Callable[..., None]] = {
    "start": _start,
    "extend": extend,
    "blame": _blame,
    "fail": _fail,
    "role": role,
    "gen": gen,
    "chain": chain,
    "match": match,
    "select": select,
    "score": score,
    "text": _text,
    "race": race,
    "pick": _pick,
    "copy": _copy,
    "attempt": _attempt,
    "prefill": _prefill,
    "read": _read,
    "release": _release,
    "compute": _compute,
    "host": host,
    "typed": _typed,
    "list": _list,
    "pack": _pack,
    "if": _if,
    "resume": _resume,
    "ret": _ret,
}
