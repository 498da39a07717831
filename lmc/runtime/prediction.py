"""What a run will cost, before it runs: the counters of `engine.stats`, each between two bounds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from lmc.runtime.stats import EngineStats

__all__ = ["PREDICTED", "Figures", "Prediction"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Counters of a run; each means what the one of the same name in `EngineStats` means."""

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

    @staticmethod
    def of(stats: EngineStats, since: Figures | None = None) -> Figures:
        """The counters of an engine; of what came after `since`, if that is given.

        The peak is that of the engine's whole life.
        """
        held = {name: getattr(stats, name) for name in PREDICTED}
        if since is not None:
            for name in PREDICTED[:-1]:
                held[name] -= getattr(since, name)
        return Figures(**held)

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens found in the cache; 0.0 before any prompt."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


PREDICTED = tuple(field.name for field in dataclasses.fields(Figures))


@dataclass(frozen=True, slots=True)
class Prediction:
    """The counters that a run will have, if it begins with an empty cache.

    Attributes:
        rows: of the batch; 1 for a single run.
        least, most: bounds of every counter; with `exact`, the same twice.
        reasons: why they are not exact, each once; empty if they are.
    """

    rows: int
    least: Figures
    most: Figures
    reasons: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the run must have these very counters."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """`rows`, `exact`, `reasons`, and of every counter and `hit_rate` the bounds."""
        bounds: dict[str, Any] = {}
        for name in (*PREDICTED, "hit_rate"):
            least, most = getattr(self.least, name), getattr(self.most, name)
            bounds[name] = {"least": min(least, most), "most": max(least, most)}
        return {"rows": self.rows, "exact": self.exact, "reasons": list(self.reasons), **bounds}
