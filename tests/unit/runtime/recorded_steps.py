"""Steps of a real run in a file, to be computed again by any runner.

    python -m tests.unit.runtime.recorded_steps   # records tests/golden/steps.json.gz anew

The run is that of two programs on a small random model, several rows at once in short steps, so
that steps mix prompts and decodes and rows share prefixes. A step's tokens are those of the
recorded run, so what a runner draws in one step does not change the next one.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import lmc
from lmc.runtime import load
from lmc.runtime.adjustment import Adjustment
from lmc.runtime.config import ModelConfig
from lmc.runtime.model_runner import ModelRunner
from lmc.runtime.request import Outcome, Sampling, Segment, Step
from tests.unit.runtime.random_models import TINY, random_weights
from tests.unit.runtime.tiny_models import byte_level_core, write_folder

FILE = Path(__file__).parents[2] / "golden" / "steps.json.gz"
CONFIG = replace(TINY, layers=1, vocab_size=300)
KV_TOKENS, BATCH_TOKENS, REPEATS = 400, 40, 3


@dataclass(frozen=True)
class Recorded:
    """A run: the model, the pool, the steps and what the recording runner gave."""

    config: ModelConfig
    kv_tokens: int
    steps: list[Step]
    drawn: list[list[list[int]]]  # by step and repeat, of each segment

    def write(self, path: Path) -> None:
        masks: dict[bytes, int] = {}
        steps = [
            {"repeats": step.repeats, "segments": [_encode(s, masks) for s in step.segments]}
            for step in self.steps
        ]
        data = {
            "config": dataclasses.asdict(self.config),
            "kv_tokens": self.kv_tokens,
            "masks": [raw.hex() for raw in masks],
            "steps": steps,
            "drawn": self.drawn,
        }
        path.write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))

    @staticmethod
    def read(path: Path) -> Recorded:
        data = json.loads(gzip.decompress(path.read_bytes()))
        config = ModelConfig(**data["config"])
        masks = [
            np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=config.vocab_size)
            for text in data["masks"]
        ]
        allowed = [mask.astype(np.bool_) for mask in masks]
        steps = [
            Step(tuple(_decode(s, allowed) for s in step["segments"]), step["repeats"])
            for step in data["steps"]
        ]
        return Recorded(config, data["kv_tokens"], steps, data["drawn"])


def _encode(segment: Segment, masks: dict[bytes, int]) -> dict[str, Any]:
    """The fields that are not as they are by default."""
    held: dict[str, Any] = {
        "tokens": segment.tokens.tolist(),
        "start": segment.start,
        "slots": _runs(segment.slots.tolist()),
        "made": segment.made,
        "position": segment.position,
        "banned": segment.banned,
        "top": segment.top,
        "targets": segment.targets,
    }
    if segment.sample is not None:
        held["sample"] = dataclasses.asdict(segment.sample)
    if segment.mask is not None:
        held["mask"] = masks.setdefault(np.packbits(segment.mask).tobytes(), len(masks))
    if segment.adjustment is not None:
        a = segment.adjustment
        held["adjustment"] = [a.ids.tolist(), a.factor, a.seen.tolist(), a.added.tolist()]
    return {name: value for name, value in held.items() if value or name in ("start", "mask")}


def _decode(held: dict[str, Any], masks: list[Any]) -> Segment:
    made = dict(held)
    slots = [np.arange(first, first + count) for first, count in held["slots"]]
    made["slots"] = np.concatenate(slots).astype(np.int32)
    made["tokens"] = np.array(held["tokens"], np.int32)
    made["banned"] = tuple(held.get("banned", ()))
    made["targets"] = tuple(tuple(row) for row in held.get("targets", ()))
    if "sample" in held:
        made["sample"] = Sampling(**held["sample"])
    if "mask" in held:
        made["mask"] = masks[held["mask"]]
    if "adjustment" in held:
        ids, factor, seen, added = held["adjustment"]
        made["adjustment"] = Adjustment(
            np.array(ids, np.int64),
            factor,
            np.array(seen, np.bool_),
            np.array(added, np.float32),
        )
    return Segment(**made)


def _runs(numbers: list[int]) -> list[list[int]]:
    """Consecutive numbers as the first of them and how many."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return found


def one_by_one(step: Step, drawn: list[list[int]]) -> Iterator[Step]:
    """A step that is repeated as steps that are not, given what was drawn."""
    for number in range(step.repeats):
        yield Step(
            tuple(
                replace(
                    s,
                    tokens=s.tokens if not number else np.array([drawn[number - 1][i]], np.int32),
                    start=s.start + number,
                    slots=s.slots[: s.start + number + len(s.tokens)],
                    position=s.position + number,
                )
                for i, s in enumerate(step.segments)
            )
        )


class Recorder:
    """A `Runner` that computes by torch and remembers what it was asked; repeats steps itself."""

    most_repeats = REPEATS

    def __init__(self, config: ModelConfig) -> None:
        self.runner = ModelRunner(
            config, random_weights(config), dtype="float32", kv_tokens=KV_TOKENS, threads=1
        )
        self.recorded = Recorded(config, KV_TOKENS, [], [])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def run(self, step: Step) -> Outcome:
        drawn: list[list[int]] = []
        outcomes = []
        singles = one_by_one(step, drawn)
        for _ in range(step.repeats):
            outcomes.append(self.runner.run(next(singles)))
            drawn.append(list(outcomes[-1].tokens))
        self.recorded.steps.append(step)
        self.recorded.drawn.append(drawn)
        return replace(outcomes[0], later=outcomes[1:])

    def close(self) -> None:
        self.runner.close()


@lmc.jit
def sides(s: lmc.State, topic: str) -> None:
    s += f"All that we know of {topic} was said by two who never met.\n"
    both = s.fork(2)
    both[0] += "One of them: "
    both[0] += lmc.gen("said", max_tokens=6, temperature=1.0, top_p=0.8)
    both[1] += "The other: "
    both[1] += lmc.gen("said", max_tokens=5, temperature=0.7, top_k=9, frequency_penalty=0.5)
    both.join()
    for text in s["said"]:
        s += f"{text} or "
    s += lmc.gen("mark", regex=r"(good|bad), [0-9]{2}", temperature=1.2)


@lmc.jit
def choose(s: lmc.State, topic: str) -> None:
    s += f"All that we know of {topic} is"
    s += lmc.select("what", [" little", " a little", " a lot of what nobody asked"])
    s += lmc.gen("more", max_tokens=5, top_logprobs=3, repetition_penalty=1.3)
    s += lmc.gen("end", max_tokens=7, ignore_eos=True, logprobs=True)


def record(folder: Path) -> Recorded:
    """Run the programs."""
    write_folder(
        folder,
        byte_level_core(CONFIG.vocab_size, specials=["<end>"]),
        settings={"eos_token": "<end>"},
        config=dataclasses.asdict(CONFIG),
    )  # its sizes are not read: the runner is made here
    recorder = Recorder(CONFIG)
    with (
        mock.patch.object(load, "_runner", return_value=recorder),
        lmc.Engine(str(folder), device="cpu", max_batch_tokens=BATCH_TOKENS) as engine,
    ):
        for program in (sides, choose):
            rows = program.run_batch([{"topic": t} for t in ("bees", "chess")], engine=engine)
            for row in rows:
                if row.error is not None:
                    raise row.error
    return recorder.recorded


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        made = record(Path(place))
    made.write(FILE)
    print(f"{len(made.steps)} steps, {FILE.stat().st_size} bytes in {FILE.name}")
