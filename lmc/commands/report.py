"""Facts about a compiled program, for `--emit report` and `lmc explain`; see docs/cli.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lmc.commands.automata import constraints_of
from lmc.commands.counting import CHARACTERS, Meter
from lmc.commands.differing import first_difference, late_arguments
from lmc.commands.effects import deeds, work_of
from lmc.driver import Compiled, changes_of
from lmc.errors import Location
from lmc.ir.analysis import calls_on_ways, cost, definitions
from lmc.ir.chains import unchained
from lmc.ir.core import Program, Value
from lmc.ir.ops import MODEL_CALLS, Prefill, Resume
from lmc.ir.types import STATE

if TYPE_CHECKING:
    from lmc.runtime.request import KeyArray

__all__ = ["Shape", "advice", "first_prompts", "report_of", "shared_prompts"]


@dataclass(frozen=True)
class Shape:
    """Rows of a batch that are compiled alike.

    Attributes:
        compiled: the program for them.
        lines: of the file, one a row.
        texts: of each row, in the order of the program's parameters.
    """

    compiled: Compiled
    lines: list[int]
    texts: list[tuple[str, ...]]


def report_of(
    compiled: Compiled, shapes: list[Shape] | None = None, meter: Meter = CHARACTERS
) -> dict[str, Any]:
    """What is known of a compiled program, as JSON values.

    Args:
        compiled: the program.
        shapes: of the rows of a batch, if there is one.
        meter: measures prompts.
    """
    graph = unchained(compiled.program)
    bounds = cost(graph)
    held: dict[str, Any] = {
        "program": graph.name,
        "source": _place(graph.source),
        "level": compiled.options.level,
        "pipeline": [record.name for record in compiled.records],
        "parameters": _parameters(graph, shared=False),
        "shared_parameters": _parameters(graph, shared=True),
        "nodes": {"traced": _count(compiled.traced), "optimized": _count(graph)},
        "ops": dict(sorted(Counter(node.op.mnemonic for node in graph.walk()).items())),
        "ways": bounds.ways,
        "model_calls": _range(bounds.calls),
        "most_generated_tokens": bounds.generated_tokens,
        "known_characters": _range(bounds.known_characters),
        "repeated_characters": _range(bounds.repeated_characters),
        "compiled_fully": not any(isinstance(node.op, Resume) for node in graph.walk()),
        "resumes": [
            {"at": _place(node.at), "reason": node.op.reason, "advice": advice(node.op.reason)}
            for node in graph.walk()
            if isinstance(node.op, Resume)
        ],
        "unit": meter.unit,
        "work": {
            "traced": work_of(compiled.traced, meter).to_json(),
            "optimized": work_of(graph, meter).to_json(),
        },
        "passes": [
            {**asdict(record), "did": deeds(change.before, change.program, meter)}
            for record, change in zip(compiled.records, changes_of(compiled), strict=True)
        ],
        "late_arguments": [late.to_json() for late in late_arguments(compiled.traced)],
        "shared": shared_prompts(graph),
        "constraints": constraints_of(compiled.program),
    }
    if shapes is not None:
        held["batch"] = {
            "rows": sum(len(shape.lines) for shape in shapes),
            "shapes": [_shape(shape) for shape in shapes],
            "first_prompts": _first_prompts(shapes, meter),
        }
    return held


def _shape(shape: Shape) -> dict[str, Any]:
    graph = unchained(shape.compiled.program)
    # as traced: what is appended line by line is still apart
    difference = first_difference(shape.compiled.traced, shape.texts)
    return {
        "rows": len(shape.lines),
        "parameters": len(graph.params),
        "nodes": _count(graph),
        "model_calls": _range(cost(graph).calls),
        "compiled_fully": not any(isinstance(node.op, Resume) for node in graph.walk()),
        "first_difference": difference and difference.to_json(shape.lines),
    }


def first_prompts(shapes: list[Shape], meter: Meter) -> list[KeyArray] | None:
    """The first prompt of each row, as far as it is known, as keys; None without a tokenizer."""
    if meter.tokenizer is None or meter.template is None:
        return None
    from lmc.runtime.prompts import FirstPrompts

    prompts: list[KeyArray] = []
    for shape in shapes:
        first = FirstPrompts(shape.compiled.plan, meter.tokenizer, meter.template)
        prompts += [keys for texts in shape.texts for keys in first.of(texts, most=1)]
    return prompts


def _first_prompts(shapes: list[Shape], meter: Meter) -> dict[str, Any] | None:
    """What the first prompts of the rows share, in tokens; None without a tokenizer."""
    prompts = first_prompts(shapes, meter)
    if prompts is None:
        return None
    from lmc.runtime.prefix_tree import PrefixTree

    tree = PrefixTree.of(prompts).to_json(most_nodes=1)
    return {name: held for name, held in tree.items() if name != "root"}


def _parameters(program: Program, *, shared: bool) -> list[str]:
    """Where the texts lie that a row gives: those that all rows of the batch share, or others."""
    known = program.known or (None,) * len(program.paths)
    pairs = zip(program.paths, known, strict=True)
    return [".".join(map(str, path)) for path, text in pairs if (text is not None) is shared]


def _count(program: Program) -> int:
    return sum(1 for _ in program.walk())


def _range(bounds: tuple[int, int]) -> dict[str, int]:
    return {"least": bounds[0], "most": bounds[1]}


def _place(at: Location | None) -> str | None:
    return None if at is None else str(at)


# --------------------------------------------------------------------------- what is shared


def shared_prompts(program: Program) -> list[dict[str, Any]]:
    """The prompts that are computed once for several readers.

    Each has `at`, `model_calls` (how many on one way start from it) and `all_rows` (whether it is
    the same in every row of a batch).
    """
    made_by = definitions(program)
    calls = calls_on_ways(program.body)

    def depends_on_row(state: Value) -> bool:
        # a list instead of recursion: prompts may be longer than Python's stack is deep
        todo = [state]
        while todo:
            node = made_by.get(todo.pop())
            if node is None or isinstance(node.op, MODEL_CALLS):
                return True
            todo.extend(node.op.value_operands())
        return False

    found = []
    for node in program.walk():
        if isinstance(node.op, Prefill) and not node.op.ahead:
            state = next(v for v in node.results if v.type == STATE)
            found.append(
                {
                    "at": _place(node.at),
                    "model_calls": calls.get(state, 0),
                    "all_rows": not depends_on_row(state),
                }
            )
    return found


# ---------------------------------------------------------- how to change what runs eagerly

_ADVICE = (
    ("source is not at hand", "write the program into a file or a notebook, not into exec()"),
    ("that Python calls", "call it in the program itself, as in [f(x) for x in xs]"),
    ("of several kinds", "read it from the result instead, or let all branches give the same kind"),
    ("vote() with", "vote with texts"),
    ("the number of branches to wait for", "give join(k=...) a number that is known"),
    ("another program", "call it as program.call(s, ...), with a prompt of its own in this run"),
    (
        "lies outside of it",
        "return what it finds, or keep it in a variable (s.set); change other "
        "things in a tool (@lmc.tool), which runs once",
    ),
    ("something else", "depend on the arguments alone: no random numbers, time or outside state"),
    ("regular expression", "let the model match it: gen(regex=...), or select() among choices"),
    ("int()", "compare texts instead, as in s['x'] == '3', or select() among the numbers"),
    ("float()", "compare texts instead, or select() among the values"),
    ("the hash", "write if/elif over the values, as in if s['x'] == 'yes': ..."),
    ("an index", "write if/elif over the values"),
    ("the number of a", "write if/elif over its values"),
    ("the number of branches", "give fork() a number that is known, such as an argument"),
    ("arithmetic", "add, subtract and compare numbers; other arithmetic needs known ones"),
    ("ways through", "ask fewer questions one after the other, or join texts instead of branching"),
    ("operations", "shorten the loop, or pass its bound as a smaller argument"),
    ("the items", "loop over an argument or range(n) and index the list, as in x[i]"),
    ("the characters", "use text methods, `+`, and f-strings without width or precision"),
    ("`in`", "compare with the items one by one, or use `in` on the text before split()"),
    ("`is`", "compare with =="),
    ("`match`", "write if/elif, or say what type the tool returns"),
    ("a comparison", "compare the items of the list one by one, as in x[0] == 'a'"),
    ("len()", "write len(x) in the program itself, and compare it or put it into a text"),
    ("slice", "slice with numbers that are known, without a step"),
    ("splitlines(True)", "use splitlines() and add the line ends again"),
    ("split() with maxsplit", "use split(sep) and join what is left"),
    ("join()", "join texts only"),
    ("a library", "call it as a tool, as in lmc.call(json.loads, text)"),
    ("the value itself", "call it as a tool, as in lmc.call(re.findall, pattern, text)"),
    ("inside `try`", "do it before the `try` or the `with`, or let the row fail"),
    ("a format", "write the format as a constant"),
    ("copy of", "use the text itself: texts never change"),
    ("parameter", "write it as a constant, or pass it as an argument that is no text"),
    ("name of a variable", "write it as a constant"),
    ("method of a select", "write it as a constant"),
    ("logit_bias", "write it as a constant, or pass it as an argument that is no text"),
    ("temperature of a select", "write it as a constant, or pass it as an argument"),
    ("values", "give the type fewer values, or compare it with them one by one"),
    ("the type", "say what the tool returns, as in def search(query: str) -> str"),
    ("of a value that is not", "format, compare or index it, or say what type the tool returns"),
    ("an item", "index it with a text or a number"),
    ("a call", "call the tool itself, not what it returned"),
    ("that it is not given", "give it as an argument: lmc.call(tool, value)"),
    ("together with", "make a text of it first, as in f'{x}', or use lists and dictionaries"),
    ("with these arguments", "call it with plain texts"),
    ("strange", "give it a text"),
    ("% of", "use an f-string"),
    ("* of", "repeat the text by hand, or in a loop"),
    ("+ of", "index the list, and put its items into a list of your own"),
    ("Error: ", "keep what can fail out of the program, or let the row fail"),
    ("` of a", "use another method: docs/ir.md lists those that compile"),
)

_ANY_ADVICE = "do this before the program runs, and pass the result as an argument"


def advice(reason: str) -> str:
    """How to change a program that ends in `flow.resume` for this reason."""
    return next((hint for mark, hint in _ADVICE if mark in reason), _ANY_ADVICE)
