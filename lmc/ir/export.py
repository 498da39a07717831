"""Programs in other forms: JSON, DOT, Mermaid, SVG and networkx graphs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmc.constraints.drawing import dot_lines, dot_text, mermaid_text
from lmc.errors import Location
from lmc.ir.core import Const, Operand, Program, Region, Value
from lmc.ir.picture import LONGEST_LABEL, Group, Picture, picture_of
from lmc.ir.printer import name_values

if TYPE_CHECKING:
    import networkx as nx

    from lmc.constraints.compressed import Compressed

__all__ = ["Beside", "to_dot", "to_json", "to_mermaid", "to_networkx", "to_svg"]


def to_json(program: Program) -> dict[str, Any]:
    """The program as JSON values.

    An object with `name`, `params` (each `name`, `type`, `path`), `static`, `known`, `source` and
    `body`, a list of nodes. A node has `op`, `results` (each `name`, `type`), `operands` (each
    `{"value": name, "type"}` or `{"const": literal, "type"}`; those of `flow.resume` are pairs laid
    flat), `attributes`, `at` (`file` and `line`, or null) and `regions`, a list of bodies. The
    values of `ret` follow the state in the order of its attribute `names`; the last operand is what
    the function returned.
    """
    names = name_values(program)

    def operand(held: Operand) -> dict[str, Any]:
        if isinstance(held, Const):
            return {"const": held.value, "type": str(held.type)}
        return {"value": names[held], "type": str(held.type)}

    def defined(value: Value) -> dict[str, Any]:
        return {"name": names[value], "type": str(value.type)}

    def body(region: Region) -> list[dict[str, Any]]:
        return [
            {
                "op": node.op.mnemonic,
                "results": [defined(value) for value in node.results],
                "operands": [operand(held) for held in node.op.operands()],
                "attributes": node.op.attributes(),
                "at": _place(node.at),
                "regions": [body(inner) for inner in node.op.regions()],
            }
            for node in region.nodes
        ]

    params = zip(program.params, program.paths, strict=True)
    return {
        "name": program.name,
        "params": [{**defined(param), "path": list(path)} for param, path in params],
        "static": program.static,
        "known": list(program.known),
        "source": _place(program.source),
        "body": body(program.body),
    }


def _place(at: Location | None) -> dict[str, Any] | None:
    return {"file": at.file, "line": at.line} if at else None


GRAPHVIZ_SECONDS = 30  # large programs take Graphviz minutes


# ------------------------------------------------------------------------------------------- DOT

_BOX_STYLES = {
    "param": "shape=ellipse, style=filled, fillcolor=white",
    "lm.gen": "style=filled, fillcolor=gold",
    "lm.select": "style=filled, fillcolor=gold",
    "flow.if": "shape=diamond",
    "flow.switch": "shape=diamond",
    "ret": "style=bold",
    "flow.resume": "style=bold",
}
_ARROW_STYLES = {
    "state": "penwidth=2",
    "data": "style=dashed, color=steelblue",
    "control": "style=dotted",
}


@dataclass(frozen=True)
class Beside:
    """An automaton to draw beside a program.

    Attributes:
        kind, source: of the constraint.
        view: the automaton.
        nodes: the nodes that are held to it, by their number in printed order.
    """

    kind: str
    source: str | tuple[str, ...]
    view: Compressed
    nodes: tuple[int, ...]


def to_dot(program: Program, beside: Sequence[Beside] = ()) -> str:
    """The program in the language of Graphviz.

    Bold arrows carry states, dashed ones other values, dotted ones lead into the ways of an `if`;
    every region is a cluster.

    Args:
        program: what to draw.
        beside: automata of its constraints; each is a cluster, to which the gens point that are
            held to it. Double circles are where a text may end.
    """
    picture = picture_of(program)
    lines = [
        f"digraph {dot_text(picture.name)} {{",
        '  node [shape=box, fontname="monospace", fontsize=10];',
        '  edge [fontname="monospace", fontsize=9];',
        *_dot_group(picture.group, "  ", top=True),
        *(
            f"  {a.source} -> {a.target} [label={dot_text(a.label)}, {_ARROW_STYLES[a.kind]}];"
            for a in picture.arrows
        ),
        *(line for number, one in enumerate(beside) for line in _dot_beside(one, f"c{number}")),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _dot_beside(one: Beside, name: str) -> Iterator[str]:
    source = one.source if isinstance(one.source, str) else list(one.source)
    label = f"{one.kind} {source}"
    if len(label) > LONGEST_LABEL:
        label = label[: LONGEST_LABEL - 1] + "…"
    yield f"  subgraph cluster_{name} {{"
    yield f"    label={dot_text(label)};"
    yield from dot_lines(one.view, f"{name}s", "    ")
    yield "  }"
    for node in one.nodes:
        yield f"  n{node} -> {name}s0 [style=dotted, arrowhead=none];"


def _dot_group(group: Group, indent: str, *, top: bool = False) -> Iterator[str]:
    inside = indent if top else indent + "  "
    if not top:
        yield f"{indent}subgraph cluster_{group.id} {{"
        yield f"{inside}label={dot_text(group.label)};"
    for box in group.boxes:
        style = f", {_BOX_STYLES[box.op]}" if box.op in _BOX_STYLES else ""
        yield f"{inside}{box.id} [label={dot_text(box.label)}{style}];"
    for inner in group.inner:
        yield from _dot_group(inner, inside)
    if not top:
        yield f"{indent}}}"


# --------------------------------------------------------------------------------------- Mermaid

_LINKS = {"state": "==>", "data": "-.->", "control": "-->"}


def to_mermaid(program: Program) -> str:
    """The program as a Mermaid flowchart; arrows as in `to_dot`, regions as subgraphs."""
    picture = picture_of(program)
    lines = [
        "flowchart TD",
        *_mermaid_group(picture.group, "  ", top=True),
        *(
            f'  {a.source} {_LINKS[a.kind]}|"{mermaid_text(a.label)}"| {a.target}'
            for a in picture.arrows
        ),
    ]
    return "\n".join(lines) + "\n"


def _mermaid_group(group: Group, indent: str, *, top: bool = False) -> Iterator[str]:
    inside = indent if top else indent + "  "
    if not top:
        yield f'{indent}subgraph {group.id}["{mermaid_text(group.label)}"]'
    for box in group.boxes:
        yield f'{inside}{box.id}["{mermaid_text(box.label)}"]'
    for inner in group.inner:
        yield from _mermaid_group(inner, inside)
    if not top:
        yield f"{indent}end"


# ------------------------------------------------------------------------------- networkx and SVG


def to_networkx(program: Program) -> nx.MultiDiGraph[str]:
    """The program as a graph of boxes with `label` and `op`, and edges with `label` and `kind`."""
    return _networkx(picture_of(program))


def _networkx(picture: Picture) -> nx.MultiDiGraph[str]:
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=picture.name)
    for box in picture.boxes():
        graph.add_node(box.id, label=box.label, op=box.op)
    for arrow in picture.arrows:
        graph.add_edge(arrow.source, arrow.target, label=arrow.label, kind=arrow.kind)
    return graph


def to_svg(program: Program, *, graphviz: bool = True) -> str:
    """The program as a drawing.

    Args:
        program: what to draw.
        graphviz: let Graphviz draw it where `dot` is installed; otherwise, and where `dot` fails,
            lmc lays it out by itself.
    """
    from lmc.ir.svg import draw

    drawn = _graphviz(program) if graphviz else None
    return drawn or draw(picture_of(program))


def _graphviz(program: Program) -> str | None:
    """What Graphviz draws; None where it is not installed, fails, or takes too long."""
    dot = shutil.which("dot")
    if dot is None:
        return None
    try:
        done = subprocess.run(
            [dot, "-Tsvg"], input=to_dot(program), capture_output=True, encoding="utf-8",
            check=True, timeout=GRAPHVIZ_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
