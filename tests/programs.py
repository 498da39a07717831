"""Random LM programs for differential tests: hypothesis draws a body, `program_of` makes it run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

import lmc
from lmc.frontend.dsl import State

NAMES = ("a", "b", "c")
WORDS = ("yes", "no", "the ", "Q: ", "\n", "is it", " ", "7", "e")


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Argument:
    form: str  # "plain", "upper", "f-string", "slice"


@dataclass(frozen=True)
class Gen:
    name: str
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Select:
    name: str
    choices: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Score:
    name: str
    form: str  # as of Argument, or "word"


@dataclass(frozen=True)
class Mention:
    name: str


@dataclass(frozen=True)
class Message:
    role: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Fork:
    bodies: tuple[tuple[Any, ...], ...]
    join: bool


@dataclass(frozen=True)
class Branch:
    name: str
    test: str  # "contains", "equals", "startswith", "int"
    word: str
    then: tuple[Any, ...]
    orelse: tuple[Any, ...]
    leave: bool


@dataclass(frozen=True)
class Times:
    n: int
    body: tuple[Any, ...]


_names = st.sampled_from(NAMES)
_words = st.sampled_from(WORDS)
_PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"format": "odd", "type": "null"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
_constraints = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"regex": st.sampled_from([r"[a-z]{2,8}", r"(yes|no), \d{1,3}", r'\{"a": [0-9]\}'])}
    ),
    st.fixed_dictionaries(
        {"json_schema": st.just(_PAIR), "waive": st.just("format")},
        optional={"whitespace": st.sampled_from(["compact", "pretty", "flexible"])},
    ),
)
_options = st.fixed_dictionaries(
    {"max_tokens": st.integers(0, 9)},
    optional={
        "stop": st.lists(_words, min_size=1, max_size=2),
        "stop_regex": st.sampled_from([r"[aeiou]{2}", [r"\bt", r"(?<=e)\s"], r"[^a-z]$"]),
        "temperature": st.sampled_from([0.0, 0.7, 1.3]),
        "top_k": st.sampled_from([0, 1, 5]),
        "top_p": st.sampled_from([1.0, 0.6]),
        "ignore_eos": st.booleans(),
    },
)
_gen_options = st.tuples(_options, _constraints).map(
    lambda pair: tuple(sorted((pair[0] | pair[1]).items()))
)

_leaves = st.one_of(
    st.builds(Say, _words),
    st.builds(Argument, st.sampled_from(["plain", "upper", "f-string", "slice"])),
    st.builds(Gen, _names, _gen_options),
    st.builds(
        Select,
        _names,
        st.lists(_words, min_size=1, max_size=3, unique=True).map(tuple),
        st.sampled_from(
            [
                (),
                (("method", "total_logprob"), ("temperature", 1.5)),
                (("method", "greedy_token"),),
                (("method", "unconditional_normalized"), ("temperature", 0.5)),
            ]
        ),
    ),
    st.builds(Score, _names, st.sampled_from(["plain", "upper", "f-string", "slice", "word"])),
    st.builds(Mention, _names),
)


def _bodies(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(inner, max_size=4).map(tuple)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = _bodies(inner)
    plain = st.lists(_leaves, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Message, st.sampled_from(["user", "assistant"]), plain),
        st.builds(Fork, st.lists(body, min_size=1, max_size=3).map(tuple), st.booleans()),
        st.builds(
            Branch,
            _names,
            st.sampled_from(["contains", "equals", "startswith", "int"]),
            _words,
            body,
            body,
            st.booleans(),
        ),
        st.builds(Times, st.integers(0, 2), body),
    )


BODIES = _bodies(st.recursive(_leaves, _nested, max_leaves=12))


class _Leave(Exception):  # noqa: N818 - it is no error
    """Stands for an early return."""


def program_of(body: tuple[Any, ...]) -> lmc.Program:
    """A program of one text argument that does what `body` says."""

    def program(s: State, x: str) -> object:
        try:
            _run(s, body, x)
        except _Leave:
            return "left"
        return [s.get("a"), {"x": x.strip()}]

    return lmc.jit(program)


def _run(s: State, body: tuple[Any, ...], x: str) -> None:
    for step in body:
        _STEPS[type(step)](s, step, x)


def _say(s: State, step: Say, x: str) -> None:
    s += step.text


def _argument(s: State, step: Argument, x: str) -> None:
    s += _form(step.form, x)


def _form(form: str, x: str) -> str:
    forms: dict[str, Callable[[], str]] = {
        "plain": lambda: x,
        "upper": x.upper,
        "f-string": lambda: f"<{x}>",
        "slice": lambda: x[1:4],
    }
    return forms[form]()


def _gen(s: State, step: Gen, x: str) -> None:
    s += lmc.gen(step.name, **dict(step.options))


def _select(s: State, step: Select, x: str) -> None:
    s += lmc.select(step.name, list(step.choices), **dict(step.options))


def _score(s: State, step: Score, x: str) -> None:
    s += lmc.score(step.name, " is it" if step.form == "word" else _form(step.form, x))


def _flat(value: Any) -> str:
    if isinstance(value, float):
        return f"{value}"
    return " / ".join(map(_flat, value)) if isinstance(value, list) else value


def _mention(s: State, step: Mention, x: str) -> None:
    if step.name in s:
        s += f"[{step.name}: {_flat(s[step.name])}]"


def _message(s: State, step: Message, x: str) -> None:
    if s._role is None:
        with s.user() if step.role == "user" else s.assistant():
            _run(s, step.body, x)


def _fork(s: State, step: Fork, x: str) -> None:
    if s._role is not None:
        return
    forks = s.fork(len(step.bodies))
    for branch, body in zip(forks, step.bodies, strict=True):
        _run(branch, body, x)
    if step.join and len({frozenset(f._variables) for f in forks}) == 1:
        forks.join()


def _branch(s: State, step: Branch, x: str) -> None:
    if step.name not in s:
        return
    text = _flat(s[step.name])
    if step.test == "int":
        taken = int("0" + "".join(c for c in text if c in "0123456789")[:3]) > 5
    elif step.test == "contains":
        taken = step.word in text
    elif step.test == "equals":
        taken = text == step.word
    else:
        taken = text.startswith(step.word)
    _run(s, step.then if taken else step.orelse, x)
    if step.leave and taken:
        raise _Leave


def _times(s: State, step: Times, x: str) -> None:
    for _ in range(step.n):
        _run(s, step.body, x)


_STEPS: dict[type, Callable[..., None]] = {
    Say: _say,
    Argument: _argument,
    Gen: _gen,
    Select: _select,
    Score: _score,
    Mention: _mention,
    Message: _message,
    Fork: _fork,
    Branch: _branch,
    Times: _times,
}
