"""What the handlers of instructions share: operands, requests to the engine, failures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.errors import LmcError, RunError
from lmc.params import GenParams
from lmc.runtime.request import Request, Sampling
from lmc.runtime.row import Failure, Row

if TYPE_CHECKING:
    from lmc.runtime.engine import Handle
    from lmc.runtime.executor import Executor

__all__ = [
    "constraint_errors", "fail", "hand_over", "observed", "sampling_of", "submit", "value_of",
]  # fmt: skip


def value_of(row: Row, operand: p.Operand) -> Any:  # noqa: ANN401 - a register holds any value
    """The value of an operand whose register is set."""
    return row.regs[operand.index] if isinstance(operand, p.Reg) else operand.value


def fail(executor: Executor, row: Row, instr: p.Instr, error: LmcError) -> None:
    """Have everything that an instruction gives fail with its error."""
    failure = Failure(error.at(instr.at))
    for index in instr.writes():
        executor.set(row, index, failure)


def sampling_of(row: Row, params: GenParams, draw: int) -> Sampling:
    """How a gen of a row is drawn; `draw` is its number in the program."""
    return Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=row.seed if params.seed is None else params.seed,
        row=row.index,
        draw=draw,
    )


@contextlib.contextmanager
def constraint_errors() -> Iterator[None]:
    """As in a step, a constraint fails its own request only.

    Raises:
        LmcError: what was raised, or a `RunError` because of it.
    """
    try:
        yield
    except LmcError:
        raise
    except Exception as error:
        raise RunError(f"the constraint failed: {error or type(error).__name__}") from error


def submit(
    executor: Executor,
    row: Row,
    request: Request,
    done: Callable[[Any], None],
    on_text: Callable[[str], None] | None = None,
    call: int | None = None,
    instr: p.Instr | None = None,
) -> None:
    """Submit a request; its handle stays with the row until it is done.

    Args:
        executor, row: whose it is.
        request: of the engine.
        done: called once, with the result or an `LmcError`.
        on_text: takes the text of a gen as it comes.
        call: the register that its result will be in, if it is a model call of the program.
        instr: what it is submitted for, as far as observers are to know.
    """
    hand_over(executor, row, request, observed(executor, row, instr, request, done), on_text, call)


def observed(
    executor: Executor,
    row: Row,
    instr: p.Instr | None,
    request: Request,
    done: Callable[[Any], None],
) -> Callable[[Any], None]:
    """What is to be called at the end of a request instead of `done`."""
    if executor.observer is None:
        return done
    return executor.observer.request(row, instr, request, done)


def hand_over(
    executor: Executor,
    row: Row,
    request: Request,
    done: Callable[[Any], None],
    on_text: Callable[[str], None] | None,
    call: int | None,
) -> Handle | None:
    """Submit a request, unobserved; its handle, or None if it has ended."""
    finished = False
    handle: Handle | None = None

    def once(result: Any) -> None:  # noqa: ANN401
        nonlocal finished
        finished = True
        row.handles.pop(handle, None)  # None before it is known
        try:
            done(result)
        except Exception as error:  # called by the engine, whose other requests must go on
            executor.fault(row, error)

    handle = executor.core.submit(request, once, on_text)
    if finished:
        return None
    row.handles[handle] = call
    return handle
