"""The instructions that make a prompt longer: text, message edges, gens, and chains of these.

A chain is one request. Where a gen of it ends, the scheduler asks at once what follows, sets what
is known by then, and goes on in the same place: nothing is looked up, admitted or waited for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.errors import Cancelled, InternalError, LmcError
from lmc.runtime.context import Context
from lmc.runtime.handling import (
    constraint_errors,
    fail,
    hand_over,
    observed,
    sampling_of,
    submit,
    value_of,
)
from lmc.runtime.race import refuse_dropped
from lmc.runtime.request import GenRequest, GenResult
from lmc.runtime.results import CallMeta
from lmc.runtime.row import Failure, Row
from lmc.runtime.span_ahead import SpanAhead, state_ahead

if TYPE_CHECKING:
    from lmc.runtime.context import SpanTokenizer
    from lmc.runtime.engine import Handle
    from lmc.runtime.executor import Executor

__all__ = ["chain", "extend", "gen", "role"]


def extend(executor: Executor, row: Row, instr: p.Extend) -> None:
    """Handle `Extend`."""
    text = "".join([value_of(row, part) for part in instr.parts])
    executor.set(row, instr.into.index, row.regs[instr.state.index].extend(text))


def role(executor: Executor, row: Row, instr: p.Role) -> None:
    """Handle `Role`."""
    state: Context = row.regs[instr.state.index]
    executor.set(
        row, instr.into.index, state.role(instr.role, instr.edge, executor.target.template)
    )


class _Gen:
    """A gen of a row: its request, and what becomes of the result."""

    __slots__ = ("executor", "instr", "on_text", "request", "row", "state")

    def __init__(
        self, executor: Executor, row: Row, instr: p.Gen, tokenizer: SpanTokenizer
    ) -> None:
        """Raises: LmcError: the prompt cannot be tokenized, or the constraint fails."""
        self.executor, self.row, self.instr = executor, row, instr
        target, params = executor.target, instr.params
        before: Context = row.regs[instr.state.index]
        self.state = before.settle(tokenizer)
        constraint = None
        if instr.constraint is not None:
            with constraint_errors():
                constraint = target.matcher(row.constraints[instr.constraint])
        self.request = GenRequest(
            keys=self.state.keys,
            priority=(row.order, instr.priority),
            params=params,
            sampling=sampling_of(row, params, instr.draw),
            constraint=constraint,
            stop_automata=tuple(row.constraints[index] for index in instr.stops),
            bias=target.bias(params.logit_bias),
        )
        self.on_text: Callable[[str], None] | None = None
        if row.stream is not None:
            lead = self.state.since(before)
            self.on_text = row.stream.writer(instr.into, instr.into_text, lead=lead)

    @property
    def call(self) -> int:
        """The register of its text."""
        return self.instr.into_text.index

    def done(self, result: Any) -> None:  # noqa: ANN401 - a GenResult or an error
        """Set what it gives."""
        executor, row, instr = self.executor, self.row, self.instr
        if isinstance(result, LmcError):
            fail(executor, row, instr, result)
            return
        if refuse_dropped(executor, row, instr):
            return
        assert isinstance(result, GenResult), "a gen request gives a GenResult"
        if not row.finished:
            row.meta[self.call] = CallMeta.of_gen(result, instr.params)
        executor.set(row, instr.into.index, self.state.after_gen(result))
        executor.set(row, self.call, result.text)


def gen(executor: Executor, row: Row, instr: p.Gen) -> None:
    """Handle `Gen`."""
    made = _Gen(executor, row, instr, executor.target.tokenizer)
    submit(executor, row, made.request, made.done, made.on_text, made.call, instr)


def chain(executor: Executor, row: Row, instr: p.Chain) -> None:
    """Handle `Chain`."""
    _Chain(executor, row, instr).begin()


class _Chain:
    """A chain of a row: where it stands, from its first gen to its last."""

    def __init__(self, executor: Executor, row: Row, instr: p.Chain) -> None:
        self._executor = executor
        self._row = row
        self._links = instr.links
        self._at = 0  # the link that is going on
        self._gen: _Gen | None = None  # the same, if it is one
        self._ended: Callable[[Any], None] | None = None  # to be called at its end
        self._handle: Handle | None = None
        self._over = False
        self._tokenizer = SpanAhead(executor.target.tokenizer)

    def begin(self) -> None:
        """Submit the first gen."""
        request = self._advance()
        if request is None:
            return
        row = self._row
        on_text = None if row.stream is None else self._say
        self._handle = hand_over(self._executor, row, request, self._done, on_text, None)
        self._note_call()

    def _note_call(self) -> None:
        """Have the row know which call the request is at; races ask for it."""
        if self._handle is not None and self._gen is not None:
            self._row.handles[self._handle] = self._gen.call

    def _say(self, text: str) -> None:
        if self._gen is not None and self._gen.on_text is not None:
            self._gen.on_text(text)

    def _advance(self) -> GenRequest | None:
        """Go to the next gen; its request, or None if there is none or something fails."""
        while self._at < len(self._links):
            link = self._links[self._at]
            assert isinstance(link, (p.Gen, p.Extend, p.Role)), "plans have no other links"
            before = self._row.regs[link.state.index]
            if type(before) is Failure:
                self._fail(before.error)
                break
            try:
                if isinstance(link, p.Gen):
                    return self._request(link)
                if isinstance(link, p.Extend):
                    extend(self._executor, self._row, link)
                else:
                    role(self._executor, self._row, link)
            except LmcError as error:
                self._fail(error.at(link.at))
            except Exception as error:  # a fault of ours in one row must not reach the others
                fault = InternalError(f"{link.op}: {error!r}", link.at)
                fault.__cause__ = error
                self._fail(fault)
            self._at += 1
        self._over = True
        return None

    def _request(self, link: p.Gen) -> GenRequest | None:
        """The request of a gen; None if its branch of a race has lost meanwhile."""
        executor, row = self._executor, self._row
        if refuse_dropped(executor, row, link):
            self._at += 1
            self._fail(row.regs[link.into.index].error)
            self._over = True
            return None
        made = self._gen = _Gen(executor, row, link, self._tokenizer)
        if self._at + 1 < len(self._links):
            made.request.follow = self.follow
            executor.in_spare_time(self._look_ahead)
        self._ended = observed(executor, row, link, made.request, made.done)
        return made.request

    def _look_ahead(self) -> None:
        """Tokenize what will stand between the gen that is going on and the next one."""
        if self._over or self._row.finished or self._gen is None:
            return
        executor, links = self._executor, self._links[self._at + 1 :]
        with contextlib.suppress(Exception):  # said when it is reached
            state = state_ahead(self._row, self._gen.state, links, executor.target.template)
            if state is not None:
                state.settle(self._tokenizer)

    def _fail(self, error: LmcError) -> None:
        """Have this link and all after it fail."""
        failure = Failure(error)
        for link in self._links[self._at :]:
            for index in link.writes():
                self._executor.set(self._row, index, failure)
        self._at = len(self._links)

    def follow(self, result: GenResult) -> GenRequest | None:
        """Take what a gen gave, and give the request of the next one."""
        row = self._row
        try:
            self._end_gen(result)
            if not row.finished:
                request = self._advance()
                self._note_call()
                return request
        except Exception as error:  # called by the engine, whose other requests must go on
            self._executor.fault(row, error)
        self._over = True
        return None

    def _end_gen(self, result: Any) -> None:  # noqa: ANN401 - a GenResult or an error
        assert self._ended is not None, "a gen was submitted"
        self._ended(result)
        self._at += 1

    def _done(self, result: Any) -> None:  # noqa: ANN401 - a GenResult or an error
        """The request has ended: with its last gen, or before it."""
        if self._over:
            return
        self._over = True
        self._end_gen(result)
        if self._at < len(self._links) and self._gen is not None:
            held = self._row.regs[self._gen.instr.into.index]
            stopped = Cancelled("the request was cancelled")
            self._fail(held.error if type(held) is Failure else stopped)
