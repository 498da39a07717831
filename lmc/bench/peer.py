"""A peer for comparison: plain transformers, batched, with the common prefix computed once.

This is what a careful user writes without a runtime: all calls that are due at the same time go
through one left-padded batch; the tokens that they all begin with are computed once and their
cache is repeated for the batch. Constrained generation is left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from lmc.api import Program
from lmc.errors import Location, UsageError
from lmc.frontend.dsl import Recorder, State
from lmc.frontend.tools import Tool
from lmc.params import GenParams
from lmc.runtime.chat import ChatTemplate
from lmc.runtime.context import Context
from lmc.runtime.request import Finish, GenResult, tokens_of
from lmc.runtime.tokenizer import Tokenizer

__all__ = ["Peer"]


@dataclass
class _Call:
    """A model call that waits for the next batch."""

    prompt: list[int]
    params: GenParams | None = None
    choices: list[list[int]] | None = None
    result: Any = None


class Peer:
    """Runs programs on a transformers model.

    Attributes:
        prompt_tokens, computed_tokens: sent, and computed for prompts, since `reset`.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        import inspect

        self._model = model
        self.tokenizer = tokenizer
        self.template = template
        taken = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in taken else "past_key_values"
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        self.prompt_tokens = 0
        self.computed_tokens = 0

    def run(self, program: Program, rows: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
        """Run a program on rows, in rounds: each batch holds the calls of all rows that are due."""
        runs = [_Run(self, program, row) for row in rows]
        for run in runs:
            run.advance()
        while True:
            due = [call for run in runs for call in run.take()]
            if not due:
                return [run.variables for run in runs]
            gens = [call for call in due if call.params is not None]
            selects = [call for call in due if call.choices is not None]
            if gens:
                self._generate(gens)
            if selects:
                self._choose(selects)
            for run in runs:
                run.advance()

    # ------------------------------------------------------------------ batches

    def _generate(self, calls: list[_Call]) -> None:
        import torch

        steps = max(call.params.max_tokens for call in calls if call.params)
        hot = [call.params.temperature if call.params else 0.0 for call in calls]
        logits, cache, mask = self._prompt([call.prompt for call in calls], 1)
        made: list[list[int]] = [[] for _ in calls]
        for step in range(steps):
            last = logits[:, -1].float()
            if any(hot):
                heat = torch.tensor(hot).clamp(min=1e-6)[:, None]
                tokens = torch.multinomial((last / heat).softmax(-1), 1)
            else:
                tokens = last.argmax(-1, keepdim=True)
            for row, token in zip(made, tokens[:, 0].tolist(), strict=True):
                row.append(token)
            if step + 1 < steps:
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
                position = (mask.sum(-1, keepdim=True) - 1).clamp(min=0)
                logits, cache = self._forward(tokens, mask, position, cache, 1)
        for call, row in zip(calls, made, strict=True):
            assert call.params is not None
            call.result = row[: call.params.max_tokens]

    def _choose(self, calls: list[_Call]) -> None:
        rows, spans = [], []
        for call in calls:
            for choice in call.choices or ():
                rows.append(call.prompt + choice)
                spans.append(choice)
        keep = max(map(len, spans)) + 1
        logits, _, _ = self._prompt(rows, keep)
        scores = []
        for row, choice in zip(logits.float().log_softmax(-1), spans, strict=True):
            picked = [float(row[i - len(choice) - 1, t]) for i, t in enumerate(choice)]
            scores.append(sum(picked) / len(picked))
        for call in calls:
            mine = scores[: len(call.choices or ())]
            del scores[: len(mine)]
            call.result = mine.index(max(mine))

    def _prompt(self, rows: list[list[int]], keep: int) -> tuple[Any, Any, Any]:
        """Logits of the last `keep` positions of each row, the cache, and the attention mask."""
        import torch

        self.prompt_tokens += sum(map(len, rows))
        common = 0
        if len(rows) > 1:
            shortest = min(map(len, rows)) - keep
            while common < shortest and len({row[common] for row in rows}) == 1:
                common += 1
        cache = None
        if common >= 16:
            self.computed_tokens += common
            shared = torch.tensor([rows[0][:common]])
            position = torch.arange(common)[None]
            _, cache = self._forward(shared, torch.ones_like(shared), position, None, 1)
            cache.batch_repeat_interleave(len(rows))
        else:
            common = 0
        width = max(map(len, rows)) - common
        self.computed_tokens += width * len(rows)
        pads = [width - len(row) + common for row in rows]
        tokens = torch.tensor([[0] * n + row[common:] for n, row in zip(pads, rows, strict=True)])
        mask = torch.tensor(
            [[1] * common + [0] * n + [1] * (width - n) for n in pads], dtype=torch.long
        )
        position = (mask.cumsum(-1) - 1).clamp(min=0)[:, common:]
        logits, cache = self._forward(tokens, mask, position, cache, keep)
        return logits, cache, mask

    def _forward(
        self,
        tokens: Any,
        mask: Any,
        position: Any,
        cache: Any,
        keep: int,
    ) -> tuple[Any, Any]:
        out = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=position,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_name: cache},
        )
        return out.logits, getattr(out, self._cache_name)


class _Run:
    """A row: its function runs on a thread of its own and stops at each read."""

    def __init__(self, peer: Peer, program: Program, row: Mapping[str, object]) -> None:
        self._peer = peer
        self._calls: list[_Call] = []
        self._asked = threading.Event()
        self._over = False
        self.variables: dict[str, Any] = {}
        arguments = program.arguments(row)
        self._thread = threading.Thread(
            target=self._work, args=(program, arguments), daemon=True, name="peer"
        )
        self._thread.start()

    def _work(self, program: Program, arguments: dict[str, object]) -> None:
        state = State(cast(Recorder, self), _Lazy(Context()))  # as much of one as is used
        try:
            program.function(state, **arguments)
            for name, ref in state._variables.items():
                self.variables[name] = self._plain(ref)
        finally:
            self._over = True
            self._asked.set()

    def _plain(self, ref: Any) -> Any:
        return [self._plain(item) for item in ref] if isinstance(ref, list) else self.read(ref)

    def advance(self) -> None:
        """Go on until the function waits for a call, or is over."""
        self._asked.wait()
        if not self._over:
            self._asked.clear()

    def take(self) -> list[_Call]:
        """The calls to serve now; the function goes on once they have their results."""
        calls, self._calls = self._calls, []
        return calls

    # -- the recorder of its states
    def extend(self, state: _Lazy, text: str, at: Location | None) -> _Lazy:
        return _Lazy(lambda: state.value.extend(text))

    def role(self, state: _Lazy, role: str, edge: str, at: Location | None) -> _Lazy:
        return _Lazy(lambda: state.value.role(role, edge, self._peer.template))

    def gen(
        self,
        state: _Lazy,
        name: str,
        params: GenParams,
        at: Location | None,
        sample: int | None = None,
    ) -> tuple[_Lazy, _Lazy]:
        return self._call(state, params=params)

    def select(
        self,
        state: _Lazy,
        name: str,
        choices: Sequence[str],
        method: str,
        temperature: float,
        at: Location | None,
    ) -> tuple[_Lazy, _Lazy]:
        tokens = [self._peer.tokenizer.encode(choice, first=False) for choice in choices]
        return self._call(state, choices=tokens)

    def score(
        self, state: _Lazy, name: str, text: str, top_logprobs: int, at: Location | None
    ) -> tuple[_Lazy, _Lazy]:
        raise UsageError("the peer of the benchmarks has no score()", at)

    def call(
        self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: Location | None
    ) -> Any:
        raise UsageError("the peer of the benchmarks has no tools", at)

    def _call(self, state: _Lazy, **what: Any) -> tuple[_Lazy, _Lazy]:
        tokenizer = self._peer.tokenizer
        settled = state.value.settle(tokenizer)
        call = _Call(prompt=tokens_of(settled.keys).tolist(), **what)
        self._calls.append(call)

        def finish() -> tuple[Context, str]:
            if call.result is None:
                self._asked.set()
                while call.result is None:
                    time.sleep(0.0002)
            tokens = call.result if call.choices is None else call.choices[call.result]
            text = tokenizer.decode(tokens)
            result = GenResult(list(tokens), len(tokens), text, "", Finish.LENGTH)
            return settled.after_gen(result), text

        both = _Lazy(finish)
        return _Lazy(lambda: both.value[0]), _Lazy(lambda: both.value[1])

    def branch(self, state: Any, index: int) -> Any:
        return state

    def joins(self, params: GenParams, at: Location | None) -> bool:
        del params, at
        return False  # it has no constraints, so no templates either

    def match(
        self,
        state: Any,
        gens: Sequence[tuple[str, GenParams]],
        texts: Sequence[str],
        heal: bool,
        at: Location | None,
    ) -> NoReturn:
        del state, gens, texts, heal
        raise UsageError("the peer fills no templates", at)

    def read(self, ref: _Lazy) -> Any:
        return ref.value

    def prepare(self, function: Callable[..., object]) -> Callable[..., object]:
        return function

    def known(self, value: object, what: str) -> Any:
        return value


class _Lazy:
    """A value that is computed when it is first asked for."""

    def __init__(self, value: Any) -> None:
        self._make = value if callable(value) else None
        self._value = None if self._make else value

    @property
    def value(self) -> Any:
        if self._make is not None:
            self._value = self._make()
            self._make = None
        return self._value
