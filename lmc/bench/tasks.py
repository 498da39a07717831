"""The programs of `lmc bench programs` and their rows: batches larger than a front end's threads.

Generations run to exactly `max_tokens` where nothing constrains them, so both ways do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmc.api import Program, jit
from lmc.bench.workloads import WORKLOADS
from lmc.frontend.dsl import State, gen, select

__all__ = ["PROGRAMS", "Measured"]


@dataclass(frozen=True)
class Measured:
    """A program, its rows, the program of the eager side where that is another one, and if it forks."""

    name: str
    program: Program
    rows: tuple[dict[str, Any], ...]
    eager: Program | None = None
    forks: bool = False


_THINGS = ("a bench", "a bridge", "a market hall", "a pond", "a tram stop", "a bakery", "a library",
           "a boat house", "a greenhouse", "a dovecote", "a cinema", "a skating rink")  # fmt: skip
_PLACES = ("by the old mill", "behind the station", "on the hill", "at the harbour", "in the park",
           "next to the school", "under the poplars", "near the river")  # fmt: skip


def _subject(number: int) -> str:
    thing = _THINGS[number % len(_THINGS)]
    place = _PLACES[number // len(_THINGS) % len(_PLACES)]
    return f"{thing} {place}"


@jit
def tree_of_thought(s: State, task: str) -> None:
    """Two plans, two elaborations of each, two doubts about each of these; then a choice."""
    s += (
        "A council has to decide. First a plan is made, then it is worked out, then it is doubted; "
        "each in a line.\n\n"
        f"Task: {task} is to be built with little money, by volunteers, before the winter. Nobody "
        "may be in the way for long, and what stands there now should be used again.\n"
    )
    plans = s.fork(2)
    for plan, kind in zip(plans, ("cheap", "quick"), strict=True):
        plan += f"A {kind} plan:"
        plan += gen("plan", max_tokens=12, ignore_eos=True)
        details = plan.fork(2)
        for detail, side in zip(details, ("people", "material"), strict=True):
            detail += f"\nIts {side}:"
            detail += gen("detail", max_tokens=12, ignore_eos=True)
            doubts = detail.fork(2)
            for doubt, who in zip(doubts, ("a neighbour", "the treasurer"), strict=True):
                doubt += f"\nWhat {who} says:"
                doubt += gen("doubt", max_tokens=12, ignore_eos=True)
            doubts.join()
        details.join()
    plans.join()
    for kind, plan_text in zip(("cheap", "quick"), s["plan"], strict=True):
        s += f"The {kind} plan:{plan_text}\n"
    s += "The better one is the"
    s += select("choice", [" cheap", " quick"])


_TOOLS = (
    "Answer by acting. An action is a line; what comes of it is told in the next line.\n"
    "Actions are: look, ask, measure, count, wait.\n\n"
    "Example. How many chairs fit into the hall?\n"
    "Action: measure the hall\nSeen: it is 12 by 9 steps.\n"
    "Action: measure a chair\nSeen: it takes a step each way.\n"
    "Action: ask whether there must be an aisle\nSeen: one of two steps.\n"
    "Answer: 90 chairs.\n\n"
)


@jit
def agent(s: State, question: str) -> None:
    """Act and see three times, then answer."""
    s += _TOOLS + question + "\n"
    for seen in ("nothing unusual.", "it is larger than one thought.", "that is all there is."):
        s += "Action:"
        s += gen("action", max_tokens=10, ignore_eos=True)
        s += f"\nSeen: {seen}\n"
    s += "Answer:"
    s += gen("answer", max_tokens=10, ignore_eos=True)


_NOTE = "Read the note, then write down the record.\n\nNote: {}\n\nRecord: "
_FIELDS = {
    "name": r"[A-Z][a-z]{2,11}",
    "surname": r"[A-Z][a-z]{2,11}",
    "age": r"[1-9][0-9]",
    "city": r"[A-Z][a-z]{2,13}",
    "job": r"(?:engineer|teacher|nurse|farmer|pilot|chef)",
    "score": r"[0-9]\.[0-9]",
}


@jit
def json_template(s: State, note: str) -> None:
    """A record as one template: one automaton, whose gens end where the text after them begins."""
    s += _NOTE.format(note)
    name, surname, age, city, job, score = (
        gen(name, 12, regex=regex) for name, regex in _FIELDS.items()
    )
    s += (
        '{"name": "' + name + '", "surname": "' + surname + '", "age": ' + age
        + ', "city": "' + city + '", "job": "' + job + '", "score": ' + score + "}"
    )  # fmt: skip


@jit
def json_statements(s: State, note: str) -> None:
    """The same record in statements: each gen ends by itself."""
    s += _NOTE.format(note)
    s += '{"name": "'
    s += gen("name", 12, regex=_FIELDS["name"])
    s += '", "surname": "'
    s += gen("surname", 12, regex=_FIELDS["surname"])
    s += '", "age": '
    s += gen("age", 12, regex=_FIELDS["age"])
    s += ', "city": "'
    s += gen("city", 12, regex=_FIELDS["city"])
    s += '", "job": "'
    s += gen("job", 12, regex=_FIELDS["job"])
    s += '", "score": '
    s += gen("score", 12, regex=_FIELDS["score"])
    s += "}"


def _rows(workload: str, count: int) -> tuple[dict[str, Any], ...]:
    """Rows like those of a workload of `lmc bench cpu`, as many as wanted."""
    given = WORKLOADS[workload].rows
    (name,) = given[0]
    return tuple(
        {name: _numbered(given[n % len(given)][name], n // len(given))} for n in range(count)
    )


def _numbered(value: Any, number: int) -> Any:
    if isinstance(value, list):
        return [f"({number + 1}) {value[0]}", *value[1:]]
    return f"({number + 1}) {value}"


def _sharing(name: str, count: int, text: str) -> tuple[dict[str, Any], ...]:
    return tuple({name: text.format(_subject(n))} for n in range(count))


PROGRAMS: dict[str, Measured] = {
    m.name: m
    for m in (
        Measured("few_shot", WORKLOADS["fewshot"].program, _rows("fewshot", 64)),
        Measured("tree_of_thought", tree_of_thought, _sharing("task", 16, "{}"), forks=True),
        Measured("judge", WORKLOADS["judge"].program, _sharing("subject", 16, "{}"), forks=True),
        Measured(
            "self_consistency", WORKLOADS["selfcons"].program, _rows("selfcons", 8), forks=True
        ),
        Measured("json", json_template, _rows("json", 24), json_statements),
        Measured("agent", agent, _sharing("question", 32, "What is the use of {}?")),
        Measured("chat", WORKLOADS["chat"].program, _rows("chat", 12)),
    )
}
