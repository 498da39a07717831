"""Templates: texts and constraints one after the other as one automaton, and the way back.

A template is `[gen 0] text 0 [gen 1] text 1 ...`, each gen with an automaton of its own. Joined,
they are matched as one: a token may run over a seam, and a gen ends where the model prefers the
text that follows. Which part of the text each gen wrote is read from the text afterwards (`cut`):
every gen holds as much as it can, earlier ones first. So the variables depend on the text alone,
and not on the tokens that spelled it.

    joined(automata, texts)     the one automaton
    cut(automata, texts, text)  what each gen wrote
    held_back(tokens, ...)      how many tokens before a template its beginning could change
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmc.constraints import expression as ex
from lmc.constraints.automaton import Automaton
from lmc.constraints.forcing import find_node, runs_over
from lmc.constraints.machine import DEAD
from lmc.constraints.vocabulary import Vocabulary

__all__ = ["Piece", "cut", "held_back", "joined"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one gen of a template wrote: bytes `begin` to `end` of the template's text.

    Attributes:
        complete: it matches; else the text ended before it could, or before it began.
    """

    begin: int
    end: int
    complete: bool


def joined(automata: Sequence[Automaton], texts: Sequence[str], before: str = "") -> Automaton:
    """The automaton of a template.

    Args:
        automata: of the gens.
        texts: the text behind each gen.
        before: text in front of the first gen.
    """
    parts = [Automaton(ex.Text(before))]
    for automaton, text in zip(automata, texts, strict=True):
        parts += [automaton, Automaton(ex.Text(text))]
    return Automaton.sequence([part for part in parts if part.expression != ex.Text("")])


def cut(
    automata: Sequence[Automaton], texts: Sequence[str], text: bytes, *, complete: bool
) -> list[Piece]:
    """What each gen of a template wrote in a text that was matched, or in its beginning.

    Each gen holds as much as it can, earlier ones first. Where the text ends too early, the gen
    that it ends in holds the rest; those after it hold nothing, at its end.

    Args:
        automata, texts: as `joined` takes them.
        text: a text that the template matches, or the beginning of one.
        complete: which of the two it is.

    Raises:
        ValueError: it is neither.

    Costs: linear where gens are told apart by what follows them, quadratic at worst.
    """
    size, count = len(text), len(automata)
    behind = [t.encode() for t in texts]
    dead: set[tuple[int, int]] = set()  # (gen, beginning) from where nothing fits

    def missing(nth: int) -> list[Piece]:
        return [Piece(size, size, complete=False)] * (count - nth)

    def pieces(nth: int, begin: int) -> list[Piece] | None:
        """The gens from `nth` on, which begins at `begin`."""
        if nth == count:
            return [] if begin == size else None
        if (nth, begin) in dead:
            return None
        for end, matches in _ends(automata[nth], text, begin):
            here = Piece(begin, end, matches)
            if not matches:
                if complete:
                    continue
                return [here, *missing(nth + 1)]
            after = end + len(behind[nth])
            if not text.startswith(behind[nth][: size - end], end):
                continue
            if after > size:
                if complete:
                    continue
                return [here, *missing(nth + 1)]
            if (rest := pieces(nth + 1, after)) is not None:
                return [here, *rest]
        dead.add((nth, begin))
        return None

    found = pieces(0, 0)
    if found is None:
        raise ValueError("the text is not what the template matches")
    return found


def _ends(automaton: Automaton, text: bytes, begin: int) -> Iterator[tuple[int, bool]]:
    """Where a gen that begins at `begin` may end, the furthest first, and whether it matches."""
    machine = automaton.machine
    assert machine.start is not None, "checked when the template was made"
    place = machine.start
    matching = [begin] if machine.accepts(place) else []
    for at in range(begin, len(text)):
        place = machine.step(place, text[at])
        if place == DEAD:
            break
        if machine.accepts(place):
            matching.append(at + 1)
    if place != DEAD and (not matching or matching[-1] != len(text)):
        yield len(text), False
    yield from ((end, True) for end in reversed(matching))


def held_back(tokens: Sequence[bytes | None], automaton: Automaton, vocabulary: Vocabulary) -> int:
    """How many tokens at the end of a prompt could be cut otherwise if a template follows.

    These are the last ones, from the first one on at whose beginning a longer token could stand
    that runs into what `automaton` allows. They are better left to be chosen with what follows:
    behind `"name": ` a model rarely writes ` Ann`, since it has learned to see `Ann` with the
    blank (token healing).

    Args:
        tokens: the bytes of the last tokens, None for those that are no text.
        automaton: what follows, without the text of these tokens.
    """
    machine, trie = automaton.machine, vocabulary.trie
    if machine.start is None:
        return 0
    found = 0
    suffix = b""
    for count, token in enumerate(reversed(tokens), 1):
        if token is None or len(token) + len(suffix) >= trie.longest:
            break
        suffix = token + suffix
        if suffix and suffix[0] & 0xC0 == 0x80:
            continue  # inside a character
        node = find_node(trie, suffix)
        if node is not None and next(runs_over(machine, trie, node, machine.start), None):
            found = count
    return found
