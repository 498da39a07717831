"""LM programs in the shapes that engines for many requests are measured on; texts are random words.

Each word is one token of the model's vocabulary, so a text of n words has n tokens whatever the
tokenizer. Generations run to exactly `max_tokens`, so that every engine does the same work.

Source: Zheng et al., SGLang, arXiv:2312.07104, section 6 and appendix.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmc.api import Program, jit
from lmc.frontend.dsl import State, gen, select

if TYPE_CHECKING:
    from lmc.runtime.tokenizer import Tokenizer

__all__ = ["SHAPES", "Shape", "Words", "single_words"]

WORDS = 600


@jit
def fewshot(s: State, prefix: str, question: str) -> None:
    """Answer in one token after a long text that all rows share."""
    s += prefix
    s += question
    s += gen("answer", max_tokens=1, ignore_eos=True)


@jit
def choose(s: State, prefix: str, question: str, choices: list[str]) -> None:
    """Choose the likeliest of four continuations."""
    s += prefix
    s += question
    s += select("answer", choices)


def _tree(s: State, thoughts: Sequence[str], level: int) -> None:
    """Two branches, and two of each, and two of each; `thoughts` in order of depth."""
    width = len(thoughts) // 2
    branches = s.fork(2)
    for branch, some in zip(branches, (thoughts[:width], thoughts[width:]), strict=True):
        branch += some[0]
        branch += gen(f"thought_{level}", max_tokens=128, ignore_eos=True)
        if len(some) > 1:
            _tree(branch, some[1:], level + 1)
    branches.join()


@jit
def tree_of_thought(s: State, task: str, thoughts: list[str]) -> None:
    """Three levels of two branches each."""
    s += task
    _tree(s, thoughts, 1)


@jit
def self_consistency(s: State, prefix: str, question: str, starts: list[str]) -> None:
    """Eight samples; their first words tell them apart, so that all are greedy."""
    s += prefix
    s += question
    branches = s.fork(len(starts))
    for branch, start in zip(branches, starts, strict=True):
        branch += start
        branch += gen("sample", max_tokens=128, ignore_eos=True)
    branches.join()


@jit
def judge(s: State, article: str, aspects: list[str], last: str) -> None:
    """Three reviews side by side, then a verdict that reads them all."""
    s += article
    branches = s.fork(len(aspects))
    for branch, aspect in zip(branches, aspects, strict=True):
        branch += aspect
        branch += gen("review", max_tokens=128, ignore_eos=True)
    branches.join()
    for review in s["review"]:
        s += review
    s += last
    s += gen("verdict", max_tokens=64, ignore_eos=True)


RECORD = (
    r'\{"name": "[\w ]{5,20}", "age": [1-9][0-9]?, "house": "(red|green|blue|yellow)", '
    r'"title": "[\w ]{5,20}", "score": [1-9][0-9]{0,3}, '
    r'"born": "[12][0-9]{3}-[01][0-9]-[0-3][0-9]"\}'
)


@jit
def json(s: State, note: str) -> None:
    """Fill in a record of fixed form."""
    s += note
    s += gen("record", max_tokens=160, regex=RECORD)


@jit
def chat_short(s: State, turns: list[str]) -> None:
    """Four turns with short answers."""
    for number, turn in enumerate(turns):
        s += turn
        s += gen(f"turn_{number}", max_tokens=8, ignore_eos=True)


@jit
def chat_long(s: State, turns: list[str]) -> None:
    """Four turns with long answers."""
    for number, turn in enumerate(turns):
        s += turn
        s += gen(f"turn_{number}", max_tokens=256, ignore_eos=True)


@jit
def agent(s: State, prefix: str, task: str, seen: list[str]) -> None:
    """Think, act and see, five times, after instructions that all rows share."""
    s += prefix
    s += task
    for number, observation in enumerate(seen):
        s += gen(f"act_{number}", max_tokens=80, ignore_eos=True)
        s += observation
    s += gen("last", max_tokens=80, ignore_eos=True)


class Words:
    """Texts of so many random words, the same for the same seed."""

    def __init__(self, words: Sequence[str], seed: str) -> None:
        self._words, self._random = words, random.Random(seed)

    def __call__(self, count: int) -> str:
        return "".join(f" {word}" for word in self._random.choices(self._words, k=count))


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Shape:
    """A program and how its rows are made.

    Attributes:
        rows: how many are measured.
        make: rows from a source of words and their number.
    """

    name: str
    about: str
    program: Program
    rows: int
    make: Callable[[Words, int], Rows]


def _shared(tokens: int, make: Callable[[Words], dict[str, Any]]) -> Callable[[Words, int], Rows]:
    def rows(words: Words, count: int) -> Rows:
        prefix = words(tokens)
        return [{"prefix": prefix, **make(words)} for _ in range(count)]

    return rows


def _each(make: Callable[[Words], dict[str, Any]]) -> Callable[[Words, int], Rows]:
    return lambda words, count: [make(words) for _ in range(count)]


def _judge_rows(words: Words, count: int) -> Rows:
    aspects = [words(20) for _ in range(3)]
    return [{"article": words(500), "aspects": aspects, "last": words(12)} for _ in range(count)]


SHAPES: dict[str, Shape] = {
    s.name: s
    for s in (
        Shape("fewshot", "1,500 shared and 100 own tokens in, 1 out", fewshot, 512,
              _shared(1500, lambda w: {"question": w(100)})),
        Shape("select", "1,300 shared and 40 own tokens in, 4 choices of 25", choose, 200,
              _shared(1300, lambda w: {"question": w(40), "choices": [w(25) for _ in range(4)]})),
        Shape("tree_of_thought", "600 tokens in, 3 levels, 2 branches a node of 128 tokens",
              tree_of_thought, 64,
              _each(lambda w: {"task": w(600), "thoughts": [w(12) for _ in range(14)]})),
        Shape("self_consistency", "1,000 shared and 60 own tokens in, 8 samples of 128",
              self_consistency, 64,
              _shared(1000, lambda w: {"question": w(60), "starts": [w(3) for _ in range(8)]})),
        Shape("judge", "500 tokens in, 3 reviews of 128, merged, 64 more", judge, 128, _judge_rows),
        Shape("json", "400 tokens in, a record of 6 fields", json, 256,
              _each(lambda w: {"note": w(400)})),
        Shape("chat_short", "4 turns, 300 tokens in and 8 out", chat_short, 64,
              _each(lambda w: {"turns": [w(300) for _ in range(4)]})),
        Shape("chat_long", "4 turns, 300 tokens in and 256 out", chat_long, 64,
              _each(lambda w: {"turns": [w(300) for _ in range(4)]})),
        Shape("agent", "1,800 shared and 60 own tokens in, 5 times 80 out and 100 seen", agent, 128,
              _shared(1800, lambda w: {"task": w(60), "seen": [w(100) for _ in range(4)]})),
    )
}  # fmt: skip


def single_words(tokenizer: Tokenizer) -> list[str]:
    """Words that are one token with a space before them, in alphabetical order.

    They are the ones with the lowest ids, so for the usual tokenizers the most common.
    """
    found: list[str] = []
    for raw in tokenizer.token_bytes:
        word = (raw or b"").decode("utf-8", "replace")
        if re.fullmatch(r" [a-z]{3,9}", word) and len(tokenizer.encode(word, first=False)) == 1:
            found.append(word[1:])
            if len(found) == WORDS:
                break
    return sorted(found)
