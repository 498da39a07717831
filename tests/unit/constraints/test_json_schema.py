"""JSON schemas: what is valid is allowed, what is not is refused, and what is unsure is said.

`json_schema_suite.jsonl` holds cases of the official JSON-Schema-Test-Suite (MIT licence);
`json_schema_reports.jsonl` are small cases after public reports about other engines.
"""

from __future__ import annotations

import enum
import itertools
import json
import random
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import pytest

from lmc.constraints import TokenMatcher, Vocabulary, automaton_of, compile, load, matcher_of
from lmc.constraints.automaton import Automaton
from lmc.errors import ConstraintError

HERE = Path(__file__).parent


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def schema(**options: Any) -> Automaton:
    waive = options.pop("waive", ())
    whitespace = options.pop("whitespace", "compact")
    source = {"$" + k[1:] if k.startswith("_") else k.rstrip("_"): v for k, v in options.items()}
    return automaton_of("json_schema", source, whitespace=whitespace, waive=waive)


@pytest.mark.parametrize("row", rows("json_schema_suite.jsonl"), ids=lambda row: row["id"])
def test_official_suite(row: dict[str, Any]) -> None:
    automaton = automaton_of("json_schema", row["schema"])
    for value in row["valid"]:
        assert automaton.matches(compact(value)), value
    for value in [*row["invalid"], *(row.get("invalid_format") or [])]:
        assert not automaton.matches(compact(value)), value


@pytest.mark.parametrize("row", rows("json_schema_reports.jsonl"), ids=lambda row: row["id"])
def test_reports(row: dict[str, Any]) -> None:
    automaton = automaton_of("json_schema", row["schema"], whitespace="flexible")
    for text in row["accept"]:
        assert automaton.matches(text), text
    for text in row["reject"]:
        assert not automaton.matches(text), text


# -- the shape of what is written ----------------------------------------------------------------


def test_keys_come_in_the_order_of_the_schema() -> None:
    found = schema(properties={"b": {"type": "integer"}, "a": {"type": "integer"}}, type="object")
    assert found.matches('{"b":1,"a":2}')
    assert not found.matches('{"a":2,"b":1}')
    assert found.matches('{"a":2,"z":[]}')
    assert not found.matches('{"z":[],"a":2}')


def test_keys_may_come_in_the_order_of_required_if_it_has_all() -> None:
    names = ["c", "b", "a"]
    properties: dict[str, Any] = {name: {} for name in "abc"}
    for options in ({}, {"minProperties": 4}, {"additionalProperties": False}):
        found = schema(properties=properties, required=names, **options)
        more = "z" if "minProperties" in options else ""
        taken = ["".join(p) for p in itertools.permutations(names)
                 if found.matches(compact(dict.fromkeys([*p, *more])))]  # fmt: skip
        assert taken == ["cba", "abc"]
    found = schema(properties=properties, required=["c", "b"])
    assert not found.matches(compact(dict.fromkeys("cba")))


ANY: dict[str, Any] = {}


@pytest.mark.parametrize(
    "source",
    [
        {"properties": {"a": ANY, "b": ANY}, "allOf": [{"properties": {"x": ANY, "y": ANY}}]},
        {"allOf": [{"properties": {"a": ANY, "b": ANY}}, {"properties": {"x": ANY, "y": ANY}}]},
        {"properties": {"a": ANY, "b": ANY},
         "oneOf": [{"properties": {"x": ANY, "b": ANY, "y": ANY}}, {"type": "null"}]},
        {"properties": {"a": ANY, "b": ANY}, "if": {"required": ["a"]},
         "then": {"properties": {"x": ANY, "y": ANY}}},
        {"properties": {"a": ANY, "b": ANY},
         "dependentSchemas": {"a": {"properties": {"x": ANY, "y": ANY}}}},
        {"properties": {"a": ANY, "b": ANY}, "$ref": "#/$defs/more",
         "$defs": {"more": {"properties": {"b": ANY, "x": ANY, "y": ANY}}}},
    ],
)  # fmt: skip
def test_schemas_keep_their_own_order_and_interleave(source: dict[str, Any]) -> None:
    closed = {**source, "minProperties": 4, "maxProperties": 4}
    for found in (automaton_of("json_schema", source), automaton_of("json_schema", closed)):
        for names in itertools.permutations("abxy"):
            ordered = names.index("a") < names.index("b") and names.index("x") < names.index("y")
            assert found.matches(compact(dict.fromkeys(names, 1))) == ordered, names


def test_orders_that_multiply_to_too_much_follow_each_other() -> None:
    parts = [{"properties": {f"{part}{i}": ANY for i in range(20)}} for part in "pqr"]
    found = schema(allOf=parts, maxProperties=60)
    everything = [name for part in parts for name in part["properties"]]
    assert found.matches(compact(dict.fromkeys(everything, 1)))


def test_names_that_are_only_required_may_come_in_any_order() -> None:
    found = schema(type="object", required=["x", "y"], additionalProperties={"type": "null"})
    for text in ('{"x":null,"y":null}', '{"y":null,"z":null,"x":null}'):
        assert found.matches(text)
    assert not found.matches('{"x":null,"z":null}')


def test_arbitrary_values_nest_without_bound() -> None:
    deep = "[" * 300 + "]" * 300
    assert automaton_of("json_schema", {}).matches(deep)
    assert not automaton_of("json_schema", {}).matches(deep + "]")
    assert schema(type="object").matches('{"a":' + deep + "}")


def test_recursive_references() -> None:
    tree = {
        "$defs": {"node": {
            "type": "object", "properties": {
                "value": {"type": "integer"}, "left": {"$ref": "#/$defs/node"},
                "right": {"$ref": "#/$defs/node"},
            }, "required": ["value"], "additionalProperties": False,
        }}, "$ref": "#/$defs/node",
    }  # fmt: skip
    found = automaton_of("json_schema", tree)
    assert found.matches('{"value":1,"left":{"value":2,"right":{"value":3}},"right":{"value":4}}')
    assert not found.matches('{"value":1,"left":{"right":{"value":3}}}')


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"a":1,"b":[1,2]}', ["compact", "flexible"]),
        ('{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}', ["pretty", "flexible"]),
        ('{"a": 1, "b": [1, 2]}', ["flexible"]),
        ('{"a":1,"b":[]}', ["compact", "flexible"]),
        ('{"a":' + " " * 16 + '1,"b":[]}', ["flexible"]),
        ('{"a":' + " " * 17 + '1,"b":[]}', []),
        ('{"a":1,"b":[]} ', []),
    ],
)
def test_whitespace(text: str, right: list[str]) -> None:
    source = {
        "type": "object", "required": ["a", "b"], "properties": {
            "a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}},
        },
    }  # fmt: skip
    for way in ("compact", "pretty", "flexible"):
        found = automaton_of("json_schema", source, whitespace=way)
        assert found.matches(text) == (way in right), way


def test_pretty_is_what_json_dumps_writes() -> None:
    value = {"a": [], "b": {}, "c": [{"d": [1]}], "e": {"f": {"g": "x"}}}
    found = automaton_of("json_schema", {"const": value}, whitespace="pretty")
    assert found.matches(json.dumps(value, indent=2))
    free = automaton_of("json_schema", {}, whitespace="pretty")
    assert free.matches(json.dumps(value, indent=2))


# -- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('"a"', True), ('"\\n\\u0041\\/"', True), ('"\U0001f600"', True),
        ('"\\ud83d\\ude00"', True),
        ('"\\ud83d"', False), ('"\\ude00"', False), ('"\t"', False), ('"\\x"', False),
        ('"\\u12g4"', False), ('"', False), ('"a', False), ('"\\"', False), ('"\x7f"', True),
    ],
)  # fmt: skip
def test_spelling_of_texts(text: str, right: bool) -> None:
    assert schema(type="string").matches(text) == right


def test_lengths_count_characters() -> None:
    found = schema(type="string", minLength=2, maxLength=3)
    for text in ("ab", "\U0001f600\U0001f600", "\n\t", "é\\"):
        assert found.matches(compact(text)), text
    assert found.matches('"\\u0061\\ud83d\\ude00"')
    for text in ("a", "abcd", "\U0001f600"):
        assert not found.matches(compact(text)), text


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        ("b", ["abc", "b"], ["ac"]),
        ("^b", ["bc"], ["ab"]),
        ("b$", ["ab"], ["bc"]),
        ("^(a|b)$", ["a", "b"], ["ab", ""]),
        ("^a|b$", ["ax", "xb"], ["xa"]),
        ("(^a|b$)c?", ["ax", "xb"], ["x"]),
        ("^[^\\n]+$", ["a b", 'say "x"'], ["a\nb", ""]),
        ("\\bx\\b", ["x", "a x"], ["ax"]),
        ("^\\\\n$", ["\\n"], ["\n"]),
        ("(?<!\\\\)n", ["n", "an"], ["\\n"]),
        ("(?<=\\n)x", ["\nx"], ["\\nx", "nx"]),
        ("^(?!.*foo).*$", ["bar"], ["a foo"]),
    ],
)
def test_patterns_are_searched_for_in_what_is_decoded(
    pattern: str, valid: list[str], invalid: list[str]
) -> None:
    found = schema(type="string", pattern=pattern)
    for text in valid:
        assert found.matches(compact(text)), text
    for text in invalid:
        assert not found.matches(compact(text)), text


def test_string_keywords_are_conjunctions() -> None:
    found = schema(
        type="string", pattern="^[a-c]+$", minLength=2, maxLength=4, not_={"enum": ["ab"]}
    )
    assert [found.matches(compact(t)) for t in ("a", "ab", "ac", "abca", "abcab", "ax")] == [
        False, False, True, True, False, False,
    ]  # fmt: skip
    counted = schema(type="string", pattern="^[a-z]{3,20000}$", maxLength=10000)
    assert counted.matches(compact("x" * 10000))
    assert not counted.matches(compact("x" * 10001))


# -- logic ---------------------------------------------------------------------------------------


def test_keywords_without_type_say_nothing_of_other_types() -> None:
    found = schema(maxLength=2)
    assert [found.matches(t) for t in ('"ab"', '"abc"', "5", "{}", "[[]]", "null")] == [
        True, False, True, True, True, True,
    ]  # fmt: skip


def test_one_of_is_exactly_one() -> None:
    found = schema(type="object", oneOf=[{"required": ["a"]}, {"required": ["b"]}])
    assert found.matches('{"a":1}')
    assert found.matches('{"x":0,"b":1}')
    assert not found.matches('{"a":1,"b":1}')
    assert not found.matches("{}")
    numbers = schema(oneOf=[{"multipleOf": 2}, {"multipleOf": 3}], type="integer")
    assert [n for n in range(13) if numbers.matches(str(n))] == [2, 3, 4, 8, 9, 10]


def test_not_of_objects() -> None:
    found = schema(
        type="object",
        not_={"properties": {"a": {"type": "integer"}}, "additionalProperties": {"minimum": 3}},
    )
    assert found.matches('{"a":"x"}')
    assert found.matches('{"b":2}')
    assert not found.matches('{"a":1}')
    assert not found.matches('{"a":1,"b":3}')
    assert found.matches('{"a":1,"b":3,"c":1}')


def test_one_property_may_be_of_all_the_kinds_that_there_must_be() -> None:
    parts = [{"additionalProperties": {"type": "string"}}, {"propertyNames": {"maxLength": 1}}]
    found = schema(type="object", allOf=[{"not": part} for part in parts])
    assert found.matches('{"ab":1}')
    assert found.matches('{"ab":"","c":1}')
    assert not found.matches('{"c":1}')
    assert not found.matches('{"ab":""}')


def test_what_there_must_be_some_of_may_be_a_property() -> None:
    found = schema(
        type="object", properties={"a": {}}, not_={"additionalProperties": {"type": "integer"}}
    )
    cases = ['{"a":"x"}', '{"a":1}', '{"a":1,"b":"x"}', '{"a":1,"b":1}', "{}"]
    assert [found.matches(t) for t in cases] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        ({"properties": {"a": ANY}, "patternProperties": {"^x": ANY}}, ["a", "x1"], ["b"]),
        ({"allOf": [{"properties": {"a": ANY}}, {"additionalProperties": {"type": "null"}}]},
         ["a", "b"], []),
        ({"anyOf": [{"properties": {"a": ANY}, "required": ["a"]}, {"properties": {"b": ANY}}]},
         ["a", "b", "ab"], ["c"]),
        ({"oneOf": [{"properties": {"a": ANY}, "required": ["a"]},
                    {"properties": {"b": ANY}, "required": ["b"]}]}, ["a", "b"], ["ab", "ac"]),
        ({"if": {"required": ["a"]}, "then": {"properties": {"a": ANY, "b": ANY}},
          "else": {"properties": {"c": ANY}}}, ["ab", "c", ""], ["b", "ac"]),
        ({"if": {"properties": {"a": ANY}, "required": ["a"]}}, ["a", ""], ["b", "ab"]),
        ({"dependentSchemas": {"a": {"properties": {"a": ANY, "b": ANY}}}}, ["ab", ""], ["b"]),
        ({"$ref": "#/$defs/d", "$defs": {"d": {"properties": {"a": ANY}}}}, ["a"], ["b"]),
        ({"not": {"not": {"properties": {"a": ANY}}}}, [""], ["a"]),
        ({"allOf": [{"unevaluatedProperties": {"type": "null"}}]}, ["a", "b"], []),
        ({"allOf": [{"properties": {"a": ANY}, "unevaluatedProperties": False}]}, ["a"], ["b"]),
    ],
)  # fmt: skip
def test_unevaluated_properties(source: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    found = schema(**{"unevaluatedProperties": False, **source})
    for names, taken in [(n, True) for n in right] + [(n, False) for n in wrong]:
        orders = itertools.permutations(list_names(names))
        texts = [compact(dict.fromkeys(order)) for order in orders]
        assert any(found.matches(text) for text in texts) == taken, names


def list_names(names: str) -> list[str]:
    return ["x1"] if names == "x1" else list(names)


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        ({"prefixItems": [ANY]}, "[] [1]", "[1,1]"),
        ({"contains": {"type": "null"}}, "[null] [null,null]", "[] [1] [null,1]"),
        ({"anyOf": [{"prefixItems": [{"const": 1}]}, {"prefixItems": [ANY, {"const": 2}]}]},
         "[1] [1,2] [3,2]", "[1,3] [1,2,3]"),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "items": [ANY],
          "contains": {"type": "null"}}, "[null]", "[null,null] [1]"),
        ({"allOf": [{"items": ANY}]}, "[1,2,3]", "{"),
    ],
)  # fmt: skip
def test_unevaluated_items(source: dict[str, Any], right: str, wrong: str) -> None:
    found = automaton_of("json_schema", {"unevaluatedItems": False, **source})
    assert [t for t in right.split() if not found.matches(t)] == []
    assert [t for t in wrong.split() if found.matches(t)] == []


def test_dynamic_references_that_lead_to_one_place() -> None:
    tree = {
        "$id": "tree", "$dynamicAnchor": "node", "type": "object", "additionalProperties": False,
        "properties": {"children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
    }  # fmt: skip
    old = {
        "$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True,
        "type": "object", "additionalProperties": False,
        "properties": {"children": {"type": "array", "items": {"$recursiveRef": "#"}}},
    }  # fmt: skip
    for source in (tree, old):
        found = automaton_of("json_schema", source)
        assert found.matches('{"children":[{"children":[{}]},{}]}')
        assert not found.matches('{"children":[{"child":[]}]}')


def test_if_then_else() -> None:
    found = schema(
        type="object",
        properties={"kind": {"enum": ["a", "b"]}, "size": {}},
        required=["kind"],
        if_={"properties": {"kind": {"const": "a"}}},
        then={"required": ["size"]},
        else_={"properties": {"size": False}},
    )
    cases = ['{"kind":"a"}', '{"kind":"a","size":1}', '{"kind":"b"}']
    assert [found.matches(t) for t in cases] == [False, True, True]
    assert not found.matches('{"kind":"b","size":1}')


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        ({"items": {"enum": ["a", "b", 1, True]}},
         '[] ["a"] [1,"a",true] [true,1]', '["a","a"] [1,1.0] [1,"b",1] [true,true] ["c"]'),
        ({"items": {"type": ["boolean", "null"]}, "minItems": 2},
         "[true,null] [false,true,null]", "[null] [null,null] [true,false,true]"),
        ({"items": {"type": "integer", "minimum": 1, "maximum": 3}, "maxItems": 2},
         "[1,2] [3,1]", "[2,2] [2,2.0] [1,2,3]"),
        ({"prefixItems": [{"const": 1}, {"enum": [1, 2]}], "items": False},
         "[1] [1,2]", "[1,1] [2,1]"),
        ({"items": {"enum": ["a", "b"]}, "contains": {"const": "b"}},
         '["b"] ["a","b"]', '["a"] ["b","b"]'),
        ({"items": {"type": "integer"}, "maxItems": 1}, "[] [7]", "[7,7]"),
        ({"not": {"items": {"enum": ["a", "b"]}, "uniqueItems": True}},
         '["a","a"] ["c"]', '["a"] ["b","a"] []'),
        ({"items": {"type": "number", "multipleOf": 0.1, "minimum": 0.1, "maximum": 0.3}},
         "[0.1,0.3]", "[0.1,0.1] [0.4]"),
    ],
)  # fmt: skip
def test_items_that_all_differ(source: dict[str, Any], right: str, wrong: str) -> None:
    unique = {} if "not" in source else {"uniqueItems": True}
    found = automaton_of("json_schema", {"type": "array", **unique, **source})
    assert [t for t in right.split() if not found.matches(t)] == []
    assert [t for t in wrong.split() if found.matches(t)] == []
    if "minItems" in source:
        with pytest.raises(ConstraintError, match="nothing can match"):
            automaton_of("json_schema", {"uniqueItems": True, **source, "type": "array",
                                         "minItems": 4})  # fmt: skip


def test_contains() -> None:
    found = schema(type="array", contains={"type": "string"}, minContains=1, maxContains=2)
    cases = ["[]", '["a"]', '[1,"a",2,"b"]', '["a","b","c"]', "[1]"]
    assert [found.matches(t) for t in cases] == [False, True, True, False, False]


def test_counts_of_properties() -> None:
    found = schema(
        type="object", properties={"a": {}, "b": {}}, minProperties=2, maxProperties=3,
        additionalProperties={"type": "null"},
    )  # fmt: skip
    cases = [
        '{"a":1}',
        '{"a":1,"b":1}',
        '{"b":1,"c":null,"d":null}',
        '{"a":1,"b":1,"c":null,"d":null}',
    ]
    assert [found.matches(t) for t in cases] == [False, True, True, False]


def test_siblings_of_ref_count_from_2019_on() -> None:
    source = {"$ref": "#/definitions/a", "maximum": 5, "definitions": {"a": {"type": "integer"}}}
    assert not automaton_of("json_schema", source).matches("6")
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **source}
    assert automaton_of("json_schema", old).matches("6")


def test_integers_of_draft_4_have_no_point() -> None:
    old = schema(_schema="http://json-schema.org/draft-04/schema#", type="integer")
    assert [old.matches(t) for t in ("6", "6.0")] == [True, False]
    assert [schema(type="integer").matches(t) for t in ("6", "6.0", "6.5")] == [True, True, False]


# -- pydantic ------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=5)
    colour: Colour
    pair: tuple[int, str]
    tags: dict[Literal["x", "y"], int] = {}
    inner: Part | None = None


def test_pydantic_models() -> None:
    found = automaton_of("json_schema", Part)
    part = Part(name="a", colour=Colour.RED, pair=(1, "x"), tags={"x": 1})
    whole = Part(name="b", colour=Colour.BLUE, pair=(0, ""), inner=part)
    assert found.matches(whole.model_dump_json())
    assert not found.matches(whole.model_dump_json().replace("blue", "green"))
    draw = random.Random(0)
    for _ in range(30):
        Part.model_validate_json(found.sample(draw, 60))


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems"),
        ({"uniqueItems": True, "items": {"$ref": "#"}}, "/uniqueItems: items that all differ"),
        ({"items": {"format": "stardate"}}, "/items/format: the format 'stardate'"),
        ({"unevaluatedItems": 7}, "/unevaluatedItems"),
        (
            {
                "$dynamicRef": "#node",
                "$defs": {
                    "a": {"$id": "a", "$dynamicAnchor": "node"},
                    "b": {"$dynamicAnchor": "node"},
                },
            },
            r"/\$dynamicRef: what it leads to depends on the way to it",
        ),
        ({"type": "text"}, "/type: there is no type 'text'"),
        ({"pattern": "(a)\\1"}, "/pattern: a back reference"),
        ({"$ref": "#/$defs/a"}, r"/\$ref: '#/\$defs/a' leads nowhere"),
        ({"$ref": "https://example.com/a.json"}, "leads out of this schema"),
        ({"$ref": "#"}, "refers to itself"),
        ({"minLength": -1}, "/minLength"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"allOf": []}, "/allOf"),
        ({"allOf": [7]}, "/allOf/0"),
        ("{", "not JSON"),
        (7, "a JSON schema is"),
    ],
)
def test_refusals_name_the_place(source: Any, problem: str) -> None:
    with pytest.raises(ConstraintError, match=problem):
        automaton_of("json_schema", source)


@pytest.mark.parametrize(
    ("waive", "name", "hint"),
    [
        (("format", "unique_items"), "'unique_items'", "did you mean 'uniqueItems'?"),
        (("Formats",), "'Formats'", "did you mean 'format'?"),
        ("oneof", "'oneof'", "did you mean 'oneOf'?"),
        (("zzz",), "'zzz'", "give keywords as they are written"),
    ],
)
def test_what_is_no_keyword_cannot_be_waived(
    waive: str | tuple[str, ...], name: str, hint: str
) -> None:
    with pytest.raises(ConstraintError, match=name) as caught:
        schema(type="string", waive=waive)
    assert caught.value.hint == hint


def test_waived_keywords_are_dropped() -> None:
    assert schema(type="string", format="stardate", waive="format").matches('"x"')
    assert schema(type="string", format="stardate", waive=("format",)).matches('"x"')
    assert schema(type="array", uniqueItems=True, waive=("uniqueItems",)).matches("[1,1]")
    with pytest.raises(ConstraintError, match="no option"):
        automaton_of("regex", "a", waive=("format",))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength and maxLength"),
        ({"type": "integer", "enum": ["a"]}, "type and enum"),
        ({"type": "number", "minimum": 2, "exclusiveMaximum": 2, "title": "x"},
         "minimum and exclusiveMaximum"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "'a' is required"),
        ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "without end"),
    ],
)  # fmt: skip
def test_nothing_can_match(source: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConstraintError, match=f"nothing can match: .*{reason}"):
        automaton_of("json_schema", source)


def test_too_large_is_said() -> None:
    with pytest.raises(ConstraintError, match="too large"):
        schema(type="integer", multipleOf=1_000_003)


# -- tokens --------------------------------------------------------------------------------------


def follow(matcher: TokenMatcher, text: str) -> None:
    for token in matcher.vocabulary.encode(text):
        assert matcher.mask()[token], text
        matcher.advance(token)


def allows(matcher: TokenMatcher, text: str) -> bool:
    ahead = matcher.fork()
    for token in matcher.vocabulary.encode(text):
        if not ahead.mask()[token]:
            with pytest.raises(ValueError, match="not allowed"):
                ahead.advance(token)
            return False
        ahead.advance(token)
    return True


def test_no_key_comes_twice(vocabulary: Vocabulary) -> None:
    matcher = compile("json_schema", {"type": "object", "properties": {"a": {}}}, vocabulary)
    follow(matcher, '{"a":1,"b":{"b":1,"a":2},"ab')
    assert allows(matcher, 'c":1,"abd":[{"b":1},{"b":1}]}')
    assert allows(matcher, '":1,"c":1}')
    assert not allows(matcher, '":1,"b":1}')
    assert not allows(matcher, '":1,"ab":1}')
    assert not allows(matcher, '":1,"a":1}')
    matcher.reset()
    assert allows(matcher, '{"b":1}')


def test_a_used_up_name_is_no_dead_end(vocabulary: Vocabulary) -> None:
    source = {"patternProperties": {"^(x|y[0-9])$": {"type": "integer"}},
              "additionalProperties": False, "type": "object"}  # fmt: skip
    matcher = compile("json_schema", source, vocabulary)
    follow(matcher, '{"x":1,"')
    begins = {vocabulary.token_bytes[t][:1] for t in np.flatnonzero(matcher.mask())}  # type: ignore[index]
    assert begins == {b"y"}


@pytest.mark.parametrize("tokens", [1, 3, 5, 8, 12])
def test_used_keys_are_no_way_to_end_in_time(tokens: int, vocabulary: Vocabulary) -> None:
    source = {"patternProperties": {"^(x|yes?|open-end)$": {"type": "integer"}}, "type": "object",
              "additionalProperties": False}  # fmt: skip
    matcher = compile("json_schema", source, vocabulary)
    for begun in ('{"x":1', '{"x":1,', '{"x":1,"', '{"x":1,"ye":2,"', '{"x":1,"ye":2,"y'):
        matcher.reset()
        follow(matcher, begun)
        for left in range(tokens, -30, -1):
            row = matcher.mask_within(max(left, 1))
            if matcher.is_complete():
                break
            assert row.any(), begun
            matcher.advance(int(np.flatnonzero(row)[-1]))
        assert matcher.is_complete()


def test_schemas_survive_storage(gpt2: Vocabulary) -> None:
    source = {"type": "object", "additionalProperties": {"type": "integer"}}
    stored = json.loads(json.dumps(automaton_of("json_schema", source).to_json()))
    matcher = matcher_of(load(stored), gpt2)
    follow(matcher, '{"b":1,"')
    assert not allows(matcher, 'b":1}')
    assert load(stored).to_json() == stored


def test_what_is_fixed_is_forced(gpt2: Vocabulary) -> None:
    source = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
              "additionalProperties": False}  # fmt: skip
    matcher = compile("json_schema", source, gpt2)
    forced = matcher.forced()
    text = b"".join(gpt2.token_bytes[t] or b"" for t in forced)
    assert text
    assert b'{"name":"'.startswith(text)


@pytest.mark.parametrize("seed", range(3))
def test_walks_over_masks_are_valid(gpt2: Vocabulary, seed: int) -> None:
    source = {
        "type": "object", "required": ["id"], "properties": {
            "id": {"type": "integer", "minimum": 1, "maximum": 999},
            "when": {"format": "date"}, "rest": {"type": "array", "maxItems": 3},
        },
    }  # fmt: skip
    draw = random.Random(seed)
    matcher = compile("json_schema", source, gpt2)
    text = b""
    for step in range(300):
        row = matcher.mask_within(60) if step > 30 else matcher.mask()
        token = draw.choice(np.flatnonzero(row).tolist())
        if token in gpt2.eos or matcher.is_finished():
            break
        matcher.advance(token)
        text += gpt2.token_bytes[token] or b""
        if step > 30 and matcher.is_complete():
            break
    if matcher.is_complete():
        value = json.loads(text)
        assert 1 <= value["id"] <= 999


def test_a_host_name_is_labels_without_two_dashes_in_the_third_place() -> None:
    label = "(?!..--)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    found = automaton_of("json_schema", {"type": "string", "format": "hostname"})
    told = automaton_of("regex", rf'(?=.{{0,72}}$)"{label}(?:\.{label})*"')
    assert found.includes(told)
    for text in ("a", "ab", "a-b", "ab-c", "a--b", "ab-" + "c" * 60, "xn--a", "ab--c", "a-", "-a",
                 "a" * 63, "a" * 64, "a.b", "a..b", "ab-.c", "ab-a", "aa-" + "b" * 61):  # fmt: skip
        quoted = f'"{text}"'.encode()
        assert found.matches(quoted) == told.matches(quoted), text
