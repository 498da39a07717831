"""A program as an interpreter of prompts runs it that does not look ahead: SGLang's, for one.

There, too, a program is a thread; each of its prompts does what it is told in order, and
    fork    waits until the prompt has done all that it was told before
    join    waits until each branch has
so what the function says after that reaches the engine later. lmc's own eager mode waits only where
a text is read. Everything else, the engine with all that it does, is the same for both.

Left out    the request with which SGLang puts a prompt into the cache before a fork, the thread
            that each of its prompts has, and HTTP: these could only make it slower.
Source      `python/sglang/lang/interpreter.py` of SGLang, `StreamExecutor.fork` and
            `ProgramStateGroup.join`, as of 2025.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from lmc.api import Program, jit
from lmc.frontend.dsl import State
from lmc.frontend.forks import Forks

__all__ = ["interpreted"]


def interpreted(program: Program) -> Program:
    """The same program, to be run eagerly, with the waits of an interpreter."""
    function = program.function

    @functools.wraps(function)
    def run(s: State, *args: Any, **kwargs: Any) -> object:
        prompt: Any = _Prompt(s)
        return function(prompt, *args, **kwargs)

    told: Callable[..., object] = run
    return jit(told)


class _Prompt:
    """A prompt state whose forks wait."""

    def __init__(self, state: State) -> None:
        self.state = state

    def __iadd__(self, item: object) -> _Prompt:
        self.state += item
        return self

    def __getitem__(self, name: str) -> Any:
        return self.state[name]

    def fork(self, n: int = 1) -> _Branches:
        _wait(self.state)
        return _Branches(self.state.fork(n))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


class _Branches:
    """The branches of a fork, each a `_Prompt`."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks

    def __len__(self) -> int:
        return len(self._forks)

    def __iter__(self) -> Iterator[_Prompt]:
        return map(_Prompt, self._forks)

    def __iadd__(self, item: object) -> _Branches:
        self._forks += item
        return self

    def join(self) -> None:
        for branch in self._forks:
            _wait(branch)
        self._forks.join()


def _wait(state: State) -> None:
    """Wait until all calls of a state have been answered."""
    state.text()
