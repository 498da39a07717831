"""Random LM programs for differential tests: hypothesis draws a body, `program_of` makes it run."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

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
class Template:
    """Words, the argument and constrained gens in one expression."""

    parts: tuple[Any, ...]
    temperature: float
    jump_forward: bool


@dataclass(frozen=True)
class Select:
    name: str
    choices: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "word": Literal["yes", "no"],
    "level": Level,
    "list": list[bool],
}


@dataclass(frozen=True)
class Typed:
    name: str
    type: str  # a name in TYPES
    max_tokens: int
    use: str  # "nothing", "text", "branch"


@dataclass(frozen=True)
class Score:
    name: str
    form: str  # as of Argument, or "word"


@dataclass(frozen=True)
class Ask:
    tool: str  # a name in TOOLS
    form: str  # as of Argument, or the name of a variable
    name: str  # of the variable that a select sets by the result
    catch: bool


@dataclass(frozen=True)
class Unordered:
    forms: tuple[str, ...]  # as of Argument, or "word"


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
    join: str  # "no", or how the branches come together


@dataclass(frozen=True)
class Branch:
    name: str
    test: str  # "contains", "equals", "startswith", "int"
    word: str
    then: tuple[Any, ...]
    orelse: tuple[Any, ...]
    leave: bool


@dataclass(frozen=True)
class Put:
    name: str
    form: str  # "known", "argument", "copy", "list"


@dataclass(frozen=True)
class Naming:
    name: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Scratch:
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Apart:
    body: tuple[Any, ...]
    say: bool


@dataclass(frozen=True)
class SayAll:
    pass


@dataclass(frozen=True)
class Times:
    n: int
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Until:
    """Rounds until the model says a word, at most so many."""

    word: str
    most: int
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Each:
    """A round for each item: of a variable's list, of the argument's words, or of its letters."""

    of: str  # the name of a variable, "words" or "letters"
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Look:
    """A selected text as a key, a number and an index."""

    name: str
    digits: str


@dataclass(frozen=True)
class Fail:
    """An exception of the program's own, where a variable has a word in it."""

    name: str
    word: str


def _fitting(options: dict[str, Any]) -> dict[str, Any]:
    least = min(options.get("min_tokens", 0), options["max_tokens"])
    return {**options, "min_tokens": least}


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
        "n": st.integers(1, 3),
        "min_tokens": st.integers(0, 4),
        "stop_token_ids": st.sampled_from([[70], [1, 101]]),
        "min_p": st.sampled_from([0.0, 0.3]),
        "frequency_penalty": st.sampled_from([0.7, -1.5]),
        "presence_penalty": st.sampled_from([0.0, 2.0]),
        "repetition_penalty": st.sampled_from([1.2, 0.5]),
        "logit_bias": st.sampled_from([{"a": 3.0, 101: -100.0}, {"e": 1.5}]),
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(0, 2),
        "seed": st.sampled_from([None, 5]),
        "temperature": st.sampled_from([0.0, 0.7, 1.3]),
        "top_k": st.sampled_from([0, 1, 5]),
        "top_p": st.sampled_from([1.0, 0.6]),
        "ignore_eos": st.booleans(),
    },
)
_gen_options = st.tuples(_options, _constraints).map(
    lambda pair: tuple(sorted(_fitting(pair[0] | pair[1]).items()))
)

TEMPLATE_GENS: tuple[tuple[tuple[str, Any], ...], ...] = (
    (("regex", r"[a-z ]{1,9}"), ("max_tokens", 4)),
    (("regex", r"[0-9]*"),),
    (("regex", r"(yes|no|yesno)?"),),
    (("choices", ["yes", "no", "ye"]),),
    (("regex", r"[^\n]{0,5}"), ("max_tokens", 2)),
    (("max_tokens", 3),),
    (("regex", r"[a-z]+"), ("stop", ["e"]), ("max_tokens", 3)),
)

_leaves = st.one_of(
    st.builds(Say, _words),
    st.builds(Argument, st.sampled_from(["plain", "upper", "f-string", "slice"])),
    st.builds(Gen, _names, _gen_options),
    st.builds(Gen, _names, st.sampled_from(TEMPLATE_GENS)),
    st.builds(
        Template,
        st.lists(
            _words
            | st.just(Argument("plain"))
            | st.builds(Gen, _names, st.sampled_from(TEMPLATE_GENS)),
            min_size=2,
            max_size=5,
        ).map(tuple),
        st.sampled_from([0.0, 0.9]),
        st.booleans(),
    ),
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
    st.builds(
        Typed,
        _names,
        st.sampled_from(list(TYPES)),
        st.sampled_from([1, 4, 30, 30]),
        st.sampled_from(["nothing", "text", "branch"]),
    ),
    st.builds(
        Ask,
        st.sampled_from(["shout", "weigh", "facts", "later"]),
        st.sampled_from(["plain", "upper", *NAMES]),
        _names,
        st.booleans(),
    ),
    st.builds(Mention, _names),
    st.builds(
        Unordered,
        st.lists(st.sampled_from(["plain", "upper", "word"]), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(Put, _names, st.sampled_from(["known", "argument", "copy", "list"])),
    st.builds(SayAll),
    st.builds(Look, _names, st.sampled_from(["0", "12", "021"])),
    st.builds(Fail, _names, _words),
)


JOINS = ("no", "gather", "concat", "collect", "k", "first", "vote", "best")


def _alike(body: tuple[Any, ...], n: int, join: str) -> Fork:
    said = [(Say(f"{i} " * i), *body, Gen("c", (("max_tokens", 9),))) for i in range(n)]
    return Fork(tuple(said), join)


def _bodies(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(inner, max_size=4).map(tuple)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = _bodies(inner)
    plain = st.lists(_leaves, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Message, st.sampled_from(["user", "assistant"]), plain),
        st.builds(Fork, st.lists(body, min_size=1, max_size=3).map(tuple), st.sampled_from(JOINS)),
        # branches that are alike, so that they can be brought together in any way
        st.builds(_alike, body, st.integers(1, 3), st.sampled_from(JOINS)),
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
        st.builds(Until, _words, st.integers(1, 3), plain),
        st.builds(Each, st.sampled_from(["words", "letters", *NAMES]), plain),
        st.builds(Naming, _names, body),
        st.builds(Scratch, body),
        st.builds(Apart, body, st.booleans()),
    )


BODIES = _bodies(st.recursive(_leaves, _nested, max_leaves=12))


def program_of(body: tuple[Any, ...]) -> lmc.Program:
    """A program of one text argument that does what `body` says."""

    def program(s: State, x: str) -> object:
        if _run(s, body, x):
            return "left"
        return [s.get("a"), {"x": x.strip()}]

    return lmc.jit(program)


def _run(s: State, body: tuple[Any, ...], x: str) -> bool:
    """Run steps until one leaves the program; whether one did. No `try`: it would end the graph."""
    for step in body:  # noqa: SIM110 - any() is not looked into by the tracer
        if _STEPS[type(step)](s, step, x):
            return True
    return False


def _say(s: State, step: Say, x: str) -> bool:
    s += step.text
    return False


def _argument(s: State, step: Argument, x: str) -> bool:
    s += _form(step.form, x)
    return False


def _form(form: str, x: str) -> str:
    forms: dict[str, Callable[[], str]] = {
        "plain": lambda: x,
        "upper": x.upper,
        "f-string": lambda: f"<{x}>",
        "slice": lambda: x[1:4],
    }
    return forms[form]()


def _gen(s: State, step: Gen, x: str) -> bool:
    s += lmc.gen(step.name, **dict(step.options))
    return False


def _template(s: State, step: Template, x: str) -> bool:
    def part(given: Any) -> Any:
        if isinstance(given, Gen):
            options = dict(given.options, temperature=step.temperature)
            return lmc.gen(given.name, **options, jump_forward=step.jump_forward)
        return x if isinstance(given, Argument) else given

    s += lmc.template(*map(part, step.parts))
    return False


def _select(s: State, step: Select, x: str) -> bool:
    s += lmc.select(step.name, list(step.choices), **dict(step.options))
    return False


def _typed(s: State, step: Typed, x: str) -> bool:
    s += lmc.gen(
        step.name,
        step.max_tokens,
        type=TYPES[step.type],
        temperature=0.9,
        jump_forward=step.max_tokens % 2 == 0,
    )
    if step.use == "nothing":
        return False
    value = s[step.name]
    s += f"<{value}>"
    if step.use == "branch":
        if step.type == "word":
            s += {"yes": "aye", "no": "nay"}[value]
        elif step.type == "level":
            s += f"{value + 1} {value.name}"
        elif value:
            s += "true"
    return False


def _score(s: State, step: Score, x: str) -> bool:
    s += lmc.score(
        step.name,
        " is it" if step.form == "word" else _form(step.form, x),
        top_logprobs=2 if step.form == "upper" else 0,
    )
    return False


def _unordered(s: State, step: Unordered, x: str) -> bool:
    texts = [" is it" if form == "word" else _form(form, x) for form in step.forms]
    s += lmc.unordered(*texts, sep="; ")
    return False


def _flat(value: Any) -> str:
    if isinstance(value, (float, int)):  # truth values and levels, too
        return f"{value}"
    return " / ".join(map(_flat, value)) if isinstance(value, list) else value


def _mention(s: State, step: Mention, x: str) -> bool:
    if step.name in s:
        s += f"[{step.name}: {_flat(s[step.name])}]"
    return False


def _message(s: State, step: Message, x: str) -> bool:
    if s._role is None:
        with s.user() if step.role == "user" else s.assistant():
            return _run(s, step.body, x)
    return False


def _fork(s: State, step: Fork, x: str) -> bool:
    if s._role is not None:
        return False
    forks = s.fork(len(step.bodies))
    for branch, body in zip(forks, step.bodies, strict=True):
        if _run(branch, body, x):
            return True
    if step.join != "no" and len({frozenset(f._variables) for f in forks}) == 1:
        _JOINS[step.join](s, forks)
    return False


def _first(s: State, forks: Any) -> None:
    won = forks.first()
    s += won.text()[-3:]


def _vote(s: State, forks: Any) -> None:
    own = "c" in forks[0] and forks[0]._variables["c"] is not s._variables.get("c")
    if own and all(isinstance(c, str) for c in forks["c"]):
        s.reset(forks.vote("c", key=lambda c: c[:1]).mark())


def _best(s: State, forks: Any) -> None:
    forks.best(key=lambda branch: len(branch.get("c", "")))


_JOINS: dict[str, Callable[[State, Any], None]] = {
    "gather": lambda s, forks: forks.join(),
    "concat": lambda s, forks: forks.join(mode="concat"),
    "collect": lambda s, forks: forks.join(on_error="collect"),
    "k": lambda s, forks: forks.join(k=(len(forks) + 1) // 2),
    "first": _first,
    "vote": _vote,
    "best": _best,
}


def _branch(s: State, step: Branch, x: str) -> bool:
    if step.name not in s:
        return False
    text = _flat(s[step.name])
    if step.test == "int":
        taken = int("0" + "".join(c for c in text if c in "0123456789")[:3]) > 5
    elif step.test == "contains":
        taken = step.word in text
    elif step.test == "equals":
        taken = text == step.word
    else:
        taken = text.startswith(step.word)
    left = _run(s, step.then if taken else step.orelse, x)
    return left or bool(step.leave and taken)


def _put(s: State, step: Put, x: str) -> bool:
    forms: dict[str, Callable[[], Any]] = {
        "known": lambda: "k",
        "argument": lambda: x.lower(),
        "copy": lambda: s.get("a", "none"),
        "list": lambda: ["l", x, s.get("b", "none")],
    }
    s.set(step.name, forms[step.form]())
    return False


def _naming(s: State, step: Naming, x: str) -> bool:
    with s.var(step.name):
        return _run(s, step.body, x)


def _scratch(s: State, step: Scratch, x: str) -> bool:
    mark = s.mark()
    left = _run(s, step.body, x)
    s.reset(mark)
    return left


def _apart(s: State, step: Apart, x: str) -> bool:
    called = program_of(step.body).call(s, x=x)
    if step.say:
        s += _flat(called.get("a", "nothing"))
    return False


def _say_all(s: State, step: SayAll, x: str) -> bool:
    s += s.text()[:9]
    return False


def _times(s: State, step: Times, x: str) -> bool:
    for _ in range(step.n):  # noqa: SIM110 - as above
        if _run(s, step.body, x):
            return True
    return False


def _until(s: State, step: Until, x: str) -> bool:
    rounds = 0
    while rounds < step.most:
        rounds += 1
        s += f"{rounds}. "
        if _run(s, step.body, x):
            return True
        s += lmc.gen("c", max_tokens=3)
        if step.word in s["c"]:
            break
    return False


def _each(s: State, step: Each, x: str) -> bool:
    items: Any = x.split() if step.of == "words" else [*x[:2]]
    if step.of in NAMES:
        held = s.get(step.of, ())
        items = held if isinstance(held, list) else [held] if isinstance(held, str) else ()
    for item in items:
        s += f"- {_flat(item)}"
        if _run(s, step.body, x):
            return True
    return False


def _look(s: State, step: Look, x: str) -> bool:
    s += lmc.select(step.name, list(step.digits))
    digit = s[step.name]
    words = {"0": "zero", "1": "one", "2": "two"}
    s += f"{words[digit]} {int(digit) + 1} {'xyz'[int(digit)]}"
    return digit == "2"


def _fail(s: State, step: Fail, x: str) -> bool:
    if step.name in s and step.word in _flat(s[step.name]):
        raise ValueError(f"{step.word!r} of {x}")
    return False


@lmc.tool(pure=True)
def shout(text: str) -> str:
    return text.upper() + "!"


@lmc.tool
def weigh(text: str) -> int:
    if "e" in text:
        raise ValueError("it has an e")
    return len(text)


@lmc.tool(pure=True)
def facts(text: str) -> Any:
    return {"text": text, "words": text.split(), "none": None} if text else None


@lmc.tool
async def later(text: str) -> str:
    return text[::-1]


TOOLS: dict[str, Callable[..., Any]] = {tool.name: tool for tool in (shout, weigh, facts, later)}


def _ask(s: State, step: Ask, x: str) -> bool:
    text = _flat(s.get(step.form, "none")) if step.form in NAMES else _form(step.form, x)
    if step.catch:
        try:
            found = TOOLS[step.tool](text)
        except lmc.errors.ToolError as error:
            found = error.problem
    else:
        found = TOOLS[step.tool](text)
    s += f"({found})"
    if step.tool == "facts" and found:
        s += lmc.select(step.name, [f"{found['text']}.", "no", f"{found['words']}"])
    return False


_STEPS: dict[type, Callable[..., bool]] = {
    Say: _say,
    Argument: _argument,
    Gen: _gen,
    Template: _template,
    Select: _select,
    Score: _score,
    Typed: _typed,
    Ask: _ask,
    Mention: _mention,
    Unordered: _unordered,
    Message: _message,
    Fork: _fork,
    Branch: _branch,
    Times: _times,
    Until: _until,
    Each: _each,
    Look: _look,
    Fail: _fail,
    Put: _put,
    Naming: _naming,
    Scratch: _scratch,
    Apart: _apart,
    SayAll: _say_all,
}
