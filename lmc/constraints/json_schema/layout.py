"""Where blanks stand between the parts of a JSON text.

compact    nowhere
pretty     as `json.dumps(..., indent=2)` writes it, compact from `MOST_INDENTED` levels on
flexible   anywhere between two parts, at most `MOST_BLANKS` in a row
"""

from __future__ import annotations

from dataclasses import dataclass

from lmc.constraints.charset import CharSet
from lmc.constraints.expression import EPSILON, Chars, Expression, Repeat, Seq, Text
from lmc.errors import ConstraintError

__all__ = ["MOST_BLANKS", "MOST_INDENTED", "Layout"]

MOST_BLANKS = 16
MOST_INDENTED = 8
_BLANKS = Repeat(Chars(CharSet.chars(" \t\n\r")), 0, MOST_BLANKS)


@dataclass(frozen=True, slots=True)
class Layout:
    """One way of placing blanks.

    Raises:
        ConstraintError: there is no such way.
    """

    whitespace: str = "compact"

    def __post_init__(self) -> None:
        if self.whitespace not in ("compact", "pretty", "flexible"):
            raise ConstraintError(
                f"there is no whitespace {self.whitespace!r}",
                hint="it is compact, pretty or flexible",
            )

    def level(self, depth: int) -> int:
        """The depth as far as it makes a difference."""
        return min(depth, MOST_INDENTED) if self.whitespace == "pretty" else 0

    def empty(self, brackets: str) -> Expression:
        """An array or object without anything in it."""
        if self.whitespace == "flexible":
            return Seq((Text(brackets[0]), _BLANKS, Text(brackets[1])))
        return Text(brackets)

    def opening(self, bracket: str, depth: int) -> Expression:
        """A bracket and what stands before the first item; `depth` is that of the container."""
        return Seq((Text(bracket), self._break(depth + 1)))

    def closing(self, bracket: str, depth: int) -> Expression:
        """What stands behind the last item, and the bracket."""
        return Seq((self._break(depth + 1, depth), Text(bracket)))

    def comma(self, depth: int) -> Expression:
        """What stands between two items."""
        if self.whitespace == "flexible":
            return Seq((_BLANKS, Text(","), _BLANKS))
        return Seq((Text(","), self._break(depth + 1)))

    def colon(self, depth: int) -> Expression:
        """What stands between a name and its value."""
        if self.whitespace == "flexible":
            return Seq((_BLANKS, Text(":"), _BLANKS))
        return Text(": " if self._breaks(depth) else ":")

    def _breaks(self, depth: int) -> bool:
        return self.whitespace == "pretty" and depth < MOST_INDENTED

    def _break(self, level: int, indent: int | None = None) -> Expression:
        """What separates items at a level, indented as they are or as said."""
        if self.whitespace == "flexible":
            return _BLANKS
        if self._breaks(level - 1):
            return Text("\n" + "  " * (level if indent is None else indent))
        return EPSILON
