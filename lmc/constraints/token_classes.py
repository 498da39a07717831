"""An automaton over tokens as two dense tables: what a device can step and mask by itself.

    next[state, class_of[token]]      the state after a token, or -1

Tokens that no state can tell apart are one class: first those that spell the same classes of bytes,
then those whose columns turn out equal. `[a-z]+` over 49,000 tokens has as many classes as lengths
of its tokens, and a JSON record of several hundred states some hundreds of classes.

Owns        nothing; immutable. `kept` keeps tables in a folder, by automaton and vocabulary.
Promises    the masks of `TokenMatcher`: a token is allowed exactly if the constraint can be
            completed afterwards with tokens of the vocabulary.
Costs       O(states x different spellings x length); a table is made once, or read in milliseconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lmc.constraints.automaton import Automaton
from lmc.constraints.budget import BudgetError
from lmc.constraints.dfa import Dfa
from lmc.constraints.vocabulary import Vocabulary
from lmc.errors import ConstraintError

__all__ = ["TokenClasses", "kept", "token_classes"]

MOST_CELLS = 1 << 26
"""Of `next` before equal columns are merged: 256 MB while it is made."""

_FORMAT = 1


@dataclass(frozen=True, eq=False)
class TokenClasses:
    """See the module's text.

    Attributes:
        class_of: int32, shape (vocabulary,): the class of each token. Class 0 is that of all
            tokens that are allowed nowhere, such as control tokens.
        next: int32, shape (states, classes): the state after a token of the class; -1 if it is
            not allowed. State 0 is the start.
        accepting: bool, shape (states,): whether the end tokens are allowed.
    """

    class_of: npt.NDArray[np.int32]
    next: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.bool_]

    def mask(self, state: int) -> npt.NDArray[np.bool_]:
        """The tokens of text that may come next, bool, shape (vocabulary,); no end tokens."""
        allowed: npt.NDArray[np.bool_] = (self.next[state] >= 0)[self.class_of]
        return allowed

    def step(self, state: int, token: int) -> int:
        """The state after a token, or -1."""
        return int(self.next[state, self.class_of[token]])


def token_classes(automaton: Automaton, vocabulary: Vocabulary, most: int = 16_384) -> TokenClasses:
    """The tables of an automaton over a vocabulary.

    Args:
        automaton: a regular one, without a record of keys.
        most: how many states it may have.

    Raises:
        BudgetError: the tables would be too large.
        ConstraintError: it is no automaton alone, or the vocabulary cannot spell anything of it.
    """
    if type(automaton) is not Automaton:
        raise ConstraintError("this constraint is not an automaton alone")
    dfa = automaton.dfa()
    if len(dfa) > most:
        raise BudgetError(
            f"{len(dfa)} states are too many for a table", hint="match it with masks instead"
        )
    spellings, spelling_of = _spellings(dfa, vocabulary)
    if len(dfa) * len(spellings) > MOST_CELLS:
        raise BudgetError(
            f"{len(dfa)} states over {len(spellings)} spellings of tokens are too many for a table",
            hint="match it with masks instead",
        )
    after = _alive(_walked(dfa, spellings), dfa.accepting)
    if len(dfa) and not dfa.accepting[0] and not (after[0] >= 0).any():
        raise ConstraintError("the vocabulary cannot spell anything that matches")
    nowhere = np.full(len(dfa), -1, dtype=np.int32)
    columns = {nowhere.tobytes(): 0}
    class_of_spelling = np.array(
        [columns.setdefault(c.tobytes(), len(columns)) for c in np.ascontiguousarray(after.T)],
        dtype=np.int32,
    )
    class_of = np.zeros(len(vocabulary), dtype=np.int32)
    is_text = spelling_of >= 0
    class_of[is_text] = class_of_spelling[spelling_of[is_text]]
    table = np.frombuffer(b"".join(columns), dtype=np.int32).reshape(len(columns), len(dfa))
    return TokenClasses(class_of, np.ascontiguousarray(table.T), dfa.accepting.copy())


_END = 255  # behind the classes of the bytes of a spelling


def _spellings(
    dfa: Dfa, vocabulary: Vocabulary
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The different rows of byte classes that tokens are, padded, and that of each token."""
    if dfa.table.shape[1] >= _END:
        raise BudgetError("too many classes of bytes for a table", hint="match it with masks")
    classes = bytes(dfa.class_of)
    known: dict[bytes, int] = {}
    spelling_of = np.full(len(vocabulary), -1, dtype=np.int64)
    for token, text in enumerate(vocabulary.token_bytes):
        if text:
            spelling_of[token] = known.setdefault(text.translate(classes), len(known))
    longest = max(map(len, known), default=0)
    padded = b"".join(row.ljust(longest, bytes((_END,))) for row in known)
    found = np.frombuffer(padded, dtype=np.uint8).reshape(len(known), longest)
    return found, spelling_of


def _walked(dfa: Dfa, spellings: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """The state after each spelling from each state, int32, shape (states, spellings)."""
    states = len(dfa)
    dead = np.full((1, dfa.table.shape[1]), states, dtype=np.int32)
    table = np.concatenate([np.where(dfa.table < 0, states, dfa.table), dead]).astype(np.int32)
    at = np.repeat(np.arange(states, dtype=np.int32)[:, None], len(spellings), axis=1)
    lengths = (spellings != _END).sum(axis=1)
    for place in range(spellings.shape[1]):
        going = np.flatnonzero(lengths > place)
        if not len(going):
            break
        at[:, going] = table[at[:, going], spellings[going, place][None]]
    at[at == states] = -1
    return at


def _alive(after: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """The same without steps to states from which tokens lead to no end."""
    alive = np.append(accepting, False)
    while True:
        more = alive.copy()
        more[:-1] |= alive[after].any(axis=1)
        if (more == alive).all():
            break
        alive = more
    return np.where(alive[after], after, -1).astype(np.int32)


def kept(folder: Path, automaton: Automaton, vocabulary: Vocabulary) -> TokenClasses:
    """`token_classes`, read from a folder if they were made before, else written there.

    A damaged file is made again; a folder that cannot be written to is no error.

    Raises:
        BudgetError, ConstraintError: see `token_classes`.
    """
    name = hashlib.sha256(f"{_FORMAT} {automaton.digest} {vocabulary.digest}".encode()).hexdigest()
    path = folder / f"{name[:32]}.npz"
    damaged = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
    with contextlib.suppress(*damaged), np.load(path, allow_pickle=False) as held:
        return TokenClasses(held["class_of"], held["next"], held["accepting"])
    made = token_classes(automaton, vocabulary)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            np.savez(file, class_of=made.class_of, next=made.next, accepting=made.accepting)
        os.replace(file.name, path)
    return made
