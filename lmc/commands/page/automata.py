"""The automaton of a constraint as an SVG element: states as circles, texts on the arrows."""

from __future__ import annotations

from collections import defaultdict
from html import escape

from lmc.commands.page.labels import shortened
from lmc.constraints.compressed import Compressed
from lmc.constraints.drawing import label_of

__all__ = ["automaton_drawn"]

RADIUS = 13
ROW = 58  # pixels between states of a column
CHARACTER = 6.3
LONGEST = 28  # characters on an arrow
MARGIN = 26


def automaton_drawn(view: Compressed, name: str) -> str:
    """An automaton from left to right; double circles are where a text may end.

    Args:
        view: what to draw.
        name: begins the ids of its parts.
    """
    columns = _columns(view)
    labels: dict[tuple[int, int], list[str]] = defaultdict(list)
    for edge in view.edges:
        labels[edge.source, edge.target].append(shortened(label_of(edge), LONGEST))
    shown = {ends: _joined(texts) for ends, texts in labels.items()}
    x = _across(columns, shown)
    places: dict[int, tuple[float, float]] = {}
    tallest = max(len(column) for column in columns)
    for nth, column in enumerate(columns):
        top = MARGIN + RADIUS + 18 + (tallest - len(column)) * ROW / 2
        places.update((state, (x[nth], top + row * ROW)) for row, state in enumerate(column))
    width = x[-1] + RADIUS + MARGIN + (24 if view.unfinished else 0)
    back = any(places[a][0] >= places[b][0] and a != b for a, b in shown)
    height = 2 * MARGIN + 18 + tallest * ROW + (ROW if back else 0)
    lines = [
        f'<svg class="automaton" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="automaton">',
        f'<defs><marker id="{name}-tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" '
        'markerHeight="6" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for (source, target), text in shown.items():
        path, (tx, ty) = _path(places[source], places[target], source == target)
        lines.append(f'<path class="arrow state" d="{path}" marker-end="url(#{name}-tip)"/>')
        lines.append(f'<text class="edge" x="{tx:.1f}" y="{ty:.1f}">{escape(text)}</text>')
    for state, (cx, cy) in places.items():
        lines.append(f'<circle class="node" cx="{cx:.1f}" cy="{cy:.1f}" r="{RADIUS}"/>')
        if state in view.ends:
            lines.append(f'<circle class="node" cx="{cx:.1f}" cy="{cy:.1f}" r="{RADIUS - 4}"/>')
        lines.append(f'<text class="title" x="{cx:.1f}" y="{cy + 4:.1f}">{state}</text>')
        if state in view.unfinished:
            lines.append(f'<text class="edge" x="{cx + RADIUS + 12:.1f}" y="{cy + 4:.1f}">…</text>')
    return "\n".join([*lines, "</svg>"])


def _joined(texts: list[str]) -> str:
    return " | ".join(texts[:2]) + (f" | {len(texts) - 2} more" if len(texts) > 2 else "")


def _columns(view: Compressed) -> list[list[int]]:
    """States by their distance from the start."""
    targets: dict[int, list[int]] = defaultdict(list)
    for edge in view.edges:
        targets[edge.source].append(edge.target)
    columns, seen = [[0]], {0}
    while True:
        fresh: list[int] = []
        for state in columns[-1]:
            for target in targets[state]:
                if target not in seen:
                    seen.add(target)
                    fresh.append(target)
        if not fresh:
            return columns
        columns.append(fresh)


def _across(columns: list[list[int]], labels: dict[tuple[int, int], str]) -> list[float]:
    """Where each column stands: texts between two have room."""
    column_of = {state: nth for nth, column in enumerate(columns) for state in column}
    gaps = [70.0] * len(columns)
    for (source, target), text in labels.items():
        if column_of[target] == column_of[source] + 1:
            nth = column_of[source]
            gaps[nth] = max(gaps[nth], len(text) * CHARACTER + 2 * RADIUS + 26)
    x = [float(MARGIN + RADIUS)]
    for gap in gaps[:-1]:
        x.append(x[-1] + gap)
    return x


def _path(
    source: tuple[float, float], target: tuple[float, float], same: bool
) -> tuple[str, tuple[float, float]]:
    """An arrow, and where its text stands."""
    (x, y), (u, v) = source, target
    if same:
        top = y - RADIUS
        return (
            f"M{x - 7:.1f} {top + 2:.1f}C{x - 18:.1f} {top - 26:.1f} {x + 18:.1f} "
            f"{top - 26:.1f} {x + 7:.1f} {top + 2:.1f}",
            (x, top - 20),
        )
    if u > x:
        half = (u - x) / 2
        return (
            f"M{x + RADIUS:.1f} {y:.1f}C{x + half:.1f} {y:.1f} {x + half:.1f} {v:.1f} "
            f"{u - RADIUS:.1f} {v:.1f}",
            (x + half, (y + v) / 2 - 6),
        )
    low = max(y, v) + ROW * 0.55 + min(abs(x - u) * 0.06, ROW)
    return (
        f"M{x:.1f} {y + RADIUS:.1f}C{x:.1f} {low:.1f} {u:.1f} {low:.1f} {u:.1f} {v + RADIUS:.1f}",
        ((3 * x + u) / 4, low - ROW * 0.1),
    )
