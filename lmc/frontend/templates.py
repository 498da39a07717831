"""Which parts of a row of texts and primitives are matched as one template.

    "Name: " + gen("name", regex=...) + ", age " + gen("age", regex=...) + "."

A run of texts and gens with constraints becomes one model call (`lm.match`). A gen joins its
neighbours if its constraint is an automaton that can be followed by others and nothing else about
the gen ends it or counts its tokens; gens that are drawn differently do not join each other.
Everything else stands alone, and is appended in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmc.params import GenParams

__all__ = ["Run", "runs"]

_OWN = ("max_tokens", "regex", "json_schema", "ebnf", "choices", "whitespace", "waive")
"""What each gen of a template has for itself."""

_SHARED = (
    "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "jump_forward", "logit_bias",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "logprobs", "top_logprobs",
)  # fmt: skip
"""What all gens of a template must have in common."""


@dataclass(slots=True)
class Run:
    """A run that is appended at once: `before`, then each gen with the text behind it.

    Without gens it is text, or one item of another kind. A text may be symbolic.
    """

    before: list[str] = field(default_factory=list)
    gens: list[Any] = field(default_factory=list)
    behind: list[list[str]] = field(default_factory=list)
    other: object = None

    def add(self, text: str) -> None:
        (self.behind[-1] if self.behind else self.before).append(text)

    def add_gen(self, gen: object) -> None:
        self.gens.append(gen)
        self.behind.append([])

    @property
    def is_template(self) -> bool:
        """Whether there is a text beside a gen, or a second gen."""
        return len(self.gens) > 1 or bool(self.gens and (self.before or self.behind[0]))


def runs(
    items: Sequence[object],
    params_of: Callable[[object], GenParams | None],
    joins: Callable[[GenParams], bool],
) -> Iterator[Run]:
    """The runs of a row, in order.

    Args:
        items: texts, gens and other things.
        params_of: those of a gen; None for what is no gen.
        joins: whether the constraint of a gen can be followed by others.
    """
    run = Run()
    for item in items:
        params = params_of(item)
        if isinstance(item, str):
            run.add(item)
        elif params is not None and _may_join(params) and joins(params):
            if run.gens and not _alike(params, params_of(run.gens[-1])):
                yield run
                run = Run()
            run.add_gen(item)
        else:
            yield run
            yield Run(other=item)
            run = Run()
    yield run


def _may_join(params: GenParams) -> bool:
    if params.constraint is None:
        return False
    free = {*_OWN, *_SHARED}
    return all(name in free for name in params.non_default())


def _alike(one: GenParams, other: GenParams | None) -> bool:
    return other is not None and _drawn(one) == _drawn(other)


def _drawn(params: GenParams) -> dict[str, object]:
    held = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    return {name: held[name] for name in _SHARED if name in held}
