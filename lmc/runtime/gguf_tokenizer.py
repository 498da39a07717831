"""The tokenizer inside a GGUF file, rebuilt for the `tokenizers` package.

A GGUF file holds the vocabulary and the merges, but only the *name* of the pre-tokenizer that cuts
text into words before merging. A wrong one gives plausible, slightly wrong tokens (digits and
blanks before them, above all), so an unknown name is refused, not guessed.

Source: the names and what they stand for are those of llama.cpp (src/llama-vocab.cpp); the regular
expressions are those of the models' own tokenizer.json files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmc.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core

__all__ = ["NORMAL", "SPECIAL_TYPES", "TEXTLESS_TYPES", "build_core", "default_add_bos"]

log = logging.getLogger(__name__)

# Token types, as `tokenizer.ggml.token_type` numbers them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPECIAL_TYPES = (UNKNOWN, CONTROL)
TEXTLESS_TYPES = (UNKNOWN, CONTROL, UNUSED)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = (
    _CONTRACTIONS
    + r"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
    + _TAIL
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
)

# Pre-tokenizer name -> how words are cut: one of the keys of `_steps`.
_PRE = {
    "default": "default",
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "exaone4"), "gpt2"),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"), "digits"
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), "llama3"),
    **dict.fromkeys(("dbrx", "smaug-bpe"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), "qwen2"),
    "tekken": "tekken",
}
_IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")
_ADD_BOS = _IGNORE_MERGES


def build_core(metadata: Mapping[str, Any]) -> Core:
    """The tokenizer that GGUF metadata describe, with its special tokens, adding no BOS.

    Raises:
        ModelError: the file has no tokenizer, one of a kind or with a pre-tokenizer that is not
            known here, or its lists do not fit together.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError("the GGUF file holds no vocabulary", hint="give a complete model file")
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"the GGUF file has {len(tokens)} tokens but {len(types)} token types")
    if kind not in ("gpt2", "llama"):
        raise ModelError(
            f"tokenizers of the kind {kind!r} are not supported",
            hint='GGUF files with the kinds "gpt2" and "llama" are',
        )
    try:
        if kind == "gpt2":
            core = _byte_level(metadata, tokens)
        else:
            core = _sentencepiece(metadata, tokens, types)
    except ModelError:
        raise
    except Exception as error:  # the `tokenizers` package raises bare Exception
        raise ModelError(f"the tokenizer in the GGUF file is damaged: {error}") from error
    _mark_added(core, tokens, types)
    return core


def default_add_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a sequence begins with BOS where the file does not say."""
    if metadata.get("tokenizer.ggml.model") == "llama":
        return True
    return metadata.get("tokenizer.ggml.pre") in _ADD_BOS


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Core:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = metadata.get("tokenizer.ggml.pre") or "default"
    if name not in _PRE:
        known = ", ".join(sorted(_PRE))
        raise ModelError(
            f"the GGUF file cuts words by the unknown pre-tokenizer {name!r}",
            hint=f"known ones are {known}; a folder with the model's tokenizer.json works as well",
        )
    if "tokenizer.ggml.pre" not in metadata:
        log.warning("the GGUF file names no pre-tokenizer; the default one may give worse tokens")
    merges = [tuple(merge.split(" ")) for merge in metadata.get("tokenizer.ggml.merges") or ()]
    if any(len(pair) != 2 for pair in merges):
        raise ModelError("the GGUF file has merges that do not join two tokens")
    core = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=name in _IGNORE_MERGES,
        )
    )
    if name in ("qwen2", "deepseek-r1-qwen"):
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(_steps(_PRE[name]))
    core.decoder = decoders.ByteLevel()
    return core


def _steps(kind: str) -> list[Any]:
    """The pre-tokenizers, one after the other, that cut words and turn bytes into characters."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Split

    def isolate(pattern: str) -> Any:  # noqa: ANN401 - `tokenizers` has no stub for it
        return Split(Regex(pattern), behavior="isolated")

    words_of_gpt2 = ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = ByteLevel(add_prefix_space=False, use_regex=False)
    if kind == "gpt2":
        return [words_of_gpt2]
    if kind == "digits":
        return [Digits(individual_digits=True), words_of_gpt2]
    if kind == "llama3":
        return [isolate(_WORDS.format(digits=r"\p{N}{1,3}")), bytes_only]
    if kind == "qwen2":
        return [isolate(_WORDS.format(digits=r"\p{N}")), bytes_only]
    if kind == "tekken":
        return [isolate(_TEKKEN), bytes_only]
    # What llama.cpp does for files that name no pre-tokenizer: punctuation, GPT-2's words, then
    # digits in threes.
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    patterns = (r"[\p{P}\$\+<=>\^~\|]+", gpt2, r"\p{N}+", "[0-9][0-9][0-9]")
    return [*map(isolate, patterns), bytes_only]


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> Core:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError("the GGUF file has no score for each token")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    core = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges_by_score(tokens, types, scores),
            unk_token=tokens[unknown] if isinstance(unknown, int) else None,
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
    core.normalizer = normalizers.Sequence(steps)
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return core


def _merges_by_score(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """SentencePiece's rule as merges: of all neighbours that can join, the best score first."""
    plain = {t: n for n, t in enumerate(tokens) if types[n] == NORMAL}
    found = []
    for token, index in plain.items():
        for cut in range(1, len(token)):
            left, right = plain.get(token[:cut]), plain.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[index], index, left, right))
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(found)]


def _mark_added(core: Core, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Take special and user-defined tokens out of the reach of merging."""
    from tokenizers import AddedToken

    for special, wanted in ((True, SPECIAL_TYPES), (False, (USER_DEFINED,))):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in wanted and token
        ]
        if special:
            core.add_special_tokens(added)
        else:
            core.add_tokens(added)
