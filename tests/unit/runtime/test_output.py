"""Stop strings, cuts, and what may be streamed, against the plain definition on the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.constraints.stopping import Stops
from lmc.runtime.output import TextAssembler, open_character
from tests.stop_oracle import first_stop

# Pieces that end inside characters, and stop strings that lie across pieces.
PIECES = [b"a", b"b", b"ab", b"ba", b"\n", "é".encode(), b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80"]
STOPS = ["a", "ab", "aab", "b\n", "é", "😀", "bé", "ba"]


def assembled(pieces: list[bytes], stops: tuple[str, ...] = (), head: bytes = b"") -> TextAssembler:
    """The assembler after the pieces up to the one that ends the text."""
    text = TextAssembler(pieces, Stops(stops) if stops else None, head)
    for token in range(len(pieces)):
        if text.push(token):
            break
    return text


def test_b61_a_stop_inside_a_token_ends_the_text() -> None:
    text = assembled([b"ABC", b"DEF"], ("DE",))
    assert (text.text, text.stop, text.split()) == ("ABC", "DE", (1, ""))
    text = assembled([b'x",', b"y"], ('",',))
    assert (text.text, text.split()) == ("x", (0, "x"))


def test_the_stop_that_ends_first_counts_and_of_these_the_one_that_begins_first() -> None:
    assert assembled([b"xbcab"], ("ab", "bc")).stop == "bc"
    assert assembled([b"xab"], ("ab", "a")).stop == "a", "however the tokens lie"
    assert assembled([b"xa", b"b"], ("ab", "a")).stop == "a"
    text = assembled([b"xabcd"], ("abcd", "bc"))
    assert (text.text, text.stop) == ("xa", "bc")
    text = assembled([b"xabc"], ("bc", "abc"))
    assert (text.text, text.stop) == ("x", "abc"), "both end here; nothing of a stop is left"


def test_the_tokens_before_a_cut_are_kept_and_the_rest_is_text() -> None:
    text = assembled([b"one", b" two", b" three\nfour"], ("\n",))
    assert (text.text, text.split()) == ("one two three", (2, " three"))


def test_a_cut_keeps_no_part_of_a_character() -> None:
    text = assembled([b"a\xc3", b"\xa9b\n"], ("\n",))
    assert (text.text, text.split()) == ("aéb", (0, "aéb"))


def test_special_tokens_have_no_text_and_stay_where_they_are() -> None:
    text = TextAssembler([b"a", None, b"b."], Stops(["."]))
    assert [text.push(token) for token in (0, 1, 2)] == [False, False, True]
    assert (text.text, text.split()) == ("ab", (2, "b"))


def test_a_token_beyond_the_table_has_no_text() -> None:
    text = TextAssembler([b"a"])
    assert not text.push(7)
    assert (text.text, text.split()) == ("", (1, ""))


def test_b63_b91_pieces_are_whole_characters_and_no_part_of_a_stop() -> None:
    text = TextAssembler([b"\xc4", b"\x8f", b"b", b",", b"c", b"d"], Stops(["b,c"]))
    pieces = []
    for token in (0, 1, 2, 3, 5, 2, 3, 4):
        text.push(token)
        pieces.append(text.delta())
    assert pieces == ["", "ď", "", "", "b,d", "", "", ""]
    assert text.delta(final=True) == ""
    assert text.text == "ďb,d"


def test_b90_the_first_piece_completes_the_character_that_the_prompt_left_open() -> None:
    head = open_character(b"Hi \xe2\x82")
    text = TextAssembler([b"\xac", b"!"], None, head)
    text.push(0)
    assert text.delta() == "€"
    text.push(1)
    assert (text.delta(final=True), text.text, text.split()) == ("!", "€!", (2, ""))


def test_an_open_character_that_nothing_completes_is_not_repeated() -> None:
    text = TextAssembler([b"x"], None, b"\xe2\x82")
    text.push(0)
    assert text.text == "x"


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        (b"", b""),
        (b"abc", b""),
        ("é".encode(), b""),
        (b"a\xc3", b"\xc3"),
        (b"a\xe2\x82", b"\xe2\x82"),
        (b"\xf0\x9f\x98", b"\xf0\x9f\x98"),
        ("😀".encode(), b""),
        (b"\xa9\xa9\xa9\xa9", b""),
    ],
)
def test_open_character(raw: bytes, left: bytes) -> None:
    assert open_character(raw) == left


@given(
    st.lists(st.sampled_from(PIECES), max_size=8),
    st.lists(st.sampled_from(STOPS), max_size=3, unique=True).map(tuple),
)
def test_the_text_ends_before_the_first_stop_of_the_whole(
    pieces: list[bytes], stops: tuple[str, ...]
) -> None:
    text = assembled(pieces, stops)
    data = b"".join(pieces)
    found = first_stop(
        data[: len(data) - len(open_character(data))].decode(errors="replace"), stops
    )
    if found is None:
        assert text.stop is None
        assert text.text == data.decode(errors="replace")
        assert text.split() == (len(pieces), "")
        return
    at, stop, _ = found
    assert (text.text, text.stop) == (data.decode(errors="replace")[:at], stop)
    kept, rest = text.split()
    before = b"".join(pieces[:kept]).decode(errors="replace")
    assert before + rest == text.text
    after = b"".join(pieces[: kept + 1]).decode(errors="replace")
    assert not text.text.startswith(after) or len(after) == len(before), "another could be kept"


@given(
    st.lists(st.sampled_from(PIECES), max_size=10),
    st.lists(st.sampled_from(STOPS), max_size=3).map(tuple),
    st.lists(st.booleans(), min_size=10, max_size=10),
)
def test_streamed_pieces_are_the_text_and_are_never_taken_back(
    pieces: list[bytes], stops: tuple[str, ...], asked: list[bool]
) -> None:
    text = TextAssembler(pieces, Stops(stops) if stops else None)
    streamed = ""
    for token in range(len(pieces)):
        ended = text.push(token)
        if asked[token]:
            streamed += text.delta()
            assert text.text.startswith(streamed)
        if ended:
            break
        data = b"".join(pieces[: token + 1])
        if asked[token] and not any(s.encode()[0] in data for s in stops):
            whole = len(data) - len(open_character(data))
            assert streamed == data[:whole].decode(errors="replace"), "held back for no reason"
    streamed += text.delta(final=True)
    assert streamed == text.text
