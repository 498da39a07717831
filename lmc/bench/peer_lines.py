"""What another engine measured on the same machine, read from its lines, beside what lmc measured.

The lines are JSON objects, one a line, of the kinds

    {"engine": "E", "version": "1", "measure": "decode", "batch": 64, "ms_per_step": 7.1}
    {"engine": "E", "measure": "decode", "batch": 1, "ms_per_step": 4.4, "cached_first_token_ms": 9.8}
    {"engine": "E", "measure": "prefill", "prompts": 1, "tokens": 8192, "tok_per_s": 39000.0}
    {"engine": "E", "workload": "judge", "scale": 1.0, "programs_per_s": 21.5}

with whatever other fields. Lines of other kinds are passed over. Where there are several of one
figure, the best counts: so the peer is shown as well as it can be.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from lmc.bench.cpu import Report
from lmc.bench.gpu import GPU_FIGURES
from lmc.errors import Location, UsageError

__all__ = ["PeerLines", "beside", "read_peer"]

# programs that a peer runs in several ways, by the name of the figure that each is a way of
WAYS = {"json_primed": "json"}
PREFILL = (1, 8192)  # prompts, tokens of each


@dataclass(frozen=True)
class PeerLines:
    """The figures of one engine.

    Attributes:
        engine: its name and its version.
        figures: by the names that `lmc bench gpu` has for them, in the same units.
    """

    engine: str
    figures: dict[str, float]


def read_peer(path: Path, scale: float = 1.0) -> PeerLines:
    """Read the lines of a file.

    Args:
        scale: share of each program's rows; lines of other scales are passed over.

    Raises:
        UsageError: the file cannot be read, a line is no JSON object or has no number where one
            belongs, it holds lines of several engines, or no figure that lmc has.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--peer {path} cannot be read: {reason}") from error
    figures: dict[str, float] = {}
    engines: dict[str, None] = {}
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        at = Location(str(path), number)
        line = _object(row, at)
        if "engine" in line:
            engines[f"{line['engine']} {line.get('version', '')}".strip()] = None
        for name, key, rate in _kinds(line, scale):
            if name not in GPU_FIGURES:
                continue
            value = line.get(key)
            if not _is_positive(value):
                raise UsageError(f"{key!r} of {name} is {value!r}, not a number above 0", at)
            better = max if rate else min
            figures[name] = better(figures.get(name, value), value)
    if len(engines) > 1:
        raise UsageError(
            f"--peer {path} has lines of several engines: {', '.join(engines)}",
            hint="give a file of one of them",
        )
    if not figures:
        raise UsageError(
            f"--peer {path} has no figure that lmc has at scale {scale:g}",
            hint='a line looks like {"engine": "E", "workload": "judge", "programs_per_s": 21.5}',
        )
    return PeerLines(next(iter(engines), "the peer"), figures)


def beside(report: Report, peer: PeerLines) -> Report:
    """The report with the peer's figures beside lmc's, where the peer has them."""
    figures = tuple(dataclasses.replace(f, peer=peer.figures.get(f.name)) for f in report.figures)
    return Report(figures, {**report.circumstances, "peer": peer.engine})


def _object(row: str, at: Location) -> dict[str, Any]:
    try:
        line = json.loads(row)
    except ValueError as error:
        raise UsageError(f"a peer's line is not JSON: {error}", at) from error
    if not isinstance(line, dict):
        raise UsageError(f"a peer's line is {row[:40]}, not a JSON object", at)
    return line


def _is_positive(value: object) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < math.inf  # NaN is neither


def _kinds(line: dict[str, Any], scale: float) -> list[tuple[str, str, bool]]:
    """The figures that a line gives: the name, where the number stands, and if more is better."""
    if "workload" in line:
        name = str(line["workload"])
        right = line.get("scale", 1.0) == scale
        return [(WAYS.get(name, name), "programs_per_s", True)] if right else []
    if line.get("measure") == "decode":
        batch = line.get("batch")
        steps = [(f"decode-{batch}", "ms_per_step", False)]
        first = batch == 1 and "cached_first_token_ms" in line
        return [*steps, *([("cached", "cached_first_token_ms", False)] if first else [])]
    if line.get("measure") == "prefill" and (line.get("prompts"), line.get("tokens")) == PREFILL:
        return [("prefill", "tok_per_s", True)]
    return []
