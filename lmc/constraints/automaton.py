"""The automaton of a constraint: what the compiler makes, a plan stores and the runtime runs.

It is an expression and the machine that walks it; the machine is made on first use and shared by
all automata with equal expressions, so that states and token masks are computed once a process.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lmc.constraints import expression as ex
from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.stored import decode, encode
from lmc.constraints.texts import random_text, shortest_text
from lmc.errors import ConstraintError, PlanError

if TYPE_CHECKING:
    from lmc.constraints.dfa import Dfa

__all__ = ["Automaton"]

_VERSION = 1
_shared: weakref.WeakValueDictionary[str, Machine] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


class Automaton:
    """A regular set of texts. Immutable; equal if made of equal expressions.

    Sets are combined by `|`, `&`, `-`, `~` (all other texts), `+` (one after the other), `star` and
    `repeat`; that costs nothing until the result is walked. Each operand keeps its own meaning: an
    anchor or a look-around in it never sees beyond it.

    Attributes:
        expression: what it was made of.
        digest: a name of its expression, the same in every process.
    """

    def __init__(self, expression: ex.Expression) -> None:
        self.expression = expression
        self._data = {"version": _VERSION, "kind": "regular", **encode(expression)}
        text = json.dumps(self._data, sort_keys=True, separators=(",", ":"))
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self._machine: Machine | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Automaton) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Automaton({self.digest[:12]})"

    @property
    def machine(self) -> Machine:
        """The states, made as they are needed; shared by equal automata."""
        if self._machine is None:
            with _shared_lock:
                machine = _shared.get(self.digest)
                if machine is None:
                    machine = _shared[self.digest] = Machine(self.expression)
                self._machine = machine
        return self._machine

    def to_json(self) -> dict[str, Any]:
        """The automaton as JSON values, read back by `from_json`."""
        return dict(self._data)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Automaton:
        """Read what `to_json` wrote.

        Raises:
            PlanError: the data is damaged or of another version.
        """
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise PlanError(
                "this automaton was written by another version of lmc",
                hint="compile the program again with this lmc",
            )
        try:
            return Automaton(decode(data))
        except ValueError as error:
            raise PlanError(f"the automaton is damaged: {error}") from error

    def is_empty(self) -> bool:
        """Whether nothing matches."""
        return self.machine.start is None

    def matches(self, text: str | bytes) -> bool:
        """Whether the whole text is in the set."""
        machine = self.machine
        if machine.start is None:
            return False
        if isinstance(text, str):
            try:
                text = text.encode()
            except UnicodeEncodeError:
                return False
        place = machine.run(machine.start, text)
        return place != DEAD and machine.accepts(place)

    def __or__(self, other: Automaton) -> Automaton:
        return Automaton(ex.Alt((self._closed, other._closed)))

    def __and__(self, other: Automaton) -> Automaton:
        return Automaton(ex.Both((self.expression, other.expression)))

    def __invert__(self) -> Automaton:
        return Automaton(ex.Not(self.expression))

    def __sub__(self, other: Automaton) -> Automaton:
        return Automaton(ex.Both((self.expression, ex.Not(other.expression))))

    def __add__(self, other: Automaton) -> Automaton:
        return Automaton(ex.Seq((self._closed, other._closed)))

    @staticmethod
    def sequence(parts: Sequence[Automaton]) -> Automaton:
        """Texts of all parts, one after the other."""
        return Automaton(ex.Seq(tuple(part._closed for part in parts)))

    def star(self) -> Automaton:
        """Any number of texts of this set, one after the other."""
        return self.repeat(0, None)

    def repeat(self, low: int, high: int | None) -> Automaton:
        """At least `low` and at most `high` texts of this set, one after the other."""
        return Automaton(ex.Repeat(self._closed, low, high))

    @cached_property
    def _closed(self) -> ex.Expression:
        """The expression, such that nothing in it looks at what stands around it."""
        if any(isinstance(node, ex.Look | ex.Atomic) for node in ex.walk(self.expression)):
            return ex.Both((self.expression,))
        return self.expression

    def includes(self, other: Automaton) -> bool:
        """Whether every text of `other` is in this set."""
        return (other - self).is_empty()

    def equivalent(self, other: Automaton) -> bool:
        """Whether both are the same set, however it is written."""
        return self == other or (self.includes(other) and other.includes(self))

    def shortest(self) -> str:
        """A text that is shortest in bytes.

        Raises:
            ConstraintError: there is none.
        """
        return shortest_text(self.machine, self._start())

    def sample(self, draw: random.Random, about: int = 20) -> str:
        """A random text that heads for its end after `about` characters.

        Raises:
            ConstraintError: there is none.
        """
        return random_text(self.machine, self._start(), draw, about)

    def _start(self) -> int:
        if self.machine.start is None:
            raise ConstraintError("nothing can match this constraint")
        return self.machine.start // self.machine.nodes

    def dfa(self, most: int = 50_000) -> Dfa:
        """The whole automaton over bytes, minimal; equal sets give the same object.

        Args:
            most: how many states may be made before minimising.

        Raises:
            BudgetError: there are more.
        """
        from lmc.constraints.dfa import explored

        return explored(self.machine, most)

    def checked(self, what: str) -> Automaton:
        """The same automaton, if anything matches; `what` names it in the error.

        Raises:
            ConstraintError: nothing can match, or it takes too long to find out what does.
        """
        if self.is_empty():
            raise ConstraintError(
                f"nothing can match {what}",
                hint="look for an empty class, or for conditions that exclude each other",
            )
        self.machine.least_bytes(self._start() * self.machine.nodes)  # known from now on
        return self
