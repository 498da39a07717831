"""Where a text ends: stop strings and stop patterns, searched as the text comes.

A text ends with the first character after which `re.search` finds a stop in it, and it is cut where
that match begins (the leftmost one, as `re.search` has it). So it does not matter into which tokens
the text was cut, and a stop that contains another one never counts: of "abcd" and "bc" it is "bc".

The search walks the automata of all places where a match may have begun, side by side; of two that
have come to the same place the earlier is kept. That takes time linear in the text, and tells how
much of its end may still turn out to belong to a stop. What a pattern wants to see before its match
(`^`, `\\b`, look-behind) is walked first; what it wants to see behind it is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from lmc.constraints.automaton import Automaton
from lmc.constraints.charset import ANY
from lmc.constraints.expression import (
    ALL,
    Alt,
    Atomic,
    Both,
    Chars,
    Except,
    Expression,
    Look,
    Not,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Words,
    children,
    one_of,
    walk,
)
from lmc.constraints.machine import DEAD
from lmc.errors import ConstraintError

__all__ = ["StopSearch", "Stops", "anywhere", "seen_before", "stops_of"]

MOST_SEEN_BEFORE = 64  # characters before a match that a pattern may look at
_REMEMBERED = 65_536  # steps of a walker


class _Walker:
    """An automaton walked by characters; steps are remembered."""

    def __init__(self, expression: Expression) -> None:
        self._automaton = Automaton(expression)  # keeps its machine alive
        machine = self._automaton.machine
        self._machine = machine
        self._steps: dict[tuple[int, str], int] = {}
        self.start = DEAD if machine.start is None else machine.start

    def step(self, place: int, char: str) -> int:
        """The place after a character, or `DEAD`."""
        after = self._steps.get((place, char))
        if after is None:
            if len(self._steps) >= _REMEMBERED:
                self._steps.clear()
            after = self._machine.run(place, char.encode())
            self._steps[place, char] = after
        return after

    def accepts(self, place: int) -> bool:
        return self._machine.accepts(place)


class _Stop:
    """One pattern, or all stop strings, ready to be searched.

    Attributes:
        name: what is told if it matches; None for strings: the text itself.
        width: how many characters before its match it looks at.
        walkers: one for each number of characters that there are before the match, up to `width`;
            it walks these characters first.
    """

    def __init__(self, name: str | None, expression: Expression) -> None:
        self.name = name
        self.width = seen_before(expression)
        looks = any(isinstance(node, Look | Atomic) for node in walk(expression))
        tail = (ALL,) if looks else ()  # what follows decides; otherwise the first match will do
        self.walkers = [
            _Walker(Seq((Repeat(Chars(ANY), k, k), expression, *tail)) if k or tail else expression)
            for k in range(self.width + 1)
        ]


class Stops:
    """What ends a text; shared by all searches. The order decides between equal matches.

    Args:
        strings: texts, none empty.
        patterns: the source of each, and its automaton as `automaton_of("stop_regex", source)`.

    Attributes:
        idle, idle_bytes: characters, and rows of them, met so far in which no stop begins.
    """

    def __init__(
        self, strings: Sequence[str], patterns: Sequence[tuple[str, Automaton]] = ()
    ) -> None:
        stops = [_Stop(None, one_of(strings))] if strings else []
        stops += [_Stop(source, automaton.expression) for source, automaton in patterns]
        self.stops = tuple(stops)
        self.width = max((stop.width for stop in stops), default=0)
        self.idle: set[str] = set()
        self.idle_bytes: set[bytes] = set()


@lru_cache(maxsize=256)
def stops_of(
    strings: tuple[str, ...], patterns: tuple[str, ...] = (), automata: tuple[Automaton, ...] = ()
) -> Stops:
    """The stops, made once."""
    return Stops(strings, tuple(zip(patterns, automata, strict=True)))


class StopSearch:
    """A search in one text, character by character.

    Attributes:
        begin: where the stop begins that ended the text; None before.
        name: the pattern that matched; None for a string.
    """

    __slots__ = ("_at", "_before", "_live", "_quiet", "_shared", "begin", "name")

    def __init__(self, stops: Stops) -> None:
        self._shared = stops
        self._before: deque[str] = deque(maxlen=stops.width)
        # Per stop and walker, the places where a match may be, and where the earliest of those
        # that are there began; earlier ones come first.
        self._live: list[list[dict[int, int]]] = [
            [{} for _ in stop.walkers] for stop in stops.stops
        ]
        self._at = 0
        self._quiet = not stops.width  # nothing that has come so far may belong to a stop
        self.begin: int | None = None
        self.name: str | None = None

    def start(self, at: int) -> None:
        """Begin with an empty text, whose first character is to be at `at`."""
        self._at = at
        self._open()

    def skip(self, text: str, end: int) -> bool:
        """Take a text that ends at `end` if one can see that nothing in it is a part of a stop."""
        if not self._quiet or not self._shared.idle.issuperset(text):
            return False
        self._at = end
        return True

    def skip_bytes(self, raw: bytes, end: int) -> bool:
        """Like `skip`, for whole characters that were skipped before (`remember`)."""
        if not self._quiet or raw not in self._shared.idle_bytes:
            return False
        self._at = end
        return True

    def remember(self, raw: bytes) -> None:
        """These are whole characters that were skipped."""
        if len(self._shared.idle_bytes) < _REMEMBERED:
            self._shared.idle_bytes.add(raw)

    def feed(self, char: str, end: int) -> bool:
        """Take a character that ends at `end` (in the caller's units); whether the text is over."""
        shared, idle, quiet = self._shared, True, not self._shared.width
        for stop, walkers in zip(shared.stops, self._live, strict=True):
            for k, live in enumerate(walkers):
                walker = stop.walkers[k]
                moved: dict[int, int] = {}
                for place, began in live.items():
                    self._move(stop, walker, moved, walker.step(place, char), began)
                if not stop.width:  # a match may begin with this character
                    after = walker.step(walker.start, char)
                    idle = idle and after == DEAD
                    self._move(stop, walker, moved, after, self._at)
                walkers[k] = moved
                quiet = quiet and not moved
        self._quiet = quiet
        self._at = end
        if shared.width:
            self._before.append(char)
            if self.begin is None:
                self._open()
        elif idle and len(shared.idle) < _REMEMBERED:
            shared.idle.add(char)
        return self.begin is not None

    def _move(
        self, stop: _Stop, walker: _Walker, moved: dict[int, int], after: int, began: int
    ) -> None:
        if after != DEAD:
            moved.setdefault(after, began)
            if walker.accepts(after):
                self._found(began, stop)

    def _open(self) -> None:
        """From here on a match may begin that looks at what is before it."""
        for stop, walkers in zip(self._shared.stops, self._live, strict=True):
            if not stop.width:
                continue
            k = min(stop.width, len(self._before))
            walker = stop.walkers[k]
            place = walker.start
            for i in range(len(self._before) - k, len(self._before)):
                if place == DEAD:
                    break
                place = walker.step(place, self._before[i])
            if place != DEAD:
                walkers[k].setdefault(place, self._at)
                if walker.accepts(place):
                    self._found(self._at, stop)

    def _found(self, began: int, stop: _Stop) -> None:
        if self.begin is None or began < self.begin:
            self.begin, self.name = began, stop.name

    def earliest(self, end: int) -> int:
        """From where on the text up to `end` may still turn out to belong to a stop."""
        for walkers in self._live:
            for live in walkers:
                for began in live.values():
                    end = min(end, began)
                    break  # the first is the earliest
        return end


def anywhere(expression: Expression) -> Automaton:
    """The texts in which `re.search` finds the pattern."""
    return Automaton(Seq((ALL, expression, ALL)))


def seen_before(expression: Expression) -> int:
    """How many characters before its match a pattern looks at.

    Raises:
        ConstraintError: any number, or too many.
    """
    seen = _seen(expression)
    if seen > MOST_SEEN_BEFORE:
        raise ConstraintError(
            "a stop pattern looks too far behind itself",
            hint=f"a look-behind may see {MOST_SEEN_BEFORE} characters",
        )
    return int(seen)


def _seen(expression: Expression) -> float:
    inside = max(map(_seen, children(expression)), default=0)
    if isinstance(expression, Look) and expression.behind:
        return inside + _longest(expression.item)
    return inside


def _longest(expression: Expression) -> float:
    """The length in characters of the longest text."""
    match expression:
        case Chars():
            return 1
        case Text(text):
            return len(text)
        case Words(texts):
            return max(map(len, texts))
        case Seq(items):
            return sum(map(_longest, items))
        case Alt(items):
            return max(map(_longest, items), default=0)
        case Both(items):
            return min(map(_longest, items), default=float("inf"))
        case Repeat(item, _, high):
            each = _longest(item)
            return 0 if not each else each * (float("inf") if high is None else high)
        case Atomic(item):
            return _longest(item)
        case Look():
            return 0
        case Not() | Rules() | Ref() | Except():
            return float("inf")
