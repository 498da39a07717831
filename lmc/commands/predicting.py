"""What a batch will cost, for reports: predictions as JSON values and as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

from lmc.batch import PLANNED

if TYPE_CHECKING:
    from lmc.api import Loaded, Program
    from lmc.commands.grouping import Group
    from lmc.driver import Options
    from lmc.runtime.dry_run import Rehearsal

__all__ = ["batch_prediction", "prediction_lines", "prediction_of"]

MOST_REASONS = 5  # shown of a prediction


def prediction_of(
    program: Program | Loaded,
    rows: Iterable[Mapping[str, object]],
    rehearsal: Rehearsal,
    options: Options,
) -> dict[str, Any] | None:
    """What rows will cost, as JSON values; None for more rows than are planned together."""
    if isinstance(rows, Sized) and len(rows) > PLANNED:
        return None
    return program.rehearsed(rows, rehearsal, options).to_json()


def batch_prediction(
    program: Program,
    groups: list[Group],
    model: str | None,
    kv_tokens: int | None,
    options: Options,
) -> dict[str, Any] | None:
    """What the rows of a batch will cost on a model that is not loaded; None without a model."""
    if model is None:
        return None
    from lmc.runtime.load import rehearsal_of

    by_line = {line: row for g in groups for line, row in zip(g.lines, g.rows, strict=True)}
    rows = [by_line[line] for line in sorted(by_line)]
    return prediction_of(program, rows, rehearsal_of(model, kv_tokens), options)


def prediction_lines(predicted: dict[str, Any] | None) -> Iterator[str]:
    """A prediction, for people."""
    if predicted is None:
        return

    def shown(name: str) -> str:
        least, most = predicted[name]["least"], predicted[name]["most"]
        return str(most) if least == most else f"{least} to {most}"

    how = "exactly" if predicted["exact"] else "as far as is known"
    least, most = (f"{predicted['hit_rate'][end]:.0%}" for end in ("least", "most"))
    rate = most if least == most else f"{least} to {most}"
    yield f"  predicted, {how}, with an empty cache:"
    yield f"    {shown('requests')} requests in {shown('model_steps')} steps of the model"
    yield (
        f"    prompts of {shown('prompt_tokens')} tokens, {shown('cached_tokens')} of them cached "
        f"({rate}); {shown('computed_tokens')} tokens computed, {shown('generated_tokens')} "
        f"generated"
    )
    yield (
        f"    KV cache: {shown('peak_kv_tokens')} tokens in use at most, "
        f"{shown('evicted_tokens')} evicted"
    )
    reasons = predicted["reasons"]
    yield from (f"    not exact: {reason}" for reason in reasons[:MOST_REASONS])
    if len(reasons) > MOST_REASONS:
        yield f"    and {len(reasons) - MOST_REASONS} more reasons"
