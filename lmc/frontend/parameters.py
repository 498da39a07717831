"""What programs give as parameters of a gen, and what a run gives for all its gens.

A gen's parameter that is left out, or None, has the value that the run gives for it, if it gives
one, and the default of `GenParams` otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from lmc.errors import UsageError
from lmc.params import GenParams

__all__ = ["RUN_WIDE", "Defaults", "gen_params", "run_defaults", "run_wide"]

Defaults = tuple[tuple[str, Any], ...]
"""Parameters by name, as `GenParams` takes them."""

RUN_WIDE = (
    "max_tokens", "min_tokens", "stop", "stop_regex", "stop_token_ids", "temperature", "top_p",
    "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias",
    "ignore_eos", "logprobs", "top_logprobs", "jump_forward",
)  # fmt: skip
"""The parameters that a run may give; its seed is its own, a constraint belongs to one gen."""

_defaults: ContextVar[Defaults] = ContextVar("defaults", default=())


def gen_params(given: Mapping[str, object]) -> GenParams:
    """The parameters of a gen; what is None is not given.

    Raises:
        UsageError: a value is out of its range.
    """
    return GenParams(**{**dict(_defaults.get()), **_plain(given)})


def run_wide(given: Mapping[str, object]) -> Defaults:
    """The parameters that a run gives.

    Raises:
        UsageError: a value is out of its range, or the parameter is of a single gen.
    """
    for name in given:
        if name not in RUN_WIDE:
            raise UsageError(
                f"{name} cannot be given for a whole run", hint=f"these can: {', '.join(RUN_WIDE)}"
            )
    plain = _plain(given)
    GenParams(**plain)
    return tuple(sorted(plain.items()))


@contextlib.contextmanager
def run_defaults(defaults: Defaults) -> Iterator[None]:
    """Inside, gens have these parameters where they give none of their own."""
    token = _defaults.set(defaults)
    try:
        yield
    finally:
        _defaults.reset(token)


def _plain(given: Mapping[str, object]) -> dict[str, Any]:
    """Without None; single stops and lists as tuples, dictionaries as pairs."""
    plain: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in ("stop", "stop_regex", "waive") and isinstance(value, str):
            value = (value,)
        elif isinstance(value, list) or (name == "choices" and not isinstance(value, str)):
            value = tuple(value)  # type: ignore[arg-type] # anything else raises
        elif name == "logit_bias" and isinstance(value, Mapping):
            value = tuple(value.items())
        plain[name] = value
    return plain
