"""`lmc.Engine`: a local engine with a plain way to generate, without a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from lmc.constraints.known import automaton_for
from lmc.errors import LmcError, UsageError
from lmc.frontend.dsl import gen
from lmc.plan import Block, Extend, Gen, Param, Plan, Reg, Ret, Start
from lmc.runtime.load import LocalEngine
from lmc.runtime.results import CallMeta, RowResult

__all__ = ["Engine", "Generation"]


@dataclass(frozen=True)
class Generation:
    """What `Engine.generate` gave for one prompt.

    Attributes:
        text: the generated text, the stop and the end token left out.
        token_ids: the generated tokens.
        finish_reason: "stop", "eos", "length" or "constraint"; None after an error.
        error: None, or why this prompt failed.
        meta: all that is known of the call, log-probabilities and what stopped it among it; None
            after an error.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    error: LmcError | None = None
    meta: CallMeta | None = None


class Engine(LocalEngine):  # noqa: D101 - as its base
    __doc__ = LocalEngine.__doc__

    def generate(
        self,
        prompts: str | Sequence[str],
        max_tokens: int = 128,
        *,
        seed: int | None = None,
        **options: Any,  # noqa: ANN401 - the parameters of `lmc.gen`
    ) -> list[Generation]:
        """Go on with each prompt; all are computed together.

        Args:
            prompts: one text or several.
            max_tokens: most tokens for each.
            seed: of the draws; by default the engine's.
            options: the other parameters of `lmc.gen`.

        Raises:
            UsageError, ConstraintError: a parameter is wrong. A prompt that fails has its error in
                its own result.
        """
        texts = _texts(prompts)
        asked = gen("text", max_tokens, **options)
        if asked.n is not None:
            raise UsageError("generate() takes no n", hint="give the prompt n times")
        params = asked.params
        held = ((params.constraint,) if params.constraint else ()) + params.stop_constraints
        constraints = tuple(automaton_for(one).to_json() for one in held)
        first_stop = len(held) - len(params.stop_constraints)
        plan = Plan(
            name="generate",
            params=(Param(("prompt",), Reg(0)),),
            static='{"dict": [["prompt", {"$": 0}]]}',
            registers=5,
            body=Block(
                (
                    Start(into=Reg(1)),
                    Extend(into=Reg(2), state=Reg(1), parts=(Reg(0),)),
                    Gen(
                        into=Reg(3),
                        into_text=Reg(4),
                        state=Reg(2),
                        name="text",
                        params=params,
                        draw=0,
                        constraint=0 if params.constraint else None,
                        stops=tuple(range(first_stop, len(held))),
                    ),
                    Ret(state=Reg(3), names=("text",), values=(Reg(4),)),
                )
            ),
            constraints=constraints,
        )
        seed = self.seed if seed is None else seed
        futures: list[Future[RowResult]] = []
        cancels = []
        for index, prompt in enumerate(texts):
            future: Future[RowResult] = Future()
            futures.append(future)
            handle = self.executor.submit_row(
                plan, [prompt], seed=seed, index=index, done=future.set_result
            )
            cancels.append(handle.cancel)
        try:
            return [_generation(future.result()) for future in futures]
        except BaseException:
            for cancel in cancels:
                cancel()
            raise


def _texts(prompts: object) -> list[str]:
    given = [prompts] if isinstance(prompts, str) else prompts
    texts: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(
                f"a prompt is {text!r}", hint="give generate() a text, or a list of texts"
            )
    return texts


def _generation(row: RowResult) -> Generation:
    if row.error is not None:
        return Generation("", (), None, row.error)
    meta = row.meta["text"]
    return Generation(row.variables["text"], meta.token_ids, meta.finish_reason, meta=meta)
