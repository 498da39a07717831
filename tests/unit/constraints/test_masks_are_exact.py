"""Masks against brute force, on vocabularies like those of SmolLM2, Llama 3 and Qwen3.

A token is allowed exactly if the automaton, after its bytes, can still accept: which is asked here
for every token by itself, without tries, slices, widened counters or rows that are shared.
"""

from __future__ import annotations

import functools
import gc
import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from small_tokenizers import CORPUS, LLAMA_3
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from lmc.constraints import Automaton, Vocabulary, automaton_of
from lmc.constraints.machine import DEAD, Machine
from lmc.constraints.tokenizer import vocabulary_of
from lmc.constraints.walking import wait_for_kernels

HERE = Path(__file__).parent

NAMES = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20, "pattern": "a.*b"},
        "names": {"type": "array"},
        'na"me': {"type": "integer"},
        "": {"type": "null"},
    },
}
CONSTRAINTS: list[tuple[str, object]] = [
    ("json_schema", {"type": "string"}),
    ("json_schema", {"type": "string", "maxLength": 5}),
    ("json_schema", {"type": "string", "minLength": 3, "maxLength": 17}),
    ("json_schema", {"type": "string", "maxLength": 40}),
    ("json_schema", {"type": "string", "maxLength": 300}),
    ("json_schema", {"type": "string", "maxLength": 60, "pattern": r"^(?:\S+\s+){0,19}\S+$"}),
    ("json_schema", {"type": "string", "maxLength": 90, "pattern": r"^[a-z ]{0,20}[^a]*$"}),
    ("json_schema", {"type": "string", "minLength": 1, "maxLength": 30, "pattern": r"\w{2} \d"}),
    ("json_schema", {"type": "string", "maxLength": 20, "pattern": r"^(?:e-{14}|[^-e])*$"}),
    ("json_schema", {"properties": {"name": {"type": "string"}, "nano": {"maxLength": 9}}}),
    ("json_schema", {"type": "string", "maxLength": 66, "pattern": r"^(?:\S+\s+){0,3}\S+$"}),
    ("json_schema", {"type": "string", "format": "hostname"}),
    ("json_schema", NAMES | {"additionalProperties": {"type": "integer"}}),
    ("json_schema", {"type": "array", "items": NAMES, "minItems": 1}),
    ("json_schema", {"type": "array", "items": {"type": "string", "maxLength": 30}}),
    ("json_schema", {"enum": [f"{n:b}é" for n in range(300)]}),
    ("regex", r"[a-z ]{0,30}x?"),
    ("regex", r"[^é]{0,25}|[^\u00e9a]*"),
    ("regex", r"(?:[a-z]+ ){0,40}!"),
    ("regex", r"[\u0430-\u044f]{2,18}[^a]*"),
    ("regex", r"(?: {1,100}|a)*\s{0,60}"),
    ("regex", r"[a-z]{0,5}[a-z0-9]{0,60}"),
    ("regex", r"(?:[a-z ]|-{0,20}=){0,200}(?:[a-z]{0,30}=)?"),
    ("regex", r"(?:-|[-a-z]{0,40}[a-z])(?:\.[a-z](?:[-a-z]{0,70}[a-z])?)*"),
    ("regex", r"(?:dev[^\"]*|[^\"]*(?:alpha|beta|=)[^\"]*)\"{1,3}"),
    ("regex", r"[a-z ]*(?=b)c|x[^\"]*|[b-z ]*"),
    ("regex", r"(?!.*ab)[ -~\n]{5,}|\w{1,40}😀"),
    ("ebnf", 'start: (WORD | "(" start ")")+\nWORD: /[^()]{1,30}/'),
]


@functools.cache
def llama_3_like() -> Vocabulary:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    pages = [p.read_text(encoding="utf-8") for p in sorted((HERE.parents[2] / "docs").glob("*.md"))]
    made.train_from_iterator(
        [*pages, *CORPUS, *[" " * 90, "-" * 80, "=" * 70 + "\n"] * 20],
        trainers.BpeTrainer(
            vocab_size=4500,
            special_tokens=["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return vocabulary_of(made)


@functools.cache
def qwen_3_cut() -> Vocabulary:
    return vocabulary_of(HERE / "tokenizers" / "qwen3_cut.json")


def by_force(machine: Machine, vocabulary: Vocabulary, place: int) -> list[int]:
    """The tokens that may come, each tried byte by byte."""
    allowed = []
    for token, text in enumerate(vocabulary.token_bytes):
        if text is not None and machine.run(place, text) != DEAD:
            allowed.append(token)
    return sorted([*allowed, *(vocabulary.eos if machine.accepts(place) else ())])


def compare(automaton: Automaton, vocabulary: Vocabulary, steps: int) -> None:
    machine = automaton.machine
    table = vocabulary.table(machine)
    assert table.speller is None
    rng = random.Random(automaton.digest)
    assert machine.start is not None
    for _ in range(2):
        place = machine.start
        for _ in range(steps):
            allowed = np.flatnonzero(table.mask(place)).tolist()
            assert allowed == by_force(machine, vocabulary, place), place
            tokens = [t for t in allowed if t not in vocabulary.eos]
            if not tokens:
                break
            # Long tokens go deeper, and short ones end inside of characters.
            some = rng.sample(tokens, min(6, len(tokens)))
            token = rng.choice([max(some, key=lambda t: vocabulary.sizes[t]), some[0]])
            place = table.step(place, token)


@pytest.mark.parametrize(("kind", "source"), CONSTRAINTS)
@pytest.mark.parametrize("make", [llama_3_like, qwen_3_cut])
def test_masks_are_those_found_by_force(
    make: functools._lru_cache_wrapper[Vocabulary], kind: str, source: object
) -> None:
    vocabulary = make()
    wait_for_kernels()
    assert len(vocabulary.trie) >= 4096, "so that walks are compiled"
    compare(automaton_of(kind, source), vocabulary, 9)


@pytest.mark.parametrize("most", [15, 16, 20, 26, 33, 34, 36, 60, 90])
def test_lengths_of_the_texts_of_a_pattern_with_ends_far_off(most: int) -> None:
    wait_for_kernels()
    texts = automaton_of("regex", r"(?:e-{14}|[^-e])*")
    compare(texts & automaton_of("regex", f"(?s:.{{0,{most}}})"), qwen_3_cut(), 4)


def test_vocabularies_like_large_ones_have_what_is_special_of_them() -> None:
    llama, qwen = llama_3_like(), qwen_3_cut()
    for vocabulary in (llama, qwen):
        assert vocabulary.trie.longest > 60
        assert any(b and len(b) > 1 and b[0] >= 0x80 for b in vocabulary.token_bytes)
        assert all(vocabulary.token_bytes[e] is None for e in vocabulary.eos)
    assert any(b and 0x80 <= b[0] < 0xC0 and len(b) > 1 for b in qwen.token_bytes)
    assert len(llama.eos) == 2
    assert qwen.encode("1234") == [qwen.encode(d)[0] for d in "1234"]  # digits stand alone


@pytest.mark.parametrize("firsts", [b'"', b"abcdefghijklmnopqrstuvwxyz", bytes(range(0x20, 256))])
def test_slices_hold_the_tokens_of_some_characters(firsts: bytes) -> None:
    vocabulary = qwen_3_cut()
    mask = sum(1 << b for b in firsts if b < 0x80 or 0xC2 <= b < 0xF5)
    part = vocabulary.slice(mask)
    assert vocabulary.slice(mask) is part
    for token, text in enumerate(vocabulary.token_bytes):
        whole = None
        if text is not None:
            for missing in ("", "\x80", "\x80\x80", "\x80\x80\x80", "\xa0\x80", "\x90\x80\x80"):
                try:
                    whole = (text + missing.encode("latin-1")).decode()
                    break
                except UnicodeDecodeError:
                    continue
        holds = whole is not None and all(mask >> c.encode()[0] & 1 for c in whole)
        assert part.row[token] == holds, text
        assert part.chars[token] == (len(whole) if holds and whole else 0)


def test_no_collection_begins_inside_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = qwen_3_cut()
    automaton = automaton_of("regex", "(?:not|met|so far)+ [a-z]{1,40}")
    table = vocabulary.table(automaton.machine)
    began: list[bool] = []
    real = type(table)._row

    def watched(self: object, place: int) -> object:
        began.append(gc.isenabled())
        return real(table, place)

    monkeypatch.setattr(type(table), "_row", watched)
    assert automaton.machine.start is not None
    assert gc.isenabled()
    table.mask(automaton.machine.start)
    assert began == [False]
    assert gc.isenabled()


@pytest.mark.model
def test_masks_of_the_real_vocabulary_are_those_found_by_force() -> None:
    from lmc.runtime.store import resolve
    from lmc.runtime.tokenizer import Tokenizer

    path = resolve("smollm2-135m").path
    assert path
    tokenizer = Tokenizer.from_gguf(path)
    vocabulary = Vocabulary(
        tokenizer.token_bytes, tokenizer.eos_ids, lambda text: tokenizer.encode(text, first=False)
    )
    wait_for_kernels()
    for kind, source in CONSTRAINTS:
        compare(automaton_of(kind, source), vocabulary, 2)


def test_known_names_inside_of_free_ones_need_few_states() -> None:
    wait_for_kernels()
    vocabulary = llama_3_like()
    words = [b.decode() for b in vocabulary.token_bytes if b and b.isalpha() and b.isascii()]
    names = {name: {} for name in sorted(words, key=len)[-20:]}
    machine = automaton_of("json_schema", {"type": "object", "properties": names}).machine
    assert machine.start is not None
    place = machine.run(machine.start, b'{"')
    known = int(machine.filled.sum())
    allowed = np.flatnonzero(vocabulary.table(machine).mask(place)).tolist()
    assert machine.filled.sum() - known < 12
    assert allowed == by_force(machine, vocabulary, place)
    assert machine.filled.sum() - known > 40, "else few states are no merit"


def test_long_tokens_near_the_bound_of_a_counted_pattern_need_few_states() -> None:
    wait_for_kernels()
    schema = {"type": "string", "maxLength": 85, "pattern": r"^(?:\S+\s+){0,6}\S+$"}
    machine = automaton_of("json_schema", schema).machine
    vocabulary = llama_3_like()
    assert machine.start is not None
    place = machine.run(machine.start, b'"a')
    known = int(machine.filled.sum())
    allowed = np.flatnonzero(vocabulary.table(machine).mask(place)).tolist()
    assert machine.filled.sum() - known < 30
    assert allowed == by_force(machine, vocabulary, place)
    assert machine.filled.sum() - known > 80, "else few states are no merit"
