"""What the handlers of instructions share: operands, requests to the engine, failures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.errors import LmcError, RunError
from lmc.params import GenParams
from lmc.runtime.request import Sampling
from lmc.runtime.row import Failure, Row

if TYPE_CHECKING:
    from lmc.runtime.executor import Executor

__all__ = ["constraint_errors", "fail", "sampling_of", "submit", "value_of"]


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
    request: Any,  # noqa: ANN401 - one of the engine's
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
    if executor.observer is not None:
        done = executor.observer.request(row, instr, request, done)
    finished = False
    handle: Any = None

    def once(result: Any) -> None:  # noqa: ANN401
        nonlocal finished
        finished = True
        row.handles.pop(handle, None)
        try:
            done(result)
        except Exception as error:  # called by the engine, whose other requests must go on
            executor.fault(row, error)

    handle = executor.core.submit(request, once, on_text)
    if not finished:
        row.handles[handle] = call
