"""Terms against sets of texts: however they are put together, they mean what they say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.constraints import terms
from lmc.constraints.alphabet import Alphabet
from lmc.constraints.charset import CharSet
from lmc.constraints.derivatives import Derivatives
from lmc.constraints.inclusion import Inclusion
from lmc.constraints.terms import UNBOUNDED, Arena, Kind, Term
from lmc.constraints.widening import Widening

CHARS = "abc"
LONGEST = 5
TEXTS = ["".join(t) for n in range(LONGEST + 1) for t in itertools.product(CHARS, repeat=n)]
ALPHABET = Alphabet([CharSet.chars(c) for c in CHARS])
CLASS = {c: ALPHABET.class_of(ord(c)) for c in CHARS}

Recipe = tuple  # type: ignore[type-arg]


@pytest.fixture(autouse=True, params=[2, 16])
def longest_word(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "_LONGEST_WORD", request.param)


def recipes(*, plain: bool = False) -> st.SearchStrategy[Recipe]:
    atoms = st.one_of(
        st.text(CHARS, max_size=4).map(lambda t: ("text", t)),
        st.sets(st.sampled_from(CHARS)).map(lambda s: ("chars", *sorted(s))),
    )

    def larger(inner: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
        spans = st.sampled_from([(0, None), (1, None), (0, 1), (1, 2), (0, 3), (2, 3), (2, None)])
        options = [
            st.tuples(st.just("cat"), inner, inner),
            st.tuples(st.just("alt"), inner, inner, inner),
            st.tuples(st.just("rep"), inner, spans),
        ]
        if not plain:
            options += [st.tuples(st.just("both"), inner, inner), st.tuples(st.just("not"), inner)]
        return st.one_of(options)

    return st.recursive(atoms, larger, max_leaves=8)


def term_of(arena: Arena, recipe: Recipe) -> Term:
    match recipe:
        case ("text", text):
            return arena.word(tuple(1 << CLASS[c] for c in text), arena.eps)
        case ("chars", *chars):
            return arena.chars(sum(1 << CLASS[c] for c in chars))
        case ("cat", ("text", text), second):
            return arena.word(tuple(1 << CLASS[c] for c in text), term_of(arena, second))
        case ("cat", first, second):
            return arena.cat(term_of(arena, first), term_of(arena, second))
        case ("alt", *arms):
            return arena.alt([term_of(arena, arm) for arm in arms])
        case ("rep", item, (low, high)):
            return arena.rep(term_of(arena, item), low, UNBOUNDED if high is None else high)
        case ("both", *parts):
            return arena.both([term_of(arena, part) for part in parts])
        case ("not", item):
            return arena.neg(term_of(arena, item))
    raise AssertionError(recipe)


def texts_of(recipe: Recipe) -> frozenset[str]:
    """The texts of up to `LONGEST` characters."""
    match recipe:
        case ("text", text):
            return frozenset((text,))
        case ("chars", *chars):
            return frozenset(chars)
        case ("cat", first, second):
            return joined(texts_of(first), texts_of(second))
        case ("alt", *arms):
            return frozenset().union(*map(texts_of, arms))
        case ("rep", item, (low, high)):
            one = texts_of(item)
            found, last = set(), frozenset(("",))
            for count in range((LONGEST + 3 if high is None else high) + 1):
                if count >= low:
                    found |= last
                last = joined(last, one)
            return frozenset(found)
        case ("both", first, second):
            return texts_of(first) & texts_of(second)
        case ("not", item):
            return frozenset(TEXTS) - texts_of(item)
    raise AssertionError(recipe)


def joined(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    return frozenset(a + b for a in first for b in second if len(a) + len(b) <= LONGEST)


def held(derivatives: Derivatives, term: Term) -> Iterator[str]:
    """The texts of a term, found by its derivatives."""
    layer = [("", term)]
    for _ in range(LONGEST + 1):
        after: list[tuple[str, Term]] = []
        for text, at in layer:
            if derivatives.nullable(at):
                yield text
            for mask, target in derivatives.moves(at):
                after += [(text + c, target) for c in CHARS if mask >> CLASS[c] & 1]
        layer = after


@settings(max_examples=150)
@given(recipes())
def test_a_term_holds_the_texts_that_it_is_made_of(recipe: Recipe) -> None:
    derivatives = Derivatives(Arena(ALPHABET))
    term = term_of(derivatives.arena, recipe)
    expected = texts_of(recipe)
    found = list(held(derivatives, term))
    assert sorted(found) == sorted(expected)
    if term.plain and expected:
        assert term.least == min(map(len, expected))


@settings(max_examples=150)
@given(recipes(plain=True), recipes())
def test_what_is_said_to_be_inside_is_inside(first: Recipe, second: Recipe) -> None:
    derivatives = Derivatives(Arena(ALPHABET))
    arena = derivatives.arena
    term, other = term_of(arena, first), term_of(arena, second)
    inclusion = Inclusion(derivatives)
    if inclusion.is_inside(term, other):
        assert texts_of(first) <= texts_of(second)
    assert inclusion.is_inside(term, arena.rep(arena.chars(ALPHABET.full), 0, UNBOUNDED))


@given(st.text(CHARS, min_size=1, max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_a_word_is_one_term_however_it_is_put_together(text: str, cuts: list[int]) -> None:
    arena = Arena(ALPHABET)
    derivatives = Derivatives(arena)
    tail = arena.rep(arena.alt([term_of(arena, ("text", t)) for t in ("ab", "cc")]), 0, 3)

    def word(text: str) -> Term:
        return arena.word(tuple(1 << CLASS[c] for c in text), tail)

    whole = word(text)
    places = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    parts = [term_of(arena, ("text", text[a:b])) for a, b in itertools.pairwise(places)]
    after, before = tail, arena.eps
    for part in reversed(parts):
        after = arena.cat(part, after)
    for part in parts:
        before = arena.cat(before, part)
    assert after is whole
    assert arena.cat(before, tail) is whole
    at = whole
    for count in range(1, len(text) + 1):
        ((_, at),) = derivatives.moves(at)
        assert at is word(text[count:])


def test_many_texts_with_a_long_beginning_in_common_are_told_apart_late() -> None:
    arena = Arena(ALPHABET)
    derivatives = Derivatives(arena)
    loop = arena.rep(arena.chars(1 << CLASS["b"]), 0, UNBOUNDED)
    end = [term_of(arena, ("text", t)) for t in ("a", "ca", "cca", "ccca")]
    common = arena.eps
    texts = []
    for _ in range(50):
        common = arena.cat(term_of(arena, ("text", "ac")), arena.cat(loop, common))
    texts = [arena.cat(common, e) for e in end]
    before = len(arena)
    union = arena.alt(texts)
    assert len(arena) - before < 8  # and not some for each place of the common beginning
    ((_, after),) = derivatives.moves(union)
    assert after.kind == Kind.CAT


@pytest.mark.parametrize(
    ("member", "items", "inside"),
    [
        (("rep", ("chars", "a", "b"), (0, 3)), ("chars", "a", "b", "c"), True),
        (("cat", ("text", "ab"), ("rep", ("text", "cab"), (2, 3))), ("chars", *CHARS), True),
        (("cat", ("text", "ab"), ("rep", ("text", "cab"), (2, None))), ("chars", "a", "b"), False),
        (("rep", ("text", "ab"), (0, None)), ("text", "ab"), True),
        (("rep", ("text", "ab"), (0, None)), ("text", "abab"), False),
        (("rep", ("text", "abab"), (0, None)), ("text", "ab"), True),
        (("alt", ("text", "ab"), ("text", "c")), ("alt", ("text", "c"), ("text", "ab")), True),
        (("text", "a"), ("text", "ab"), False),
    ],
)  # fmt: skip
def test_inclusion_in_repeated_items(member: Recipe, items: Recipe, inside: bool) -> None:
    derivatives = Derivatives(Arena(ALPHABET))
    arena = derivatives.arena
    loop = arena.rep(term_of(arena, items), 0, UNBOUNDED)
    assert Inclusion(derivatives).is_inside(term_of(arena, member), loop) is inside


@pytest.mark.parametrize("high", [3, 4, 5, 6])
def test_a_counter_allows_the_shortest_text_or_it_does_not(high: int) -> None:
    derivatives = Derivatives(Arena(ALPHABET))
    arena = derivatives.arena
    member = term_of(arena, ("cat", ("text", "abc"), ("rep", ("chars", "a", "b"), (2, None))))
    short = arena.both((member, arena.rep(arena.chars(ALPHABET.full), 0, high)))
    widening = Widening(derivatives, lambda t: True, 256)
    assert widening.fits(short) is (high >= 5)


def test_what_follows_wide_unions_is_made_up_to_so_many_arms() -> None:
    derivatives = Derivatives(Arena(ALPHABET))
    arena = derivatives.arena
    texts = ["".join(t) for t in itertools.product(CHARS, repeat=3)]
    loops = [arena.rep(term_of(arena, ("text", "a" + t)), 1, UNBOUNDED) for t in texts]
    union = arena.alt(loops)
    assert union.kind == Kind.ALT
    derivatives.make_wide(2, len(union.args) - 1)
    assert union.derived is None
    derivatives.make_wide(len(union.args) + 1, 1000)
    assert union.derived is None
    derivatives.make_wide(2, 1000)
    assert all(t.derived is not None for t in arena.unions(2))
