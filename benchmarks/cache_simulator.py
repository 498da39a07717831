"""How much of its prompts does a batch find in the cache, by which order and rule of eviction?

    python benchmarks/cache_simulator.py [--markdown]

Question    Is the planned order, with dead entries going first, as good as the best order there is,
            and where memory is short, better than what serving engines do?
Rival       LRU eviction and longest prefix match: of all requests that can run, the one with the
            longest cached prefix is next. (Zheng et al., SGLang, arXiv:2312.07104, section 3.)

The requests of six programs are recorded from runs of the fake model, and served again one after
another in front of a cache of so many tokens:

    lru+lpm     the rival; it sees the requests of all rows at once
    planned     rows in the order of their prefix tree, a row's requests before those of later rows,
                and the hints of `runtime.planned_rows`: dead first, then by least recent use, then
                by next use; both on lmc's own radix cache
    furthest    the planned order, where the token that is used again last goes first (Belady): what
                the best eviction could make of this order
    optimum     an endless cache: no order and no eviction can find more

Last, the real engine runs the programs, many requests at a time: as it is (`engine`), and as the
rival would (`engine lpm`: no plan, no hints, no priorities). There, what had to be computed again
after a request was put back counts as not found. Each figure is the share of prompt tokens found.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import lmc
from lmc.driver import Options
from lmc.frontend.dsl import State
from lmc.runtime.engine import EngineCore
from lmc.runtime.planned_rows import Place
from lmc.runtime.prefix_tree import PrefixTree
from lmc.runtime.prompts import Needs
from lmc.runtime.radix_cache import RadixCache
from lmc.runtime.request import GenRequest, GenResult, KeyArray, PrefillRequest, keys_of

SHARES = (0.25, 0.5, 1.0)

# --------------------------------------------------------------------------- the programs


@lmc.jit
def few_shot(s: State, shots: str, question: str) -> None:
    s += shots
    s += question
    s += lmc.gen("answer", max_tokens=1, ignore_eos=True)


@lmc.jit
def tree_of_thought(s: State, task: str, thoughts: list[str]) -> None:
    s += task
    for branch, thought in zip(forks := s.fork(3), thoughts, strict=True):
        branch += thought
        branch += lmc.gen("first", max_tokens=12, ignore_eos=True)
        for twig, more in zip(twigs := branch.fork(3), thoughts, strict=True):
            twig += "So " + more
            twig += lmc.gen("second", max_tokens=12, ignore_eos=True)
        twigs.join()
    forks.join()


@lmc.jit
def self_consistency(s: State, shots: str, question: str) -> None:
    s += shots
    s += question
    forks = s.fork(6)
    forks += lmc.gen("sample", max_tokens=16, ignore_eos=True, temperature=0.8)
    forks.join()


@lmc.jit
def judge(s: State, article: str, aspects: list[str]) -> None:
    s += article
    for fork, aspect in zip(forks := s.fork(3), aspects, strict=True):
        fork += aspect
        fork += lmc.gen("review", max_tokens=16, ignore_eos=True)
    forks.join()
    for review in s["review"]:
        s += "Review: " + review
    s += "Verdict: "
    s += lmc.gen("verdict", max_tokens=8, ignore_eos=True)


@lmc.jit
def agent(s: State, manual: str, task: str, seen: list[str]) -> None:
    s += manual
    s += task
    for number, observation in enumerate(seen):
        s += lmc.gen(f"act_{number}", max_tokens=10, ignore_eos=True)
        s += observation
    s += lmc.gen("last", max_tokens=10, ignore_eos=True)


@lmc.jit
def chat(s: State, manner: str, turns: list[str]) -> None:
    s.system(manner)
    for number, turn in enumerate(turns):
        s.user(turn)
        s.assistant(lmc.gen(f"said_{number}", max_tokens=16, ignore_eos=True))


_WORDS = (
    "tea",
    "rain",
    "ship",
    "lamp",
    "bird",
    "road",
    "salt",
    "wood",
    "moon",
    "clay",
    "rope",
    "bell",
)


def rows_of(name: str, scale: int = 1) -> list[dict[str, Any]]:
    """The rows of a workload, in no order; their number grows with `scale`."""
    source = random.Random(name)

    def words(count: int) -> str:
        return "".join(f" {word}" for word in source.choices(_WORDS, k=count))

    def parts(count: int, size: int) -> list[str]:
        return [words(size) for _ in range(count)]

    rows: list[dict[str, Any]]
    match name:
        case "few_shot":
            shots = parts(12, 150)
            rows = [{"shots": s, "question": words(20)} for s in shots for _ in range(4 * scale)]
        case "tree_of_thought":
            thoughts = parts(3, 6)
            rows = [{"task": words(120), "thoughts": thoughts} for _ in range(8 * scale)]
        case "self_consistency":
            shots = parts(3, 150)
            rows = [{"shots": s, "question": words(20)} for s in shots for _ in range(4 * scale)]
        case "judge":
            aspects = parts(3, 8)
            rows = [{"article": words(150), "aspects": aspects} for _ in range(10 * scale)]
        case "agent":
            manuals = parts(3, 160)
            rows = [
                {"manual": m, "task": words(12), "seen": parts(3, 14)}
                for m in manuals
                for _ in range(5 * scale)
            ]
        case _:
            manners = parts(2, 40)
            rows = [{"manner": m, "turns": parts(4, 20)} for m in manners for _ in range(6 * scale)]
    source.shuffle(rows)
    return rows


WORKLOADS: dict[str, lmc.Program] = {
    "few_shot": few_shot,
    "tree_of_thought": tree_of_thought,
    "self_consistency": self_consistency,
    "judge": judge,
    "agent": agent,
    "chat": chat,
}

# ------------------------------------------------------------------------------ recording


@dataclass(eq=False)
class Call:
    """A model call: its prompt, all that is there when it is done, and what it waits for."""

    row: int
    keys: KeyArray
    prompt: int
    after: list[Call] = field(default_factory=list)


def recorded(program: lmc.Program, rows: Sequence[dict[str, Any]]) -> list[Call]:
    """The model calls of a batch, as an engine with room for all of them saw them."""
    calls: list[Call] = []
    done: dict[int, list[Call]] = {}
    with lmc.Engine("fake") as engine:
        submit = engine.core.submit

        def seen(request: Any, on_done: Any, on_text: Any = None) -> Any:
            if not isinstance(request, GenRequest):
                return submit(request, on_done, on_text)
            row = request.sampling.row
            call = Call(row, request.keys, len(request.keys), list(done.setdefault(row, [])))
            calls.append(call)

            def ended(result: GenResult) -> None:
                made = keys_of(result.tokens, made=True)
                call.keys = np.concatenate([request.keys, made])
                done[row].append(call)
                on_done(result)

            return submit(request, ended, on_text)

        engine.core.submit = seen  # type: ignore[method-assign]
        program.run_batch(rows, engine=engine, on_error="raise", options=Options(level=0))
    return calls


def total_tokens(calls: Sequence[Call]) -> int:
    """What a cache must hold to keep everything: a token is used again only under its prefix."""
    return PrefixTree.of([call.keys[:-1] for call in calls]).distinct_tokens


# ------------------------------------------------------------------------------- serving


class _Cache:
    """A radix cache of a limited size that calls are served from."""

    def __init__(self, capacity: int) -> None:
        self.cache = RadixCache()
        self._capacity = capacity
        self._next_slot = 0
        self.found = 0

    def serve(self, call: Call) -> None:
        """Compute what is missing of a call; its last token is not computed."""
        keys = call.keys[:-1]
        with self.cache.acquire(call.keys, call.prompt - 1) as lease:
            self.found += lease.length
            lease.extend(keys[lease.length :])  # the last token of the prompt may be there
            missing = len(keys) - lease.length
            over = len(self.cache) + missing - self._capacity
            if over > 0 and len(self.cache.evict(over)) < over:
                raise SystemExit(f"a call of {len(keys)} tokens does not fit")
            slots = np.arange(self._next_slot, self._next_slot + missing, dtype=np.int32)
            self._next_slot += missing
            if missing:
                lease.grow(keys[lease.length :], slots)

    # as an engine core, for `Place`
    def release(self, keys: KeyArray, keep: int = 0) -> None:
        self.cache.mark_dead(keys, keep)

    def expect(self, keys: KeyArray, next_use: float) -> None:
        self.cache.expect(keys, next_use)


def _ready(left: Sequence[Call], done: set[Call]) -> list[Call]:
    return [call for call in left if done.issuperset(call.after)]


def lru_lpm(calls: Sequence[Call], capacity: int) -> int:
    """Tokens found by the rival."""
    cache, left, done = _Cache(capacity), list(calls), set[Call]()
    while left:
        call = max(_ready(left, done), key=lambda c: cache.cache.match(c.keys, c.prompt - 1))
        cache.serve(call)
        left.remove(call)
        done.add(call)
    return cache.found


def _planned_order(calls: Sequence[Call]) -> Iterator[tuple[Call, Place | None]]:
    """The calls in planned order; with its last one, the place of a row."""
    by_row: dict[int, list[Call]] = {}
    for call in calls:
        by_row.setdefault(call.row, []).append(call)
    numbers = sorted(by_row)
    firsts = [by_row[n][0].keys[: by_row[n][0].prompt] for n in numbers]
    tree = PrefixTree.of(firsts)
    place: Place | None = None
    places: list[tuple[int, Place]] = []
    for number, (which, shared) in enumerate(zip(tree.order, tree.shared.tolist(), strict=True)):
        place = Place(number, Needs(firsts[which], 0), shared, place)
        places.append((numbers[which], place))
    for row, place in places:
        left, done = by_row[row], set[Call]()
        while left:
            call = _ready(left, done)[0]
            left.remove(call)
            done.add(call)
            yield call, None if left else place


def planned(calls: Sequence[Call], capacity: int) -> int:
    """Tokens found by lmc's order and hints."""
    cache: Any = _Cache(capacity)
    used: dict[int, list[Call]] = {}
    for call, place in _planned_order(calls):
        cache.serve(call)
        used.setdefault(call.row, []).append(call)
        if place is not None:
            for ended in used[call.row][:-1]:  # ends of branches, as the pass kv-liveness says
                cache.release(ended.keys[:-1], call.prompt)
            place.release(cache, call.keys[:-1])
    return int(cache.found)


def furthest(calls: Sequence[Call], capacity: int) -> int:
    """Tokens found in the planned order if the token that is used again last goes first."""
    order = [call for call, _ in _planned_order(calls)]
    children: dict[tuple[int, int], int] = {}
    paths: list[list[int]] = []
    uses: list[list[int]] = []  # of each token of the tree: when it is used, the last first
    for time, call in reversed(list(enumerate(order))):
        node, path = -1, []
        for key in call.keys[:-1].tolist():
            node = children.setdefault((node, key), len(uses))
            if node == len(uses):
                uses.append([])
            uses[node].append(time)
            path.append(node)
        paths.append(path)
    held: set[int] = set()
    victims: list[tuple[int, int, int]] = []
    found = 0
    for call, path in zip(order, reversed(paths), strict=True):
        known = 0
        while known < len(path) and path[known] in held:
            known += 1
        found += min(known, call.prompt - 1)
        held.update(path)
        for depth, node in enumerate(path):
            uses[node].pop()
            later = uses[node][-1] if uses[node] else len(order)
            heapq.heappush(victims, (-later, -depth, node))
        own, aside = set(path), []
        while len(held) > capacity:
            entry = heapq.heappop(victims)
            later, _, node = entry
            if node not in held or -later != (uses[node][-1] if uses[node] else len(order)):
                continue
            if node in own:
                aside.append(entry)
            else:
                held.remove(node)
        for entry in aside:
            heapq.heappush(victims, entry)
    return found


# ---------------------------------------------------------------------------- the engine


def on_engine(
    program: lmc.Program, rows: Sequence[dict[str, Any]], capacity: int, *, rival: bool = False
) -> int:
    """Tokens that the real engine need not compute, many requests at a time."""
    prompts = made = 0
    with lmc.Engine("fake", kv_tokens=capacity) as engine:
        core: EngineCore = engine.core
        submit = core.submit

        def seen(request: Any, on_done: Any, on_text: Any = None) -> Any:
            nonlocal prompts
            if rival:
                request.priority = ()
            if isinstance(request, PrefillRequest):
                return submit(request, on_done, on_text)

            def ended(result: Any) -> None:
                nonlocal made
                made += max(len(result.tokens) - 1, 0)
                on_done(result)

            return submit(counted(request), ended, on_text)

        def counted(request: Any) -> Any:
            """The request, and with it those that go on from it in a chain."""
            nonlocal prompts
            prompts += len(request.keys)
            follow = getattr(request, "follow", None)
            if follow is not None:

                def following(result: GenResult) -> GenRequest | None:
                    nonlocal made
                    request = follow(result)
                    if request is not None:
                        made += max(len(result.tokens) - 1, 0)
                    return request and counted(request)

                request.follow = following
            return request

        core.submit = seen  # type: ignore[method-assign]
        if rival:
            core.release = core.expect = lambda *_: None  # type: ignore[method-assign]
        given: Any = iter(rows) if rival else rows
        options = Options(level=0 if rival else 2)
        results = program.run_batch(given, engine=engine, options=options)
        failed = next((r.error for r in results if r.error is not None), None)
        if failed is not None:
            raise SystemExit(f"a row failed: {failed}")
        return prompts - (engine.stats.computed_tokens - made)


# -------------------------------------------------------------------------------- report


@dataclass(frozen=True)
class Rates:
    """The share of prompt tokens found, by each way to serve a workload."""

    workload: str
    share: float  # of the total that the cache holds
    tokens: int  # that the cache holds
    lru_lpm: float
    planned: float
    furthest: float
    optimum: float
    engine: float
    engine_lpm: float


def measure(name: str, shares: Sequence[float] = SHARES, scale: int = 1) -> list[Rates]:
    """All figures of one workload, with caches of these shares of all its tokens."""
    program, rows = WORKLOADS[name], rows_of(name, scale)
    calls = recorded(program, rows)
    total = total_tokens(calls)
    longest = max(len(call.keys) for call in calls)
    prompts = sum(call.prompt for call in calls)

    def at(share: float) -> Rates:
        capacity = max(int(share * total), longest) + 1
        return Rates(
            name,
            share,
            capacity,
            lru_lpm(calls, capacity) / prompts,
            planned(calls, capacity) / prompts,
            furthest(calls, capacity) / prompts,
            planned(calls, total + 1) / prompts,
            on_engine(program, rows, capacity) / prompts,
            on_engine(program, rows, capacity, rival=True) / prompts,
        )

    return [at(share) for share in shares]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON lines")
    parser.add_argument("--scale", type=int, default=4, help="how many rows there are")
    args = parser.parse_args()
    names = ("lru_lpm", "planned", "furthest", "optimum", "engine_lpm", "engine")
    if args.markdown:
        print(
            "| program | cache | LRU + LPM | planned | furthest | optimum | engine, LPM | engine |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in WORKLOADS:
        for rates in measure(name, scale=args.scale):
            if args.markdown:
                cells = " | ".join(f"{100 * getattr(rates, one):.1f}" for one in names)
                print(f"| {name} | {rates.share:.0%}, {rates.tokens:,} | {cells} |", flush=True)
            else:
                print(json.dumps(asdict(rates)), flush=True)


if __name__ == "__main__":
    main()
