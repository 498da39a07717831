"""Small tokenizers of several kinds, trained on the spot."""

from __future__ import annotations

import functools
import json

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from lmc.constraints import Vocabulary
from lmc.constraints.tokenizer import vocabulary_of

CORPUS = [
    '{"name": "Alice", "age": 31, "house": "Ravenclaw", "order": "orderId"}',
    '{"name":"Bob","tags":["red","blue"],"active":true,"score":-0.5}',
    "hahaha haha ha, said the other; they'll laugh, don't you think it's fun? 'tis.",
    "def add(a, b):\n    return a + b\n\n\tindented\twith tabs\n        and spaces\n",
    "Привет мир, 日本語のテキスト, café naïve 😀😃 123 4567 2024-01-31 https://example.com/a?b=c",
    "<answer>yes</answer> no maybe positive negative neutral  two  spaces   three",
] * 4

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@functools.cache
def byte_level(split: str = "gpt2") -> tokenizers.Tokenizer:
    """A byte-level BPE that splits texts as GPT-2, as Llama 3, or not at all."""
    made = tokenizers.Tokenizer(models.BPE())
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == "gpt2")
    if split == "llama3":
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), plain]
        )
    else:
        made.pre_tokenizer = plain
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


@functools.cache
def sentencepiece_like() -> tokenizers.Tokenizer:
    """A BPE that writes spaces as U+2581, puts one before every text, and has byte tokens."""
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
            show_progress=False,
        ),
    )
    # Byte tokens are ordinary ones: they were special only to get into the vocabulary.
    data = json.loads(made.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return tokenizers.Tokenizer.from_str(json.dumps(data))


VOCABULARIES = ("gpt2", "llama3", "unsplit", "sentencepiece")


@functools.cache
def small_vocabulary(kind: str) -> Vocabulary:
    """The vocabulary of one of the small tokenizers."""
    return vocabulary_of(sentencepiece_like() if kind == "sentencepiece" else byte_level(kind))
