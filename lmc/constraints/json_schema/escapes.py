"""Texts as JSON writes them: expressions over characters become expressions over their spellings.

A text is decoded from its spelling in one way only, character by character, so that the spelling of
an intersection is the intersection of the spellings, and likewise for complements within all
spellings. Two ways of writing are known:

    EVERY    any character also as an escape, `\\u0041` or `\\/`; two surrogates are one character
    NEEDED   escapes only where JSON needs them, the short one if there is one: one spelling a text
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import lru_cache

from lmc.constraints.charset import ANY, CharSet
from lmc.constraints.expression import (
    ALL,
    EPSILON,
    START,
    Alt,
    Atomic,
    Both,
    Chars,
    Except,
    Expression,
    Look,
    Not,
    Repeat,
    Seq,
    Text,
    one_of,
    words,
)

__all__ = ["EVERY", "NEEDED", "Ways", "escaped", "quoted", "quoted_others", "quoted_texts"]

_RAW = ANY - CharSet.of([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_SHORT = {
    0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x2F: "/", 0x5C: "\\",
}  # fmt: skip


class Ways(enum.Enum):
    """How characters may be written; see the module's text."""

    EVERY = "every"
    NEEDED = "needed"


EVERY, NEEDED = Ways.EVERY, Ways.NEEDED


def quoted_texts(texts: Iterable[str]) -> Expression:
    """Any of these texts, each in its one spelling, with quotation marks."""
    return Seq((Text('"'), words([escaped(t) for t in texts]), Text('"')))


def escaped(text: str) -> str:
    """A text in its one spelling, without quotation marks."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return "".join(_needed(ord(c)) for c in text)


def _needed(code: int) -> str:
    if code in _RAW:
        return chr(code)
    short = _SHORT.get(code)
    return "\\" + short if short else f"\\u{code:04x}"


def quoted(expression: Expression, ways: Ways) -> Expression:
    """The spellings of all texts of an expression, with quotation marks."""
    return Seq((Text('"'), _Spelling(ways).of(expression), Text('"')))


def quoted_others(texts: Iterable[str]) -> Expression:
    """Any text but these, in its one spelling, with quotation marks."""
    spelled = sorted(escaped(text) for text in texts)
    if any("\\" in text for text in spelled):
        every = _Spelling(NEEDED).of(ALL)
        return Seq((Text('"'), Both((every, Not(one_of(spelled)))), Text('"')))
    return Seq((Text('"'), Except(Chars(_RAW), _ESCAPES, tuple(spelled)), Text('"')))


class _Spelling:
    """Rewrites one expression; parts that occur twice are rewritten once."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self._done: dict[int, Expression] = {}

    def of(self, node: Expression) -> Expression:
        found = self._done.get(id(node))
        if found is None:
            found = self._done[id(node)] = self._of(node)
        return found

    def _of(self, node: Expression) -> Expression:
        match node:
            case Chars(chars):
                return _spelled(chars, self.ways)
            case Text(text):
                if self.ways is NEEDED:
                    return Text(escaped(text))
                return Seq(tuple(_spelled(CharSet.chars(c), self.ways) for c in text))
            case Seq(items):
                return Seq(tuple(self.of(i) for i in items))
            case Alt(items):
                return Alt(tuple(self.of(i) for i in items))
            case Both(items):
                return Both((*(self.of(i) for i in items), self.of(ALL)))
            case Repeat(item, low, high, lazy):
                return Repeat(self.of(item), low, high, lazy)
            case Not(item):
                return Both((self.of(ALL), Not(self.of(item))))
            case Look(item, behind, negative):
                if behind:
                    # From the beginning on, so that `\\\\n` is not taken for a line break.
                    return Look(Seq((START, self.of(ALL), self.of(item))), behind, negative)
                return Look(self.of(item), behind, negative)
            case Atomic(item):
                return Atomic(self.of(item))
            case _:
                return node  # a reference; what it stands for is spelled by itself


@lru_cache(maxsize=4096)
def _spelled(chars: CharSet, ways: Ways) -> Expression:
    raw = chars & _RAW
    arms: list[Expression] = [Chars(raw)] if raw else []
    if ways is EVERY:
        short = "".join(letter for code, letter in _SHORT.items() if code in chars)
        basic, astral = _hexadecimal(chars)
        if short:
            arms.append(Seq((Text("\\"), Chars(CharSet.chars(short)))))
        arms += [Seq((Text("\\u"), e)) for e in (*basic, *astral)]
    else:
        letters, codes = "", []
        for code in (chars - _RAW).codes():
            if code in _SHORT:
                letters += _SHORT[code]
            else:
                codes.append(f"\\u{code:04x}")
        if letters:
            arms.append(Seq((Text("\\"), Chars(CharSet.chars(letters)))))
        if codes:
            arms.append(one_of(codes))
    return arms[0] if len(arms) == 1 else Alt(tuple(arms))


def _hexadecimal(chars: CharSet) -> tuple[list[Expression], list[Expression]]:
    """What follows `\\u` for the characters of the basic plane, and for those beyond it."""
    basic: list[Expression] = []
    astral: list[Expression] = []
    for low, high in chars.ranges():
        if low <= 0xFFFF:
            basic += _hex_range(low, min(high, 0xFFFF), 4)
        if high > 0xFFFF:
            first, last = max(low, 0x10000) - 0x10000, high - 0x10000
            for upper_low, upper_high, lower_low, lower_high in _pairs(first, last):
                upper = Alt(tuple(_hex_range(0xD800 + upper_low, 0xD800 + upper_high, 4)))
                lower = Alt(tuple(_hex_range(0xDC00 + lower_low, 0xDC00 + lower_high, 4)))
                astral.append(Seq((upper, Text("\\u"), lower)))
    return basic, astral


def _pairs(first: int, last: int) -> list[tuple[int, int, int, int]]:
    """A range of 20-bit numbers as products of ranges of their upper and lower ten bits."""
    a, b = divmod(first, 0x400)
    c, d = divmod(last, 0x400)
    if a == c:
        return [(a, a, b, d)]
    found = []
    if b:
        found.append((a, a, b, 0x3FF))
        a += 1
    if d != 0x3FF:
        found.append((c, c, 0, d))
        c -= 1
    if a <= c:
        found.append((a, c, 0, 0x3FF))
    return found


def _hex_range(low: int, high: int, digits: int) -> list[Expression]:
    """Hexadecimal numbers of so many digits, in either case."""
    if digits == 0:
        return [EPSILON]
    unit = 16 ** (digits - 1)
    a, b = divmod(low, unit)
    c, d = divmod(high, unit)
    if a == c:
        return [Seq((_hex_digits(a, a), *_one(_hex_range(b, d, digits - 1))))]
    found: list[Expression] = []
    if b:
        found.append(Seq((_hex_digits(a, a), *_one(_hex_range(b, unit - 1, digits - 1)))))
        a += 1
    if d != unit - 1:
        found.append(Seq((_hex_digits(c, c), *_one(_hex_range(0, d, digits - 1)))))
        c -= 1
    if a <= c:
        rest = digits - 1
        free = Repeat(_hex_digits(0, 15), rest, rest)
        found.append(Seq((_hex_digits(a, c), free)) if rest else _hex_digits(a, c))
    return found


def _one(arms: list[Expression]) -> tuple[Expression, ...]:
    if arms == [EPSILON]:
        return ()
    return (arms[0],) if len(arms) == 1 else (Alt(tuple(arms)),)


def _hex_digits(low: int, high: int) -> Expression:
    digits = "0123456789abcdef"[low : high + 1]
    return Chars(CharSet.chars(digits + digits.upper()))


_ESCAPES = _spelled(ANY - _RAW, NEEDED)
