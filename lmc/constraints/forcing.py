"""Forced tokens: what must come next, cut as the tokenizer itself would cut it.

Where only one byte string `w` can follow, its tokens need no model. But the last of them may not
be the tokenizer's own once the text goes on: after `{"name": "` comes a letter, and `"A` may be
one token. So tokens are given only as far as every text that may follow is cut in the same way.
"""

from __future__ import annotations

from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.vocabulary import Trie, Vocabulary

__all__ = ["forced_text", "forced_tokens"]

_LONGEST = 2048  # characters that are looked ahead at most
_TRIED = 48  # tokens over the end of the forced text that are tried at one boundary
_PROBES = 16  # characters after it that are tried


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
    kept = len(tokens) - 1
    for char in _next_chars(machine, end):
        kept = min(kept, _common(tokens, vocabulary.encode(text + char)))
    for cut in range(max(0, len(data) - vocabulary.trie.longest + 1), len(data)):
        if kept == 0:
            break
        kept = _kept_beside(machine, vocabulary, data, cut, end, tokens, kept)
    return tuple(tokens[:kept])


def _next_chars(machine: Machine, place: int) -> list[str]:
    found = []
    for mask, _ in machine.targets(place // machine.nodes):
        while mask and len(found) < _PROBES:
            low = mask & -mask
            found.append(chr(machine.alphabet.classes[low.bit_length() - 1].edges[0]))
            mask ^= low
    return found


def _kept_beside(
    machine: Machine,
    vocabulary: Vocabulary,
    data: bytes,
    cut: int,
    end: int,
    tokens: list[int],
    kept: int,
) -> int:
    """How many of `tokens` stay if a token runs from `cut` over the end of the forced text."""
    node = _find(vocabulary.trie, data[cut:])
    if node is None:
        return kept
    tried = 0
    for longer in _beyond(machine, vocabulary.trie, node, end):
        if tried == _TRIED:
            return 0
        tried += 1
        try:
            whole = (data[:cut] + data[cut:] + longer).decode()
        except UnicodeDecodeError:
            continue  # half a character; a longer token or another boundary speaks for it
        cut_so = vocabulary.encode(whole)
        last = vocabulary.token_bytes[cut_so[-1]] if cut_so else None
        if last == data[cut:] + longer:
            kept = min(kept, _common(tokens, cut_so[:-1]))
            if kept == 0:
                break
    return kept


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


def _beyond(machine: Machine, trie: Trie, node: int, place: int) -> list[bytes]:
    """What tokens that go on from `node` add, as far as it may follow at `place`."""
    ends = set(trie.node_of.tolist())
    found: list[bytes] = []
    places = {int(trie.depth[node]): place}
    texts = {int(trie.depth[node]): b""}
    at, stop = node + 1, int(trie.skip[node])
    while at < stop:
        depth = int(trie.depth[at])
        byte = int(trie.byte[at])
        after = machine.step(places[depth - 1], byte)
        if after == DEAD:
            at = int(trie.skip[at])
            continue
        places[depth] = after
        texts[depth] = texts[depth - 1] + bytes([byte])
        if at in ends:
            found.append(texts[depth])
        at += 1
    return found


def _common(first: list[int], second: list[int]) -> int:
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count
