"""The parameters of model calls, shared by the language, the IR, plans and the runtime."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from lmc.errors import UsageError

__all__ = [
    "MAX_BRANCHES", "MAX_TOP_LOGPROBS", "SELECT_METHODS", "TEMPERATURES", "TOP_K", "Constraint",
    "GenParams", "LogitBias", "check_choosing", "check_top_logprobs", "is_count",
]  # fmt: skip

REASONING = ("<think>", "</think>")
"""What stands around the part in which a model thinks before it answers."""

SELECT_METHODS = (
    "token_length_normalized",
    "greedy_token",
    "unconditional_normalized",
    "total_logprob",
)
WHITESPACE = ("compact", "pretty", "flexible")
MAX_TOP_LOGPROBS = 20
MAX_BRANCHES = 4096  # of a fork, and samples of a gen; rows of a batch have no such bound
TEMPERATURES = (1e-6, 1e6)
"""Between these, logits that are divided by a temperature are finite numbers of 32 bits.

Below, the most likely token is taken whatever is drawn; above, all are equally likely.
"""
TOP_K = 2**31 - 1
_CONSTRAINTS = ("regex", "json_schema", "ebnf", "choices")

LogitBias = tuple[tuple[int | str, float], ...]


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
    _temperature("temperature", temperature)
    if temperature and method == "greedy_token":
        raise UsageError(
            "method='greedy_token' and temperature exclude each other",
            hint="draw by total_logprob or another method",
        )


def is_count(value: object) -> bool:
    """Whether so many branches, or samples, may be asked for."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return number and 1 <= cast(int, value) <= MAX_BRANCHES


def check_top_logprobs(count: object) -> None:
    """Check how many of the most likely tokens are wanted.

    Raises:
        UsageError: it is no number, or above the limit.
    """
    _CHECKS["top_logprobs"]("top_logprobs", count)


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

    The logits of a token are changed in this order: repetition penalty, frequency and presence
    penalty, logit bias; then come the constraint, the temperature, min_p, top_k, top_p.

    Attributes:
        max_tokens: most tokens to generate; 0 generates nothing.
        min_tokens: so many tokens are generated before an end token, a stop token or a stop counts;
            a constraint that leaves nothing but the end goes first.
        stop: strings that end the text; the first to appear does, and is left out.
        stop_regex: patterns that end the text where `re.search` first finds one; left out, too.
        stop_token_ids: tokens that end the text; left out, too.
        temperature: 0 is greedy; above, logits are divided by it before drawing.
        top_p: keep the fewest most likely tokens whose probabilities reach it.
        top_k: keep this many most likely tokens; 0 or -1 keeps all.
        min_p: keep the tokens that are at least this times as likely as the most likely one.
        frequency_penalty: is taken from a token's logit for each time that it was generated.
        presence_penalty: is taken from the logits of tokens that were generated.
        repetition_penalty: divides positive logits of tokens that were generated or stand in the
            prompt, and multiplies negative ones.
        logit_bias: is added to the logits of tokens, given by id, or by text that is one token.
        ignore_eos: the model's end tokens are never chosen.
        seed: overrides the seed of the run for this gen.
        logprobs: log-probabilities of all tokens are wanted, also of those that a constraint
            forces; these are then computed one by one.
        top_logprobs: so many of the most likely tokens are wanted with each; implies `logprobs`.
        regex: the whole text must match, in the sense of `re.fullmatch`.
        json_schema: the text is JSON that this schema, itself JSON text, accepts.
        ebnf: the text follows this grammar, in Lark's notation.
        choices: the text is one of these.
        whitespace: blanks in the JSON of a schema: "compact" (none, which None stands for too),
            "pretty" or "flexible".
        waive: keywords of the schema that are dropped where they cannot be honoured.
        type: the type that the text is read back as, by its text; see `lmc.typed`.
        jump_forward: take tokens that the constraint forces without asking the model.

    Raises:
        UsageError: a value is out of its range.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: LogitBias = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    choices: tuple[str, ...] | None = None
    whitespace: str | None = None
    waive: tuple[str, ...] = ()
    type: str | None = None
    jump_forward: bool = True

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
        if self.min_tokens > self.max_tokens:
            _refuse(
                f"min_tokens is {self.min_tokens} and max_tokens is {self.max_tokens}",
                "give a min_tokens that is not above max_tokens",
            )
        given = [n for n in _CONSTRAINTS if getattr(self, n) is not None]
        if len(given) > 1:
            _refuse(f"{given[0]} and {given[1]} exclude each other", "give one of them")
        for name in ("whitespace", "waive"):
            if getattr(self, name) and self.json_schema is None:
                _refuse(f"{name} is given without json_schema", f"leave {name} out")

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

    @property
    def scored(self) -> bool:
        """Whether the log-probability of each token is wanted."""
        return self.logprobs or self.top_logprobs > 0

    def non_default(self) -> dict[str, object]:
        """The fields that differ from their defaults, in declared order."""
        return {
            f.name: value
            for f in dataclasses.fields(self)
            if (value := getattr(self, f.name)) != f.default
        }


# ------------------------------------------------------------------------------------ checks


def _refuse(problem: str, hint: str) -> NoReturn:
    raise UsageError(problem, hint=hint)


class _Int:
    """An integer of a range."""

    def __init__(self, low: float, high: float, hint: str, *, none: bool = False) -> None:
        self._low, self._high, self._hint, self._none = low, high, hint, none

    def __call__(self, name: str, value: object) -> None:
        if value is None and self._none:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            _refuse(f"{name} is {value!r}, must be an integer", f"give {name}= an int")
        if not self._low <= value <= self._high:
            _refuse(f"{name} is {value}", self._hint)


class _Number:
    """A number of a range; `above` means that the lower bound is not in it."""

    def __init__(self, low: float, high: float, hint: str, *, above: bool = False) -> None:
        self._low, self._high, self._hint, self._above = low, high, hint, above

    def __call__(self, name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            _refuse(f"{name} is {value!r}, must be a number", f"give {name}= a number")
        inside = self._low < value if self._above else self._low <= value
        if not inside or not value <= self._high or value == math.inf:
            _refuse(f"{name} is {value}", self._hint)


def _temperature(name: str, value: object) -> None:
    low, high = TEMPERATURES
    hint = f"give 0 (the most likely token or choice), or a number from {low:g} to {high:g}"
    if value != 0 or isinstance(value, bool):
        _Number(low, high, hint)(name, value)


def _bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        _refuse(f"{name} is {value!r}", f"give {name}=True or False")


def _text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        _refuse(f"{name} is {value!r}, must be a text", f"give {name}= a text")


def _stops(name: str, value: Any) -> None:  # noqa: ANN401 - it is checked here
    if not isinstance(value, tuple) or not all(isinstance(s, str) for s in value):
        _refuse(f"{name} is {value!r}", "give a string or a list of strings")
    if any("\ud800" <= c <= "\udfff" for s in value for c in s):
        _refuse(f"{name} is {value!r}, which is no valid text", "leave surrogates out")
    if name == "stop" and "" in value:
        _refuse("stop holds an empty string", "it would end every text at once; leave it out")


def _token_ids(name: str, value: Any) -> None:  # noqa: ANN401 - it is checked here
    if not isinstance(value, tuple) or not all(type(t) is int and t >= 0 for t in value):
        _refuse(f"{name} is {value!r}", "give token ids, integers of 0 or more")


def _choices(name: str, value: object) -> None:
    if value is not None and not value:
        _refuse(f"{name} is empty", "give at least one text")


def _bias(name: str, value: Any) -> None:  # noqa: ANN401 - it is checked here
    hint = f"give {name}= a dictionary from token ids or texts to numbers"
    if not isinstance(value, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    ):
        _refuse(f"{name} is {value!r}", hint)
    for key, number in value:
        if type(key) not in (int, str) or key == "" or (type(key) is int and key < 0):
            _refuse(f"{name} has the key {key!r}", hint)
        if type(number) not in (int, float) or not -100 <= number <= 100:
            _refuse(f"{name} of {key!r} is {number!r}", "give a number from -100 to 100")
    if len({key for key, _ in value}) != len(value):
        _refuse(f"{name} has a key twice", "give each token once")


def _whitespace(name: str, value: object) -> None:
    if value not in (None, *WHITESPACE):
        _refuse(f"{name} is {value!r}", f"give one of {', '.join(WHITESPACE)}")


def _waive(name: str, value: Any) -> None:  # noqa: ANN401 - it is checked here
    if not isinstance(value, tuple) or not all(isinstance(keyword, str) for keyword in value):
        _refuse(f"{name} is {value!r}", "give keywords of the schema, as texts")


_COUNT = _Int(0, math.inf, "give 0 or more")
_PENALTY = _Number(-2, 2, "give a number from -2 to 2")
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "max_tokens": _COUNT,
    "min_tokens": _COUNT,
    "stop": _stops,
    "stop_regex": _stops,
    "stop_token_ids": _token_ids,
    "temperature": _temperature,
    "top_p": _Number(0, 1, "give a number above 0 and up to 1", above=True),
    "top_k": _Int(-1, TOP_K, "give a positive integer of 31 bits, or 0 for all tokens"),
    "min_p": _Number(0, 1, "give a number from 0 to 1"),
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "repetition_penalty": _Number(0.01, 10, "give a number from 0.01 to 10"),
    "logit_bias": _bias,
    "ignore_eos": _bool,
    "seed": _Int(-math.inf, math.inf, "", none=True),
    "logprobs": _bool,
    "top_logprobs": _Int(0, MAX_TOP_LOGPROBS, f"give an integer from 0 to {MAX_TOP_LOGPROBS}"),
    "regex": _text,
    "json_schema": _text,
    "ebnf": _text,
    "choices": _choices,
    "whitespace": _whitespace,
    "waive": _waive,
    "type": _text,
    "jump_forward": _bool,
}
