"""Where the boxes and arrows of a picture go: layers from top to bottom.

The method of Sugiyama, Tagawa and Toda (1981) in its simplest form: boxes lie in layers by their
longest way from a source, arrows over several layers get bends in between, each layer is sorted by
the average place of its neighbours, and coordinates follow from that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lmc.ir.picture import Arrow, Group, Picture

__all__ = ["Layout", "Place", "lay_out", "smooth_path"]

BOX_GAP = 22
MARGIN = 20
SWEEPS = 8
MOST_BENDS = 20_000  # a drawing that would need more gets straight long arrows


@dataclass(eq=False)
class Place:
    """A box, or a bend of a long arrow, in its layer: `x` is its middle, `y` its upper edge."""

    width: float
    layer: int
    x: float = 0.0
    y: float = 0.0
    above: list[Place] = field(default_factory=list)
    below: list[Place] = field(default_factory=list)


Routes = list[tuple[Arrow, list[Place]]]


@dataclass(frozen=True)
class Layout:
    """A drawing in pixels.

    Attributes:
        places: of the boxes, by their names.
        routes: per arrow the places that it goes through, first and last those of boxes.
        width, height: of all.
    """

    places: Mapping[str, Place]
    routes: Routes
    width: float
    height: float


def lay_out(
    picture: Picture, widths: Mapping[str, float], box_height: float, layer_gap: float
) -> Layout:
    """Find a place for every box and arrow.

    Args:
        widths: of the boxes, by their names, in pixels.
        box_height: of all boxes.
        layer_gap: between the boxes of two layers.
    """
    places, routes = _placed(picture, widths)
    _arrange(places, routes)
    drawn = [*places.values(), *itertools.chain.from_iterable(route for _, route in routes)]
    for place in dict.fromkeys(drawn):
        place.y = MARGIN + place.layer * (box_height + layer_gap)
    width = max(p.x + p.width / 2 for p in drawn) + MARGIN
    height = max(p.y for p in places.values()) + box_height + MARGIN
    return Layout(places, routes, width, height)


def _inside(picture: Picture) -> Iterator[tuple[str, str]]:
    """For each box that leads into a region, the boxes of that region: they lie below it."""
    into = {arrow.target: arrow.source for arrow in picture.arrows if arrow.kind == "control"}
    groups: list[Group] = [picture.group]
    while groups:
        group = groups.pop()
        groups += group.inner
        boxes = [box.id for box in group.boxes]
        if boxes and boxes[0] in into:
            yield from ((into[boxes[0]], box) for box in boxes)


def _placed(picture: Picture, widths: Mapping[str, float]) -> tuple[dict[str, Place], Routes]:
    """Boxes in their layers, and for each arrow the places that it goes through."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    order = {box.id: nth for nth, box in enumerate(picture.boxes())}
    graph.add_nodes_from(order)
    graph.add_edges_from((a.source, a.target) for a in picture.arrows)
    graph.add_edges_from(_inside(picture))
    places = {
        box: Place(widths[box], layer)
        for layer, boxes in enumerate(nx.topological_generations(graph))
        for box in sorted(boxes, key=order.__getitem__)
    }
    spans = [places[a.target].layer - places[a.source].layer for a in picture.arrows]
    bends = sum(spans) - len(spans) <= MOST_BENDS
    routes: Routes = []
    for arrow, span in zip(picture.arrows, spans, strict=True):
        first, last = places[arrow.source], places[arrow.target]
        between = [Place(6, first.layer + n) for n in range(1, span)] if bends else []
        routes.append((arrow, [first, *between, last]))
    return places, routes


def _arrange(places: dict[str, Place], routes: Routes) -> None:
    """Give every place its `x`."""
    layers: dict[int, dict[Place, None]] = {}
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


def _spread(row: list[Place]) -> None:
    """Push the places of a layer apart, keeping their order and their middle."""
    wanted = sum(p.x for p in row) / len(row)
    edge = float("-inf")
    for place in row:
        place.x = max(place.x, edge + place.width / 2)
        edge = place.x + place.width / 2 + BOX_GAP
    shift = wanted - sum(p.x for p in row) / len(row)
    for place in row:
        place.x += shift


def smooth_path(route: list[Place], box_height: float) -> str:
    """An SVG path from the bottom of the first place through the bends to the top of the last."""
    x, y = route[0].x, route[0].y + box_height
    parts = [f"M{x:.0f} {y:.0f}"]
    for place in route[1:]:
        half = (place.y - y) / 2
        parts.append(
            f"C{x:.0f} {y + half:.0f} {place.x:.0f} {y + half:.0f} {place.x:.0f} {place.y:.0f}"
        )
        x, y = place.x, place.y
        if place is not route[-1]:
            y += box_height
            parts.append(f"L{x:.0f} {y:.0f}")
    return "".join(parts)
