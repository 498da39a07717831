"""Sets of numbers: what a box holds is what its texts say."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.constraints.automaton import Automaton
from lmc.constraints.budget import BudgetError
from lmc.constraints.expression import Rules
from lmc.constraints.json_schema.numbers import ANY_NUMBER, INTEGER, NumberBox, spelled

CENTS = st.integers(-30000, 30000).map(lambda n: Fraction(n, 100))
BOUNDS = st.none() | CENTS
STEPS = st.sampled_from([Fraction(1), Fraction(2), Fraction(7), Fraction(3, 2), Fraction(1, 100)])
BOXES = st.builds(
    NumberBox, BOUNDS, BOUNDS, st.booleans(), st.booleans(), st.none() | STEPS,
    st.frozensets(STEPS, max_size=2), st.booleans(),
)  # fmt: skip


def automaton(box: NumberBox) -> Automaton:
    return Automaton(Rules(spelled(box)))


def written(value: Fraction) -> str:
    return format(Decimal(value.numerator) / Decimal(value.denominator), "f")


@settings(max_examples=150, deadline=None)
@given(BOXES, st.lists(CENTS, max_size=20), st.randoms(use_true_random=False))
def test_texts_of_a_box(box: NumberBox, values: list[Fraction], draw: random.Random) -> None:
    rows = spelled(box)
    found = Automaton(Rules(rows)) if rows else None
    for value in [*values, *(b for b in (box.low, box.high) if b is not None)]:
        holds = box.holds(value)
        if not (box.pointless and value.denominator != 1):
            assert (found is not None and found.matches(written(value))) == holds, value
    if found is not None and not found.is_empty():
        assert not box.is_empty()
        for _ in range(3):
            assert box.holds(Fraction(found.sample(draw, 8)))


@settings(max_examples=150, deadline=None)
@given(BOXES, BOXES, CENTS)
def test_boxes_are_closed(a: NumberBox, b: NumberBox, value: Fraction) -> None:
    assert (a & b).holds(value) == (a.holds(value) and b.holds(value))
    assert any(c.holds(value) for c in a.complement()) != a.holds(value)


@settings(max_examples=100, deadline=None)
@given(BOXES)
def test_emptiness_is_exact_on_a_grid(box: NumberBox) -> None:
    if box.is_empty():
        assert not any(box.holds(Fraction(n, 200)) for n in range(-60000, 60001, 7))


@pytest.mark.parametrize(
    ("box", "right", "wrong"),
    [
        (ANY_NUMBER, ["0", "-0", "1e5", "-1.5E-3", "0.10"], ["01", "1.", ".5", "+1", "1e", "--1"]),
        (INTEGER, ["0", "-7", "7.0", "12"], ["-0", "7.5", "7.00", "1e2", "07"]),
        (NumberBox(low=Fraction(0)), ["0", "0.5", "0.0", "3.10"], ["-1", "-0", "1e3"]),
        (NumberBox.just(Fraction(-2)), ["-2", "-2.0"], ["2", "-2.5", "-2.00"]),
        (NumberBox.just(Fraction("0.00001")), ["0.00001", "1e-05"], ["1e-5", "0.0001"]),
        (NumberBox(Fraction(1, 10), Fraction(3, 10), True, True), ["0.2", "0.10001", "0.29"],
         ["0.1", "0.3", "0.10", "0.300"]),
        (NumberBox(high=Fraction(-5)), ["-5", "-5.0", "-123.4"], ["-4.9", "5", "0"]),
        (NumberBox(step=Fraction(1, 4)), ["0.25", "-1.5", "3", "2.75"], ["0.3", "0.255"]),
    ],
)  # fmt: skip
def test_spelling(box: NumberBox, right: list[str], wrong: list[str]) -> None:
    found = automaton(box)
    assert [found.matches(t) for t in right] == [True] * len(right)
    assert [found.matches(t) for t in wrong] == [False] * len(wrong)


def test_whatever_python_writes_of_an_unbounded_number_is_taken() -> None:
    found = automaton(ANY_NUMBER)
    for value in (0.1, 1e300, -5e-324, 1.5e16, 12345678901234567890):
        assert found.matches(json.dumps(value))


def test_large_steps_are_refused() -> None:
    with pytest.raises(BudgetError):
        spelled(NumberBox(step=Fraction(1_000_003)))
