"""Forced tokens: what must come next, cut as the tokenizer itself would cut it.

Where only one byte string `w` can follow, its tokens need no model. But the last of them may not
be the tokenizer's own once the text goes on: after `{"name": "` comes a letter, and `"A` may be
one token. So tokens are given only as far as every text that may follow is cut in the same way.
For `(?:ha){2,6}` that is nowhere: `haha` is `h`, `aha`, and `hahaha` is `hah`, `aha`.

The tokenizer is asked, not modelled. Of a text that begins with `w` and goes on, some token reaches
the end of `w` or runs over it. For each place where that token may begin, and each token that may
stand there, the tokenizer says whether it would cut so, and how it then cuts what is before. This
relies on what holds for BPE behind a splitting pattern: the tokens before a boundary are those of
the text before it. Where too many tokens would have to be tried, fewer are given.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmc.constraints.alphabet import bits
from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.vocabulary import Trie, Vocabulary

__all__ = [
    "Forced", "Path", "find_node", "forced_text", "forced_tokens", "last", "runs_over", "settled",
]  # fmt: skip

_LONGEST = 2048  # characters that are looked ahead at most
_TRIED = 48  # tokens over the end of the forced text that are tried at one boundary
_OF_A_KIND = 3  # characters of each kind after it that are tried


Path = tuple[int, "Path | None"]
"""Tokens taken, the last one first: (token, those before it)."""


@dataclass(frozen=True, slots=True)
class Forced:
    """The only text that can follow, and its tokens as far as they are settled.

    Attributes:
        beyond: beginnings of what may come after the text, of all kinds; also nothing, if it may
            end there.
    """

    text: str
    tokens: tuple[int, ...] = ()
    beyond: tuple[str, ...] = ()


def last(path: Path | None, count: int | None) -> tuple[int, ...]:
    """The last `count` tokens of a path, or all of them."""
    found: list[int] = []
    while path is not None and (count is None or len(found) < count):
        token, path = path
        found.append(token)
    return tuple(reversed(found))


def settled(vocabulary: Vocabulary, forced: Forced, path: Path) -> tuple[int, ...]:
    """The forced tokens that the tokenizer cuts in the same way after the tokens of `path`.

    What stands before can matter: `'s` is a token after a letter, but not after a comma.
    """
    for count in (3, 8, None):
        before = last(path, count)
        try:
            left = b"".join(vocabulary.token_bytes[t] or b"" for t in before).decode()
        except UnicodeDecodeError:
            continue  # it begins inside a character
        kept: int | None = None
        for more in forced.beyond:
            tokens = vocabulary.encode(left + forced.text + more)
            if tuple(tokens[: len(before)]) == before:
                same = _common(forced.tokens, tokens[len(before) :])
                kept = same if kept is None else min(kept, same)
        if kept is not None:
            return forced.tokens[:kept]
    return forced.tokens  # the tokenizer would not have cut so before: there is nothing to keep to


def forced_text(machine: Machine, place: int, longest: int = _LONGEST) -> tuple[str, int]:
    """The only text that can follow, as far as there is only one, and the place after it.

    Args:
        longest: characters that are looked ahead at most.
    """
    state, node = divmod(place, machine.nodes)
    if node:
        return "", place
    text: list[str] = []
    while len(text) < longest and not machine.accepts(state * machine.nodes):
        targets = list(machine.targets(state))
        if len(targets) != 1:
            break
        mask, target = targets[0]
        code = machine.alphabet.single(mask)
        if code is None:
            break
        text.append(chr(code))
        state = target
    return "".join(text), state * machine.nodes


def forced_tokens(machine: Machine, vocabulary: Vocabulary, place: int) -> Forced:
    """What every text from `place` on begins with, cut as if it stood alone."""
    text, end = forced_text(machine, place)
    if not text:
        return Forced(text)
    tokens = vocabulary.encode(text)
    data = text.encode()
    if b"".join(vocabulary.token_bytes[t] or b"" for t in tokens) != data:
        return Forced(text)
    beyond = _beginnings(machine, end)
    kept = len(tokens)
    for more in beyond:
        kept = min(kept, _common(tokens, vocabulary.encode(text + more)))
    for cut in range(max(0, len(data) - vocabulary.trie.longest + 1), len(data)):
        if kept == 0:
            break
        kept = _kept_beside(machine, vocabulary, data, cut, end, tokens, kept)
    return Forced(text, tuple(tokens[:kept]), beyond)


def _beginnings(machine: Machine, place: int) -> tuple[str, ...]:
    """What a text may go on with after `place`: nothing, or characters of several kinds.

    Tokenizers split texts by kinds of characters and look one character ahead for it.
    """
    allowed = [
        machine.alphabet.classes[c] for c in bits(machine.moves_mask(place // machine.nodes))
    ]
    kinds: dict[str, list[str]] = {}
    ascii_codes = [c for chars in allowed for low, high in chars.ranges() if low < 0x80
                   for c in range(low, min(high, 0x7F) + 1)]  # fmt: skip
    others = [e for chars in allowed[: _OF_A_KIND * 4] for e in chars.edges[::2][:2] if e >= 0x80]
    for code in (*ascii_codes, *others):
        char = chr(code)
        kind = "L" if char.isalpha() else "N" if char.isnumeric() else "Z" if char.isspace() else ""
        kinds.setdefault(kind + str(code >= 0x80), []).append(char)
    found = [c for chars in kinds.values() for c in chars[:_OF_A_KIND]]
    return ("", *found) if machine.accepts(place) else tuple(found)


def _kept_beside(
    machine: Machine,
    vocabulary: Vocabulary,
    data: bytes,
    cut: int,
    end: int,
    tokens: list[int],
    kept: int,
) -> int:
    """How many of `tokens` stay if a token runs from `cut` over the end of the forced text.

    The tokenizer may cut at `cut` only if it cuts so where such a token stands at the end. Then
    what is before it is cut as if it stood alone.
    """
    node = find_node(vocabulary.trie, data[cut:])
    if node is None:
        return kept
    try:
        stay = _common(tokens, vocabulary.encode(data[:cut].decode()))
    except UnicodeDecodeError:
        stay = 0  # the cut is inside a character, and the tokenizer cannot be asked
    if stay >= kept:
        return kept
    candidates = runs_over(machine, vocabulary.trie, node, end)
    for longer, after in itertools.islice(candidates, _TRIED):
        whole = data + longer + _rest_of_character(machine, after)
        cut_so = vocabulary.encode(whole.decode())
        before = _tokens_up_to(vocabulary, cut_so, cut)
        if before is None:
            continue
        if vocabulary.token_bytes[cut_so[before]] == data[cut:] + longer:
            return min(stay, _common(tokens, cut_so[:before]))
    return kept if next(candidates, None) is None else stay


def _rest_of_character(machine: Machine, place: int) -> bytes:
    """Bytes that end the character inside of which `place` is."""
    found = bytearray()
    while place % machine.nodes:
        for byte in range(0x80, 0xC0):
            after = machine.step(place, byte)
            if after != DEAD:
                found.append(byte)
                place = after
                break
    return bytes(found)


def _tokens_up_to(vocabulary: Vocabulary, tokens: list[int], cut: int) -> int | None:
    """How many tokens end at byte `cut`; None if one runs over it, or none follows."""
    at = 0
    for count, token in enumerate(tokens):
        if at >= cut:
            return count if at == cut else None
        at += len(vocabulary.token_bytes[token] or b"")
    return None


def find_node(trie: Trie, text: bytes) -> int | None:
    """The node of a beginning of tokens that goes on, or None."""
    at, stop = 0, len(trie)
    node = -1
    for byte in text:
        while at < stop and trie.byte[at] != byte:
            at = int(trie.skip[at])
        if at >= stop:
            return None
        node, stop = at, int(trie.skip[at])
        at += 1
    return node if at < stop else None


def runs_over(machine: Machine, trie: Trie, node: int, place: int) -> Iterator[tuple[bytes, int]]:
    """What tokens that go on from `node` add, if it may follow at `place`, and the place then."""
    start = int(trie.depth[node])
    places = [place]
    added = bytearray()
    at, stop = node + 1, int(trie.skip[node])
    while at < stop:
        depth = int(trie.depth[at]) - start
        del places[depth:], added[depth - 1 :]
        byte = int(trie.byte[at])
        after = machine.step(places[-1], byte)
        if after == DEAD:
            at = int(trie.skip[at])
            continue
        places.append(after)
        added.append(byte)
        if trie.tokens_at[at] < trie.tokens_at[at + 1]:
            yield bytes(added), after
        at += 1


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count
