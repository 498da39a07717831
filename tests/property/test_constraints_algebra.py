"""The laws of sets of texts, and derivatives against the textbook's constructions."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.constraints import Automaton, algebra
from lmc.constraints.budget import BudgetError
from lmc.constraints.compressed import Edge, compressed
from lmc.constraints.dfa import Dfa
from lmc.constraints.regex import parse
from lmc.constraints.texts import shortest_text
from tests.property.constraints_patterns import patterns

SHORT = ["".join(t) for n in range(5) for t in itertools.product("ab0", repeat=n)]
SETS = patterns(looking=False).map(lambda p: Automaton(parse(p)))
fast = settings(max_examples=60, deadline=None)


def held(automaton: Dfa) -> set[str]:
    return {t for t in SHORT if automaton.matches(t.encode())}


@fast
@given(SETS, SETS)
def test_whole_automata_agree_with_derivatives(first: Automaton, second: Automaton) -> None:
    a, b = first.dfa(), second.dfa()
    assert algebra.union(a, b) is (first | second).dfa()
    assert algebra.intersection(a, b) is (first & second).dfa()
    assert algebra.difference(a, b) is (first - second).dfa()
    assert algebra.complement(a) is (~first).dfa()
    assert algebra.concatenation(a, b) is (first + second).dfa()
    assert (a is b) == first.equivalent(second)
    assert first.includes(second) == algebra.difference(b, a).is_empty()


@fast
@given(SETS, st.integers(0, 3), st.one_of(st.none(), st.integers(0, 2)))
def test_repeats_agree_with_derivatives(item: Automaton, low: int, more: int | None) -> None:
    high = None if more is None else low + more
    assert algebra.repeat(item.dfa(), low, high) is item.repeat(low, high).dfa()
    assert algebra.star(item.dfa()) is item.star().dfa()


@fast
@given(SETS, SETS)
def test_laws(first: Automaton, second: Automaton) -> None:
    a, b = first.dfa(), second.dfa()
    assert algebra.complement(algebra.complement(a)) is a
    assert algebra.intersection(a, b) is algebra.intersection(b, a)
    assert algebra.difference(a, b) is algebra.intersection(a, algebra.complement(b))
    assert algebra.concatenation(a, algebra.empty_text()) is a
    assert algebra.concatenation(algebra.nothing(), a) is algebra.nothing()
    assert algebra.star(algebra.star(a)) is algebra.star(a)


@fast
@given(SETS)
def test_a_whole_automaton_is_what_the_machine_walks(item: Automaton) -> None:
    dfa = item.dfa()
    assert held(dfa) == {t for t in SHORT if item.matches(t)}
    for text in (b"\xff", b"a\x80", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\x80"):
        assert not dfa.matches(text)
        assert not item.matches(text)


@fast
@given(SETS, st.integers(0, 99))
def test_questions_about_a_set_have_true_answers(item: Automaton, seed: int) -> None:
    dfa = item.dfa()
    if dfa.is_empty():
        return
    least, most = dfa.lengths()
    listed = list(itertools.islice(dfa.texts(), 50))
    assert len(listed[0]) == least == len(dfa.shortest()) == len(item.shortest().encode())
    assert all(dfa.matches(t) for t in listed)
    assert len(set(listed)) == len(listed)
    count = dfa.count()
    assert (count is None) == (most is None) == (not dfa.is_finite())
    if count is not None and count < 50:
        assert len(listed) == count
        assert max(map(len, listed)) == most
    text = dfa.sample(random.Random(seed))
    assert dfa.matches(text)
    text.decode()  # what matches is UTF-8


@fast
@given(SETS, SETS)
def test_two_cuts_are_found_if_there_are_two(first: Automaton, second: Automaton) -> None:
    a, b = first.dfa(), second.dfa()
    witness = algebra.two_cuts(a, b)
    ways: dict[str, int] = {}
    for x in held(a):
        for y in held(b):
            ways[x + y] = ways.get(x + y, 0) + 1
    if witness is None:
        assert all(n == 1 for n in ways.values())
        return
    cuts = [i for i in range(len(witness) + 1) if a.matches(witness[:i]) and b.matches(witness[i:])]
    assert len(cuts) > 1
    assert algebra.cuts([a, b], witness) == [max(cuts), len(witness)]


@fast
@given(SETS)
def test_the_compressed_view_is_the_same_automaton(item: Automaton) -> None:
    if item.is_empty():
        return
    view = compressed(item.machine)
    by_source: dict[int, list[Edge]] = {}
    for edge in view.edges:
        by_source.setdefault(edge.source, []).append(edge)

    def walked(text: str) -> bool:
        state = 0
        while text:
            ways = [e for e in by_source.get(state, []) if ord(text[0]) in e.first]
            assert len(ways) <= 1
            if not ways or not text[1:].startswith(ways[0].then):
                return False
            text, state = text[1 + len(ways[0].then) :], ways[0].target
        return state in view.ends

    for text in SHORT:
        assert walked(text) == item.matches(text)


@settings(max_examples=30, deadline=None)
@given(SETS, SETS, SETS, st.integers(0, 99))
def test_the_shortest_end_is_found_by_parts(
    a: Automaton, b: Automaton, c: Automaton, seed: int
) -> None:
    draw = random.Random(seed)
    for item in (
        (a & ~b) + c + (b & c),
        (a - b).repeat(2, 3) | (b & c) + (c - a),
        ((a - c) + b).star() + (c | (a & b) + a),
        ~(a + (b - c)) & (c | b),
    ):
        try:
            dfa = item.dfa(1_000)
        except BudgetError:
            continue
        if dfa.is_empty():
            continue
        machine = item.machine
        assert machine.start is not None
        assert machine.least_bytes(machine.start) == dfa.lengths()[0]
        begun = item.sample(draw, 4).encode()
        for end in range(len(begun) + 1):
            place = machine.run(machine.start, begun[:end])
            rest = machine.least_bytes(place)
            assert rest <= len(begun) - end
            state, inside = divmod(place, machine.nodes)
            if not inside:
                assert len(shortest_text(machine, state).encode()) == rest
