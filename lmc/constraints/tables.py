"""Which tokens may come at each place of an automaton, kept as they are asked for.

Owns        the masks, steps and forced tokens of one automaton over one vocabulary.
Promises    equal rows are one array, shared with all other constraints of the vocabulary. Safe for
            threads: entries are computed under the machine's lock or are the same whoever makes
            them.
Costs       a mask that is kept is a dictionary look-up; a new one is a walk of the trie.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmc.constraints.alphabet import bits
from lmc.constraints.closing import Closer
from lmc.constraints.forcing import Forced, Path, forced_text, forced_tokens, last, settled
from lmc.constraints.machine import DEAD, FAR, Machine
from lmc.constraints.rows import MaskArray, Row
from lmc.constraints.spelling_out import Speller, spells_all
from lmc.constraints.undisturbed import pause, resume
from lmc.constraints.walking import kernels_ready, walk, walk_beside, walk_exits

if TYPE_CHECKING:
    from lmc.constraints.slices import Slice
    from lmc.constraints.token_classes import TokenClasses
    from lmc.constraints.vocabulary import Vocabulary

__all__ = ["TokenTable"]

Tokens = npt.NDArray[np.int32]

_MOST_BYTES = 4 << 20  # of rows that one table keeps, without their arrays
_MOST_STEPS = 200_000
_RECENT = 3  # tokens before a place that decide how what follows is cut
_ORDINARY = 16  # bytes; hardly one token of a hundred is longer
_WIDE_SET = 12  # first bytes; of fewer characters so few tokens are made that a walk is as fast
_WIDE_SLICE = 256  # tokens
_NONE = np.empty(0, dtype=np.int32)
_LONG_RUN = 64  # states
_MOST_STEPPED = 12  # tokens looked at one by one; more are found by a walk


@dataclass(frozen=True, slots=True)
class _Found:
    """Tokens: those of the slice `base` with at most `chars` characters, `tokens`, not `gone`.

    `classes` are those of the characters of the slice.
    """

    base: Slice | None
    chars: int
    tokens: Tokens
    gone: Tokens
    classes: int


class TokenTable:
    """See the module's text. Made by `Vocabulary.table`."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        # Not to keep the machine alive: it is what keeps the table alive, see `Vocabulary.table`.
        # Who calls holds the machine.
        self.machine: Machine = weakref.proxy(machine)
        self.vocabulary = vocabulary
        self._masks: dict[int, Row] = {}
        self._wide: dict[int, tuple[_Found, Tokens]] = {}
        self.repeats: dict[Any, tuple[int, ...]] = {}  # see `json_keys`
        self.size = 0  # bytes of the rows that are kept, about, without their arrays
        self._steps: dict[tuple[int, int], int] = {}
        self._forced: dict[int, Forced] = {}
        self._remaining: dict[tuple[int, int], str | None] = {}
        self._forced_after: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        whole = spells_all(machine, vocabulary)
        self.speller = None if whole else Speller(self.machine, vocabulary)
        self.closer = Closer(self.machine, vocabulary)
        self.classes: TokenClasses | None = None  # see `tabulating`
        self.wanted = 0  # by requests that could use `classes`
        self._nothing = vocabulary.rows.row(None, 0, np.empty(0, dtype=np.int32))

    def mask(self, place: int) -> MaskArray:
        """The tokens that may come next, bool, shape (vocabulary,), read-only."""
        row = self._masks.get(place)
        array = row.array if row is not None else None
        if row is not None and array is not None:
            row.used = True
            return array
        was_on = pause()
        try:
            if row is None:
                row = self._row(place)
                self._make_room(row.size)
                self._masks[place] = row
            return self.vocabulary.rows.array(row)
        finally:
            resume(was_on)

    def _make_room(self, size: int) -> None:
        self.size += size
        if self.size > _MOST_BYTES:
            self.size = size
            self._masks.clear()
            self._wide.clear()

    def _row(self, place: int) -> Row:
        ends = self.vocabulary.eos if self.machine.accepts(place) else ()
        rows = self.vocabulary.rows
        if self.speller is not None:
            allowed = np.flatnonzero(self.speller.allowed(place)).astype(np.int32)
            return rows.row(None, 0, allowed, also=ends)
        # Far from the bounds of counters, what tokens of ordinary length may come does not depend
        # on the count; the few that are longer are looked at for every count.
        wide = self.machine.widened(place, _ORDINARY)
        if wide == place:
            found = self._found(place)
            return rows.row(found.base, found.chars, found.tokens, also=ends, without=found.gone)
        kept = self._wide.get(wide)
        if kept is None:
            found = self._found(wide)
            kept = self._wide[wide] = found, self._long_ones(found)
            self._make_room(found.tokens.nbytes + found.gone.nbytes + 400)
        found, long = kept
        gone = self._not_at(place, found, long)
        if len(found.gone):
            gone = np.concatenate((found.gone, gone))
        return rows.row(found.base, found.chars, found.tokens, also=ends, without=gone)

    def _found(self, place: int) -> _Found:
        """The tokens that are text and may come next: those of a slice, and others beside it."""
        machine, trie = self.machine, self.vocabulary.trie
        state, node = divmod(place, machine.nodes)
        if node == 0 and kernels_ready(trie):
            loop, mask = int(machine.roams[state]), 0
            if not loop:
                ahead, mask = machine.most(state)
                if machine.alphabet.weight(mask) >= _WIDE_SET:
                    machine.fill(ahead)
                    loop = int(machine.roams[ahead] or machine.loops[ahead])
            firsts = machine.loop_sets[loop] or machine.alphabet.firsts(mask)
            if firsts.bit_count() >= _WIDE_SET:
                part = self.vocabulary.slice(firsts)
                if part.count >= _WIDE_SLICE:
                    classes = machine.alphabet.classes_of(firsts)
                    if loop:
                        found, gone = walk_beside(machine, trie, state, part, loop)
                        return _Found(part, part.most_chars, found, gone, classes)
                    run = self._run(state, part, classes)
                    if run is not None:
                        found = walk_exits(machine, trie, part, run)
                        return _Found(part, len(run) - 1, found, _NONE, classes)
        return _Found(None, 0, walk(machine, trie, place), _NONE, 0)

    def _run(self, state: int, part: Slice, classes: int) -> npt.NDArray[np.int32] | None:
        """The state after 0, 1, .. characters of a slice, as far as they go; None if they part."""
        machine = self.machine
        inside = list(bits(classes))
        states = [state]
        while len(states) <= part.most_chars:
            at = states[-1]
            machine.fill(at)
            after = machine.rows[at][inside]
            to = int(after[0])
            if (after != to).any() or len(states) > _LONG_RUN:
                return None
            if to == at:
                states += [at] * (part.most_chars + 1 - len(states))
            elif to == DEAD:
                break
            else:
                states.append(to)
        return np.array(states, dtype=np.int32)

    def _long_ones(self, found: _Found) -> npt.NDArray[np.int32]:
        size = self.vocabulary.sizes
        beside = found.tokens[size[found.tokens] > _ORDINARY]
        if found.base is None:
            return beside
        long = self.vocabulary.longer_than(_ORDINARY)
        count = found.base.chars[long]
        of_base = long[(count > 0) & (count <= found.chars)]
        gone = found.gone[size[found.gone] > _ORDINARY]
        if len(gone):
            of_base = np.setdiff1d(of_base, gone)
        return np.concatenate((of_base, beside))

    def _not_at(self, place: int, found: _Found, long: npt.NDArray[np.int32]) -> Tokens:
        """Which of the long tokens of a wider place may not come at `place`."""
        if not len(long):
            return long
        room = None
        if found.base is not None and self.vocabulary.trie.longest <= FAR:
            room = self.machine.room(place // self.machine.nodes, found.classes, _ORDINARY)
        if room is not None and found.base is not None:
            sure, most, ones, out = room
            gone: list[int] = []
            doubtful: list[int] = []
            begin, end, rest = bytes(bits(ones)), bytes(bits(out)), bytes(range(0x80, 0xC0))
            count = found.base.chars[long]
            asked = (count == 0) | (count > sure)
            for token, chars in zip(long[asked].tolist(), count[asked].tolist(), strict=True):
                text = self.vocabulary.token_bytes[token] or b""
                if not chars and not text.translate(None, begin + rest):
                    chars = len(text.translate(None, rest))
                if len(text.translate(None, end)) < len(text) or (not chars and len(text) > sure):
                    doubtful.append(token)
                elif chars > most:
                    gone.append(token)
                elif chars > sure:
                    fits = self.machine.fits(place // self.machine.nodes, text, chars)
                    if fits is not True:
                        (doubtful if fits is None else gone).append(token)
            if len(doubtful) <= _MOST_STEPPED:
                gone += [t for t in doubtful if self.step(place, t) == DEAD]
                return np.array(gone, dtype=np.int32)
        # Fewer counters end within the longest of them than further off.
        nearer = self.machine.widened(place, int(self.vocabulary.sizes[long].max()))
        if len(long) <= _MOST_STEPPED:
            return long[[self.step(nearer, t) == DEAD for t in long.tolist()]]
        allowed = walk(self.machine, self.vocabulary.trie, nearer, above=_ORDINARY)
        return np.setdiff1d(long, allowed)

    @property
    def nothing(self) -> MaskArray:
        """A row of no tokens."""
        return self.vocabulary.rows.array(self._nothing)

    def mask_within(self, place: int, tokens: int) -> MaskArray:
        """The mask, without tokens after which the constraint needs more than `tokens` in all."""
        row = self.closer.fitting(place, self.mask(place), tokens)
        row.flags.writeable = False
        return row

    def step(self, place: int, token: int) -> int:
        """The place after a token that is text, or `DEAD`."""
        after = self._steps.get((place, token))
        if after is None:
            text = self.vocabulary.token_bytes[token]
            after = self.machine.run(place, text) if text else DEAD
            if after != DEAD and self.speller is not None and not self.speller.is_good(after):
                after = DEAD
            _make_room(self._steps)
            self._steps[place, token] = after
        return after

    def forced(self, place: int, path: Path | None) -> tuple[int, ...]:
        """The tokens that must come next after the tokens of `path`; see `forcing`."""
        found = self._forced.get(place)
        if found is None:
            found = self._forced[place] = forced_tokens(self.machine, self.vocabulary, place)
        if not found.tokens or path is None:
            return found.tokens
        key = (place, last(path, _RECENT))
        after = self._forced_after.get(key)
        if after is None:
            _make_room(self._forced_after)
            after = self._forced_after[key] = settled(self.vocabulary, found, path)
        return after

    def remaining(self, place: int, most: int) -> str | None:
        """The only text that can follow, if the constraint ends with it; else None.

        Args:
            most: bytes that it may have; None if it has more. A place that is further from the
                end is not walked from, so that a long end costs nothing until it is reached.
        """
        key = (place, most)
        if key not in self._remaining:
            left = None
            if self.machine.least_bytes(place) <= most:
                text, end = forced_text(self.machine, place, most)
                if not end % self.machine.nodes and self.machine.is_final(end):
                    left = text
            _make_room(self._remaining)
            self._remaining[key] = left
        return self._remaining[key]


def _make_room(kept: dict[Any, Any]) -> None:
    """Forget all, if it has become too much: what is needed again is soon there again."""
    if len(kept) >= _MOST_STEPS:
        kept.clear()
