"""Code objects of CPython 3.11 to 3.13 as lists of instructions, and back.

Owns        where jumps and handlers of exceptions lead; how wide arguments are; tables of lines.
Promises    `taken_apart` refuses a code that it does not understand to the last byte: it puts it
            together unchanged, and that must give the same.
Not here    what is done with the instructions (`bytecode`).
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Assembly", "Instr", "StrangeCodeError", "handlers_of", "taken_apart"]

_TESTED = (3, 11) <= sys.version_info[:2] <= (3, 13)
_JUMPS = frozenset(dis.hasjrel)
_EXTENDED = dis.opmap["EXTENDED_ARG"]
_CACHE = dis.opmap["CACHE"]
_LINE_ONLY, _NO_LINE = 13, 15  # kinds of entries in a table of lines
_LONGEST = 8  # units of code that one of these is for


class StrangeCodeError(Exception):
    """A code that is not understood."""


@dataclass(eq=False)
class Instr:
    """One instruction.

    Attributes:
        op: its number in `dis`.
        arg: without meaning for a jump, which has a `target`.
        caches: units behind it, which are zero.
        wide: units before it for the upper bytes of the argument, at least.
    """

    op: int
    arg: int = 0
    caches: int = 0
    line: int | None = None
    target: Instr | None = None
    wide: int = 0

    @property
    def name(self) -> str:
        return dis.opname[self.op]

    @property
    def units(self) -> int:
        """How many units of two bytes it takes."""
        return self.wide + 1 + self.caches


@dataclass(frozen=True)
class _Guard:
    """What is run if an instruction from `start` to before `end` raises."""

    start: Instr
    end: Instr | None
    target: Instr
    depth: int


@dataclass
class Assembly:
    """A code object in parts; instructions may be put in between, constants and names added."""

    code: types.CodeType
    instrs: list[Instr]
    consts: list[Any]
    _guards: list[_Guard]

    def const(self, value: object) -> int:
        """The number of a constant, a new one."""
        self.consts.append(value)
        return len(self.consts) - 1

    def take_over(self, old: Instr, new: Instr) -> None:
        """Have what leads to one instruction lead to another one."""
        for instr in self.instrs:
            if instr.target is old:
                instr.target = new
        self._guards = [
            replace(
                guard,
                start=new if guard.start is old else guard.start,
                end=new if guard.end is old else guard.end,
                target=new if guard.target is old else guard.target,
            )
            for guard in self._guards
        ]

    def led_to(self) -> set[Instr]:
        """The instructions that something else than the one before them leads to."""
        jumps = {instr.target for instr in self.instrs if instr.target is not None}
        return jumps | {guard.target for guard in self._guards}

    def put_together(self, deeper: int = 0) -> types.CodeType:
        """The code object, with room for so many more values on its stack."""
        places = self._places()
        raw = bytearray()
        for instr in self.instrs:
            arg = self._arg(instr, places)
            for shift in range(8 * instr.wide, 0, -8):
                raw += bytes((_EXTENDED, arg >> shift & 0xFF))
            raw += bytes((instr.op, arg & 0xFF)) + bytes(2 * instr.caches)
        return self.code.replace(
            co_code=bytes(raw),
            co_consts=tuple(self.consts),
            co_exceptiontable=self._table_of_guards(places),
            co_linetable=self._table_of_lines(),
            co_stacksize=self.code.co_stacksize + deeper,
        )

    def _places(self) -> dict[Instr | None, int]:
        """The first unit of each instruction, and of the end; widens what is too narrow."""
        while True:
            places: dict[Instr | None, int] = {}
            at = 0
            for instr in self.instrs:
                places[instr] = at
                at += instr.units
            places[None] = at
            narrow = False
            for instr in self.instrs:
                needed = (max(self._arg(instr, places).bit_length(), 1) - 1) // 8
                if needed > instr.wide:
                    instr.wide, narrow = needed, True
            if not narrow:
                return places

    @staticmethod
    def _arg(instr: Instr, places: dict[Instr | None, int]) -> int:
        if instr.target is None:
            return instr.arg
        ahead = places[instr.target] - places[instr] - instr.units
        distance = -ahead if "BACKWARD" in instr.name else ahead
        if distance < 0:
            raise StrangeCodeError
        return distance

    def _table_of_guards(self, places: dict[Instr | None, int]) -> bytes:
        table = bytearray()
        for guard in self._guards:
            start, end = places[guard.start], places[guard.end]
            entry = bytearray()
            for number in (start, end - start, places[guard.target], guard.depth):
                entry += _most_significant_first(number)
            entry[0] |= 0x80
            table += entry
        return bytes(table)

    def _table_of_lines(self) -> bytes:
        table, before = bytearray(), self.code.co_firstlineno
        for line, units in self._runs():
            if line is None:
                table.append(0x80 | _NO_LINE << 3 | units - 1)
                continue
            step, before = line - before, line
            table.append(0x80 | _LINE_ONLY << 3 | units - 1)
            table += _least_significant_first(-step << 1 | 1 if step < 0 else step << 1)
        return bytes(table)

    def _runs(self) -> Iterator[tuple[int | None, int]]:
        for instr in self.instrs:
            left = instr.units
            while left:
                yield instr.line, min(left, _LONGEST)
                left -= min(left, _LONGEST)


def taken_apart(code: types.CodeType) -> Assembly:
    """A code object in parts.

    Raises:
        StrangeCodeError: it is not understood, or Python is of another version than those tested.
    """
    if not _TESTED:
        raise StrangeCodeError
    instrs, at = _instructions(code)
    guards = [
        _Guard(at[start], at.get(start + length), at[target], depth)
        for start, length, target, depth in handlers_of(code)
    ]
    parts = Assembly(code, instrs, list(code.co_consts), guards)
    same = parts.put_together()
    if (
        same.co_code != code.co_code
        or same.co_exceptiontable != code.co_exceptiontable
        or _lines(same) != _lines(code)
    ):
        raise StrangeCodeError
    return parts


def _instructions(code: types.CodeType) -> tuple[list[Instr], dict[int, Instr]]:
    """The instructions, and by the unit where each begins."""
    raw, lines = code.co_code, _lines(code)
    instrs: list[Instr] = []
    at: dict[int, Instr] = {}
    jumps: list[tuple[Instr, int]] = []
    unit, units = 0, len(raw) // 2
    while unit < units:
        first, arg = unit, 0
        while raw[2 * unit] == _EXTENDED:
            arg = (arg | raw[2 * unit + 1]) << 8
            unit += 1
        instr = Instr(raw[2 * unit], arg | raw[2 * unit + 1], 0, lines[unit], wide=unit - first)
        unit += 1
        while unit < units and raw[2 * unit] == _CACHE:
            instr.caches += 1
            unit += 1
        if instr.op in _JUMPS:
            jumps.append(
                (instr, unit - instr.arg if "BACKWARD" in instr.name else unit + instr.arg)
            )
        instrs.append(instr)
        at[first] = instr
    for instr, target in jumps:
        if target not in at:
            raise StrangeCodeError
        instr.target = at[target]
    return instrs, at


def _lines(code: types.CodeType) -> list[int | None]:
    """The line of each unit."""
    return [position[0] for position in code.co_positions()]


def handlers_of(code: types.CodeType) -> Iterator[tuple[int, int, int, int]]:
    """Start, length, target and depth of each entry of the table of exceptions."""
    numbers: list[int] = []
    value = 0
    for byte in code.co_exceptiontable:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            numbers.append(value)
            value = 0
    if len(numbers) % 4:
        raise StrangeCodeError
    for n in range(0, len(numbers), 4):
        yield numbers[n], numbers[n + 1], numbers[n + 2], numbers[n + 3]


def _most_significant_first(number: int) -> bytearray:
    made = bytearray((number & 0x3F,))
    while number := number >> 6:
        made.insert(0, 0x40 | number & 0x3F)
    return made


def _least_significant_first(number: int) -> bytearray:
    made = bytearray()
    while number > 0x3F:
        made.append(0x40 | number & 0x3F)
        number >>= 6
    made.append(number)
    return made
