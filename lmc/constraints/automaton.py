"""The automaton of a constraint: what the compiler makes, a plan stores and the runtime runs.

It is an expression and the machine that walks it; the machine is made on first use and shared by
all automata with equal expressions, so that states and token masks are computed once a process.
"""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from typing import Any

from lmc.constraints import expression as ex
from lmc.constraints.machine import DEAD, Machine
from lmc.errors import ConstraintError, PlanError

__all__ = ["Automaton"]

_VERSION = 1
_shared: weakref.WeakValueDictionary[str, Machine] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


class Automaton:
    """A regular set of texts. Immutable; equal if made of equal expressions.

    Attributes:
        expression: what it was made of.
        digest: a name of its expression, the same in every process.
    """

    def __init__(self, expression: ex.Expression) -> None:
        self.expression = expression
        self._data = {"version": _VERSION, "kind": "regular", **ex.encode(expression)}
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
            return Automaton(ex.decode(data))
        except (KeyError, IndexError, TypeError, ValueError) as error:
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

    def checked(self, what: str) -> Automaton:
        """The same automaton, if anything matches; `what` names it in the error.

        Raises:
            ConstraintError: nothing can match.
        """
        if self.is_empty():
            raise ConstraintError(
                f"nothing can match {what}",
                hint="look for an empty class, or for conditions that exclude each other",
            )
        return self
