"""The graphs of a page: boxes of two lines, with what a pass changed marked.

Colours are the page's: boxes and arrows have classes, and boxes say which line of the user's
program they came from. `del` marks what the next pass drops, `new` and `changed` what the last pass
made; the page shows one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from lmc.commands.page.labels import label_of
from lmc.ir.core import Node, Program, Value
from lmc.ir.layout import lay_out, smooth_path
from lmc.ir.picture import Box, picture_of, pruned
from lmc.ir.printer import name_values

__all__ = ["changes_between", "drawn"]

BOX_HEIGHT = 40
LAYER_GAP = 26
CHARACTER = 6.7  # pixels of a character of 11 pixels, the detail; titles are 12 pixels and bold
TITLE_CHARACTER = 7.6
MOST_DRAWN = 120  # boxes of a graph; ways of an `if` beyond them are only counted

Marks = dict[int, str]
"""Classes of nodes, by the node's place in printed order."""


def changes_between(before: Program, after: Program) -> tuple[Marks, Marks]:
    """What a pass dropped, marked in the program before it; and what it made, in the one after."""
    old, new = _known(before), _known(after)
    gone = {n: "del" for n, key in enumerate(map(_key, before.walk())) if key not in new}
    made = {}
    for n, node in enumerate(after.walk()):
        known = old.get(_key(node))
        if known is None:
            made[n] = "new"
        elif _head(known) != _head(node):
            made[n] = "changed"
    return gone, made


def _known(program: Program) -> dict[object, Node]:
    return {_key(node): node for node in program.walk()}


def _key(node: Node) -> object:
    """What tells whether a node is the same as one of another program: what it defines."""
    return node.results or (node.op.mnemonic, tuple(node.op.value_operands()))


def _head(node: Node) -> object:
    """The op without its regions, whose nodes are looked at one by one."""
    return node.op.mnemonic, node.op.operands(), node.op.attributes()


def drawn(program: Program, marks: Mapping[int, str], name: str) -> str | None:
    """A graph as an SVG element; None if it is too large to be looked at.

    Args:
        program: what to draw.
        marks: classes of its nodes.
        name: begins the ids of its boxes.
    """
    nodes = list(program.walk())
    picture, names = pruned(picture_of(program), MOST_DRAWN), name_values(program)
    if any(box.op == "more" for box in picture.group.boxes):  # there is no way to leave out
        return None
    labels = {box.id: _label(box, nodes, program, names) for box in picture.boxes()}
    widths = {
        box: max(len(title) * TITLE_CHARACTER, len(detail) * CHARACTER) + 20
        for box, (title, detail) in labels.items()
    }
    layout = lay_out(picture, widths, BOX_HEIGHT, LAYER_GAP)
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    lines = [
        f'<svg class="graph" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="graph of {escape(program.name)}">',
        f'<defs><marker id="{name}-tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" '
        'markerHeight="6" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for arrow, route in layout.routes:
        lines.append(
            f'<path class="arrow {arrow.kind}" d="{smooth_path(route, BOX_HEIGHT)}" '
            f'marker-end="url(#{name}-tip)"><title>{escape(arrow.label)}</title></path>'
        )
        if arrow.kind == "control":
            x, y = (route[0].x + route[1].x) / 2, route[0].y + BOX_HEIGHT + LAYER_GAP / 2
            lines.append(f'<text class="way" x="{x:.1f}" y="{y:.1f}">{escape(arrow.label)}</text>')
    for box in picture.boxes():
        place = layout.places[box.id]
        lines += _box(box, labels[box.id], nodes, marks, (place.x, place.y, place.width))
    return "\n".join([*lines, "</svg>"])


def _node_of(box: Box, nodes: list[Node]) -> tuple[int, Node] | None:
    if box.op in ("param", "more"):
        return None
    number = int(box.id[1:])
    return number, nodes[number]


def _label(
    box: Box, nodes: list[Node], program: Program, names: Mapping[Value, str]
) -> tuple[str, str]:
    found = _node_of(box, nodes)
    if box.op == "more":
        return "…", box.label
    if box.op == "flow.switch":
        return "switch", box.label.removeprefix("flow.switch ")
    if found is None:
        param = program.params[int(box.id[1:])]
        return f"%{names[param]}", f"argument, {param.type}"
    return label_of(found[1], names)


def _box(
    box: Box,
    label: tuple[str, str],
    nodes: list[Node],
    marks: Mapping[int, str],
    place: tuple[float, float, float],
) -> Iterator[str]:
    x, y, width = place
    found = _node_of(box, nodes)
    kind = box.op.replace(".", "-")
    classes, line = f"box {kind}", ""
    if found is not None:
        number, node = found
        classes += f" {marks[number]}" if number in marks else ""
        if node.at is not None:
            line = f' data-line="{escape(str(node.at))}"'
    title, detail = label
    yield f'<g class="{classes}"{line} tabindex="-1"><title>{escape(box.label)}</title>'
    corner = BOX_HEIGHT / 2 if box.op == "param" else 6
    yield (
        f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX_HEIGHT}" '
        f'rx="{corner}"/>'
    )
    middle = y + BOX_HEIGHT / 2
    low = middle - 3 if detail else middle + 4
    yield f'<text class="title" x="{x:.1f}" y="{low:.1f}">{escape(title)}</text>'
    if detail:
        yield f'<text class="detail" x="{x:.1f}" y="{middle + 13:.1f}">{escape(detail)}</text>'
    yield "</g>"
