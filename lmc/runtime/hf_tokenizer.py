"""The tokenizer of a folder in Hugging Face form: tokenizer.json and the files around it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core

    from lmc.runtime.tokenizer import TokenizerFacts

__all__ = ["read_folder", "read_json"]

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_MORE_SPECIALS = ("additional_special_tokens", "extra_special_tokens")


def read_folder(folder: Path) -> tuple[Core, TokenizerFacts]:
    """The tokenizer and what the folder says about it.

    Raises:
        ModelError: tokenizer.json is missing, or one of the files is damaged.
    """
    from tokenizers import Tokenizer as Core

    from lmc.runtime.tokenizer import TokenizerFacts

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(
            f"{folder} has no tokenizer.json",
            hint="write one with AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    settings = {**_optional(folder / "special_tokens_map.json")}
    settings |= _optional(folder / "tokenizer_config.json")
    config = _optional(folder / "config.json")
    text_config = config.get("text_config") or config
    generation = _optional(folder / "generation_config.json")
    try:
        core = Core.from_str(_as_transformers_has_it(file, settings, config))
    except ModelError:
        raise
    except Exception as error:  # the `tokenizers` package raises bare Exception
        raise ModelError(f"{file} cannot be read: {error}") from error

    named = {r: token for r in _ROLES if (token := _content(settings.get(r))) is not None}
    _add_declared(core, settings, named.values())
    named = {role: token for role, token in named.items() if core.token_to_id(token) is not None}
    eos = set(_ids(core.token_to_id(named["eos_token"]))) if "eos_token" in named else set()
    for source in (config, text_config, generation):
        eos |= set(_ids(source.get("eos_token_id")))
    vocab_size = text_config.get("vocab_size") or core.get_vocab_size()
    facts = TokenizerFacts(
        source=str(folder),
        vocab_size=vocab_size,
        named=named,
        add_bos=_adds_bos(core, named.get("bos_token")),
        eos_ids=frozenset(index for index in eos if 0 <= index < vocab_size),
        chat_template=_chat_template(folder, settings),
    )
    return core, facts


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ModelError: the file cannot be read or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds no JSON object")
    return found


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _as_transformers_has_it(
    file: Path, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> str:
    """The text of tokenizer.json, with the change that transformers makes to Llama's own class.

    Old files of Llama models put a blank before the text after each special token. The class that
    reads them in transformers 5 does so only at the start, unless `legacy` is set.
    """
    text = file.read_text(encoding="utf-8")
    is_llama = str(settings.get("tokenizer_class", "")) in ("LlamaTokenizer", "LlamaTokenizerFast")
    if not is_llama or config.get("model_type") != "llama" or "▁" not in text:
        return text
    data = read_json(file)
    model = data.get("model", {})
    if model.get("type") != "BPE" or not model.get("byte_fallback"):
        return text
    scheme = "always" if settings.get("legacy") else "first"
    if settings.get("add_prefix_space") is False:
        scheme = "never"
    data["normalizer"] = None
    data["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False,
    }  # fmt: skip
    return json.dumps(data)


def _content(token: object) -> str | None:
    """The text of a token that is written as text or as an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _ids(value: object) -> Iterator[int]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not isinstance(item, bool):
            yield item


def _add_declared(core: Core, settings: Mapping[str, Any], named: Iterable[str]) -> None:
    """Add the tokens that tokenizer_config.json declares and tokenizer.json lacks."""
    from tokenizers import AddedToken

    known = core.get_added_tokens_decoder()
    declared = settings.get("added_tokens_decoder") or {}
    for index, entry in sorted(declared.items(), key=lambda item: int(item[0])):
        if int(index) in known or not isinstance(entry, Mapping) or not entry.get("content"):
            continue
        flags = {k: bool(entry.get(k)) for k in ("lstrip", "rstrip", "normalized", "single_word")}
        core.add_tokens([AddedToken(entry["content"], special=bool(entry.get("special")), **flags)])
    special = {t.content for t in core.get_added_tokens_decoder().values() if t.special}
    wanted = list(named)
    for key in _MORE_SPECIALS:
        more = settings.get(key) or ()
        wanted += filter(None, map(_content, more.values() if isinstance(more, dict) else more))
    # A declared token that the vocabulary lacks would have no embedding: it is left out.
    core.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token in dict.fromkeys(wanted)
            if token not in special and core.token_to_id(token) is not None
        ]
    )


def _adds_bos(core: Core, bos: str | None) -> bool:
    """Whether tokenizer.json puts BOS first; like transformers, we heed no other file in this."""
    if bos is None:
        return False
    return core.encode("", add_special_tokens=True).ids[:1] == [core.token_to_id(bos)]


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if template is None:
        template = _optional(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        by_name = {entry.get("name"): entry.get("template") for entry in template}
        template = by_name.get("default")
    return template if isinstance(template, str) else None
