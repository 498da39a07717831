"""Counters of the engine: what `engine.stats` and `lmc run --stats` show."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

__all__ = ["Counters", "EngineStats"]


@dataclass(slots=True)
class Counters:
    """What an engine does, counted.

    Attributes:
        requests: admitted at least once, or answered without the model.
        prompt_tokens: tokens of the prompts of admitted requests, each request once.
        cached_tokens: of those, the ones found in the cache instead of computed.
        computed_tokens: rows of all steps: prompts, made tokens, and what had to be computed again.
        generated_tokens: tokens drawn from the model and kept as tokens of a text.
        forced_tokens: tokens that a constraint gave without asking the model.
        model_steps: forward passes.
        evicted_tokens: KV entries dropped from the cache to make room.
        retracted_requests: times a running request was put back for want of memory.
        peak_kv_tokens: most KV slots that running requests held or leased at once.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    model_steps: int = 0
    evicted_tokens: int = 0
    retracted_requests: int = 0
    peak_kv_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were found in the cache; 0.0 before any prompt."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True)
class EngineStats(Counters):
    """What the engine has done since it was made, and the time that it took.

    Attributes:
        steps_put_back: steps that a device had no memory for; they were computed again, smaller.
        seconds: wall time by phase: "schedule", "model" (giving steps to the runner and waiting for
            them), "finish" (taking what they gave; the repeats of a step are waited for here).
    """

    steps_put_back: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"schedule": 0.0, "model": 0.0, "finish": 0.0}
    )

    def to_json(self) -> dict[str, object]:
        """All counters and `hit_rate`, as JSON values."""
        return {**dataclasses.asdict(self), "hit_rate": self.hit_rate}
