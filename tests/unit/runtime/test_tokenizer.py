"""Tokenizers agree with transformers and llama.cpp, and keep markup and text apart."""

from __future__ import annotations

import json
import unicodedata
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import (
    TEXT,
    byte_level_core,
    gguf_vocabulary,
    sentencepiece_core,
    write_folder,
    write_gguf,
)
from tokenizers import AddedToken, Regex, pre_tokenizers
from tokenizers import Tokenizer as Core
from tokenizers.processors import TemplateProcessing

from lmc.errors import ModelError, UsageError
from lmc.runtime.gguf_tokenizer import _merges_by_score
from lmc.runtime.store import resolve
from lmc.runtime.tokenizer import Tokenizer

STRINGS = [
    *TEXT[:3],
    "",
    " ",
    "  two  blanks  ",
    "a\x00b",
    "👩‍👩‍👧 naïve ﷽ \u200b e\u0301",
    "1 2 12 123 1234 12345 ½ Ⅷ ٣",
    "def f(x):\n\treturn x  # don't\r\n\r\n\n",
    "<s> </s> <|im_end|> <unk>",
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_SETTINGS = {"eos_token": "<|im_end|>", "chat_template": CHATML}


def chatml_core() -> Core:
    return byte_level_core(specials=["<|im_start|>", "<|im_end|>"])


@cache
def fake() -> Tokenizer:
    return Tokenizer.fake()


@pytest.fixture
def chatml(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_hf_dir(write_folder(tmp_path, chatml_core(), settings=CHATML_SETTINGS))


def transformers_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


# Round trips.


@given(st.text())
def test_text_comes_back_from_its_tokens(text: str) -> None:
    for first in (True, False):
        assert fake().decode(fake().encode(text, first=first), first=first) == text


@given(st.text(st.characters(codec="utf-8")))
def test_sentencepiece_text_comes_back_from_its_tokens(text: str) -> None:
    tokenizer = old_llama()
    assert tokenizer.decode(tokenizer.encode(text, first=True), first=True) == text
    assert tokenizer.decode(tokenizer.encode(text, first=False)) == text


@cache
def old_llama() -> Tokenizer:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        return Tokenizer.from_hf_dir(
            write_folder(Path(folder), sentencepiece_core(), settings=settings)
        )


@pytest.mark.parametrize("text", STRINGS)
def test_token_bytes_spell_the_text(text: str) -> None:
    for tokenizer in (fake(), old_llama()):
        ids = tokenizer.encode(text, first=False)
        assert b"".join(tokenizer.token_bytes[i] or b"?" for i in ids) == text.encode()


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UsageError, match="surrogate"):
        fake().encode("\ud83d", first=True)


def test_broken_characters_become_replacement_characters() -> None:
    smile = fake().encode("😀", first=True)
    assert fake().decode(smile[:-1]) == "\ufffd"


# Special tokens.


@pytest.mark.parametrize("text", STRINGS)
def test_plain_text_never_becomes_a_special_token(text: str, chatml: Tokenizer) -> None:
    for tokenizer in (chatml, old_llama(), fake()):
        assert not tokenizer.special_ids & set(tokenizer.encode(text, first=True))
        assert not tokenizer.special_ids & set(
            tokenizer.encode_markup([(text, False)], first=False)
        )


def test_special_tokens_are_recognised_in_markup_only(chatml: Tokenizer) -> None:
    start, end = 0, 1
    ids = chatml.encode_markup(
        [("<|im_start|>user\n", True), ("<|im_end|>", False), ("<|im_end|>", True)], first=True
    )
    assert (ids[0], ids[-1]) == (start, end)
    assert chatml.special_ids.isdisjoint(ids[1:-1])
    assert chatml.decode(ids) == "user\n<|im_end|>"


def test_a_special_token_may_be_spread_over_pieces_of_markup(chatml: Tokenizer) -> None:
    assert chatml.encode_markup([("<|im_", True), ("end|>", True)], first=True) == [1]
    assert len(chatml.encode_markup([("<|im_", True), ("end|>", False)], first=True)) > 1


def test_markup_and_text_are_tokenized_together(chatml: Tokenizer) -> None:
    parts = chatml.encode_markup([("user hel", True), ("lo wor", False), ("ld", True)], first=True)
    assert parts == chatml.encode("user hello world", first=True)


def test_the_longest_special_token_wins(tmp_path: Path) -> None:
    core = byte_level_core(specials=["<|a|>", "<|a|>b"])
    tokenizer = Tokenizer.from_hf_dir(write_folder(tmp_path, core))
    assert tokenizer.encode_markup([("<|a|>b<|a|>", True)], first=True) == [1, 0]


def test_special_tokens_that_swallow_blanks_do_so(tmp_path: Path) -> None:
    core = byte_level_core(specials=["<|x|>"])
    core.add_special_tokens([AddedToken("<|r|>", special=True, normalized=False, rstrip=True)])
    core.add_special_tokens([AddedToken("<|l|>", special=True, normalized=False, lstrip=True)])
    tokenizer = Tokenizer.from_hf_dir(write_folder(tmp_path, core))
    text = "a <|r|> \n b <|l|> c <|x|> d<|r|><|l|>"
    reference = Core.from_file(str(tmp_path / "tokenizer.json"))
    expected = reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_markup([(text, True)], first=True) == expected
    apart = [("a <|r|>", True), (" \n b", False), (" <|l|> c <|x|> d<|r|><|l|>", True)]
    assert tokenizer.encode_markup(apart, first=True) == expected


def test_added_tokens_that_are_not_special_are_ordinary_text(tmp_path: Path) -> None:
    core = byte_level_core(specials=["<|x|>"])
    core.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer = Tokenizer.from_hf_dir(write_folder(tmp_path, core))
    (index,) = tokenizer.encode("<think>", first=True)
    assert tokenizer.token_bytes[index] == b"<think>"
    assert index not in tokenizer.special_ids


# Against transformers.

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What's 12 + 30?\n"},
    {"role": "assistant", "content": "42 😀"},
    {"role": "user", "content": " Thanks"},
]


def pieces_of(template: str, messages: list[dict[str, str]]) -> list[tuple[str, bool]]:
    """The rendering of CHATML in pieces."""
    assert template == CHATML
    pieces = []
    for m in messages:
        pieces += [(f"<|im_start|>{m['role']}\n", True), (m["content"], False)]
        pieces.append(("<|im_end|>\n", True))
    return [*pieces, ("<|im_start|>assistant\n", True)]


def test_markup_gives_the_tokens_of_apply_chat_template(chatml: Tokenizer, tmp_path: Path) -> None:
    theirs = transformers_tokenizer(tmp_path).apply_chat_template(
        MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert chatml.encode_markup(pieces_of(CHATML, MESSAGES), first=True) == theirs
    assert (
        chatml.hf.apply_chat_template(
            MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        == theirs
    )


@pytest.mark.parametrize("legacy", [None, True, False])
@pytest.mark.parametrize("cls", ["LlamaTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("model_type", ["llama", "mistral"])
@pytest.mark.parametrize("prefix", ["prepend", "first", "always", "never"])
def test_blanks_before_texts_are_those_of_transformers(
    prefix: str, model_type: str, cls: str, legacy: bool | None, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"tokenizer_class": cls, "bos_token": "<s>", "eos_token": "</s>"}
    settings["unk_token"] = "<unk>"
    if legacy is not None:
        settings["legacy"] = legacy
    folder = write_folder(
        tmp_path,
        sentencepiece_core(prefix),
        settings=settings,
        config={"model_type": model_type},
    )
    ours, theirs = Tokenizer.from_hf_dir(folder), transformers_tokenizer(folder)
    for text in ("Hello world", " Hello", "Hello<s>world</s>", "<s>[INST] Hello [/INST]", "é 12"):
        expected = theirs.encode(text, add_special_tokens=False)
        got = ours.encode_markup([(text, True)], first=True)
        assert got == ([] if text.startswith("<s>") else [1]) + expected
    assert ours.encode_markup([("Hello", False)], first=True) == theirs.encode("Hello")
    assert ours.hf.encode("Hello<s>x", add_special_tokens=False) == theirs.encode(
        "Hello<s>x", add_special_tokens=False
    )


def test_text_in_the_middle_gets_no_blank_before_it() -> None:
    tokenizer = old_llama()
    assert tokenizer.decode(tokenizer.encode("Hello", first=True)) == " Hello"
    assert tokenizer.decode(tokenizer.encode("Hello", first=False)) == "Hello"
    assert tokenizer.encode_markup([("Hello", False)], first=False) == tokenizer.encode(
        "Hello", first=False
    )
    after = tokenizer.encode_markup([("Hello", False)], first=False, after_special=True)
    assert after == tokenizer.encode("Hello", first=True)  # this kind puts one after every special


def test_a_sequence_has_one_bos() -> None:
    tokenizer = old_llama()
    assert tokenizer.add_bos
    assert tokenizer.bos_id == 1
    for pieces in ([("<s>Hello", True)], [("Hello", False)], [("<s>", True)], []):
        ids = tokenizer.encode_markup(pieces, first=True)
        assert ids[0] == 1
        assert ids.count(1) == 1
    assert 1 not in tokenizer.encode_markup([("Hello", False)], first=False)


@pytest.mark.parametrize("declared", [None, True, False])
@pytest.mark.parametrize("processor", [True, False])
def test_tokenizer_json_alone_says_whether_bos_is_added(
    processor: bool, declared: bool | None, tmp_path: Path
) -> None:
    core = byte_level_core(specials=["<|b|>"])
    if processor:
        core.post_processor = TemplateProcessing(single="<|b|> $A", special_tokens=[("<|b|>", 0)])
    settings: dict[str, Any] = {"bos_token": "<|b|>"}
    if declared is not None:
        settings["add_bos_token"] = declared
    folder = write_folder(tmp_path, core, settings=settings)
    assert Tokenizer.from_hf_dir(folder).add_bos is processor
    assert (transformers_tokenizer(folder).encode("a")[0] == 0) is processor


def test_end_tokens_are_those_of_all_files(tmp_path: Path) -> None:
    core = byte_level_core(specials=["<|1|>", "<|2|>", "<|3|>", "<|4|>"])
    folder = write_folder(
        tmp_path, core, settings={"eos_token": {"content": "<|1|>"}}, config={"eos_token_id": 1}
    )
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert Tokenizer.from_hf_dir(folder).eos_ids == {0, 1, 2}


def test_the_model_may_have_more_embeddings_than_there_are_tokens(tmp_path: Path) -> None:
    core = byte_level_core()
    folder = write_folder(tmp_path, core, config={"vocab_size": core.get_vocab_size() + 7})
    tokenizer = Tokenizer.from_hf_dir(folder)
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size == core.get_vocab_size() + 7
    assert tokenizer.token_bytes[-7:] == [None] * 7
    assert tokenizer.token_text(tokenizer.vocab_size - 1).startswith("<unused")


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_core(), config={"vocab_size": 100})
    with pytest.raises(ModelError, match="only 100 embeddings"):
        Tokenizer.from_hf_dir(folder)


@pytest.mark.parametrize("where", ["file", "settings", "list", "legacy"])
def test_the_chat_template_is_found(where: str, tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    settings = {"settings": {"chat_template": CHATML}, "list": {"chat_template": named}}
    folder = write_folder(tmp_path, byte_level_core(), settings=settings.get(where, {}))
    if where == "file":
        (folder / "chat_template.jinja").write_text(CHATML)
    if where == "legacy":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHATML}))
    assert Tokenizer.from_hf_dir(folder).chat_template == CHATML


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    core = byte_level_core()
    core.enable_truncation(4)
    core.enable_padding(length=16)
    tokenizer = Tokenizer.from_hf_dir(write_folder(tmp_path, core))
    text = TEXT[0]
    assert tokenizer.decode(tokenizer.encode(text, first=True)) == text
    assert len(tokenizer.encode("?", first=True)) == 1


def test_special_tokens_without_an_embedding_are_ordinary_text(tmp_path: Path) -> None:
    core = byte_level_core()
    size = core.get_vocab_size()
    core.add_special_tokens(["<|late|>"])
    folder = write_folder(tmp_path, core, config={"vocab_size": size})
    tokenizer = Tokenizer.from_hf_dir(folder)
    assert size not in tokenizer.encode_markup([("<|late|>", True)], first=True)


def test_special_tokens_may_be_named_in_their_own_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_core(specials=["<|e|>"]))
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|e|>"}')
    tokenizer = Tokenizer.from_hf_dir(folder)
    assert (tokenizer.eos_ids, tokenizer.named) == ({0}, {"eos_token": "<|e|>"})


def test_tokens_declared_in_the_settings_only_are_added(tmp_path: Path) -> None:
    core = byte_level_core()
    size = core.get_vocab_size()
    declared = {str(size): {"content": "<|new|>", "special": True, "normalized": False}}
    folder = write_folder(
        tmp_path, core, settings={"added_tokens_decoder": declared}, config={"vocab_size": size + 1}
    )
    tokenizer = Tokenizer.from_hf_dir(folder)
    assert tokenizer.encode_markup([("<|new|>", True)], first=True) == [size]


def test_a_missing_or_damaged_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_hf_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.from_hf_dir(tmp_path)


def test_the_fingerprint_tells_tokenizers_apart(tmp_path: Path) -> None:
    core = byte_level_core()
    same = [Tokenizer.from_hf_dir(write_folder(tmp_path / n, core)).fingerprint for n in "ab"]
    assert same[0] == same[1]
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), core.pre_tokenizer]
    )
    other_words = Tokenizer.from_hf_dir(write_folder(tmp_path / "c", core)).fingerprint
    fewer = Tokenizer.from_hf_dir(write_folder(tmp_path / "d", byte_level_core(399))).fingerprint
    data = json.loads(byte_level_core().to_str())
    data["model"]["merges"][-2:] = data["model"]["merges"][:-3:-1]
    swapped = Tokenizer.from_hf_dir(
        write_folder(tmp_path / "e", Core.from_str(json.dumps(data)))
    ).fingerprint
    ending = Tokenizer.from_hf_dir(
        write_folder(tmp_path / "f", byte_level_core(), config={"eos_token_id": 3})
    ).fingerprint
    assert len({same[0], other_words, fewer, swapped, ending}) == 5


def test_threads_may_share_a_tokenizer() -> None:
    expected = [fake().encode(text, first=True) for text in STRINGS]

    def work(_: int) -> bool:
        return all(
            [fake().encode(text, first=True) for text in STRINGS] == expected for _ in range(50)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_the_fake_tokenizer_reads_without_torch() -> None:
    import subprocess
    import sys

    program = (
        "import sys; from lmc.runtime.tokenizer import Tokenizer; t = Tokenizer.fake();"
        "assert t.vocab_size == 512 and t.eos_ids == {1} and t.chat_template;"
        "assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# GGUF.


def from_gguf(tmp_path: Path, metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(write_gguf(tmp_path / "m.gguf", metadata=metadata))


def test_a_gguf_file_gives_the_tokens_of_its_tokenizer(tmp_path: Path) -> None:
    core = chatml_core()
    folder = Tokenizer.from_hf_dir(write_folder(tmp_path, core, settings=CHATML_SETTINGS))
    metadata = gguf_vocabulary(core, pre="gpt-2", eos_token_id=1)
    file = from_gguf(tmp_path, metadata | {"tokenizer.chat_template": CHATML})
    for text in STRINGS:
        assert file.encode(text, first=True) == folder.encode(text, first=True)
    assert file.encode_markup([(CHATML, True)], first=True) == folder.encode_markup(
        [(CHATML, True)], first=True
    )
    assert (file.eos_ids, file.special_ids, file.vocab_size, file.chat_template) == (
        folder.eos_ids,
        folder.special_ids,
        folder.vocab_size,
        folder.chat_template,
    )
    assert file.token_bytes == folder.token_bytes


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """How a tokenizer cuts words; the merges of the tiny vocabularies tell too little."""
    core = tokenizer._core
    normal = core.normalizer.normalize_str(text) if core.normalizer else text
    return [word for word, _ in core.pre_tokenizer.pre_tokenize_str(normal)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345", "Ġ!?", "Ġ", "Ġok", "ĊĊ"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġ!?", "Ġ", "Ġok", "ĊĊ"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45", "Ġ!?", "Ġ", "Ġok", "ĊĊ"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġ!?", "Ġ", "Ġok", "ĊĊ"]),
        ("tekken", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġ!?", "Ġ", "Ġok", "ĊĊ"]),
        ("default", ["It", "'", "s", "Ġ", "123", "45", "Ġ", "!?", "Ġ", "Ġok", "ĊĊ"]),
    ],
)
def test_the_named_pre_tokenizer_cuts_words(pre: str, expected: list[str], tmp_path: Path) -> None:
    tokenizer = from_gguf(tmp_path, gguf_vocabulary(byte_level_core(), pre=pre))
    assert words(tokenizer, "It's 12345 !?  ok\n\n") == expected


def test_upper_case_begins_a_word_in_tekken(tmp_path: Path) -> None:
    tokenizer = from_gguf(tmp_path, gguf_vocabulary(byte_level_core(), pre="tekken"))
    assert words(tokenizer, "helloWorld HTTPServer") == ["hello", "World", "ĠHTTPServer"]


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    tokenizer = from_gguf(tmp_path, gguf_vocabulary(byte_level_core(), pre="qwen2"))
    assert tokenizer.encode("e\u0301", first=True) == tokenizer.encode("\u00e9", first=True)


def test_whole_words_win_over_merges_where_the_model_says_so(tmp_path: Path) -> None:
    metadata = gguf_vocabulary(byte_level_core(), pre="llama-bpe")
    metadata["tokenizer.ggml.tokens"].append("zqzq")  # a token that no merges make
    metadata["tokenizer.ggml.token_type"].append(1)
    last = len(metadata["tokenizer.ggml.tokens"]) - 1
    assert from_gguf(tmp_path, metadata).encode("zqzq", first=True) == [last]
    metadata["tokenizer.ggml.pre"] = "qwen2"
    assert last not in from_gguf(tmp_path, metadata).encode("zqzq", first=True)


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unknown pre-tokenizer 'surprise'") as caught:
        from_gguf(tmp_path, gguf_vocabulary(byte_level_core(), pre="surprise"))
    assert "smollm" in str(caught.value.hint)


def test_a_missing_pre_tokenizer_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = from_gguf(tmp_path, gguf_vocabulary(byte_level_core()))
    assert "no pre-tokenizer" in caplog.text
    assert words(tokenizer, "12345") == ["123", "45"]


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_gguf_gives_the_tokens_of_its_tokenizer(
    prefix: bool, tmp_path: Path
) -> None:
    core = sentencepiece_core("prepend" if prefix else "never")
    metadata = gguf_vocabulary(
        core,
        kind="llama",
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        add_space_prefix=prefix,
    )
    file = from_gguf(tmp_path, metadata)
    assert file.add_bos
    assert file.eos_ids == {2}
    for text in [*STRINGS, "hello<s>hello", "<s>[INST] hello [/INST]</s>"]:
        expected = core.encode(text, add_special_tokens=False).ids
        assert file.encode_markup([(text, True)], first=False, after_special=True) == expected
    assert file.decode(file.encode("a\x00é", first=True), first=True) == "a\x00é"


def test_bos_is_added_as_the_file_says(tmp_path: Path) -> None:
    core = chatml_core()
    for declared, pre, adds in (
        (None, "gpt-2", False),
        (None, "llama-bpe", True),
        (False, "llama-bpe", False),
        (True, "gpt-2", True),
    ):
        metadata = gguf_vocabulary(core, pre=pre, bos_token_id=0)
        if declared is not None:
            metadata["tokenizer.ggml.add_bos_token"] = declared
        assert from_gguf(tmp_path, metadata).add_bos is adds


def test_the_end_of_a_turn_ends_a_chat_models_output(tmp_path: Path) -> None:
    core = byte_level_core(specials=["<|end_of_text|>", "<|eot_id|>", "<|im_end|>"])
    metadata = gguf_vocabulary(core, pre="llama-bpe", eos_token_id=0)
    assert from_gguf(tmp_path, metadata).eos_ids == {0}
    template = {"tokenizer.chat_template": "{{ messages[0].content }}<|eot_id|>"}
    assert from_gguf(tmp_path, metadata | template).eos_ids == {0, 1}
    assert from_gguf(tmp_path, metadata | {"tokenizer.ggml.eot_token_id": 2}).eos_ids == {0, 2}


def test_unused_tokens_have_no_text(tmp_path: Path) -> None:
    metadata = gguf_vocabulary(byte_level_core(), pre="gpt-2")
    metadata["tokenizer.ggml.tokens"].append("[PAD0]")
    metadata["tokenizer.ggml.token_type"].append(5)
    assert from_gguf(tmp_path, metadata).token_bytes[-1] is None


def test_special_tokens_are_never_merged() -> None:
    tokens, types = ["a", "b", "ab", "ba", "c", "abc"], [1, 1, 1, 3, 1, 1]
    scores = [0.0, 0.0, -2.0, -1.0, 0.0, -1.0]
    assert _merges_by_score(tokens, types, scores) == [("ab", "c"), ("a", "b")]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tokenizer.ggml.model": "bert"}, "kind 'bert'"),
        ({"tokenizer.ggml.tokens": ["a"]}, "1 tokens but"),
        ({"tokenizer.ggml.merges": ["ab"]}, "do not join two"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, "damaged"),
        ({"tokenizer.ggml.model": "llama"}, "no score"),
    ],
)
def test_lists_that_do_not_fit_are_refused(
    change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=problem):
        from_gguf(tmp_path, gguf_vocabulary(byte_level_core(), pre="gpt-2") | change)


def test_transformers_reads_what_hf_gives(tmp_path: Path) -> None:
    core = byte_level_core(specials=["<|b|>", "<|e|>"])
    metadata = gguf_vocabulary(core, pre="smollm", bos_token_id=0, eos_token_id=1)
    tokenizer = from_gguf(tmp_path, metadata | {"tokenizer.ggml.add_bos_token": True})
    assert tokenizer.hf.encode("a 12<|e|>") == [
        0,
        *tokenizer.encode_markup([("a 12<|e|>", True)], first=False),
    ]
    assert (tokenizer.hf.bos_token_id, tokenizer.hf.eos_token_id) == (0, 1)
    assert tokenizer.encode("<|e|>", first=True) != [1]  # making `hf` changed nothing here


def test_regular_expressions_are_those_of_the_models(tmp_path: Path) -> None:
    """The pattern of Qwen2's tokenizer.json, written out, cuts any text as ours does."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    theirs = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = from_gguf(tmp_path, gguf_vocabulary(byte_level_core(), pre="qwen2"))
    for text in STRINGS:
        composed = unicodedata.normalize("NFC", text)
        assert words(tokenizer, text) == [word for word, _ in theirs.pre_tokenize_str(composed)]


@pytest.mark.model
def test_the_default_model_tokenizes_as_llama_cpp_does() -> None:
    path = resolve("smollm2-135m").path
    assert path
    tokenizer = Tokenizer.from_gguf(path)
    for text, ids in {
        "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
        "The capital of France is": [504, 3575, 282, 4649, 314],
        "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
        "  multiple   spaces": [216, 2701, 256, 5600],
        "\n": [198],
    }.items():
        assert tokenizer.encode(text, first=True) == ids
        assert tokenizer.decode(ids) == text
    for text in STRINGS:
        assert tokenizer.decode(tokenizer.encode(text, first=True)) == text
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_ids) == (1, False, {2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = tokenizer.hf.apply_chat_template(
            MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False
        )
    assert tokenizer.encode_markup(pieces_of(CHATML, MESSAGES), first=True) == theirs
