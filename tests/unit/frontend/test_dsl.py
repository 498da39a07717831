"""The language: what it takes, what it refuses, and that compiled and eager agree on it."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc.errors import LmcError, UsageError
from lmc.frontend.dsl import State


def both(program: lmc.Program, **arguments: Any) -> lmc.Result:
    """Run compiled and eagerly, which must agree; give the compiled result."""
    compiled = program.run(**arguments)
    eager = program.run(eager=True, **arguments)
    assert (compiled.variables, compiled.text) == (eager.variables, eager.text)
    assert compiled.value == eager.value
    problems = [r.error and r.error.problem for r in (compiled, eager)]
    assert problems[0] == problems[1]
    return compiled


def refused(function: Any, match: str, fake: lmc.Engine, **arguments: Any) -> None:
    program = lmc.jit(function)
    with pytest.raises(UsageError, match=match) as caught:
        program.run(**arguments)
    assert caught.value.where is not None
    assert caught.value.where.file.startswith("tests")
    eager = program.run(eager=True, **arguments)
    assert eager.error is not None
    assert eager.error.problem == caught.value.problem


def test_fork_as_the_first_statement_b_70(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        forks = s.fork(2)
        forks += lambda i: f"{i}: "
        forks += lmc.gen("a", max_tokens=3)
        forks.join()

    out = both(p)
    assert out.error is None
    assert len(out["a"]) == 2


def test_gen_on_an_empty_prompt_and_max_tokens_zero(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += lmc.gen("a", max_tokens=0)
        s += lmc.gen("b", max_tokens=2, ignore_eos=True)

    out = both(p)
    assert out["a"] == ""
    assert out.meta("a").finish_reason == "length"  # type: ignore[union-attr]
    assert len(out.meta("b").token_ids) == 2  # type: ignore[union-attr]


def test_branches_see_the_parents_variables_and_keep_their_own(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> object:
        s += lmc.gen("v", max_tokens=2, ignore_eos=True)
        forks = s.fork(2)
        for f in forks:
            f += f"again {f['v']}"
            f += lmc.gen("v", max_tokens=2, temperature=1.0, ignore_eos=True)
            f += lmc.gen("w", max_tokens=1)
        read = forks["v"]
        forks.join()
        return [read == s["v"], len(s["w"])]

    assert both(p).value == [True, 2]


def test_nested_forks_give_nested_lists(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        outer = s.fork(2)
        for f in outer:
            inner = f.fork(3)
            inner += lmc.gen("x", max_tokens=1, ignore_eos=True)
            inner.join()
        outer.join()

    out = both(p)
    assert [len(x) for x in out["x"]] == [3, 3]
    assert [len(m) for m in out.meta("x")] == [3, 3]  # type: ignore[union-attr, arg-type]


def test_messages_by_calls_blocks_and_expressions_are_the_same(fake: lmc.Engine) -> None:
    @lmc.jit
    def calls(s: State, q: str) -> None:
        s.user(q)
        s.assistant(lmc.gen("a", max_tokens=3))

    @lmc.jit
    def blocks(s: State, q: str) -> None:
        with s.user():
            s += q
        with s.assistant():
            s += lmc.gen("a", max_tokens=3)

    @lmc.jit
    def expressions(s: State, q: str) -> None:
        s += [lmc.user(q), lmc.assistant(lmc.gen("a", max_tokens=3))]

    outs = [both(p, q="hi") for p in (calls, blocks, expressions)]
    assert len({out.text for out in outs}) == 1
    assert "hi" in outs[0].text


def test_the_callers_stop_list_is_not_changed_f_06(fake: lmc.Engine) -> None:
    stops = ["\n", "."]

    @lmc.jit
    def p(s: State) -> None:
        with s.assistant():
            s += lmc.gen("a", max_tokens=3, stop=stops)
            s += lmc.gen("b", max_tokens=3, stop=stops)

    both(p)
    assert stops == ["\n", "."]


def test_text_of_special_tokens_in_user_input_stays_text(fake: lmc.Engine) -> None:
    core = fake.executor.target.tokenizer
    special = next(iter(core.named.values()))

    @lmc.jit
    def p(s: State, q: str) -> None:
        s += q
        s += lmc.gen("a", max_tokens=1)

    out = p.run(q=special)
    assert out.meta("a").prompt_tokens > 1  # type: ignore[union-attr]
    assert special in out.text


def test_unnamed_calls_get_names(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += lmc.gen(max_tokens=1)
        s += lmc.select(choices=["a", "b"])

    assert list(both(p).variables) == ["gen_1", "select_2"]


def test_variables_can_be_tested_and_have_defaults(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> object:
        before = "a" in s
        s += lmc.gen("a", max_tokens=1)
        return [before, "a" in s, s.get("b", "none")]

    assert both(p).value == [False, True, "none"]


def test_equal_choices_count_once_and_prefixes_of_each_other_work(fake: lmc.Engine) -> None:  # B-51
    @lmc.jit
    def p(s: State) -> None:
        s += "x"
        s += lmc.select("c", ["a", "aa", "a"])

    out = both(p)
    assert out["c"] in ("a", "aa")
    assert set(out.meta("c").scores) == {"a", "aa"}  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    ("primitive", "match"),
    [
        (lambda s: lmc.gen("a", stop=""), "empty string"),  # B-64
        (lambda s: lmc.gen("a", stop=["x", ""]), "empty string"),
        (lambda s: lmc.gen("a", max_tokens=-1), "max_tokens is -1"),
        (lambda s: lmc.gen("a", max_tokens=1.5), "max_tokens is 1.5"),
        (lambda s: lmc.gen("a", temperature=-1), "temperature is -1"),
        (lambda s: lmc.gen("a", temperature=float("nan")), "temperature is nan"),
        (lambda s: lmc.gen("a", top_p=0), "top_p is 0"),
        (lambda s: lmc.gen("a", top_k=-5), "top_k is -5"),
        (lambda s: lmc.gen(3), "name must be a text"),
        (lambda s: lmc.select("a", []), "needs a list"),  # F-07
        (lambda s: lmc.select("a", "yes"), "needs a list"),
        (lambda s: lmc.select("a", ["x"], method="best"), "no method 'best'"),
        (lambda s: 7, "7 cannot be appended"),
        (lambda s: None, "None cannot be appended"),
        (lambda s: s["missing"], "no variable 'missing'"),
        (lambda s: s.fork(0), r"fork\(0\)"),
        (lambda s: s.fork(2**63), r"fork\(9223372036854775808\): a fork has 1 to 4096 branches"),
        (lambda s: "x" if s else "y", "no truth value"),
    ],
)
def test_misuse_is_refused_with_the_line(primitive: Any, match: str, fake: lmc.Engine) -> None:
    def p(s: State) -> None:
        s += primitive(s)

    refused(p, match, fake)


def test_a_branch_is_closed_after_join_f_03(fake: lmc.Engine) -> None:
    def p(s: State) -> None:
        forks = s.fork(2)
        forks += lmc.gen("a", max_tokens=1)
        forks.join()
        forks[0].extend("late")

    refused(p, r"this branch ended with join\(\)", fake)


def test_branches_are_appended_to_by_index(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        forks = s.fork(2)
        forks[0] += "left " + lmc.gen("a", 3)
        forks[-1] += "right " + lmc.gen("a", 3)
        forks.join()

    for eager in (True, False):
        assert len(p.run(engine=fake, eager=eager)["a"]) == 2

    @lmc.jit
    def q(s: State) -> None:
        forks = s.fork(2)
        forks[0] = s

    with pytest.raises(UsageError, match="cannot be replaced"):
        q.run(engine=fake)


def test_a_variable_missing_in_a_branch_is_refused_at_join(fake: lmc.Engine) -> None:
    def p(s: State) -> None:
        forks = s.fork(2)
        forks[1].extend(lmc.gen("a", max_tokens=1))
        forks.join()

    refused(p, "'a' is missing in branch 0", fake)


def test_messages_do_not_nest(fake: lmc.Engine) -> None:
    def p(s: State) -> None:
        with s.user(), s.assistant():
            pass

    refused(p, "assistant message inside a user message", fake)


def test_an_exception_closes_its_message_f_09(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        try:
            with s.user():
                s += "a"
                raise KeyError("x")
        except KeyError:
            pass
        with s.assistant():
            s += lmc.gen("a", max_tokens=1)

    assert both(p).error is None


def test_wrong_arguments_are_refused(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, a: str, b: int = 2) -> None:
        s += a * b

    with pytest.raises(UsageError, match=r"argument 'a' .*of p\(\) is missing"):
        p.run()
    with pytest.raises(UsageError, match=r"p\(\) takes no argument 'c'"):
        p.run(a="x", c=1)


@pytest.mark.parametrize("wrong", [3, None, "text"])
def test_only_functions_can_be_programs(wrong: Any) -> None:
    with pytest.raises(UsageError, match="takes a function"):
        lmc.jit(wrong)


def test_coroutines_generators_and_functions_without_state_are_refused_f_13() -> None:
    async def a(s: State) -> None: ...

    def g(s: State) -> Any:
        yield 1

    for function in (a, g):
        with pytest.raises(UsageError, match="coroutine or a generator"):
            lmc.jit(function)
    with pytest.raises(UsageError, match="no parameter for the prompt state"):
        lmc.jit(lambda: None)


def test_a_failed_row_is_an_error_in_its_place_f_04(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x
        s += lmc.gen("a", max_tokens=2)
        if len(s["a"]) >= 0 and x == "bad":
            raise RuntimeError("boom")

    rows: list[Any] = [{"x": "a"}, {"x": "bad"}, {}, 7, {"x": "b"}]
    for eager in (False, True):
        outs = p.run_batch(rows, eager=eager)
        problems = [o.error and o.error.problem for o in outs]
        assert problems[0] is problems[4] is None
        assert problems[1] == "RuntimeError: boom"
        assert "missing" in str(problems[2])
        assert "row 3 is not a dictionary" in str(problems[3])
        with pytest.raises(LmcError, match="boom"):
            outs[1]["a"]
        assert outs[1].variables["a"] is not None  # what was known is kept
        with pytest.raises(LmcError, match="boom"):
            p.run_batch(rows, eager=eager, on_error="raise")


def test_parameters_that_run_cannot_pass_are_refused() -> None:
    def by_position(s: State, x: str, /) -> None: ...

    def star(s: State, *xs: str) -> None: ...

    def reserved(s: State, seed: str) -> None: ...

    for function, match in (
        (by_position, "by position only"),
        (star, "by position only"),
        (reserved, "`run` has a meaning for"),
    ):
        with pytest.raises(UsageError, match=match):
            lmc.jit(function)


@pytest.mark.parametrize("seed", ["a", 0.5, True])
def test_a_seed_must_be_an_integer(seed: Any, fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += lmc.gen("a", max_tokens=2, temperature=1.0)

    with pytest.raises(UsageError, match="seed is"):
        p.run(seed=seed)
    with pytest.raises(UsageError, match="seed is"):
        p.run_batch([{}], seed=seed)
