"""`lmc bench programs`: programs compiled beside the same programs run eagerly, on one engine.

All ways use the same engine, the same threads of the model and an empty cache, in turn:

    compiled      all rows as plans
    eager         `--eager`: a thread a row, as many as SGLang's front end has; calls are handed to
                  the engine as the function makes them, and it waits where it reads a text
    interpreted   the same, and it waits at forks and joins as well, as SGLang's front end does;
                  only for programs that fork, as others have nothing to wait for there

`json` is written as statements for the other sides, as it would be in SGLang, and as one template
for the compiled side: there the outputs may differ, elsewhere they are compared.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmc.api import Program
from lmc.bench.cpu import circumstances_of
from lmc.bench.interpreter import interpreted
from lmc.bench.tasks import PROGRAMS, Measured
from lmc.engine import Engine
from lmc.errors import InternalError, UsageError

__all__ = ["Comparison", "ProgramsReport", "programs_markdown", "run_programs"]


@dataclass
class _Way:
    """A way of running, and what it took, run by run."""

    name: str
    program: Program
    eager: bool
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    steps: int = 0
    computed: int = 0
    generated: int = 0


@dataclass(frozen=True)
class Comparison:
    """One workload at one size of the KV cache.

    Attributes:
        name: of the workload.
        rows: programs in a run.
        kv_share: KV tokens there are, of all tokens that the run ever holds; None for ample.
        kv_tokens: how many that are; more than the share where the largest row needs them.
        compiled_wall, eager_wall, compiled_cpu, eager_cpu: seconds of a run, medians.
        wall_ratio, cpu_ratio: eager over compiled: medians of the ratios of runs next to each other.
        compiled_steps, eager_steps: of the model, in the last run.
        compiled_computed, eager_computed: prompt tokens that were not found in the cache.
        interpreted_wall_ratio, interpreted_cpu_ratio, interpreted_steps: as those of the eager side;
            None for a program that does not fork.
    """

    name: str
    rows: int
    kv_share: float | None
    kv_tokens: int | None
    compiled_wall: float
    eager_wall: float
    compiled_cpu: float
    eager_cpu: float
    wall_ratio: float
    cpu_ratio: float
    compiled_steps: int
    eager_steps: int
    compiled_computed: int
    eager_computed: int
    interpreted_wall_ratio: float | None = None
    interpreted_cpu_ratio: float | None = None
    interpreted_steps: int | None = None


@dataclass(frozen=True)
class ProgramsReport:
    """All comparisons and the circumstances they were made in."""

    comparisons: tuple[Comparison, ...]
    circumstances: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "circumstances": self.circumstances,
            "programs": [dataclasses.asdict(c) for c in self.comparisons],
        }


def run_programs(
    names: Sequence[str] = (),
    *,
    shares: Sequence[float] = (),
    model: str | None = None,
    threads: int | None = None,
    repeats: int = 3,
    dtype: str = "auto",
    say: Callable[[str], None] = lambda _: None,
) -> ProgramsReport:
    """Measure.

    Args:
        names: some of `PROGRAMS`; all if empty.
        shares: KV caches to measure with besides an ample one: shares of all tokens of the run.
        model: by default the default one.
        threads: of the model; by default one a physical core.
        repeats: runs of each side, after one to warm up; which side is first alternates.
        dtype: of the engine.
        say: told what is being measured.

    Raises:
        UsageError: there is no such workload.
    """
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        raise UsageError(
            f"there is no benchmark {unknown[0]!r}", hint=f"benchmarks are {', '.join(PROGRAMS)}"
        )
    given: dict[str, Any] = {"threads": threads, "dtype": dtype}
    if model is not None:
        given["model"] = model
    found: list[Comparison] = []
    totals: dict[str, int] = {}
    least: dict[str, int] = {}
    wanted = list(names or PROGRAMS)
    with Engine(**given) as engine:
        for name in wanted:
            say(name)
            work = PROGRAMS[name]
            comparison, totals[name] = _compare(work, engine, None, repeats)
            found.append(comparison)
            if shares:
                least[name] = _least_tokens(work, engine)
        circumstances = circumstances_of(
            getattr(engine._runner, "description", engine.model), None, repeats
        )
    for share in shares:
        for name in wanted:
            tokens = max(256, int(share * totals[name]))
            raised = f", raised to {least[name]} tokens, which the largest row needs"
            say(f"{name}, KV cache of {share:.0%}" + raised * (tokens < least[name]))
            with Engine(**given, kv_tokens=max(tokens, least[name])) as engine:
                comparison, _ = _compare(PROGRAMS[name], engine, share, repeats)
            found.append(dataclasses.replace(comparison, kv_tokens=max(tokens, least[name])))
    return ProgramsReport(tuple(found), circumstances)


def _least_tokens(work: Measured, engine: Engine) -> int:
    """How many KV tokens the rows need, run one by one: as many as the largest one."""
    programs = [work.program] if work.eager is None else [work.program, work.eager]
    return max(
        program.predict([row], engine=engine).most.peak_kv_tokens
        for program in programs
        for row in work.rows
    )


def _compare(
    work: Measured, engine: Engine, share: float | None, repeats: int
) -> tuple[Comparison, int]:
    """All ways in turn; and how many tokens the KV cache ever held, in the compiled run."""
    ways = [
        _Way("compiled", work.program, eager=False),
        _Way("eager", work.eager or work.program, eager=True),
    ]
    if work.forks:
        ways.append(_Way("interpreted", interpreted(work.program), eager=True))
    for turn in range(repeats + 1):
        texts = {
            way.name: _run(way, work, engine, keep=turn > 0)
            for way in (ways if turn % 2 else reversed(ways))
        }
        for name, some in texts.items():
            if work.eager is None and some != texts["compiled"]:
                raise InternalError(f"{work.name}: {name} does not give the same as compiled")
    compiled, eagerly = ways[:2]
    comparison = Comparison(
        name=work.name,
        rows=len(work.rows),
        kv_share=share,
        kv_tokens=None,
        compiled_wall=statistics.median(compiled.wall),
        eager_wall=statistics.median(eagerly.wall),
        compiled_cpu=statistics.median(compiled.cpu),
        eager_cpu=statistics.median(eagerly.cpu),
        wall_ratio=_ratio(eagerly.wall, compiled.wall),
        cpu_ratio=_ratio(eagerly.cpu, compiled.cpu),
        compiled_steps=compiled.steps,
        eager_steps=eagerly.steps,
        compiled_computed=compiled.computed,
        eager_computed=eagerly.computed,
    )
    for waiting in ways[2:]:
        comparison = dataclasses.replace(
            comparison,
            interpreted_wall_ratio=_ratio(waiting.wall, compiled.wall),
            interpreted_cpu_ratio=_ratio(waiting.cpu, compiled.cpu),
            interpreted_steps=waiting.steps,
        )
    return comparison, compiled.computed + compiled.generated


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def _run(way: _Way, work: Measured, engine: Engine, *, keep: bool) -> list[str]:
    """Run all rows once, with an empty cache; their texts."""
    engine.core.forget()
    before = dataclasses.replace(engine.stats)
    cpu, wall = time.process_time(), time.perf_counter()
    results = way.program.run_batch(list(work.rows), engine=engine, eager=way.eager, progress=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    for result in results:
        if result.error is not None:
            raise result.error
    after = engine.stats
    if keep:
        way.wall.append(wall)
        way.cpu.append(cpu)
    way.steps = after.model_steps - before.model_steps
    way.computed = (after.prompt_tokens - before.prompt_tokens) - (
        after.cached_tokens - before.cached_tokens
    )
    way.generated = after.generated_tokens - before.generated_tokens
    return [result.text for result in results]


def programs_markdown(report: ProgramsReport) -> str:
    """The report as a table and its circumstances."""
    lines = [
        "| program | rows | KV cache | programs/s, compiled / eager | ratio | ratio of CPU seconds "
        "| beside interpreted | its ratio of CPU seconds | steps, compiled / eager / interpreted "
        "| prompt tokens computed, compiled / eager |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for c in report.comparisons:
        share = "ample"
        if c.kv_share is not None:
            share = f"{c.kv_share:.0%}, {c.kv_tokens} tokens"
        others = (c.interpreted_wall_ratio, c.interpreted_cpu_ratio)
        wall, cpu = ("" if ratio is None else f"{ratio:.2f}" for ratio in others)
        steps = (c.compiled_steps, c.eager_steps, c.interpreted_steps)
        lines.append(
            f"| {c.name} | {c.rows} | {share} "
            f"| {c.rows / c.compiled_wall:.2f} / {c.rows / c.eager_wall:.2f} "
            f"| {c.wall_ratio:.2f} | {c.cpu_ratio:.2f} | {wall} | {cpu} "
            f"| {' / '.join(str(n) for n in steps if n is not None)} "
            f"| {c.compiled_computed} / {c.eager_computed} |"
        )
    lines += ["", *(f"* {name}: {value}" for name, value in report.circumstances.items())]
    return "\n".join(lines) + "\n"
