"""An engine that answers at once, to time the executor alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from lmc.api import jit
from lmc.frontend.dsl import State, gen
from lmc.runtime.chat import ChatTemplate
from lmc.runtime.engine import EngineCore
from lmc.runtime.executor import Executor
from lmc.runtime.request import Finish, GenRequest, GenResult, Request
from lmc.runtime.target import Target
from lmc.runtime.tokenizer import Tokenizer

__all__ = ["instant_executor"]


class _InstantCore:
    """Answers every gen with the same tokens, one step later."""

    def __init__(self) -> None:
        self._due: list[tuple[GenRequest, Callable[[Any], None]]] = []

    @property
    def has_work(self) -> bool:
        return bool(self._due)

    computing = pressing = overlaps = False  # on no device

    def submit(
        self,
        request: Request,
        on_done: Callable[[Any], None],
        on_text: Callable[[str], None] | None = None,
    ) -> object:
        assert on_text is None, "nothing is streamed"
        assert isinstance(request, GenRequest), "only gens are timed"
        self._due.append((request, on_done))
        return on_done

    def step(self) -> None:
        due, self._due = self._due, []
        for request, done in due:
            result = GenResult([300, 301], 2, "of", "", Finish.LENGTH)
            following = request.follow and request.follow(result)
            if following:
                self._due.append((following, done))
            else:
                done(result)

    def cancel(self, handle: object) -> None:
        pass


@jit
def _talk(s: State, x: str) -> None:
    s += f"About {x}: "
    for n in range(4):
        s += gen(f"part_{n}", max_tokens=2)
        s += "\n"


def instant_executor() -> tuple[Executor, Callable[[Executor, int], int], Callable[[], None]]:
    """An executor, a function that runs rows on it and counts their gens, and one that ends it."""
    tokenizer = Tokenizer.fake()
    template = ChatTemplate(tokenizer.chat_template, tokenizer.named, model="fake")
    executor = Executor(Target(cast(EngineCore, _InstantCore()), tokenizer, template))
    plan = _talk.compile().plan

    def program(executor: Executor, rows: int) -> int:
        futures: list[Future[Any]] = []
        for index in range(rows):
            future: Future[Any] = Future()
            futures.append(future)
            executor.submit_row(plan, ["it"], seed=0, index=index, done=future.set_result)
        return sum(len(future.result().variables) for future in futures)

    return executor, program, executor.close
