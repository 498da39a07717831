"""Whatever runs beside it, a request gives what it gives alone, and no KV slot is ever lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmc.constraints import automaton_of
from lmc.errors import Cancelled, CapacityError, RunError
from lmc.params import GenParams
from lmc.runtime import composing, engine, scheduler
from lmc.runtime.device_memory import DeviceMemoryError
from lmc.runtime.engine import EngineCore, Handle
from lmc.runtime.fake import FakeRunner
from lmc.runtime.request import (
    Finish,
    GenRequest,
    GenResult,
    Outcome,
    PrefillRequest,
    Request,
    Sampling,
    ScoreRequest,
    ScoreResult,
    Step,
)
from tests.engine_oracle import (
    CONTEXT,
    EOS,
    SIZE,
    TOKEN_BYTES,
    DeadEnd,
    Words,
    array,
    expect_gen,
    expect_scores,
    score_slots,
)

# Few different keys, of both kinds, so that prompts share prefixes and differ in `made` alone.
KEYS = st.lists(st.sampled_from([0, 1, 2, 3, 20]), min_size=1, max_size=14)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


def _params(max_tokens: int, min_tokens: int, more: dict[str, Any], **fields: Any) -> GenParams:
    least = min(min_tokens, max_tokens)
    return GenParams(max_tokens=max_tokens, min_tokens=least, **fields, **more)


PARAMS = st.builds(
    _params,
    min_tokens=st.sampled_from([0, 0, 1, 4]),
    more=st.fixed_dictionaries(
        {},
        optional={
            "stop_token_ids": st.sampled_from([(2,), (0, min(EOS))]),
            "frequency_penalty": st.sampled_from([0.5, -1.0]),
            "presence_penalty": st.sampled_from([1.5, -0.25]),
            "repetition_penalty": st.sampled_from([1.3, 0.8]),
            "logprobs": st.booleans(),
            "top_logprobs": st.integers(0, 3),
        },
    ),
    max_tokens=st.integers(0, 30),
    stop=st.sampled_from([(), (), ("ab",), ("b", "a b"), ("é",), ("\n", "cab.")]),
    stop_regex=st.sampled_from([(), (), (r"[ab]{2}",), (r"\bc", r"a\s")]),
    ignore_eos=st.booleans(),
    jump_forward=st.booleans(),
)
SAMPLING = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.7]),
    top_k=st.sampled_from([0, 3]),
    min_p=st.sampled_from([0.0, 0.2]),
    draw=st.integers(0, 2),
)
PRIORITY = st.sampled_from([(), (0,), (0, 1), (1,)])


def gen_request(
    keys: list[int],
    priority: tuple[int, ...],
    params: GenParams,
    sampling: Sampling,
    constraint: Words | None = None,
) -> GenRequest:
    automata = tuple(automaton_of("stop_regex", source) for source in params.stop_regex)
    bias = ((1, 2.0), (3, -4.5)) if sampling.draw == 1 else ()
    return GenRequest(array(keys), priority, params, sampling, constraint, automata, bias)


class Stumbling(FakeRunner):
    """A fake runner that fails when told to, before or after it has written KV entries.

    It has memory for steps of `most_rows` only.
    """

    stumble: str = ""
    most_rows = 1 << 30
    looks_early = False  # if steps are started: whether memory is short at once

    def need_memory(self, step: Step) -> None:
        if step.repeats * sum(len(s.tokens) for s in step.segments) > self.most_rows:
            raise DeviceMemoryError("no room")

    def run(self, step: Step) -> Outcome:
        self.need_memory(step)
        how, self.stumble = self.stumble, ""
        if how == "at once":
            raise OSError("the device is gone")
        outcome = super().run(step)
        if how == "at the end":
            if step.repeats > 1:
                return replace(outcome, later=self._broken(outcome))
            raise ValueError
        return outcome

    def _broken(self, outcome: Outcome) -> Iterator[Outcome]:
        """What repeats of a step gave, but for the last."""
        yield from list(outcome.later)[:-1]
        raise ValueError


class Flying:
    """A step that was computed when it was started, and is told of when it is asked for.

    It says that it is not ready for the first `glances` times.
    """

    def __init__(self, compute: Callable[[], Outcome], glances: int = 0) -> None:
        self._glances = glances
        try:
            self._outcome: Outcome | Exception = compute()
        except Exception as error:
            self._outcome = error

    def ready(self) -> bool:
        self._glances -= 1
        return self._glances < 0

    def outcome(self) -> Outcome:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class Overlapping(Stumbling):
    """Like a device that computes while other things are done."""

    glances = 0

    def start(self, step: Step) -> Flying:
        if self.looks_early:
            self.need_memory(step)
        if self.stumble == "at once":
            self.run(step)  # raises
        return Flying(lambda: self.run(step), self.glances)


class Lagging(Overlapping):
    """Like a device that takes its time, so that two steps are under way."""

    glances = 4


@dataclass
class Asked:
    """A request, what is expected of it, and what came."""

    request: Request
    words: list[list[int]] | None = None
    outcomes: list[Any] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    handle: Handle | None = None
    cancelled: bool = False
    failed: bool = False
    goes_on: bool = False  # its chain


@dataclass
class Link:
    """A gen of a chain, and what comes before it in the prompt."""

    keys: list[int]
    params: GenParams
    sampling: Sampling
    words: list[list[int]] | None
    elsewhere: bool  # after another prompt than what the chain has made so far


FORCED = st.sampled_from([[[0, 1], [0, 2]], [[3, 1, 0], [3, 1, 2, 2], [3, 1, 2, 3]]])
LINKS = st.builds(
    Link,
    keys=st.lists(st.sampled_from([0, 2, 20]), max_size=3),
    params=PARAMS.map(lambda p: replace(p, max_tokens=p.max_tokens % 6, min_tokens=0)),
    sampling=SAMPLING,
    words=st.none() | st.lists(TOKENS, min_size=1, max_size=3) | FORCED,
    elsewhere=st.sampled_from([False] * 7 + [True]),
)


class Chained:
    """A chain of gens: each request is known when the one before it has ended."""

    def __init__(self, machine: EngineMachine, keys: list[int], links: list[Link]) -> None:
        self.machine, self.links = machine, list(links)
        self.handle: Handle | None = None
        self.current = self._ask(keys, self.links.pop(0))

    def _ask(self, keys: list[int], link: Link) -> Asked:
        constraint = Words(link.words) if link.words else None
        request = gen_request(keys, (), link.params, link.sampling, constraint)
        if self.links:
            request.follow = self.follow
        asked = Asked(request, link.words, handle=self.handle)
        self.machine.asked.append(asked)
        return asked

    def follow(self, result: GenResult) -> GenRequest | None:
        before = self.current
        before.outcomes.append(result)
        before.goes_on = True
        link = self.links.pop(0)
        keys = before.request.keys.tolist() + [2 * t + 1 for t in result.tokens[: result.kept]]
        self.current = self._ask([20, *keys] if link.elsewhere else keys + link.keys, link)
        assert isinstance(self.current.request, GenRequest)
        return self.current.request

    def submit(self) -> None:
        self.handle = self.machine.core.submit(
            self.current.request,
            lambda outcome: self.current.outcomes.append(outcome),
            lambda piece: self.current.pieces.append(piece),
        )
        for asked in self.machine.asked:
            asked.handle = asked.handle or self.handle


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        kv_tokens=st.integers(10, 40),
        max_batch_tokens=st.integers(1, 20),
        max_running=st.integers(1, 6),
        max_overtaken=st.integers(0, 4),
        headroom=st.integers(0, 4),
        repeats=st.sampled_from([1, 1, 3, 9]),
        kind=st.sampled_from([Stumbling, Overlapping, Lagging]),
        worthwhile=st.sampled_from([1, 4, 2048]),
    )
    def build(
        self,
        kv_tokens: int,
        repeats: int,
        kind: type[Stumbling],
        worthwhile: int = 1,
        **limits: int,
    ) -> None:
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(scheduler, "WORTHWHILE", worthwhile)
        self.patches.setattr(composing, "SPREAD", worthwhile)
        self.patches.setattr(composing, "MANY", 2)
        self.patches.setattr(engine, "FEW", worthwhile)
        self.runner = kind(SIZE, kv_tokens, CONTEXT, TOKEN_BYTES, EOS, repeats)
        self.core = EngineCore(
            self.runner,
            TOKEN_BYTES,
            EOS,
            check=True,
            **limits,
        )
        self.asked: list[Asked] = []
        self.links = 0

    def submit(self, asked: Asked) -> None:
        asked.handle = self.core.submit(asked.request, asked.outcomes.append, asked.pieces.append)
        self.asked.append(asked)

    @rule(keys=KEYS, params=PARAMS, sampling=SAMPLING, priority=PRIORITY)
    def gen(
        self, keys: list[int], params: GenParams, sampling: Sampling, priority: tuple[int, ...]
    ) -> None:
        self.submit(Asked(gen_request(keys, priority, params, sampling)))

    @rule(
        keys=KEYS,
        params=PARAMS,
        sampling=SAMPLING,
        words=st.lists(TOKENS, min_size=1, max_size=3),
        dead=st.sampled_from([False, False, False, True]),
    )
    def constrained(
        self,
        keys: list[int],
        params: GenParams,
        sampling: Sampling,
        words: list[list[int]],
        dead: bool,
    ) -> None:
        constraint = DeadEnd(words) if dead else Words(words)
        self.submit(Asked(gen_request(keys, (), params, sampling, constraint), words))

    @rule(keys=KEYS, links=st.lists(LINKS, min_size=2, max_size=4))
    def chained(self, keys: list[int], links: list[Link]) -> None:
        Chained(self, keys, links).submit()
        self.links += len(links)

    @rule(keys=KEYS, continuations=st.lists(TOKENS, min_size=1, max_size=4), priority=PRIORITY)
    def score(
        self, keys: list[int], continuations: list[list[int]], priority: tuple[int, ...]
    ) -> None:
        self.submit(Asked(ScoreRequest(array(keys), priority, continuations)))

    @rule(keys=KEYS)
    def prefill(self, keys: list[int]) -> None:
        self.submit(Asked(PrefillRequest(array(keys))))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """A gen after what an earlier one made."""
        ended = [a for a in self.asked if a.outcomes and isinstance(a.outcomes[0], GenResult)]
        assume(ended)
        before = data.draw(st.sampled_from(ended))
        result = before.outcomes[0]
        keys = before.request.keys.tolist() + [2 * t + 1 for t in result.tokens[: result.kept]]
        assume(len(keys) < CONTEXT)
        self.submit(Asked(GenRequest(array(keys), (), GenParams(max_tokens=3))))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        assert asked.handle is not None
        if not asked.handle.ended:
            for other in self.asked:  # the gen that its chain is at
                other.cancelled |= other.handle is asked.handle and not other.outcomes
        self.core.cancel(asked.handle)
        while not asked.handle.ended and self.core._flights:
            self.core.step()  # with its end, at the latest
        assert asked.handle.ended, "a cancelled request runs on"

    @rule()
    def nothing_else_comes(self) -> None:
        self.core.settle_for_few()

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.core.step()

    @precondition(lambda self: self.core.has_work)
    @rule(how=st.sampled_from(["at once", "at the end"]))
    def fail(self, how: str) -> None:
        self.runner.stumble = how
        before = [a for a in self.asked if not a.outcomes]
        self.core.step()
        self.runner.stumble = ""
        for asked in before:
            if asked.outcomes and type(asked.outcomes[0]) is RunError:
                asked.failed = asked.outcomes[0].__cause__ is not None

    @rule(rows=st.sampled_from([1, 2, 5, 1 << 30]), early=st.booleans())
    def hunger(self, rows: int, early: bool) -> None:
        self.runner.most_rows, self.runner.looks_early = rows, early

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), keep=st.integers(0, 5))
    def hint(self, data: st.DataObject, keep: int) -> None:
        keys = data.draw(st.sampled_from(self.asked)).request.keys
        if data.draw(st.booleans()):
            self.core.release(keys, keep)
        else:
            self.core.expect(keys, keep)

    @invariant()
    def no_slot_is_lost(self) -> None:
        if hasattr(self, "core"):
            self.core.audit()

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        try:
            self.come_to_an_end()
        finally:
            self.patches.undo()

    def come_to_an_end(self) -> None:
        work = sum(len(a.request.keys) + 30 for a in self.asked) + 60 * self.links
        bound = 20 + 8 * work
        while self.core.has_work:
            self.core.step()
            bound -= 1
            assert bound > 0, "the engine does not come to an end"
        for asked in self.asked:
            assert len(asked.outcomes) == 1, "called back once"
            if isinstance(self.runner, Overlapping):  # whoever asks next hears of a failed step
                problem = str(getattr(asked.outcomes[0], "problem", ""))
                asked.failed |= problem.startswith("a step of the model failed")
            check(asked, self.runner.kv_tokens)
        sizes = self.core.statistics()
        assert sizes["cache_pinned"] == 0, "a lease outlived its request"
        assert sizes["free"] + sizes["cache_held"] == sizes["capacity"]


def check(asked: Asked, capacity: int) -> None:
    """Compare an outcome with what the request gives alone."""
    request, outcome = asked.request, asked.outcomes[0]
    if asked.failed:
        return
    if len(request.keys) > CONTEXT:
        assert isinstance(outcome, CapacityError)
    elif isinstance(request, GenRequest):
        check_gen(asked, request, capacity)
    elif asked.cancelled:
        assert isinstance(outcome, Cancelled)
    elif isinstance(request, ScoreRequest):
        if score_slots(request) > capacity:
            assert isinstance(outcome, CapacityError)
        else:
            assert isinstance(outcome, ScoreResult)
            assert outcome.logprobs == expect_scores(request)
    elif len(request.keys) > capacity:
        assert isinstance(outcome, CapacityError)
    else:
        assert outcome is None


def check_gen(asked: Asked, request: GenRequest, capacity: int) -> None:
    outcome = asked.outcomes[0]
    expected = expect_gen(request, asked.words)
    if isinstance(outcome, GenResult) and outcome.finish is Finish.CANCELLED:
        assert asked.cancelled
        assert outcome.tokens == expected.tokens[: len(outcome.tokens)]
    elif expected.slots > capacity:
        assert isinstance(outcome, CapacityError), outcome
        return
    elif expected.kind == "dead end":
        assert type(outcome) is RunError
        assert "dead end" in outcome.problem
        return
    else:
        assert isinstance(outcome, GenResult), outcome
        assert outcome.tokens == expected.tokens
        assert (outcome.text, outcome.finish) == (expected.text, expected.finish)
        assert outcome.stop == expected.stop
        assert same(outcome.logprobs, expected.logprobs)
        assert outcome.top_logprobs == expected.tops
    said = "".join(asked.pieces)  # a chain that goes on has the rest from the result
    assert outcome.text.startswith(said) if asked.goes_on else outcome.text == said
    assert outcome.prompt_tokens == len(request.keys)
    assert 0 <= outcome.cached_tokens <= outcome.prompt_tokens


def same(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Equal, NaN and all."""
    return [str(x) for x in ours] == [str(x) for x in theirs]


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=80, stateful_step_count=30, derandomize=True, deadline=None
)


@given(
    prompts=st.lists(KEYS, min_size=2, max_size=7),
    lengths=st.lists(st.integers(1, 25), min_size=7, max_size=7),
    kv_tokens=st.integers(16, 40),
    max_batch_tokens=st.integers(2, 30),
    max_running=st.integers(2, 7),
    temperature=st.sampled_from([0.0, 1.0]),
    headroom=st.integers(0, 3),
)
@settings(max_examples=100, derandomize=True, deadline=None)
def test_texts_that_outgrow_the_pool_together_come_out_as_alone(
    prompts: list[list[int]],
    lengths: list[int],
    kv_tokens: int,
    max_batch_tokens: int,
    max_running: int,
    temperature: float,
    headroom: int,
) -> None:
    runner = FakeRunner(SIZE, kv_tokens, CONTEXT, TOKEN_BYTES, EOS, most_repeats=1 + headroom)
    core = EngineCore(
        runner,
        TOKEN_BYTES,
        EOS,
        max_batch_tokens=max_batch_tokens,
        max_running=max_running,
        headroom=headroom,
        check=True,
    )
    everything: list[Asked] = []
    for draw, (keys, length) in enumerate(zip(prompts, lengths, strict=False)):
        params = GenParams(max_tokens=length, ignore_eos=True)
        sampling = Sampling(temperature=temperature, draw=draw)
        asked = Asked(GenRequest(array(keys), (), params, sampling))
        asked.handle = core.submit(asked.request, asked.outcomes.append, asked.pieces.append)
        everything.append(asked)
    for _ in range(sum(len(p) + n for p, n in zip(prompts, lengths, strict=False)) * 3):
        if not core.step():
            break
    assert not core.has_work, "the engine does not come to an end"
    for asked in everything:
        check(asked, kv_tokens)


@given(
    chains=st.lists(
        st.tuples(KEYS, st.lists(LINKS, min_size=2, max_size=5)), min_size=1, max_size=4
    ),
    kv_tokens=st.integers(14, 40),
    max_batch_tokens=st.integers(2, 30),
    headroom=st.integers(0, 3),
    repeats=st.sampled_from([1, 4]),
    kind=st.sampled_from([Stumbling, Overlapping]),
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_gens_of_chains_come_out_as_alone(
    chains: list[tuple[list[int], list[Link]]],
    repeats: int,
    kind: type[Stumbling],
    **limits: int,
) -> None:
    machine = EngineMachine()
    machine.build(repeats=repeats, kind=kind, max_running=3, max_overtaken=4, **limits)
    for keys, links in chains:
        machine.chained(keys, links)
    machine.teardown()
