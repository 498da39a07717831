"""What a program may say: the prompt state, its forks, and the primitives appended to it.

A `State` is a handle on an immutable prompt state: `s += x` makes a new state and moves the handle.
It says what happens to a `Recorder`; the tracer and the eager runner are the two of them.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from lmc.errors import LmcError, Location, UsageError
from lmc.frontend.blocks import Block, Mark, Message, Naming
from lmc.frontend.forks import Forks
from lmc.frontend.location import here, unwatched
from lmc.frontend.parameters import gen_params
from lmc.frontend.symbolic import is_symbolic
from lmc.frontend.templates import Run, runs
from lmc.frontend.tools import Tool
from lmc.frontend.variables import (
    Entry,
    Given,
    Life,
    Made,
    Row,
    check_known,
    copied,
    entries_since,
)
from lmc.params import REASONING, GenParams, check_choosing
from lmc.typed import closed, spec_of

__all__ = [
    "Forks", "GenExpr", "Mark", "Recorder", "RoleExpr", "ScoreExpr", "SelectExpr",
    "State", "assistant", "gen", "score", "select", "system", "template", "user",
]  # fmt: skip

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

    def score(self, state: Ref, name: str, text: str, at: Location | None) -> tuple[Ref, Ref]: ...
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


# ------------------------------------------------------------------------------- primitives


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
        _known(value, f"the parameter {parameter} of a gen")
        if isinstance(value, (list, tuple)):
            for one in value:
                _known(one, f"an item of the parameter {parameter} of a gen")
    for key in logit_bias or ():
        _known(key, "a token of the logit_bias of a gen")
    try:
        with unwatched():  # models of classes are made by code that tries and fails
            given["json_schema"] = _schema_text(json_schema)
            _hold_to_type(given)
        params = gen_params(given)
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise UsageError(f"n is {_shown(n)}", hint="give the number of samples, 1 or more")
    except LmcError as error:
        raise error.at(at) from None
    return GenExpr(_name(name, at), params, at, n)


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
        choices: texts, at least one, none empty; equal ones count once, with a warning.
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
    _known(name, "the name of a variable")
    _known(method, "the method of a select")
    _known(temperature, "the temperature of a select")
    if choices is not None and not isinstance(choices, str):
        choices = list(choices)
    if isinstance(choices, str) or not choices or not all(isinstance(c, str) for c in choices):
        raise UsageError(
            f"select() needs a list of texts to choose from, not {_shown(choices)}",
            at,
            hint='write select("answer", ["yes", "no"])',
        )
    if any(type(c) is str and not c for c in choices):
        raise UsageError("select() has an empty choice", at, hint="leave it out")
    try:
        check_choosing(method, temperature)
    except UsageError as error:
        raise error.at(at) from None
    return SelectExpr(_name(name, at), tuple(choices), method, float(temperature), at)


def score(name: str | None = None, text: str | None = None) -> ScoreExpr:
    """A text to append to a state; the variable `name` is its log-probability there, in nats.

    `meta(name)` of the result has the tokens' own ones. The text is tokenized by itself after the
    prompt, as the choices of a select are. Score a part of a prompt by appending it this way.

    Args:
        name: of the variable, a float; one is made up if left out.
        text: to weigh; the empty text is certain (0.0).

    Raises:
        UsageError: there is no text.
    """
    at = here()
    _known(name, "the name of a variable")
    if not isinstance(text, str):
        raise UsageError(
            f"score() needs a text to weigh, not {_shown(text)}",
            at,
            hint='write score("fit", "a text")',
        )
    return ScoreExpr(_name(name, at), text, at)


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
                f"{_shown(item)} cannot be a part of a template",
                here(),
                hint="give texts, gen(), select() and messages; write numbers as f-strings",
            )
    return Concat(items)


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
    except (TypeError, ValueError) as error:
        raise UsageError(f"the json_schema cannot be written as JSON: {error}") from error
    raise UsageError(
        f"json_schema is {_shown(schema)}",
        hint="give a dictionary, JSON text, or a pydantic model class",
    )


def _name(name: object, at: Location | None) -> str | None:
    if name is not None and (type(name) is not str or not name):
        raise UsageError(
            f"a variable's name must be a text, not {_shown(name)}", at, hint="name it first"
        )
    return name


def _variable(name: object, at: Location | None) -> str:
    found = _name(name, at)
    if found is None:
        raise UsageError("the variable has no name", at, hint='give one, as in s.var("x")')
    return found


def _copied(value: object, at: Location | None) -> Any:
    if isinstance(value, (State, Forks, Mark)):
        raise UsageError(
            "a prompt state cannot be the value of a variable",
            at,
            hint="keep it in a variable of Python",
        )
    try:
        return copied(value)
    except RecursionError as error:
        raise UsageError("the value of a variable holds itself", at) from error


def _known(value: object, what: str) -> None:
    """End a trace where a text that is not known yet stands for a parameter."""
    if is_symbolic(value):
        value._source.need(f"{what} is not known yet")  # type: ignore[attr-defined]


def _items(value: object) -> tuple[object, ...]:
    return value.items if isinstance(value, Concat) else (value,)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------ states


class State:
    """A prompt under construction. Programs get one as their first argument."""

    def __init__(self, recorder: Recorder, ref: Ref) -> None:
        self._recorder = recorder
        self._ref = ref
        self._variables: dict[str, Ref] = {}
        self._log: Entry | None = None  # the newest thing that was appended
        self._open: tuple[Block, ...] = ()  # the `with` blocks that it is inside of
        self._closed: str | None = None
        self._life = Life()
        self._unnamed = 0

    @property
    def _role(self) -> str | None:
        """The role of the message that is open, if one is."""
        return next((block.role for block in self._open if isinstance(block, Message)), None)

    # -- appending
    def __iadd__(self, item: object) -> State:
        self._append(item, here())
        return self

    def extend(self, item: object) -> State:
        """Append a text, a variable, a primitive, or a list of these."""
        self._append(item, here())
        return self

    def _append(self, item: object, at: Location | None) -> None:
        self._check_open(at)
        if isinstance(item, str):
            self._ref = self._recorder.extend(self._ref, item, at)
            self._log = Entry(self._log, "text", item)
        elif isinstance(item, GenExpr):
            where = item.at or at
            name = self._named(item.name, "gen")
            before = self._ref
            first = None if item.n is None else 0
            self._ref, text = self._recorder.gen(before, name, item.params, where, first)
            self._note_call(name, text, Made(text))
            self._note_type(name, text, item.params)
            if item.n is not None:
                more = [
                    self._recorder.gen(before, name, item.params, where, nth)[1]
                    for nth in range(1, item.n)
                ]
                for one in more:
                    self._note_type(name, one, item.params)
                self._variables[name] = [text, *more]
                self._life.calls += more
        elif isinstance(item, SelectExpr):
            where = item.at or at
            self._ref, text = self._recorder.select(
                self._ref,
                name := self._named(item.name, "select"),
                item.choices,
                item.method,
                item.temperature,
                where,
            )
            self._note_call(name, text, Made(text))
        elif isinstance(item, ScoreExpr):
            self._ref, value = self._recorder.score(
                self._ref, name := self._named(item.name, "score"), item.text, item.at or at
            )
            self._note_call(name, value, item.text)
        elif isinstance(item, RoleExpr):
            with Message(self, item.role, item.at or at):
                self._append(item.content, item.at or at)
        elif isinstance(item, Concat):
            self._append_row(item, at)
        elif isinstance(item, (list, tuple)):
            for part in item:
                self._append(part, at)
        else:
            raise UsageError(
                f"{_shown(item)} cannot be appended to a prompt",
                at,
                hint="append a text, gen(), select(), a message, or a list of these; "
                "write numbers as f-strings",
            )

    def _note_call(self, name: str, value: Ref, said: str | Made) -> None:
        """Keep what a model call gave: its variable, and the text that it added."""
        self._variables[name] = value
        self._log = Entry(self._log, "text", said)
        self._life.calls.append(value)

    def _note_type(self, name: str, text: Ref, params: GenParams) -> None:
        if params.type is not None:
            self._recorder.typed(text, params.type, name)

    def _append_row(self, row: Concat, at: Location | None) -> None:
        def params_of(item: object) -> GenParams | None:
            return item.params if isinstance(item, GenExpr) and item.n is None else None

        for run in runs(row.items, params_of, lambda params: self._recorder.joins(params, at)):
            for text in run.before:
                self._append(text, at)
            if run.is_template:
                self._match(run, at)
            else:
                for gen in run.gens:
                    self._append(gen, at)
                if run.other is not None:
                    self._append(run.other, at)

    def _match(self, run: Run, at: Location | None) -> None:
        gens = [(self._named(gen.name, "gen"), gen.params) for gen in run.gens]
        texts = [functools.reduce(operator.add, parts) if parts else "" for parts in run.behind]
        heal = bool(run.before)
        self._ref, whole, made = self._recorder.match(self._ref, gens, texts, heal, at)
        for (name, params), text in zip(gens, made, strict=True):
            self._variables[name] = text
            self._note_type(name, text, params)
        self._log = Entry(self._log, "text", Made(whole))
        self._life.calls.append(whole)

    def _named(self, name: str | None, kind: str) -> str:
        if name is not None:
            return name
        while True:
            self._unnamed += 1
            name = f"{kind}_{self._unnamed}"
            if name not in self._variables:
                return name

    # -- variables
    def __getitem__(self, name: str) -> Any:
        self._check_alive(here())
        _known(name, "the name of a variable")
        if name not in self._variables:
            known = ", ".join(self._variables) or "none yet"
            raise UsageError(
                f"there is no variable {name!r}", here(), hint=f"the variables are: {known}"
            )
        return self._read(self._variables[name])

    def get(self, name: str, default: object = None) -> Any:
        """The variable, or `default` where there is none of that name."""
        _known(name, "the name of a variable")
        return self[name] if name in self._variables else default

    def set(self, name: str, value: object) -> None:
        """Give a variable a value: a text, a number, a list, or anything else.

        Lists, tuples and dictionaries are copied, so that later changes of them do not show.
        """
        at = here()
        self._check_open(at)
        _known(name, "the name of a variable")
        self._variables[_variable(name, at)] = Given(_copied(value, at))

    def __contains__(self, name: object) -> bool:
        _known(name, "the name of a variable")
        return name in self._variables

    def var(self, name: str) -> Naming:
        """A `with` block; the text appended inside becomes the variable `name`.

        It is the text of the program and of the model, without the markup of messages.
        """
        at = here()
        _known(name, "the name of a variable")
        return Naming(self, _variable(name, at), at)

    def _read(self, ref: Ref) -> Any:
        if isinstance(ref, list):
            return [self._read(item) for item in ref]
        if isinstance(ref, Given):
            return copied(ref.value)
        try:
            if isinstance(ref, Row):
                ref = self._recorder.row(ref.parts, here())
            return self._recorder.read(ref)
        except LmcError as error:
            raise error.at(here()) from None

    # -- the whole prompt
    def text(self) -> str:
        """All text so far, the markup of the chat template included; waits for model calls."""
        at = here()
        self._check_alive(at)
        text: str = self._read(self._recorder.text(self._ref, at))
        return text

    def messages(self) -> list[dict[str, Any]]:
        """The chat so far, as `[{"role": ..., "content": ...}, ...]`; waits for model calls.

        A message that is still open is the last one, as far as it goes. What the model thought
        stands apart, as its `reasoning_content`.

        Raises:
            UsageError: there is text outside of messages.
        """
        at = here()
        self._check_alive(at)
        found: list[dict[str, Any]] = []
        open_parts: list[list[str | Made]] = []  # of the message, and of the reasoning in it
        for entry in entries_since(None, self._log):
            check_known(entry, at)
            if entry.kind == "begin":
                open_parts.append([])
                if entry.held == "reasoning":
                    found[-1]["reasoning_content"] = open_parts[-1]
                else:
                    found.append({"role": entry.held, "content": open_parts[-1]})
            elif entry.kind == "end":
                open_parts.pop()
            elif open_parts:
                open_parts[-1].append(entry.held)
            elif type(entry.held) is not str or entry.held:
                raise UsageError(
                    "messages(): the prompt has text outside of its messages",
                    at,
                    hint="append it inside a message, or use text()",
                )
        return [
            {key: h if key == "role" else self._read(Row(tuple(h))) for key, h in message.items()}
            for message in found
        ]

    def mark(self) -> Mark:
        """This place in the prompt, to come back to with `reset`."""
        self._check_open(here())
        return Mark(self._recorder, self._ref, self._log, self._open)

    def reset(self, mark: Mark) -> None:
        """Go back to a place in the prompt: what was appended since is not in it any more.

        Variables stay as they are: they name texts, and texts never change.

        Raises:
            UsageError: the mark was set inside another `with` block, or in another run.
        """
        at = here()
        self._check_open(at)
        if not isinstance(mark, Mark):
            raise UsageError(
                f"reset() takes what mark() gave, not {_shown(mark)}", at, hint="m = s.mark()"
            )
        if mark.recorder is not self._recorder:
            raise UsageError("reset() to a mark of another run", at, hint="set a mark in this run")
        if mark.open != self._open:
            raise UsageError(
                "reset() to a mark that was set inside or outside of this `with` block",
                at,
                hint="set marks and go back to them in the same block",
            )
        self._ref, self._log = self._recorder.moved(self._ref, mark.ref), mark.log

    # -- forks
    def fork(self, n: int = 1) -> Forks:
        """`n` branches that go on from here, each on its own."""
        at = here()
        self._check_open(at)
        n = self._recorder.known(n, "the number of branches")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UsageError(
                f"fork({_shown(n)}): a fork needs at least one branch", at, hint="give 1 or more"
            )
        return Forks(self, [self._copy(i) for i in range(n)])

    def copy(self) -> State:
        """One branch that goes on from here, on its own."""
        self._check_open(here())
        return self._copy()

    def _copy(self, index: int = 0) -> State:
        copy = State(self._recorder, self._recorder.branch(self._ref, index))
        copy._variables = dict(self._variables)
        copy._log = self._log
        copy._open = self._open
        copy._unnamed = self._unnamed
        copy._life = self._life.child()
        return copy

    def _new(self, at: Location | None) -> State:
        """An empty prompt of its own in the same run."""
        self._check_open(at)
        new = State(self._recorder, self._recorder.start(at))
        new._life = self._life.child()
        return new

    def _picked(
        self, ref: Ref, variables: dict[str, Ref], log: Entry | None, open: tuple[Block, ...]
    ) -> State:
        """A branch of this state that goes on from one of several, which these describe."""
        picked = State(self._recorder, ref)
        picked._variables, picked._log, picked._open = variables, log, open
        picked._unnamed = self._unnamed
        picked._life = self._life.child()
        return picked

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __repr__(self) -> str:
        return "<a prompt state>"

    # -- messages
    def system(self, content: object = None) -> Message:
        """A system message: with content, appended at once; without, a `with` block."""
        return self._message("system", content)

    def user(self, content: object = None) -> Message:
        """A user message: with content, appended at once; without, a `with` block."""
        return self._message("user", content)

    def assistant(self, content: object = None) -> Message:
        """An assistant message: with content, appended at once; without, a `with` block."""
        return self._message("assistant", content)

    def reasoning(self, name: str = "reasoning", max_tokens: int = 1024, **parameters: Any) -> None:
        """Let the model think before it answers; what it thinks becomes the variable `name`.

        The first thing in an assistant message. The marks around it, `<think>` and `</think>`, are
        written here, where the template does not begin it; neither they nor the thoughts are a
        part of what is generated after it. Stop strings of later gens do not act inside.

        Args:
            name: of the variable.
            max_tokens: most tokens of it; then it is closed as it is.
            parameters: others of `lmc.gen`, but for stops.

        Raises:
            UsageError: it is not the first thing in an assistant message.
        """
        at = here()
        self._check_open(at)
        first = self._log is not None and self._log.kind == "begin"
        if self._role != "assistant" or not first:
            raise UsageError(
                "reasoning() is not the first thing in an assistant message",
                at,
                hint="write with s.assistant(): s.reasoning()",
            )
        if "stop" in parameters:
            raise UsageError(
                "reasoning() takes no stop", at, hint="it ends where the model ends it"
            )
        closes = REASONING[1]
        asked = gen(name, max_tokens, stop=[f"\n{closes}", closes], **parameters)
        for edge in ("begin", "end"):
            self._ref = self._recorder.role(self._ref, "reasoning", edge, at)
            self._log = Entry(self._log, edge, "reasoning")
            if edge == "begin":
                self._append(asked, at)

    def _message(self, role: str, content: object) -> Message:
        at = here()
        message = Message(self, role, at)
        if content is not None:
            with message:
                self._append(content, at)
        return message

    def _check_open(self, at: Location | None) -> None:
        self._check_alive(at)
        if self._closed:
            raise UsageError(
                f"this branch ended with {self._closed}",
                at,
                hint="append to it before, or go on with the state it was forked from",
            )

    def _check_alive(self, at: Location | None) -> None:
        ended = self._life.ended
        if ended:
            raise UsageError(
                f"this branch was ended by {ended}",
                at,
                hint="read the variables of the branches that won from the state that was forked",
            )

    def __bool__(self) -> NoReturn:
        raise UsageError(
            "a prompt state has no truth value", here(), hint='read a variable, as in s["x"]'
        )
