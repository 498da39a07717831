"""What a trace knows of texts that it does not know: what they can be, and what was decided.

Owns        which values are the same and which few texts one can be, on all ways; on the way that
            is followed, what was decided and which texts that leaves.
Promises    what is known of a value is known of all that are the same: a program that asks twice
            whether `x.strip() == "yes"` takes a way for each answer, not one for each question.
Not here    which way is followed (`tracer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lmc.ir.core import Const, Op, Operand, Value

__all__ = ["MAX_TEXTS", "Fact", "Knowledge"]

MAX_TEXTS = 16  # that a text can be, for each to have a way of its own

Fact = Value | tuple[Value, str]
"""A condition: a truth value, or that a text is this one."""


@dataclass(frozen=True, slots=True)
class _Domain:
    """The few texts that a value can be; if not `exact`, also a part of one."""

    texts: tuple[str, ...]
    exact: bool


class Knowledge:
    """Of one program; `begin` forgets what held on the way before."""

    def __init__(self) -> None:
        self._domains: dict[Value, _Domain] = {}
        self._facts: dict[Value, tuple[Fact, bool]] = {}
        self._firsts: dict[Op, Value] = {}  # by ops whose operands are first ones, too
        self._first_of: dict[Value, Value] = {}  # of values that are the same as an earlier one
        self.begin()

    def begin(self) -> None:
        """A way is followed from its start."""
        self._decided: dict[Fact, bool] = {}
        self._texts: dict[Value, str] = {}

    def made(self, value: Value, op: Op) -> None:
        """Note what makes a value, where equal operands always make equal ones."""
        first = self._firsts.setdefault(op.substitute(self._first_of), value)
        if first is not value:
            self._first_of[value] = first

    def _first(self, value: Value) -> Value:
        """The first of the values that are the same as this one: what is known is kept with it."""
        return self._first_of.get(value, value)

    def limit(self, value: Value, texts: Iterable[str], *, exact: bool) -> None:
        """Note that a text is one of these; if not `exact`, it may also be a part of one."""
        self._domains[self._first(value)] = _Domain(tuple(dict.fromkeys(texts)), exact)

    def limit_to_one_of(self, picked: Value, items: Sequence[Operand]) -> None:
        """Note that a text is one of several, if all that these can be is known."""
        domains = [self._domain_of(item) for item in items]
        if None not in domains:
            known = [d for d in domains if d is not None]
            texts = (text for d in known for text in d.texts)
            self.limit(picked, texts, exact=all(d.exact for d in known))

    def compared(self, made: Value, operands: Sequence[Operand], *, equal: bool) -> None:
        """Note that a truth value says whether two texts are equal, or whether they are not."""
        a, b = operands
        if isinstance(a, Const):
            a, b = b, a
        if isinstance(a, Value) and isinstance(b, Const):
            self._facts[self._first(made)] = (self._first(a), str(b.value)), equal

    def fact_of(self, value: Value) -> tuple[Fact, bool]:
        """The condition that a truth value stands for, and which value of it."""
        first = self._first(value)
        return self._facts.get(first, (first, True))

    def decided(self, fact: Fact) -> bool | None:
        """How a condition was decided on this way, if it was."""
        return self._decided.get(fact)

    def learn(self, fact: Fact, holds: bool) -> None:
        """Note that a condition holds on this way, or that it does not."""
        self._decided[fact] = holds
        if isinstance(fact, Value):
            return
        text, known = fact
        if holds:
            self._texts[text] = known
        elif (domain := self._domains.get(text)) and domain.exact:
            left = [t for t in domain.texts if self._decided.get((text, t), True)]
            if len(left) == 1:
                self._texts[text] = left[0]

    def text(self, value: Value) -> str | None:
        """What a text is on this way, if that is known."""
        return self._texts.get(self._first(value))

    def open_texts(self, value: Value) -> Iterator[str]:
        """What a text can still be, if it can be few enough for a way each; none once it is known.

        Asked for one by one: what is decided of one can tell what the text is.
        """
        first = self._first(value)
        domain = self._domains.get(first)
        for text in domain.texts if domain is not None and len(domain.texts) <= MAX_TEXTS else ():
            if first not in self._texts and self._decided.get((first, text)) is not False:
                yield text

    def _domain_of(self, operand: Operand) -> _Domain | None:
        if isinstance(operand, Const):
            return _Domain((operand.value,), exact=True) if type(operand.value) is str else None
        known = self.text(operand)
        return (
            self._domains.get(self._first(operand))
            if known is None
            else _Domain((known,), exact=True)
        )
