"""The prefix tree of a batch, and the prompts that it is made of."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmc
from lmc.frontend.arguments import flatten
from lmc.frontend.dsl import State
from lmc.runtime.prefix_tree import PrefixNode, PrefixTree
from lmc.runtime.prompts import FirstPrompts
from lmc.runtime.request import KeyArray


def keys(*numbers: int) -> KeyArray:
    return np.array(numbers, np.int64)


def shares(one: KeyArray, other: KeyArray) -> int:
    pairs = zip(one, other, strict=False)
    return len(list(itertools.takewhile(lambda two: two[0] == two[1], pairs)))


def nodes(node: PrefixNode) -> list[PrefixNode]:
    return [node, *(below for child in node.children for below in nodes(child))]


PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6).map(lambda a: keys(*a)), max_size=9)


@given(PROMPTS)
def test_each_prompt_finds_what_any_before_it_has(prompts: list[KeyArray]) -> None:
    tree = PrefixTree.of(prompts)
    assert sorted(tree.order) == list(range(len(prompts)))
    for at, number in enumerate(tree.order):
        before = [shares(prompts[number], prompts[other]) for other in tree.order[:at]]
        assert tree.shared[at] == max(before, default=0)
    every = {tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)}
    assert tree.distinct_tokens == len(every)


@given(PROMPTS)
def test_nodes_hold_the_tokens_that_their_prompts_share(prompts: list[KeyArray]) -> None:
    tree = PrefixTree.of(prompts)
    found = nodes(tree.root)
    assert sum(node.tokens for node in found) == tree.distinct_tokens
    assert sum(node.tokens * node.prompts for node in found) == tree.total_tokens
    for node in found:
        run = {tuple(prompts[n][: node.end]) for n in tree.order[node.first : node.last]}
        assert len(run) <= 1
        assert all(child.start == node.end for child in node.children)


def test_what_nothing_is_gained_by_moving_stays_in_its_place() -> None:
    tree = PrefixTree.of([keys(7, 3), keys(7, 1), keys(9, 5), keys(7, 3, 4), keys(2), keys(7, 1)])
    assert tree.order == (0, 3, 1, 5, 2, 4)
    assert tree.shared.tolist() == [0, 2, 1, 2, 0, 0]


def test_a_large_tree_is_cut_for_display() -> None:
    tree = PrefixTree.of([keys(1, number) for number in range(10)])
    shown = tree.to_json(most_nodes=4)
    assert (shown["root"]["tokens"], shown["root"]["prompts"]) == (1, 10)
    assert [child["prompt"] for child in shown["root"]["children"]] == [0, 1, 2]
    assert shown["root"]["more"] == 7
    assert "more" not in tree.to_json()["root"]


def calls_of(call: Callable[[], object]) -> int:
    """How many functions something calls, whatever it takes."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def test_planning_takes_python_as_long_as_there_are_prompts_not_tokens() -> None:
    random = np.random.default_rng(0)

    def prompts(rows: int, tokens: int) -> list[np.ndarray]:
        starts = random.integers(0, 49_000, (rows // 20, 3 * tokens // 4))
        ends = random.integers(0, 49_000, (rows, tokens // 4))
        return [np.append(starts[n % (rows // 20)], end) for n, end in enumerate(ends)]

    few, many, long = prompts(500, 400), prompts(2_000, 400), prompts(500, 2_000)
    calls = [calls_of(lambda given=given: PrefixTree.of(given)) for given in (few, many, long)]
    assert calls[1] < 5 * calls[0]
    assert calls[2] < 1.1 * calls[0]
    assert PrefixTree.of(many).distinct_tokens <= 100 * 300 + 2_000 * 100


def test_a_chain_of_prefixes_may_be_long() -> None:
    tree = PrefixTree.of([keys(*range(n)) for n in range(1, 1_500)])
    assert tree.distinct_tokens == 1_499
    assert tree.to_json(most_nodes=3)["prompts"] == 1_499


@lmc.jit
def parted(s: State, x: str, how: str) -> None:
    s.system("Be brief.")
    with s.user():
        s += f"About {x.upper()}: "
        if how == "long":
            s += "at length"
    branches = s.fork(2)
    for number, branch in enumerate(branches):
        with branch.user():
            branch += f"Side {number}"
        with branch.assistant():
            branch += lmc.gen("said", max_tokens=3, ignore_eos=True)
    branches.join()
    s += "".join(s["said"])
    s += lmc.select("good", ["yes", "no"])


@pytest.mark.parametrize("how", ["long", "short"])
def test_first_prompts_are_those_that_the_row_sends(fake: lmc.Engine, how: str) -> None:
    given = {"x": "tea", "how": how}
    compiled = parted.compile(**given)
    target = fake.executor.target
    first = FirstPrompts(compiled.plan, target.tokenizer, target.template)
    prompts = first.of(flatten(parted.arguments(given)).texts)
    result = parted.run(**given)
    assert [len(prompt) for prompt in prompts] == [
        meta.prompt_tokens for meta in result.meta("said")
    ]
    texts = [target.tokenizer.decode(prompt >> 1) for prompt in prompts]
    assert all("About TEA:" in text and ("at length" in text) == (how == "long") for text in texts)


def test_a_row_that_will_fail_has_no_prompt(fake: lmc.Engine) -> None:
    @lmc.jit
    def second(s: State, x: str) -> None:
        s += x.split(",")[1]
        s += lmc.gen("v", max_tokens=2)

    target = fake.executor.target
    first = FirstPrompts(second.compile().plan, target.tokenizer, target.template)
    assert len(first.of(["a,b"])) == 1
    assert first.of(["a"]) == []
