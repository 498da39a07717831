"""Forks: branches of a prompt, and the ways to bring them together again.

    gather   forks.join()               each variable becomes a list, one item a branch
             forks.join(mode="concat")  and what the branches appended is appended to the parent
             forks.join(k=2)            the lists of the 2 branches that finish first
    one      forks.first()              the branch that finishes first; the others are stopped
             forks.vote("answer")       the first branch that says what most of them say
             forks.best(key=...)        the branch with the greatest key

Which branch finishes first is a matter of tokens, not of time: see `lmc.runtime.race`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lmc.errors import Location, UsageError
from lmc.frontend.blocks import with_article
from lmc.frontend.location import here
from lmc.frontend.symbolic import is_symbolic
from lmc.frontend.symbolic_numbers import Float, Int
from lmc.frontend.variables import Entry, Given, Made, check_known, entries_since

if TYPE_CHECKING:
    from lmc.frontend.dsl import State

__all__ = ["Forks"]

Variable = Any
"""What a state keeps for a variable: see `lmc.frontend.variables`."""

_MODES = ("gather", "concat")
_ON_ERROR = ("raise", "collect")


class Forks(Sequence["State"]):
    """The branches of a fork, until they are brought together."""

    def __init__(self, parent: State, branches: list[State]) -> None:
        self._parent = parent
        self._branches = branches
        self._before = dict(parent._variables)
        self._log = parent._log
        self._open = parent._open

    def __len__(self) -> int:
        return len(self._branches)

    def __getitem__(self, key: Any) -> Any:  # a branch, branches, or a variable of each
        if isinstance(key, str):
            return [branch[key] for branch in self._branches]
        return self._branches[key]

    def __setitem__(self, key: int, branch: State) -> None:
        """Python's second half of `forks[i] += x`; a branch cannot be replaced."""
        if branch is not self._branches[key]:
            raise UsageError(
                "a branch of a fork cannot be replaced", here(), hint="append to it with +="
            )

    def __iter__(self) -> Iterator[State]:
        return iter(self._branches)

    def __iadd__(self, item: object) -> Forks:
        at = here()
        if callable(item):
            make: Callable[[int], object] = item
            items = [make(i) for i in range(len(self._branches))]
        elif isinstance(item, (list, tuple)):
            if len(item) != len(self._branches):
                raise UsageError(
                    f"{len(item)} items for {len(self._branches)} branches",
                    at,
                    hint="give one item a branch, or a single one for all",
                )
            items = list(item)
        else:
            items = [item] * len(self._branches)
        for branch, one in zip(self._branches, items, strict=True):
            branch._append(one, at)
        return self

    # -- bringing them together
    def join(self, mode: str = "gather", *, k: int | None = None, on_error: str = "raise") -> None:
        """End the branches; each variable that they set becomes a list in the parent.

        The list has one item a branch, in fork order. A variable that existed before the fork is
        gathered if a branch has set it again; the other branches give its old value.

        Args:
            mode: "gather", or "concat" to append also what each branch appended, in fork order.
            k: take only the `k` branches that finish first, in fork order; the others are stopped.
                Branches that fail do not finish.
            on_error: "raise" raises the error of a failed model call where its item is read;
                "collect" puts the error itself, an `LmcError`, in its place.

        Raises:
            UsageError: they were joined before, or a variable is missing in some branch.
        """
        at = here()
        if mode not in _MODES:
            raise UsageError(f"join(mode={mode!r})", at, hint='use "gather" or "concat"')
        if on_error not in _ON_ERROR:
            raise UsageError(f"join(on_error={on_error!r})", at, hint='use "raise" or "collect"')
        if mode == "concat" and on_error == "collect":
            raise UsageError(
                'join(mode="concat", on_error="collect"): a failed branch has no text to append',
                at,
                hint="leave one of them out",
            )
        variables = self._variables("join()", at)
        if k is None:
            lists = variables
        else:
            if mode == "concat":
                raise UsageError('join(mode="concat", k=...)', at, hint="leave one of them out")
            winners = self._race(k, f"join(k={k})", at)
            lists = {
                name: [self._pick(index, held, at) for index in winners]
                for name, held in variables.items()
            }
        if mode == "concat":
            for branch in self._branches:
                self._append_again(branch, at)
        for name, held in lists.items():
            if on_error == "collect":
                recorder = self._parent._recorder
                held = [recorder.attempt(recorder.held(item, at), at) for item in held]
            self._parent._variables[name] = held
        self._end("join()", at, for_good=k is not None)

    def first(self) -> State:
        """End the branches but for the one that finishes first, and stop the others.

        First is the branch whose model calls make the fewest tokens, the first in fork order of
        equals; branches that fail do not finish. Its variables become those of the parent.

        Returns:
            The branch; it can be read and gone on with.
        """
        at = here()
        variables = self._variables("first()", at)
        (index,) = self._race(1, "first()", at)
        return self._take(index, variables, "first()", at, for_good=True)

    def vote(self, name: str, key: Callable[[Any], Any] | None = None) -> State:
        """End the branches but for the first one that says what most of them say.

        Args:
            name: of the variable that they vote with.
            key: what of its value counts, as in `key=str.strip`.

        Returns:
            The branch; its variables become those of the parent.
        """
        at = here()
        variables = self._variables("vote()", at)
        if name not in variables:
            raise UsageError(
                f"vote({name!r}): the branches do not set such a variable",
                at,
                hint=f"they set: {', '.join(variables) or 'none'}",
            )
        ballots = [branch._read(held) for branch, held in self._zip(variables[name])]
        if key is not None:
            ballots = [key(ballot) for ballot in ballots]
        return self._take(_majority(ballots, at), variables, "vote()", at)

    def best(self, key: Callable[[State], Any]) -> State:
        """End the branches but for the one with the greatest key, the first of equals.

        Args:
            key: gets a branch and gives a number, or anything else that has an order.

        Returns:
            The branch; its variables become those of the parent.
        """
        at = here()
        if not callable(key):
            raise UsageError(
                "best() needs a function of a branch",
                at,
                hint='as in best(key=lambda branch: len(branch["answer"]))',
            )
        variables = self._variables("best()", at)
        keys = [key(branch) for branch in self._branches]
        return self._take(_greatest(keys, at), variables, "best()", at)

    # -- parts of these
    def _variables(self, how: str, at: Location | None) -> dict[str, list[Variable]]:
        """What the branches have set, by name: the variable of each."""
        self._parent._check_open(at)
        for branch in self._branches:
            branch._check_open(at)
            if branch._open != self._open:
                what = with_article(branch._role) + " message" if branch._role else "a `with` block"
                raise UsageError(f"{how} inside {what} of a branch", at, hint="end it before")
        names = {
            name: None
            for branch in self._branches
            for name, ref in branch._variables.items()
            if name not in self._before or self._before[name] is not ref
        }
        for name in names:
            missing = [i for i, b in enumerate(self._branches) if name not in b._variables]
            if missing:
                raise UsageError(
                    f"{how}: the variable {name!r} is missing in branch {missing[0]}",
                    at,
                    hint="set it in every branch, or read it from the branch itself",
                )
        return {name: [b._variables[name] for b in self._branches] for name in names}

    def _zip(self, held: list[Variable]) -> Iterator[tuple[State, Variable]]:
        return zip(self._branches, held, strict=True)

    def _race(self, k: int, how: str, at: Location | None) -> tuple[Any, ...]:
        recorder = self._parent._recorder
        k = recorder.known(k, "the number of branches to wait for")
        if type(k) is not int or not 1 <= k <= len(self._branches):
            raise UsageError(
                f"{how} of {len(self._branches)} branches",
                at,
                hint=f"give a number from 1 to {len(self._branches)}",
            )
        *winners, tokens = recorder.race([branch._life for branch in self._branches], k, at)
        self._parent._life.raced(tokens, [branch._life for branch in self._branches])
        return tuple(winners)

    def _take(
        self,
        index: Any,
        variables: dict[str, list[Variable]],
        how: str,
        at: Location | None,
        *,
        for_good: bool = False,
    ) -> State:
        """The branch with this number, which is known or a recorder's; the others end."""
        parent = self._parent
        picked = {name: self._pick(index, held, at) for name, held in variables.items()}
        ref = self._pick(index, [branch._ref for branch in self._branches], at)
        log = self._picked_log(index, how, at)
        self._end(how, at, for_good=for_good)
        parent._variables.update(picked)
        return parent._picked(ref, {**self._before, **picked}, log, self._open)

    def _pick(self, index: Any, held: Sequence[Variable], at: Location | None) -> Variable:
        """The variable of the branch with this number."""
        if type(index) is int:
            return held[index]
        if all(one is held[0] for one in held):
            return held[0]
        kind = type(held[0])
        if all(isinstance(one, list) and type(one) is kind for one in held) and (
            len(set(map(len, held))) == 1
        ):
            return kind(self._pick(index, column, at) for column in zip(*held, strict=True))
        recorder = self._parent._recorder
        return recorder.pick(index, [recorder.held(one, at) for one in held], at)

    def _picked_log(self, index: Any, how: str, at: Location | None) -> Entry | None:
        """What the branch with this number has appended, as far as all have the same shape.

        Where it depends on the branch, it is not known, even if the number is: compiled and eager
        runs are to agree on it.
        """
        log = self._log
        try:
            logs = [entries_since(log, branch._log) for branch in self._branches]
        except ValueError:  # a branch went back to before the fork
            logs = [[], [Entry(None, "unknown", how)]]
        shapes = [[(e.kind, e.kind == "text" or e.held) for e in entries] for entries in logs]
        if any(shape != shapes[0] for shape in shapes):
            return Entry(log, "unknown", f"{how} at {at}" if at else how)
        for column in zip(*logs, strict=True):
            held = [entry.held for entry in column]
            if column[0].kind == "text" and not (
                type(held[0]) is str and all(type(h) is str and h == held[0] for h in held)
            ):
                log = Entry(log, "text", self._picked_text(index, held, at))
            else:
                log = Entry(log, column[0].kind, held[0])
        return log

    def _picked_text(
        self, index: Any, held: Sequence[str | Made], at: Location | None
    ) -> str | Made:
        if type(index) is int:
            return held[index]
        said = [one.ref if isinstance(one, Made) else Given(one) for one in held]
        return Made(self._parent._recorder.held(self._pick(index, said, at), at))

    def _append_again(self, branch: State, at: Location | None) -> None:
        """Append to the parent what a branch appended."""
        parent = self._parent
        parent._check_open(at)
        try:
            entries = entries_since(self._log, branch._log)
        except ValueError:
            raise UsageError(
                'join(mode="concat"): a branch went back to before the fork',
                at,
                hint="use marks that were set after the fork",
            ) from None
        for entry in entries:
            if entry.kind == "text":
                parent._ref = parent._recorder.extend(parent._ref, entry.held, at)
            else:
                check_known(entry, at)
                if parent._role is not None:
                    raise UsageError(
                        'join(mode="concat"): the branches have messages, and the parent is inside '
                        f"{with_article(parent._role)} message",
                        at,
                        hint="join after it has ended",
                    )
                parent._ref = parent._recorder.role(parent._ref, entry.held, entry.kind, at)
            parent._log = Entry(parent._log, entry.kind, entry.held)

    def _end(self, how: str, at: Location | None, *, for_good: bool) -> None:
        place = f"{how} at {at}" if at else how
        for branch in self._branches:
            branch._closed = place
            if for_good:
                branch._life.end(place)


def _majority(ballots: list[Any], at: Location | None) -> Any:
    """The number of the first of those that occur most often: known, or a recorder's."""
    symbolic = next(filter(is_symbolic, ballots), None)
    if symbolic is None:
        try:
            counts = [ballots.count(ballot) for ballot in ballots]
        except Exception as error:
            raise UsageError(f"vote(): the values cannot be compared: {error}", at) from error
        return counts.index(max(counts))
    source = symbolic._source
    for kind, symbol, fn in ((int, Int, "int.text"), (float, Float, "float.text")):
        if all(type(ballot) in (kind, symbol) for ballot in ballots):
            ballots = [source.pure(fn, b) if type(b) is symbol else str(b) for b in ballots]
    if not all(isinstance(ballot, str) for ballot in ballots):
        source.need("vote() with values that are no texts")
    return source.pure("text.majority", *ballots).value


def _greatest(keys: list[Any], at: Location | None) -> Any:
    """The number of the first of the greatest: known, or a recorder's."""
    symbolic = next(filter(is_symbolic, keys), None)
    if symbolic is None:
        for key in keys:
            if isinstance(key, float) and math.isnan(key):
                raise UsageError("best(): a key is not a number", at, hint="give it an order")
        try:
            return max(range(len(keys)), key=keys.__getitem__)
        except TypeError as error:
            raise UsageError(f"best(): the keys have no order: {error}", at) from error
    source = symbolic._source
    for kind, symbol, fn in ((int, Int, "int.argmax"), (float, Float, "float.argmax")):
        if all(type(key) in (kind, symbol) for key in keys):
            return source.pure(fn, *keys).value
    return source.need("best() with keys of several kinds")
