"""JSON texts in which no object has a key twice.

That all keys of an object differ is not regular: an automaton would have to remember them. So a
JSON constraint whose objects are open is matched by an automaton *and* a record of the keys so far.
Each text of an open object's key has one spelling there, so that keys are compared as bytes.

Owns        the record of one matcher; nothing is shared but what is known of the vocabulary.
Promises    as `TokenMatcher`: a token is allowed exactly if the constraint can be completed after.
Costs       nothing where no key can be repeated; else a look at the tokens that spell a part of a
            used key.
"""

from __future__ import annotations

import heapq
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lmc.constraints.automaton import Automaton
from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.matcher import TokenMatcher
from lmc.constraints.rows import MaskArray
from lmc.constraints.undisturbed import pause, resume
from lmc.constraints.vocabulary import Vocabulary
from lmc.constraints.walking import places_after

__all__ = ["JsonAutomaton", "JsonMatcher", "Keys"]

_REMEMBERED = 512  # sets of used keys whose tokens are kept; to forget 4,000 takes milliseconds
_NEAR = 64  # tokens before the end from which on it is looked for without repeating keys
_MOST_TRIED = 20_000  # bytes, on the way to that end
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


class JsonAutomaton(Automaton):
    """JSON texts, of which those are meant that have no key twice in one object.

    As a set of texts it holds the others too; a `JsonMatcher` keeps to the meaning.
    """

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "kind": "json"}


@dataclass(frozen=True, slots=True)
class _Level:
    """An array or object that is open; `keys` is None for an array."""

    keys: frozenset[bytes] | None
    outer: _Level | None

    def path(self) -> tuple[frozenset[bytes] | None, ...]:
        """The keys of this level and of those around it."""
        found = []
        level: _Level | None = self
        while level is not None:
            found.append(level.keys)
            level = level.outer
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Keys:
    """Where a JSON text stands, as far as keys matter.

    Attributes:
        level: the innermost open array or object.
        key: what was read of a key; None outside of keys.
        quoted: inside a text.
        escape: the next byte belongs to an escape.
        due: the next text in an object is a key.
        repeated: a key came twice.
    """

    level: _Level | None = None
    key: bytes | None = None
    quoted: bool = False
    escape: bool = False
    due: bool = False
    repeated: bool = False

    @property
    def used(self) -> frozenset[bytes]:
        """The keys of the innermost open object so far."""
        return (self.level.keys if self.level else None) or frozenset()

    def read(self, text: bytes) -> Keys:
        """Where it stands after more text."""
        state = self
        level, key = state.level, state.key
        quoted, escape, due = state.quoted, state.escape, state.due
        repeated = state.repeated
        for byte in text:
            if quoted:
                if escape:
                    escape = False
                elif byte == _BACKSLASH:
                    escape = True
                elif byte == _QUOTE:
                    quoted = False
                    if key is not None:
                        keys = (level.keys if level else None) or frozenset()
                        repeated = repeated or key in keys
                        level = _Level(keys | {key}, level.outer if level else None)
                        key = None
                    continue
                if key is not None:
                    key += bytes((byte,))
            elif byte == _QUOTE:
                quoted = True
                if due:
                    key, due = b"", False
            elif byte == 0x7B:  # {
                level, due = _Level(frozenset(), level), True
            elif byte == 0x5B:  # [
                level, due = _Level(None, level), False
            elif byte in (0x7D, 0x5D):
                level, due = (level.outer if level else None), False
            elif byte == 0x2C:  # ,
                due = level is not None and level.keys is not None
        return Keys(level, key, quoted, escape, due, repeated)


class _Quotes:
    """Which tokens may repeat a key; what is known of that for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.trie.tokens
        self._texts = [vocabulary.token_bytes[t] or b"" for t in self._tokens.tolist()]  # sorted
        self._longest = max(map(len, self._texts), default=0)
        self._spelled: dict[bytes, list[int]] = {}
        self._whole: dict[bytes, list[int]] = {}
        self._begun: dict[bytes, list[int]] = {}
        self._of_key: dict[bytes, frozenset[int]] = {}
        self._suspects: dict[tuple[frozenset[bytes], bytes | None], npt.NDArray[np.int32]] = {}
        for token, text in zip(self._tokens.tolist(), self._texts, strict=True):
            self._spelled.setdefault(text, []).append(token)
            if b'"' in text:
                _, *parts = text.split(b'"')
                for part in parts[:-1]:
                    self._whole.setdefault(part, []).append(token)
                if parts[-1]:
                    self._begun.setdefault(parts[-1], []).append(token)

    def suspects(self, used: frozenset[bytes], key: bytes | None) -> npt.NDArray[np.int32]:
        """The tokens that may repeat a key, or lead to where only that is left.

        Those that hold one of the keys, or begin with it behind a quotation mark; and, where `key`
        was read of one, those that go on with it.
        """
        known = self._suspects.get((used, key))
        if known is None:
            _make_room(self._suspects)
            found: set[int] = set()
            for other in used:
                found |= self._behind_a_quote(other)
                if key is not None and other.startswith(key):
                    found.update(self._along(other[len(key) :]))
            known = np.array(list(found), dtype=np.int32)
            self._suspects[used, key] = known
        return known

    def _behind_a_quote(self, key: bytes) -> frozenset[int]:
        found = self._of_key.get(key)
        if found is None:
            _make_room(self._of_key)
            tokens = set(self._whole.get(key, ()))
            for size in range(1, min(len(key), self._longest) + 1):
                tokens.update(self._begun.get(key[:size], ()))
            found = self._of_key[key] = frozenset(tokens)
        return found

    def _along(self, rest: bytes) -> Iterator[int]:
        """The tokens that are a beginning of `rest` and a quotation mark, or begin with it."""
        for size in range(1, min(len(rest), self._longest) + 1):
            yield from self._spelled.get(rest[:size], ())
        low = bisect_left(self._texts, rest + b'"')
        high = bisect_left(self._texts, rest + bytes((_QUOTE + 1,)), low)
        yield from self._tokens[low:high].tolist()


def _make_room(kept: dict[Any, Any]) -> None:
    if len(kept) >= _REMEMBERED:
        kept.clear()


_known: weakref.WeakKeyDictionary[Vocabulary, _Quotes] = weakref.WeakKeyDictionary()


def _quotes(vocabulary: Vocabulary) -> _Quotes:
    found = _known.get(vocabulary)
    if found is None:
        found = _known[vocabulary] = _Quotes(vocabulary)
    return found


class JsonMatcher(TokenMatcher):
    """A `TokenMatcher` that allows no key twice."""

    __slots__ = ("_clear", "_keys", "_last", "_quotes")

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        super().__init__(automaton, vocabulary)
        self._keys = Keys()
        self._quotes = _quotes(vocabulary)
        self._last: tuple[Keys, MaskArray, MaskArray] | None = None
        # Keys and a row that holds no token that could repeat one, as inside of texts.
        self._clear: tuple[frozenset[bytes], MaskArray] | None = None

    def mask(self) -> MaskArray:
        # By name: `super()` would make an object, and with it a collection could begin.
        keys = self._keys
        used = keys.used
        if not used:
            return TokenMatcher.mask(self)
        clear = self._clear
        if clear is not None and keys.key is None and clear[0] is used:
            row = TokenMatcher.mask(self)
            if clear[1] is row:
                return row
        was_on = pause()
        try:
            return self._without_repeats(TokenMatcher.mask(self))
        finally:
            resume(was_on)

    def mask_within(self, tokens: int) -> MaskArray:
        found = super().mask_within(tokens)
        if self._ended or not self._keys.used:
            return found
        row = self.mask()
        found = found & row
        machine = self._table.machine
        if tokens <= machine.least_bytes(self._place) + _NEAR:
            # The nearest end that the automaton knows may be one that repeats a key.
            needs: dict[tuple[int, bytes | None], int] = {}
            far = [t for t in self._doubtful(found) if self._needed(t, needs) >= tokens]
            found[far] = False
            if not found.any() and not self.is_complete():
                found = self._nearest(row, needs)
        found.flags.writeable = False
        return found

    def _doubtful(self, row: MaskArray) -> list[int]:
        """The tokens of a row that lead into a key which may become a used one."""
        texts = self.vocabulary.token_bytes
        found = {t for t in np.flatnonzero(row).tolist() if b"," in (texts[t] or b"")}
        suspects = self._quotes.suspects(self._keys.used, self._keys.key)
        return [*found.union(suspects[row[suspects]].tolist())]

    def _needed(self, token: int, known: dict[tuple[int, bytes | None], int]) -> int:
        """How many tokens the shortest text has that may follow a token and repeats no key."""
        text = self.vocabulary.token_bytes[token] or b""
        machine, keys = self._table.machine, self._keys.read(text)
        place = machine.run(self._place, text)
        found = known.get((place, keys.key))
        if found is None:
            rest = _shortest(machine, place, keys)
            try:
                found = len(self.vocabulary.encode(rest.decode()))
            except UnicodeDecodeError:  # inside of a character: byte by byte
                found = len(rest)
            known[place, keys.key] = found
        return found

    def _nearest(self, row: MaskArray, known: dict[tuple[int, bytes | None], int]) -> MaskArray:
        """The tokens of a row after which the fewest are needed."""
        machine = self._table.machine
        after = places_after(machine, self.vocabulary.trie, self._place)
        needs = np.full(len(row), np.iinfo(np.int64).max)
        for place in np.unique(after[row]).tolist():
            needs[row & (after == place)] = machine.least_bytes(place)
        for token in self._doubtful(row):
            needs[token] = self._needed(token, known)
        found: MaskArray = row & (needs == needs[row].min())
        return found

    def want_states(self) -> None:
        pass  # tables have no record of keys

    def state(self) -> None:
        return None

    def advance(self, token: int) -> None:
        known = 0 <= token < len(self.vocabulary)
        if self._ended or not known or not self._fits(token):
            raise ValueError(f"token {token} is not allowed here")
        super().advance(token)
        self._keys = self._keys.read(self.vocabulary.token_bytes[token] or b"")

    def forced(self) -> list[int]:
        found = super().forced()
        if not self._keys.used:
            return found
        ahead = self.fork()
        for count, token in enumerate(found):
            try:
                ahead.advance(token)
            except ValueError:
                return found[:count]
        return found

    def reset(self) -> None:
        super().reset()
        self._keys = Keys()

    def fork(self) -> JsonMatcher:
        twin = object.__new__(JsonMatcher)
        twin.automaton, twin._table = self.automaton, self._table
        twin._start, twin._place, twin._path = self._start, self._place, self._path
        twin._ended = self._ended
        twin._keys, twin._quotes, twin._last = self._keys, self._quotes, self._last
        twin._clear = self._clear
        return twin

    def _without_repeats(self, row: MaskArray) -> MaskArray:
        if self._ended or not self._keys.used:
            return row
        last = self._last
        if last is None or last[0] is not self._keys or last[1] is not row:
            last = self._last = (self._keys, row, self._checked(row))
        return last[2]

    def _checked(self, row: MaskArray) -> MaskArray:
        keys = self._keys
        suspects = self._quotes.suspects(keys.used, keys.key)
        if not row[suspects].any():
            if keys.key is None:
                self._clear = (keys.used, row)
            return row
        # What fits depends on nothing but the place and the keys of all levels.
        assert keys.level is not None, "keys were used"
        at = (self._place, keys.level.path(), keys.key, keys.quoted, keys.escape, keys.due)
        bad = self._table.repeats.get(at)
        if bad is None:
            _make_room(self._table.repeats)
            allowed = suspects[self._table.mask(self._place)[suspects]]
            bad = tuple(t for t in allowed.tolist() if not self._fits(t))
            self._table.repeats[at] = bad
        if not bad:
            return row
        row = row.copy()
        row[list(bad)] = False
        row.flags.writeable = False
        return row

    def _fits(self, token: int) -> bool:
        """Whether a token that the automaton allows repeats no key, now or later."""
        text = self.vocabulary.token_bytes[token]
        if not text or not self._keys.used:
            return True
        after = self._keys.read(text)
        if after.repeated:
            return False
        key = after.key
        if key is None:
            return True
        left = frozenset(k[len(key) :] + b'"' for k in after.used if k.startswith(key))
        if not left:
            return True
        machine = self._table.machine
        if machine.roams_after(self._place, text):
            return True
        place = machine.run(self._place, text)
        return place == DEAD or _leads_elsewhere(machine, place, left)


def _shortest(machine: Machine, place: int, keys: Keys) -> bytes:
    """A shortest text in bytes that ends the constraint and repeats no key.

    If it is not found soon: as many bytes as the automaton alone would need.
    """
    heap = [(machine.least_bytes(place), 0, place, keys, b"")]
    made = 0
    while heap:
        _, _, at, state, text = heapq.heappop(heap)
        if machine.accepts(at):
            return text
        for byte in range(256):
            after = machine.step(at, byte)
            if after == DEAD:
                continue
            more = state.read(bytes((byte,)))
            if more.repeated:
                continue
            made += 1
            longer = text + bytes((byte,))
            # Of equals the last one made: straight on, not all of a kind side by side.
            heapq.heappush(
                heap, (len(longer) + machine.least_bytes(after), -made, after, more, longer)
            )
        if made > _MOST_TRIED:
            break
    return bytes(machine.least_bytes(place))


def _leads_elsewhere(machine: Machine, place: int, texts: frozenset[bytes]) -> bool:
    """Whether anything but one of `texts` can follow."""
    stack = [(place, texts)]
    while stack:
        at, left = stack.pop()
        following: dict[int, set[bytes]] = {}
        for text in left:
            if text:
                following.setdefault(text[0], set()).add(text[1:])
        known = sum(1 << byte for byte in following)
        possible = machine.next_bytes(at)
        if possible & ~known:
            return True
        for byte, rest in following.items():
            if possible >> byte & 1 and b"" not in rest:
                stack.append((machine.step(at, byte), frozenset(rest)))
    return False
