"""Text to tokens and back, for one model.

    markup and texts ──► encode_markup ──► ids          token_bytes[id] ──► bytes ──► text

Owns        the `tokenizers` objects, which are never changed after they are built: all methods
            may be called from any thread.
Promises    plain text never becomes a special token; of markup and text together the ids are those
            that a chat template's whole rendering would give; a sequence starts with BOS once.
Costs       0.2 s to build with 49,000 tokens; about 2 us a token to encode.
Not here    where markup comes from (`chat`), how GGUF files describe tokenizers (`gguf_tokenizer`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lmc.errors import InternalError, ModelError, UsageError
from lmc.runtime.gguf_file import GGUFFile
from lmc.runtime.known_texts import KnownTexts

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core

__all__ = ["Tokenizer", "TokenizerFacts"]

Place = Literal["start", "special", "middle"]

_FAKE = Path(__file__).parent / "data"
# Chat models end their turn with these, whatever else the file calls its end token.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|eom_id|>")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What a model's files say beside the vocabulary.

    Attributes:
        source: the model's name or path, for messages.
        vocab_size: rows of the model's embedding; may exceed the tokenizer's own vocabulary.
        named: special tokens by role, such as {"bos_token": "<s>"}, as chat templates see them.
        add_bos: whether every sequence begins with the BOS token.
        eos_ids: tokens that end a model's output.
        textless_ids: ids without text beside the special tokens.
        chat_template: Jinja source, or None.
    """

    source: str
    vocab_size: int
    named: Mapping[str, str]
    add_bos: bool = False
    eos_ids: frozenset[int] = frozenset()
    textless_ids: frozenset[int] = frozenset()
    chat_template: str | None = None


class Tokenizer:
    """A model's vocabulary and its rules.

    Attributes:
        vocab_size: of the model, so all ids are below it.
        token_bytes: what each id stands for, or None for special and unused ids. A blank that
            SentencePiece puts before a text is part of the bytes here.
        special_ids: ids of special tokens.
        bos_id, add_bos, eos_ids, chat_template, named: see `TokenizerFacts`.
    """

    def __init__(self, core: Core, facts: TokenizerFacts) -> None:
        core.no_truncation()
        core.no_padding()
        core.encode_special_tokens = True  # as text: `encode_markup` finds the wanted ones itself
        self._core = core
        self.facts = facts
        self.vocab_size = facts.vocab_size
        self.named = dict(facts.named)
        self.add_bos = facts.add_bos
        self.eos_ids = facts.eos_ids
        self.chat_template = facts.chat_template
        added = core.get_added_tokens_decoder()
        self._specials = {
            token.content: (index, token.lstrip, token.rstrip)
            for index, token in added.items()
            if token.special and index < facts.vocab_size and token.content
        }
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.special_ids = frozenset(index for index, _, _ in self._specials.values())
        self.bos_id = self._id_of(facts.named.get("bos_token"))
        self.token_bytes = self._all_bytes()
        self._prefixes = _prefix_rule(core)
        self._middle = core if self._prefixes == "never" else _without_prefix(core)
        self._known = KnownTexts(core) if KnownTexts.supports(core) else None

    # Making one.

    @classmethod
    def from_gguf(cls, file: str | Path | GGUFFile) -> Tokenizer:
        """The tokenizer of a GGUF file, given by path or open.

        Raises:
            ModelError: the file cannot be read, or its tokenizer is of an unknown kind.
        """
        from lmc.runtime import gguf_tokenizer as gguf

        if not isinstance(file, GGUFFile):
            with GGUFFile(file) as opened:
                return cls.from_gguf(opened)
        metadata = file.metadata
        core = gguf.build_core(metadata)
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        types = metadata.get("tokenizer.ggml.token_type") or [gguf.NORMAL] * len(tokens)
        named = {}
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            index = metadata.get(f"tokenizer.ggml.{key}_token_id")
            if isinstance(index, int) and index < len(tokens):
                named[f"{role}_token"] = tokens[index]
        # The end of text may be an ordinary token in the file; it must not be merged away.
        _add_missing_specials(core, named.values())
        embedding = file.tensors.get("token_embd.weight")
        template = metadata.get("tokenizer.chat_template")
        ends: set[object] = {
            metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")
        }
        turn_ends = [t for t in _TURN_ENDS if template and t in template]
        ends |= {n for n, t in enumerate(tokens) if t in turn_ends and types[n] != gguf.NORMAL}
        facts = TokenizerFacts(
            source=str(file.path),
            vocab_size=embedding.shape[0] if embedding else len(tokens),
            named=named,
            add_bos=bool(
                metadata.get("tokenizer.ggml.add_bos_token", gguf.default_add_bos(metadata))
                and "bos_token" in named
            ),
            eos_ids=frozenset(n for n in ends if isinstance(n, int) and n < len(tokens)),
            textless_ids=frozenset(n for n, t in enumerate(types) if t in gguf.TEXTLESS_TYPES),
            chat_template=template if isinstance(template, str) else None,
        )
        return cls(core, facts)

    @classmethod
    def from_hf_dir(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a folder in Hugging Face form, from its tokenizer.json.

        Raises:
            ModelError: there is none, or it is damaged or of an unknown kind.
        """
        from lmc.runtime import hf_tokenizer

        return cls(*hf_tokenizer.read_folder(Path(path)))

    @classmethod
    def fake(cls) -> Tokenizer:
        """The small tokenizer of the fake model: bytes, some English, ChatML-like markup."""
        from tokenizers import Tokenizer as Core

        core = Core.from_file(str(_FAKE / "fake_tokenizer.json"))
        facts = TokenizerFacts(
            source="fake",
            vocab_size=core.get_vocab_size(),
            named={"eos_token": "<|end|>"},
            eos_ids=frozenset(n for n in (core.token_to_id("<|end|>"),) if n is not None),
            chat_template=(_FAKE / "fake_chat_template.jinja").read_text(encoding="utf-8"),
        )
        return cls(core, facts)

    # Text to tokens.

    def encode(self, text: str, *, first: bool) -> list[int]:
        """The tokens of plain text: no special ones, no BOS.

        `first` says whether it stands at the very start of a sequence; a text in the middle
        follows a token that a model made, and gets no blank put before it.

        Raises:
            UsageError: the text is not valid Unicode.
        """
        return self._encode_stretch(text, "start" if first else "middle")

    def encode_markup(
        self,
        pieces: Iterable[tuple[str, bool]],
        *,
        first: bool,
        after_special: bool = False,
    ) -> list[int]:
        """The tokens of (text, is_markup) pieces, taken together.

        Special tokens are recognised in markup only. The text between two of them, whichever
        pieces it comes from, is tokenized as a whole. With `first`, the sequence starts here, and
        starts with BOS if the model wants one, but never with two; `after_special` says that the
        token before is a special one.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        ids: list[int] = []
        place: Place = "start" if first else "special" if after_special else "middle"
        stretch, swallow = "", False
        for text, is_markup in _joined(pieces):
            at = 0
            for match in self._special_pattern.finditer(text) if is_markup else ():
                index, swallows_before, swallows_after = self._specials[match[0]]
                before = text[at : match.start()]
                stretch += before.lstrip() if swallow and not stretch else before
                if swallows_before:
                    stretch = stretch.rstrip()
                ids += self._encode_stretch(stretch, place)
                ids.append(index)
                place, stretch, swallow, at = "special", "", swallows_after, match.end()
            rest = text[at:]
            stretch += rest.lstrip() if swallow and not stretch else rest
        ids += self._encode_stretch(stretch, place)
        if first and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def _encode_stretch(self, text: str, place: Place) -> list[int]:
        """Tokens of a text without special tokens in it."""
        if not text:
            return []
        as_first = place == "start" or (place == "special" and self._prefixes == "each")
        try:
            if self._known is not None:
                return self._known.encode(text)
            encoding = (self._core if as_first else self._middle).encode(
                text, add_special_tokens=False
            )
        except (TypeError, UnicodeEncodeError) as error:
            raise UsageError(
                "a text holds half of a surrogate pair, which is no character",
                hint='decode bytes with errors="replace"',
            ) from error
        return list(encoding.ids)

    # Tokens to text.

    def decode(self, ids: Iterable[int], *, first: bool = False) -> str:
        """The text of tokens, special ones left out, broken characters as U+FFFD.

        With `first` the blank that `encode(..., first=True)` puts before a text is taken off.
        """
        text = b"".join(self.token_bytes[i] or b"" for i in ids).decode(errors="replace")
        return text.removeprefix(" ") if first and self._prefixes != "never" else text

    def token_text(self, index: int) -> str:
        """One token for people to read: its text, or the name of a special token."""
        data = self.token_bytes[index]
        if data is not None:
            return data.decode(errors="replace")
        return self._core.id_to_token(index) or f"<unused {index}>"

    # What else one may want to know.

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that decides which tokens a text becomes and what they mean."""
        model = json.loads(self._core.model.__getstate__())
        model["merges"] = [
            m if isinstance(m, list) else m.split(" ") for m in model.get("merges", ())
        ]
        added = self._core.get_added_tokens_decoder()
        parts = (
            {k: v for k, v in sorted(model.items()) if v not in (None, "", False)},
            _state(self._core.normalizer),
            _state(self._core.pre_tokenizer),
            [(n, t.content, t.special, t.lstrip, t.rstrip) for n, t in sorted(added.items())],
            (self.vocab_size, self.bos_id, self.add_bos, sorted(self.eos_ids)),
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @cached_property
    def template_fingerprint(self) -> str:
        """SHA-256, in hex, of the chat template and the special tokens that it can name."""
        parts = json.dumps([self.chat_template, self.named], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()

    @cached_property
    def hf(self) -> Any:  # noqa: ANN401 - transformers is imported when this is asked for
        """The same tokenizer as a `transformers.PreTrainedTokenizerFast`."""
        from transformers import PreTrainedTokenizerFast

        core = _copy(self._core)
        core.decoder = self._core.decoder
        if self.add_bos and self.bos_id is not None:
            from tokenizers.processors import TemplateProcessing

            bos = self.named["bos_token"]
            core.post_processor = TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, self.bos_id)]
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=core,
            chat_template=self.chat_template,
            clean_up_tokenization_spaces=False,
            **self.named,
        )

    def _id_of(self, token: str | None) -> int | None:
        index = None if token is None else self._core.token_to_id(token)
        return index if index is not None and index < self.vocab_size else None

    def _all_bytes(self) -> list[bytes | None]:
        added = self._core.get_added_tokens_decoder()
        decode = _bytes_rule(self._core, self.facts.source)
        table: list[bytes | None] = [None] * self.vocab_size
        for token, index in self._core.get_vocab(with_added_tokens=True).items():
            if index in added:
                if not added[index].special and index < self.vocab_size:
                    table[index] = token.encode()
            elif index >= self.vocab_size:
                raise ModelError(
                    f"the tokenizer of {self.facts.source} has the token {index}, "
                    f"but the model only {self.vocab_size} embeddings",
                    hint="the tokenizer and the weights are of different models",
                )
            elif index not in self.facts.textless_ids:
                table[index] = decode(token)
        return table


def _joined(pieces: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Neighbours of one kind as one piece: a special token may be spread over several."""
    joined: list[tuple[str, bool]] = []
    for text, is_markup in pieces:
        if joined and joined[-1][1] == is_markup:
            joined[-1] = (joined[-1][0] + text, is_markup)
        else:
            joined.append((text, is_markup))
    return joined


def _state(part: Any) -> Any:  # noqa: ANN401 - normalizers and pre-tokenizers have no common base
    """A normalizer or pre-tokenizer as JSON values, or None."""
    return None if part is None else json.loads(part.__getstate__())


def _copy(core: Core, *, changed: Mapping[str, Any] | None = None) -> Core:
    """Another tokenizer over the same model, with some parts, given as JSON values, changed."""
    from tokenizers import Tokenizer as Core

    parts = {"normalizer": _state(core.normalizer), "pre_tokenizer": _state(core.pre_tokenizer)}
    parts |= changed or {}
    shell = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
        **parts,
    }  # fmt: skip
    made = Core.from_str(json.dumps(shell))
    made.model = core.model
    added = core.get_added_tokens_decoder()
    for _, token in sorted(added.items()):
        made.add_tokens([token])
    if made.get_added_tokens_decoder().keys() != added.keys():
        raise InternalError("a tokenizer's added tokens changed their ids when it was copied")
    return made


def _steps_of(part: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON values
    """The members of a normalizer or pre-tokenizer, given as JSON values."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        nested = part.get("normalizers") or part.get("pretokenizers") or []
        return [step for member in nested for step in _steps_of(member)]
    return [part]


def _prefix_rule(core: Core) -> Literal["never", "first", "each"]:
    """Where a blank is put before a text: nowhere, at the start, after special tokens as well."""
    steps = _steps_of(_state(core.normalizer)) + _steps_of(_state(core.pre_tokenizer))
    for step in steps:
        scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space") else "never")
        if step["type"] == "Prepend" or (step["type"] == "Metaspace" and scheme == "always"):
            return "each"
        if step["type"] == "Metaspace" and scheme == "first":
            return "first"
        if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
            return "each"
    return "never"


def _without_prefix(core: Core) -> Core:
    """The same tokenizer, for text in the middle of a sequence: it puts no blank before it."""

    def strip(part: Any) -> Any:  # noqa: ANN401 - JSON values
        if part is None or part["type"] == "Prepend":
            return None
        if part["type"] == "Metaspace":
            return {**part, "prepend_scheme": "never"}
        if part["type"] == "ByteLevel":
            return {**part, "add_prefix_space": False}
        members = {
            key: [step for member in part[key] if (step := strip(member)) is not None]
            for key in ("normalizers", "pretokenizers")
            if key in part
        }
        return {**part, **members}

    made = _copy(
        core,
        changed={
            "normalizer": strip(_state(core.normalizer)),
            "pre_tokenizer": strip(_state(core.pre_tokenizer)),
        },
    )
    made.encode_special_tokens = True
    return made


def _byte_characters() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte, as GPT-2 introduced it.

    Printable bytes stand for themselves; the others take the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _bytes_rule(core: Core, source: str) -> Any:  # noqa: ANN401 - Callable[[str], bytes | None]
    """The function that gives the bytes of an ordinary token's name."""
    parts = json.dumps([_state(core.decoder), _state(core.pre_tokenizer), _state(core.normalizer)])
    if '"ByteLevel"' in parts:
        table = _byte_characters()

        def byte_level(token: str) -> bytes:
            try:
                return bytes([table[character] for character in token])
            except KeyError:
                return token.encode()  # not spelled in bytes; decoders take it as it is

        return byte_level
    if "▁" in parts or "\\u2581" in parts:

        def sentencepiece(token: str) -> bytes:
            if match := _BYTE_TOKEN.fullmatch(token):
                return bytes([int(match[1], 16)])
            return token.replace("▁", " ").encode()

        return sentencepiece
    raise ModelError(
        f"the tokenizer of {source} is of an unknown kind",
        hint="byte-level BPE and SentencePiece are supported",
    )


def _add_missing_specials(core: Core, tokens: Iterable[str]) -> None:
    from tokenizers import AddedToken

    special = {t.content for t in core.get_added_tokens_decoder().values() if t.special}
    missing: Sequence[str] = [t for t in dict.fromkeys(tokens) if t and t not in special]
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in missing])
