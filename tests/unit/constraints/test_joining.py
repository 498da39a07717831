"""Templates: the joined automaton, and which gen wrote which part of a text."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.constraints import automaton_of
from lmc.constraints.joining import Piece, cut, held_back, joined
from tests.unit.constraints.small_tokenizers import small_vocabulary

PATTERNS = ("[ab]*", "a|ab", "(?:ab)+", "b?", "[^a]+", "é|éa", "", "a{2,3}")
BEHIND = ("", "a", "b", "ab", "é", ", ")


def _cut(patterns: list[str], behind: list[str], text: str, *, complete: bool) -> list[str]:
    automata = [automaton_of("regex", p) for p in patterns]
    raw = text.encode()
    pieces = cut(automata, behind, raw, complete=complete)
    return [raw[p.begin : p.end].decode() for p in pieces]


def _longest_first(patterns: list[str], behind: list[str], text: str) -> list[str] | None:
    """What the gens wrote, found by trying every cut; None if the template does not match."""
    if not patterns:
        return [] if not text else None
    for end in range(len(text), -1, -1):
        if re.fullmatch(patterns[0], text[:end]) and text[end:].startswith(behind[0]):
            rest = _longest_first(patterns[1:], behind[1:], text[end + len(behind[0]) :])
            if rest is not None:
                return [text[:end], *rest]
    return None


parts = st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(BEHIND)), min_size=1,
                 max_size=4)  # fmt: skip


@given(parts, st.text(alphabet="abé, ", max_size=9), st.randoms(use_true_random=False))
def test_every_text_is_cut_as_trying_all_cuts_says(
    parts: list[tuple[str, str]], text: str, draw: random.Random
) -> None:
    patterns, behind = [p for p, _ in parts], [b for _, b in parts]
    whole = joined([automaton_of("regex", p) for p in patterns], behind)
    for one in (text, whole.sample(draw)):
        wanted = _longest_first(patterns, behind, one)
        assert whole.matches(one) == (wanted is not None)
        if wanted is not None:
            assert _cut(patterns, behind, one, complete=True) == wanted
        else:
            with pytest.raises(ValueError, match="not what the template matches"):
                _cut(patterns, behind, one, complete=True)


@given(parts, st.randoms(use_true_random=False), st.data())
def test_a_beginning_is_cut_too(
    parts: list[tuple[str, str]], draw: random.Random, data: st.DataObject
) -> None:
    patterns, behind = [p for p, _ in parts], [b for _, b in parts]
    automata = [automaton_of("regex", p) for p in patterns]
    text = joined(automata, behind).sample(draw)
    raw = text[: data.draw(st.integers(0, len(text)))].encode()
    pieces = cut(automata, behind, raw, complete=False)
    at = 0
    for nth, piece in enumerate(pieces):
        assert at <= piece.begin <= piece.end <= len(raw)
        own = raw[piece.begin : piece.end].decode()
        if piece.complete:
            assert automata[nth].matches(own)
            behind_it = raw[piece.end :][: len(behind[nth].encode())]
            assert behind[nth].encode().startswith(behind_it)
            at = min(piece.end + len(behind[nth].encode()), len(raw))
        else:
            assert piece.end == len(raw)
            assert all(p == Piece(len(raw), len(raw), False) for p in pieces[nth + 1 :])
            break


def test_a_text_that_ends_inside_a_character() -> None:
    automata = [automaton_of("regex", "[éa]+"), automaton_of("regex", "b")]
    pieces = cut(automata, [".", ""], "aé".encode()[:2], complete=False)
    assert pieces == [Piece(0, 2, False), Piece(2, 2, False)]


def test_a_template_of_many_gens() -> None:
    automata = [automaton_of("regex", "[0-9]{1,2}")] * 300
    text = ";".join(str(n % 90) for n in range(300))
    pieces = cut(automata, [*[";"] * 299, ""], text.encode(), complete=True)
    assert [text[p.begin : p.end] for p in pieces] == text.split(";")
    assert joined(automata, [*[";"] * 299, ""]).matches(text)


def test_gens_that_cannot_be_told_apart_do_not_take_for_ever() -> None:
    automata = [automaton_of("regex", "a*")] * 6
    pieces = cut(automata, [""] * 6, b"a" * 400, complete=True)
    assert [p.end - p.begin for p in pieces] == [400, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="not what"):
        cut(automata, [""] * 6, b"a" * 200 + b"b", complete=True)


@pytest.mark.parametrize("name", ["gpt2", "llama3"])
@given(
    st.sampled_from(["Answer:", "Answer: ", 'say "', "the ", "order", "a  ", "x", "é"]),
    st.sampled_from(["[a-z]+", " ?[a-z]+", "yes|no", "[0-9]{2}", '"|,|: ', "Id|Name"]),
    st.randoms(use_true_random=False),
)
def test_what_a_longer_token_could_run_over_is_held_back(
    name: str, text: str, pattern: str, draw: random.Random
) -> None:
    known = small_vocabulary(name)
    automaton = automaton_of("regex", pattern)
    tokens = known.encode(text)
    held = held_back([known.token_bytes[t] for t in tokens], automaton, known)
    kept = tokens[: len(tokens) - held]
    boundaries = {len(b"".join(known.token_bytes[t] or b"" for t in tokens[:n]))
                  for n in range(len(tokens))}  # fmt: skip
    for _ in range(5):
        whole = known.encode(text + automaton.sample(draw))
        at, end = 0, len(text.encode())
        for token in whole:
            after = at + len(known.token_bytes[token] or b"")
            if at < end < after and at in boundaries:  # it runs over the end of the text
                assert len(b"".join(known.token_bytes[t] or b"" for t in kept)) <= at
            at = after


def test_nothing_is_held_back_where_nothing_runs_over() -> None:
    known = small_vocabulary("gpt2")
    tokens = [known.token_bytes[t] for t in known.encode('{"name": ')]
    assert held_back(tokens, automaton_of("regex", "#+"), known) == 0
    assert held_back([], automaton_of("regex", "a"), known) == 0
    assert held_back([None], automaton_of("regex", "a"), known) == 0
