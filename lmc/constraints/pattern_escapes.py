r"""What an escape in a regular expression stands for: one character, or a set of them.

Promises    `\d` and the like mean what the dialect and the flags in force say; what means
            nothing, or no character, is an error with its place marked.
Not here    escapes that are no characters (`\b`, `\1`), which are tokens of their own (`scanner`).
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import NoReturn

from lmc.constraints.charset import CharSet, category, digits, spaces, word_chars
from lmc.errors import ConstraintError

__all__ = ["OCTAL", "Reader", "pattern_error"]

_SIMPLE = {"f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
OCTAL = "01234567"
_HEX = "0123456789abcdefABCDEF"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ECMA_SPACES = CharSet.chars("\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff") | CharSet(
    (0x2000, 0x200B)
)


def pattern_error(
    pattern: str, position: int, problem: str, *, end: int | None = None, hint: str | None = None
) -> ConstraintError:
    """An error with the place marked by carets under the pattern; positions count from 0."""
    begin = max(0, position - 36)
    shown = pattern[begin : begin + 72]
    visible = "".join(c if c.isprintable() else "\u00b7" for c in shown)
    before = "..." if begin else ""
    after = "..." if begin + 72 < len(pattern) else ""
    width = max(1, min((end or position + 1), begin + len(shown)) - position)
    marks = " " * (len(before) + position - begin) + "^" * width
    return ConstraintError(
        f"{problem} at position {position} of the pattern\n"
        f"    {before}{visible}{after}\n    {marks}",
        hint=hint,
    )


@dataclass
class Reader:
    """Where one stands in a pattern, and the flags that are in force there."""

    pattern: str
    ecma: bool = False
    _at: int = 0
    _flags: frozenset[str] = frozenset()

    def _fail(
        self, position: int, problem: str, *, end: int | None = None, hint: str | None = None
    ) -> NoReturn:
        raise pattern_error(self.pattern, position, problem, end=end, hint=hint)

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self.pattern[at] if at < len(self.pattern) else ""

    def _take(self, text: str) -> bool:
        if self.pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _until(self, stop: str, start: int, missing: str) -> str:
        end = self.pattern.find(stop, self._at)
        if end < 0:
            self._fail(start, missing)
        found = self.pattern[self._at : end]
        self._at = end + len(stop)
        return found

    @property
    def _ascii(self) -> bool:
        return self.ecma or "a" in self._flags

    def _word(self) -> CharSet:
        return word_chars(ascii_only=self._ascii)

    def _class_or_char(self, start: int) -> CharSet | int:
        """What an escape stands for, inside or outside a class: a set or one character."""
        char = self._peek(1)
        self._at += 2
        sets = {
            "d": lambda: digits(ascii_only=self._ascii),
            "s": lambda: _ECMA_SPACES if self.ecma else spaces(ascii_only=self._ascii),
            "w": self._word,
        }
        if char.lower() in sets and char in "dDsSwW":
            found = sets[char.lower()]()
            return found if char.islower() else ~found
        if char in "pP":
            return self._property(start, negated=char == "P")
        if char in _SIMPLE:
            return ord(_SIMPLE[char])
        if char == "a" and not self.ecma:
            return 7
        if char == "x":
            return self._hex(start, 2)
        if char == "u":
            if self.ecma and self._take("{"):
                return self._code(start, self._until("}", start, "this escape is never closed"))
            return self._pair(start, self._hex(start, 4, surrogates=True))
        if char == "U" and not self.ecma:
            return self._hex(start, 8)
        if char == "N" and not self.ecma:
            return self._named(start)
        if char == "0":
            digits_ = ""
            while not self.ecma and len(digits_) < 2 and self._peek() and self._peek() in OCTAL:
                digits_ += self._peek()
                self._at += 1
            return int("0" + digits_, 8)
        if char == "c" and self.ecma and self._peek() and self._peek() in _LETTERS:
            self._at += 1
            return ord(self.pattern[self._at - 1]) % 32
        if char in _LETTERS:
            self._fail(start, f"\\{char} means nothing", end=self._at)
        return ord(char)

    def _hex(self, start: int, count: int, *, surrogates: bool = False) -> int:
        text = self.pattern[self._at : self._at + count]
        if len(text) < count or not all(c in _HEX for c in text):
            self._fail(start, f"this escape needs {count} hexadecimal digits", end=self._at)
        self._at += count
        return self._code(start, text, surrogates=surrogates)

    def _code(self, start: int, text: str, *, surrogates: bool = False) -> int:
        if not text or not all(c in _HEX for c in text) or int(text, 16) > 0x10FFFF:
            self._fail(start, "there is no such character", end=self._at)
        code = int(text, 16)
        if 0xD800 <= code < 0xE000 and not surrogates:
            self._fail(start, "a surrogate is no character", end=self._at)
        return code

    def _pair(self, start: int, code: int) -> int:
        """A character written as two surrogates, as ECMAScript has it."""
        if not 0xD800 <= code < 0xE000:
            return code
        if self.ecma and code < 0xDC00 and self._take("\\u"):
            low = self._hex(start, 4, surrogates=True)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return self._fail(start, "a surrogate is no character", end=self._at)

    def _named(self, start: int) -> int:
        if not self._take("{"):
            self._fail(start, "a name in braces must follow \\N", end=self._at)
        name = self._until("}", start, "the character's name is not closed")
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            self._fail(start, f"no character is named {name!r}", end=self._at)

    def _property(self, start: int, *, negated: bool) -> CharSet:
        name = self._peek()
        if self._take("{"):
            name = self._until("}", start, "the property's name is not closed")
        else:
            self._at += 1
        if name.startswith("^"):
            name, negated = name[1:], not negated
        found = category(name) if name else None
        if found is None:
            self._fail(
                start,
                f"the property {name!r} is not known",
                end=self._at,
                hint="general categories are: L, Lu, Nd, Letter, ...",
            )
        return ~found if negated else found
