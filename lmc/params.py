"""The parameters of model calls, shared by the language, the IR, plans and the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmc.errors import UsageError

__all__ = ["SELECT_METHODS", "Constraint", "GenParams", "check_choosing"]

SELECT_METHODS = (
    "token_length_normalized",
    "greedy_token",
    "unconditional_normalized",
    "total_logprob",
)
WHITESPACE = ("compact", "pretty", "flexible")
_CONSTRAINTS = ("regex", "json_schema", "ebnf", "choices")


def check_choosing(method: object, temperature: object) -> None:
    """Check how a select chooses.

    Raises:
        UsageError: there is no such method, the temperature is out of its range, or the method
            cannot be drawn from.
    """
    if method not in SELECT_METHODS:
        raise UsageError(
            f"select() has no method {method!r}", hint=f"use {' or '.join(SELECT_METHODS)}"
        )
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
        raise UsageError(
            f"temperature is {temperature!r}, must be a number", hint="give temperature= a number"
        )
    if not 0 <= temperature < float("inf"):
        raise UsageError(
            f"temperature is {temperature}", hint="give 0 (the best choice) or a positive number"
        )
    if temperature and method == "greedy_token":
        raise UsageError(
            "method='greedy_token' and temperature exclude each other",
            hint="draw by total_logprob or another method",
        )


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a gen is held to: the arguments of `lmc.constraints.automaton_of`.

    Attributes:
        kind: "regex", "json_schema", "ebnf", "choices" or "stop_regex".
        source: a text; of choices, their texts.
        whitespace, waive: of a JSON schema; see `GenParams`.
    """

    kind: str
    source: str | tuple[str, ...]
    whitespace: str | None = None
    waive: tuple[str, ...] = ()

    @property
    def options(self) -> Mapping[str, Any]:
        """What is said besides kind and source."""
        held = {"whitespace": self.whitespace, "waive": self.waive}
        return {name: value for name, value in held.items() if value}


@dataclass(frozen=True, slots=True)
class GenParams:
    """How one `gen` generates.

    Attributes:
        max_tokens: most tokens to generate; 0 generates nothing.
        stop: strings that end the text; the first to appear does, and is left out.
        stop_regex: patterns that end the text where `re.search` first finds one; left out, too.
        temperature: 0 is greedy; above, logits are divided by it before drawing.
        top_p: keep the fewest most likely tokens whose probabilities reach it.
        top_k: keep this many most likely tokens; 0 or -1 keeps all.
        ignore_eos: the model's end tokens are never chosen.
        seed: overrides the seed of the run for this gen.
        regex: the whole text must match, in the sense of `re.fullmatch`.
        json_schema: the text is JSON that this schema, itself JSON text, accepts.
        ebnf: the text follows this grammar, in Lark's notation.
        choices: the text is one of these.
        whitespace: blanks in the JSON of a schema: "compact" (none, which None stands for too),
            "pretty" or "flexible".
        waive: keywords of the schema that are dropped where they cannot be honoured.
        jump_forward: take tokens that the constraint forces without asking the model.

    Raises:
        UsageError: a value is out of its range.
    """

    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    ignore_eos: bool = False
    seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    choices: tuple[str, ...] | None = None
    whitespace: str | None = None
    waive: tuple[str, ...] = ()
    jump_forward: bool = True

    def __post_init__(self) -> None:
        def refuse(problem: str, hint: str) -> None:
            raise UsageError(problem, hint=hint)

        for name in ("max_tokens", "top_k", "seed"):
            value = getattr(self, name)
            if (isinstance(value, bool) or not isinstance(value, int)) and not (
                name == "seed" and value is None
            ):
                refuse(f"{name} is {value!r}, must be an integer", f"give {name}= an int")
        for name in ("ignore_eos", "jump_forward"):
            if not isinstance(getattr(self, name), bool):
                refuse(f"{name} is {getattr(self, name)!r}", f"give {name}=True or False")
        for name in ("regex", "json_schema", "ebnf"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                refuse(f"{name} is {value!r}, must be a text", f"give {name}= a text")
        if self.choices is not None and not self.choices:
            refuse("choices is empty", "give at least one text")
        given = [n for n in _CONSTRAINTS if getattr(self, n) is not None]
        if len(given) > 1:
            refuse(f"{given[0]} and {given[1]} exclude each other", "give one of them")
        if self.whitespace not in (None, *WHITESPACE):
            refuse(f"whitespace is {self.whitespace!r}", f"give one of {', '.join(WHITESPACE)}")
        if not all(isinstance(keyword, str) for keyword in self.waive):
            refuse(f"waive is {self.waive!r}", "give keywords of the schema, as texts")
        for name in ("whitespace", "waive"):
            if getattr(self, name) and self.json_schema is None:
                refuse(f"{name} is given without json_schema", f"leave {name} out")
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                refuse(f"{name} is {value!r}, must be a number", f"give {name}= a number")
        if self.max_tokens < 0:
            refuse(f"max_tokens is {self.max_tokens}", "give 0 or more")
        if not 0 <= self.temperature < float("inf"):
            refuse(f"temperature is {self.temperature}", "give 0 (greedy) or a positive number")
        if not 0 < self.top_p <= 1:
            refuse(f"top_p is {self.top_p}", "give a number above 0 and up to 1")
        if self.top_k < -1:
            refuse(f"top_k is {self.top_k}", "give a positive integer, or 0 for all tokens")
        for name in ("stop", "stop_regex"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(s, str) for s in value):
                refuse(f"{name} is {value!r}", "give a string or a list of strings")
            if any("\ud800" <= c <= "\udfff" for s in value for c in s):
                refuse(f"{name} is {value!r}, which is no valid text", "leave surrogates out")
        if "" in self.stop:
            refuse("stop holds an empty string", "it would end every text at once; leave it out")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken, so that `draw` has no influence."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def constraint(self) -> Constraint | None:
        """The constraint, if there is one."""
        for kind in _CONSTRAINTS:
            source: str | tuple[str, ...] | None = getattr(self, kind)
            if source is not None:
                return Constraint(kind, source, self.whitespace, self.waive)
        return None

    @property
    def stop_constraints(self) -> tuple[Constraint, ...]:
        """What makes the automata of `stop_regex`."""
        return tuple(Constraint("stop_regex", source) for source in self.stop_regex)

    def non_default(self) -> dict[str, object]:
        """The fields that differ from their defaults, in declared order."""
        return {
            f.name: value
            for f in dataclasses.fields(self)
            if (value := getattr(self, f.name)) != f.default
        }
