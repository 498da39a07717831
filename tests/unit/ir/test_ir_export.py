import json
import os
import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from lmc.errors import Location
from lmc.ir import Node, Program, Region, parse
from lmc.ir.export import to_dot, to_json, to_mermaid, to_networkx, to_svg

NASTY = 'a "quoted" <tag> & \\ back\\nslash \n new ]|{}#; `tick` é \u2028 %x'

PROGRAM = parse(f"""program @"<p>"(%x: text) {{static = "{{\\"n\\": 1}}", source = ["p.py", 2]}} {{
  %s0 = lm.start
  %s1 = lm.extend %s0, {json.dumps(NASTY)}, %x
  %s2, %a = lm.gen %s1 {{name = "a", max_tokens = 7}}
  %b0 = text.eq %a, %x
  flow.if %b0 {{
    %s3, %b = lm.gen %s2 {{name = "b"}}
    ret %s3, {{b = %b}}, %a
  }} else {{
    flow.if true {{
      flow.resume (%s2, %a) {{reason = "]|"}}
    }} else {{
      ret %s2
    }}
  }}
}}
""")


def test_json_holds_everything() -> None:
    first = PROGRAM.body.nodes[0]
    body = Region((Node(first.op, first.results, Location("p.py", 3)), *PROGRAM.body.nodes[1:]))
    data = json.loads(json.dumps(to_json(PROGRAM.with_body(body))))
    assert data["name"] == "<p>"
    assert data["params"] == [{"name": "x", "type": "text", "path": ["x"]}]
    assert data["source"] == {"file": "p.py", "line": 2}
    assert json.loads(data["static"]) == {"n": 1}
    start, extend, gen, _, branch = data["body"]
    assert start["at"] == {"file": "p.py", "line": 3}
    assert extend["operands"] == [
        {"value": "s0", "type": "state"},
        {"const": NASTY, "type": "text"},
        {"value": "x", "type": "text"},
    ]
    assert gen["attributes"] == {"name": "a", "max_tokens": 7}
    assert gen["results"] == [{"name": "s2", "type": "state"}, {"name": "a", "type": "text"}]
    then, orelse = branch["regions"]
    assert then[1]["attributes"] == {"names": ["b"]}
    assert [node["op"] for node in orelse[0]["regions"][0]] == ["flow.resume"]


def test_networkx_graph_is_acyclic_and_complete() -> None:
    import networkx as nx

    graph = to_networkx(PROGRAM)
    assert nx.is_directed_acyclic_graph(graph)
    assert len(graph) == sum(1 for _ in PROGRAM.walk()) + 1
    kinds = {kind for *_, kind in graph.edges(data="kind")}
    assert kinds == {"state", "data", "control"}


def test_dot_has_a_cluster_for_every_way_and_quotes_all_texts() -> None:
    dot = to_dot(PROGRAM)
    assert dot.count("subgraph cluster_") == 4
    outside = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', dot)  # what is left when texts are taken out
    assert re.fullmatch(r'[\w\s{}\[\]=,;>"-]*', outside)


def test_state_and_data_arrows_look_different() -> None:
    dot, mermaid = to_dot(PROGRAM), to_mermaid(PROGRAM)
    assert 'n0 -> n1 [label="%s0", penwidth=2];' in dot
    assert 'p0 -> n1 [label="%x", style=dashed, color=steelblue];' in dot
    assert 'n0 ==>|"%s0"| n1' in mermaid
    assert 'p0 -.->|"%x"| n1' in mermaid


def test_mermaid_labels_hold_no_markup() -> None:
    lines = to_mermaid(PROGRAM).splitlines()
    assert lines[0] == "flowchart TD"
    assert sum(line.strip() == "end" for line in lines) == 4
    labels = [label for line in lines for label in re.findall(r'"(.*)"', line)]
    assert all(re.fullmatch(r"(?:[\w .,:=%-]|#\d+;)*", label) for label in labels)


@pytest.mark.skipif(
    not shutil.which("dot") and not os.environ.get("CI"), reason="Graphviz is not installed"
)
def test_graphviz_accepts_the_dot_text() -> None:
    subprocess.run(["dot", "-Tsvg"], input=to_dot(PROGRAM), encoding="utf-8", check=True,
                   capture_output=True, timeout=60)  # fmt: skip
    assert "<svg" in to_svg(PROGRAM)


def test_own_drawing_is_well_formed_and_keeps_boxes_apart() -> None:
    root = ElementTree.fromstring(to_svg(PROGRAM, graphviz=False))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [{k: float(v) for k, v in r.attrib.items() if k in ("x", "y", "width", "height")}
             for r in root.iter(f"{space}rect")]  # fmt: skip
    assert len(boxes) == sum(1 for _ in PROGRAM.walk()) + 1
    labels = [t.text for t in root.iter(f"{space}text")]
    assert "%s0 = lm.start" in labels
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in boxes:
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width
        assert 0 <= box["y"] <= box["y"] + box["height"] <= height
        for other in boxes:
            beside = (
                box["x"] + box["width"] <= other["x"]
                or other["x"] + other["width"] <= box["x"]
                or box["y"] + box["height"] <= other["y"]
                or other["y"] + other["height"] <= box["y"]
            )
            assert box is other or beside


def test_smallest_program_can_be_drawn() -> None:
    program: Program = parse("program @p() {\n  %s0 = lm.start\n  ret %s0\n}\n")
    ElementTree.fromstring(to_svg(program, graphviz=False))
    assert len(to_networkx(program)) == 2
