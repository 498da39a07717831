"""Automata as values: storing, combining, whole automata and their algebra."""

from __future__ import annotations

import gc
import itertools
import json
import random
import subprocess
import sys

import numpy as np
import pytest

from lmc.constraints import Automaton, algebra, automaton_of, lengths, machine
from lmc.constraints.compressed import compressed
from lmc.constraints.description import fixed_in
from lmc.constraints.dfa import made
from lmc.constraints.drawing import drawn
from lmc.constraints.minimise import _compiled, _refine, equal_states
from lmc.errors import ConstraintError, PlanError


def regex(pattern: str) -> Automaton:
    return automaton_of("regex", pattern)


def test_an_automaton_survives_json() -> None:
    automaton = regex(r"(?i)straße|[^\W\d]{2,300}(?<!x)(?=!)!|a*+b|(?!c)\p{Lu}")
    again = Automaton.from_json(json.loads(json.dumps(automaton.to_json())))
    assert again == automaton
    assert hash(again) == hash(automaton)
    assert again.machine is automaton.machine
    assert again.matches("STRASSE") == automaton.matches("STRASSE")


A = ["chars", [97, 98]]


@pytest.mark.parametrize("data", [
    {}, {"version": 0}, {"version": 1},
    *({"version": 1, "nodes": nodes} for nodes in (
        [], {}, [[]], [7], [["seq", 3]], [["seq", 0]], [A, ["seq", -1]], [A, ["seq", True]],
        [["what"]], [["chars"]], [["chars", [97]]], [["chars", [98, 97]]], [["chars", [-1, 5]]],
        [["chars", [5, 2_000_000]]], [["chars", [0xD800, 0xD801]]], [["chars", "####"]],
        [["chars", "AAAA"]], [["text", 7]], [["text", "\ud800"]], [["text", "a", "b"]],
        [A, ["repeat", 0, None, None, False]], [A, ["repeat", 0, -1, None, False]],
        [A, ["repeat", 0, 2, 1, False]], [A, ["repeat", 0, 0, 1.5, False]],
        [A, ["repeat", 0, 0, 1, "no"]], [A, ["repeat", 0, 0, 10**12, False]], [A, ["look", 0]],
        [A, ["look", 0, 1, False]], [A, ["not"]], [["ref", 0]], [["rules"]],
        [["ref", 2], ["rules", 0]], [["ref", 0], ["not", 0], ["rules", 1]],
        [["text", "a"], ["except", 0, 0, "a"]], [A, ["except", 0, 0, "b"]], [A, ["except", 0]],
    )),
])  # fmt: skip
def test_damaged_data_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        Automaton.from_json(data)


def test_running_a_stored_automaton_loads_no_parser() -> None:
    data = json.dumps(regex(r"\w+@(?=x)x").to_json())
    code = f"""
import json, sys
from lmc.constraints import Automaton, TokenMatcher, Vocabulary
every = [bytes([b]) for b in range(256)]
vocabulary = Vocabulary([*every, None], [256], lambda text: list(text.encode()))
matcher = TokenMatcher(Automaton.from_json(json.loads({data!r})), vocabulary)
matcher.advance(97); matcher.mask(); matcher.forced()
bad = {{"lark", "torch", "transformers", "numba"}} & set(sys.modules)
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_sets_of_texts_combine() -> None:
    a, b = regex("^[ab]+$"), regex(r"\Aa.{0,2}(?!x)")
    texts = ["".join(t) for n in range(4) for t in itertools.product("abx", repeat=n)]

    def held(automaton: Automaton) -> set[str]:
        return {t for t in texts if automaton.matches(t)}

    assert held(a | b) == held(a) | held(b)
    assert held(a & b) == held(a) & held(b)
    assert held(a - b) == held(a) - held(b)
    assert held(~a) == set(texts) - held(a)
    assert held(a + b) == {x + y for x in held(a) for y in held(b) if len(x + y) < 4}
    assert held(b.repeat(0, 2)) == {""} | held(b) | {
        x + y for x in held(b) for y in held(b) if len(x + y) < 4
    }


def test_anchors_of_an_operand_look_no_further_than_it() -> None:
    line = regex(r"^\bab\b$(?<=^ab)")
    assert (line + line).matches("abab")
    assert line.star().matches("ababab")
    assert not (line + line).matches("ab")


def test_equal_sets_are_recognized_however_they_are_written() -> None:
    assert regex("(?:ab|ac)*").equivalent(regex("(?:a[bc])*"))
    assert regex(r"(?!x)\w").equivalent(regex(r"[^\Wx]"))
    assert not regex("a+").equivalent(regex("a*"))
    assert regex("a*").includes(regex("a{3}"))
    assert regex("(?:ab|ac)*").dfa() is regex("(?:a[bc])*").dfa()


def test_the_shortest_text_and_random_ones_match() -> None:
    draw = random.Random(0)
    for pattern in [r"\d{3,}x|é+", r"(?!a)[a-c]{2}", r"(?=.*b)[a-z]{4}", "[^\x00-\x7f]{2}", ""]:
        automaton = regex(pattern)
        assert automaton.matches(automaton.shortest())
        least, _ = automaton.dfa().lengths()
        assert len(automaton.shortest().encode()) == least
        for _ in range(20):
            assert automaton.matches(automaton.sample(draw, 6))
    with pytest.raises(ConstraintError, match="nothing can match"):
        (regex("a") & regex("b")).shortest()


def test_choices_are_just_these_texts() -> None:
    automaton = automaton_of("choices", ["yes", "yesterday", "", "no", "né", "no"])
    assert sorted(t.decode() for t in automaton.dfa().texts()) == [
        "", "no", "né", "yes", "yesterday",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("abc", "a list"),
        ([], "no choices"),
        ([1], "a choice is 1, which is no text"),
        (["\ud800"], "no valid text"),
    ],
)
def test_choices_that_are_none_are_refused(source: object, problem: str) -> None:
    with pytest.raises(ConstraintError, match=problem):
        automaton_of("choices", source)


def test_ten_thousand_choices_are_no_burden() -> None:
    texts = [f"value {n * 7919 % 100_003:06}" for n in range(10_000)]
    automaton = automaton_of("choices", texts)
    assert automaton.matches(texts[77])
    assert not automaton.matches("value x")
    assert len(automaton.machine) < 100


def test_unknown_kinds_and_those_to_come_are_refused() -> None:
    with pytest.raises(ConstraintError, match="no kind of constraint 'xml'"):
        automaton_of("xml", "")
    with pytest.raises(ConstraintError, match="is a text, not int"):
        automaton_of("regex", 3)


# -- whole automata ------------------------------------------------------------------------------


def test_questions_about_whole_sets() -> None:
    finite = regex("(?:a|bc){1,3}").dfa()
    assert finite.is_finite()
    assert finite.count() == 14
    assert finite.lengths() == (1, 6)
    texts = list(finite.texts())
    assert len(set(texts)) == 14
    assert texts == sorted(texts, key=lambda t: (len(t), t))
    endless = regex("a+b").dfa()
    assert not endless.is_finite()
    assert endless.count() is None
    assert endless.lengths() == (2, None)
    assert list(itertools.islice(endless.texts(), 3)) == [b"ab", b"aab", b"aaab"]
    assert endless.matches(endless.sample(random.Random(1), 9))
    assert algebra.nothing().is_empty()
    assert list(algebra.nothing().texts()) == []
    for ask in ("shortest", "lengths"):
        with pytest.raises(ConstraintError, match="empty set"):
            getattr(algebra.nothing(), ask)()


def test_minimal_automata_are_minimal() -> None:
    assert len(regex("(?:abc|xbc|ybc)").dfa()) == 4
    assert len(regex("[a-z]{0,300}").dfa()) == 301
    assert len(algebra.nothing()) == 1
    assert len(algebra.empty_text()) == 1
    assert regex("é").dfa().matches("é".encode())


def test_states_beyond_the_budget_are_refused() -> None:
    with pytest.raises(ConstraintError, match="more than 100 states"):
        regex(".*a.{12}").dfa(most=100)


def test_hopcroft_agrees_with_refining_round_by_round() -> None:
    draw = np.random.default_rng(0)
    for _ in range(60):
        states, classes = int(draw.integers(1, 25)), int(draw.integers(1, 4))
        table = draw.integers(0, states, (states, classes)).astype(np.int32)
        accepting = draw.random(states) < 0.3
        block = accepting.astype(int).tolist()
        while True:
            keys = [(block[s], *(block[t] for t in table[s])) for s in range(states)]
            names = {k: i for i, k in enumerate(dict.fromkeys(keys))}
            after = [names[k] for k in keys]
            if len(set(after)) == len(set(block)):
                break
            block = after
        found = equal_states(table, accepting).tolist()
        pairs = itertools.combinations(range(states), 2)
        assert all((found[s] == found[t]) == (block[s] == block[t]) for s, t in pairs)


@pytest.mark.slow
def test_the_compiled_minimisation_is_the_same() -> None:
    order = np.array([[0, 1, 2]], dtype=np.int32)
    counts = np.array([[0, 1, 2, 3]], dtype=np.int32)
    accepting = np.array([1, 0, 0], dtype=np.int32)
    compiled = _compiled()
    assert compiled is not None
    assert list(compiled(order, counts, accepting)) == list(
        _refine(order.tolist(), counts.tolist(), accepting.tolist())
    )


def test_a_concatenation_that_can_be_cut_in_two_ways_is_found() -> None:
    number, word, quote = regex("[0-9]+").dfa(), regex("[a-z]+").dfa(), regex('", "').dfa()
    assert algebra.two_cuts(number, word) is None
    assert algebra.two_cuts(word, quote) is None
    witness = algebra.two_cuts(word, regex("[a-c]x").dfa())
    assert witness is None  # a word can go on, but then no letter of `[a-c]x` is left
    doubtful = algebra.two_cuts(number, regex("[0-9a]+").dfa())
    assert doubtful is not None
    ways = [
        i
        for i in range(len(doubtful) + 1)
        if number.matches(doubtful[:i]) and regex("[0-9a]+").dfa().matches(doubtful[i:])
    ]
    assert len(ways) > 1


def test_a_text_is_cut_into_its_parts() -> None:
    parts = [regex(p).dfa() for p in ['\\{"a": "', r"[\w ,]{1,9}", '", "b": ', "[0-9]+", "}"]]
    text = b'{"a": "x, y", "b": 12}'
    assert algebra.cuts(parts, text) == [7, 11, 19, 21, 22]
    assert algebra.cuts(parts, b"nothing like it") is None
    assert algebra.cuts([regex("a*").dfa(), regex("a*").dfa()], b"aaa") == [3, 3]


def test_the_compressed_view_joins_what_is_forced() -> None:
    view = compressed(regex(r'\{"name": "[a-zé]+", "ok": (?:true|false)\}').machine)
    assert drawn(view).splitlines() == [
        '0 -- "{"name": "" --> 1',
        "1 -- [a-zé] --> 2",
        '2 -- "", "ok": " --> 3',
        "2 -- [a-zé] --> 2",
        '3 -- "false}" --> 4*',
        '3 -- "true}" --> 4*',
    ]
    assert drawn(compressed(regex("").machine)) == "0* (nothing follows)"
    assert drawn(compressed(regex("[ab]cd").machine)) == '0 -- [ab], then "cd" --> 1*'


def test_the_compressed_view_is_cut_where_it_is_told() -> None:
    view = compressed(regex("(?:[ab][cd]){9}").machine, 4)
    assert len(view.edges) == 4
    assert view.unfinished == {4}
    assert drawn(view).splitlines()[-1] == "... and more from 4"
    assert not compressed(regex("[ab]{4}").machine, 4).unfinished


def test_classes_are_written_short() -> None:
    shown = {
        ".": r"[^\n]",
        "(?s:.)": "any character",
        r'[^"\\]': r'[^"\\]',
        "[-a^]": r"[\-\^a]",
        "[a-c\u00e9\x07]": r"[\x07a-cé]",
    }
    for pattern, label in shown.items():
        assert drawn(compressed(regex(pattern).machine)) == f"0 -- {label} --> 1*"


def test_how_much_is_fixed_counts_bytes() -> None:
    found = fixed_in(regex("é[ab]cd?"))
    assert (found.fixed, found.length) == (3, 4)
    assert (round(found.least, 2), found.most) == (0.6, 0.75)
    assert fixed_in(regex("")).length == 0


def test_equal_whole_automata_are_one_object() -> None:
    one = made(
        np.zeros(256, dtype=np.uint8),
        np.array([[1], [2], [1]], dtype=np.int32),
        np.array([True, True, True]),
    )
    two = made(np.zeros(256, dtype=np.uint8), np.array([[0]], dtype=np.int32), np.array([True]))
    assert one is two


def test_many_words_are_one_set_however_they_are_written() -> None:
    rng = random.Random(5)
    texts = ["", "é", *("".join(rng.choices("abé", k=rng.randint(1, 7))) for _ in range(400))]
    many = automaton_of("choices", texts)
    tree = automaton_of("regex", "|".join(sorted(set(texts))))
    assert many.equivalent(tree)
    assert Automaton.from_json(json.loads(json.dumps(many.to_json()))) == many
    assert not (many - automaton_of("choices", texts[:300])).is_empty()
    assert all(many.matches(text) for text in texts)
    assert not many.matches("aéaéaéaéa")
    damaged = many.to_json()
    damaged["nodes"] = [["words", "b", "a"]]
    with pytest.raises(PlanError, match="damaged"):
        Automaton.from_json(damaged)


def test_an_automaton_that_nobody_holds_goes_without_a_collection() -> None:
    automaton = automaton_of("regex", "(?:never|seen)*before[0-9]{2,50}")
    start = automaton.machine.start
    assert start is not None
    automaton.machine.widened(automaton.machine.run(start, b"before1"), 16)
    term = automaton.machine._terms[1]
    gc.collect()
    gc.disable()
    try:
        del automaton
        assert term.derived is None
        assert term.args == ()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "(?:a" * 1000 + ")?" * 1000),
        ("stop_regex", "b" + "(?:a" * 1000 + ")?" * 1000),
        ("json_schema", '{"anyOf": [' * 20_000 + "true" + "]}" * 20_000),
        ("ebnf", "start: " + "(" * 2000 + '"a"' + ")" * 2000),
    ],
)
def test_what_is_nested_too_deeply_is_an_error_of_the_constraint(kind: str, source: str) -> None:
    with pytest.raises(ConstraintError, match="nested too deeply"):
        automaton_of(kind, source)


def test_a_conjunction_of_many_is_found_to_match_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part that comes nearer to its end counts; all subsets of the parts are not tried."""
    looks = "".join(f"(?=.*{letter})" for letter in "abcdefghij") + ".*"
    whole = automaton_of("regex", looks)
    assert whole.matches("jihgfedcba")
    assert not whole.matches("jihgfedcb")
    monkeypatch.setattr(machine, "_MOST_WORK", 1_500)
    monkeypatch.setattr(lengths, "_MOST_WORK", 1_500)
    assert machine.Machine(whole.expression).start is not None
    with pytest.raises(ConstraintError, match="takes too long to find the shortest text"):
        automaton_of("regex", looks + "x?")


def test_the_shortest_end_is_known_all_along_the_way() -> None:
    whole = automaton_of("regex", "(?=.*a)(?=.*bb)(?=.*c)[abcx]{0,9}").machine
    place = whole.start
    assert place is not None
    met = {place: 0}
    layer = [place]
    while layer:  # every place, by single bytes
        layer = [n for p in layer for b in b"abcx" if (n := whole.step(p, b)) >= 0 and n not in met]
        met.update(dict.fromkeys(layer, 0))
    for at in met:
        ends, depth = {at}, 0
        while not any(map(whole.accepts, ends)):
            ends = {n for p in ends for b in b"abcx" if (n := whole.step(p, b)) >= 0}
            depth += 1
        assert whole.least_bytes(at) == depth


def test_what_stands_in_a_row_is_no_matter_of_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest text is that of each part: patterns with lengths in many fields add up."""
    monkeypatch.setattr(lengths, "_MOST_WORK", 20_000)
    words = {"type": "string", "pattern": "^(?:\\S+\\s+){0,29}\\S+$", "maxLength": 300}
    address = {"type": "string", "anyOf": [{"format": "hostname"}, {"format": "ipv6"}]}
    names = [f"f{n}" for n in range(9)]
    fields = {name: address if n % 3 == 0 else words for n, name in enumerate(names)}
    many = {"type": "object", "properties": fields, "required": names}
    whole = automaton_of("json_schema", many)
    for text in (whole.shortest(), whole.sample(random.Random(1), 60)):
        assert list(json.loads(text))[:9] == names
    least = whole.machine.least_bytes(whole.machine.start or 0)
    assert least == len(whole.shortest().encode())


def test_the_shortest_text_of_what_contains_itself() -> None:
    word = {"type": "string", "pattern": "^x{3}", "maxLength": 9}
    tree = {
        "type": "object",
        "properties": {"v": word, "next": {"anyOf": [{"$ref": "#"}, {"const": "y" * 30}]}},
        "required": ["v", "next"],
        "additionalProperties": False,
    }
    whole = automaton_of("json_schema", tree)
    shortest = '{"v":"xxx","next":"' + "y" * 30 + '"}'
    assert whole.shortest() == shortest
    at = whole.machine.run(whole.machine.start or 0, b'{"v":"xxxx","next":{')
    assert whole.machine.least_bytes(at) == len(shortest) - 1 + 1
