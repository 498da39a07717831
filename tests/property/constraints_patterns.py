"""Regular expressions out of hypothesis, and what they are made of."""

from __future__ import annotations

from hypothesis import strategies as st

ATOMS = [
    "a", "b", "A", "0", "é", "-", "_", " ", ".", "ab", "ba", r"\w", r"\W", r"\d", r"\s", r"\S",
    r"\n", r"\x61", "[ab]", "[^a]", "[a-c0]", r"[\w-]", r"[^\s\d]", "[é-ü]",
]  # fmt: skip
PLACES = ["^", "$", r"\b", r"\B", r"\A", r"\Z"]
REPEATS = ["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "{0}", "{0,1}"]
FLAGS = ["i", "s", "m", "a", "is", "-i", "ms", "x"]
ALPHABET = "abA0é- _\n"


def patterns(*, looking: bool = True, atomic: bool = False) -> st.SearchStrategy[str]:
    """Patterns of Python's `re`.

    Args:
        looking: with anchors and look-around.
        atomic: with atomic groups and possessive repeats.
    """
    modes = ["", "", "?", "+"] if atomic else ["", "", "?"]

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        options = [
            st.lists(inner, max_size=3).map("".join),
            st.lists(st.one_of(inner, st.just("")), min_size=1, max_size=3).map(
                lambda arms: f"(?:{'|'.join(arms)})"
            ),
            st.tuples(inner, st.sampled_from(REPEATS), st.sampled_from(modes)).map(
                lambda t: f"(?:{t[0]}){t[1]}{t[2]}"
            ),
            st.tuples(st.sampled_from(FLAGS), inner).map(lambda t: f"(?{t[0]}:{t[1]})"),
        ]
        if looking:
            kinds = st.sampled_from(["(?=", "(?!", "(?<=", "(?<!"])
            options.append(st.tuples(kinds, inner).map(lambda t: f"{t[0]}{t[1]})"))
        if atomic:
            options.append(inner.map(lambda p: f"(?>{p})"))
        return st.one_of(options)

    leaves = ATOMS + (PLACES if looking else [])
    return st.recursive(st.sampled_from(leaves), larger, max_leaves=8)


def texts() -> st.SearchStrategy[str]:
    """Short texts over the characters that the patterns speak of."""
    return st.text(ALPHABET, max_size=7)
