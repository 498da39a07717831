"""Texts cut in pieces have the tokens of the whole."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from lmc.runtime import known_texts
from lmc.runtime.gguf_tokenizer import _steps
from lmc.runtime.known_texts import KnownTexts, pieces_of, words_of
from tests.unit.runtime.tiny_models import byte_level_core, sentencepiece_core

KINDS = ("gpt2", "digits", "llama3", "qwen2", "default")


def core_of(kind: str) -> Tokenizer:
    core = byte_level_core(500)
    core.pre_tokenizer = pre_tokenizers.Sequence(_steps(kind))
    return core


CORES = {kind: core_of(kind) for kind in KINDS}
WORDS = st.sampled_from(
    ["the", " The", " quick", " I'm", "'s", " 're", "\n", "  ", " ", "12345", " 6", "!?", " (a",
     "é", " zü", "你好", ".", "Hello world", "\t", "'S", " lazy", "dogs", "a", " a", "\u0301",
     "\u017f"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.lists(WORDS, max_size=40).map("".join), max_size=4),
    st.sampled_from([1, 1024]),
)
def test_parts_have_the_tokens_of_the_whole(kind: str, texts: list[str], long: int) -> None:
    core = CORES[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_texts, "_LONG", long)
        patch.setattr(known_texts, "_PIECE", 4)
        patch.setattr(known_texts, "_KEPT", 60)
        patch.setattr(known_texts, "_KEPT_WORDS", 3)
        patch.setattr(known_texts, "_WORD", 8)
        pieces = KnownTexts(core)
        for text in [*texts, "".join(texts), *texts]:
            assert pieces.encode(text) == core.encode(text, add_special_tokens=False).ids


@given(st.text(alphabet="aZ 1\n.é", max_size=20))
def test_words_are_cut_wherever_they_may_be(text: str) -> None:
    assert words_of(text) == [word for word in known_texts._CUT.split(text) if word]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.lists(WORDS, max_size=60).map("".join))
def test_words_end_where_texts_are_cut(kind: str, text: str) -> None:
    """The tokenizer itself says where words end."""
    words = CORES[kind].pre_tokenizer.pre_tokenize_str(text)
    ends = {end for _, (_, end) in words}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_texts, "_PIECE", 1)
        pieces = pieces_of(text)
    assert "".join(pieces) == text
    assert ends.issuperset(itertools.accumulate(len(piece) for piece in pieces if piece))


@pytest.mark.parametrize("kind", KINDS)
def test_known_kinds_are_supported(kind: str) -> None:
    assert KnownTexts.supports(CORES[kind])


def test_others_are_not() -> None:
    assert not KnownTexts.supports(sentencepiece_core())
    unknown = byte_level_core(300)
    unknown.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(".{3}", "isolated"), *_steps("gpt2")]
    )
    assert not KnownTexts.supports(unknown)
    joining = byte_level_core(300)
    joining.add_tokens([AddedToken("New York", normalized=False)])
    assert not KnownTexts.supports(joining)


def test_what_is_known_is_not_tokenized_again() -> None:
    core = CORES["llama3"]
    known = KnownTexts(core)
    prefix = " the quick brown fox" * 100
    one = known.encode(prefix + " one")
    pieces, words = len(known._pieces), set(known._words)
    two = known.encode(prefix + " two")
    assert len(known._pieces) == pieces + 1
    assert set(known._words) == words | {" two"}
    assert one != two
    assert two == core.encode(prefix + " two", add_special_tokens=False).ids
