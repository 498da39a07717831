"""Code objects are taken apart and put together; what is put in between does the same."""

from __future__ import annotations

import ast
import difflib
import dis
import json.encoder
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmc.frontend.assembly import Instr, taken_apart
from lmc.frontend.bytecode import patched


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


def compiled(name: str) -> types.CodeType:
    path = Path(sysconfig.get_path("stdlib")) / name
    return compile(path.read_text(encoding="utf-8"), str(path), "exec")


@pytest.mark.parametrize("name", ["argparse.py", "asyncio/base_events.py", "inspect.py"])
def test_codes_of_pythons_own_are_understood(name: str) -> None:
    """`taken_apart` compares with what it was given, tables included."""
    for code in codes(compiled(name)):
        again = taken_apart(code).put_together()
        assert again.co_code == code.co_code


def ways(items: list[int]) -> list[str]:
    said = []
    for item in items:
        try:
            if item % 3 == 0:
                continue
            while item > 100:
                item -= 50
            said.append(str(10 // (item - 4)))
        except ZeroDivisionError as error:
            said.append(type(error).__name__)
        finally:
            said.append(";")
    return said


@pytest.mark.parametrize("between", [1, 40, 300])
def test_jumps_and_handlers_lead_where_they_did(between: int) -> None:
    """Also where their distance takes a second byte."""
    parts = taken_apart(ways.__code__)
    done = []
    for instr in parts.instrs:
        if instr.name == "LOAD_FAST":
            new = [Instr(dis.opmap["NOP"], line=instr.line) for _ in range(between)]
            parts.take_over(instr, new[0])
            done += new
        done.append(instr)
    parts.instrs = done
    stretched = types.FunctionType(parts.put_together(), globals())
    items = [3, 4, 5, 9, 120, 154]
    assert stretched(items) == ways(items)
    with pytest.raises(TypeError) as caught:
        stretched([3, "4"])
    with pytest.raises(TypeError) as expected:
        ways([3, "4"])  # type: ignore[list-item]
    assert caught.traceback[-1].lineno == expected.traceback[-1].lineno


@pytest.mark.parametrize("module", [difflib, json.encoder, textwrap, ast])
def test_what_is_replaced_does_the_same_on_known_values(module: types.ModuleType) -> None:
    """Modules of Python's own, all of whose functions are patched."""
    name = str(Path(str(module.__file__)).relative_to(sysconfig.get_path("stdlib")))
    code = compiled(name)
    made = patched(code, {})
    assert made is not None
    space = {"__name__": module.__name__, "__package__": module.__package__}
    exec(made, space)
    results = USES[module.__name__]
    assert results(space) == results(vars(module))


def differences(space: dict[str, Any]) -> object:
    lines = list(space["unified_diff"](["a\n", "b\n"], ["b\n", "c\n"], "old", "new"))
    return lines, space["HtmlDiff"]().make_table(["a", "b"], ["a", "c"])


USES: dict[str, Callable[[dict[str, Any]], object]] = {
    "difflib": differences,
    "json.encoder": lambda m: m["JSONEncoder"](indent=2, sort_keys=True).encode(
        {"b": [1.5], "a": 2}
    ),
    "textwrap": lambda m: m["indent"](m["fill"]("to be or not to be " * 9, 30), "> "),
    "ast": lambda m: m["unparse"](ast.parse(f"def f(a, *b): return f'<{{a!r:>{3}}}>' + {[1, 2]}")),
}
