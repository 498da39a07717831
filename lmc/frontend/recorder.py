"""What a program's primitives are told to: the tracer and the eager runner are the two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lmc.errors import Location
from lmc.frontend.tools import Tool
from lmc.frontend.variables import Life, Made
from lmc.params import GenParams

__all__ = ["Recorder", "Ref"]

Ref = Any
"""A recorder's own name for a state or a text: an IR value, or a register."""


class Recorder(Protocol):
    """What a program's primitives are told to."""

    def start(self, at: Location | None) -> Ref:
        """An empty prompt."""

    def extend(self, state: Ref, part: str | Made, at: Location | None) -> Ref: ...

    def role(self, state: Ref, role: str, edge: str, at: Location | None) -> Ref: ...

    def gen(
        self,
        state: Ref,
        name: str,
        params: GenParams,
        at: Location | None,
        sample: int | None = None,
    ) -> tuple[Ref, Ref]:
        """A model call; `sample` is its number where several are drawn from one state."""

    def select(
        self,
        state: Ref,
        name: str,
        choices: Sequence[str],
        method: str,
        temperature: float,
        at: Location | None,
    ) -> tuple[Ref, Ref]: ...

    def score(
        self, state: Ref, name: str, text: str, top_logprobs: int, at: Location | None
    ) -> tuple[Ref, Ref]: ...
    def row(self, parts: Sequence[str | Made], at: Location | None) -> Ref:
        """Texts in a row, as a text of its own."""

    def text(self, state: Ref, at: Location | None) -> Ref:
        """All text of a prompt, markup of the chat template included."""

    def match(
        self,
        state: Ref,
        gens: Sequence[tuple[str, GenParams]],
        texts: Sequence[str],
        heal: bool,
        at: Location | None,
    ) -> tuple[Ref, Ref, Sequence[Ref]]:
        """Fill a template: each gen is followed by its text; see `lmc.ir.ops.lm.Match`.

        Returns:
            the state, the whole text, and what each gen wrote.
        """

    def joins(self, params: GenParams, at: Location | None) -> bool:
        """Whether the constraint of a gen can be a part of a template."""

    def held(self, variable: Any, at: Location | None) -> Ref:
        """What a variable holds, as one value: a list for a list."""

    def race(self, lives: Sequence[Life], k: int, at: Location | None) -> tuple[Ref, ...]:
        """The numbers of the `k` branches whose calls make the fewest tokens; and how many."""

    def pick(self, index: Ref, items: Sequence[Ref], at: Location | None) -> Ref:
        """Item number `index`, which may be a state."""

    def attempt(self, ref: Ref, at: Location | None) -> Ref:
        """The value, or the error with which it failed."""

    def read(self, ref: Ref) -> Any: ...

    def moved(self, before: Ref, after: Ref) -> Ref:
        """The state `after` as what goes on where `before` was."""

    def branch(self, state: Ref, index: int) -> Ref:
        """The state for branch `index` of a fork: a second use of the same value."""

    def prepare(self, function: Callable[..., object]) -> Callable[..., object]:
        """The function of a program that is called inside another one, ready to be run."""

    def call(
        self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: Location | None
    ) -> Any:
        """What a tool gives."""

    def typed(self, ref: Ref, type_text: str, name: str) -> None:
        """Have the text of a gen be read as a value of its type."""

    def known(self, value: object, what: str) -> Any:
        """`value` where it must be known before the program runs; may end the trace."""
