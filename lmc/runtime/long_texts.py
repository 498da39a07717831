"""Tokenize long texts in pieces that are remembered: prompts that begin alike are common.

Byte-level tokenizers first cut a text into words, and tokenize each word by itself. With the known
patterns for this, a word always ends between an ASCII letter and a blank that an ASCII letter
follows, whatever else the text holds. So a text may be cut there, at places that depend on the text
before them only, and the tokens of its pieces are those of the whole.

Owns        the tokens of pieces seen lately.
Promises    the same tokens as without it; used only for tokenizers of which the above is known.
Costs       a look-up for a piece of 500 characters that is known, instead of 0.3 ms; unknown pieces
            of a text are tokenized side by side.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core

__all__ = ["LONG", "LongTexts", "pieces_of"]

LONG = 1024  # characters of a text that is worth it
_PIECE = 512
_KEPT = 16_000_000  # characters of all pieces that are remembered
_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_WORDS = frozenset({  # what tokenizers call words: GPT-2's, Llama 3's, Qwen 2's
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
})  # fmt: skip
_PARTS = frozenset({r"[\p{P}\$\+<=>\^~\|]+", r"\p{N}+", "[0-9][0-9][0-9]"})  # parts of words


def pieces_of(text: str) -> list[str]:
    """A text in pieces; where it is cut depends on what stands before the cut only."""
    pieces, start = [], 0
    while (cut := _CUT.search(text, start + _PIECE)) is not None:
        pieces.append(text[start : cut.start()])
        start = cut.start()
    return [*pieces, text[start:]]


class LongTexts:
    """Tokens of long texts, by one tokenizer; see the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[str, list[int]] = {}
        self._size = 0

    @staticmethod
    def supports(core: Core) -> bool:
        """Whether texts of a tokenizer may be cut; if in doubt, not."""
        whole = json.loads(core.to_str())
        model, normalizer = whole["model"], whole["normalizer"]
        if model["type"] != "BPE" or model.get("dropout"):
            return False
        if normalizer is not None and normalizer["type"] != "NFC":
            return False
        for token in whole["added_tokens"]:
            spans = re.search(r"\s", token["content"].strip()) is not None
            if spans or token["lstrip"] or token["rstrip"] or token["single_word"]:
                return False
        steps = whole["pre_tokenizer"]
        if steps is None:
            return False
        steps = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
        return any(_makes_words(step) for step in steps) and all(map(_is_known, steps))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; raises what the tokenizer raises."""
        pieces = pieces_of(text)
        known = self._known
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        if new:
            known = self._learn(new, known)
        return [token for piece in pieces for token in known[piece]]

    def _learn(self, new: list[str], known: dict[str, list[int]]) -> dict[str, list[int]]:
        """Tokenize pieces; gives a dictionary that has them and those known before."""
        encodings = self._core.encode_batch(new, add_special_tokens=False)
        self._size += sum(map(len, new))
        if self._size > _KEPT:
            self._size = sum(map(len, new))
            self._known, known = {}, dict(known)
        found = {piece: list(e.ids) for piece, e in zip(new, encodings, strict=True)}
        self._known.update(found)
        if known is not self._known:
            known.update(found)
        return known


def _makes_words(step: dict[str, Any]) -> bool:
    """Whether a step of a pre-tokenizer cuts texts into words, in a known way."""
    if step["type"] == "ByteLevel":
        return bool(step["use_regex"])
    return step["type"] == "Split" and step["pattern"].get("Regex") in _WORDS


def _is_known(step: dict[str, Any]) -> bool:
    """Whether a step never joins what stands on both sides of a cut."""
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    if step["type"] == "Split":
        pattern = step["pattern"].get("Regex")
        known = pattern in _WORDS or pattern in _PARTS
        return bool(known and step["behavior"] == "Isolated" and not step["invert"])
    return bool(step["type"] == "Digits")
