"""What each pass of a compilation did, in numbers and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from lmc.commands.counting import Meter
from lmc.commands.timeline import longest_steps
from lmc.ir.analysis import calls_on_ways, cost
from lmc.ir.chains import unchained
from lmc.ir.core import Program
from lmc.ir.ops import MODEL_CALLS, Chain, Prefill, Release
from lmc.ir.prompts import prompt_tree

__all__ = ["Work", "deeds", "work_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a row of a program, on the way with most of it.

    Attributes:
        nodes: of the whole graph.
        requests: model calls and prefills.
        steps: of the model, one after the other, if all gens go to their limits.
        generated_tokens: at most.
        prompt: known text of the prompts, each text once: what is read with the cache.
        prompt_repeated: the same, counted for every model call that reads it.
    """

    nodes: int
    requests: int
    steps: int
    generated_tokens: int
    prompt: int
    prompt_repeated: int

    def to_json(self) -> dict[str, int]:
        """All of them, as JSON values."""
        return asdict(self)


def work_of(program: Program, meter: Meter) -> Work:
    """The work of a row; prompts are measured by the meter."""
    program = unchained(program)
    read = calls_on_ways(program.body)
    own = {state: n for state, n in meter.own(program).items() if read.get(state)}
    bounds = cost(program, own)
    prefills = sum(1 for node in program.walk() if isinstance(node.op, Prefill))
    return Work(
        nodes=sum(1 for _ in program.walk()),
        requests=bounds.calls[1] + prefills,
        steps=longest_steps(program),
        generated_tokens=bounds.generated_tokens,
        prompt=bounds.known_characters[1],
        prompt_repeated=bounds.repeated_characters[1],
    )


def deeds(before: Program, after: Program, meter: Meter) -> list[str]:
    """What a pass did, in a few words each; empty if nothing."""
    return list(_deeds(before, after, meter)) if before is not after else []


def _deeds(before: Program, after: Program, meter: Meter) -> Iterator[str]:
    if chains := _count(after, (Chain,)) - _count(before, (Chain,)):
        yield f"{_many(chains, 'chain')} of gens, each of them one request"
        return
    before, after = unchained(before), unchained(after)
    old, new = work_of(before, meter), work_of(after, meter)
    ops = Counter(n.op.mnemonic for n in after.walk())
    ops.subtract(Counter(n.op.mnemonic for n in before.walk()))
    calls = sum(_count(p, MODEL_CALLS) * sign for p, sign in ((before, 1), (after, -1)))
    if calls > 0:
        yield f"{_many(calls, 'model call')} fewer"
    if old.generated_tokens > new.generated_tokens:
        yield f"{old.generated_tokens - new.generated_tokens} tokens fewer to generate, at most"
    if old.steps > new.steps:
        yield f"{old.steps - new.steps} steps fewer, at most"
    saved = old.prompt - new.prompt
    if saved > 0:
        yield f"{saved} {meter.unit} of prompt fewer to read"
    yield from _prefills(before, after, meter)
    ahead = sum(isinstance(n.op, Prefill) and n.op.ahead for n in after.walk())
    if ahead > sum(isinstance(n.op, Prefill) and n.op.ahead for n in before.walk()):
        yield f"reads {_many(ahead, 'prompt')} ahead, while conditions are decided"
    released = _count(after, (Release,)) - _count(before, (Release,))
    if released > 0:
        yield f"frees the cache of {_many(released, 'branch', 'branches')} when it is done"
    changes = [f"{count:+d} {op}" for op, count in sorted(ops.items()) if count]
    if changes:
        yield ", ".join(changes)
    elif old == new:
        yield "the same nodes in another order, or with other operands"


def _prefills(before: Program, after: Program, meter: Meter) -> Iterator[str]:
    """The prompts that are computed ahead since a pass, and what that saves."""
    known = {v for node in before.walk() for v in node.results}
    new = {
        node.results[0]
        for node in after.walk()
        if isinstance(node.op, Prefill) and not node.op.ahead and node.results[0] not in known
    }
    if not new:
        return
    own, readers = meter.own(after), calls_on_ways(after.body)
    total: dict[object, int] = {}
    for stretch in prompt_tree(after):
        length = total.get(stretch.parent, 0)
        for state in stretch.states:
            length += own.get(state, 0)
            if state in new:
                calls = readers.get(state, 0)
                whom = f"for its {calls} readers" if calls > 1 else "for all rows"
                yield f"computes a prompt of {length} known {meter.unit} ahead, once {whom}"
        total[stretch] = length


def _count(program: Program, kinds: tuple[type, ...]) -> int:
    return sum(1 for node in program.walk() if isinstance(node.op, kinds))


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"
