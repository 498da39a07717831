"""The sizes of an engine: all that its schedule depends on besides the requests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STEP_POSITIONS", "TILED_STEP_POSITIONS", "Limits"]

# On a CPU, positions that take as long as reading all weights, with tile registers and without:
# 25 ms beside 0.33 ms, and 52 ms beside 2.1 ms (SmolLM2-135M, one thread).
TILED_STEP_POSITIONS, STEP_POSITIONS = 64, 24


@dataclass(frozen=True, slots=True)
class Limits:
    """What of an engine decides how it schedules.

    Attributes:
        kv_tokens, context_length, vocab_size, most_repeats, step_positions: of its runner.
        max_batch_tokens, max_running: as of `EngineCore`.
    """

    vocab_size: int
    kv_tokens: int
    context_length: int
    max_batch_tokens: int
    max_running: int
    most_repeats: int = 1
    step_positions: int = 0
