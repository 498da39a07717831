"""A short soak; `python -m tests.soak` is the long one."""

from __future__ import annotations

from tests.soak import soak


def test_nothing_is_lost_whatever_goes_wrong() -> None:
    ended = soak(120, seed=1).ended
    assert set(ended) >= {"done", "cancelled", "failed", "too large", "deadline", "given up"}
