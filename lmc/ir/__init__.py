"""The compiler's world: programs as SSA graphs, their text, their rules and their meaning."""

from lmc.ir import ops
from lmc.ir.builder import ProgramBuilder, RegionBuilder
from lmc.ir.core import Const, Effect, Node, Op, Operand, Program, Region, Value
from lmc.ir.parser import parse
from lmc.ir.printer import print_program
from lmc.ir.types import BOOL, INT, STATE, TEXT, VALUE, Type, list_of
from lmc.ir.verifier import verify, violations

print = print_program  # as `lmc.ir.print`; not in `__all__`, where it would hide the built-in

__all__ = [
    "BOOL",
    "INT",
    "STATE",
    "TEXT",
    "VALUE",
    "Const",
    "Effect",
    "Node",
    "Op",
    "Operand",
    "Program",
    "ProgramBuilder",
    "Region",
    "RegionBuilder",
    "Type",
    "Value",
    "list_of",
    "ops",
    "parse",
    "print_program",
    "verify",
    "violations",
]
