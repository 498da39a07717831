"""The sizes of an engine: all that its schedule depends on besides the requests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What of an engine decides how it schedules.

    Attributes:
        kv_tokens, context_length, vocab_size, most_repeats: of its runner.
        max_batch_tokens, max_running: as of `EngineCore`.
    """

    vocab_size: int
    kv_tokens: int
    context_length: int
    max_batch_tokens: int
    max_running: int
    most_repeats: int = 1
