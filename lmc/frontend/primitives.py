"""The primitives of the language: what can be appended to a prompt state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.errors import LmcError, Location, UsageError
from lmc.frontend.location import here, unwatched
from lmc.frontend.parameters import gen_params
from lmc.frontend.symbolic import is_symbolic
from lmc.params import MAX_BRANCHES, GenParams, check_choosing, check_top_logprobs, is_count
from lmc.typed import closed, spec_of

__all__ = [
    "Appendable", "Concat", "GenExpr", "RoleExpr", "ScoreExpr", "SelectExpr", "assistant",
    "checked_name", "gen", "need_known", "score", "select", "shown", "system", "template",
    "unordered", "user",
]  # fmt: skip


class Appendable:
    """Something that can be appended to a state; `+` puts appendables and texts in a row."""

    def __add__(self, other: object) -> Concat:
        return Concat((self, *_items(other)))

    def __radd__(self, other: object) -> Concat:
        return Concat((*_items(other), self))


@dataclass(frozen=True, eq=False)
class Concat(Appendable):
    """Several things to append, one after the other."""

    items: tuple[object, ...]

    def __add__(self, other: object) -> Concat:
        return Concat((*self.items, *_items(other)))

    def __radd__(self, other: object) -> Concat:
        return Concat((*_items(other), *self.items))


@dataclass(frozen=True, eq=False)
class GenExpr(Appendable):
    """A generation to append."""

    name: str | None
    params: GenParams
    at: Location | None
    n: int | None = None


@dataclass(frozen=True, eq=False)
class SelectExpr(Appendable):
    """A choice to append."""

    name: str | None
    choices: tuple[str, ...]
    method: str
    temperature: float
    at: Location | None


@dataclass(frozen=True, eq=False)
class ScoreExpr(Appendable):
    """A text to append and to weigh."""

    name: str | None
    text: str
    top_logprobs: int
    at: Location | None


@dataclass(frozen=True, eq=False)
class RoleExpr(Appendable):
    """A whole chat message to append."""

    role: str
    content: object
    at: Location | None


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    min_tokens: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int | str, float] | None = None,
    ignore_eos: bool | None = None,
    n: int | None = None,
    seed: int | None = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    regex: str | None = None,
    json_schema: dict[str, Any] | str | type | None = None,
    ebnf: str | None = None,
    choices: Sequence[str] | None = None,
    type: Any = None,
    whitespace: str | None = None,
    waive: str | Sequence[str] | None = None,
    jump_forward: bool | None = None,
) -> GenExpr:
    """A generation, to be appended to a state; its text becomes the variable `name`.

    A parameter that is left out has the value that the run gives (`program.run(temperature=0.7)`),
    or else the default named here.

    Args:
        name: of the variable; one is made up if left out.
        max_tokens: most tokens to generate, 128; 0 generates nothing.
        min_tokens: so many tokens are generated before an end token or a stop counts, 0.
        stop: a string, or several, that end the text; the one found is left out.
        stop_regex: a pattern, or several: the text ends where `re.search` first finds one in it,
            and that is left out; look-arounds and anchors see the text of this gen.
        stop_token_ids: tokens that end the text, and are left out.
        temperature: 0, the default, takes the most likely token each time; above, tokens are drawn.
        top_p: draw among the fewest tokens whose probabilities reach it; 1 for all.
        top_k: draw among this many tokens; 0 for all.
        min_p: draw among tokens at least this times as likely as the most likely one; 0 for all.
        frequency_penalty: taken from a token's logit each time that it is generated, -2 to 2.
        presence_penalty: taken from the logits of tokens once generated, -2 to 2.
        repetition_penalty: makes tokens of the prompt and generated ones less likely if above 1.
        logit_bias: by token id, or text that is one token, what is added to the logit, up to 100.
        ignore_eos: never end at the model's own end tokens.
        n: so many samples; the variable is a list of them, and the state goes on with the first.
        seed: for this draw, instead of the seed of the run.
        logprobs: `meta` is to have the log-probability of every token, of forced ones too.
        top_logprobs: `meta` is to have so many of the most likely tokens with each, up to 20.
        regex: the text matches it as a whole (`re.fullmatch`).
        json_schema: the text is JSON that fits this schema: a dictionary, JSON text, or a pydantic
            model class, of which only the declared fields are written.
        ebnf: the text follows this grammar, in Lark's notation.
        choices: the text is one of these, the model's own words; `select` weighs them as a whole.
        type: the variable is read as a value of this type, and the text is held to it: int, float,
            bool, str, Literal, Enum, a dataclass, a pydantic model, or lists and unions of these.
        whitespace: blanks in the JSON of `json_schema`: "compact", the default, has none, "pretty"
            is what `json.dumps` writes with `indent=2`, "flexible" leaves them to the model.
        waive: keywords of `json_schema` that are dropped where they cannot be honoured, instead of
            an error.
        jump_forward: take tokens that the constraint forces without asking the model. Fixed text is
            the same either way; asked for it, the model may spell it in other tokens than the
            tokenizer, and then choose otherwise where it has a choice.

    Raises:
        UsageError: a value is out of its range.
    """
    given = {key: value for key, value in locals().items() if key not in ("name", "n")}
    at = here()
    for parameter, value in {"name": name, "n": n, **given}.items():
        need_known(value, f"the parameter {parameter} of a gen")
        for one in _parts(value):
            need_known(one, f"an item of the parameter {parameter} of a gen")
    try:
        with unwatched():  # models of classes are made by code that tries and fails
            given["json_schema"] = _schema_text(json_schema)
            _hold_to_type(given)
        params = gen_params(given)
        if n is not None and not is_count(n):
            raise UsageError(
                f"n is {shown(n)}", hint=f"give the number of samples, 1 to {MAX_BRANCHES}"
            )
    except LmcError as error:
        raise error.at(at) from None
    return GenExpr(checked_name(name, at), params, at, n)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    *,
    method: str = "token_length_normalized",
    temperature: float = 0.0,
) -> SelectExpr:
    """The most likely of `choices`, to be appended to a state; it becomes the variable `name`.

    All choices are weighed in one batch, each tokenized by itself after the prompt. Their order has
    no influence: among equals the one that comes first in code-point order is taken.

    Args:
        name: of the variable; one is made up if left out.
        choices: texts, at least one; equal ones count once, with a warning. An empty one makes the
            call fail when it is done: what a text is, a compiled program knows only then.
        method: what makes the score of a choice: "token_length_normalized", the mean
            log-probability of its tokens; "total_logprob", their sum; "unconditional_normalized",
            the mean of what the prompt adds to them; or "greedy_token", where the first token
            decides, among equal ones the next, and so on.
        temperature: 0 takes the best; above, a choice is drawn with probabilities proportional to
            exp(score / temperature).

    Raises:
        UsageError: there are no choices, or a parameter is out of its range.
    """
    at = here()
    need_known(name, "the name of a variable")
    need_known(method, "the method of a select")
    need_known(temperature, "the temperature of a select")
    if choices is not None and not isinstance(choices, str):
        choices = list(choices)
    if isinstance(choices, str) or not choices or not all(isinstance(c, str) for c in choices):
        raise UsageError(
            f"select() needs a list of texts to choose from, not {shown(choices)}",
            at,
            hint='write select("answer", ["yes", "no"])',
        )
    try:
        check_choosing(method, temperature)
    except UsageError as error:
        raise error.at(at) from None
    return SelectExpr(checked_name(name, at), tuple(choices), method, float(temperature), at)


def score(name: str | None = None, text: str | None = None, *, top_logprobs: int = 0) -> ScoreExpr:
    """A text to append to a state; the variable `name` is its log-probability there, in nats.

    `meta(name)` of the result has the tokens' own ones. The text is tokenized by itself after the
    prompt, as the choices of a select are. Score a part of a prompt by appending it this way.

    Args:
        name: of the variable, a float; one is made up if left out.
        text: to weigh; the empty text is certain (0.0).
        top_logprobs: `meta` is to have so many of the most likely tokens in each place, up to 20.

    Raises:
        UsageError: there is no text, or the number is out of its range.
    """
    at = here()
    need_known(name, "the name of a variable")
    need_known(top_logprobs, "the parameter top_logprobs of a score")
    try:
        check_top_logprobs(top_logprobs)
    except UsageError as error:
        raise error.at(at) from None
    if not isinstance(text, str):
        raise UsageError(
            f"score() needs a text to weigh, not {shown(text)}",
            at,
            hint='write score("fit", "a text")',
        )
    return ScoreExpr(checked_name(name, at), text, top_logprobs, at)


def system(content: object) -> RoleExpr:
    """A system message, to be appended to a state."""
    return RoleExpr("system", content, here())


def user(content: object) -> RoleExpr:
    """A user message, to be appended to a state."""
    return RoleExpr("user", content, here())


def assistant(content: object) -> RoleExpr:
    """An assistant message, to be appended to a state."""
    return RoleExpr("assistant", content, here())


def template(*parts: object) -> Concat:
    """Texts and primitives in a row, as `+` puts them: constrained gens are matched as one.

    Texts, and gens with a constraint, are one template: their text is matched by one automaton, so
    that a gen ends where the model prefers the text behind it, and tokens may run over the seams.
    """
    items = tuple(item for part in parts for item in _items(part))
    for item in items:
        if not isinstance(item, (str, Appendable)):
            raise UsageError(
                f"{shown(item)} cannot be a part of a template",
                here(),
                hint="give texts, gen(), select() and messages; write numbers as f-strings",
            )
    return Concat(items)


def unordered(*texts: str, sep: str = "") -> str:
    """Texts in a row whose order does not matter to the program, as one text.

    They stand in the order given, unless the program is compiled with `reorder_unordered`: then
    those that are the same in all rows come first, so that more of the prompt is shared.

    Args:
        texts: examples, notes, rules; each with what has to stand around it.
        sep: between each two.

    Raises:
        UsageError: one of them is no text.
    """
    for text in (sep, *texts):
        if not isinstance(text, str):
            raise UsageError(
                f"unordered() takes texts, not {shown(text)}",
                here(),
                hint="give texts that are known or read from variables: unordered(a, b, c)",
            )
    symbolic = next((text for text in (sep, *texts) if is_symbolic(text)), None)
    if symbolic is None:
        return sep.join(texts)
    made: str = symbolic._source.pure("text.unordered", sep, *texts)  # type: ignore[attr-defined]
    return made


def _hold_to_type(given: dict[str, Any]) -> None:
    """Put the constraint of a gen's type among its parameters.

    Raises:
        UsageError: it is no type that can be read back, or there is another constraint.
    """
    if given["type"] is None:
        return
    spec = spec_of(given["type"])
    given["type"] = None
    if spec is not None:
        for other in ("regex", "json_schema", "ebnf", "choices"):
            if given[other] is not None:
                raise UsageError(f"type and {other} exclude each other", hint="give one of them")
        given.update(spec.constraint, type=spec.text)


def _schema_text(schema: object) -> str | None:
    """A JSON schema as JSON text; the order of its properties is kept.

    Raises:
        UsageError: it is none.
    """
    if schema is None or type(schema) is str:
        return schema
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        schema = closed(schema.model_json_schema())
    try:
        if isinstance(schema, (dict, bool)):
            return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the json_schema cannot be written as JSON: {error}") from error
    raise UsageError(
        f"json_schema is {shown(schema)}",
        hint="give a dictionary, JSON text, or a pydantic model class",
    )


def checked_name(name: object, at: Location | None) -> str | None:
    """A variable's name, or None where none was given; UsageError for what is no name."""
    if name is not None and (type(name) is not str or not name):
        raise UsageError(
            f"a variable's name must be a text, not {shown(name)}", at, hint="name it first"
        )
    return name


def need_known(value: object, what: str) -> None:
    """End a trace where a text that is not known yet stands for a parameter."""
    if is_symbolic(value):
        value._source.need(f"{what} is not known yet")  # type: ignore[attr-defined]


def _parts(value: object) -> Iterator[object]:
    """What a parameter is made of: all that lists and dictionaries in it hold, each once."""
    seen: set[int] = set()  # a schema may hold itself
    left = [value]
    while left:
        one = left.pop()
        if not isinstance(one, (list, tuple, dict)) or id(one) in seen:
            continue
        seen.add(id(one))
        held = [*one, *one.values()] if isinstance(one, dict) else list(one)
        yield from held
        left += held


def _items(value: object) -> tuple[object, ...]:
    return value.items if isinstance(value, Concat) else (value,)


def shown(value: object) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
