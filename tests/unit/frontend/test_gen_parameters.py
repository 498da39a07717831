"""The parameters of `gen`, each by its effect on what the fake model writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.codegen.artifact import Artifact, write_artifact
from lmc.errors import ConstraintError, RunError, TraceError, UsageError
from lmc.frontend.dsl import State

Both = Callable[..., lmc.Result]


@pytest.fixture
def engine() -> Iterator[lmc.Engine]:
    with lmc.Engine("fake") as made:
        yield made
        made.core.audit()


@pytest.fixture
def both(engine: lmc.Engine, tmp_path: Path) -> Both:
    """What a gen with some parameters gives: compiled, and the same eagerly and from a file."""
    return lambda **options: _both(engine, tmp_path, **options)


def _both(engine: lmc.Engine, path: Path, **options: Any) -> lmc.Result:

    def program(s: State, x: str) -> None:
        s += x
        s += lmc.gen("a", **options)
        s += "."
        s += lmc.gen("b", max_tokens=3)

    compiled = lmc.jit(program).run(engine=engine, x="What is it? ")
    eager = lmc.jit(program).run(engine=engine, x="What is it? ", eager=True)
    made = lmc.jit(program).compile(x="")
    write_artifact(path / "p.lmc", Artifact(made.plan, str(made.program)))
    loaded = lmc.load(path / "p.lmc").run(engine=engine, x="What is it? ")
    assert compiled.error is None, compiled.error
    assert compiled.to_json() == eager.to_json() == loaded.to_json()
    return compiled


def test_stop_regex_ends_the_text_where_re_search_finds_it(both: Both) -> None:
    free = both(max_tokens=60, ignore_eos=True)["a"]
    pattern = r"\b[aeiou]\w*"
    out = both(max_tokens=60, ignore_eos=True, stop_regex=pattern)
    found = re.search(pattern, free)
    assert found is not None
    assert out["a"] == free[: found.start()]
    assert out.text.startswith("What is it? " + out["a"] + ".")
    meta = out.meta("a")
    assert (meta.finish_reason, meta.matched_stop) == ("stop", pattern)


def test_a_stop_pattern_stops_a_constrained_gen(both: Both) -> None:
    out = both(max_tokens=30, regex=r"[a-z]{3}-[0-9]{9}", stop_regex=[r"-\d\d", "%"])
    assert re.fullmatch("[a-z]{3}", out["a"])
    assert out.meta("a").matched_stop == r"-\d\d"


@pytest.mark.parametrize("eager", [False, True])
def test_a_stop_pattern_that_cannot_be_is_an_error_of_its_line(
    engine: lmc.Engine, eager: bool
) -> None:
    @lmc.jit
    def program(s: State) -> None:
        s += lmc.gen("a", stop_regex="x*")

    def run() -> None:
        out = program.run(engine=engine, eager=eager)
        if out.error is not None:
            raise out.error

    with pytest.raises(ConstraintError, match="matches the empty text") as caught:
        run()
    assert caught.value.where is not None
    assert caught.value.where.file.endswith("test_gen_parameters.py")


def test_min_tokens_keeps_ends_and_stops_away(both: Both) -> None:
    free = both(max_tokens=60, ignore_eos=True)
    ended = both(max_tokens=60)
    assert ended.meta("a").finish_reason == "eos", "the fake model ends some texts"
    count = ended.meta("a").completion_tokens
    later = both(max_tokens=60, min_tokens=count + 1)
    assert later.meta("a").completion_tokens > count
    assert later.meta("a").token_ids[:count] == free.meta("a").token_ids[:count]

    stopped = both(max_tokens=60, ignore_eos=True, stop=" ")
    least = stopped.meta("a").completion_tokens + 1
    longer = both(max_tokens=60, ignore_eos=True, stop=" ", min_tokens=least)
    kept = longer.meta("a").token_ids[:least]
    assert len(kept) == least
    assert free["a"].startswith(longer["a"])
    assert len(longer["a"]) > len(stopped["a"])


def test_min_tokens_gives_way_to_a_constraint_that_leaves_only_the_end(both: Both) -> None:
    out = both(max_tokens=20, min_tokens=15, regex="[a-z]{2}")
    assert re.fullmatch("[a-z]{2}", out["a"])


def test_stop_token_ids_end_the_text_and_are_left_out(both: Both) -> None:
    free = both(max_tokens=20, ignore_eos=True).meta("a").token_ids
    stop = free[4]
    out = both(max_tokens=20, ignore_eos=True, stop_token_ids=[stop])
    meta = out.meta("a")
    assert (meta.finish_reason, meta.matched_stop) == ("stop", stop)
    assert meta.token_ids == free[: free.index(stop)]


def test_an_end_token_may_be_a_stop_token_where_ends_are_ignored(
    both: Both, engine: lmc.Engine
) -> None:
    (end,) = engine.executor.target.tokenizer.eos_ids
    out = both(max_tokens=60, ignore_eos=True, stop_token_ids=[end]).meta("a")
    assert out.matched_stop == end
    assert out.token_ids == both(max_tokens=60).meta("a").token_ids


def test_a_frequency_penalty_makes_a_text_that_repeats_nothing(both: Both) -> None:
    free = both(max_tokens=60, ignore_eos=True, temperature=1.5, top_k=3).meta("a").token_ids
    assert len(set(free)) < len(free)
    for penalty in ("frequency_penalty", "presence_penalty"):
        options = {penalty: 2.0, "logit_bias": {"e": 30.0, "t": 29.0, "a": 28.0}}
        ids = both(max_tokens=9, ignore_eos=True, **options).meta("a").token_ids
        first, second, third = ids[0], ids[1], ids[2]
        assert len({first, second, third}) > 1, f"{penalty} makes what came once less likely"
    assert len(set(both(max_tokens=9, ignore_eos=True, logit_bias={"e": 30.0})["a"])) == 1


def test_a_repetition_penalty_counts_the_prompt_too(both: Both, engine: lmc.Engine) -> None:
    # The prompt has these letters; a penalty below 1 makes them likelier, one above 1 rarer.
    prompt = set(engine.executor.target.tokenizer.encode("What is it? ", first=False))

    def share(penalty: float) -> int:
        out = both(max_tokens=30, ignore_eos=True, temperature=1.0, repetition_penalty=penalty)
        return sum(token in prompt for token in out.meta("a").token_ids)

    assert share(0.3) > share(1.0) + 5
    assert share(0.3) > share(3.0) + 5


def test_a_logit_bias_bans_and_prefers(both: Both) -> None:
    free = both(max_tokens=5, ignore_eos=True).meta("a").token_ids
    out = both(max_tokens=5, ignore_eos=True, logit_bias={free[0]: -100.0})
    assert free[0] not in out.meta("a").token_ids
    assert both(max_tokens=5, ignore_eos=True, logit_bias={"q": 100})["a"] == "qqqqq"


def test_min_p_leaves_the_likely_tokens(both: Both) -> None:
    greedy = both(max_tokens=12, ignore_eos=True)["a"]
    assert both(max_tokens=12, ignore_eos=True, temperature=2.0)["a"] != greedy
    assert both(max_tokens=12, ignore_eos=True, temperature=2.0, min_p=1.0)["a"] == greedy


def test_log_probabilities_are_the_models_own(both: Both) -> None:
    plain = both(max_tokens=6, ignore_eos=True, top_logprobs=3)
    meta = plain.meta("a")
    assert meta.scored
    for token, logprob, top in zip(meta.token_ids, meta.logprobs, meta.top_logprobs, strict=True):
        assert top[0] == (token, logprob), "greedy takes the most likely token"
        assert [p for _, p in top] == sorted((p for _, p in top), reverse=True)
        assert len(top) == 3
    shaped = both(max_tokens=6, ignore_eos=True, top_logprobs=3, logit_bias={"q": 100})
    assert shaped.meta("a").top_logprobs[0] == meta.top_logprobs[0], "no bias is in it"
    assert shaped.meta("a").logprobs[0] < meta.logprobs[0]
    assert "top_logprobs" in plain.to_json()["meta"]["a"]


def test_forced_tokens_have_log_probabilities_if_they_are_asked_for(both: Both) -> None:
    options = {"max_tokens": 30, "regex": r"The answer is [0-9]\. The end"}
    jumped, scored = both(**options), both(**options, logprobs=True)
    assert jumped["a"] == scored["a"]
    assert jumped.meta("a").token_ids == scored.meta("a").token_ids
    assert jumped.meta("a").forced_tokens > 3
    assert scored.meta("a").forced_tokens == 0
    assert all(p <= 0 for p in scored.meta("a").logprobs)
    assert any(p != p for p in jumped.meta("a").logprobs)


def test_meta_says_when_things_happened(both: Both) -> None:
    timings = both(max_tokens=6).meta("a").timings
    assert 0 <= timings.started <= timings.first_token <= timings.finished


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens is 3 and max_tokens is 2"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"stop": [1]}, r"stop is \(1,\)"),
        ({"stop": 5}, "stop is 5"),
        ({"stop": ""}, "stop holds an empty string"),
        ({"stop": "\ud800"}, "no valid text"),
        ({"stop_token_ids": [-1]}, "stop_token_ids is"),
        ({"stop_token_ids": 7}, "stop_token_ids is 7"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids holds the token id 1000000"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 5e-324}, "temperature is 5e-324"),
        ({"temperature": 1e39}, r"temperature is 1e\+39"),
        ({"temperature": False}, "temperature is False, must be a number"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_k": 2**31}, "top_k is 2147483648"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"frequency_penalty": 3}, "frequency_penalty is 3"),
        ({"presence_penalty": -2.5}, "presence_penalty is -2.5"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty is 1e-300"),
        ({"logit_bias": {1: 101}}, "logit_bias of 1 is 101"),
        ({"logit_bias": {-1: 1}}, "logit_bias has the key -1"),
        ({"logit_bias": [3]}, "logit_bias is"),
        ({"logit_bias": {"more than one token": 1}}, "which is .* tokens"),
        ({"logit_bias": {"a": 1, 101: 1, "": 2}}, "logit_bias has the key ''"),
        ({"logit_bias": {10**6: 1}}, "logit_bias holds the token id 1000000"),
        ({"top_logprobs": 21}, "top_logprobs is 21"),
        ({"top_logprobs": True}, "top_logprobs is True, must be an integer"),
        ({"n": 0}, "n is 0"),
        ({"n": 2.0}, "n is 2.0"),
        ({"n": 2**63 - 1}, "n is 9223372036854775807"),  # B-108
        ({"regex": "a", "choices": ["a"]}, "regex and choices exclude each other"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
    ],
)
def test_wrong_values_are_refused_at_their_line(
    engine: lmc.Engine, options: dict[str, Any], problem: str
) -> None:
    @lmc.jit
    def program(s: State) -> None:
        s += "x"
        s += lmc.gen("a", **options)

    def run(eager: bool) -> None:
        out = program.run(engine=engine, eager=eager)
        assert out.error is not None
        raise out.error

    for eager in (False, True):
        with pytest.raises(UsageError, match=problem) as caught:
            run(eager)
        assert caught.value.hint
        assert caught.value.where is not None
        assert caught.value.where.file.endswith("test_gen_parameters.py")


def samples(engine: lmc.Engine, **options: Any) -> lmc.Result:
    def program(s: State, x: str) -> object:
        s += x
        s += lmc.gen("a", **options)
        s += "|"
        forks = s.fork(2)
        forks += lmc.gen("b", max_tokens=3, temperature=1.0, n=2)
        forks.join()
        s += f"{s['a'][0]}/{s['a'][-1]}"
        return s["a"]

    compiled = lmc.jit(program).run(engine=engine, x="What? ")
    assert compiled.error is None, compiled.error
    assert "flow.resume" not in str(lmc.jit(program).trace())
    assert (
        compiled.to_json() == lmc.jit(program).run(engine=engine, x="What? ", eager=True).to_json()
    )
    return compiled


def test_n_samples_differ_and_the_state_goes_on_with_the_first(engine: lmc.Engine) -> None:
    out = samples(engine, n=4, max_tokens=8, temperature=1.0, ignore_eos=True)
    texts = out["a"]
    assert len(texts) == 4 == len(set(texts))
    assert out.value == texts
    assert out.text == f"What? {texts[0]}|{texts[0]}/{texts[3]}"
    assert [len(branch) for branch in out["b"]] == [2, 2], "also inside of forks"
    assert [m.completion_tokens for m in out.meta("a")] == [8] * 4


def test_one_sample_is_a_list_and_greedy_ones_are_equal(engine: lmc.Engine) -> None:
    assert len(samples(engine, n=1, max_tokens=4)["a"]) == 1
    assert len(set(samples(engine, n=3, max_tokens=4)["a"])) == 1


def test_constrained_samples_are_all_valid(engine: lmc.Engine) -> None:
    out = samples(engine, n=5, regex="[a-z]{3}-[0-9]{2}", temperature=1.5)
    assert all(re.fullmatch("[a-z]{3}-[0-9]{2}", text) for text in out["a"])
    assert len(set(out["a"])) > 1


def test_samples_run_in_one_batch_from_one_prefix() -> None:
    def run(n: int) -> tuple[int, int]:
        @lmc.jit
        def program(s: State) -> None:
            s += "A long prompt that is computed once, whatever the number of samples. " * 4
            s += lmc.gen("a", n=n, max_tokens=16, temperature=1.0, ignore_eos=True)

        with lmc.Engine("fake") as engine:
            out = program.run(engine=engine)
            assert len(out["a"]) == n
            stats = engine.stats
            return stats.model_steps, stats.computed_tokens - stats.generated_tokens

    steps, prompt = run(1)
    more_steps, more_prompt = run(6)
    assert more_steps <= steps + 1
    assert more_prompt <= prompt + 6, "each sample computes the last token of the prompt at most"


def test_unnamed_gens_have_names_of_their_own(engine: lmc.Engine) -> None:
    @lmc.jit
    def program(s: State) -> None:
        s += "x"
        s += lmc.gen("gen_1", max_tokens=1)
        s += [lmc.gen(max_tokens=2), lmc.select(choices=["a", "b"]), lmc.gen(max_tokens=3)]

    out = program.run(engine=engine)
    assert len(out.variables) == 4
    assert out.meta("gen_1").completion_tokens == 1


@lmc.jit
def two_gens(s: State, x: str) -> None:
    s += x
    s += lmc.gen("a")
    s += lmc.gen("b", max_tokens=3)
    if len({s["b"]}) == 1:  # the rest runs eagerly
        s += lmc.gen("c")


@pytest.mark.parametrize("eager", [False, True])
def test_a_run_gives_parameters_to_gens_that_give_none(engine: lmc.Engine, eager: bool) -> None:
    assert "flow.resume" in str(two_gens.trace())
    out = two_gens.run(engine=engine, eager=eager, x="q", max_tokens=5, ignore_eos=True)
    counts = [out.meta(name).completion_tokens for name in "abc"]
    assert counts == [5, 3, 5]
    rows = [{"x": "q"}, {"x": "r"}]
    outs = two_gens.run_batch(rows, engine=engine, eager=eager, max_tokens=5, ignore_eos=True)
    assert outs[0].variables == out.variables
    assert [outs[1].meta(name).completion_tokens for name in "abc"] == [5, 3, 5]
    again = two_gens.run(engine=engine, eager=eager, x="q", max_tokens=7, ignore_eos=True)
    assert again.meta("a").completion_tokens == 7, "it is compiled for each"
    with two_gens.stream(engine=engine, eager=eager, x="q", max_tokens=5, ignore_eos=True) as text:
        assert "".join(text) == out.text


def test_a_programs_own_argument_goes_before_a_parameter(engine: lmc.Engine) -> None:
    @lmc.jit
    def program(s: State, temperature: str) -> None:
        s += temperature
        s += lmc.gen("a", max_tokens=2)

    assert program.run(engine=engine, temperature="hot").text.startswith("hot")


def test_what_cannot_be_given_for_a_run_is_refused(engine: lmc.Engine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no argument 'regex'"):
        two_gens.run(engine=engine, x="q", regex="a")
    with pytest.raises(UsageError, match="regex cannot be given for a whole run"):
        two_gens.run_batch([{"x": "q"}], engine=engine, regex="a")
    with pytest.raises(UsageError, match="top_p is 2"):
        two_gens.run(engine=engine, x="q", top_p=2)
    made = two_gens.compile(x="")
    write_artifact(tmp_path / "p.lmc", Artifact(made.plan, str(made.program)))
    with pytest.raises(UsageError, match="top_p cannot be given to an artifact"):
        lmc.load(tmp_path / "p.lmc").run(engine=engine, x="q", top_p=0.5)


def test_a_matcher_that_fails_in_the_middle_ends_its_own_row(
    engine: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @lmc.jit
    def program(s: State, x: str) -> None:
        s += x
        s += lmc.gen("a", regex="[a-z ]{9}", temperature=1.0)

    rows = [{"x": f"Row {i}: "} for i in range(8)]
    whole = program.run_batch(rows, engine=engine)
    target, made = engine.executor.target, []
    give = target.matcher

    def matcher(automaton: Any) -> Any:
        made.append(give(automaton))
        if len(made) == 3:
            monkeypatch.setattr(type(made[-1]), "mask", failing(type(made[-1]).mask, made[-1]))
        return made[-1]

    def failing(mask: Any, broken: Any) -> Any:
        asked = []

        def asks(self: Any) -> Any:
            if self is broken:
                asked.append(None)
                if len(asked) == 2:
                    raise MemoryError("the table is gone")
            return mask(self)

        return asks

    monkeypatch.setattr(target, "matcher", matcher)
    outs = program.run_batch(rows, engine=engine)
    assert [i for i, out in enumerate(outs) if out.error is not None] == [2]
    assert outs[2].error is not None
    assert outs[2].error.problem == "the constraint failed: the table is gone"
    assert "test_gen_parameters.py" in str(outs[2].error.where)
    for i in {*range(8)} - {2}:
        assert outs[i].variables == whole[i].variables


def test_generate_takes_the_parameters_and_gives_meta(engine: lmc.Engine) -> None:
    made = engine.generate(["a b", "c"], 12, stop_regex=r"\s", top_logprobs=1, ignore_eos=True)
    for one in made:
        assert one.error is None
        assert one.meta is not None
        assert one.meta.finish_reason == one.finish_reason
        assert len(one.meta.top_logprobs) == len(one.token_ids)
        assert not any(c.isspace() for c in one.text)
    with pytest.raises(UsageError, match="takes no n"):
        engine.generate("a", n=2)


def test_b75_samples_in_a_batch_have_one_shape(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += x + lmc.gen("a", max_tokens=3, n=3, temperature=1.0)

    for eager in (False, True):
        outs = p.run_batch([{"x": "one "}, {"x": "two "}], eager=eager)
        assert [len(out["a"]) for out in outs] == [3, 3]
        assert all(isinstance(text, str) for out in outs for text in out["a"])


def test_b69_a_gen_that_a_stop_pattern_ends_holds_what_is_before_it(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += "count: "
        s += lmc.gen("v", regex="8, 9", stop_regex=", 9")

    for eager in (False, True):
        out = p.run(eager=eager)
        assert (out["v"], out.text) == ("8", "count: 8")
        assert out.meta("v").finish_reason == "stop"  # type: ignore[union-attr]
        assert out.meta("v").matched_stop == ", 9"  # type: ignore[union-attr]


def test_a_text_that_could_only_end_but_may_not_goes_on_to_the_limit(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, limit: int) -> None:
        s += "go: "
        s += lmc.gen("v", regex="(ab)+", max_tokens=limit, ignore_eos=True)

    for limit in (2, 3, 8, 9):
        for eager in (False, True):
            out = p.run(limit=limit, eager=eager)
            assert out.error is None
            assert "abababababababababab".startswith(out["v"])
            meta: Any = out.meta("v")
            assert (meta.finish_reason, len(meta.token_ids)) == ("length", limit)


@pytest.mark.parametrize("spelling", ["max_token", "tempo", "shape"])
def test_a_misspelt_parameter_is_told_from_those_there_are(
    engine: lmc.Engine, spelling: str
) -> None:
    def wrong(s: State) -> None:
        s += lmc.gen("a", **{spelling: 3})

    with pytest.raises(TraceError) as traced:
        lmc.jit(wrong).run(engine=engine)
    met = lmc.jit(wrong).run(engine=engine, eager=True).error
    assert isinstance(met, RunError)
    for error in (traced.value, met):
        assert f"unexpected keyword argument '{spelling}'" in str(error)
        assert error.where is not None
        assert error.where.line == wrong.__code__.co_firstlineno + 1
        near = re.search(r"did you mean '?max_tokens", str(error), re.IGNORECASE)
        assert bool(near) is (spelling == "max_token")
