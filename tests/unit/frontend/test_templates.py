"""Templates: texts and constrained gens of one expression, matched as one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pydantic
import pytest

import lmc
from lmc import ir
from lmc.codegen.artifact import Artifact, write_artifact
from lmc.errors import ConstraintError, UsageError
from lmc.frontend.dsl import State
from lmc.plan import Plan
from tests.unit.frontend.test_dsl import both


@lmc.jit
def record(s: State, who: str) -> None:
    s += f"Write of {who}.\n"
    s += (
        '{"name": "'
        + lmc.gen("name", regex=r"[A-Z][a-z ]{1,12}", max_tokens=9)
        + '", "age": '
        + lmc.gen("age", regex=r"[0-9]{1,3}", max_tokens=3)
        + "}"
    )
    s += "\nDone: " + lmc.gen("done", choices=["yes", "no"])


def test_each_gen_holds_what_it_matched(fake: lmc.Engine) -> None:
    for who in ("Ann", "Bob", ""):
        out = both(record, who=who)
        assert out.error is None
        assert re.fullmatch(r"[A-Z][a-z ]{1,12}", out["name"])
        assert re.fullmatch(r"[0-9]{1,3}", out["age"])
        written = f'{{"name": "{out["name"]}", "age": {out["age"]}}}\nDone: {out["done"]}'
        assert out.text == f"Write of {who}.\n{written}"
        assert {out.meta(v).finish_reason for v in out.variables} == {"constraint"}  # type: ignore[union-attr]


def test_it_is_one_model_call(fake: lmc.Engine) -> None:
    graph = record.trace()
    text = str(graph)
    assert text.count("lm.match") == 2
    assert "lm.gen" not in text
    assert str(ir.parse(text)) == text
    plan = record.compile().plan
    assert Plan.from_json(plan.to_json()) == plan


def test_what_only_closes_it_is_not_generated(fake: lmc.Engine) -> None:
    closing = "." + " and so on" * 40

    @lmc.jit
    def p(s: State) -> None:
        s += "Say: " + lmc.gen("a", regex="[a-c]{2}") + closing
        s += lmc.gen("b", max_tokens=2)

    out = both(p)
    assert out.text == f"Say: {out['a']}{closing}{out['b']}"
    assert fake.stats.generated_tokens < 20


def test_a_closing_text_of_any_length_is_not_generated(fake: lmc.Engine) -> None:
    closing = "." + " and so on" * 300  # more than is looked ahead for forced text

    @lmc.jit
    def p(s: State) -> None:
        s += "Say: " + lmc.gen("a", regex="[a-c]{2}") + closing

    out = both(p)
    assert out.text == f"Say: {out['a']}{closing}"
    assert fake.stats.generated_tokens + fake.stats.forced_tokens < 20


def test_a_shortest_text_far_beyond_the_limit_is_not_written_out(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmc.constraints import closing

    monkeypatch.setattr(closing, "shortest_text", None)

    @lmc.jit
    def p(s: State) -> None:
        s += "x" + lmc.gen("a", regex="(?:a{1000}){1000}", max_tokens=3) + "c"

    out = both(p)
    assert out.error is None
    assert set(out["a"]) == {"a"}
    assert out.meta("a").finish_reason == "length"  # type: ignore[union-attr]


def test_tokens_run_over_the_seams(fake: lmc.Engine) -> None:
    # what the tokenizer would write for the whole text is allowed, across all its seams
    tokenizer = fake.executor.target.tokenizer
    said = set()
    for seed in range(60):

        @lmc.jit
        def p(s: State) -> None:
            s += "the" + lmc.gen("a", regex="( the)+", temperature=3.0) + " the end"

        out = p.run(seed=seed)
        assert out.error is None
        assert re.fullmatch("( the)+", out["a"])
        said.add(len(out.meta("a").token_ids) < len(tokenizer.encode(out["a"], first=False)))  # type: ignore[union-attr]
    assert said  # whatever was drawn, every text was taken apart


def test_b49_the_text_before_is_cut_anew(fake: lmc.Engine) -> None:
    tokenizer = fake.executor.target.tokenizer
    whole = tokenizer.encode("say the", first=True)
    assert len(whole) < len(tokenizer.encode("say t", first=True)) + len(
        tokenizer.encode("he", first=False)
    )

    @lmc.jit
    def joined(s: State) -> None:
        s += "say t" + lmc.gen("a", choices=["he"])

    @lmc.jit
    def apart(s: State) -> None:
        s += "say t"
        s += lmc.gen("a", choices=["he"])

    for program in (joined, apart):
        out = both(program)
        assert (out["a"], out.text) == ("he", "say the")
    assert joined.run().meta("a").prompt_tokens < apart.run().meta("a").prompt_tokens  # type: ignore[union-attr]


def test_texts_that_are_not_known_yet_are_parts_too(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += "Q" + lmc.gen("a", regex="[0-9]{1,4}", temperature=1.0) + x + s_of(s, x)
        s += s["a"] + lmc.gen("b", choices=["l", "r"], temperature=1.0) + s["a"] + "!"

    def s_of(s: State, x: str) -> Any:
        return lmc.gen("c", regex="[0-9]{1,4}", temperature=1.0) + x

    for x in ("1", ", ", "", "é"):
        for seed in (1, 2):
            out = p.run(x=x, seed=seed)
            eager = p.run(x=x, seed=seed, eager=True)
            assert (out.variables, out.text) == (eager.variables, eager.text)
            a, b, c = out["a"], out["b"], out["c"]
            assert out.text == f"Q{a}{x}{c}{x}{a}{b}{a}!"


def test_other_things_in_a_row_are_done_in_order(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += (
            "Hi "
            + lmc.gen("free", max_tokens=2)
            + ", "
            + lmc.select("pick", ["x", "y"])
            + ": "
            + lmc.gen("word", regex="[a-z]{3}")
            + lmc.gen("hot", regex="[a-z]{3}", temperature=0.9)
            + "."
            + lmc.gen("stopped", regex="[a-z]*", stop="e", max_tokens=3)
            + "?"
        )
        s += lmc.user("again " + lmc.gen("inner", choices=["q"]) + "!")

    out = both(p)
    assert out.error is None
    assert str(p.trace()).count("lm.match") == 3  # word; hot; inner
    front = f"Hi {out['free']}, {out['pick']}: {out['word']}{out['hot']}.{out['stopped']}?"
    assert out.text.startswith(front)


def test_a_record_of_keys_stands_alone(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += (
            "A: "
            + lmc.gen("a", json_schema={"type": "object", "maxProperties": 1}, max_tokens=40)
            + "\nB: "
            + lmc.gen("b", choices=["x"])
            + "\n"
        )

    out = both(p)
    assert out.error is None
    assert out.text == f"A: {out['a']}\nB: x\n"


def test_it_ends_in_time_or_says_that_it_was_too_short(fake: lmc.Engine) -> None:
    def program(limit: int) -> lmc.Program:
        @lmc.jit
        def p(s: State) -> None:
            s += "<" + lmc.gen("a", regex="[a-z]{4,}", max_tokens=limit, temperature=1.0) + ", "
            s += (
                lmc.gen("x", regex="[a-z]{20}", max_tokens=limit)
                + ";"
                + lmc.gen("y", regex="z", max_tokens=limit)
            )

        return p

    for limit in (8, 30):
        out = both(program(limit))
        assert out.meta("a").finish_reason == "constraint"  # type: ignore[union-attr]
    short = both(program(0))
    assert short.error is None
    assert short.meta("x").finish_reason == "length"  # type: ignore[union-attr]
    assert short.meta("y").finish_reason == "length"  # type: ignore[union-attr]
    assert short["y"] == ""


def test_a_resumed_program_takes_its_variables_along(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += "n: " + lmc.gen("n", regex="[0-9]{2}") + ", m: " + lmc.gen("m", regex="[0-9]")
        table = {int(s["n"]): x}  # ends the graph
        s += " again " + lmc.gen("k", regex="[a-z]{2}") + "."
        return list(table)

    assert "flow.resume" in str(p.trace())
    out = both(p, x="q")
    assert out.error is None
    assert out.value == [int(out["n"])]
    assert list(out.variables) == ["n", "m", "k"]
    assert out.meta("n").token_ids  # type: ignore[union-attr]


def test_forks_and_batches(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> None:
        s += f"About {x}: "
        forks = s.fork(3)
        forks += lambda i: f"({i}) " + lmc.gen("v", regex="[a-z]{1,6}", temperature=0.8) + ";"
        forks.join()

    rows = [{"x": x} for x in ("a", "b", "a")]
    outs = p.run_batch(rows)
    assert [o.variables for o in outs] == [o.variables for o in p.run_batch(rows, eager=True)]
    assert all(re.fullmatch("[a-z]{1,6}", v) for o in outs for v in o["v"])


def test_artifacts_carry_them(tmp_path: Path, fake: lmc.Engine) -> None:
    made = record.compile()
    write_artifact(tmp_path / "x.lmc", Artifact(made.plan, str(made.program)))
    out = lmc.load(tmp_path / "x.lmc").run(who="Ann")
    assert out.variables == record.run(who="Ann").variables


def test_without_jumping_forward_the_texts_are_valid_too(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        part = lmc.gen("a", regex="[0-9]{3}", jump_forward=False)
        s += '{"number": ' + part + ', "unit": "metre"}'

    out = both(p)
    assert re.fullmatch("[0-9]{3}", out["a"])
    assert out.meta("a").forced_tokens == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: "a" + lmc.gen("x", regex="(") + "b", ConstraintError, "."),
        (lambda: lmc.template("a", 3), UsageError, "3 cannot be a part of a template"),
        (lambda: "a" + lmc.gen("x", regex="a(?=b)c") + "b", ConstraintError, "nothing can match"),
    ],
)
def test_wrong_ones_are_refused_with_the_line(
    make: Any, error: type, match: str, fake: lmc.Engine
) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s += make()

    with pytest.raises(error, match=match) as caught:
        p.run()
    assert caught.value.where is not None
    assert caught.value.where.file.endswith("test_templates.py")
    eager = p.run(eager=True)
    assert isinstance(eager.error, error)


def test_a_closed_schema_is_a_part_like_others(fake: lmc.Engine) -> None:
    class Point(pydantic.BaseModel):
        x: int = pydantic.Field(ge=0, le=99)
        name: str = pydantic.Field(max_length=3)

    @lmc.jit
    def p(s: State) -> None:
        s += "Points: [" + lmc.gen("a", json_schema=Point) + ", " + lmc.gen("b", json_schema=Point)
        s += "]"

    out = both(p)
    assert str(p.trace()).count("lm.match") == 1
    assert out.text == f"Points: [{out['a']}, {out['b']}]"
    for name in "ab":
        Point.model_validate_json(out[name])


def test_the_closing_text_lends_no_tokens(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, limit: int) -> None:
        s += "q " + lmc.gen("x", regex="[a-z]{60,}", max_tokens=limit) + ". " + "Q9!" * 50

    for limit in (0, 3, 6):
        out = both(p, limit=limit)
        meta: Any = out.meta("x")
        assert len(meta.token_ids) <= limit + 1  # one token before it may have been held back
        assert meta.finish_reason == "length"
    whole = both(p, limit=70)
    assert whole.meta("x").finish_reason == "constraint"  # type: ignore[union-attr]
    assert whole.text.endswith(". " + "Q9!" * 50)


@pytest.mark.parametrize("spare", [0, 1, 4])
def test_it_is_complete_if_there_is_room_for_the_shortest(spare: int, fake: lmc.Engine) -> None:
    encode = fake.executor.target.tokenizer.encode
    least = max(len(encode("a" * 12 + '"', first=False)), 12)

    @lmc.jit
    def p(s: State, word: str) -> None:
        note = lmc.gen("note", regex="[a-z]{12,}", max_tokens=least + spare, temperature=1.0)
        s += word + '{"note": "' + note + '", "more": [1, 2, 3]}'

    for out in p.run_batch([{"word": f"{n}: "} for n in range(12)]):
        assert out.error is None
        assert out.meta("note").finish_reason == "constraint"  # type: ignore[union-attr]


@pytest.mark.parametrize("spare", [0, 1, 5])
@pytest.mark.parametrize("end", ["\u00e9", "\U0001f642", "\u00e9. Q9!", '"\U0001f642'])
def test_a_template_is_not_cut_inside_the_character_that_closes_it(
    end: str, spare: int, fake: lmc.Engine
) -> None:
    @lmc.jit
    def p(s: State, word: str) -> None:
        digits = lmc.gen("n", regex="[0-9]+", max_tokens=1 + spare, temperature=1.0)
        s += word + "n: " + digits + end

    for index in range(8):
        out = p.run(word=f"{index} ", seed=index)
        assert out.text == f"{index} n: {out['n']}{end}"
        assert out.meta("n").finish_reason == "constraint"  # type: ignore[union-attr]
        assert p.run(word=f"{index} ", seed=index, eager=True).text == out.text
