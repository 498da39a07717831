"""How much of the public constraint set is right, and how fast: one JSON line a question.

    python benchmarks/constraints.py --data ../shared/data/constraints --tokenizer tokenizer.json
        [--sets regexes schemas suite grammars] [--only PART_OF_ID] [--peer]

Walks of schemas are checked with `jsonschema`, walks of grammars with Lark's Earley parser. A valid
value whose keys stand in another order than the schema's is tried in that order too; it counts as
right then, and is listed under `order`.

`--peer` times llguidance on the same constraints in the same run, masks along the tokens of the
valid texts, and prints ratios. What masks leave for later is printed too: `advance_us`,
`forced_us`, and the time of Python's collections inside and outside of masks (`gc_ms`; masks put
them off, see `lmc.constraints.undisturbed`).

Questions: of the constraints in the set, how many are accepted, and how many are *right* (every
valid text's canonical tokens and the end are allowed, every invalid text is refused, every random
walk over the masks ends in a match)? What do compiling and masks cost, in CPU time? Which share of
a valid text's tokens is forced, and is any of it not canonical? The rivals' figures stand in
docs/constraints.md. Without the data there is nothing to measure and the script says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
import numpy.typing as npt

from lmc import constraints
from lmc.constraints import TokenMatcher, Vocabulary
from lmc.errors import ConstraintError

WALKS = 3
WALK_TOKENS = 400


def spread(values: list[float]) -> dict[str, float]:
    """p50, p90, p99 and the greatest of some values."""
    if len(values) < 2:
        return {"max": round(values[0], 2)} if values else {}
    cuts = quantiles(values, n=100, method="inclusive")
    named = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(values)}
    return {k: round(v, 2) for k, v in named.items()} | {
        "mean": round(sum(values) / len(values), 2)
    }


class Bench:
    """Runs constraints and keeps what was measured."""

    def __init__(self, vocabulary: Vocabulary, seed: int, peer: Peer | None = None) -> None:
        self.vocabulary = vocabulary
        self.random = random.Random(seed)
        self.compile_ms: list[float] = []
        self.first_us: list[float] = []
        self.kept_us: list[float] = []
        self.forced_us: list[float] = []
        self.advance_us: list[float] = []
        self.kept_bytes: list[float] = []
        self.peer = peer
        self.in_mask = False
        self.gc_ms = {"in_masks": 0.0, "outside": 0.0, "longest_in_masks": 0.0}
        self._began = 0
        gc.callbacks.append(self.collecting)
        self.tokens = self.forced = self.cut = self.refused_canonical = 0
        self.failures: list[tuple[str, str, str]] = []

    def collecting(self, phase: str, _: dict[str, int]) -> None:
        """Count the time of a collection; see `gc.callbacks`."""
        if phase == "start":
            self._began = time.thread_time_ns()
            return
        took = (time.thread_time_ns() - self._began) / 1e6
        self.gc_ms["in_masks" if self.in_mask else "outside"] += took
        if self.in_mask:
            self.gc_ms["longest_in_masks"] = max(self.gc_ms["longest_in_masks"], took)

    def advance(self, matcher: TokenMatcher, token: int) -> None:
        start = time.thread_time_ns()
        matcher.advance(token)
        self.advance_us.append((time.thread_time_ns() - start) / 1000)

    def mask(self, matcher: TokenMatcher) -> npt.NDArray[np.bool_]:
        self.in_mask = True
        start = time.thread_time_ns()
        row = matcher.mask()
        self.first_us.append((time.thread_time_ns() - start) / 1000)
        self.in_mask = False
        start = time.thread_time_ns()
        matcher.mask()
        self.kept_us.append((time.thread_time_ns() - start) / 1000)
        return row

    def takes(self, matcher: TokenMatcher, text: str) -> bool:
        """Whether the canonical tokens of `text` and then the end are allowed."""
        matcher.reset()
        for token in self.vocabulary.encode(text):
            if not self.mask(matcher)[token]:
                return False
            self.advance(matcher, token)
        return matcher.is_complete() and bool(
            matcher.mask()[list(self.vocabulary.eos)].all() if self.vocabulary.eos else True
        )

    def count_forced(self, matcher: TokenMatcher, text: str) -> None:
        """Go along the canonical tokens of `text`, taking what is forced."""
        tokens = self.vocabulary.encode(text)
        matcher.reset()
        at = 0
        self.tokens += len(tokens)
        while at < len(tokens):
            start = time.thread_time_ns()
            forced = matcher.forced()
            self.forced_us.append((time.thread_time_ns() - start) / 1000)
            if forced and forced != tokens[at : at + len(forced)]:
                self.cut += 1
                forced = []
            step = forced or tokens[at : at + 1]
            for token in step:
                if not matcher.mask()[token]:
                    self.refused_canonical += 1
                    return
                matcher.advance(token)
            self.forced += len(forced)
            at += len(step)

    def walk(self, matcher: TokenMatcher) -> str | None:
        """A random walk over the masks; the text if it finished."""
        matcher.reset()
        out = bytearray()
        ends = set(self.vocabulary.eos)
        for step in range(WALK_TOKENS):
            if matcher.is_finished():
                return out.decode()
            allowed = np.flatnonzero(self.mask(matcher))
            if not len(allowed):
                raise RuntimeError("dead end")
            token = int(allowed[self.random.randrange(len(allowed))])
            if step > 40 and matcher.is_complete() and self.vocabulary.eos:
                token = self.vocabulary.eos[0]
            if token in ends:
                if not matcher.is_complete():
                    raise RuntimeError("the end is allowed where nothing is complete")
                return out.decode()
            text = self.vocabulary.token_bytes[token]
            if text is None:
                raise RuntimeError(f"control token {token} is allowed as text")
            self.advance(matcher, token)
            out += text
        return None

    def check(
        self,
        name: str,
        make: Callable[[], TokenMatcher],
        valid: list[list[str]],
        invalid: list[list[str]],
        matches: Callable[[str], bool],
    ) -> tuple[bool, bool]:
        """(accepted, right) of one constraint; `valid` lists the spellings that count as one."""
        start = time.thread_time_ns()
        try:
            matcher = make()
        except ConstraintError as error:
            self.failures.append((name, "refused", str(error).splitlines()[0]))
            return False, False
        self.compile_ms.append((time.thread_time_ns() - start) / 1e6)
        if self.peer is not None:
            self.peer.make(name)
        wrong = []
        try:
            for spellings in valid:
                if not any(self.takes(matcher, text) for text in spellings):
                    wrong.append(("over", spellings[0]))
                else:
                    if not self.takes(matcher, spellings[0]):
                        self.failures.append((name, "order", spellings[0][:100]))
                    taken = next(text for text in spellings if self.takes(matcher, text))
                    self.count_forced(matcher, taken)
            wrong += [
                ("under", spellings[0])
                for spellings in invalid
                if any(self.takes(matcher, text) for text in spellings)
            ]
            for _ in range(WALKS):
                text = self.walk(matcher)
                if text is not None and not matches(text):
                    wrong.append(("wrong", text))
        except Exception as error:
            wrong.append((type(error).__name__, str(error)))
        if self.peer is not None:
            for spellings in valid:
                self.peer.along(spellings[0], self.vocabulary)
        self.kept_bytes.append(kept_bytes(matcher))
        self.failures.extend((name, kind, text[:100]) for kind, text in wrong)
        return True, not wrong


def kept_bytes(matcher: TokenMatcher) -> int:
    """The bytes that are kept for a constraint after its run, all that can be reached from it.

    Without the vocabulary, which is there once; with the arrays of its rows.
    """
    seen = {id(matcher.vocabulary), id(type(matcher))}
    total, stack = 0, [matcher]
    table = getattr(matcher, "_table", None)
    if table is not None:
        stack += [table, table.machine._derivatives, table.machine.rows]
        seen |= {id(s) for s in matcher.vocabulary._slices.values()}
        seen |= {id(getattr(matcher, "_quotes", None)), id(matcher.vocabulary.rows)}
    while stack:
        at: Any = stack.pop()
        if id(at) in seen or isinstance(at, type | type(np) | type(kept_bytes)):
            continue
        seen.add(id(at))
        total += sys.getsizeof(at)
        stack.extend(gc.get_referents(at))
    return total


class Peer:
    """llguidance on the same constraints."""

    def __init__(self, tokenizer: Path) -> None:
        import llguidance
        from llguidance.hf import from_tokenizer
        from transformers import PreTrainedTokenizerFast

        self._package = llguidance
        fast = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
        fast.eos_token = fast.convert_ids_to_tokens(0) if fast.eos_token is None else fast.eos_token
        self._tokenizer = from_tokenizer(fast)
        self.kind, self.source = "", ""
        self._matcher: Any = None
        self.compile_ms: list[float] = []
        self.mask_us: list[float] = []

    def make(self, _: str) -> None:
        """Compile the constraint that `kind` and `source` say."""
        grammar = getattr(self._package.LLMatcher, f"grammar_from_{self.kind}")
        start = time.thread_time_ns()
        self._matcher = self._package.LLMatcher(self._tokenizer, grammar(self.source))
        took = (time.thread_time_ns() - start) / 1e6
        if self._matcher.is_error():
            self._matcher = None
        else:
            self.compile_ms.append(took)

    def along(self, text: str, vocabulary: Vocabulary) -> None:
        """Masks along the tokens of a text."""
        if self._matcher is None:
            return
        self._matcher.reset()
        for token in vocabulary.encode(text):
            start = time.thread_time_ns()
            self._matcher.compute_logit_bias()
            self.mask_us.append((time.thread_time_ns() - start) / 1000)
            if not self._matcher.consume_token(token):
                break


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def regexes(bench: Bench, path: Path, only: str | None) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in lines(path):
        if only and only not in row["id"]:
            continue
        pattern = row["regex"]
        before = bench.tokens, bench.forced
        if row.get("oracle") == "regex":
            matches: Callable[[str], bool] = lambda _: True  # noqa: E731 - `re` cannot say
        elif row.get("expect") == "refuse":
            matches = lambda _: False  # noqa: E731
        else:
            matches = lambda text, p=pattern: bool(re.fullmatch(p, text))  # type: ignore[misc]  # noqa: E731
        if bench.peer is not None:
            bench.peer.kind, bench.peer.source = "regex", pattern
        accepted, right = bench.check(
            row["id"],
            lambda p=pattern: constraints.compile("regex", p, bench.vocabulary),  # type: ignore[misc]
            [[text] for text in row["valid"]],
            [[text] for text in row["invalid"]],
            matches,
        )
        if row.get("expect") == "refuse":
            right = not accepted
            bench.failures = [f for f in bench.failures if f[0] != row["id"] or not right]
        counts[row["group"]].update(of=1, accepted=accepted, right=right)
        counts[row["group"]].update(
            tokens=bench.tokens - before[0], forced=bench.forced - before[1]
        )
    report(bench, "regexes", counts)


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def orders(schema: object) -> list[dict[str, int]]:
    """Every `properties` in a schema: the places of its names."""
    found = []
    stack = [schema]
    while stack:
        at = stack.pop()
        if isinstance(at, dict):
            named = at.get("properties")
            if isinstance(named, dict):
                found.append({name: i for i, name in enumerate(named)})
            stack.extend(at.values())
        elif isinstance(at, list):
            stack.extend(at)
    return found


def in_order(value: object, known: list[dict[str, int]]) -> object:
    """A value with the keys of each object as the `properties` that fit best have them."""
    if isinstance(value, list):
        return [in_order(item, known) for item in value]
    if not isinstance(value, dict):
        return value
    ranks: dict[str, tuple[int, int]] = {}
    for n, order in enumerate(sorted(known, key=lambda o: -len(o.keys() & value.keys()))):
        for name in value:
            if name in order:
                ranks.setdefault(name, (n, order[name]))
    names = sorted(value, key=lambda name: ranks.get(name, (len(known), 0)))
    return {name: in_order(value[name], known) for name in names}


def schemas(bench: Bench, path: Path, only: str | None) -> None:
    import jsonschema

    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in lines(path):
        if only and only not in row["id"]:
            continue
        schema = row["schema"]
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        checker = kind(schema, format_checker=kind.FORMAT_CHECKER)

        def matches(text: str, checker: Any = checker) -> bool:  # noqa: ANN401
            return bool(checker.is_valid(json.loads(text)))

        known = orders(schema)
        valid = [
            list(dict.fromkeys((compact(v), compact(in_order(v, known))))) for v in row["valid"]
        ]
        invalid = [compact(v) for v in [*row["invalid"], *(row.get("invalid_format") or [])]]
        before = bench.tokens, bench.forced
        if bench.peer is not None:
            bench.peer.kind, bench.peer.source = "json_schema", json.dumps(schema)
        accepted, right = bench.check(
            row["id"],
            lambda s=schema: constraints.compile("json_schema", s, bench.vocabulary),  # type: ignore[misc]
            valid,
            [[text] for text in invalid],
            matches,
        )
        counts[row["group"]].update(of=1, accepted=accepted, right=right)
        counts[row["group"]].update(
            tokens=bench.tokens - before[0], forced=bench.forced - before[1]
        )
    report(bench, path.stem, counts)


def grammars(bench: Bench, path: Path, only: str | None) -> None:
    import lark

    for notation in ("lark", "ebnf"):
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for row in lines(path):
            if only and only not in row["id"]:
                continue
            oracle = lark.Lark(row["lark"], parser="earley", lexer="dynamic_complete")

            def matches(text: str, oracle: Any = oracle) -> bool:  # noqa: ANN401
                try:
                    oracle.parse(text)
                except lark.exceptions.LarkError:
                    return False
                return True

            if bench.peer is not None:
                bench.peer.kind, bench.peer.source = "lark", row["lark"]
            accepted, right = bench.check(
                f"{row['id']}/{notation}",
                lambda g=row[notation]: constraints.compile("ebnf", g, bench.vocabulary),  # type: ignore[misc]
                [[text] for text in row["valid"]],
                [[text] for text in row["invalid"]],
                matches,
            )
            counts[notation].update(of=1, accepted=accepted, right=right)
        report(bench, "grammars", counts)


def report(bench: Bench, what: str, counts: dict[str, Counter[str]]) -> None:
    total: Counter[str] = sum(counts.values(), Counter())
    for group, found in counts.items():
        print(json.dumps({"set": what, "group": group, **found}))
    print(json.dumps({"set": what, "group": "all", **total}))
    print(json.dumps({"set": what, "compile_ms": spread(bench.compile_ms)}))
    print(json.dumps({"set": what, "mask_us_first_asked": spread(bench.first_us)}))
    print(json.dumps({"set": what, "mask_us_kept": spread(bench.kept_us)}))
    print(json.dumps({"set": what, "advance_us": spread(bench.advance_us)}))
    print(json.dumps({"set": what, "forced_us": spread(bench.forced_us)}))
    print(json.dumps({"set": what, "kept_mb": spread([b / 1e6 for b in bench.kept_bytes])}))
    print(json.dumps({"set": what, "gc_ms": {k: round(v, 1) for k, v in bench.gc_ms.items()}}))
    if bench.peer is not None:
        theirs = {
            "compile_ms": spread(bench.peer.compile_ms),
            "mask_us": spread(bench.peer.mask_us),
        }
        print(json.dumps({"set": what, "peer": "llguidance", **theirs}))
        ours = {"compile_ms": spread(bench.compile_ms), "mask_us": spread(bench.first_us)}
        ratios = {
            figure: {k: round(ours[figure][k] / v, 2) for k, v in theirs[figure].items() if v}
            for figure in theirs
        }
        print(json.dumps({"set": what, "ratio_to_llguidance": ratios}))
    share = 100 * bench.forced / max(1, bench.tokens)
    print(
        json.dumps(
            {
                "set": what,
                "forced_percent": round(share, 1),
                "forced_not_canonical": bench.cut,
                "canonical_refused": bench.refused_canonical,
            }
        )
    )
    for name, kind, text in bench.failures:
        print(json.dumps({"failure": name, "kind": kind, "text": text}, ensure_ascii=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/constraints"))
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--sets", nargs="*", default=["regexes", "schemas", "suite", "grammars"])
    parser.add_argument("--only", help="a part of the ids to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", action="store_true", help="time llguidance in the same run")
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"skipped: there is no {args.data}")
        return
    from lmc.constraints.tokenizer import vocabulary_of
    from lmc.constraints.walking import wait_for_kernels

    vocabulary = vocabulary_of(args.tokenizer)
    assert len(vocabulary.trie) > 0
    wait_for_kernels()
    constraints.compile("regex", "warm.up", vocabulary).mask()
    runs = {"regexes": regexes, "schemas": schemas, "suite": schemas, "grammars": grammars}
    peer: Peer | None = None
    for name in args.sets:
        if args.peer:
            try:
                peer = Peer(args.tokenizer)
            except ImportError as error:
                print(f"without llguidance: {error}")
        bench = Bench(vocabulary, args.seed, peer)
        runs[name](bench, args.data / f"{name}.jsonl", args.only)
        gc.callbacks.remove(bench.collecting)


if __name__ == "__main__":
    main()
