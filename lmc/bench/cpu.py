"""`lmc bench cpu`: the engine beside transformers in one process, in turn, as ratios."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lmc.bench.workloads import WORKLOADS, Workload
from lmc.engine import Engine
from lmc.errors import UsageError

__all__ = ["FIGURES", "Figure", "Report", "as_markdown", "circumstances_of", "run"]

FIGURES = ("prefill", "decode-1", "decode-16", *WORKLOADS, "radix", "executor", "compile")
PROMPT_TOKENS = 512
DECODE_TOKENS = 48


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        name, unit: what and in what; a larger number is better where the unit is a rate.
        mine, peer: medians for lmc and for the peer, which may be missing.
        mine_cpu, peer_cpu: CPU seconds of the process meanwhile.
        note: counts that belong to it.
    """

    name: str
    unit: str
    mine: float
    peer: float | None = None
    mine_cpu: float | None = None
    peer_cpu: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better lmc is, or None without a peer."""
        if self.peer is None or not self.mine or not self.peer:
            return None
        return self.mine / self.peer if self.unit.endswith("/s") else self.peer / self.mine


@dataclass(frozen=True)
class Report:
    """All figures and the circumstances they were measured in."""

    figures: tuple[Figure, ...]
    circumstances: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "circumstances": self.circumstances,
            "figures": [{**dataclasses.asdict(f), "ratio": f.ratio} for f in self.figures],
        }


@dataclass
class _Spent:
    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def _spending() -> Iterator[_Spent]:
    spent = _Spent()
    cpu, wall = time.process_time(), time.perf_counter()
    yield spent
    spent.wall, spent.cpu = time.perf_counter() - wall, time.process_time() - cpu


def run(
    names: Sequence[str] = (),
    *,
    threads: int | None = None,
    repeats: int = 3,
    peer: bool = True,
    dtype: str = "auto",
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure.

    Args:
        names: some of `FIGURES`; all if empty.
        threads: for both; by default one a physical core.
        repeats: of each figure, lmc and the peer in turn; medians are reported.
        peer: measure transformers as well (it takes several times as long as lmc itself).
        dtype: of the engine; the peer gets the same.
        say: told what is being measured.

    Raises:
        UsageError: there is no such figure.
    """
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise UsageError(
            f"there is no benchmark {unknown[0]!r}", hint=f"benchmarks are {', '.join(FIGURES)}"
        )
    wanted = list(names or FIGURES)
    figures: list[Figure] = []
    bookkeeping: list[Figure] = []  # first, while no model is in memory: they time Python
    if "radix" in wanted:
        say("radix")
        bookkeeping += _radix()
    if "executor" in wanted:
        say("executor")
        bookkeeping.append(_executor())
    if "compile" in wanted:
        from lmc.bench.compiling import compile_figures

        say("compile")
        bookkeeping += compile_figures()
    if set(wanted) - {"radix", "executor", "compile"}:
        with Engine(threads=threads, dtype=dtype) as engine:
            runner: Any = engine._runner
            description = runner.description
            other = _Peer(engine) if peer else None
            for name in wanted:
                say(name)
                if name in WORKLOADS:
                    figures.append(_workload(WORKLOADS[name], engine, other, repeats))
                elif name == "prefill":
                    figures.append(_prefill(engine, other, repeats))
                elif name.startswith("decode"):
                    batch = int(name.rpartition("-")[2])
                    figures.append(_decode(batch, engine, other, repeats))
    else:
        description = "no model"
    return Report((*figures, *bookkeeping), circumstances_of(description, peer, repeats))


def circumstances_of(description: str, peer: bool | None, repeats: int) -> dict[str, str]:
    """What figures depend on besides lmc; `peer` is None where there could be none."""
    import torch
    import transformers

    from lmc import __version__

    with_peer = f"transformers {transformers.__version__}"
    model = "unknown processor"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
        model = names[0].strip() if names else model
    except OSError:
        pass
    return {
        "lmc": __version__,
        "engine": description,
        **({} if peer is None else {"peer": with_peer if peer else "none"}),
        "repeats": f"{repeats} of each figure, after one to warm up",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": f"{model}, {os.cpu_count()} logical cores",
        "load": f"{os.getloadavg()[0]:.1f} when it ended (1 minute average)",
        "date": time.strftime("%Y-%m-%d"),
    }


class _Peer:
    """The transformers model with the engine's own weights and tokenizer."""

    def __init__(self, engine: Engine) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from lmc.bench.peer import Peer
        from lmc.runtime.runners import read_config
        from lmc.runtime.store import resolve
        from lmc.runtime.weights import load_weights

        files = resolve(engine.model)
        config = read_config(files)
        if config.family != "llama":
            raise UsageError(f"the peer runs models of the family llama, not {config.family}")
        runner: Any = engine._runner
        held = load_weights(files, config, torch.float32)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.context_length,
                rms_norm_eps=config.rms_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                tie_word_embeddings=config.tied,
                attn_implementation="sdpa",
            )
        )
        if config.tied:
            held["lm_head.weight"] = held["model.embed_tokens.weight"]
        model.load_state_dict(held)
        self.model = model.to(runner.dtype).eval()
        target = engine.executor.target
        self.programs = Peer(self.model, target.tokenizer, target.template)


def _medians(
    mine: Callable[[], float | None], theirs: Callable[[], float | None] | None, repeats: int
) -> tuple[float, float | None, float, float | None]:
    """Median wall and CPU seconds of both, measured in turn after one run to warm up.

    A function may return the seconds itself, where only a part of its run counts.
    """
    walls: tuple[list[float], list[float]] = ([], [])
    cpus: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        for which, call in enumerate((mine, theirs)):
            if call is None:
                continue
            with _spending() as spent:
                own = call()
            if turn:
                walls[which].append(spent.wall if own is None else own)
                cpus[which].append(spent.cpu)
    middle = [statistics.median(v) if v else None for v in (*walls, *cpus)]
    assert middle[0] is not None
    assert middle[2] is not None
    return middle[0], middle[1], middle[2], middle[3]


def _prompt(engine: Engine, tokens: int, salt: int) -> str:
    """A text of just so many tokens that shares no prefix with those of other salts."""
    tokenizer = engine.executor.target.tokenizer
    words = f"{salt} is where it begins. " + "The hill was steep and the way was long. " * tokens
    ids = tokenizer.encode(words, first=True)[:tokens]
    return tokenizer.decode(ids)


def _prefill(engine: Engine, peer: _Peer | None, repeats: int) -> Figure:
    import torch

    prompts = iter([_prompt(engine, PROMPT_TOKENS, 1000 + n) for n in range(repeats + 1)])
    tokenizer = engine.executor.target.tokenizer
    ids = torch.tensor([tokenizer.encode(_prompt(engine, PROMPT_TOKENS, 999), first=True)])

    def mine() -> None:
        engine.generate(next(prompts), max_tokens=1)

    def theirs() -> None:
        assert peer is not None
        with torch.inference_mode():
            peer.model(ids, logits_to_keep=1).logits[0, -1].argmax()

    found = _medians(mine, theirs if peer else None, repeats)
    return _rate("prefill", f"{PROMPT_TOKENS} tokens", PROMPT_TOKENS, found)


def _decode(batch: int, engine: Engine, peer: _Peer | None, repeats: int) -> Figure:
    import torch

    salts = iter(range(1000, 9000))

    tokenizer = engine.executor.target.tokenizer
    ready = [_prompt(engine, 48, next(salts)) for _ in range(4 * batch * (repeats + 1))]

    def prompts() -> list[str]:
        return [ready.pop() for _ in range(batch)]

    def seconds(call: Callable[[int], object]) -> float:
        """Without the prompt: the time of many tokens less the time of one."""
        with _spending() as one:
            call(1)
        with _spending() as many:
            call(DECODE_TOKENS + 1)
        return max(many.wall - one.wall, 1e-9)

    def mine() -> float:
        return seconds(lambda n: engine.generate(prompts(), n, ignore_eos=True))

    def theirs() -> float:
        assert peer is not None
        from lmc.bench.peer import _Call
        from lmc.params import GenParams

        def generate(n: int) -> None:
            calls = [
                _Call(tokenizer.encode(text, first=True), GenParams(max_tokens=n))
                for text in prompts()
            ]
            with torch.inference_mode():
                peer.programs._generate(calls)

        return seconds(generate)

    found = _medians(mine, theirs if peer else None, repeats)
    about = f"batch {batch}, {DECODE_TOKENS} tokens each"
    return _rate(f"decode-{batch}", about, batch * DECODE_TOKENS, found)


def _rate(
    name: str, note: str, tokens: int, found: tuple[float, float | None, float, float | None]
) -> Figure:
    mine, theirs, mine_cpu, peer_cpu = found
    peer = None if theirs is None else tokens / theirs
    return Figure(name, "tokens/s", tokens / mine, peer, mine_cpu, peer_cpu, note)


def _workload(work: Workload, engine: Engine, peer: _Peer | None, repeats: int) -> Figure:
    import torch

    counts: dict[str, int] = {}

    def mine() -> None:
        engine.core.forget()
        before = dataclasses.replace(engine.stats)
        results = work.program.run_batch(list(work.rows), engine=engine, progress=False)
        for result in results:
            if result.error is not None:
                raise result.error
        after = engine.stats
        counts["sent"] = after.prompt_tokens - before.prompt_tokens
        counts["computed"] = counts["sent"] - after.cached_tokens + before.cached_tokens
        counts["steps"] = after.model_steps - before.model_steps
        counts["forced"] = after.forced_tokens - before.forced_tokens

    def theirs() -> None:
        assert peer is not None
        peer.programs.reset()
        with torch.inference_mode():
            peer.programs.run(work.program, work.rows)
        counts["peer"] = peer.programs.computed_tokens

    with_peer = theirs if peer and work.name != "json" else None  # it cannot constrain
    found = _medians(mine, with_peer, repeats)
    note = (
        f"{work.about}; prompt tokens {counts['sent']} sent, {counts['computed']} computed"
        + (f" (peer {counts['peer']})" if "peer" in counts else "")
        + f"; {counts['steps']} steps"
        + (f", {counts['forced']} tokens forced" if counts["forced"] else "")
    )
    return Figure(work.name, "s", found[0], found[1], found[2], found[3], note)


def _radix() -> list[Figure]:
    import numpy as np

    from lmc.runtime.radix_cache import RadixCache

    length, times = 4096, 200
    keys = np.random.default_rng(0).integers(0, 100_000, (times, length))
    slots = np.arange(times * length, dtype=np.int32).reshape(times, length)
    cache = RadixCache()
    inserts, matches = [], []
    for row, held in zip(keys, slots, strict=True):
        with _spending() as spent:
            cache.insert(row, held)
        inserts.append(spent.wall * 1e6)
    for row in keys:
        with _spending() as spent:
            cache.acquire(row).release()
        matches.append(spent.wall * 1e6)
    note = f"median of {times} keys of {length} tokens"
    return [
        Figure("radix insert", "µs", statistics.median(inserts), note=note),
        Figure("radix match", "µs", statistics.median(matches), note=note),
    ]


def _executor() -> Figure:
    """Executor time a finished gen: everything but the engine, which answers at once."""
    from lmc.bench.instant import instant_executor

    rows = 1000
    executor, program, close = instant_executor()
    times = []
    for _ in range(6):
        with _spending() as spent:
            results = program(executor, rows)
        times.append(spent.wall / results * 1e6)
    close()
    return Figure(
        "executor",
        "µs",
        statistics.median(times[1:]),
        note=f"a gen, {rows} rows, with an engine that answers at once; before any model is loaded",
    )


def as_markdown(report: Report) -> str:
    """The report as a page of documentation."""
    lines = [
        "# Performance",
        "",
        "Written by `lmc bench cpu --write docs/performance.md`. The peer is plain transformers in",
        "the same process, with the same weights and number format, batched, and with the prefix",
        "that all rows share computed once. lmc and the peer are measured in turn; medians are",
        "shown. A ratio above 1 means that lmc is better by that factor. On a shared machine, trust",
        "ratios more than times, and CPU seconds more than wall time.",
        "",
        "| figure | lmc | transformers | ratio | CPU s, lmc / peer | what |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for f in report.figures:
        peer = "" if f.peer is None else f"{f.peer:,.4g} {f.unit}"
        ratio = "" if f.ratio is None else f"{f.ratio:.2f}"
        spent = " / ".join(f"{c:.2f}" for c in (f.mine_cpu, f.peer_cpu) if c is not None)
        lines.append(
            f"| {f.name} | {f.mine:,.4g} {f.unit} | {peer} | {ratio} | {spent} | {f.note} |"
        )
    lines += ["", "Circumstances:", ""]
    lines += [f"* {name}: {value}" for name, value in report.circumstances.items()]
    return "\n".join(lines) + "\n"
