"""A program as an SVG document, without Graphviz; where things go says `layout`."""

from __future__ import annotations

from html import escape

from lmc.ir.layout import lay_out, smooth_path
from lmc.ir.picture import Picture

__all__ = ["draw"]

FONT = 11  # pixels
CHARACTER = 6.7  # pixels: width of a character of that font
BOX_HEIGHT = 24
LAYER_GAP = 44

_FILLS = {
    "param": "#ffffff",
    "lm.gen": "#ffd75e",
    "lm.select": "#ffd75e",
    "flow.if": "#dfe8f5",
    "flow.switch": "#dfe8f5",
}
_STROKES = {
    "state": 'stroke="#333" stroke-width="2"',
    "data": 'stroke="#4682b4" stroke-dasharray="5 3"',
    "control": 'stroke="#888" stroke-dasharray="2 3"',
}


def draw(picture: Picture) -> str:
    """The picture as an SVG document."""
    widths = {box.id: len(box.label) * CHARACTER + 16 for box in picture.boxes()}
    layout = lay_out(picture, widths, BOX_HEIGHT, LAYER_GAP)
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="{FONT}">',
        f"<title>{escape(picture.name)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
    ]
    for arrow, route in layout.routes:
        path = smooth_path(route, BOX_HEIGHT)
        lines.append(
            f'<path class="{arrow.kind}" d="{path}" fill="none" marker-end="url(#tip)" '
            f"{_STROKES[arrow.kind]}><title>{escape(arrow.label)}</title></path>"
        )
        if arrow.kind == "control":
            x, y = (route[0].x + route[1].x) / 2, route[0].y + BOX_HEIGHT + LAYER_GAP / 2
            lines.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="#666">{escape(arrow.label)}</text>')
    for box in picture.boxes():
        place = layout.places[box.id]
        left, corner = place.x - place.width / 2, BOX_HEIGHT / 2 if box.op == "param" else 3
        fill = _FILLS.get(box.op, "#f4f4f4")
        lines += (
            f'<rect x="{left:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" '
            f'height="{BOX_HEIGHT}" rx="{corner}" fill="{fill}" stroke="#333"/>',
            f'<text x="{left + 8:.1f}" y="{place.y + BOX_HEIGHT * 0.66:.1f}" '
            f'xml:space="preserve">{escape(box.label)}</text>',
        )
    return "\n".join([*lines, "</svg>"]) + "\n"
