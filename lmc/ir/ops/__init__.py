"""All ops of the IR, in one place. To add one, write a class and add it to `OPS`."""

from __future__ import annotations

from lmc.ir.core import Op
from lmc.ir.ops.flow import If, Resume, Ret
from lmc.ir.ops.host import HostCall
from lmc.ir.ops.lm import (
    Chain,
    Extend,
    Gen,
    Match,
    Prefill,
    Race,
    Release,
    Role,
    Score,
    Select,
    Start,
    StateText,
)
from lmc.ir.ops.text import PARTIAL, Attempt, MakeList, Pack, Pick, Pure
from lmc.ir.ops.typed import Typed
from lmc.textops import PURE

__all__ = [
    "MODEL_CALLS",
    "OPS",
    "PARTIAL",
    "Attempt",
    "Chain",
    "Extend",
    "Gen",
    "HostCall",
    "If",
    "MakeList",
    "Match",
    "Pack",
    "Pick",
    "Prefill",
    "Pure",
    "Race",
    "Release",
    "Resume",
    "Ret",
    "Role",
    "Score",
    "Select",
    "Start",
    "StateText",
    "Typed",
    "op_class",
    "op_names",
]

OPS: tuple[type[Op], ...] = (
    Start, Extend, Role, Gen, Match, Chain, Select, Score, Race, StateText, Prefill, Release, Pure,
    HostCall, Typed, MakeList, Pack, Pick, Attempt, If, Resume, Ret,
)  # fmt: skip

MODEL_CALLS = (Gen, Match, Chain, Select, Score)

_BY_NAME: dict[str, type[Op]] = {cls.op: cls for cls in OPS if cls is not Pure}


def op_class(mnemonic: str) -> type[Op] | None:
    """The class of the op with this name, or None."""
    return Pure if mnemonic in PURE else _BY_NAME.get(mnemonic)


def op_names() -> list[str]:
    """All mnemonics, those of the pure functions too."""
    return [*_BY_NAME, *PURE]
