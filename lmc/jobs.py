"""Jobs of programs: rows that run as plans, or as Python functions, on one engine.

    Batch, run, stream ──row of arguments──► job ──► the executor, as a plan or row by row

Owns        the threads of rows that run eagerly, and what the pure tools of a run have given.
Promises    whatever is wrong with a row's arguments is said by that row; a job that is closed waits
            for nothing.
Not here    the order of rows, and what is done with results (`batch`).
"""

from __future__ import annotations

import contextvars
import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmc.batch import refused
from lmc.driver import Options
from lmc.errors import Cancelled
from lmc.frontend.arguments import flatten, unflatten
from lmc.frontend.eager import run_eagerly
from lmc.frontend.owning import own
from lmc.frontend.sharing import Shared

if TYPE_CHECKING:
    from lmc.api import Program
    from lmc.engine import Engine
    from lmc.runtime.eager_row import EagerRow
    from lmc.runtime.feed import Feed
    from lmc.runtime.host_calls import Memo
    from lmc.runtime.planned_rows import RowSpec
    from lmc.runtime.results import KnownCall, RowResult

__all__ = ["EAGER_THREADS", "CompiledJob", "EagerJob", "PlanJob", "memo_of_run"]

# Programs of a batch that run eagerly at the same time: as many as SGLang's front end takes.
EAGER_THREADS = max(96, 16 * (os.cpu_count() or 1))


def memo_of_run() -> Memo:
    """Room for what the pure tools of a run give."""
    from lmc.runtime.host_calls import Memo  # the compiler needs no runtime

    return Memo()


class PlanJob(ABC):
    """Rows as plans, many of them started at once."""

    engine: Engine

    @abstractmethod
    def _spec(
        self, index: int, given: Mapping[str, object], done: Callable[[RowResult], None]
    ) -> RowSpec:
        """A row as the executor takes it."""

    def start_together(
        self,
        rows: Sequence[tuple[int, Mapping[str, object]]],
        done: Callable[[int, RowResult], None],
    ) -> dict[int, Callable[[], None]]:
        from lmc.runtime.submission import Submission

        with Submission(self.engine.executor, len(rows), refused) as submission:
            for index, given in rows:
                try:
                    spec = self._spec(index, given, functools.partial(done, index))
                except Exception as error:  # an argument may do anything when it is looked at
                    done(index, refused(error))
                else:
                    submission.add(spec)
        return {index: handle.cancel for index, handle in submission.handles.items()}


@dataclass
class CompiledJob(PlanJob):
    """Rows of a compiled program."""

    program: Program
    engine: Engine
    seed: int
    deadline: float | None
    options: Options
    outside: tuple[object, ...]
    memo: Memo = field(default_factory=memo_of_run)
    _eager: EagerJob | None = None
    _shared: Shared = field(default_factory=dict)

    def expect(self, rows: Iterable[object]) -> None:
        self._shared = self.program.shared(rows, self.options)

    def start(
        self,
        index: int,
        given: Mapping[str, object],
        done: Callable[[RowResult], None],
        feed: Feed | None = None,
    ) -> Callable[[], None]:
        spec = self._spec(index, given, done)
        stream = None
        if feed is not None:
            from lmc.runtime.row_stream import Outline, RowStream

            outline = Outline.of(spec.plan)
            if not outline.exact:  # what is said when is known to the function only
                eager = self._eager = EagerJob(
                    self.program, self.engine, self.seed, self.deadline, self.options
                )
                return eager.start(index, given, done, feed)
            stream = RowStream(feed, outline)
        return self.engine.executor.submit(spec, stream).cancel

    def _spec(
        self, index: int, given: Mapping[str, object], done: Callable[[RowResult], None]
    ) -> RowSpec:
        from lmc.runtime.planned_rows import RowSpec

        program = self.program
        flat = flatten(program.arguments(given))
        compiled = program.compiled_for(flat, self._shared, self.options, self.outside)
        with self.options.applied():
            context = contextvars.copy_context()  # of the caller, for what the program itself runs

        def resume(row: EagerRow, calls: list[KnownCall], tools: list[Any]) -> None:
            again = unflatten(flat, flat.texts.__getitem__)  # the row as it was when it was given
            context.run(run_eagerly, program.function, row, again, calls, tools, program.where)

        return RowSpec(
            compiled.plan,
            list(flat.texts),
            self.seed,
            index,
            done,
            resume,
            self.deadline,
            self.memo.tools_of_row(compiled.program.tools),
        )

    def close(self) -> None:
        if self._eager is not None:
            self._eager.close()


class EagerJob:
    """Rows as Python functions that run on real values, a thread each."""

    def __init__(
        self,
        program: Program,
        engine: Engine,
        seed: int,
        deadline: float | None,
        options: Options,
    ) -> None:
        self._program = program
        self._options = options
        self._engine = engine
        self._seed = seed
        self._deadline = deadline
        self._memo = memo_of_run()
        self._pool = ThreadPoolExecutor(EAGER_THREADS, thread_name_prefix="lmc-eager")

    def start(
        self,
        index: int,
        given: Mapping[str, object],
        done: Callable[[RowResult], None],
        feed: Feed | None = None,
    ) -> Callable[[], None]:
        program = self._program
        arguments = own(program.arguments(given))  # now: whoever gave them may change them later
        stream = None
        if feed is not None:
            from lmc.runtime.row_stream import RowStream

            stream = RowStream(feed)
        row, future = self._engine.executor.open_row(
            seed=self._seed,
            index=index,
            deadline=self._deadline,
            stream=stream,
            tools=self._memo.tools_of_row({}),
        )
        future.add_done_callback(lambda finished: done(finished.result()))
        with self._options.applied():
            run = contextvars.copy_context().run

        def work() -> None:
            if not row.over:  # it may have waited for a thread until its deadline
                run(run_eagerly, program.function, row, arguments, (), (), program.where)

        try:
            self._pool.submit(work)
        except RuntimeError:  # its deadline has just passed, so whoever waited has closed the job
            if not row.over:
                raise
        return lambda: row.fail(Cancelled("the run was cancelled"), (), ())

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
