"""What a program may say: the prompt state, its forks, and the primitives appended to it.

A `State` is a handle on an immutable prompt state: `s += x` makes a new state and moves the handle.
It says what happens to a `Recorder`; the tracer and the eager runner are the two of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Protocol

from lmc.errors import LmcError, Location, UsageError
from lmc.frontend.location import here, unwatched
from lmc.frontend.symbolic import is_symbolic
from lmc.params import GenParams, check_choosing

__all__ = [
    "Forks", "GenExpr", "Recorder", "RoleExpr", "ScoreExpr", "SelectExpr", "State", "assistant",
    "gen", "score", "select", "system", "user",
]  # fmt: skip

Ref = Any
"""A recorder's own name for a state or a text: an IR value, or a register."""


class Recorder(Protocol):
    """What a program's primitives are told to."""

    def extend(self, state: Ref, text: str, at: Location | None) -> Ref: ...

    def role(self, state: Ref, role: str, edge: str, at: Location | None) -> Ref: ...

    def gen(
        self, state: Ref, name: str, params: GenParams, at: Location | None
    ) -> tuple[Ref, Ref]: ...

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

    def read(self, ref: Ref) -> Any: ...

    def branch(self, state: Ref, index: int) -> Ref:
        """The state for branch `index` of a fork: a second use of the same value."""

    def prepare(self, function: Callable[..., object]) -> Callable[..., object]:
        """The function of a program that is called inside another one, ready to be run."""

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
    max_tokens: int = 128,
    *,
    stop: str | Sequence[str] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    ignore_eos: bool = False,
    seed: int | None = None,
    regex: str | None = None,
    json_schema: dict[str, Any] | str | type | None = None,
    ebnf: str | None = None,
    choices: Sequence[str] | None = None,
    whitespace: str | None = None,
    waive: str | Sequence[str] = (),
    jump_forward: bool = True,
) -> GenExpr:
    """A generation, to be appended to a state; its text becomes the variable `name`.

    Args:
        name: of the variable; one is made up if left out.
        max_tokens: most tokens to generate; 0 generates nothing.
        stop: a string, or several, that end the text; the one found is left out.
        stop_regex: a pattern, or several: the text ends where `re.search` first finds one in it,
            and that is left out; look-arounds and anchors see the text of this gen.
        temperature: 0 takes the most likely token each time; above, tokens are drawn.
        top_p: draw among the fewest tokens whose probabilities reach it.
        top_k: draw among this many tokens; 0 for all.
        ignore_eos: never end at the model's own end tokens.
        seed: for this draw, instead of the seed of the run.
        regex: the text matches it as a whole (`re.fullmatch`).
        json_schema: the text is JSON that fits this schema: a dictionary, JSON text, or a pydantic
            model class, of which only the declared fields are written.
        ebnf: the text follows this grammar, in Lark's notation.
        choices: the text is one of these, the model's own words; `select` weighs them as a whole.
        whitespace: blanks in the JSON of `json_schema`: "compact", the default, has none, "pretty"
            is what `json.dumps` writes with `indent=2`, "flexible" leaves them to the model.
        waive: keywords of `json_schema` that are dropped where they cannot be honoured, instead of
            an error.
        jump_forward: take tokens that the constraint forces without asking the model; the text is
            the same either way.

    Raises:
        UsageError: a value is out of its range.
    """
    given = dict(locals())
    at = here()
    for parameter, value in given.items():
        _known(value, f"the parameter {parameter} of a gen")
    stop = (stop,) if isinstance(stop, str) else tuple(stop or ())
    patterns = (stop_regex,) if isinstance(stop_regex, str) else tuple(stop_regex or ())
    waive = (waive,) if isinstance(waive, str) else tuple(waive or ())
    for one in (*stop, *patterns, *(choices or ()), *waive):
        _known(one, "a stop string, choice or waived keyword of a gen")
    try:
        with unwatched():  # models of classes are made by code that tries and fails
            schema = _schema_text(json_schema)
        params = GenParams(
            max_tokens=max_tokens,
            stop=stop,
            stop_regex=patterns,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            ignore_eos=ignore_eos,
            seed=seed,
            regex=regex,
            json_schema=schema,
            ebnf=ebnf,
            choices=None if choices is None else tuple(choices),
            whitespace=whitespace,
            waive=waive,
            jump_forward=jump_forward,
        )
    except LmcError as error:
        raise error.at(at) from None
    return GenExpr(_name(name, at), params, at)


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


def _schema_text(schema: object) -> str | None:
    """A JSON schema as JSON text; the order of its properties is kept.

    Raises:
        UsageError: it is none.
    """
    if schema is None or type(schema) is str:
        return schema
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        schema = _closed(schema.model_json_schema())
    try:
        if isinstance(schema, (dict, bool)):
            return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the json_schema cannot be written as JSON: {error}") from error
    raise UsageError(
        f"json_schema is {_shown(schema)}",
        hint="give a dictionary, JSON text, or a pydantic model class",
    )


def _closed(schema: Any) -> Any:
    """A schema of a class: its objects have the fields that were declared, and no others."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def _name(name: object, at: Location | None) -> str | None:
    if name is not None and (type(name) is not str or not name):
        raise UsageError(
            f"a variable's name must be a text, not {_shown(name)}", at, hint="name it first"
        )
    return name


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
        self._role: str | None = None
        self._closed: str | None = None
        self._unnamed = 0

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
        elif isinstance(item, GenExpr):
            where = item.at or at
            self._ref, text = self._recorder.gen(
                self._ref, name := self._named(item.name, "gen"), item.params, where
            )
            self._variables[name] = text
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
            self._variables[name] = text
        elif isinstance(item, ScoreExpr):
            self._ref, value = self._recorder.score(
                self._ref, name := self._named(item.name, "score"), item.text, item.at or at
            )
            self._variables[name] = value
        elif isinstance(item, RoleExpr):
            with _Message(self, item.role, item.at or at):
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

    def _append_row(self, row: Concat, at: Location | None) -> None:
        for item in row.items[:-1]:
            if isinstance(item, GenExpr) and item.params.constraint is not None:
                raise UsageError(
                    "a constrained gen() inside `+` would be joined with what follows",
                    item.at or at,
                    hint="append it in a statement of its own",
                )
        for item in row.items:
            self._append(item, at)

    def _named(self, name: str | None, kind: str) -> str:
        if name is not None:
            return name
        self._unnamed += 1
        return f"{kind}_{self._unnamed}"

    # -- variables
    def __getitem__(self, name: str) -> Any:
        if name not in self._variables:
            known = ", ".join(self._variables) or "none yet"
            raise UsageError(
                f"there is no variable {name!r}", here(), hint=f"the variables are: {known}"
            )
        return self._read(self._variables[name])

    def get(self, name: str, default: object = None) -> Any:
        """The variable, or `default` where there is none of that name."""
        return self[name] if name in self._variables else default

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def _read(self, ref: Ref) -> Any:
        if isinstance(ref, list):
            return [self._read(item) for item in ref]
        try:
            return self._recorder.read(ref)
        except LmcError as error:
            raise error.at(here()) from None

    # -- forks
    def fork(self, n: int = 1) -> Forks:
        """`n` branches that go on from here, each on its own."""
        at = here()
        self._check_open(at)
        n = self._recorder.known(n, "the number of branches")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UsageError(f"fork({_shown(n)}): a fork needs at least one branch", at)
        return Forks(self, [self._copy(i) for i in range(n)])

    def copy(self) -> State:
        """One branch that goes on from here, on its own."""
        self._check_open(here())
        return self._copy()

    def _copy(self, index: int = 0) -> State:
        copy = State(self._recorder, self._recorder.branch(self._ref, index))
        copy._variables = dict(self._variables)
        copy._role = self._role
        copy._unnamed = self._unnamed
        return copy

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    # -- messages
    def system(self, content: object = None) -> _Message:
        """A system message: with content, appended at once; without, a `with` block."""
        return self._message("system", content)

    def user(self, content: object = None) -> _Message:
        """A user message: with content, appended at once; without, a `with` block."""
        return self._message("user", content)

    def assistant(self, content: object = None) -> _Message:
        """An assistant message: with content, appended at once; without, a `with` block."""
        return self._message("assistant", content)

    def _message(self, role: str, content: object) -> _Message:
        at = here()
        message = _Message(self, role, at)
        if content is not None:
            with message:
                self._append(content, at)
        return message

    def _check_open(self, at: Location | None) -> None:
        if self._closed:
            raise UsageError(
                f"this branch ended with {self._closed}",
                at,
                hint="append to it before, or go on with the state it was forked from",
            )

    def __bool__(self) -> NoReturn:
        raise UsageError(
            "a prompt state has no truth value", here(), hint='read a variable, as in s["x"]'
        )


class _Message:
    """A message of a chat, open inside its `with` block."""

    def __init__(self, state: State, role: str, at: Location | None) -> None:
        self._state = state
        self._role = role
        self._at = at

    def __enter__(self) -> State:
        state = self._state
        state._check_open(self._at)
        if state._role is not None:
            raise UsageError(
                f"a {self._role} message inside a {state._role} message",
                self._at,
                hint="end the first `with` block before the second begins",
            )
        state._ref = state._recorder.role(state._ref, self._role, "begin", self._at)
        state._role = self._role
        return state

    def __exit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        state = self._state
        state._role = None
        if kind is None or issubclass(kind, Exception):
            state._ref = state._recorder.role(state._ref, self._role, "end", self._at)


class Forks(Sequence[State]):
    """The branches of a fork, until they are joined."""

    def __init__(self, parent: State, branches: list[State]) -> None:
        self._parent = parent
        self._branches = branches
        self._before = dict(parent._variables)

    def __len__(self) -> int:
        return len(self._branches)

    def __getitem__(self, key: Any) -> Any:  # a branch, branches, or a variable of each
        if isinstance(key, str):
            return [branch[key] for branch in self._branches]
        return self._branches[key]

    def __setitem__(self, key: int, branch: State) -> None:
        """Python's second half of `forks[i] += x`; a branch cannot be replaced."""
        if branch is not self._branches[key]:
            raise UsageError(
                "a branch of a fork cannot be replaced", here(), hint="append to it with +="
            )

    def __iter__(self) -> Iterator[State]:
        return iter(self._branches)

    def __iadd__(self, item: object) -> Forks:
        at = here()
        if callable(item) and not isinstance(item, Appendable):
            make: Callable[[int], object] = item
            items = [make(i) for i in range(len(self._branches))]
        elif isinstance(item, (list, tuple)):
            if len(item) != len(self._branches):
                raise UsageError(
                    f"{len(item)} items for {len(self._branches)} branches",
                    at,
                    hint="give one item a branch, or a single one for all",
                )
            items = list(item)
        else:
            items = [item] * len(self._branches)
        for branch, one in zip(self._branches, items, strict=True):
            branch._append(one, at)
        return self

    def join(self) -> None:
        """End the branches; each variable that they set becomes a list in the parent.

        The list has one item a branch, in fork order.

        Raises:
            UsageError: they were joined before, or a variable is missing in some branch.
        """
        at = here()
        for branch in self._branches:
            branch._check_open(at)
            if branch._role is not None:
                raise UsageError(f"join() inside a {branch._role} message of a branch", at)
        names = {
            name: None
            for branch in self._branches
            for name, ref in branch._variables.items()
            if name not in self._before or self._before[name] is not ref
        }
        for name in names:
            missing = [i for i, b in enumerate(self._branches) if name not in b._variables]
            if missing:
                raise UsageError(
                    f"join(): the variable {name!r} is missing in branch {missing[0]}",
                    at,
                    hint="set it in every branch, or read it from the branch itself",
                )
            self._parent._variables[name] = [b._variables[name] for b in self._branches]
        for branch in self._branches:
            branch._closed = f"join() at {at}" if at else "join()"
