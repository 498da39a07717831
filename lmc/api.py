"""The public face: `@lmc.jit`, and what programs compile to; running is in `runnable`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from lmc.batch import Job
from lmc.driver import Compiled, Options, compile_function, specializes, trace_function
from lmc.errors import UsageError
from lmc.frontend.arguments import Arguments, bind, flatten
from lmc.frontend.dependencies import fixed, snapshot
from lmc.frontend.dsl import State
from lmc.frontend.fusing import checked_fuse
from lmc.frontend.location import has_programs, here, of_code
from lmc.frontend.sharing import Shared, known_texts, shared_texts
from lmc.jit_cache import CacheInfo, JitCache
from lmc.jobs import CompiledJob, EagerJob
from lmc.loaded import Loaded, load
from lmc.runnable import Runnable, current_engine, use

if TYPE_CHECKING:
    from lmc.engine import Engine
    from lmc.ir.core import Program as Graph

__all__ = [
    "Called",
    "Loaded",
    "Lowered",
    "Program",
    "compile",
    "current_engine",
    "jit",
    "load",
    "use",
]

_RESERVED = ("engine", "eager", "seed", "deadline", "options")


_LEFT_OUT = object()


@overload
def jit(function: Callable[..., object], *, fuse: str | None = None) -> Program: ...


@overload
def jit(*, fuse: str | None = None) -> Callable[[Callable[..., object]], Program]: ...


def jit(
    function: Any = _LEFT_OUT, *, fuse: str | None = None
) -> Program | Callable[[Callable[..., object]], Program]:
    """Make an LM program of a function whose first parameter is the prompt state.

    Args:
        function: the function; left out where there are options, as in `@lmc.jit(fuse=...)`.
        fuse: "statements" takes a straight run of statements for one row, as if there were `+`
            between them: constrained gens and the text around them are then matched as a whole.
            It counts for runs of this program, not where it is a part of another one.

    Raises:
        UsageError: it has no parameter for the state, it is a coroutine or a generator, or there is
            no such option.
    """
    checked_fuse(fuse)
    if function is _LEFT_OUT:
        return lambda function: Program(function, fuse=fuse)
    return Program(function, fuse=fuse)


@dataclass(frozen=True, eq=False)
class Called:
    """What a program gave that was called with a prompt of its own.

    Attributes:
        prompt: its final prompt state; it can be gone on with.
        value: what its function returned.
    """

    prompt: State
    value: object

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - as of a state
        return self.prompt[name]

    def get(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - as of a state
        """A variable of the called program, or `default` where it set none of that name."""
        return self.prompt.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.prompt

    def text(self) -> str:
        """All text of its prompt."""
        return self.prompt.text()


class Program(Runnable):
    """An LM program: a Python function, traced once per shape of its arguments."""

    def __init__(
        self,
        function: Callable[..., object],
        bound: Mapping[str, object] | None = None,
        kept: JitCache | None = None,
        fuse: str | None = None,
    ) -> None:
        if isinstance(function, (classmethod, staticmethod)):
            self._descriptor: Any = function
            function = function.__func__
        else:
            self._descriptor = function
        if not callable(function):
            raise UsageError(f"@lmc.jit takes a function, not {type(function).__name__}")
        code = getattr(inspect.unwrap(function), "__code__", None)
        where = of_code(code) if code is not None else None
        if code is not None:
            has_programs(code.co_filename)
        name = getattr(function, "__name__", type(function).__name__)
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(
                f"{name} is a coroutine or a generator", where, hint="write an ordinary function"
            )
        self._signature = inspect.signature(function)
        if not self._signature.parameters:
            raise UsageError(
                f"{name}() has no parameter for the prompt state",
                where,
                hint=f"write def {name}(s): ...",
            )
        state, *others = self._signature.parameters.values()
        if state.kind not in (state.POSITIONAL_ONLY, state.POSITIONAL_OR_KEYWORD):
            raise UsageError(
                f"{name}() has no parameter for the prompt state",
                where,
                hint=f"its first one, {str(state)!r}, takes none: write def {name}(s, ...): ...",
            )
        for parameter in others:
            taken = parameter.name
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise UsageError(
                    f"{name}() takes {taken!r} by position only",
                    where,
                    hint="programs are run with named arguments: write it without `/` and `*`",
                )
            if taken in _RESERVED:
                raise UsageError(
                    f"{name}() has a parameter {taken!r}, which `run` has a meaning for",
                    where,
                    hint=f"name it otherwise; {', '.join(_RESERVED)} are taken",
                )
        functools.update_wrapper(self, function)
        self.name = name
        self.where = where
        self.function = function
        self._bound = dict(bound or {})
        if self._bound and not self._needs_instance():
            bind(self._signature, name, self._bound, where, partial=True)
        self._kept = kept or JitCache()
        self._fuse = fuse

    def __reduce__(self) -> str | tuple[object, ...]:
        """Programs are pickled by reference, as functions are."""
        return self.function.__qualname__

    def __deepcopy__(self, _: object) -> Program:
        return self

    def __get__(self, instance: object, owner: type | None = None) -> Program:
        """As a method: the program of an instance, or of a class for a class method."""
        if not hasattr(self._descriptor, "__get__"):  # an object that can be called
            return self
        function = self._descriptor.__get__(instance, owner)
        if function is self.function:
            return self
        return Program(function, self._bound, self._kept, self._fuse)

    def _needs_instance(self) -> bool:
        """Whether it is a method that was not reached through an instance."""
        first = next(iter(self._signature.parameters))
        scope = getattr(self.function, "__qualname__", "").rpartition(".")[0]
        inside = scope and not scope.endswith("<locals>") and not inspect.ismethod(self.function)
        return bool(inside) and first in ("self", "cls")

    def __call__(self, state: State, *args: object, **kwargs: object) -> object:
        """Go on with the prompt of another program, inside of it."""
        if not isinstance(state, State):
            raise UsageError(
                f"{self.name}() was called without a prompt state",
                hint=f"run it with {self.name}.run(...), or give it the state of a program",
            )
        self._check_instance()
        function = state._recorder.prepare(self.function)
        return function(state, *args, **{**self._bound, **kwargs})

    def call(self, state: State, /, **arguments: object) -> Called:
        """Run the program on a prompt of its own, as a part of the program that has `state`.

        Its model calls go on beside those of the caller. `run` would be another run, with its own
        random numbers, deadline and result; this is one run.

        Raises:
            UsageError: `state` is none, or an argument is missing or unknown.
        """
        at = here()
        if not isinstance(state, State):
            raise UsageError(
                f"{self.name}.call() takes the prompt state of the caller first",
                at,
                hint=f"write {self.name}.call(s, ...)",
            )
        given = self.arguments(arguments)
        prompt = state._new(at)
        value = state._recorder.prepare(self.function)(prompt, **given)
        return Called(prompt, value)

    def _check_instance(self) -> None:
        if self._needs_instance():
            raise UsageError(
                f"{self.name}() is a method and was not reached through its object",
                self.where,
                hint="run it on an instance; for a class method, write @lmc.jit above @classmethod",
            )

    def bind(self, **arguments: object) -> Program:
        """The program with some arguments set.

        Raises:
            UsageError: it takes no argument of such a name.
        """
        return Program(self._descriptor, {**self._bound, **arguments}, self._kept, self._fuse)

    def arguments(
        self, given: Mapping[str, object], *, symbolic: bool = False
    ) -> dict[str, object]:
        """All arguments by name, defaults filled in; with `symbolic`, missing texts are empty.

        Raises:
            UsageError: one is missing, or the program does not take it.
        """
        self._check_instance()
        held = {**self._bound, **given}
        return bind(self._signature, self.name, held, self.where, symbolic=symbolic)

    def defaults(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """The arguments that may be left out, as far as a file can hold them."""
        held = {
            name: p.default
            for name, p in self._signature.parameters.items()
            if p.default is not p.empty
        }
        flat = {name: flatten({name: v}) for name, v in {**held, **self._bound}.items()}
        return {name: (f.template, f.texts) for name, f in flat.items() if not f.opaque}

    def _takes(self, name: str) -> bool:
        parameters = list(self._signature.parameters.values())[1:]
        return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)

    # -- compiling
    def trace(self, **arguments: object) -> Graph:
        """The graph of the program, not optimized: no model, no torch."""
        flat = flatten(self.arguments(arguments, symbolic=True))
        with self._own(Options()).applied():
            return trace_function(self.function, self.name, flat, self.where)

    def _own(self, options: Options) -> Options:
        """The options, with those of the program itself where they say nothing else."""
        if self._fuse is None or options.fuse is not None:
            return options
        return dataclasses.replace(options, fuse=self._fuse)

    def compile(self, options: Options | None = None, **arguments: object) -> Compiled:
        """Trace, optimize and lower the program; kept, so that a second call is free."""
        flat = flatten(self.arguments(arguments, symbolic=True))
        return self.compiled(flat, options or Options(), snapshot(self.function))

    def lower(self, engine: Engine | None = None, **arguments: object) -> Lowered:
        """The program lowered for an engine, ahead of time: `p.lower(engine).compile()`."""
        return Lowered(self, engine, arguments)

    def compiled(
        self, flat: Arguments, options: Options, outside: tuple[object, ...] | None = None
    ) -> Compiled:
        """The compiled program for flattened arguments, made once.

        `outside` is what it reads from elsewhere (`snapshot`), if that is known already. With
        arguments that may change unseen, such as sets and other objects, it is made anew each time.
        """
        outside = snapshot(self.function) if outside is None else outside
        options = self._own(options)

        def make() -> Compiled:
            return compile_function(self.function, self.name, flat, self.where, options)

        if not all(map(fixed, flat.opaque)):
            self._kept.missed()
            return make()
        # ids of the function and of the opaque values are in the key, so they are held with it
        alive = (self.function, *flat.opaque)
        return self._kept.get((*flat.key, options, outside), make, alive)

    def cache_info(self) -> CacheInfo:
        """How often a run, or `compile`, found the program compiled, and how often it did not.

        What a compiled form depends on is its key: shape and static values of the arguments, what
        the function and its helpers read from closures and globals, level and other options. The
        tokenizer and the chat template are not: plans hold texts, and meet them in an engine.
        """
        return self._kept.info()

    def cache_clear(self) -> None:
        """Forget all compiled forms and the counts of `cache_info`."""
        self._kept.clear()

    def compiled_for(
        self,
        flat: Arguments,
        shared: Shared,
        options: Options,
        outside: tuple[object, ...] | None = None,
    ) -> Compiled:
        """Like `compiled`, for a row of a batch whose rows share these texts."""
        compiled = self.compiled(flat, options, outside)
        if shared and all(map(fixed, flat.opaque)) and (known := known_texts(flat, shared)):
            return compiled.knowing(known)
        return compiled

    def shared(self, rows: Iterable[object], options: Options) -> Shared:
        """The texts that rows of arguments have in common, as far as `options` make use of them."""
        first = next((row for row in rows if isinstance(row, Mapping)), None)
        if first is None or not specializes(options):
            return {}
        try:
            return shared_texts(rows, first, flatten(self.arguments(first)))
        except Exception:  # rows may do anything when they are looked at; each will say so itself
            return {}

    def _job(
        self, engine: Engine, eager: bool, seed: int, deadline: float | None, options: Options
    ) -> Job:
        options = self._own(options)
        if eager:
            return EagerJob(self, engine, seed, deadline, options)
        return CompiledJob(self, engine, seed, deadline, options, snapshot(self.function))


@dataclass(frozen=True)
class Lowered:
    """A program with the engine and arguments that it is to be compiled for."""

    program: Program
    engine: Engine | None
    arguments: dict[str, object]

    def compile(self, options: Options | None = None) -> Compiled:
        """Compile it now; runs of the program with such arguments find it compiled."""
        return compile(self.program, options, **self.arguments)


def compile(program: Program, options: Options | None = None, **arguments: object) -> Compiled:
    """Compile a program ahead of time; runs with such arguments find it compiled."""
    return program.compile(options, **arguments)
