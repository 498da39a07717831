"""select() and score() in programs: compiled and eager alike, and what meta says of them."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

import lmc
from lmc.errors import UsageError
from lmc.frontend.dsl import State
from lmc.params import SELECT_METHODS


def both(program: lmc.Program, **arguments: object) -> lmc.Result:
    """The result of the compiled program, which must be that of the eager one."""
    eager = program.run(eager=True, **arguments)
    for level in (0, 2):
        out = program.run(options=lmc.Options(level=level), **arguments)
        assert out.variables == eager.variables
        assert (out.text, out.value) == (eager.text, eager.value)
        assert str(out.error) == str(eager.error)
        assert out.to_json()["meta"] == eager.to_json()["meta"]
    return out


def meta(out: lmc.Result, name: str) -> Any:
    return out.meta(name)


@pytest.mark.parametrize("method", SELECT_METHODS)
def test_what_meta_says_of_a_select(method: str, fake: lmc.Engine) -> None:  # B-52, B-55, B-58
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x
        s += lmc.select("c", ["all", "get_x", "al"], method=method)

    out = both(p, x="call >>>")
    found = meta(out, "c")
    assert found.method == method
    assert found.finish_reason == "select"
    tokens = fake.executor.target.tokenizer
    for choice, logprobs in found.choice_logprobs.items():
        assert len(logprobs) == len(tokens.encode(choice, first=False))  # not those of the prompt
    if method == "total_logprob":
        assert found.scores == pytest.approx(
            {c: math.fsum(v) for c, v in found.choice_logprobs.items()}
        )
    assert out["c"] == max(found.scores, key=found.scores.get)
    assert (found.unconditional_logprobs is not None) == (method == "unconditional_normalized")
    json.dumps(out.to_json())


@pytest.mark.parametrize("method", SELECT_METHODS)
def test_permuting_the_choices_never_changes_the_winner(method: str, fake: lmc.Engine) -> None:
    temperature = 0.0 if method == "greedy_token" else 0.8

    @lmc.jit
    def p(s: State, order: list[int], x: str) -> None:
        words = ["yes", "no", "not", "yesterday"]
        s += x
        s += lmc.select("a", [words[i] for i in order], method=method)
        s += lmc.select("b", [words[i] for i in order], method=method, temperature=temperature)

    for x in ("q", "r", "word "):
        found = {
            tuple(p.run(order=list(order), x=x).variables.values())
            for order in itertools.permutations(range(4))
        }
        assert len(found) == 1


def test_drawn_choices_depend_on_seed_row_and_number(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> list[str]:
        s += "x"
        taken = []
        for fork in s.fork(8):
            fork += lmc.select("a", ["p", "q", "r", "t"], temperature=50.0)
            taken.append(fork["a"])
        return taken

    out = both(p)
    assert len(set(out.value)) > 1  # not merged, though the prompts are equal
    assert p.run(seed=1).value != p.run(seed=2).value
    rows = p.run_batch([{}, {}])
    assert rows[0].value == out.value != rows[1].value


def test_all_choices_are_one_batch_from_one_prefix(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += "a prompt of some words"
        s += lmc.select("c", ["red", "green", "blue"])

    before = fake.stats.model_steps
    p.run()
    assert fake.stats.model_steps - before <= 2  # the prompt with the first tokens, then the rest


def test_choices_by_gen_with_default_parameters(fake: lmc.Engine) -> None:  # B-57
    @lmc.jit
    def p(s: State) -> None:
        s += "x"
        s += lmc.gen("v", choices=["x", "y"])

    assert both(p)["v"] in ("x", "y")


def test_duplicates_are_merged_with_a_warning(  # B-60
    fake: lmc.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    @lmc.jit
    def known(s: State) -> None:
        s += lmc.select("c", ["a", "a"])

    assert both(known)["c"] == "a"
    assert "select('c') has the choice 'a' more than once" in caplog.text
    assert caplog.text.count("more than once") == 1  # not for each run
    assert "test_select_score.py" in caplog.text

    @lmc.jit
    def later(s: State, x: str) -> None:
        s += lmc.select("c", ["a", x, x])

    out = both(later, x="a")
    assert list(meta(out, "c").scores) == ["a"]


@pytest.mark.parametrize(
    ("primitive", "match"),
    [
        (lambda: lmc.select("a", ["x"], temperature=-1.0), "temperature is -1.0"),
        (lambda: lmc.select("a", ["x"], temperature="hot"), "must be a number"),
        (
            lambda: lmc.select("a", ["x"], method="greedy_token", temperature=1.0),
            "method='greedy_token' and temperature exclude each other",
        ),
        (lambda: lmc.score("a", 3), "score.. needs a text to weigh, not 3"),
        (lambda: lmc.score("a"), "needs a text"),
        (lambda: lmc.score("a", "b", top_logprobs=21), "top_logprobs is 21"),
        (lambda: lmc.score("", "text"), "name must be a text"),
    ],
)
def test_wrong_arguments_are_refused_at_the_line(primitive: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        primitive()
    assert "test_select_score.py" in str(caught.value.where)


def test_a_score_is_the_log_probability_of_its_text(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x
        branch = s.copy()
        branch += lmc.select("c", [" is it so", " no"], method="total_logprob")
        s += lmc.score("fit", " is it so")
        s += lmc.gen("after", max_tokens=3)
        s += branch["c"]

    for x in ("a", "b c d"):
        out = both(p, x=x)
        found = meta(out, "fit")
        assert out["fit"] == math.fsum(found.logprobs) < 0
        assert found.finish_reason == "score"
        tokenizer = fake.executor.target.tokenizer
        assert list(found.token_ids) == tokenizer.encode(" is it so", first=False)
        assert out.text.startswith(f"{x} is it so{out['after']}")
    weighed = both(lmc.jit(_weigh), x="a").value
    assert weighed[0] == pytest.approx(weighed[1])


def _weigh(s: State, x: str) -> Any:
    s += x
    one, two = s.fork(2)
    one += lmc.score("fit", " is it so")
    two += lmc.score("first", " is")
    two += lmc.score("rest", " it so")
    return [one["fit"], two["first"] + two["rest"]]


def test_scoring_a_long_prompt_twice_gives_the_same(fake: lmc.Engine) -> None:  # B-87
    prompt = "".join(chr(ord("a") + n % 26) + " " for n in range(33))

    @lmc.jit
    def p(s: State, x: str) -> None:
        s += "."
        s += lmc.score("fit", x, top_logprobs=2)

    first, second = (p.run(x=prompt) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert len(meta(first, "fit").logprobs) == len(meta(first, "fit").token_ids) > 32
    with lmc.Engine("fake", max_batch_tokens=3, kv_tokens=100) as small:
        assert p.run(x=prompt, engine=small).to_json() == first.to_json()
        for out in p.run_batch([{"x": prompt}, {"x": prompt[::-1]}, {"x": prompt}], engine=small):
            assert out.error is None
        assert out.to_json() == first.to_json()


def test_the_most_likely_tokens_in_each_place(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x
        s += lmc.score("plain", " is it so")
        s += lmc.score("fit", " is it so", top_logprobs=3)
        s += lmc.gen("next", max_tokens=1, top_logprobs=1)

    for x in ("a", "b c"):
        out = both(p, x=x)
        found = meta(out, "fit")
        assert len(found.top_logprobs) == len(found.token_ids) == len(found.logprobs) > 3
        for token, logprob, top in zip(
            found.token_ids, found.logprobs, found.top_logprobs, strict=True
        ):
            assert len(top) == 3
            assert [value for _, value in top] == sorted((v for _, v in top), reverse=True)
            assert dict(top).get(token, logprob) == logprob <= top[0][1]
        assert meta(out, "plain").top_logprobs == ()
        assert "top_logprobs" in out.to_json()["meta"]["fit"]

    @lmc.jit
    def greedy(s: State, x: str) -> None:
        s += x
        branch = s.copy()
        branch += lmc.gen("a", max_tokens=1, ignore_eos=True, logprobs=True)
        s += lmc.score("fit", branch["a"], top_logprobs=1)

    out = greedy.run(x="cat")
    assert meta(out, "fit").top_logprobs[0][0] == (
        meta(out, "fit").token_ids[0],
        meta(out, "fit").logprobs[0],
    )


def test_the_empty_text_is_certain(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += "a"
        s += lmc.score("known", "")
        s += lmc.score("later", x)

    out = both(p, x="")
    assert out.variables == {"known": 0.0, "later": 0.0}
    assert out.text == "a"


def test_scores_compile_in_conditions_texts_and_sums(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        forks = s.fork(3)
        forks += [lmc.score("fit", f" {word}") for word in ("yes", "no", x)]
        forks.join()
        best = max(range(3), key=lambda i: s["fit"][i])
        s += f"{s['fit'][0]} {best}"
        if s["fit"][0] - s["fit"][1] > 0 or 2 * s["fit"][0] < -(10**6):
            s += " yes"
        return [best, s["fit"][2] == s["fit"][2], s["fit"][0] != 0]

    assert "flow.resume" not in str(p.trace())
    for x in ("a", "b", "c"):
        out = both(p, x=x)
        assert out.value[0] == out["fit"].index(max(out["fit"]))


def test_other_uses_of_a_score_go_on_eagerly(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += lmc.score("fit", "word" + x)
        value = s["fit"]
        s += f"{value:.2f}"
        return [
            math.exp(value),
            round(value, 1),
            {value: 1}[value],
            value / 2,
            isinstance(value, float),
        ]

    assert "flow.resume" in str(p.trace())
    assert both(p, x="a").value[4] is True


def test_an_empty_choice_is_the_same_error_whenever_it_is_known(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> str:
        s += "Which? "
        s += lmc.select("c", [x, "other"])
        return s["c"]

    line = p.function.__code__.co_firstlineno + 3
    both(p, x="one")
    out = both(p, x="")
    assert isinstance(out.error, UsageError)
    assert out.error.problem == "select() has an empty choice"
    assert str(out.error.where).endswith(f"test_select_score.py:{line}")


@lmc.tool
def noted(word: str) -> str:
    NOTED.append(word)
    return word


NOTED: list[str] = []


@pytest.mark.parametrize("x", ["b", ""])
@pytest.mark.parametrize("eager", [False, True])
def test_an_empty_choice_fails_where_its_call_does(x: str, eager: bool, fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        forks = s.fork(2)
        forks += lambda i: f"{i}" + lmc.select("c", [f"a{i}", x if i else "d"])
        noted(x)
        forks.join(on_error="collect")
        return [str(one) for one in s["c"]]

    NOTED.clear()
    value = p.run(x=x, eager=eager).value
    assert [x] == NOTED
    assert value[0] in ("a0", "d")
    assert (value[1] in ("a1", "b")) if x else value[1].startswith("select() has an empty choice (")


def test_an_empty_choice_that_is_written_so_fails_there_too(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        forks = s.fork(2)
        forks += lambda i: lmc.select("c", ["d", "a" * i])
        forks.join(on_error="collect")
        unread = s.copy()
        unread += lmc.select("e", ["", "a"])
        return [type(one).__name__ for one in s["c"]]

    @lmc.jit
    def alone(s: State) -> None:
        s += "Which? " + lmc.select("c", ["a", ""])

    for eager in (False, True):
        assert p.run(x="it", eager=eager).value == ["UsageError", "str"]
    out = both(alone)
    assert isinstance(out.error, UsageError)
    line = alone.function.__code__.co_firstlineno + 2
    assert str(out.error.where).endswith(f"test_select_score.py:{line}")


def test_an_empty_choice_that_is_caught(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> str:
        try:
            s += "Which? " + lmc.select("c", ["a", ""])
            return s["c"]
        except UsageError as error:
            return error.problem

    assert both(p).value == "select() has an empty choice"
