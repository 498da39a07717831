"""A place in a constraint, moved by tokens: what one request holds while it generates."""

from __future__ import annotations

from lmc.constraints.automaton import Automaton
from lmc.constraints.forcing import Path
from lmc.constraints.machine import DEAD
from lmc.constraints.rows import MaskArray
from lmc.constraints.tables import TokenTable
from lmc.constraints.tabulating import want_table
from lmc.constraints.token_classes import TokenState
from lmc.constraints.vocabulary import Vocabulary
from lmc.errors import ConstraintError

__all__ = ["TokenMatcher"]


class TokenMatcher:
    """Where a generation stands in its constraint. Cheap; everything costly is shared.

    Not for several threads at once: give each its own by `fork`. They share all tables safely.

    Raises:
        ConstraintError: nothing matches, or the vocabulary cannot spell anything that does.
    """

    __slots__ = ("_ended", "_path", "_place", "_start", "_table", "automaton")

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        start = automaton.machine.start
        if start is None:
            raise ConstraintError("nothing can match this constraint")
        self.automaton = automaton
        self._table: TokenTable = vocabulary.table(automaton.machine)
        self._start = start
        self._place = start
        self._path: Path | None = None
        self._ended = False
        speller = self._table.speller
        if speller is not None and not speller.is_good(start):
            raise ConstraintError(
                f"the vocabulary cannot spell anything that matches: {speller.reason(start)}",
                hint="use another tokenizer, or a constraint in characters that it knows",
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary it was made for."""
        return self._table.vocabulary

    @property
    def place(self) -> tuple[int, bool]:
        """Where it stands: at equal places of one automaton, equal texts may follow."""
        return self._place, self._ended

    def mask(self) -> MaskArray:
        """Which tokens may come next.

        Returns:
            bool, shape (vocabulary,), shared and read-only. A token is allowed exactly if the
            constraint can still be completed after it; the end tokens exactly where it is
            complete; nothing after an end token.
        """
        if self._ended:
            return self._table.nothing
        return self._table.mask(self._place)

    def mask_within(self, tokens: int) -> MaskArray:
        """Which tokens may come next so that the constraint is complete after `tokens` in all.

        The mask, without the tokens that lead where `tokens - 1` more are not enough for the
        shortest completion; like `mask` while the budget is large. Where it is too small already,
        the tokens that lead to the nearest end. The end token is not counted.
        """
        if self._ended:
            return self._table.nothing
        return self._table.mask_within(self._place, tokens)

    def shortest_tokens(self, most: int | None = None) -> int:
        """How many tokens the tokenizer makes of the shortest text from here.

        Args:
            most: where it is clear without counting that there are more, some number above `most`
                is given; so a caller with a budget does not wait for what cannot fit.
        """
        return 0 if self._ended else self._table.closer.cost(self._place, most)

    def reserve(self, there: int = 0, least: int = 0) -> int:
        """How many tokens the shortest end may take after whatever comes next.

        While more are left no token need be left out: `mask_within` is `mask`.

        Args:
            there: how many tokens are left; where that is plenty, a greater number is given, which
                is less work.
            least: what is given at least where the number is a guess, as with conjunctions.
        """
        if self._ended:
            return 0
        tokens, sure = self._table.closer.reserve(self._place, there)
        return tokens if sure else max(tokens, least)

    def want_states(self) -> None:
        """Say that a request could use `state`; tables are made when enough have said so."""
        want_table(self.automaton.machine, self._table)

    def state(self) -> TokenState | None:
        """Where it stands, for a device that goes on by itself; None where it has no table."""
        classes = self._table.classes
        if classes is None or self._ended:
            return None
        number = classes.numbers.get(self._place)
        return None if number is None else TokenState(classes, number)

    def advance(self, token: int) -> None:
        """Take a token.

        Raises:
            ValueError: the token is not allowed here, or there is none of that number.
        """
        if not self._ended and 0 <= token < len(self.vocabulary):
            after = self._table.step(self._place, token)
            if after != DEAD:
                self._place = after
                self._path = (token, self._path)
                return
            if token in self.vocabulary.eos and self.is_complete():
                self._ended = True
                return
        raise ValueError(f"token {token} is not allowed here")

    def forced(self) -> list[int]:
        """The tokens that must come next whatever the model prefers; may be empty.

        Where only one text can follow, these are the tokenizer's own tokens of it, without those
        at its end whose boundary something that may still follow could move. Masks never depend
        on what is forced.
        """
        return [] if self._ended else list(self._table.forced(self._place, self._path))

    def remaining(self, most: int) -> str | None:
        """The only text that can follow, if nothing can come after it.

        None if there are more, or if it has more than `most` bytes.
        """
        return "" if self._ended else self._table.remaining(self._place, most)

    def is_complete(self) -> bool:
        """Whether the text so far matches: an end token is allowed."""
        return self._ended or self._table.machine.accepts(self._place)

    def is_finished(self) -> bool:
        """Whether the text so far matches and nothing can follow."""
        return self._ended or self._table.machine.is_final(self._place)

    def shortest(self) -> int:
        """How many bytes the shortest text has that completes the constraint from here."""
        return 0 if self._ended else self._table.machine.least_bytes(self._place)

    def reset(self) -> None:
        """Go back to the beginning."""
        self._place, self._path, self._ended = self._start, None, False

    def fork(self) -> TokenMatcher:
        """Another matcher at the same place."""
        twin = object.__new__(TokenMatcher)
        twin.automaton, twin._table = self.automaton, self._table
        twin._start, twin._place, twin._path = self._start, self._place, self._path
        twin._ended = self._ended
        return twin
