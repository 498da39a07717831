"""Tables of token classes: the masks and steps of matchers, dense."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from lmc.constraints import TokenMatcher, Vocabulary, automaton_of
from lmc.constraints.budget import BudgetError
from lmc.constraints.token_classes import kept, token_classes
from lmc.errors import ConstraintError
from tests.unit.constraints.small_tokenizers import VOCABULARIES, small_vocabulary

PATTERNS = (
    r'\{"name": "[A-Za-z ]{1,9}", "age": \d{1,3}\}',
    r"(?:ha){2,6}|hah",
    r"[^\s]*é?",
    r"(?=.*a)[ab]{3,5}(?<!bb)",
    r"\w+(?: \w+)*[.!]",
)


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_walks_agree_with_the_matcher(kind: str, pattern: str) -> None:
    vocabulary = small_vocabulary(kind)
    automaton = automaton_of("regex", pattern)
    table = token_classes(automaton, vocabulary)
    draw = random.Random(pattern)
    ends = list(vocabulary.eos)
    for _ in range(8):
        matcher, state = TokenMatcher(automaton, vocabulary), 0
        for _ in range(30):
            wanted = matcher.mask()
            assert table.accepting[state] == matcher.is_complete()
            found = table.mask(state)
            found[ends] = table.accepting[state]
            assert (found == wanted).all()
            choice = [t for t in np.flatnonzero(wanted).tolist() if t not in ends]
            if not choice:
                break
            token = draw.choice(choice)
            matcher.advance(token)
            state = table.step(state, token)
    assert table.next.shape[1] < len(vocabulary) / 3
    assert (table.next[:, 0] == -1).all()


def test_what_the_vocabulary_cannot_spell() -> None:
    encode = lambda text: [0]  # noqa: E731 - never asked
    vocabulary = Vocabulary([b"a", b"ab", b"c", None], [3], encode)
    table = token_classes(automaton_of("regex", "a(?:bd|c)?"), vocabulary)
    assert table.mask(0).tolist() == [True, False, False, False]  # `ab` leads to a dead end
    assert table.class_of[3] == 0
    with pytest.raises(ConstraintError, match="cannot spell"):
        token_classes(automaton_of("regex", "x+"), vocabulary)


def test_what_has_no_table() -> None:
    vocabulary = small_vocabulary("gpt2")
    with pytest.raises(ConstraintError, match="not an automaton alone"):
        token_classes(automaton_of("json_schema", {"type": "object"}), vocabulary)
    with pytest.raises(BudgetError):
        token_classes(automaton_of("regex", "[a-z]{1,20000}"), vocabulary)


def test_they_are_kept_in_a_folder(tmp_path: Path) -> None:
    vocabulary = small_vocabulary("gpt2")
    automaton = automaton_of("regex", PATTERNS[0])
    made = kept(tmp_path / "tables", automaton, vocabulary)
    (file,) = (tmp_path / "tables").iterdir()
    stamp = file.stat().st_mtime_ns
    again = kept(tmp_path / "tables", automaton_of("regex", PATTERNS[0]), vocabulary)
    assert file.stat().st_mtime_ns == stamp
    for name in ("class_of", "next", "accepting"):
        assert (getattr(made, name) == getattr(again, name)).all()
    kept(tmp_path / "tables", automaton, small_vocabulary("llama3"))
    assert len(list((tmp_path / "tables").iterdir())) == 2
    file.write_bytes(b"damaged")
    assert (kept(tmp_path / "tables", automaton, vocabulary).next == made.next).all()
    assert file.stat().st_size > 100
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    assert (kept(nowhere, automaton, vocabulary).next == made.next).all()
