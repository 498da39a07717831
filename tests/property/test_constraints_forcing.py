"""What is forced is what the tokenizer does; what it does is always allowed."""

from __future__ import annotations

import re
from collections.abc import Callable

from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from lmc.constraints import Automaton, TokenMatcher, Vocabulary
from lmc.constraints.budget import BudgetError
from lmc.constraints.regex import parse
from tests.unit.constraints.small_tokenizers import VOCABULARIES, small_vocabulary

STATES = 2_000  # more than 60 texts of these patterns need

# Pieces at which tokenizers are known to behave in their own ways.
PIECES = [
    "ha", "the", "name", '"', '": "', '", "', " ", "  ", "\n", "\n    ", "{", "}", "the cat", "ing",
    "order", "orderId", "123", "12", ".", "...", "é", "日本", "=", "- ", "'s", "'ll", "don", "'",
    "\t", "\t\t", "_", "http", "://", "😀", "a", "b", "ab",
]  # fmt: skip


def finite() -> st.SearchStrategy[str]:
    """Patterns of finitely many texts, rich in forced ones."""
    leaves = st.one_of(
        st.sampled_from(PIECES).map(re.escape),
        st.sampled_from(["[ab]", "[0-9]", "[a-c ]", "[ \\n]", '["x]', "[,.]"]),
    )

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        joined: Callable[[list[str]], str] = "".join
        return st.one_of(
            st.lists(inner, min_size=2, max_size=4).map(joined),
            st.lists(inner, min_size=2, max_size=3).map(lambda arms: f"(?:{'|'.join(arms)})"),
            st.tuples(inner, st.sampled_from(["?", "{2,6}", "{2}", "{1,3}"])).map(
                lambda t: f"(?:{t[0]}){t[1]}"
            ),
        )

    return st.recursive(leaves, larger, max_leaves=8)


def check(pattern: str, vocabulary: Vocabulary) -> None:
    automaton = Automaton(parse(pattern))
    try:
        whole = automaton.dfa(STATES)
    except BudgetError:
        reject()  # of more texts than are looked at
    count = whole.count()
    assume(count is not None and count <= 60)
    cut = {t: vocabulary.encode(t) for t in map(bytes.decode, whole.texts())}
    matcher = TokenMatcher(automaton, vocabulary)
    for text, tokens in cut.items():
        matcher.reset()
        for at, token in enumerate(tokens):
            forced = matcher.forced()
            for other, others in cut.items():
                if others[:at] == tokens[:at]:
                    assert others[at : at + len(forced)] == forced, (pattern, text, at, other)
            assert matcher.mask()[token], (pattern, text, at)
            matcher.advance(token)
        assert matcher.is_complete()


@settings(max_examples=250, deadline=None)
@given(finite(), st.sampled_from(VOCABULARIES))
def test_forced_tokens_begin_every_text_that_can_follow(pattern: str, kind: str) -> None:
    check(pattern, small_vocabulary(kind))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["ha", "aha", "ab", " a", "\n ", "12", "''", "_a", "..", "the "]),
    st.integers(1, 4),
    st.integers(0, 5),
    st.sampled_from(["", "x", "!", " ", '"']),
    st.sampled_from(VOCABULARIES),
)
def test_repeats_are_never_cut_where_the_tokenizer_would_not(
    item: str, low: int, more: int, end: str, kind: str
) -> None:
    pattern = f"(?:{re.escape(item)}){{{low},{low + more}}}{re.escape(end)}"
    check(pattern, small_vocabulary(kind))
