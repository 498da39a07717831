"""Chains of gens give what the gens give one by one, as one request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import lmc
from lmc.errors import CapacityError, PlanError
from lmc.frontend.dsl import State
from lmc.plan import Chain, Plan

APART = lmc.Options(passes="canonicalize,cse,dce")
TOGETHER = lmc.Options(passes="canonicalize,cse,dce,chain-gens")


@pytest.fixture
def engine() -> Iterator[lmc.Engine]:
    with lmc.Engine("fake") as made:
        yield made
        made.core.audit()


@lmc.jit
def talk(s: State, x: str) -> None:
    with s.user():
        s += f"About {x}: "
    with s.assistant():
        s += lmc.gen("a", max_tokens=9, stop="o")  # cuts a token
        s += " so " + x.strip()
        s += lmc.gen("b", max_tokens=4, temperature=1.0)
    with s.user():
        s += s["a"]
    with s.assistant():
        s += lmc.gen("c", max_tokens=3, regex="[a-z]+ (yes|no)")
        s += lmc.gen("d", max_tokens=0)
        s += lmc.gen("e", max_tokens=2, logprobs=True)


@lmc.jit
def too_long(s: State, x: str) -> None:
    s += lmc.gen("a", max_tokens=4)
    s += x
    s += lmc.gen("b", max_tokens=4)
    s += lmc.gen("c", max_tokens=4)


@lmc.jit
def race(s: State, x: str) -> None:
    s += x
    branches = s.fork(3)
    for number, branch in enumerate(branches):
        branch += f"{number}: "
        branch += lmc.gen("a", max_tokens=9 - 3 * number, ignore_eos=True)
        branch += " and "
        branch += lmc.gen("b", max_tokens=7 - number, ignore_eos=True)
    s += branches.first()["b"]
    s += lmc.gen("c", max_tokens=2)


def facts(result: lmc.Result) -> tuple[object, ...]:
    metas = {name: result.meta(name) for name in result.variables}
    return result.variables, result.text, metas, result.error and result.error.problem


@pytest.mark.parametrize("x", ["rain", " the cat ", ""])
def test_all_is_as_one_by_one(x: str) -> None:
    found = []
    for options in (APART, TOGETHER):
        with lmc.Engine("fake") as engine:
            found.append(facts(talk.run(x=x, engine=engine, options=options)))
            found[-1] += (engine.stats.requests, engine.stats.model_steps)
            found[-1] += (engine.stats.prompt_tokens, engine.stats.cached_tokens)
    assert found[0] == found[1]


def test_it_is_submitted_once(engine: lmc.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    submit = engine.core.submit

    def counted(*args: Any) -> Any:
        calls.append(args)
        return submit(*args)

    monkeypatch.setattr(engine.core, "submit", counted)
    talk.run(x="it", engine=engine, options=TOGETHER)
    assert len(calls) == 1


def test_a_later_gen_that_fails_takes_nothing_from_an_earlier_one() -> None:
    found = []
    for options in (APART, TOGETHER):
        with lmc.Engine("fake", kv_tokens=60) as engine:
            result = too_long.run_batch([{"x": "word " * 90}], engine=engine, options=options)
            found.append(next(iter(result)))
            engine.core.audit()
    one, other = found
    assert isinstance(other.error, CapacityError)
    assert str(one.error) == str(other.error)
    assert list(other.variables) == ["a"]
    assert one.variables == other.variables


def test_pieces_of_a_stream_are_those_of_the_gens(engine: lmc.Engine) -> None:
    whole = talk.run(x="it", engine=engine, options=APART)
    stream = talk.stream(x="it", engine=engine, options=TOGETHER)
    pieces = {name: list(stream.text(name)) for name in "abce"}
    assert {n: "".join(p) for n, p in pieces.items()} == {n: whole[n] for n in "abce"}
    assert len(pieces["b"]) > 1
    assert stream.result().text == whole.text


@pytest.mark.parametrize("x", ["it", "the cat sat", "?"])
def test_branches_of_chains_race(engine: lmc.Engine, x: str) -> None:
    eager = race.run(x=x, engine=engine, eager=True)
    assert facts(race.run(x=x, engine=engine, options=TOGETHER))[:2] == facts(eager)[:2]


def test_a_row_is_cancelled_between_its_gens(engine: lmc.Engine) -> None:
    stream = talk.stream(x="it", engine=engine, options=TOGETHER)
    next(iter(stream.text("b")))
    stream.close()
    assert talk.run(x="it", engine=engine)["a"]


def chain_of(plan: Plan) -> Chain:
    return next(instr for instr in plan.body.instrs if isinstance(instr, Chain))


def test_a_plan_with_a_chain_is_read_back() -> None:
    plan = talk.compile(TOGETHER).plan
    assert len(chain_of(plan).links) > 9
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda links: links[-1].update(state=links[0]["into"]),
            "does not go on from",
        ),
        (lambda links: links.clear(), "the first link"),
        (lambda links: links.insert(1, {"op": "start", "into": {"r": 3}}), "cannot be a link"),
    ],
)
def test_damaged_chains_are_refused(change: Any, message: str) -> None:
    data = json.loads(json.dumps(too_long.compile(TOGETHER).plan.to_json()))
    change(next(i for i in data["body"]["instrs"] if i["op"] == "chain")["links"])
    with pytest.raises(PlanError, match=message):
        Plan.from_json(data)


@lmc.jit
def two_long(s: State, x: str) -> None:
    s += x
    s += lmc.gen("a", max_tokens=24, ignore_eos=True)
    s += " and "
    s += lmc.gen("b", max_tokens=4, ignore_eos=True)


def test_what_follows_a_retracted_gen_is_counted_anew() -> None:
    rows = [{"x": f"{n} and then some more of it"} for n in range(4)]
    with lmc.Engine("fake", kv_tokens=90) as engine:
        results = list(two_long.run_batch(iter(rows), engine=engine, options=TOGETHER))
        assert engine.stats.retracted_requests
        engine.core.audit()
    for result in results:
        second = result.meta("b")
        assert second.cached_tokens >= second.prompt_tokens // 2  # what the first gen left


class Slow:
    """A step that a device computes: it is done after some looks."""

    def __init__(self, outcome: Any) -> None:
        self.looks, self._outcome = 0, outcome

    def ready(self) -> bool:
        self.looks += 1
        return self.looks > 20

    def outcome(self) -> Any:
        return self._outcome


def on_a_device(engine: lmc.Engine) -> list[tuple[str, bool]]:
    """Have it compute while other things are done; the texts tokenized, and whether it did."""
    core, tokenizer = engine.core, engine.executor.target.tokenizer
    core.overlaps, core._start = True, lambda step: Slow(core.runner.run(step))
    seen: list[tuple[str, bool]] = []
    encode = tokenizer.encode_markup

    def noted(pieces: Any, **options: Any) -> list[int]:
        seen.append(("".join(text for text, _ in pieces), bool(core._flights)))
        return encode(pieces, **options)

    tokenizer.encode_markup = noted  # type: ignore[method-assign]
    return seen


@lmc.jit
def known(s: State, x: str) -> None:
    s += "Hello "
    s += lmc.gen("a", max_tokens=3, ignore_eos=True)
    s += " and then " + x
    s += lmc.gen("b", max_tokens=3, ignore_eos=True)
    s += " so " + s["a"]
    s += lmc.gen("c", max_tokens=3, ignore_eos=True)


def test_known_texts_are_tokenized_while_a_device_computes(engine: lmc.Engine) -> None:
    wanted = known.run(x="there", engine=engine).text
    seen = on_a_device(engine)
    result = known.run(x="there", engine=engine)
    assert result.text == wanted
    texts = [("Hello ", False), (" and then there", True), (f" so {result['a']}", True)]
    assert seen == texts, "each once, and only the first while the device had nothing to do"


def test_a_text_behind_a_token_that_is_cut_is_tokenized_with_its_rest(engine: lmc.Engine) -> None:
    wanted = talk.run(x="it", engine=engine, options=TOGETHER)
    seen = on_a_device(engine)
    result = talk.run(x="it", engine=engine, options=TOGETHER)
    assert (result.text, result.variables) == (wanted.text, wanted.variables)
    assert any(busy for _, busy in seen)
