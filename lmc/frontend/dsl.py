"""What a program may say: the prompt state, its forks, and the primitives appended to it.

A `State` is a handle on an immutable prompt state: `s += x` makes a new state and moves the handle.
It says what happens to a `Recorder`.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NoReturn

from lmc.errors import LmcError, Location, UsageError
from lmc.frontend.blocks import Block, Mark, Message, Naming
from lmc.frontend.forks import Forks
from lmc.frontend.fusing import Fusion, Held
from lmc.frontend.location import here
from lmc.frontend.media import image
from lmc.frontend.primitives import (
    Appendable,
    Concat,
    GenExpr,
    RoleExpr,
    ScoreExpr,
    SelectExpr,
    assistant,
    checked_name,
    gen,
    need_known,
    score,
    select,
    shown,
    system,
    template,
    unordered,
    user,
)
from lmc.frontend.recorder import Recorder, Ref
from lmc.frontend.templates import Run, runs
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
from lmc.params import MAX_BRANCHES, REASONING, GenParams, is_count

__all__ = [
    "Appendable", "Concat", "Forks", "GenExpr", "Mark", "Recorder", "RoleExpr", "ScoreExpr",
    "SelectExpr", "State", "assistant", "gen", "score", "select", "system", "template", "unordered",
    "user",
]  # fmt: skip


class State:
    """A prompt under construction. Programs get one as their first argument."""

    def __init__(self, recorder: Recorder, ref: Ref, fusion: Fusion | None = None) -> None:
        self._recorder = recorder
        self._fusion = fusion  # of the run: statements that are held back
        self._reached = ref
        self._known: dict[str, Ref] = {}
        self._said: Entry | None = None
        self._open: tuple[Block, ...] = ()  # the `with` blocks that it is inside of
        self._closed: str | None = None
        self._life = Life()
        self._unnamed = 0

    # What is asked for below includes what is held back, so that is appended first.
    @property
    def _ref(self) -> Ref:
        """The recorder's name of the state."""
        self._settle()
        return self._reached

    @_ref.setter
    def _ref(self, ref: Ref) -> None:
        self._reached = ref

    @property
    def _variables(self) -> dict[str, Ref]:
        self._settle()
        return self._known

    @_variables.setter
    def _variables(self, variables: dict[str, Ref]) -> None:
        self._known = variables

    @property
    def _log(self) -> Entry | None:
        """The newest thing that was appended."""
        self._settle()
        return self._said

    @_log.setter
    def _log(self, entry: Entry | None) -> None:
        self._said = entry

    def _settle(self) -> None:
        """Append what is held back, in all prompts of the run."""
        if self._fusion is not None:
            self._fusion.flush(State._append_held)

    def _append_held(self, items: list[Held]) -> None:
        places = [item.at for item, _ in items if isinstance(item, GenExpr)]
        at = next(filter(None, places), items[0][1])
        self._append_row(Concat(tuple(item for item, _ in items)), at)

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
        if self._fusion is not None and self._held_back(self._fusion, item, at):
            return
        if isinstance(item, str):
            self._reached = self._recorder.extend(self._reached, item, at)
            self._said = Entry(self._said, "text", item)
        elif isinstance(item, GenExpr):
            where = item.at or at
            name = self._named(item.name, "gen")
            before = self._reached
            first = None if item.n is None else 0
            self._reached, text = self._recorder.gen(before, name, item.params, where, first)
            self._note_call(name, text, Made(text))
            self._note_type(name, text, item.params)
            if item.n is not None:
                more = [
                    self._recorder.gen(before, name, item.params, where, nth)[1]
                    for nth in range(1, item.n)
                ]
                for one in more:
                    self._note_type(name, one, item.params)
                self._known[name] = [text, *more]
                self._life.calls += more
        elif isinstance(item, SelectExpr):
            where = item.at or at
            self._reached, text = self._recorder.select(
                self._reached,
                name := self._named(item.name, "select"),
                item.choices,
                item.method,
                item.temperature,
                where,
            )
            self._note_call(name, text, Made(text))
        elif isinstance(item, ScoreExpr):
            self._reached, value = self._recorder.score(
                self._reached,
                name := self._named(item.name, "score"),
                item.text,
                item.top_logprobs,
                item.at or at,
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
                f"{shown(item)} cannot be appended to a prompt",
                at,
                hint="append a text, gen(), select(), a message, or a list of these; "
                "write numbers as f-strings",
            )

    def _held_back(self, fusion: Fusion, item: object, at: Location | None) -> bool:
        """Whether an item is appended later, with what follows; else what is held back is now."""
        if fusion.busy:
            return False
        if isinstance(item, str) or (
            isinstance(item, GenExpr) and item.n is None and item.params.constraint is not None
        ):
            fusion.hold(self, item, at)
            return True
        if isinstance(item, Concat):
            for part in item.items:
                self._append(part, at)
            return True
        if not isinstance(item, (list, tuple)):  # whose items are appended one by one
            self._settle()
        return False

    def _note_call(self, name: str, value: Ref, said: str | Made) -> None:
        """Keep what a model call gave: its variable, and the text that it added."""
        self._known[name] = value
        self._said = Entry(self._said, "text", said)
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
        self._reached, whole, made = self._recorder.match(self._reached, gens, texts, heal, at)
        for (name, params), text in zip(gens, made, strict=True):
            self._known[name] = text
            self._note_type(name, text, params)
        self._said = Entry(self._said, "text", Made(whole))
        self._life.calls.append(whole)

    def _named(self, name: str | None, kind: str) -> str:
        if name is not None:
            return name
        while True:
            self._unnamed += 1
            name = f"{kind}_{self._unnamed}"
            if name not in self._known:
                return name

    # -- variables
    def __getitem__(self, name: str) -> Any:
        self._check_alive(here())
        need_known(name, "the name of a variable")
        if name not in self._variables:
            known = ", ".join(self._variables) or "none yet"
            raise UsageError(
                f"there is no variable {name!r}", here(), hint=f"the variables are: {known}"
            )
        return self._read(self._variables[name])

    def get(self, name: str, default: object = None) -> Any:
        """The variable, or `default` where there is none of that name."""
        need_known(name, "the name of a variable")
        return self[name] if name in self._variables else default

    def set(self, name: str, value: object) -> None:
        """Give a variable a value: a text, a number, a list, or anything else.

        Lists, tuples and dictionaries are copied, so that later changes of them do not show.
        """
        at = here()
        self._check_open(at)
        need_known(name, "the name of a variable")
        self._variables[_variable(name, at)] = Given(_copied(value, at))

    def __contains__(self, name: object) -> bool:
        need_known(name, "the name of a variable")
        return name in self._variables

    def var(self, name: str) -> Naming:
        """A `with` block; the text appended inside becomes the variable `name`.

        It is the text of the program and of the model, without the markup of messages.
        """
        at = here()
        need_known(name, "the name of a variable")
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
                f"reset() takes what mark() gave, not {shown(mark)}", at, hint="m = s.mark()"
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
        if not is_count(n):
            raise UsageError(
                f"fork({shown(n)}): a fork has 1 to {MAX_BRANCHES} branches", at,
                hint="give a number of these; for more, run the program on a batch of rows",
            )  # fmt: skip
        return Forks(self, [self._copy(i) for i in range(n)])

    def copy(self) -> State:
        """One branch that goes on from here, on its own."""
        self._check_open(here())
        return self._copy()

    def _copy(self, index: int = 0) -> State:
        copy = State(self._recorder, self._recorder.branch(self._ref, index), self._fusion)
        copy._variables = dict(self._variables)
        copy._log = self._log
        copy._open = self._open
        copy._unnamed = self._unnamed
        copy._life = self._life.child()
        return copy

    def _new(self, at: Location | None) -> State:
        """An empty prompt of its own in the same run."""
        self._check_open(at)
        self._settle()
        new = State(self._recorder, self._recorder.start(at), self._fusion)
        new._life = self._life.child()
        return new

    def _picked(
        self, ref: Ref, variables: dict[str, Ref], log: Entry | None, open: tuple[Block, ...]
    ) -> State:
        """A branch of this state that goes on from one of several, which these describe."""
        picked = State(self._recorder, ref, self._fusion)
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

    def image(self, source: object) -> NoReturn:
        """An image in the prompt: refused in this version, as by `lmc.image`."""
        image(source)

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


def _variable(name: object, at: Location | None) -> str:
    found = checked_name(name, at)
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
