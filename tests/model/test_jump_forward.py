"""Jumping forward on the real model: the same fixed texts, never an invalid one, fewer steps."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest

import lmc
from lmc.engine import Generation

pytestmark = pytest.mark.model

NOTES = tuple(f"{word} {n}" for word in ("Note", "Émile", "Result") for n in range(9))[:25]
FIXED = (
    '{"name": "unknown", "tags": []}',
    "<answer>yes</answer>",
    "hahahahaha, 日本!",
    "isn't  it?\n\tx = 1234567",
)
NAME = r'"[\w ]{1,12}"'
RECORD = (  # in the manner of SGLang's benchmark json_jump_forward: eight fields, half of them free
    rf'\{{\n    "name": {NAME},\n'
    r'    "house": "(?:Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood": "(?:pure|half|muggle)",\n'
    r'    "occupation": "(?:student|teacher|auror|minister)",\n'
    rf'    "wand": \{{"wood": {NAME}, "length": [0-9]{{1,2}}\.[0-9]{{1,2}}\}},\n'
    r'    "alive": (?:true|false),\n'
    rf'    "patronus": {NAME},\n    "boggart": {NAME}\n\}}'
)
CHARACTERS = ("Harry Potter", "Hermione Granger")


@dataclass(frozen=True)
class Run:
    made: list[Generation]
    steps: int
    forced: int
    drawn: int


def run(engine: lmc.Engine, prompts: list[str], regex: str, *, jump_forward: bool) -> Run:
    """What the model makes of the prompts, and what it took; nothing is cached before."""
    engine.forget()
    stats = engine.stats
    before = (stats.model_steps, stats.forced_tokens, stats.generated_tokens)
    made = engine.generate(prompts, 200, regex=regex, jump_forward=jump_forward)
    assert all(one.error is None for one in made)
    after = (stats.model_steps, stats.forced_tokens, stats.generated_tokens)
    return Run(made, *(b - a for a, b in zip(before, after, strict=True)))


def test_a_hundred_fixed_texts_are_the_same_either_way(roomy: lmc.Engine) -> None:
    steps = {True: 0, False: 0}
    compared = 0
    for text in FIXED:
        prompts = [f"{note}: " for note in NOTES]
        on = run(roomy, prompts, re.escape(text), jump_forward=True)
        off = run(roomy, prompts, re.escape(text), jump_forward=False)
        assert [one.text for one in on.made] == [one.text for one in off.made]
        assert {one.text for one in on.made} == {text}
        assert (on.drawn, off.forced) == (0, 0)  # the end of the text holds back no token
        steps[True] += on.steps
        steps[False] += off.steps
        compared += len(on.made)
    assert compared == 100
    assert steps[True] == 0
    assert steps[False] > 50


def test_records_are_valid_either_way_and_take_half_the_steps(roomy: lmc.Engine) -> None:
    prompts = [f"{name} is a character of Harry Potter. As JSON:\n" for name in CHARACTERS]
    on = run(roomy, prompts, RECORD, jump_forward=True)
    off = run(roomy, prompts, RECORD, jump_forward=False)
    for one in (*on.made, *off.made):
        assert re.fullmatch(RECORD, one.text)
        assert len(json.loads(one.text)) == 8
        assert one.finish_reason == "constraint"
    assert 2 * on.steps <= off.steps
    assert 2 * on.drawn <= off.drawn
    assert on.forced + on.drawn == sum(len(one.token_ids) for one in on.made)
    assert off.forced == 0
