"""A constraint over tokens as two dense tables: what a device can step and mask by itself.

    next[state, class_of[token]]      the state after a token, or why there is none

States are the places of an automaton that whole tokens lead to, as far as the tables have room;
tokens that none of these states can tell apart are one class. `[a-z]+` over 49,000 tokens has as
many classes as lengths of its tokens, a JSON record of 142 states and six fields some hundreds.

Owns        nothing; immutable once made.
Promises    the masks of `TokenMatcher` at each state, end tokens among them. Where a state is
            missing, the tables say so and never guess; so they may be of a part of a constraint.
Costs       a walk of the vocabulary's trie for each state, a millisecond where most tokens may
            come; bounded by counts, not by time, so that equal constraints have equal tables.
Not here    when they are made (`tabulating`), the device's copy (`lmc.runtime.cuda.tables`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from lmc.constraints.budget import BudgetError
from lmc.constraints.machine import DEAD
from lmc.constraints.token_steps import MIDDLE, steps_from

if TYPE_CHECKING:
    from lmc.constraints.machine import Machine
    from lmc.constraints.vocabulary import Vocabulary

__all__ = ["ENDED", "LOST", "MOST_CLASSES", "NEVER", "TokenClasses", "TokenState", "token_classes"]

NEVER, LOST, ENDED = -1, -2, -3
"""Not allowed; allowed, but the state after it is not in the tables; an end token."""

MOST_STATES = 4096
MOST_CLASSES = 512
MOST_STEPS = 1 << 24
"""Pairs of a state and an allowed token that are looked at; no more states are begun after."""
LEAST_CAP = 64
"""Above that, `TokenClasses.least` says no more than that."""

_MUCH = 0.1  # of the states
_NEW = -9  # a state without a number so far
_ROOM = 64  # states and classes that the tables have room for at first

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TokenClasses:
    """See the module's text.

    Attributes:
        class_of: int16, shape (vocabulary,): the class of each token; 0 is that of all tokens that
            are allowed nowhere.
        next: int32, shape (states, classes): the state after a token of the class, or `NEVER`,
            `LOST` or `ENDED`. State 0 is the start.
        forced: int32, shape (states,): the token that must come next by the tokenizer's own
            segmentation, or -1. Which one it is may depend on the tokens before, too; so this is
            what is likely, and whoever goes by it asks `TokenMatcher.forced` afterwards.
        least: int32, shape (states,): how many tokens lead to an end at least, `LEAST_CAP` at most.
        numbers: the state of a place of the automaton's machine.
    """

    class_of: npt.NDArray[np.int16]
    next: npt.NDArray[np.int32]
    forced: npt.NDArray[np.int32]
    least: npt.NDArray[np.int32]
    numbers: dict[int, int]

    def mask(self, state: int) -> npt.NDArray[np.bool_]:
        """The tokens that may come next, bool, shape (vocabulary,)."""
        allowed: npt.NDArray[np.bool_] = (self.next[state] != NEVER)[self.class_of]
        return allowed

    def step(self, state: int, token: int) -> int:
        """The state after a token, or `NEVER`, `LOST` or `ENDED`."""
        return int(self.next[state, self.class_of[token]])

    @property
    def jumps(self) -> bool:
        """Whether much of the text is forced."""
        return bool((self.forced >= 0).mean() > _MUCH)


class TokenState(NamedTuple):
    """A place in a constraint, as a state of its tables."""

    classes: TokenClasses
    number: int


def token_classes(
    machine: Machine,
    vocabulary: Vocabulary,
    forced: Callable[[int], tuple[int, ...]],
    *,
    most_states: int = MOST_STATES,
    most_steps: int = MOST_STEPS,
) -> TokenClasses:
    """The tables of an automaton over a vocabulary that can spell all of its texts.

    Args:
        machine: of the automaton; something matches it.
        forced: the tokens that are forced at a place, whatever came before.
        most_states, most_steps: bounds; what lies beyond is `LOST`.

    Raises:
        BudgetError: there are more than `MOST_CLASSES` classes.
    """
    assert machine.start is not None, "something matches"
    made = _Tables(len(vocabulary))
    states = [machine.start // machine.nodes]
    number_of = np.full(2 * len(machine) + 64, _NEW, np.int32)  # by state, from `-MIDDLE` on
    number_of[0], number_of[states[0] - MIDDLE] = LOST, 0
    pairs = 0
    for number, state in enumerate(states):
        place = state * machine.nodes
        if pairs > most_steps:
            break
        tokens, after = steps_from(machine, vocabulary.trie, place)
        pairs += len(tokens)
        if len(machine) - MIDDLE > len(number_of):
            more = np.full(2 * len(machine), _NEW, np.int32)
            number_of = np.concatenate((number_of, more))
        after -= MIDDLE
        codes = number_of[after]
        new = after[codes == _NEW]
        if len(new):
            # by their first tokens, so that the order is a matter of the constraint alone
            found, firsts = np.unique(new, return_index=True)
            for one in found[np.argsort(firsts)].tolist():
                room = len(states) < most_states
                number_of[one] = len(states) if room else LOST
                if room:
                    states.append(one + MIDDLE)
            codes = number_of[after]
        after = codes
        if machine.accepts(place):
            ends = np.array(vocabulary.eos, np.int32)
            tokens = np.concatenate((tokens, ends))
            after = np.concatenate((after, np.full(len(ends), ENDED, np.int32)))
        made.add(number, tokens, after)
    done = made.states
    made.next[made.next >= done] = LOST  # nothing is known of what may come there
    numbers = {state: number for number, state in enumerate(states[:done])}
    table = made.next[:done, : made.classes].copy()
    return TokenClasses(
        made.class_of,
        table,
        _first_forced(machine, vocabulary, forced, numbers),
        _least(table),
        {state * machine.nodes: n for state, n in numbers.items()},
    )


class _Tables:
    """Tables that grow by states; a class is divided where a state tells its tokens apart."""

    def __init__(self, tokens: int) -> None:
        self.class_of = np.zeros(tokens, np.int16)
        self.next = np.full((_ROOM, _ROOM), NEVER, np.int32)
        self.states, self.classes = 0, 1
        self._sizes = [tokens]

    def add(self, state: int, tokens: Tokens, after: npt.NDArray[np.int32]) -> None:
        """Add the next state: the tokens that may come, and a code for each of what is after."""
        self.states = state + 1
        if self.states > len(self.next):
            self._grow(0)
        if not len(tokens):
            return
        low = int(after.min())
        width = int(after.max()) - low + 1
        kinds = self.class_of[tokens].astype(np.int64) * width + (after - low)
        counts = np.bincount(kinds)
        new = np.zeros(len(counts), np.int16)
        for kind in np.flatnonzero(counts).tolist():
            old, count = kind // width, int(counts[kind])
            name = old if old and count == self._sizes[old] else self._divide(old, count)
            new[kind] = name
            self.next[state, name] = kind % width + low
        self.class_of[tokens] = new[kinds]

    def _divide(self, old: int, count: int) -> int:
        """A new class of `count` tokens of an old one; its number."""
        name = self.classes
        if name == MOST_CLASSES:
            raise BudgetError(
                f"a table of this constraint has more than {MOST_CLASSES} classes of tokens"
            )
        if name == self.next.shape[1]:
            self._grow(1)
        self.next[: self.states - 1, name] = self.next[: self.states - 1, old]
        self._sizes[old] -= count
        self._sizes.append(count)
        self.classes += 1
        return name

    def _grow(self, axis: int) -> None:
        more = np.full_like(self.next, NEVER)
        self.next = np.concatenate((self.next, more), axis=axis)


def _first_forced(
    machine: Machine,
    vocabulary: Vocabulary,
    forced: Callable[[int], tuple[int, ...]],
    numbers: dict[int, int],
) -> npt.NDArray[np.int32]:
    """The first forced token at each state, or -1.

    A run of them says the next one for the states inside of it, too: that is how it is taken.
    """
    found = np.full(len(numbers), -1, np.int32)
    asked = np.zeros(len(numbers), np.bool_)
    for state, number in numbers.items():
        if asked[number]:
            continue
        at = state * machine.nodes
        for token in forced(at):
            inside = numbers.get(at // machine.nodes) if not at % machine.nodes else None
            if inside is not None:
                if asked[inside]:
                    break
                asked[inside], found[inside] = True, token
            at = machine.run(at, vocabulary.token_bytes[token] or b"")
            if at == DEAD:
                break
    return found


def _least(table: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """How many tokens lead from each state to an end at least."""
    states = len(table)
    stuck = (table == NEVER).all(axis=1)  # matched, and nothing may follow but an end token
    least = np.where(stuck, 0, LEAST_CAP).astype(np.int32)
    ends = (table == ENDED).any(axis=1)
    least[ends] = 0
    where = np.where(table >= 0, table, states)
    for _ in range(LEAST_CAP):
        shorter = np.minimum(least, np.append(least, LEAST_CAP)[where].min(axis=1) + 1)
        if (shorter == least).all():
            break
        least = shorter.astype(np.int32)
    return least
