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
from collections.abc import Iterator

from lmc.constraints.alphabet import bits
from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.vocabulary import Trie, Vocabulary

__all__ = ["forced_text", "forced_tokens"]

_LONGEST = 2048  # characters that are looked ahead at most
_TRIED = 48  # tokens over the end of the forced text that are tried at one boundary
# Characters after it that are tried, where they may follow: tokenizers split texts by kinds of
# characters, and look one character ahead for it.
_PROBES = "a \n0A'\"_.,-:\t\r\u00e9\u4e2d"


def forced_text(machine: Machine, place: int) -> tuple[str, int]:
    """The only text that can follow, as far as there is only one, and the place after it."""
    state, node = divmod(place, machine.nodes)
    if node:
        return "", place
    text: list[str] = []
    while len(text) < _LONGEST and not machine.accepts(state * machine.nodes):
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


def forced_tokens(machine: Machine, vocabulary: Vocabulary, place: int) -> tuple[int, ...]:
    """The tokens that every text from `place` on begins with, as the tokenizer cuts them."""
    text, end = forced_text(machine, place)
    if not text:
        return ()
    tokens = vocabulary.encode(text)
    data = text.encode()
    if b"".join(vocabulary.token_bytes[t] or b"" for t in tokens) != data:
        return ()
    if machine.is_final(end):
        return tuple(tokens)
    kept = len(tokens)
    for char in _next_chars(machine, end):
        kept = min(kept, _common(tokens, vocabulary.encode(text + char)))
    for cut in range(max(0, len(data) - vocabulary.trie.longest + 1), len(data)):
        if kept == 0:
            break
        kept = _kept_beside(machine, vocabulary, data, cut, end, tokens, kept)
    return tuple(tokens[:kept])


def _next_chars(machine: Machine, place: int) -> list[str]:
    """Characters of several kinds that may come next."""
    classes = bits(machine.moves_mask(place // machine.nodes))
    allowed = [machine.alphabet.classes[c] for c in classes]
    found = [p for p in _PROBES if any(ord(p) in chars for chars in allowed)]
    return found or [chr(allowed[0].edges[0])]


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
    node = _find(vocabulary.trie, data[cut:])
    if node is None:
        return kept
    try:
        stay = _common(tokens, vocabulary.encode(data[:cut].decode()))
    except UnicodeDecodeError:
        stay = 0  # the cut is inside a character, and the tokenizer cannot be asked
    if stay >= kept:
        return kept
    for longer in itertools.islice(_beyond(machine, vocabulary.trie, node, end), _TRIED):
        try:
            whole = (data + longer).decode()
        except UnicodeDecodeError:
            continue  # half a character; a longer token or another boundary speaks for it
        last = vocabulary.encode(whole)[-1]
        if vocabulary.token_bytes[last] == data[cut:] + longer:
            return stay
    else:
        beyond = itertools.islice(_beyond(machine, vocabulary.trie, node, end), _TRIED, None)
        return kept if next(beyond, None) is None else stay


def _find(trie: Trie, text: bytes) -> int | None:
    """The node of a beginning that goes on, or None."""
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


def _beyond(machine: Machine, trie: Trie, node: int, place: int) -> Iterator[bytes]:
    """What tokens that go on from `node` add, as far as it may follow at `place`."""
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
            yield bytes(added)
        at += 1


def _common(first: list[int], second: list[int]) -> int:
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count
