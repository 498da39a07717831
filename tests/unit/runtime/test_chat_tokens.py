"""Chat template and tokenizer together give the tokens of transformers' apply_chat_template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_chat import CHATML, LLAMA2, LLAMA3, MISTRAL, QWEN25, SMOLLM2
from tiny_models import byte_level_core, sentencepiece_core, write_folder
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from lmc.runtime.chat import ChatTemplate
from lmc.runtime.tokenizer import Tokenizer

CONVERSATION = [
    {"role": "user", "content": "What's 12 + 345?\n\nSay it in Zürich's way 😀"},
    {"role": "assistant", "content": "It is  357."},
    {"role": "user", "content": "Thanks"},
]
SYSTEM = {"role": "system", "content": "Be brief."}
STRINGS = [m["content"] for m in CONVERSATION]
STRINGS += ["", " a", "e\u0301 \x00 \r\n\n x", "\uff11\uff12\uff13 ½"]


def llama3_core() -> Core:
    core = byte_level_core(specials=["<s>", "</s>", "<|start|>", "<|/start|>", "<|eot|>"])
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return core


def qwen2_core() -> Core:
    core = byte_level_core(specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                behavior="isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return core


LLAMA_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# Name -> tokenizer, template, settings, model type.
MODELS: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "llama2": (
        sentencepiece_core,
        LLAMA2,
        {**LLAMA_SPECIALS, "tokenizer_class": "LlamaTokenizer", "legacy": False},
        "llama",
    ),
    "llama2-legacy": (
        sentencepiece_core,
        LLAMA2,
        {**LLAMA_SPECIALS, "tokenizer_class": "LlamaTokenizer", "legacy": True},
        "llama",
    ),
    "llama3": (llama3_core, LLAMA3, {"bos_token": "<s>", "eos_token": "<|eot|>"}, "llama"),
    "mistral": (
        sentencepiece_core,
        MISTRAL,
        {**LLAMA_SPECIALS, "tokenizer_class": "LlamaTokenizer", "legacy": True},
        "mistral",
    ),
    "qwen2.5": (
        qwen2_core,
        QWEN25,
        {"eos_token": "<|im_end|>", "tokenizer_class": "Qwen2Tokenizer"},
        "qwen2",
    ),
    "chatml": (
        lambda: byte_level_core(specials=["<|im_start|>", "<|im_end|>"]),
        CHATML,
        {"eos_token": "<|im_end|>"},
        "llama",
    ),
    "smollm2": (
        lambda: byte_level_core(specials=["<|im_start|>", "<|im_end|>"]),
        SMOLLM2,
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        "llama",
    ),
}


def both(name: str, folder: Path) -> tuple[Tokenizer, Any]:
    make, template, settings, model_type = MODELS[name]
    write_folder(
        folder,
        make(),
        settings={**settings, "chat_template": template},
        config={"model_type": model_type},
    )
    return Tokenizer.from_hf_dir(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "with_system"),
    # the template of Mistral takes no system message
    [(n, w) for n in MODELS for w in (False, True) if (n, w) != ("mistral", True)],
)
def test_a_conversation_has_the_tokens_of_transformers_b_97(
    name: str, with_system: bool, tmp_path: Path
) -> None:
    ours, theirs = both(name, tmp_path)
    chat = ChatTemplate(ours.chat_template, ours.named, model=name)
    messages = ([SYSTEM] if with_system else []) + CONVERSATION
    for count in range(2 if with_system else 1, len(messages) + 1, 2):
        pieces, history = [], []
        for message in messages[:count]:
            pieces.append((chat.begin(history, message["role"], given=True), True))
            pieces.append((message["content"], False))
            history.append(message["role"])
            pieces.append((chat.end(history), True))
        pieces.append((chat.begin(history, "assistant"), True))
        ids = ours.encode_markup(pieces, first=True)
        assert ids == theirs.apply_chat_template(
            messages[:count], tokenize=True, add_generation_prompt=True, return_dict=False
        )
        if ours.add_bos:
            assert ids[:2].count(ours.bos_id) == 1


@pytest.mark.parametrize("name", MODELS)
def test_texts_have_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    ours, theirs = both(name, tmp_path)
    for text in STRINGS:
        expected = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, first=True) == expected
        assert ours.encode_markup([(text, False)], first=True) == theirs.encode(text)
