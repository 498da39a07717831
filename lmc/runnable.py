"""What can be run on rows of arguments: once, streamed, in batches, asynchronously."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from typing import TYPE_CHECKING, cast

from lmc import aio
from lmc.batch import PLANNED, Batch, Job, checked, run_one
from lmc.driver import Options
from lmc.errors import UsageError
from lmc.frontend.parameters import RUN_WIDE, run_wide
from lmc.frontend.symbolic import not_while_tracing
from lmc.progress import progress_bar
from lmc.result import Result
from lmc.stream import Stream, begin

if TYPE_CHECKING:
    from lmc.engine import Engine
    from lmc.runtime.dry_run import Rehearsal
    from lmc.runtime.prediction import Prediction

__all__ = ["Runnable", "current_engine", "use"]


_engine: contextvars.ContextVar[Engine | None] = contextvars.ContextVar("engine", default=None)
_default: list[Engine] = []
_default_lock = threading.Lock()


@contextlib.contextmanager
def use(engine: Engine) -> Iterator[Engine]:
    """Make `engine` the one that programs inside the `with` block run on."""
    token = _engine.set(engine)
    try:
        yield engine
    finally:
        _engine.reset(token)


def current_engine() -> Engine:
    """The engine of the innermost `use`, else the default one, made at the first call."""
    engine = _engine.get()
    if engine is not None:
        return engine
    with _default_lock:
        if not _default or _default[0].closed:
            from lmc.engine import Engine

            _default[:] = [Engine()]
        return _default[0]


class Runnable(ABC):
    """Something that runs on rows of arguments.

    All ways to run it take these arguments:

        engine: to run on; by default the one in use.
        eager: run the Python function itself instead of the compiled graph.
        seed: of the random draws; by default the engine's.
        deadline: seconds after which a row ends with `Cancelled`, counted from its start.
        options: how to compile.

    Parameters of `gen` (`temperature=0.7`) are for all gens that give none of their own, unless the
    program takes an argument of that name.
    """

    name: str

    @abstractmethod
    def _job(
        self, engine: Engine, eager: bool, seed: int, deadline: float | None, options: Options
    ) -> Job:
        """How to run its rows."""

    @abstractmethod
    def _takes(self, name: str) -> bool:
        """Whether it has an argument of that name."""

    def _defaults_among(
        self, arguments: dict[str, object], options: Options | None
    ) -> Options | None:
        """The options with the parameters of gens that are taken out of the arguments."""
        names = [name for name in arguments if name in RUN_WIDE and not self._takes(name)]
        return _with_defaults(options, {name: arguments.pop(name) for name in names})

    def _prepare(
        self,
        engine: Engine | None,
        eager: bool,
        seed: int | None,
        deadline: float | None,
        options: Options | None,
    ) -> Job:
        not_while_tracing()
        engine = engine or current_engine()
        if not hasattr(engine, "executor"):
            raise UsageError(f"engine={engine!r}", hint="give an lmc.Engine")
        number = isinstance(deadline, (int, float)) and not isinstance(deadline, bool)
        if deadline is not None and not (number and deadline >= 0):
            raise UsageError(f"deadline={deadline!r}", hint="give seconds, or None for no limit")
        if options is not None and not isinstance(options, Options):
            raise UsageError(f"options={options!r}", hint="give lmc.Options(level=...)")
        return self._job(engine, eager, _seed(engine, seed), deadline, options or Options())

    def run(
        self,
        *,
        engine: Engine | None = None,
        eager: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
        options: Options | None = None,
        **arguments: object,
    ) -> Result:
        """Run the program once.

        Raises:
            UsageError: an argument is missing or unknown.
            TraceError, ConstraintError: the program is wrong. Errors of the run are in the result.
        """
        options = self._defaults_among(arguments, options)
        return run_one(self._prepare(engine, eager, seed, deadline, options), arguments)

    async def arun(
        self,
        *,
        engine: Engine | None = None,
        eager: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
        options: Options | None = None,
        **arguments: object,
    ) -> Result:
        """Like `run`, for coroutines. Cancelling the task that awaits it cancels the run."""
        options = self._defaults_among(arguments, options)
        return await aio.run(
            lambda: self._prepare(engine, eager, seed, deadline, options), arguments
        )

    def stream(
        self,
        *,
        engine: Engine | None = None,
        eager: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
        options: Options | None = None,
        **arguments: object,
    ) -> Stream:
        """Run the program once and read its text as it comes: see `Stream`.

        A program that does not compile as a whole, or whose forks are read without being joined,
        is streamed eagerly; its text is the same.

        Raises:
            As `run`.
        """
        options = self._defaults_among(arguments, options)
        job = self._prepare(engine, eager, seed, deadline, options)
        return Stream(*begin(job, dict(arguments)))

    def stream_row(
        self, row: Mapping[str, object], *, engine: Engine, eager: bool, options: Options
    ) -> Stream:
        """Like `stream`, with the arguments as a dictionary."""
        return Stream(*begin(self._prepare(engine, eager, None, None, options), row))

    def astream(
        self,
        *,
        engine: Engine | None = None,
        eager: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
        options: Options | None = None,
        **arguments: object,
    ) -> aio.AsyncStream:
        """Like `stream`, for coroutines; the run begins when it is first read."""
        options = self._defaults_among(arguments, options)
        return aio.AsyncStream(
            lambda: begin(self._prepare(engine, eager, seed, deadline, options), dict(arguments))
        )

    def run_batch(
        self,
        rows: Iterable[Mapping[str, object]],
        *,
        engine: Engine | None = None,
        eager: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
        progress: bool = True,
        on_error: str = "record",
        max_errors: int | None = None,
        ordered: bool = True,
        options: Options | None = None,
        **defaults: object,
    ) -> list[Result]:
        """Run the program on many rows of arguments; a result for each, in their order.

        Args:
            rows: each a dictionary of arguments.
            progress: show a bar if standard error is a terminal.
            on_error: "record" keeps the error of a row in its result, and the others go on; with
                "raise" the first one is raised.
            max_errors: raise when more rows than this failed.
            ordered: False gives results as they are done; `Result.index` says whose they are.
            defaults: parameters for gens that give none of their own, as in `temperature=0.7`.

        For the others see the class.

        Raises:
            RunError: more than `max_errors` rows failed.
        """
        not_while_tracing()
        engine = engine or current_engine()
        results = self.iter_batch(
            rows,
            engine=engine,
            eager=eager,
            seed=seed,
            deadline=deadline,
            on_error=on_error,
            max_errors=max_errors,
            ordered=ordered,
            options=options,
            **defaults,
        )
        total = len(rows) if isinstance(rows, Sized) else None
        bar = progress_bar(self.name, total, progress, engine.stats)
        kept: list[Result] = []
        with contextlib.closing(results), bar as advance:
            for result in results:
                kept.append(result)
                advance()
        return kept

    def iter_batch(
        self,
        rows: Iterable[Mapping[str, object]],
        *,
        engine: Engine | None = None,
        eager: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
        on_error: str = "record",
        max_errors: int | None = None,
        ordered: bool = True,
        options: Options | None = None,
        **defaults: object,
    ) -> Generator[Result]:
        """Like `run_batch`, but gives each result as soon as it is due.

        Reads `rows` as it goes: memory is bounded, also if a row takes long or results are taken
        slowly. Of rows that come one by one, at most 512 are in flight or wait for earlier ones. A
        sequence runs 4096 rows at a time, those that begin alike together, and as many results may
        wait for an earlier one. Closing the iterator cancels what runs.
        """
        options = _with_defaults(options, defaults)
        job = self._prepare(engine, eager, seed, deadline, options)
        return checked(Batch(job, rows, ordered=ordered), on_error, max_errors)

    async def arun_batch(
        self,
        rows: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
        *,
        engine: Engine | None = None,
        eager: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
        on_error: str = "record",
        max_errors: int | None = None,
        ordered: bool = True,
        options: Options | None = None,
        **defaults: object,
    ) -> list[Result]:
        """Like `run_batch`, for coroutines. Cancelling the task cancels all rows."""
        results = self.aiter_batch(
            rows,
            engine=engine,
            eager=eager,
            seed=seed,
            deadline=deadline,
            on_error=on_error,
            max_errors=max_errors,
            ordered=ordered,
            options=options,
            **defaults,
        )
        async with contextlib.aclosing(results):
            return [result async for result in results]

    def aiter_batch(
        self,
        rows: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
        *,
        engine: Engine | None = None,
        eager: bool = False,
        seed: int | None = None,
        deadline: float | None = None,
        on_error: str = "record",
        max_errors: int | None = None,
        ordered: bool = True,
        options: Options | None = None,
        **defaults: object,
    ) -> AsyncGenerator[Result]:
        """Like `iter_batch`, for coroutines; rows may come asynchronously, too."""
        options = _with_defaults(options, defaults)

        def start(given: Iterable[Mapping[str, object]]) -> tuple[Batch, Generator[Result]]:
            batch = Batch(
                self._prepare(engine, eager, seed, deadline, options), given, ordered=ordered
            )
            return batch, checked(batch, on_error, max_errors)

        return aio.results(start, rows)

    def predict(
        self,
        rows: Iterable[Mapping[str, object]],
        *,
        engine: Engine | None = None,
        options: Options | None = None,
        **defaults: object,
    ) -> Prediction:
        """What `run_batch` of these rows will cost on an engine whose cache is empty.

        No model, no tool and nothing of the program runs. For programs whose texts have known
        lengths (`select`, `score`, `gen` with `ignore_eos` and no stops) the counters are those
        that `engine.stats` will have; else they are bounds, with the reasons.

        Args:
            rows: each a dictionary of arguments.
            engine: whose limits count; by default the one in use.

        For the others see the class.
        """
        not_while_tracing()
        rehearsal = (engine or current_engine()).rehearsal()
        return self.rehearsed(rows, rehearsal, _with_defaults(options, defaults) or Options())

    def rehearsed(
        self, rows: Iterable[Mapping[str, object]], rehearsal: Rehearsal, options: Options
    ) -> Prediction:
        """Like `predict`, for an engine that need not be there."""
        from lmc.runtime.prediction import Prediction, counters_of
        from lmc.runtime.stats import Counters

        there = list(rows)
        figures: list[Counters] = []
        reasons: dict[str, None] = {}
        for longest in (False, True):
            if figures and not reasons:  # nothing was open: it would be the same again
                figures.append(figures[0])
                break
            with rehearsal.engine(longest=longest) as dry:
                job = self._job(cast("Engine", dry), False, dry.seed, None, options)
                for _ in Batch(job, there, ordered=False):
                    pass
                figures.append(counters_of(dry.stats))
                reasons.update(dict.fromkeys(dry.reasons))
        if len(there) > PLANNED:
            reasons[f"when rows after the first {PLANNED} begin is not known"] = None
        return Prediction(len(there), figures[0], figures[1], tuple(reasons))

    def resumed_batch(
        self,
        rows: Iterable[Mapping[str, object]],
        *,
        engine: Engine,
        eager: bool,
        options: Options,
        skip: Container[int],
        early: Callable[[Result], None],
    ) -> Generator[Result]:
        """Like `iter_batch` for what is left of a batch: see `skip` and `early` of `Batch`."""
        job = self._prepare(engine, eager, None, None, options)
        return iter(Batch(job, rows, skip=skip, early=early))


def _with_defaults(options: Options | None, defaults: Mapping[str, object]) -> Options | None:
    if not defaults:
        return options
    return dataclasses.replace(options or Options(), defaults=run_wide(defaults))


def _seed(engine: Engine, seed: object) -> int:
    if seed is None:
        return engine.seed
    if type(seed) is not int:
        raise UsageError(f"seed is {seed!r}, must be an integer")
    return seed
