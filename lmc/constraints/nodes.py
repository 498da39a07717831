"""What terms are made of: the kinds of expressions over the classes of an alphabet.

    EMPTY  EPS  ALL           no text; the empty text; every text
    CHARS(mask)               one character of a set of classes
    WORD(mask, mask, ..)      several such characters in a row
    CAT(head, tail)           heads are never CAT: chains lean to the right
    REP(item, low, high)      a counter is a number in a term, never unrolled
    ALT, AND, NOT             sets of terms
    VAR(number)               a name for its `body`, which may contain it behind a character
    BEHIND(n)                 ALL or EMPTY (or more) by what was read: look-behind number n
    MARK                      the place where a look-behind ends
    CLOSED(term, trackers)    a term with the trackers of its look-behinds, from its own beginning

Owns        nothing; an `Arena` makes them (`terms`).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["LETTERS", "UNBOUNDED", "Kind", "Moves", "Rule", "Term"]

UNBOUNDED = -1


class Kind:
    """What a term is; plain integers, since they are compared a great deal."""

    EMPTY, EPS, ALL, CHARS, WORD, CAT, REP, ALT, AND, NOT, VAR, BEHIND, MARK, CLOSED = range(14)


LETTERS = (Kind.CHARS, Kind.WORD)


class Term:
    """One node; made by an `Arena` only, compared by identity.

    Attributes:
        kind: see `Kind`.
        args: a mask, or some; (head, tail); (item, low, high); a tuple of terms; (term,); a number;
            (term, tracker, ...).
        number: order of making; sorts the members of sets.
        plain: free of AND, NOT, VAR, CLOSED: then it is not empty, and `least` is exact.
        least: a lower bound of the length in bytes of its shortest text.
        open: contains VAR, BEHIND or MARK, so that its front may have to be replaced.
        marked: every text of it runs through MARK.
        empty_text: whether it holds the empty text; None until that is known.
        derived: its derivatives, once they are known.
        body: what a VAR stands for, once that is said.
    """

    __slots__ = (
        "args", "body", "derived", "empty_text", "kind", "least", "marked", "number", "open",
        "plain",
    )  # fmt: skip

    kind: int
    args: tuple  # type: ignore[type-arg]
    number: int
    plain: bool
    least: int
    open: bool
    marked: bool
    empty_text: bool | None
    derived: Moves | None
    body: Term | None

    def __repr__(self) -> str:
        names = [k for k in vars(Kind) if k.isupper()]
        return f"{names[self.kind]}{self.args!r}"


class Rule(Term):
    """A VAR whose body is made when it is first asked for; made by an `Arena` only.

    Attributes:
        roams: the classes of which any text may come next, however long; see `roaming`.
    """

    __slots__ = ("made", "make", "roams")

    make: Callable[[], Term]
    made: Term
    roams: int

    def forget(self) -> None:
        """Let go of the body and of what makes it."""
        self.make = _nothing
        if hasattr(self, "made"):
            del self.made

    @property
    def body(self) -> Term:  # type: ignore[override]
        """What the name stands for."""
        try:
            return self.made
        except AttributeError:
            self.made = self.make()
            return self.made


def _nothing() -> Term:
    raise AssertionError("a term was used after its automaton was gone")


Moves = tuple[tuple[int, Term], ...]
