"""Vocabularies out of Hugging Face tokenizers: what bytes each token stands for.

Knows the three ways in which such tokenizers write bytes: GPT-2's byte alphabet (byte-level BPE),
SentencePiece's `\u2581` for a space with `<0x0A>` for bytes, and plain text.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.constraints.vocabulary import Vocabulary
from lmc.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

__all__ = ["byte_alphabet", "vocabulary_of"]

# End tokens by name, for a tokenizer file that says nothing about its own.
_END_NAMES = (
    "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>",
    "<|end|>", "<end_of_turn>", "<|endofprompt|>", "[EOS]", "<|eos|>",
)  # fmt: skip


def byte_alphabet() -> dict[str, int]:
    """The character that byte-level tokenizers write for each byte, and the byte.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.2:
    printable bytes stand for themselves, the others are numbered from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(hidden)}


_BESIDE = ("generation_config.json", "config.json", "tokenizer_config.json")
_FILES = ("tokenizer.json", *_BESIDE)
_REMEMBERED = 8
_known: OrderedDict[tuple[object, ...], tuple[object, Vocabulary]] = OrderedDict()
_lock = threading.Lock()


def vocabulary_of(tokenizer: object) -> Vocabulary:
    """The vocabulary of a tokenizer; the last few are remembered, with all that was made for them.

    Args:
        tokenizer: the path of a `tokenizer.json` (or of the folder it is in), a
            `tokenizers.Tokenizer`, or a fast tokenizer of transformers. A `Vocabulary` is
            returned as it is.

    Raises:
        ModelError: it is none of these, or cannot be read.
    """
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    key = _key(tokenizer)
    with _lock:
        known = _known.get(key)
        if known is None:
            # the tokenizer is kept, so that its identity is not given to another one
            known = _known[key] = (tokenizer, _made(tokenizer))
            while len(_known) > _REMEMBERED:
                _known.popitem(last=False)
        _known.move_to_end(key)
    return known[1]


def _key(tokenizer: object) -> tuple[object, ...]:
    """What tells tokenizers apart: the file as it is now, or the object and its size."""
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer)
        files = [path, *(path / n for n in _FILES)] if path.is_dir() else [path]
        files += [path.parent / n for n in _FILES]
        return (str(path.absolute()), *map(_state, files))
    size = getattr(tokenizer, "get_vocab_size", None)
    try:
        return id(tokenizer), size() if size else len(tokenizer)  # type: ignore[arg-type]
    except TypeError:
        return (id(tokenizer),)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _made(tokenizer: object) -> Vocabulary:
    import tokenizers

    eos: set[int] = set()
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
        eos = _ends_beside(path, inner)
    elif isinstance(tokenizer, tokenizers.Tokenizer):
        inner = tokenizer
    else:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, tokenizers.Tokenizer):
            raise ModelError(
                f"{type(tokenizer).__name__} is no tokenizer that constraints can use",
                hint="give the path of a tokenizer.json, or a fast tokenizer",
            )
        inner = backend
        named: Any = getattr(tokenizer, "eos_token_id", None)
        eos = set(named) if isinstance(named, list) else {named} - {None}
    added = inner.get_added_tokens_decoder()
    if not eos:
        eos = {i for i, token in added.items() if token.content in _END_NAMES}
    return Vocabulary(_bytes_of(inner), eos, _encoder(inner))


def _ends_beside(path: Path, inner: tokenizers.Tokenizer) -> set[int]:
    """End tokens named in the files that lie beside a `tokenizer.json`."""
    found: set[int | None] = set()
    for name in _BESIDE:
        try:
            data = json.loads((path.parent / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        ids = data.get("eos_token_id")
        found |= set(ids) if isinstance(ids, list) else {ids} - {None}
        token = data.get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found.add(inner.token_to_id(text))
    size = inner.get_vocab_size(with_added_tokens=True)
    return {i for i in found if isinstance(i, int) and 0 <= i < size}


def _bytes_of(inner: tokenizers.Tokenizer) -> list[bytes | None]:
    pieces = inner.get_vocab(with_added_tokens=True)
    added = inner.get_added_tokens_decoder()
    size = max(pieces.values(), default=-1) + 1
    found: list[bytes | None] = [None] * size
    read = _reader(json.loads(inner.to_str()))
    for piece, token in pieces.items():
        if token in added:
            content = added[token].content
            control = added[token].special or re.fullmatch(r"<\|.*\|>", content)
            found[token] = None if control else content.encode()
        else:
            found[token] = read(piece)
    return found


def _reader(config: dict[str, Any]) -> Callable[[str], bytes | None]:
    """How the pieces of this tokenizer are turned into bytes."""
    kinds = {kind for part in ("decoder", "pre_tokenizer") for kind in _types(config.get(part))}
    unknown = (config.get("model") or {}).get("unk_token")
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()

        def byte_level(piece: str) -> bytes | None:
            if all(c in alphabet for c in piece):
                return bytes(alphabet[c] for c in piece)
            return piece.encode()

        return byte_level
    fallback = "ByteFallback" in kinds
    spaced = bool(kinds & {"Metaspace", "Replace"})

    def plain(piece: str) -> bytes | None:
        if piece == unknown:
            return None
        if fallback and (code := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)):
            return bytes([int(code[1], 16)])
        return (piece.replace("\u2581", " ") if spaced else piece).encode()

    return plain


def _types(part: Any) -> set[str]:  # noqa: ANN401 - any JSON
    if isinstance(part, dict):
        return {str(part.get("type"))} | {t for v in part.values() for t in _types(v)}
    if isinstance(part, list):
        return {t for v in part for t in _types(v)}
    return set()


def _encoder(inner: tokenizers.Tokenizer) -> Callable[[str], list[int]]:
    """The tokens of a text in the middle of a sequence, control tokens not recognized."""
    import tokenizers

    plain = tokenizers.Tokenizer.from_str(inner.to_str())
    plain.encode_special_tokens = True
    plain.no_padding()
    plain.no_truncation()
    token_bytes = _bytes_of(inner)

    def spelled(ids: list[int]) -> bytes:
        return b"".join(token_bytes[i] or b"" for i in ids)

    def encode(text: str) -> list[int]:
        ids: list[int] = plain.encode(text, add_special_tokens=False).ids
        if spelled(ids) == text.encode():
            return ids
        # Some tokenizers put a space before every text: let another text stand before it.
        for before in ("\n", "a", "1"):
            lead = plain.encode(before, add_special_tokens=False).ids
            both = plain.encode(before + text, add_special_tokens=False).ids
            if both[: len(lead)] == lead and spelled(both[len(lead) :]) == text.encode():
                return list(both[len(lead) :])
        return ids

    return encode
