"""Sets of Unicode characters, and those that regular expressions have names for.

The universe is the set of Unicode scalar values: surrogates are no characters, since no UTF-8 text
holds one. What `\\d`, `\\w` and `\\s` mean is asked of Python's own `re`, so that it is the same by
construction, in every version of Python.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

__all__ = [
    "ANY",
    "NOTHING",
    "CharSet",
    "category",
    "digits",
    "fold_case",
    "spaces",
    "word_chars",
]

_LAST = 0x110000
_SURROGATES = (0xD800, 0xE000)
# No character from here to the tags of plane 14, and none after them, has any property but
# "unassigned" or "private use"; skipping them makes scans five times shorter.
_DENSE_END = 0x33480
_TAGS = (0xE0000, 0xE01F0)


@dataclass(frozen=True, slots=True)
class CharSet:
    """A set of characters.

    Attributes:
        edges: code points, strictly increasing, an even number of them: the set begins at the
            first, ends before the second, begins again at the third, and so on.
    """

    edges: tuple[int, ...]

    @staticmethod
    def of(ranges: Iterable[tuple[int, int]]) -> CharSet:
        """The characters of inclusive ranges of code points, in any order; surrogates left out."""
        edges: list[int] = []
        for low, high in sorted(ranges):
            if edges and low <= edges[-1]:
                edges[-1] = max(edges[-1], high + 1)
            else:
                edges += (low, high + 1)
        made = CharSet(tuple(edges))
        low, high = _SURROGATES
        return made & ANY if made._touches(low, high) else made

    @staticmethod
    def chars(text: str) -> CharSet:
        """The characters that occur in `text`."""
        return CharSet.of((ord(c), ord(c)) for c in text)

    def __bool__(self) -> bool:
        return bool(self.edges)

    def __contains__(self, code: int) -> bool:
        return bisect_right(self.edges, code) % 2 == 1

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self.ranges())

    def __or__(self, other: CharSet) -> CharSet:
        return self._combined(other, 0b1110)

    def __and__(self, other: CharSet) -> CharSet:
        return self._combined(other, 0b1000)

    def __sub__(self, other: CharSet) -> CharSet:
        return self._combined(other, 0b0010)

    def __invert__(self) -> CharSet:
        return ANY - self

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The inclusive ranges of code points, ascending."""
        for i in range(0, len(self.edges), 2):
            yield self.edges[i], self.edges[i + 1] - 1

    def codes(self) -> Iterator[int]:
        """All code points, ascending."""
        for low, high in self.ranges():
            yield from range(low, high + 1)

    def _touches(self, low: int, high: int) -> bool:
        return low in self or bisect_right(self.edges, low) != bisect_right(self.edges, high - 1)

    def _combined(self, other: CharSet, table: int) -> CharSet:
        """The set of characters where bit `in_self + 2 * in_other` of `table` is set."""
        edges: list[int] = []
        mine, theirs = set(self.edges), set(other.edges)
        place, inside = 0, False
        for edge in sorted(mine | theirs):
            place ^= (edge in mine) + 2 * (edge in theirs)
            if bool(table >> place & 1) != inside:
                inside = not inside
                edges.append(edge)
        return CharSet(tuple(edges))


ANY = CharSet((0, _SURROGATES[0], _SURROGATES[1], _LAST))
NOTHING = CharSet(())


@cache
def _scanned() -> tuple[str, tuple[tuple[int, int, int], ...]]:
    """The characters that can have properties, as one text, and where its stretches come from."""
    blocks = ((0, _SURROGATES[0]), (_SURROGATES[1], _DENSE_END), _TAGS)
    places, at = [], 0
    for low, high in blocks:
        places.append((at, low, high - low))
        at += high - low
    codes = np.concatenate([np.arange(low, high, dtype="<u4") for low, high in blocks])
    return codes.tobytes().decode("utf-32-le"), tuple(places)


@cache
def _matched_by(pattern: str, flags: int = 0) -> CharSet:
    """The characters that Python's `re` matches with `pattern`."""
    text, places = _scanned()
    found: list[tuple[int, int]] = []
    for run in re.finditer(f"(?:{pattern})+", text, flags):
        for at, low, size in places:
            begin, end = max(run.start(), at), min(run.end(), at + size)
            if begin < end:
                found.append((begin - at + low, end - 1 - at + low))
    return CharSet.of(found)


def digits(*, ascii_only: bool = False) -> CharSet:
    r"""What `\d` matches."""
    return _matched_by(r"\d", re.ASCII if ascii_only else 0)


def spaces(*, ascii_only: bool = False) -> CharSet:
    r"""What `\s` matches."""
    return _matched_by(r"\s", re.ASCII if ascii_only else 0)


def word_chars(*, ascii_only: bool = False) -> CharSet:
    r"""What `\w` matches."""
    return _matched_by(r"\w", re.ASCII if ascii_only else 0)


_CATEGORY_NAMES = {
    "letter": "L", "cased_letter": "LC", "uppercase_letter": "Lu", "lowercase_letter": "Ll",
    "titlecase_letter": "Lt", "modifier_letter": "Lm", "other_letter": "Lo", "mark": "M",
    "combining_mark": "M", "nonspacing_mark": "Mn", "spacing_mark": "Mc", "enclosing_mark": "Me",
    "number": "N", "decimal_number": "Nd", "digit": "Nd", "letter_number": "Nl",
    "other_number": "No", "punctuation": "P", "punct": "P", "connector_punctuation": "Pc",
    "dash_punctuation": "Pd", "open_punctuation": "Ps", "close_punctuation": "Pe",
    "initial_punctuation": "Pi", "final_punctuation": "Pf", "other_punctuation": "Po",
    "symbol": "S", "math_symbol": "Sm", "currency_symbol": "Sc", "modifier_symbol": "Sk",
    "other_symbol": "So", "separator": "Z", "space_separator": "Zs", "line_separator": "Zl",
    "paragraph_separator": "Zp", "other": "C", "control": "Cc", "cntrl": "Cc", "format": "Cf",
    "private_use": "Co", "unassigned": "Cn", "surrogate": "Cs",
}  # fmt: skip


@cache
def _by_category() -> dict[str, CharSet]:
    text, places = _scanned()
    ranges: dict[str, list[tuple[int, int]]] = {}
    for at, low, size in places:
        code = low
        for kind, run in itertools.groupby(map(unicodedata.category, text[at : at + size])):
            length = sum(1 for _ in run)
            ranges.setdefault(kind, []).append((code, code + length - 1))
            code += length
    sets = {kind: CharSet.of(found) for kind, found in ranges.items()}
    for low, high in ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)):
        sets["Co"] |= CharSet.of([(low, high)])
    assigned = NOTHING
    for kind, found in sets.items():
        if kind != "Cn":
            assigned |= found
    sets["Cn"] = ANY - assigned
    sets["Cs"] = NOTHING
    return sets


@cache
def category(name: str) -> CharSet | None:
    r"""The characters of a general category, as in `\p{Lu}`; None if there is no such category.

    Takes short and long names, groups such as `L`, and the prefixes `gc=` and
    `General_Category=`; also `Any`, `ASCII` and `Assigned`.

    Source: Unicode Standard Annex #44, table 12.
    """
    plain = name.replace(" ", "_").replace("-", "_")
    prefix, equals, value = plain.partition("=")
    if equals:
        if prefix.lower() not in ("gc", "general_category"):
            return None
        plain = value
    special = {
        "any": lambda: ANY,
        "ascii": lambda: CharSet.of([(0, 0x7F)]),
        "assigned": lambda: ANY - _by_category()["Cn"],
    }
    if make := special.get(plain.lower()):
        return make()
    short = _CATEGORY_NAMES.get(plain.lower(), plain)
    sets = _by_category()
    if short in ("LC", "L&"):
        return sets["Lu"] | sets["Ll"] | sets["Lt"]
    if short in sets:
        return sets[short]
    if len(short) == 1 and (group := [s for kind, s in sets.items() if kind[0] == short]):
        union = NOTHING
        for found in group:
            union |= found
        return union
    return None


def _with_case(text: str) -> Iterator[str]:
    """The characters of `text` that stand near one with another case."""
    for at in range(0, len(text), 64):
        block = text[at : at + 64]
        if block.lower() != block or block.upper() != block:
            yield from block


@cache
def _case_variants() -> dict[int, tuple[int, ...]]:
    """For each character that has another case: all characters that `re.IGNORECASE` equates."""
    joined: dict[int, int] = {}

    def root(code: int) -> int:
        while joined.setdefault(code, code) != code:
            code = joined[code]
        return code

    by_upper: dict[str, int] = {}
    text, _ = _scanned()
    for char in _with_case(text):
        lower, upper = char.lower(), char.upper()
        if lower == char and upper == char:
            continue
        code = ord(char)
        if len(lower) == 1:
            joined[root(code)] = root(ord(lower))
        if len(upper) == 1:
            joined[root(code)] = root(ord(upper))
        joined[root(code)] = root(by_upper.setdefault(upper, code))
    # Dotted capital I lowers to two characters; `re` takes the first of them.
    joined[root(0x130)] = root(ord("i"))
    groups: dict[int, list[int]] = {}
    for code in joined:
        groups.setdefault(root(code), []).append(code)
    return {code: tuple(group) for group in groups.values() for code in group if len(group) > 1}


def fold_case(chars: CharSet, *, ascii_only: bool = False) -> CharSet:
    """All characters that equal one of `chars` when case is ignored, in `re`'s sense."""
    if ascii_only:
        found = [(c ^ 0x20, c ^ 0x20) for c in (chars & CharSet((0x41, 0x5B, 0x61, 0x7B))).codes()]
        return CharSet.of((*chars.ranges(), *found))
    variants = _case_variants()
    if len(chars) < 4096:
        extra = {v for c in chars.codes() for v in variants.get(c, ())}
    else:
        extra = {v for c, group in variants.items() if c in chars for v in group}
    return CharSet.of((*chars.ranges(), *((c, c) for c in extra)))
