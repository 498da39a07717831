"""The `with` blocks of a prompt state: messages, named text; and marks to come back to."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lmc.errors import Location, UsageError
from lmc.frontend.variables import Entry, Row, texts_since

if TYPE_CHECKING:
    from lmc.frontend.dsl import State
    from lmc.frontend.recorder import Recorder

__all__ = ["Block", "Mark", "Message", "Naming", "with_article"]


@dataclass(frozen=True, eq=False)
class Mark:
    """A place in a prompt, for `State.reset`."""

    recorder: Recorder
    ref: Any  # the recorder's name of the state
    log: Entry | None
    open: tuple[Block, ...]


class Block:
    """A `with` block of a state."""

    def __init__(self, state: State, at: Location | None) -> None:
        self._state = state
        self._at = at

    def __enter__(self) -> State:
        self._state._check_open(self._at)
        self._begin()
        self._state._open = (*self._state._open, self)
        return self._state

    def __exit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        state = self._state
        state._open = tuple(block for block in state._open if block is not self)
        if kind is None or issubclass(kind, Exception):
            self._end(failed=kind is not None)

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self, *, failed: bool) -> None:
        raise NotImplementedError


class Message(Block):
    """A message of a chat, open inside its `with` block."""

    def __init__(self, state: State, role: str, at: Location | None) -> None:
        super().__init__(state, at)
        self.role = role

    def _begin(self) -> None:
        state = self._state
        around = next((block for block in state._open if isinstance(block, Message)), None)
        if around is not None:
            hint = "end the first `with` block before the second begins"
            if around._state is not state:  # a branch, forked inside of the message
                hint = f"fork after the {around.role} message has ended"
            raise UsageError(
                f"{with_article(self.role)} message inside {with_article(around.role)} message",
                self._at,
                hint=hint,
            )
        state._ref = state._recorder.role(state._ref, self.role, "begin", self._at)
        state._log = Entry(state._log, "begin", self.role)

    def _end(self, *, failed: bool) -> None:  # noqa: ARG002 - a message ends in any case
        state = self._state
        state._ref = state._recorder.role(state._ref, self.role, "end", self._at)
        state._log = Entry(state._log, "end", self.role)


class Naming(Block):
    """Text that becomes a variable, open inside its `with` block."""

    def __init__(self, state: State, name: str, at: Location | None) -> None:
        super().__init__(state, at)
        self._name = name
        self._start: Entry | None = None

    def _begin(self) -> None:
        self._start = self._state._log

    def _end(self, *, failed: bool) -> None:
        if not failed:
            parts = texts_since(self._start, self._state._log, self._at)
            self._state._variables[self._name] = Row(parts)


def with_article(role: str) -> str:
    """The name of a role as messages have it: an assistant, a user."""
    return f"an {role}" if role[:1] in "aeio" else f"a {role}"
