"""Rules that name each other: what is known of them, and the texts they stand for."""

from __future__ import annotations

import pytest

from lmc.constraints.automaton import Automaton
from lmc.constraints.charset import CharSet
from lmc.constraints.expression import (
    EPSILON,
    Alt,
    Both,
    Chars,
    Except,
    Expression,
    Not,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
)
from lmc.constraints.rules import Fact, facts_of
from lmc.errors import ConstraintError

BRACKETS = Rules((Alt((EPSILON, Seq((Text("("), Ref(0), Text(")"), Ref(0))))),))


def facts(*items: Expression) -> list[Fact]:
    return facts_of(items, lambda _: 1, lambda _: False)


def test_brackets_match_at_any_depth() -> None:
    found = Automaton(BRACKETS)
    for text in ("", "()", "(()())", "(" * 200 + ")" * 200):
        assert found.matches(text)
    for text in ("(", ")", "(()", "())"):
        assert not found.matches(text)
    assert Automaton.from_json(found.to_json()) == found
    assert found.shortest() == ""


def test_rules_combine_with_other_sets() -> None:
    short = Repeat(Chars(CharSet.chars("()")), 0, 6)
    found = Automaton(Both((BRACKETS, short, Not(Text("()")))))
    assert [found.matches(t) for t in ("", "()", "(())", "()()()", "(((())))")] == [
        True, False, True, True, False,
    ]  # fmt: skip


def test_rules_are_seen_through_when_the_least_is_asked() -> None:
    found = Automaton(Rules((Seq((Text("a"), Ref(1))), Alt((Ref(2), Seq((Text("é"), Ref(1))))),
                             Repeat(Text("xy"), 2, None))))  # fmt: skip
    assert found.shortest() == "axyxy"
    machine = found.machine
    assert machine.least_bytes(machine.start or 0) == 5


def test_a_repeated_rule_is_not_every_text() -> None:
    for number in range(1, 8):  # the number of a name was once taken for a set of characters
        items: list[Expression] = [Ref(1)] + [
            Seq((Text("c"), Ref(i + 1))) for i in range(1, number)
        ]
        items.append(Seq((Text("c"), Repeat(Ref(number), 0, None))))
        assert not Automaton(Rules(tuple(items))).matches("c" * number + "s")


@pytest.mark.parametrize(
    "items",
    [
        (Ref(0),),
        (Alt((Text("x"), Seq((Ref(0), Text("y"))))),),
        (Seq((Repeat(Ref(1), 0, 1), Ref(0))), Text("b")),
        (Ref(1), Seq((EPSILON, Ref(0), Text("z")))),
    ],
)
def test_rules_must_not_begin_with_themselves(items: tuple[Expression, ...]) -> None:
    with pytest.raises(ConstraintError, match="begins with itself"):
        facts(*items)


def test_rules_without_texts_are_empty() -> None:
    assert facts(Seq((Text("a"), Ref(0))))[0].least is None
    assert Automaton(Rules((Alt((Text("b"), Ref(1))), Seq((Text("a"), Ref(1)))))).shortest() == "b"
    assert Automaton(Rules((Seq((Text("a"), Ref(0))),))).is_empty()


def test_facts() -> None:
    conjunction = Both((Text("a"), Not(Text("b"))))
    found = facts(Seq((Ref(1), Text("ab"))), Repeat(Ref(2), 2, None), Alt((Text("x"), conjunction)))
    assert [f.plain for f in found] == [False, False, False]
    assert [f.empty_text for f in found] == [False, False, False]
    assert facts(Repeat(Ref(1), 3, 5), Text("ab"))[0] == Fact(False, 6, True)
    with pytest.raises(ConstraintError, match="inside of a conjunction"):
        facts(Both((Ref(0), Text("a"))))


def test_all_texts_but_some() -> None:
    letters = Chars(CharSet.of([(ord("a"), ord("z"))]))
    found = Automaton(Except(letters, Text("\\n"), ("", "ab", "abc", "x")))
    for text in ("a", "b", "abd", "abcd", "y", "xx", "\\n", "ab\\n", "x\\n"):
        assert found.matches(text), text
    for text in ("", "ab", "abc", "x", "A", "\\"):
        assert not found.matches(text), text
    assert Automaton.from_json(found.to_json()) == found
    assert len(found.shortest()) == 1
