"""Small models and tokenizers that the tests of the runtime write to disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.processors import TemplateProcessing

TEXT = [
    "The quick brown fox jumps over 13 lazy dogs. Hello world! How are you? I'm fine, you're not.",
    "user assistant system [INST] Answer the question in 2024: what's 12345 + 678?\n\n  Yes.\tNo.",
    "Grüße aus Zürich, déjà vu, 你好世界。 Привет 😀",
] * 20


def byte_level_core(size: int = 400, specials: Iterable[str] = ()) -> Tokenizer:
    """A byte-level BPE tokenizer with GPT-2's words, special tokens first."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(TEXT, trainer)
    return core


def sentencepiece_core(prefix: str = "prepend", size: int = 600) -> Tokenizer:
    """A BPE tokenizer in SentencePiece's manner with byte fallback, adding BOS.

    `prefix` is "prepend" for the normalizer of old files, or a scheme of Metaspace.
    """
    train = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    train.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    bytes_ = [f"<0x{n:02X}>" for n in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False
    )
    ascii_text = [line for line in TEXT if line.isascii()]
    train.train_from_iterator(ascii_text, trainer)
    core = Tokenizer(train.model)
    if prefix == "prepend":
        core.normalizer = train.normalizer
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=prefix, split=False)
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    )
    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return core


def write_folder(
    folder: Path,
    core: Tokenizer,
    *,
    settings: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A Hugging Face folder with a tokenizer, and no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **(settings or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = {"model_type": "llama", "vocab_size": core.get_vocab_size(), **(config or {})}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """A GGUF file; keys of `metadata` that begin with a dot get the architecture's name."""
    writer = gguf.GGUFWriter(str(path), arch)
    for key, value in (metadata or {}).items():
        key = arch + key if key.startswith(".") else key
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_vocabulary(core: Tokenizer, *, kind: str = "gpt2", **more: Any) -> dict[str, Any]:
    """The metadata of a GGUF file for a tokenizer; `more` goes below `tokenizer.ggml`."""
    vocabulary = sorted(core.get_vocab().items(), key=lambda item: item[1])
    added = core.get_added_tokens_decoder()
    tokens = [token for token, _ in vocabulary]
    types = [3 if n in added else 6 if t.startswith("<0x") else 1 for n, t in enumerate(tokens)]
    merges = json.loads(core.to_str())["model"]["merges"]
    data: dict[str, Any] = {"model": kind, "tokens": tokens, "token_type": types, **more}
    if kind == "gpt2":
        data["merges"] = [" ".join(pair) for pair in merges]
    else:
        # The first token that merging makes has the best score.
        rank = {left + right: -float(n) for n, (left, right) in reversed([*enumerate(merges)])}
        data["scores"] = [rank.get(token, -1e6) for token in tokens]
    return {f"tokenizer.ggml.{key}": value for key, value in data.items()}
