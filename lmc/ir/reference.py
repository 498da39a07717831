"""The tables of `docs/ir.md`, made from the docstrings of the ops and the table of functions."""

from __future__ import annotations

import inspect

from lmc.ir.core import Op
from lmc.ir.ops import OPS
from lmc.textops import PURE

__all__ = ["function_table", "op_table", "textual_form"]


def textual_form(cls: type[Op]) -> str:
    """The example in the second paragraph of an op's docstring."""
    return _paragraphs(cls)[1]


def op_table() -> str:
    """A Markdown table of all ops: example, meaning, effect."""
    rows = ["| example | meaning | effect |", "|---|---|---|"]
    for cls in OPS:
        summary, form, *_ = _paragraphs(cls)
        # the base says pure, and an op that overrides it says io
        effect = "pure" if cls.effect is Op.effect else "io"
        if cls.terminator:
            effect = "ends a region"
        rows.append(f"| `{form}` | {summary} | {effect} |")
    return "\n".join(rows) + "\n"


def function_table() -> str:
    """A Markdown table of the pure functions and their types."""
    rows = ["| function | takes | gives |", "|---|---|---|"]
    rows += (f"| `{n}` | `{', '.join(fn.takes)}` | `{fn.gives}` |" for n, fn in PURE.items())
    return "\n".join(rows) + "\n"


def _paragraphs(cls: type[Op]) -> list[str]:
    text = inspect.getdoc(cls) or ""
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
