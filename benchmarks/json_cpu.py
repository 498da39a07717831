"""What does jumping forward save on records of JSON, beside masking alone and beside a peer?

    python benchmarks/json_cpu.py [--threads N] [--dtype bfloat16|float32] [--runs N] [--no-peer]

Eight programs in one batch on the real model, each writes a record of six fields: *notes* have
prompts of about 110 tokens, which cost the same either way; *characters* have prompts of 15, as in
SGLang's benchmark json_jump_forward. Each as a template (texts and gens in one expression) and as
one regular expression, each with and without `jump_forward`. The rival is transformers with the
same weights in the same process, one batch of all rows, its logits masked by llguidance; it is left
out where that is not installed. All take turns after a round that does not count, with empty
caches; medians, one JSON line a way. Ratios of programs per second are by wall time and by CPU
time; the latter is what counts on a machine that others use too.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lmc
from lmc.bench.cpu import _Peer
from lmc.bench.peer import Peer, _Call
from lmc.bench.workloads import WORKLOADS
from lmc.constraints import Vocabulary
from lmc.frontend.dsl import State

WORD = "[A-Z][a-z]{2,11}"
HOBBY = "[a-z]{3,12} ?[a-z]{0,12}"
NAMES = (
    "Harry Potter", "Hermione Granger", "Severus Snape", "Luna Lovegood", "Draco Malfoy",
    "Sirius Black", "Albus Dumbledore", "Neville Longbottom",
)  # fmt: skip

Part = str | tuple[str, str]  # a text, or the name of a gen and its regular expression


@dataclass(frozen=True)
class Records:
    """Records to write: rows with the text before each, and the parts of a record."""

    name: str
    rows: tuple[dict[str, str], ...]
    parts: tuple[Part, ...]

    @property
    def regex(self) -> str:
        return "".join(re.escape(p) if isinstance(p, str) else f"(?:{p[1]})" for p in self.parts)


NOTES = Records(
    "notes",
    tuple(
        {
            "before": "Read the note, then write down the record: one line of JSON with name, age, "
            f"city, job, hobby and score, in this order.\n\nNote: {row['note']}\n\nRecord: "
        }
        for row in WORKLOADS["json"].rows
    ),
    (
        '{"name": "', ("name", f"{WORD} {WORD}"), '", "age": ', ("age", "[1-9][0-9]"),
        ', "city": "', ("city", WORD),
        '", "job": "', ("job", "engineer|teacher|nurse|farmer|pilot|chef"),
        '", "hobby": "', ("hobby", HOBBY), '", "score": ', ("score", r"[0-9]\.[0-9]"), "}",
    ),
)  # fmt: skip
CHARACTERS = Records(
    "characters",
    tuple({"before": f"{name} is a character of Harry Potter. As JSON:\n"} for name in NAMES),
    (
        '{\n    "house": "', ("house", "Gryffindor|Slytherin|Ravenclaw|Hufflepuff"),
        '",\n    "blood status": "', ("blood", "Pure-blood|Half-blood|Muggle-born"),
        '",\n    "occupation": "', ("occupation", "student|teacher|auror|minister"),
        '",\n    "wand": {\n        "wood": "', ("wood", WORD),
        '",\n        "length": ', ("length", r"[0-9]{1,2}\.[0-9]"),
        '\n    },\n    "patronus": "', ("patronus", HOBBY), '"\n}',
    ),
)  # fmt: skip


def as_regex(records: Records, jump_forward: bool) -> lmc.Program:
    regex = records.regex

    @lmc.jit
    def record(s: State, before: str) -> None:
        s += before
        s += lmc.gen("record", max_tokens=120, regex=regex, jump_forward=jump_forward)

    return record


def as_template(records: Records, jump_forward: bool) -> lmc.Program:
    parts = [
        part
        if isinstance(part, str)
        else lmc.gen(part[0], max_tokens=20, regex=part[1], jump_forward=jump_forward)
        for part in records.parts
    ]

    @lmc.jit
    def record(s: State, before: str) -> None:
        s += before
        s += lmc.template(*parts)

    return record


class Wrapped:
    """A vocabulary as llguidance wants to see it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        self.eos_token_id = vocabulary.eos[0]
        self.bos_token_id = None
        # A token that is no text begins with 0xFF, which llguidance takes for a special token.
        self.tokens = [
            text or b"\xff<%d>" % token for token, text in enumerate(vocabulary.token_bytes)
        ]
        self.special_token_ids = [t for t, text in enumerate(vocabulary.token_bytes) if not text]

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


class Masked(Peer):
    """The batched peer, each row's logits masked by llguidance; regular expressions only."""

    def __init__(self, peer: _Peer, engine: lmc.Engine) -> None:
        import llguidance

        target = engine.executor.target
        super().__init__(peer.model, target.tokenizer, target.template)
        vocabulary = target.vocabulary
        tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(Wrapped(vocabulary)),
            n_vocab=len(vocabulary),
            eos_token=list(vocabulary.eos),
        )
        self._eos = vocabulary.eos[0]

        def matcher(regex: str) -> Any:  # noqa: ANN401 - llguidance's own
            made = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_regex(regex))
            assert not made.is_error(), made.get_error()
            return made

        self._matcher = matcher
        self.steps = 0

    def _generate(self, calls: list[_Call]) -> None:
        import numpy as np
        import torch

        matchers = [self._matcher(call.params.regex) for call in calls if call.params]
        made: list[list[int]] = [[] for _ in calls]
        logits, cache, mask = self._prompt([call.prompt for call in calls], 1)
        while True:
            self.steps += 1
            last = logits[:, -1].float()
            tokens = torch.full((len(calls), 1), self._eos)
            for row, (matcher, scores) in enumerate(zip(matchers, last, strict=True)):
                if matcher.is_stopped():
                    continue
                bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
                allowed = np.unpackbits(bits, bitorder="little")[: len(scores)].astype(np.bool_)
                scores[torch.from_numpy(~allowed)] = -torch.inf
                tokens[row] = token = int(scores.argmax())
                matcher.consume_token(token)
                if token != self._eos:
                    made[row].append(token)
            if all(matcher.is_stopped() for matcher in matchers):
                break
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            position = mask.sum(-1, keepdim=True) - 1
            logits, cache = self._forward(tokens, mask, position, cache, 1)
        for call, row in zip(calls, made, strict=True):
            call.result = row


Way = Callable[[], dict[str, int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    with lmc.Engine(threads=given.threads, dtype=given.dtype) as engine:
        rival = None
        if not given.no_peer and importlib.util.find_spec("llguidance"):
            rival = Masked(_Peer(engine), engine)
        runner: Any = engine._runner
        about = {"engine": runner.description, "python": platform.python_version()}
        for records in (NOTES, CHARACTERS):
            ways: dict[str, Way] = {}
            for name, make in (("template", as_template), ("regex", as_regex)):
                ways[name] = mine(engine, make(records, True), records)
                ways[f"{name}, jump_forward=False"] = mine(engine, make(records, False), records)
            if rival is not None:
                ways["transformers + llguidance"] = theirs(rival, records)
            measure(records, ways, given.runs)
    print(json.dumps(about))


def measure(records: Records, ways: dict[str, Way], runs: int) -> None:
    """Take turns, and print what each way took and how it compares to the first."""
    walls: dict[str, list[float]] = {name: [] for name in ways}
    cpus: dict[str, list[float]] = {name: [] for name in ways}
    counts: dict[str, dict[str, int]] = {}
    for turn in range(runs + 1):
        for name, way in ways.items():
            start, busy = time.perf_counter(), time.process_time()
            counts[name] = way()
            if turn:
                walls[name].append(time.perf_counter() - start)
                cpus[name].append(time.process_time() - busy)
    wall = {name: statistics.median(times) for name, times in walls.items()}
    cpu = {name: statistics.median(times) for name, times in cpus.items()}
    first = next(iter(ways))
    for name in ways:
        row = {
            "set": records.name,
            "way": name,
            "programs_per_s": round(len(records.rows) / wall[name], 2),
            "wall_s": round(wall[name], 3),
            "cpu_s": round(cpu[name], 3),
            **counts[name],
        }
        if name != first:
            row["template is faster"] = {
                "wall": round(wall[name] / wall[first], 2),
                "cpu": round(cpu[name] / cpu[first], 2),
            }
        print(json.dumps(row), flush=True)


def mine(engine: lmc.Engine, program: lmc.Program, records: Records) -> Way:
    def run() -> dict[str, int]:
        engine.forget()
        before = dataclasses.replace(engine.stats)
        for out in program.run_batch(list(records.rows), engine=engine):
            if out.error is not None:
                raise out.error
        after = engine.stats
        return {
            "steps": after.model_steps - before.model_steps,
            "tokens_asked": after.generated_tokens - before.generated_tokens,
            "tokens_forced": after.forced_tokens - before.forced_tokens,
        }

    return run


def theirs(peer: Masked, records: Records) -> Way:
    import torch

    program = as_regex(records, False)

    def run() -> dict[str, int]:
        peer.steps = 0
        with torch.inference_mode():
            found = peer.run(program, records.rows)
        assert all(re.fullmatch(records.regex, row["record"]) for row in found)
        return {"steps": peer.steps}

    return run


if __name__ == "__main__":
    main()
