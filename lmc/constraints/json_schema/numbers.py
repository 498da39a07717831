"""Sets of numbers: boxes, and how the numbers of a box are written.

A box is an interval, perhaps of multiples only, perhaps without some multiples. Boxes are closed
under intersection, and the complement of a box is a few boxes, so that a set of numbers is a list
of boxes whatever the schema says.

One spelling for all: plain decimals without exponent, no leading zeros, no minus before zero. A
number that is an integer may be written with `.0`. Where nothing at all is asked of a number, any
JSON number may be written.

Costs       a box with bounds is an automaton of some tens of states, made once a process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, gcd

from lmc.constraints.budget import BudgetError
from lmc.constraints.charset import CharSet
from lmc.constraints.expression import EPSILON, Alt, Chars, Expression, Ref, Repeat, Seq, Text

__all__ = ["ANY_NUMBER", "INTEGER", "NumberBox", "Rows", "spelled"]

MOST_DIGITS = 17  # after the point, where a number has bounds: what a double can hold
_MOST_STATES = 3000
_MOST_LISTED = 10_000

Rows = tuple[Expression, ...]
"""Rules that refer to each other by number, beginning at 0."""


@dataclass(frozen=True, slots=True)
class NumberBox:
    """The numbers of an interval that are multiples of `step` and of nothing in `avoid`.

    Attributes:
        low, high: the ends; None for no bound.
        low_open, high_open: the end itself is outside.
        step: None if any number will do.
        pointless: written without a point, as draft 4 wants its integers.
    """

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    step: Fraction | None = None
    avoid: frozenset[Fraction] = frozenset()
    pointless: bool = False

    @staticmethod
    def just(value: Fraction) -> NumberBox:
        """One number."""
        return NumberBox(value, value)

    def __and__(self, other: NumberBox) -> NumberBox:
        low, low_open = _inner(self.low, self.low_open, other.low, other.low_open, 1)
        high, high_open = _inner(self.high, self.high_open, other.high, other.high_open, -1)
        steps = [s for s in (self.step, other.step) if s is not None]
        step = _lcm(*steps) if len(steps) == 2 else (steps[0] if steps else None)
        avoid, pointless = self.avoid | other.avoid, self.pointless or other.pointless
        return NumberBox(low, high, low_open, high_open, step, avoid, pointless)

    def complement(self) -> list[NumberBox]:
        """Boxes that together hold all other numbers."""
        found = []
        if self.low is not None:
            found.append(NumberBox(high=self.low, high_open=not self.low_open))
        if self.high is not None:
            found.append(NumberBox(low=self.high, low_open=not self.high_open))
        if self.step is not None:
            found.append(NumberBox(avoid=frozenset({self.step})))
        found += [NumberBox(step=a) for a in sorted(self.avoid)]
        return found

    def holds(self, value: Fraction) -> bool:
        """Whether a number is in the box."""
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        if self.step is not None and (value / self.step).denominator != 1:
            return False
        return all((value / a).denominator != 1 for a in self.avoid)

    def is_empty(self) -> bool:
        """Whether no number is in the box."""
        if self.low is not None and self.high is not None:
            if self.low > self.high:
                return True
            if self.low == self.high:
                return not self.holds(self.low)
        if self.step is None:
            return False  # between two different numbers there is always one that is no multiple
        if any((self.step / a).denominator == 1 for a in self.avoid):
            return True
        if self.low is None or self.high is None:
            return False  # one more than a common multiple, in steps, avoids them all
        return next(self._multiples(), None) is None

    def _multiples(self) -> Iterator[Fraction]:
        """The numbers of a bounded box with a step."""
        assert self.step is not None
        assert self.low is not None
        assert self.high is not None
        first, last = ceil(self.low / self.step), floor(self.high / self.step)
        for n in range(first, min(last, first + _MOST_LISTED) + 1):
            if self.holds(n * self.step):
                yield n * self.step

    def listed(self, most: int) -> list[Fraction] | None:
        """The numbers of the box, if they are known to be `most` at most; else None."""
        if self.low is None or self.high is None:
            return None
        if self.low == self.high:
            return [self.low] if self.holds(self.low) else []
        if self.step is None or (self.high - self.low) / self.step > most:
            return None
        return list(self._multiples())

    @property
    def is_all(self) -> bool:
        """Whether nothing is asked."""
        return self == ANY_NUMBER


ANY_NUMBER = NumberBox()
INTEGER = NumberBox(step=Fraction(1))


def _inner(
    a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool, side: int
) -> tuple[Fraction | None, bool]:
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a - b) * side > 0 else (b, b_open)


def _lcm(a: Fraction, b: Fraction) -> Fraction:
    common = gcd(a.numerator * b.denominator, b.numerator * a.denominator)
    return Fraction(a.numerator * b.numerator, common)


# -- writing -------------------------------------------------------------------------------------

_DIGIT = Chars(CharSet.chars("0123456789"))
_WHOLE = Alt((Text("0"), Seq((Chars(CharSet.chars("123456789")), Repeat(_DIGIT, 0, None)))))
_POINT_ZERO = Repeat(Text(".0"), 0, 1)
_FRACTION = Repeat(Seq((Text("."), Repeat(_DIGIT, 1, None))), 0, 1)
_SHORT_FRACTION = Repeat(Seq((Text("."), Repeat(_DIGIT, 1, MOST_DIGITS))), 0, 1)
_MINUS = Repeat(Text("-"), 0, 1)
_EXPONENT = Repeat(
    Seq((Chars(CharSet.chars("eE")), Repeat(Chars(CharSet.chars("+-")), 0, 1),
         Repeat(_DIGIT, 1, None))), 0, 1,
)  # fmt: skip
_ANY: Rows = (Seq((_MINUS, _WHOLE, _FRACTION, _EXPONENT)),)
_POSITIVE = Seq((Chars(CharSet.chars("123456789")), Repeat(_DIGIT, 0, None), _POINT_ZERO))
_INTEGER: Rows = (Alt((Seq((_MINUS, _POSITIVE)), Seq((Text("0"), _POINT_ZERO)))),)
_NATURAL: Rows = (Seq((_WHOLE, _POINT_ZERO)),)
_NOT_NEGATIVE: Rows = (Seq((_WHOLE, _SHORT_FRACTION)),)


@lru_cache(maxsize=1024)
def spelled(box: NumberBox) -> Rows:
    """How the numbers of a box are written; no rules if there is none.

    Raises:
        BudgetError: that would take too large an automaton.
    """
    if box.is_empty():
        return ()
    if box.is_all:
        return _ANY
    if box.low is not None and box.low == box.high:
        return (Text(str(box.low)) if box.pointless else _one(box.low),)
    if box == NumberBox(step=Fraction(1), pointless=True):
        return (Seq((Repeat(Text("-"), 0, 1), _WHOLE)),)
    if box == INTEGER:
        return _INTEGER
    if box == NumberBox(low=Fraction(0)):
        return _NOT_NEGATIVE
    if box == NumberBox(low=Fraction(0), step=Fraction(1)):
        return _NATURAL
    zero = Fraction(0)
    rows: list[Expression] = [EPSILON]
    arms = []
    negative = NumberBox(
        None if box.high is None else -box.high, None if box.low is None else -box.low,
        box.high_open, box.low_open, box.step, box.avoid, box.pointless,
    )  # fmt: skip
    sides = (
        (EPSILON, box & NumberBox(low=zero)),
        (Text("-"), negative & NumberBox(low=zero, low_open=True)),
    )
    for sign, side in sides:
        if side.is_empty():
            continue
        made = _magnitudes(side)
        base = len(rows)
        rows += [_shifted(row, base) for row in made]
        if made:
            arms.append(Seq((sign, Ref(base))))
    rows[0] = Alt(tuple(arms))
    return tuple(rows) if arms else ()


def _one(value: Fraction) -> Expression:
    """The spellings of one number: as a decimal and, if it is another text, as Python writes it."""
    if value.denominator == 1:
        return Alt((Text(str(value.numerator)), Text(f"{value.numerator}.0")))
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    text = ("-" if value < 0 else "") + digits[:-places] + "." + digits[-places:]
    other = json.dumps(float(value))
    return Alt((Text(text), Text(other))) if Fraction(other) == value else Text(text)


def _shifted(row: Expression, base: int) -> Expression:
    match row:
        case Ref(index):
            return Ref(index + base)
        case Seq(items):
            return Seq(tuple(_shifted(i, base) for i in items))
        case Alt(items):
            return Alt(tuple(_shifted(i, base) for i in items))
        case _:
            return row


@dataclass(frozen=True, slots=True)
class _Bound:
    """Compares a number, digit by digit, with a bound that is not negative.

    A state is the sign of the difference, once that is sure (as -1 or 1), or (digits read, sign so
    far) before the point, or the count of equal digits, as (None, count), behind it.
    """

    whole: str
    part: str

    @staticmethod
    def of(value: Fraction) -> _Bound:
        places = 0
        while (value * 10**places).denominator != 1:
            places += 1
        digits = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
        cut = len(digits) - places
        return _Bound(digits[:cut], digits[cut:].rstrip("0"))

    def step(self, state: object, char: str) -> object:
        if isinstance(state, int):
            return state
        assert isinstance(state, tuple)
        if state[0] is None:
            wanted = self.part[state[1]] if state[1] < len(self.part) else "0"
            if char != wanted:
                return 1 if char > wanted else -1
            return (None, min(state[1] + 1, len(self.part)))
        read, sign = state
        if char == ".":
            sign = self._whole(read, sign)
            return sign or (None, 0)
        if read == len(self.whole):
            return 1
        wanted = self.whole[read]
        return (read + 1, sign or (char > wanted) - (char < wanted))

    def _whole(self, read: int, sign: int) -> int:
        return -1 if read < len(self.whole) else sign

    def end(self, state: object) -> int:
        """The sign of the difference if the number ends here."""
        if isinstance(state, int):
            return state
        assert isinstance(state, tuple)
        if state[0] is None:
            return -1 if state[1] < len(self.part) else 0
        return self._whole(*state) or (-1 if self.part else 0)


@dataclass(frozen=True, slots=True)
class _Remainder:
    """Divides a number, digit by digit; a state is (remainder, digits behind the point) or None.

    None says that it is no multiple whatever digits follow.
    """

    places: int
    modulus: int

    @staticmethod
    def of(step: Fraction) -> _Remainder:
        places = 0
        while (step * 10**places).denominator != 1:
            places += 1
        return _Remainder(places, int(step * 10**places))

    def step(self, state: object, char: str) -> object:
        if state is None:
            return None
        assert isinstance(state, tuple)
        rest, behind = state
        if char == ".":
            return (rest, 0)
        if behind is not None and behind == self.places:
            return state if char == "0" else None
        return ((rest * 10 + int(char)) % self.modulus, None if behind is None else behind + 1)

    def end(self, state: object) -> bool:
        if state is None:
            return False
        assert isinstance(state, tuple)
        rest, behind = state
        return bool(rest * 10 ** (self.places - (behind or 0)) % self.modulus == 0)


def _magnitudes(box: NumberBox) -> Rows:
    """The numbers of a box without negative ones, as an automaton of digits in rules."""
    bounds = [
        (b, sign, open_)
        for value, sign, open_ in ((box.low, 1, box.low_open), (box.high, -1, box.high_open))
        if value is not None and not (sign == 1 and value == 0 and not open_)
        for b in (_Bound.of(value),)
    ]
    step = None if box.step is None else _Remainder.of(box.step)
    avoid = [_Remainder.of(a) for a in sorted(box.avoid)]
    places = MOST_DIGITS if step is None else max(step.places, 1)
    whole_only = step is not None and step.places == 0
    tracks = [*(b for b, _, _ in bounds), *((step,) if step else ()), *avoid]
    begin: list[object] = [(0, 0) for _ in bounds]
    begin += [(0, None)] * (len(tracks) - len(bounds))

    def accepts(shape: object, states: tuple[object, ...]) -> bool:
        if shape in ("", "."):
            return False
        for (bound, sign, open_), state in zip(bounds, states, strict=False):
            found = bound.end(state) * sign
            if found < 0 or (found == 0 and open_):
                return False
        rest = list(zip(tracks[len(bounds) :], states[len(bounds) :], strict=True))
        if step is not None:
            track, state = rest.pop(0)
            if not track.end(state):
                return False
        return not any(track.end(state) for track, state in rest)

    # The shape of what was read: "", "0", "1" (some digits), "." or how many digits behind it.
    start: tuple[object, tuple[object, ...]] = ("", tuple(begin))
    numbers = {start: 0}
    order = [start]
    moves: list[dict[int, list[str]]] = []
    for shape, states in order:
        found: dict[int, list[str]] = {}
        if shape in ("", "1"):
            chars = "0123456789" + ("." if shape and not box.pointless else "")
        elif shape == "0":
            chars = "" if box.pointless else "."
        elif whole_only:
            chars = "0" if shape == "." else ""
        else:
            chars = "0123456789" if shape == "." or int(str(shape)) < places else ""
        for char in chars:
            after: object
            if char == ".":
                after = "."
            elif shape == "":
                after = "0" if char == "0" else "1"
            elif shape == ".":
                after = 1
            else:
                after = shape if shape == "1" else int(str(shape)) + 1
            key = (after, tuple(t.step(s, char) for t, s in zip(tracks, states, strict=True)))
            number = numbers.setdefault(key, len(order))
            if number == len(order):
                order.append(key)
                if len(order) > _MOST_STATES:
                    raise BudgetError(
                        "the numbers that this allows need too large an automaton",
                        hint="use a smaller multipleOf, or bounds with fewer digits",
                    )
            found.setdefault(number, []).append(char)
        moves.append(found)
    accepting = [accepts(*key) for key in order]
    return _rows(moves, accepting)


def _rows(moves: list[dict[int, list[str]]], accepting: list[bool]) -> Rows:
    """An automaton as rules: dead ends left out, equal states made one."""
    alive = {i for i, yes in enumerate(accepting) if yes}
    sources: dict[int, list[int]] = {}
    for i, found in enumerate(moves):
        for target in found:
            sources.setdefault(target, []).append(i)
    stack = list(alive)
    while stack:
        for source in sources.get(stack.pop(), ()):
            if source not in alive:
                alive.add(source)
                stack.append(source)
    if 0 not in alive:
        return ()
    block = {i: int(accepting[i]) for i in alive}
    while True:
        known: dict[object, int] = {}
        after = {}
        for i in sorted(alive):
            row = frozenset(
                (char, block[target]) for target, chars in moves[i].items() if target in alive
                for char in chars
            )  # fmt: skip
            after[i] = known.setdefault((block[i], row), len(known))
        if len(known) == len(set(block.values())):
            break
        block = after
    first: dict[int, int] = {}
    for i in sorted(alive):
        first.setdefault(block[i], i)
    number = {b: n for n, b in enumerate(first)}
    rows: list[Expression] = []
    for i in first.values():
        by_target: dict[int, str] = {}
        for target, chars in moves[i].items():
            if target in alive:
                n = number[block[target]]
                by_target[n] = by_target.get(n, "") + "".join(chars)
        arms: list[Expression] = [
            Seq((Chars(CharSet.chars(chars)), Ref(n))) for n, chars in by_target.items()
        ]
        if accepting[i]:
            arms.append(EPSILON)
        rows.append(arms[0] if len(arms) == 1 else Alt(tuple(arms)))
    return tuple(rows)
