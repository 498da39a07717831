"""The programs that are measured on a GPU generate what they say."""

from __future__ import annotations

import pytest

import lmc
from lmc.bench.shapes import SHAPES, Words, single_words

GENERATED = {
    "fewshot": 1, "select": 0, "tree_of_thought": 14 * 128, "self_consistency": 8 * 128,
    "judge": 3 * 128 + 64, "chat_short": 32, "chat_long": 1024, "agent": 400,
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_every_row_generates_what_it_should(name: str, fake: lmc.Engine) -> None:
    shape = SHAPES[name]
    tokenizer = fake.executor.target.tokenizer
    words = single_words(tokenizer)
    assert len(tokenizer.encode(Words(words, "x")(50), first=True)) == 50
    rows = shape.make(Words(words, "seed"), 2)
    assert rows == shape.make(Words(words, "seed"), 2)
    for result in shape.program.run_batch(rows, engine=fake):
        assert result.error is None
    if name in GENERATED:
        assert fake.stats.generated_tokens == 2 * GENERATED[name]
