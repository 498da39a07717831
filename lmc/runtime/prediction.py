"""What a run will cost, before it runs: the counters of `engine.stats`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from lmc.runtime.stats import Counters, EngineStats

__all__ = ["PREDICTED", "Prediction", "counters_of"]


PREDICTED = tuple(field.name for field in dataclasses.fields(Counters))


def counters_of(stats: EngineStats) -> Counters:
    """The counters of an engine as they are now, without its times."""
    return Counters(**{name: getattr(stats, name) for name in PREDICTED})


@dataclass(frozen=True, slots=True)
class Prediction:
    """The counters that a run will have, if it begins with an empty cache.

    Attributes:
        rows: of the batch; 1 for a single run.
        least, most: with the shortest texts that are possible, and with the longest; with `exact`,
            the same twice. Else a run is likely to lie between them, but may lie outside: a counter
            need not grow with the texts.
        reasons: why they are not exact, each once; empty if they are.
    """

    rows: int
    least: Counters
    most: Counters
    reasons: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the run must have these very counters."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """`rows`, `exact`, `reasons`, and of every counter and `hit_rate` both values."""
        bounds: dict[str, Any] = {}
        for name in (*PREDICTED, "hit_rate"):
            least, most = getattr(self.least, name), getattr(self.most, name)
            bounds[name] = {"least": min(least, most), "most": max(least, most)}
        return {"rows": self.rows, "exact": self.exact, "reasons": list(self.reasons), **bounds}
