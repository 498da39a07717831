"""Masks, steps and forced tokens: what a request sees of its constraint."""

from __future__ import annotations

import gc
import json
import random
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from small_tokenizers import byte_level, sentencepiece_like, small_vocabulary

from lmc.constraints import TokenMatcher, Vocabulary, automaton_of, compile
from lmc.constraints.tokenizer import vocabulary_of
from lmc.constraints.walking import places_after, wait_for_kernels, walk, walk_arrays
from lmc.errors import ConstraintError, ModelError


def words(*tokens: bytes | None, eos: int | None = None) -> Vocabulary:
    """A vocabulary of just these tokens; texts are cut greedily, the longest token first."""
    ids = {t: i for i, t in enumerate(tokens) if t}

    def encode(text: str) -> list[int]:
        data, found = text.encode(), []
        while data:
            fits = max((t for t in ids if data.startswith(t)), key=len, default=None)
            if fits is None:
                return []
            found.append(ids[fits])
            data = data[len(fits) :]
        return found

    return Vocabulary(tokens, [] if eos is None else [eos], encode)


def allowed(matcher: TokenMatcher) -> set[int]:
    return set(np.flatnonzero(matcher.mask()).tolist())


def spelled(matcher: TokenMatcher) -> set[bytes | None]:
    return {matcher.vocabulary.token_bytes[t] for t in allowed(matcher)}


def test_a_token_is_allowed_where_the_constraint_can_still_be_completed(
    vocabulary: Vocabulary,
) -> None:
    pattern = r'\{"name": "[^"\\\x00-\x1f]{1,8}", "age": (?:0|[1-9]\d{0,2})\}|é+|(?!ab)[a-c]{3}'
    matcher = compile("regex", pattern, vocabulary)
    machine = matcher.automaton.machine
    draw = random.Random(0)
    for _ in range(6):
        text = b""
        matcher.reset()
        while not (matcher.is_complete() and draw.random() < 0.5) and not matcher.is_finished():
            place = machine.run(machine.start or 0, text)
            row = matcher.mask()
            for token, data in enumerate(vocabulary.token_bytes):
                if token in vocabulary.eos:
                    assert row[token] == matcher.is_complete() == machine.accepts(place)
                else:
                    assert row[token] == (data is not None and machine.run(place, data) >= 0)
            choices = sorted(allowed(matcher) - set(vocabulary.eos))
            token = draw.choice(choices)
            matcher.advance(token)
            text += vocabulary.token_bytes[token] or b""
        assert automaton_of("regex", pattern).matches(text)


def test_special_tokens_are_never_text() -> None:
    tokenizer = byte_level()
    matcher = compile("regex", r"(?s).*", tokenizer)
    for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        token = tokenizer.token_to_id(name)
        assert matcher.mask()[token] == (token in matcher.vocabulary.eos)
    matcher = compile("regex", r"<\|im_start\|>x", tokenizer)
    assert not matcher.mask()[tokenizer.token_to_id("<|im_start|>")]
    assert tokenizer.token_to_id("<|im_start|>") not in matcher.vocabulary.encode("<|im_start|>")


def test_an_end_token_ends_and_nothing_follows(gpt2: Vocabulary) -> None:
    matcher = compile("regex", "a+", gpt2)
    end = gpt2.eos[-1]
    with pytest.raises(ValueError, match="not allowed"):
        matcher.advance(end)
    matcher.advance(gpt2.encode("a")[0])
    assert matcher.is_complete()
    assert not matcher.is_finished()
    matcher.advance(end)
    assert matcher.is_complete()
    assert matcher.is_finished()
    assert not matcher.mask().any()
    assert matcher.forced() == []
    with pytest.raises(ValueError, match="not allowed"):
        matcher.advance(end)
    matcher.reset()
    assert not matcher.is_complete()


def test_a_refused_token_leaves_the_matcher_where_it_was(gpt2: Vocabulary) -> None:
    matcher = compile("choices", ["Positive", "Negative"], gpt2)
    before = matcher.mask()
    for token in set(range(len(gpt2))) - allowed(matcher):
        with pytest.raises(ValueError, match="not allowed"):
            matcher.advance(token)
    assert matcher.mask() is before


@pytest.mark.parametrize(
    ("kind", "source"),
    [("regex", "a?b"), ("json_schema", {"type": "object", "patternProperties": {"a": True}})],
)
def test_a_number_that_is_no_token_is_refused(kind: str, source: Any) -> None:
    vocabulary = small_vocabulary("gpt2")
    matcher = compile(kind, source, vocabulary)
    for token in (-1, -len(vocabulary), len(vocabulary), 2**40):
        with pytest.raises(ValueError, match=f"token {token} is not allowed here"):
            matcher.advance(token)
        assert matcher.mask().any()


def test_a_fork_goes_its_own_way(gpt2: Vocabulary) -> None:
    matcher = compile("choices", ["abc", "abd"], gpt2)
    matcher.advance(gpt2.encode("a")[0])
    twin = matcher.fork()
    matcher.advance(gpt2.encode("b")[0])
    assert twin.shortest() == 2
    assert matcher.shortest() == 1
    assert spelled(twin) >= {b"b"}


def test_b_01_a_character_of_several_tokens() -> None:
    """dottxt-ai/outlines#725."""
    vocabulary = Vocabulary(
        [bytes([b]) for b in range(256)] + [None], [256], lambda t: list(t.encode())
    )
    matcher = compile("regex", "[😀-🙏]+", vocabulary)
    assert spelled(matcher) == {b"\xf0"}
    for byte in "😨".encode():
        matcher.advance(byte)
    assert matcher.is_complete()
    for byte in "😨".encode()[:3]:
        matcher.advance(byte)
    assert not matcher.is_complete()
    assert b"\xbf" in spelled(matcher) or b"\x8f" in spelled(matcher)
    matcher = compile("regex", "[\u0430-\u044f]", vocabulary)
    assert spelled(matcher) == {b"\xd0", b"\xd1"}


def test_b_15_one_bad_regex_harms_no_other(gpt2: Vocabulary) -> None:
    with pytest.raises(ConstraintError, match="never closed"):
        compile("regex", "(", gpt2)
    assert compile("regex", "a", gpt2).mask().any()


def test_b_22_nothing_follows_a_complete_text(gpt2: Vocabulary) -> None:
    matcher = compile("regex", "yes|no", gpt2)
    for token in gpt2.encode("yes"):
        matcher.advance(token)
    assert matcher.is_finished()
    assert allowed(matcher) == set(gpt2.eos)


def test_b_24_far_from_its_bound_a_counter_makes_no_new_masks(gpt2: Vocabulary) -> None:
    matcher = compile("regex", "[a-z]{0,20000}", gpt2)
    rows = set()
    for _ in range(200):
        rows.add(id(matcher.mask()))
        matcher.advance(gpt2.encode("a")[0])
    assert len(rows) == 1


def test_b_25_white_space_at_the_end_can_be_bounded(gpt2: Vocabulary) -> None:
    matcher = compile("regex", r"\{\}[\n ]{0,3}", gpt2)
    for char in "{} \n ":
        assert not matcher.is_finished()
        matcher.advance(gpt2.encode(char)[0])
    assert allowed(matcher) == set(gpt2.eos)


def test_b_27_a_space_is_written_with_sentencepieces_mark() -> None:
    vocabulary = vocabulary_of(sentencepiece_like())
    assert b" " in {b[:1] for b in vocabulary.token_bytes if b}
    matcher = compile("regex", "[a-z]+ [a-z]+", vocabulary)
    for token in vocabulary.encode("cat dog"):
        assert matcher.mask()[token]
        matcher.advance(token)
    assert matcher.is_complete()


def test_b_28_two_choices(gpt2: Vocabulary) -> None:
    matcher = compile("choices", ["Positive", "Negative"], gpt2)
    assert {b[:1] for b in spelled(matcher) if b} == {b"P", b"N"}


def test_b_51_choices_that_begin_alike(gpt2: Vocabulary) -> None:
    matcher = compile("choices", ["a", "aa"], gpt2)
    matcher.advance(gpt2.encode("a")[0])
    assert matcher.is_complete()
    assert not matcher.is_finished()
    assert spelled(matcher) >= {b"a", None}


def test_b_76_threads_share_one_constraint(gpt2: Vocabulary) -> None:
    automaton = automaton_of("regex", r'\{"a": "[\w ]{1,40}(?<!b)", "b": [0-9]{1,9}\}')
    text = '{"a": "naïve cat 日本", "b": 1234}'

    def run() -> list[bytes]:
        matcher = TokenMatcher(automaton, gpt2)
        seen = []
        for token in gpt2.encode(text):
            seen.append(matcher.mask().tobytes())
            matcher.advance(token)
        return seen

    expected: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: expected.append(run())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(expected) == 8
    assert all(seen == run() for seen in expected)


def test_masks_beside_the_bounds_of_large_counters() -> None:
    lengths = (1, 2, 15, 16, 17, 18, 33, 40, 70)
    tokens = [c * n for n in lengths for c in (b"x", b"y")] + [b"x" * n + b"y" for n in lengths]
    tokens += [bytes([b]) for b in range(256) if chr(b) not in "xy"]  # so that all can be spelled
    vocabulary = words(*tokens, None, eos=len(tokens))
    matcher = compile("regex", "x{40,80}y(?:x{0,17}y){2}|y{18}|(?:x{20}y){3,}", vocabulary)
    machine = matcher.automaton.machine
    assert machine.start is not None
    for text in [b"x" * n for n in (0, 1, 5, 21, 23, 24, 25, 39, 40, 45, 62, 63, 64, 80)] + [
        b"x" * 50 + b"y", b"x" * 50 + b"yxx", b"y", b"yy", b"x" * 20 + b"y",
    ]:  # fmt: skip
        place = machine.run(machine.start, text)
        assert place >= 0
        expected = [machine.run(place, t) >= 0 for t in tokens]
        assert vocabulary.table(machine).mask(place)[:-1].tolist() == expected, text


def test_tables_live_as_long_as_their_automaton(gpt2: Vocabulary) -> None:
    automaton = automaton_of("regex", "never seen before [0-9]+")
    table = weakref.ref(gpt2.table(automaton.machine))
    row = weakref.ref(TokenMatcher(automaton, gpt2).mask())
    gc.collect()
    assert table() is gpt2.table(automaton.machine)
    assert row() is TokenMatcher(automaton, gpt2).mask()
    del automaton
    gc.collect()
    assert table() is None
    assert row() is None


def test_a_table_keeps_only_so_many_rows(gpt2: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmc.constraints.tables._MOST_BYTES", 1200)
    monkeypatch.setattr("lmc.constraints.tables._MOST_STEPS", 3)
    matcher = compile("regex", "abcdefgh(?:ij)?[0-9]{4}", gpt2)
    for char in "abcdefgh1234":
        token = gpt2.encode(char)[0]
        assert matcher.mask()[token]
        assert matcher._table.size <= 1200
        matcher.forced()
        matcher.advance(token)
    assert matcher.is_finished()
    assert len(matcher._table._masks) <= 3
    assert len(matcher._table._steps) <= 3


def test_the_same_place_inside_a_text_with_other_keys_behind_it() -> None:
    single = [bytes([b]) for b in range(256)]
    vocabulary = words(*single, b'","a":"')
    long = len(single)
    matcher = compile("json_schema", {"additionalProperties": {"type": "string"}}, vocabulary)
    for byte in b'{"b":"x':
        matcher.advance(byte)
        matcher.mask()
    before = matcher.mask()
    assert before[long]
    matcher.advance(long)
    matcher.advance(ord("x"))
    assert not matcher.mask()[long], "that key is there"
    assert matcher.mask()[ord("x")]
    assert before[long], "masks that were handed over stay as they are"


def test_only_so_many_arrays_are_kept_and_forgotten_ones_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmc.constraints.rows._KEPT_BYTES", 20 * 256)
    vocabulary = words(*(bytes([b]) for b in range(256)))
    pairs = [chr(0x41 + i) + chr(0x61 + i) for i in range(26)]
    automaton = automaton_of("choices", pairs)
    table, start = vocabulary.table(automaton.machine), automaton.machine.start
    assert start is not None
    for _ in range(2):
        for first, second in pairs:
            row = table.mask(automaton.machine.run(start, first.encode()))
            assert np.flatnonzero(row).tolist() == [ord(second)]
    assert len(table._masks) == 26
    assert sum(row.array is not None for row in table._masks.values()) <= 20


# -- forced tokens -------------------------------------------------------------------------------


def forced(matcher: TokenMatcher) -> list[bytes | None]:
    return [matcher.vocabulary.token_bytes[t] for t in matcher.forced()]


def test_a_text_that_is_all_forced_is_given_whole(vocabulary: Vocabulary) -> None:
    text = '{"name": "Alice", "don\'t": 😀 日本}'
    matcher = compile("choices", [text], vocabulary)
    tokens = matcher.forced()
    assert tokens == vocabulary.encode(text)
    for token in tokens:
        matcher.advance(token)
    assert matcher.is_finished()


def test_what_a_continuation_could_move_is_held_back() -> None:
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={t: i for i, t in enumerate(["h", "a", "ah", "aha", "hah", "</s>"])},
            merges=[("a", "h"), ("ah", "a"), ("h", "ah")],
        )
    )
    made.add_special_tokens(["</s>"])
    vocabulary = vocabulary_of(made)
    tokens = vocabulary.token_bytes
    assert [tokens[t] for t in vocabulary.encode("haha")] == [b"h", b"aha"]
    assert [tokens[t] for t in vocabulary.encode("hahaha")] == [b"hah", b"aha"]
    matcher = compile("regex", "(?:ha){2,6}", vocabulary)
    assert matcher.forced() == []
    assert spelled(matcher) == {b"h", b"hah"}
    assert forced(compile("regex", "haha", vocabulary)) == [b"h", b"aha"]


def test_b_46_a_longer_token_over_the_seam_is_left_to_the_model() -> None:
    vocabulary = words(b"h", b"e", b"l", b"o", b"hello", b"ello", b" ", b"i", None, eos=8)
    assert forced(compile("regex", "hello", vocabulary)) == [b"hello"]
    matcher = compile("regex", "hell(?:o|i)", vocabulary)
    assert forced(matcher) == []
    assert spelled(matcher) == {b"h", b"hello"}


def test_forced_text_stops_where_the_constraint_may_end(gpt2: Vocabulary) -> None:
    assert compile("regex", "(?:abc)?", gpt2).forced() == []
    matcher = compile("regex", "abc(?:def)?", gpt2)
    assert b"".join(b or b"" for b in forced(matcher)) in (b"", b"a", b"ab", b"abc")


def test_what_stands_before_can_change_what_is_forced(gpt2: Vocabulary) -> None:
    # `'s` is cut off after a letter; after a comma it belongs to what follows.
    apart = compile("regex", "(?:a|,)'s", gpt2)
    apart.advance(gpt2.encode("a")[0])
    assert apart.forced() == gpt2.encode("a's")[1:]
    joined = compile("regex", "(?:a|,)'s", gpt2)
    joined.advance(gpt2.encode(",")[0])
    tokens = gpt2.encode(",'s")
    assert (
        tokens[0] != gpt2.encode(",")[0] or joined.forced() == tokens[1 : 1 + len(joined.forced())]
    )


def test_white_space_that_the_tokenizer_would_part_is_held_back() -> None:
    vocabulary = small_vocabulary("llama3")
    for pattern in [r"x\t\t[a}]", r"x  (?:y|\()", r"\n\n\n(?:a|\n)", r"a   [ -~]"]:
        matcher = compile("regex", pattern, vocabulary)
        tokens = matcher.forced()
        for text in map(bytes.decode, automaton_of("regex", pattern).dfa().texts()):
            assert vocabulary.encode(text)[: len(tokens)] == tokens, (pattern, text)


def test_masks_are_not_narrowed_by_what_is_forced(gpt2: Vocabulary) -> None:
    matcher = compile("choices", ["house"], gpt2)
    assert len(matcher.forced()) > 0
    assert spelled(matcher) >= {b"h"}
    assert len(allowed(matcher)) > 1


# -- vocabularies --------------------------------------------------------------------------------


def test_dead_ends_of_the_vocabulary_are_masked() -> None:
    vocabulary = words(b"a", b"ab", b"cat", b"xy", b"c", None, eos=5)
    assert spelled(compile("regex", "a(?:b|q)|cat|x", vocabulary)) == {b"ab", b"cat"}
    assert spelled(compile("regex", "(?:x|y)*c", vocabulary)) == {b"xy", b"c"}
    matcher = compile("regex", "(?:x|y){3,4}", vocabulary)
    matcher.advance(3)
    assert spelled(matcher) == {b"xy"}


def test_a_vocabulary_that_cannot_spell_the_constraint_is_an_error() -> None:
    vocabulary = words(b"a", b"ab", b"xy", None, eos=3)
    with pytest.raises(ConstraintError, match="no token has the bytes of 'é'"):
        compile("regex", "é+", vocabulary)
    with pytest.raises(ConstraintError, match="tokens cannot be joined to 'xyx'"):
        compile("regex", "xyx", vocabulary)


def test_a_character_whose_bytes_are_missing_is_a_dead_end() -> None:
    vocabulary = words(b"\xc3", b"\xa9", b"\xe3", b"\xe3\x81", b"\x82", b"a", None, eos=6)
    matcher = compile("regex", "[é\u3042\u3044]|a", vocabulary)
    assert spelled(matcher) == {b"\xc3", b"\xe3\x81", b"a"}
    with pytest.raises(ValueError, match="not allowed"):
        matcher.advance(2)
    matcher.advance(3)
    assert spelled(matcher) == {b"\x82"}


def test_a_missing_byte_matters_only_where_it_is_needed() -> None:
    every = [bytes([b]) for b in range(256) if b not in (0xF1, 0xF2, 0xF3)]
    vocabulary = words(*every, None, eos=len(every))
    assert vocabulary.table(automaton_of("regex", ".+").machine).speller is None
    with pytest.raises(ConstraintError, match="cannot spell"):
        compile("regex", "\U00050000", vocabulary)


def test_end_tokens_must_exist() -> None:
    with pytest.raises(ValueError, match="end tokens"):
        Vocabulary([b"a"], [1], lambda _: [])


def test_no_end_token_no_tokens() -> None:
    matcher = compile("regex", "a?", words(b"a"))
    assert spelled(matcher) == {b"a"}
    assert Vocabulary([], [], lambda _: []).trie.longest == 0
    with pytest.raises(ConstraintError, match="cannot spell"):
        compile("regex", "a", Vocabulary([], [], lambda _: []))


def test_tokens_of_equal_text_are_allowed_together() -> None:
    vocabulary = words(b"a", b"b", b"a", b"", None)
    assert allowed(compile("regex", "a", vocabulary)) == {0, 2}


def test_vocabularies_are_read_from_tokenizers_and_files(tmp_path: Path) -> None:
    tokenizer = byte_level()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    end = tokenizer.token_to_id("<|im_end|>")
    for source in (path, str(path), tmp_path):
        assert vocabulary_of(source).eos == (end,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 0]}))
    assert vocabulary_of(path).eos == (0, end)
    vocabulary = vocabulary_of(tokenizer)
    assert vocabulary_of(vocabulary) is vocabulary
    for bad in (tmp_path / "no.json", 3):
        with pytest.raises(ModelError):
            vocabulary_of(bad)


@pytest.mark.filterwarnings("ignore")
def test_a_fast_tokenizer_of_transformers_is_read() -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), eos_token="<|im_end|>"
    )
    vocabulary = vocabulary_of(fast)
    assert vocabulary.eos == (fast.eos_token_id,)
    assert vocabulary.encode("a cat") == fast.encode("a cat", add_special_tokens=False)


def test_texts_are_cut_as_in_the_middle_of_a_sequence(vocabulary: Vocabulary) -> None:
    for text in ["hello", " hello", "  x", "'s", "\n", "é日本", "<|im_end|>", "</s>", "1234"]:
        tokens = vocabulary.encode(text)
        assert b"".join(vocabulary.token_bytes[t] or b"" for t in tokens) == text.encode()


# -- walks ---------------------------------------------------------------------------------------


def test_the_compiled_walk_finds_the_same(
    gpt2: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.constraints.walking.COMPILE_FROM", 0)
    wait_for_kernels()
    for pattern in [r"\w+x", r"[^a-z]{2}", r"(?!ab)\w{2,9}é", "[😀-🙏]+", r"\{\"name\": .*"]:
        machine = automaton_of("regex", pattern).machine
        assert machine.start is not None
        for text in ["", "a", "é", "\u65e5"]:
            place = machine.run(machine.start, text.encode())
            if place < 0:
                continue
            expected = np.flatnonzero(
                (walk_arrays(machine, gpt2.trie, place)[0] >= 0)[gpt2.trie.node_of]
            )
            assert sorted(walk(machine, gpt2.trie, place).tolist()) == expected.tolist()
            for above in (1, 2, 99):
                long = expected[gpt2.sizes[expected] > above]
                found = walk(machine, gpt2.trie, place, above=above)
                assert sorted(found.tolist()) == long.tolist()


def test_the_trie_holds_every_token_once(vocabulary: Vocabulary) -> None:
    trie = vocabulary.trie
    for token, text in enumerate(vocabulary.token_bytes):
        node = int(trie.node_of[token])
        if text is None:
            assert node == len(trie)
            continue
        assert token in trie.tokens[trie.tokens_at[node] : trie.tokens_at[node + 1]]
        spelled_back = bytearray()
        while node >= 0:
            spelled_back.append(int(trie.byte[node]))
            assert trie.depth[node] == len(text) - len(spelled_back) + 1
            assert trie.height[node] >= len(text)
            node = int(trie.parent[node])
        assert bytes(reversed(spelled_back)) == text
    for node in range(len(trie)):
        after = int(trie.skip[node])
        assert (trie.depth[node + 1 : after] > trie.depth[node]).all()
        assert after == len(trie) or trie.depth[after] <= trie.depth[node]


def test_places_after_all_tokens(gpt2: Vocabulary) -> None:
    machine = automaton_of("regex", "(?:ab|é)+").machine
    places = places_after(machine, gpt2.trie, machine.start or 0)
    for token, text in enumerate(gpt2.token_bytes):
        assert places[token] == (machine.run(machine.start or 0, text) if text else -1)


# -- budgets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern", [r"[a-z]{3,}\.", r"(?:yes|no, because [a-z ]+)", r'"(?:[^"\\]|\\.)*"', "[😀-🙏]{2,}"]
)
def test_a_budget_that_is_enough_is_kept(pattern: str, vocabulary: Vocabulary) -> None:
    matcher = compile("regex", pattern, vocabulary)
    draw = random.Random(1)
    need = matcher.shortest_tokens()
    for budget in (need, need + 1, need + 4):
        for _ in range(5):
            matcher.reset()
            left = budget
            while left and not matcher.is_finished():
                choices = set(np.flatnonzero(matcher.mask_within(left)).tolist())
                choices -= set(vocabulary.eos)
                if not choices:
                    break
                matcher.advance(draw.choice(sorted(choices)))
                left -= 1
            assert matcher.is_complete()


def test_a_large_budget_changes_nothing(gpt2: Vocabulary) -> None:
    matcher = compile("regex", "a+b|c{3,9}", gpt2)
    assert matcher.mask_within(1000) is matcher.mask()
    assert matcher.shortest() == 2
    assert matcher.shortest_tokens() == len(gpt2.encode("ab"))
    matcher.advance(gpt2.encode("a")[0])
    assert spelled(matcher) >= {b"a", b"b"}
    row = matcher.mask_within(1)
    assert {gpt2.token_bytes[t] for t in np.flatnonzero(row)} <= {b"b", b"ab", b"aab"}


def test_the_vocabulary_of_a_tokenizer_is_made_once(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer.from_str(byte_level("gpt2").to_str())
    assert vocabulary_of(made) is vocabulary_of(made)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    first = vocabulary_of(path)
    assert vocabulary_of(str(path)) is first
    assert first is not vocabulary_of(made)
    assert first.eos == (0, 2)
    (tmp_path / "config.json").write_text('{"eos_token_id": 1}')  # another end token
    assert vocabulary_of(path).eos == (1,)
    made.add_tokens(["more"])
    assert len(vocabulary_of(made)) == len(first) + 1
