"""Chat templates as markup around messages, one piece at a time.

    begin((), "user") + text + end(("user",)) + begin(("user",), "assistant") + answer + ...

A chat template renders whole conversations; a program appends to a prompt state and may stop, fork
or generate anywhere. So the template is asked once for each sequence of roles, with marks in the
place of the texts, and what it puts between the marks is the markup.

Owns        the markup found so far, by roles; compiled templates are shared by a process.
Promises    what `begin` and `end` give, joined with the texts, is the template's own rendering, up
            to blanks that a template strips from texts; no text is ever dropped.
Costs       rendering with marks takes about 0.1 ms, a few times for each new sequence of roles.
Not here    turning markup into tokens (`tokenizer`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.errors import LmcError, ModelError, TraceError

if TYPE_CHECKING:
    import jinja2

__all__ = ["ChatTemplate", "Roles", "template_text"]

Roles = tuple[str, ...]

_REMEMBERED = 4096  # sequences of roles
_TEMPLATES = 8  # compiled ones that engines of one process share
_NEXT = ("user", "assistant", "system")


class ChatTemplate:
    """The chat template of a model.

    Args:
        template: Jinja source, or None for a model without one: then every use is an error.
        specials: special tokens by role, such as {"bos_token": "<s>"}, for the template to name.
        model: the model's name, for messages.
        options: more variables for the template, such as {"enable_thinking": False}.

    Raises:
        ModelError: the template is not valid Jinja.
    """

    def __init__(
        self,
        template: str | None,
        specials: Mapping[str, str],
        *,
        model: str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = template
        self.model = model
        now = datetime.now()  # fixed, so that all markup of one run names the same day
        self._variables = {"strftime_now": now.strftime, **specials, **(options or {})}
        self._template: jinja2.Template | None = None
        if template is not None:
            import jinja2

            try:
                self._template = _compiled(template)
            except jinja2.TemplateError as error:
                raise ModelError(
                    f"the chat template of {model} is not valid: {error}",
                    hint="give a model with another template, or write the prompt as plain text",
                ) from error
        self._begin = lru_cache(_REMEMBERED)(self._find_begin)
        self._end = lru_cache(_REMEMBERED)(self._find_end)

    def check(self) -> None:
        """Raise ModelError if the template cannot render a question and then another one.

        What it would do with other roles is found when they are used: many take no system message.
        """
        try:
            self.begin((), "user")
            self.end(("user",))
            self.begin(("user",), "assistant")
            self.end(("user", "assistant"))
            self.begin(("user", "assistant"), "user")
        except LmcError as error:
            raise ModelError(
                f"the chat template of {self.model} cannot be used: {error.problem}",
                hint=error.hint
                if self._template is None
                else 'give another one with chat_template=..., or "" to go without',
            ) from error

    def begin(self, history: Sequence[str], role: str, *, given: bool = False) -> str:
        """The markup before a message, after messages with the roles of `history`.

        The markup before an assistant's message is the template's generation prompt. `given` says
        that the message's text is given and not generated: for some templates (Llama 2) a blank
        stands before a given text, while a model makes that blank itself.

        Raises:
            ModelError: the model has no chat template, or a broken one.
            TraceError: the template refuses this role here, or would leave its text out.
        """
        return self._begin(tuple(history), role, given)

    def end(self, history: Sequence[str]) -> str:
        """The markup after the last message of `history`, at least one, whatever comes next.

        What depends on the next message comes with its `begin`.

        Raises:
            ModelError: the model has no chat template, or a broken one.
            TraceError: the template refuses these roles, or would leave the last text out.
        """
        return self._end(tuple(history))

    def _find_end(self, history: Roles) -> str:
        after: list[str] = []
        for found in self._ways_on(history):
            try:
                after.append(found())
            except TraceError:
                continue  # this may not come next
        if not after:
            raise self._refusal(history[:-1], history[-1], "it leaves the message out")
        return commonprefix(after)  # noqa: RUF071 - of texts, not of paths

    def _ways_on(self, history: Roles) -> Iterator[Callable[[], str]]:
        """All that may stand after the last message, up to the next text or the end."""
        yield lambda: self._tail(history, prompt=False)
        yield lambda: self._generation_prompt(history)
        for role in _NEXT:
            yield lambda role=role: self._between(history, role)  # type: ignore[misc]

    def _find_begin(self, history: Roles, role: str, given: bool) -> str:
        ended = self._end(history) if history else ""
        if role == "assistant" and not given:
            whole = self._generation_prompt(history)
        else:
            whole = self._between(history, role)
        if not whole.startswith(ended):
            raise self._refusal(history, role, "it changes the messages before")
        return whole[len(ended) :]

    # Asking the template.

    def _between(self, history: Roles, role: str) -> str:
        """The text between the last message of `history` and one of `role`, whose text is given."""
        # A template may show a system message with a question only, and may treat the newest
        # answer apart: it is asked what an answer looks like later on.
        followers: tuple[Roles, ...] = ((), ("user",), ("assistant",))
        if role == "assistant":
            followers = (("user",), ())
        reason = "it leaves the message out"
        for told in _tellings(history):
            for follower in followers:
                messages = (*told, role, *follower)
                try:
                    parts = _cut(self._render(messages), len(messages), len(told) + 1)
                except _Refused as refused:
                    reason = str(refused)
                    continue
                if parts is not None:
                    return parts[-2]
        raise self._refusal(history, role, reason)

    def _tail(self, history: Roles, *, prompt: bool) -> str:
        """The text after the last message, with or without the prompt for an answer."""
        reason = "it leaves the message before out"
        for told in _tellings(history):
            try:
                text = self._render(told, prompt=prompt)
                parts = _cut(text, len(told), len(told))
            except _Refused as refused:
                reason = str(refused)
                continue
            if parts is not None:
                return parts[-1]
        raise self._refusal(history, "assistant", reason)

    def _generation_prompt(self, history: Roles) -> str:
        try:
            prompted = self._tail(history, prompt=True)
            plain = self._tail(history, prompt=False)
        except TraceError:
            if history:
                raise
            return self._between(history, "assistant")  # it cannot render an empty conversation
        if prompted != plain:
            return prompted
        # The template has no generation prompt. Either none is needed (Llama 2) and only blanks
        # stand before an answer, or the author forgot it.
        given = self._between(history, "assistant")
        return plain if given.rstrip() == plain.rstrip() else given

    def _render(self, roles: Roles, *, prompt: bool = False) -> str:
        import jinja2

        if self._template is None:
            raise ModelError(
                f"{self.model} has no chat template, so it knows no roles",
                hint="write the prompt as plain text, without s.user() and the like, "
                "or use an instruction-tuned model",
            )
        messages = [{"role": role, "content": _mark(n)} for n, role in enumerate(roles)]
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=prompt,
                tools=None,
                documents=None,
                **self._variables,
            )
        except jinja2.TemplateError as error:
            raise _Refused(error.message or type(error).__name__) from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise _Refused(f"{type(error).__name__}: {error}") from error

    def _refusal(self, history: Roles, role: str, reason: str) -> TraceError:
        where = f"after {', '.join(history)}" if history else "at the start"
        return TraceError(
            f"the chat template of {self.model} takes no {role} message {where}: {reason}",
            hint="change the order of the roles, or put the text into a user message",
        )


def template_text(given: str) -> str | None:
    """The template that a user gives: Jinja text, the file it is in, or "" for none.

    Raises:
        ModelError: the file cannot be read.
    """
    if not given:
        return None
    if not isinstance(given, str):
        raise ModelError(f"the chat template is {given!r}", hint="give Jinja text")
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"the chat template {given} cannot be read: {error}",
            hint="give Jinja text or the name of a file with it",
        ) from error


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """Why a template did not render a conversation."""


def _mark(index: int) -> str:
    """What stands for the text of a message: nothing that a template would write or change."""
    return f"⟦{index}⟧"


def _cut(text: str, marks: int, wanted: int) -> list[str] | None:
    """The pieces around the first `wanted` marks of `marks`, the last one up to the next mark.

    None unless each of the wanted marks is there once, in order.
    """
    pieces, at = [], 0
    for index in range(wanted):
        mark = _mark(index)
        found = text.find(mark, at)
        if found < 0 or text.count(mark) != 1:
            return None
        pieces.append(text[at:found])
        at = found + len(mark)
    others = [found for n in range(wanted, marks) if (found := text.find(_mark(n), at)) >= 0]
    pieces.append(text[at : min(others, default=len(text))])
    return pieces


def _tellings(history: Roles) -> Iterator[Roles]:
    """The history, and, for templates that move system messages to the newest, without those."""
    yield history
    without = tuple(role for role in history if role != "system")
    if without != history and history[-1] != "system":
        yield without


@lru_cache(_TEMPLATES)
def _compiled(source: str) -> jinja2.Template:
    """The template in a sandbox like that of transformers, so that model files cannot do harm."""
    import jinja2
    from jinja2 import ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """`{% generation %}` marks answers for training; here it means nothing."""

        tags = {"generation"}  # noqa: RUF012 - jinja's way

        def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


def _tojson(value: object, ensure_ascii: bool = False, **options: Any) -> str:  # noqa: ANN401
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)
