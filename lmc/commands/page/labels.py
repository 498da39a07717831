"""What stands in the box of a node: a title and a detail, both short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lmc.ir.analysis import gens
from lmc.ir.attributes import spell
from lmc.ir.core import Const, Node, Op, Operand, Value
from lmc.ir.ops import (
    MODEL_CALLS,
    Extend,
    HostCall,
    If,
    Prefill,
    Pure,
    Release,
    Resume,
    Ret,
    Role,
    Score,
    Select,
    Start,
)
from lmc.ir.prompts import call_name

__all__ = ["label_of", "shortened"]

LONGEST = 34  # characters of a title or of a detail


def label_of(node: Node, names: Mapping[Value, str]) -> tuple[str, str]:
    """The title and the detail of a node; the detail may be empty."""

    def shown(operands: Iterable[Operand], between: str) -> str:
        return between.join(
            spell(o.value) if isinstance(o, Const) else f"%{names[o]}" for o in operands
        )

    title, detail = _label(node.op, node, shown)
    return shortened(title, LONGEST), shortened(detail, LONGEST)


def _label(op: Op, node: Node, shown: object) -> tuple[str, str]:
    assert callable(shown)
    match op:
        case Start():
            return "start", "an empty prompt"
        case Extend():
            return "text", shown(op.parts, " ")
        case Role():
            return f"{op.edge} {op.role}", ""
        case Select():
            return f"select {op.name}", shown(op.choices, " | ")
        case Score():
            return f"score {op.name}", shown([op.text], "")
        case Prefill():
            return "prefill", "computed ahead"
        case Release():
            return "release", "this branch is over"
        case HostCall():
            return f"call {op.fn}()", shown(op.args, ", ")
        case If():
            return "if", shown([op.condition], "")
        case Ret():
            return "return", ", ".join(op.names)
        case Resume():
            return "go on eagerly", op.reason
        case Pure():
            return op.mnemonic, shown(op.args, ", ")
        case _ if isinstance(op, MODEL_CALLS):
            return f"{op.mnemonic.removeprefix('lm.')} {call_name(node)}", _limits(op)
    return op.mnemonic, shown(op.operands(), ", ")


def _limits(op: Op) -> str:
    """How the gens of a model call are held in."""
    told = []
    for _, params in gens(op):
        limits = [f"≤ {params.max_tokens} tokens"]
        if params.constraint is not None:
            limits.append(params.constraint.kind)
        elif params.stop:
            limits.append("until " + " or ".join(spell(stop) for stop in params.stop))
        told.append(", ".join(limits))
    return "; ".join(told)


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters: its middle is left out."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
