"""A layered drawing of a program, without Graphviz.

The method of Sugiyama, Tagawa and Toda (1981) in its simplest form: boxes lie in layers by their
longest way from a source, arrows over several layers get bends in between, each layer is sorted by
the average place of its neighbours, and coordinates follow from that.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from html import escape

from lmc.ir.picture import Arrow, Picture

__all__ = ["draw"]

FONT = 11  # pixels
CHARACTER = 6.7  # pixels: width of a character of that font
BOX_HEIGHT = 24
LAYER_GAP = 44
BOX_GAP = 22
MARGIN = 20
SWEEPS = 8
MOST_BENDS = 20_000  # a drawing that would need more gets straight long arrows

_FILLS = {"param": "#ffffff", "lm.gen": "#ffd75e", "lm.select": "#ffd75e", "flow.if": "#dfe8f5"}
_STROKES = {
    "state": 'stroke="#333" stroke-width="2"',
    "data": 'stroke="#4682b4" stroke-dasharray="5 3"',
    "control": 'stroke="#888" stroke-dasharray="2 3"',
}


@dataclass(eq=False)
class _Place:
    """A box, or a bend of a long arrow, in its layer; `x` is its middle."""

    width: float
    layer: int
    x: float = 0.0
    above: list[_Place] = field(default_factory=list)
    below: list[_Place] = field(default_factory=list)

    @property
    def y(self) -> float:
        return MARGIN + self.layer * (BOX_HEIGHT + LAYER_GAP)


def draw(picture: Picture) -> str:
    """The picture as an SVG document."""
    places, routes = _placed(picture)
    _arrange(places, routes)
    drawn = [*places.values(), *itertools.chain.from_iterable(route for _, route in routes)]
    width = max(p.x + p.width / 2 for p in drawn) + MARGIN
    height = max(p.y for p in places.values()) + BOX_HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="{FONT}">',
        f"<title>{escape(picture.name)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
    ]
    for arrow, route in routes:
        lines.append(
            f'<path class="{arrow.kind}" d="{_path(route)}" fill="none" marker-end="url(#tip)" '
            f"{_STROKES[arrow.kind]}><title>{escape(arrow.label)}</title></path>"
        )
        if arrow.kind == "control":
            x, y = (route[0].x + route[1].x) / 2, route[0].y + BOX_HEIGHT + LAYER_GAP / 2
            lines.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="#666">{escape(arrow.label)}</text>')
    for box in picture.boxes():
        place = places[box.id]
        left, corner = place.x - place.width / 2, BOX_HEIGHT / 2 if box.op == "param" else 3
        fill = _FILLS.get(box.op, "#f4f4f4")
        lines += (
            f'<rect x="{left:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" '
            f'height="{BOX_HEIGHT}" rx="{corner}" fill="{fill}" stroke="#333"/>',
            f'<text x="{left + 8:.1f}" y="{place.y + BOX_HEIGHT * 0.66:.1f}" '
            f'xml:space="preserve">{escape(box.label)}</text>',
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


Routes = list[tuple[Arrow, list[_Place]]]


def _placed(picture: Picture) -> tuple[dict[str, _Place], Routes]:
    """Boxes in their layers, and for each arrow the places that it goes through."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    labels = {box.id: box.label for box in picture.boxes()}
    graph.add_nodes_from(labels)
    graph.add_edges_from((a.source, a.target) for a in picture.arrows)
    places = {
        box: _Place(len(labels[box]) * CHARACTER + 16, layer)
        for layer, boxes in enumerate(nx.topological_generations(graph))
        for box in sorted(boxes, key=list(labels).index)
    }
    spans = [places[a.target].layer - places[a.source].layer for a in picture.arrows]
    bends = sum(spans) - len(spans) <= MOST_BENDS
    routes: Routes = []
    for arrow, span in zip(picture.arrows, spans, strict=True):
        first, last = places[arrow.source], places[arrow.target]
        between = [_Place(6, first.layer + n) for n in range(1, span)] if bends else []
        routes.append((arrow, [first, *between, last]))
    return places, routes


def _arrange(places: dict[str, _Place], routes: Routes) -> None:
    """Give every place its `x`."""
    layers: dict[int, dict[_Place, None]] = {}
    for place in places.values():
        layers.setdefault(place.layer, {})[place] = None
    for _, route in routes:
        for upper, lower in itertools.pairwise(route):
            upper.below.append(lower)
            lower.above.append(upper)
            layers[lower.layer][lower] = None
    rows = [list(layers[n]) for n in sorted(layers)]
    for row in rows:
        _spread(row)
    for sweep in range(SWEEPS):
        downward = sweep % 2 == 0
        for row in rows if downward else reversed(rows):
            for place in row:
                near = place.above if downward else place.below
                if near:
                    place.x = sum(p.x for p in near) / len(near)
            row.sort(key=lambda p: p.x)
            _spread(row)
    left = min(place.x - place.width / 2 for row in rows for place in row)
    for row in rows:
        for place in row:
            place.x += MARGIN - left


def _spread(row: list[_Place]) -> None:
    """Push the places of a layer apart, keeping their order and their middle."""
    wanted = sum(p.x for p in row) / len(row)
    edge = float("-inf")
    for place in row:
        place.x = max(place.x, edge + place.width / 2)
        edge = place.x + place.width / 2 + BOX_GAP
    shift = wanted - sum(p.x for p in row) / len(row)
    for place in row:
        place.x += shift


def _path(route: list[_Place]) -> str:
    """A smooth line from the bottom of the first place through the bends to the top of the last."""
    x, y = route[0].x, route[0].y + BOX_HEIGHT
    parts = [f"M{x:.1f} {y:.1f}"]
    for place in route[1:]:
        half = (place.y - y) / 2
        parts.append(
            f"C{x:.1f} {y + half:.1f} {place.x:.1f} {y + half:.1f} {place.x:.1f} {place.y:.1f}"
        )
        x, y = place.x, place.y
        if place is not route[-1]:
            y += BOX_HEIGHT
            parts.append(f"L{x:.1f} {y:.1f}")
    return "".join(parts)
