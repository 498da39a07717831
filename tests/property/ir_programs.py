"""Strategies that make valid programs, through the builder, from every op there is."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from lmc.ir import Const, Operand, Program, ProgramBuilder, RegionBuilder, Type, Value
from lmc.ir.ops import (
    Attempt,
    Chain,
    Extend,
    Gen,
    HostCall,
    If,
    MakeList,
    Match,
    Pack,
    Pick,
    Prefill,
    Pure,
    Race,
    Release,
    Resume,
    Ret,
    Role,
    Score,
    Select,
    Start,
    StateText,
    Typed,
)
from lmc.ir.types import BOOL, FLOAT, INT, STATE, TEXT, parse_type
from lmc.params import GenParams
from lmc.textops import HOST_TYPES, PURE

few_texts = st.sampled_from(["", "a", "b ", "yes", "no", " Strip me ", "x,y,z", "3"])
few_hints = st.sampled_from("abs")
any_texts = st.text(max_size=8)

gen_params = st.builds(
    GenParams,
    max_tokens=st.integers(0, 9),
    stop=st.lists(st.sampled_from(["\n", '"', "."]), max_size=2).map(tuple),
    temperature=st.sampled_from([0.0, 0.0, 0.7]),
    top_k=st.sampled_from([0, 1, 5]),
    seed=st.sampled_from([None, 3]),
    regex=st.sampled_from([None, "yes|no", r'"\d+"']),
) | st.builds(
    GenParams,
    min_tokens=st.integers(0, 3),
    stop_regex=st.sampled_from([(), (r"\s", "[.]")]),
    stop_token_ids=st.sampled_from([(), (3, 7)]),
    min_p=st.sampled_from([0.0, 0.25]),
    frequency_penalty=st.sampled_from([0.0, -1.5, 1]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    logit_bias=st.sampled_from([(), (("a", 2.5), (17, -100))]),
    logprobs=st.booleans(),
    top_logprobs=st.integers(0, 20),
    json_schema=st.just('{"type": "integer"}'),
    whitespace=st.sampled_from([None, "pretty"]),
    waive=st.sampled_from([(), ("format", "uniqueItems")]),
)

matched_params = st.builds(
    GenParams,
    max_tokens=st.integers(0, 9),
    temperature=st.sampled_from([0.0, 0.0, 0.7]),
    choices=st.sampled_from([("a", "b"), ("yes", "no", " Strip me ")]),
)

literals: dict[Type, st.SearchStrategy[Any]] = {
    TEXT: few_texts,
    BOOL: st.booleans(),
    INT: st.integers(-3, 3),
    FLOAT: st.sampled_from([-1.5, 0.0, -0.0, 2.0]),
}


KINDS = [  # of nodes; listed more often, drawn more often
    *(
        "start",
        "extend",
        "extend",
        "extend",
        "role",
        "gen",
        "gen",
        "match",
        "chain",
        "select",
        "score",
    ),
    *("prefill", "text", "race", "pick", "attempt"),
    *("release", "pure", "pure", "pure", "list", "pack", "host", "host", "typed"),
]


class _Maker:
    """Draws a program; equal draws are likely, so that passes find something to do."""

    def __init__(
        self, draw: Any, texts: st.SearchStrategy[str], hints: st.SearchStrategy[str]
    ) -> None:
        self.draw = draw
        self.literals = {**literals, TEXT: texts}
        self.hints = hints

    def operand(self, visible: list[Value], kind: Type) -> Operand | None:
        """A value of this type, or a literal; None if there is neither."""
        values = [v for v in visible if v.type == kind]
        if values and (kind not in self.literals or self.draw(st.integers(0, 2))):
            return self.draw(st.sampled_from(values))
        if kind in self.literals:
            return Const(self.draw(self.literals[kind]))
        return None

    def texts(self, visible: list[Value], least: int = 0) -> tuple[Operand, ...]:
        count = self.draw(st.integers(least, 3))
        found = (self.operand(visible, TEXT) for _ in range(count))
        return tuple(operand for operand in found if operand is not None)

    def anything(self, visible: list[Value]) -> Operand:
        values = [v for v in visible if v.type != STATE]
        literal = st.sampled_from([None, True, 1, 1.0, -0.0, 0, False]).map(Const)
        return self.draw(st.sampled_from(values) | literal if values else literal)

    def some(self, visible: list[Value]) -> tuple[Operand, ...]:
        values = [v for v in visible if v.type != STATE]
        return tuple(self.draw(st.lists(st.sampled_from(values), max_size=2))) if values else ()

    def host(self, visible: list[Value]) -> HostCall:
        args = tuple(self.anything(visible) for _ in range(self.draw(st.integers(0, 2))))
        return HostCall(
            args,
            fn=self.draw(st.sampled_from("fg")),
            names=("key",) if args and self.draw(st.booleans()) else (),
            gives=self.draw(st.sampled_from(HOST_TYPES)),
            pure=self.draw(st.booleans()),
            after=self.some(visible),
        )

    def pure(self, visible: list[Value]) -> Pure | None:
        fn = self.draw(st.sampled_from(sorted(PURE)))
        args: list[Operand] = []
        for takes in PURE[fn].takes:
            times = self.draw(st.integers(0, 3)) if takes.endswith("*") else 1
            for _ in range(times):
                if takes == "any":
                    args.append(self.anything(visible))
                    continue
                operand = self.operand(visible, parse_type(takes.removesuffix("*")))
                if operand is None:
                    return None
                args.append(operand)
        return Pure(fn, tuple(args))

    def chain(self, state: Value, visible: list[Value], first_draw: int) -> Chain:
        texts: list[Operand] = []
        links, gens = ["gen"], 1
        for link in self.draw(st.lists(st.sampled_from(["gen", "text", "made", "role"]))):
            if link == "text":
                text = self.operand(visible, TEXT)
                assert text is not None
                texts.append(text)
            elif link == "made":
                link = f"made {self.draw(st.integers(0, gens - 1))}"
            elif link == "role":
                link = self.draw(st.sampled_from(["begin user", "end a b"]))
            gens += link == "gen"
            links.append(link)
        count = range(gens + 1)
        return Chain(
            state,
            tuple(texts),
            (*links, "gen"),
            tuple(self.draw(self.hints) for _ in count),
            tuple(self.draw(gen_params) for _ in count),
            tuple(first_draw + n for n in count),
        )

    def region(
        self,
        body: RegionBuilder,
        visible: list[Value],
        calls: list[tuple[Value, Value]],
        depth: int,
        alive: list[Value],
        made_calls: int = 0,
    ) -> None:
        """Fill a region; `alive` are the visible states that were not released."""
        visible, calls, alive = list(visible), list(calls), list(alive)

        def add(op: Any, **more: Any) -> tuple[Value, ...]:
            made = body.add(op, **more)
            visible.extend(made)
            alive.extend(v for v in made if v.type == STATE)
            return made

        won: list[tuple[Operand, int]] = []
        for _ in range(self.draw(st.integers(0, 10))):
            kind = self.draw(st.sampled_from(KINDS))
            if kind == "start" or not alive:
                add(Start())
                continue
            state = self.draw(st.sampled_from(alive))
            if kind == "extend":
                add(Extend(state, self.texts(visible)))
            elif kind == "role":
                edge = self.draw(st.sampled_from(["begin", "end"]))
                add(Role(state, self.draw(st.sampled_from(["user", "assistant"])), edge))
            elif kind == "gen":
                name, params = self.draw(self.hints), self.draw(gen_params)
                calls.append(add(Gen(state, name, params, made_calls)))
                made_calls += 1
            elif kind == "match":
                texts = self.texts(visible, 1)
                gens = tuple(self.draw(matched_params) for _ in texts)
                names = tuple(f"{self.draw(self.hints)}{nth}" for nth in range(len(texts)))
                op = Match(state, texts, names, gens, self.draw(st.booleans()), made_calls)
                after, whole, *_ = add(op)
                calls.append((after, whole))
                made_calls += 1
            elif kind == "chain":
                made = self.chain(state, visible, made_calls)
                results = add(made)
                calls += zip(results[::2], results[1::2], strict=True)
                made_calls += len(made.gens)
            elif kind == "select":
                name, choices = self.draw(self.hints), self.texts(visible, 1)
                heat = self.draw(st.sampled_from([0.0, 0.0, 1.0]))
                op = Select(state, choices, name, temperature=heat, draw=made_calls)
                calls.append(add(op))
                made_calls += 1
            elif kind == "score":
                text = self.operand(visible, TEXT)
                assert text is not None
                calls.append(add(Score(state, text, self.draw(self.hints))))
                made_calls += 1
            elif kind == "race" and calls:
                results = st.lists(st.sampled_from([text for _, text in calls]), max_size=2)
                groups = self.draw(st.lists(results, min_size=1, max_size=3))
                read = tuple(self.draw(results))
                held = tuple(call for group in groups for call in group)
                sizes = tuple(map(len, groups))
                first = add(Race((*held, *read), sizes, self.draw(st.integers(1, len(groups)))))
                won.append((first[0], len(groups)))
            elif kind == "pick":
                index, count = self.draw(st.sampled_from([*won, (Const(0), 2), (Const(1), 2)]))
                kind_ = self.draw(st.sampled_from([TEXT, STATE]))
                item = st.sampled_from(alive if kind_ == STATE else [self.operand(visible, TEXT)])
                add(Pick(index, tuple(self.draw(item) for _ in range(count))))
            elif kind == "attempt":
                add(Attempt(self.anything(visible)))
            elif kind == "text":
                add(StateText(state))
            elif kind == "prefill":
                add(Prefill(state, ahead=self.draw(st.booleans())))
            elif kind == "release" and len(alive) > 1:
                body.add(Release(state))
                alive.remove(state)
                visible.remove(state)
                calls = [(s, t) for s, t in calls if s is not state]
            elif kind == "pure" and (op := self.pure(visible)):
                add(op, hints=(self.draw(self.hints),))
            elif kind == "typed":
                text = self.operand(visible, TEXT)
                assert text is not None
                wanted = self.draw(st.sampled_from(["int", "bool", 'literal:["yes", 3]', "json:x"]))
                add(Typed(text, wanted, self.draw(self.hints)))
            elif kind == "host":
                add(self.host(visible), hints=(self.draw(self.hints),))
            elif kind == "list":
                add(MakeList(self.texts(visible)))
            elif kind == "pack":
                items = tuple(self.anything(visible) for _ in range(2))
                template = '{"dict": [["k", {"$": 0}], ["l", {"tuple": [{"$": 1}, [2]]}]]}'
                add(Pack(items, template))
        if not alive:
            add(Start())
        condition = self.operand(visible, BOOL)
        if depth and self.draw(st.booleans()) and condition is not None:
            then, orelse = body.inner(), body.inner()
            for inner in (then, orelse):
                self.region(inner, visible, calls, depth - 1, alive, made_calls)
            body.terminate(If(condition, then.freeze(), orelse.freeze()))
        elif (
            depth
            and self.draw(st.integers(0, 2)) == 0
            and isinstance(subject := self.operand(visible, TEXT), Value)
        ):
            # a chain of comparisons, as a `match` makes it
            open_ifs = []
            texts = self.draw(st.lists(self.literals[TEXT], min_size=1, max_size=3))
            for text in texts:
                (holds,) = body.add(Pure("text.eq", (subject, Const(text))))
                then, orelse = body.inner(), body.inner()
                self.region(then, visible, calls, depth - 1, alive, made_calls)
                open_ifs.append((body, holds, then, orelse))
                body = orelse
            self.region(body, visible, calls, depth - 1, alive, made_calls)
            for outer, holds, then, orelse in reversed(open_ifs):
                outer.terminate(If(holds, then.freeze(), orelse.freeze()))
        elif self.draw(st.integers(0, 4)) == 0:
            reason = self.draw(self.literals[TEXT])
            body.terminate(Resume(tuple(calls), reason, self.some(visible)))
        else:
            names = self.draw(st.lists(self.hints, unique=True, max_size=3))
            values = tuple(self.anything(visible) for _ in names)
            state = self.draw(st.sampled_from(alive))
            value, after = self.anything(visible), self.some(visible)
            body.terminate(Ret(state, tuple(names), values, value, after))


@st.composite
def programs(
    draw: Any,
    texts: st.SearchStrategy[str] = few_texts,
    hints: st.SearchStrategy[str] = few_hints,
) -> Program:
    """Valid programs.

    Args:
        texts: of literals.
        hints: names of values and variables.
    """
    maker = _Maker(draw, texts, hints)
    builder = ProgramBuilder(draw(hints), static=draw(st.sampled_from(["{}", '{"n": 3}'])))
    for _ in range(draw(st.integers(0, 2))):
        builder.param(draw(hints), path=draw(st.sampled_from([None, ("rows", 0, "x")])))
    maker.region(builder.body, list(builder.params), [], 2, [])
    known = draw(st.sampled_from([(), (None, "yes"), ("a,b", None), ("", "3")]))
    return dataclasses.replace(builder.build(), known=known[: len(builder.params)])
