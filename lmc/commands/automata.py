"""The automata of a program's gens: measured for the report, looked at for drawings.

Each constraint is one, however many gens share it; and each template, in which the constraints of
its gens and the texts between them are matched as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmc.constraints import Automaton
from lmc.constraints.compressed import compressed
from lmc.constraints.description import fixed_in
from lmc.constraints.joining import joined
from lmc.constraints.known import automaton_for
from lmc.errors import Location
from lmc.ir.analysis import gens
from lmc.ir.core import Const, Program
from lmc.ir.export import Beside
from lmc.ir.ops import Match

__all__ = ["MOST_STATES", "automata_beside", "constraints_of"]

MOST_STATES = 10_000  # counted of an automaton


@dataclass
class _Held:
    """An automaton, and the gens that are held to it, each with its node's number and place.

    `alone` says whether some of them are not parts of a template whose automaton is known.
    """

    kind: str
    source: str | tuple[str, ...]
    options: Mapping[str, Any]
    automaton: Automaton
    alone: bool = False
    gens: list[tuple[str, int, Location | None]] = field(default_factory=list)


def constraints_of(program: Program) -> list[dict[str, Any]]:
    """The constraints and templates of a program as JSON values; see docs/cli.md."""
    return [
        {
            "kind": held.kind,
            "source": held.source,
            "options": held.options,
            **_measured(held.automaton),
            "gens": [{"name": name, "at": at and str(at)} for name, _, at in held.gens],
        }
        for held in _held(program)
    ]


def automata_beside(program: Program, most_edges: int) -> list[Beside]:
    """What can be drawn beside a program: of each automaton the edges nearest to its start."""
    found = []
    for held in _held(program):
        if not held.alone:
            continue
        view = compressed(held.automaton.machine, most_edges)
        nodes = tuple(dict.fromkeys(number for _, number, _ in held.gens))
        found.append(Beside(held.kind, held.source, view, nodes))
    return found


def _held(program: Program) -> list[_Held]:
    """The automata in the order of the gens; those of a template come before it."""
    made: dict[object, _Held] = {}
    for number, node in enumerate(program.walk()):
        # A text that is an argument makes an automaton only when the program runs.
        texts = node.op.texts if isinstance(node.op, Match) else ()
        known = [str(text.value) for text in texts if isinstance(text, Const)]
        template = bool(texts) and len(known) == len(texts)
        parts = []
        for name, params in gens(node.op):
            constraint = params.constraint
            if constraint is None:
                continue
            if constraint not in made:
                made[constraint] = _Held(
                    constraint.kind,
                    constraint.source,
                    constraint.options,
                    automaton_for(constraint),
                )
            made[constraint].gens.append((name, number, node.at))
            made[constraint].alone |= not template
            parts.append(made[constraint].automaton)
        if template:
            names = [name for name, _ in gens(node.op)]
            source = "".join(f"{{{n}}}{t}" for n, t in zip(names, known, strict=True))
            key = (source, tuple(params.constraint for _, params in gens(node.op)))
            if key not in made:
                made[key] = _Held("template", source, {}, joined(parts, known), alone=True)
            made[key].gens += [(name, number, node.at) for name in names]
    return list(made.values())


def _measured(automaton: Automaton) -> dict[str, Any]:
    """How many states an automaton has, and how much of its texts is fixed."""
    fixed = fixed_in(automaton)
    held = fixed and {
        "shortest": {"fixed": fixed.fixed, "bytes": fixed.length},
        "random": {"least": round(fixed.least, 3), "most": round(fixed.most, 3)},
    }
    return {"states": _states(automaton), "fixed": held}


def _states(automaton: Automaton) -> int | None:
    """How many states an automaton has, or None where there are too many to count."""
    machine = automaton.machine
    if machine.start is None:
        return 0
    first = machine.start // machine.nodes
    met, todo = {first}, [first]
    while todo:
        for _, state in machine.targets(todo.pop()):
            if state not in met:
                met.add(state)
                todo.append(state)
        if len(met) > MOST_STATES:
            return None
    return len(met)
