"""The instruction that fills a template. What templates are says `lmc.runtime.templates`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from lmc import plan as p
from lmc.errors import LmcError
from lmc.runtime.handling import constraint_errors, fail, sampling_of, submit, value_of
from lmc.runtime.race import refuse_dropped
from lmc.runtime.request import GenRequest, GenResult
from lmc.runtime.results import CallMeta
from lmc.runtime.row import Row
from lmc.runtime.templates import begin, filled

if TYPE_CHECKING:
    from lmc.runtime.executor import Executor

__all__ = ["match"]


def match(executor: Executor, row: Row, instr: p.Match) -> None:
    """Handle `Match`.

    Raises:
        LmcError: the template cannot be spelled, or its constraints cannot be joined.
    """
    target, params = executor.target, instr.gens[0]
    with constraint_errors():
        template = begin(
            target,
            row.regs[instr.state.index],
            [row.constraints[index] for index in instr.constraints],
            [value_of(row, text) for text in instr.texts],
            heal=instr.heal,
        )
        constraint = target.matcher(template.whole)
    request = GenRequest(
        keys=template.state.keys,
        priority=(row.order, instr.priority),
        params=dataclasses.replace(params, max_tokens=sum(g.max_tokens for g in instr.gens)),
        sampling=sampling_of(row, params, instr.draw),
        constraint=constraint,
        closing=template.texts[-1],
        extra_tokens=template.fixed_tokens,
        closing_tokens=template.closing_tokens,
        bias=target.bias(params.logit_bias),
    )

    def done(result: Any) -> None:  # noqa: ANN401 - a GenResult or an error
        if isinstance(result, LmcError):
            fail(executor, row, instr, result)
            return
        if refuse_dropped(executor, row, instr):
            return
        assert isinstance(result, GenResult), "a gen request gives a GenResult"
        token_bytes = target.tokenizer.token_bytes
        made = filled(template, result, token_bytes, instr.gens)
        if not row.finished:
            whole = dataclasses.replace(CallMeta.of_gen(result), parts=made.parts)
            row.meta[instr.into_text.index] = whole
            for reg, part in zip(instr.into_texts, made.parts, strict=True):
                row.meta[reg.index] = part.meta
        executor.set(row, instr.into.index, template.state.after_match(result, template.before))
        executor.set(row, instr.into_text.index, made.text)
        for reg, part in zip(instr.into_texts, made.parts, strict=True):
            executor.set(row, reg.index, part.text)

    on_text = None
    if row.stream is not None:
        lead = template.state.since(row.regs[instr.state.index])
        on_text = row.stream.writer(instr.into, lead=lead, skip=len(template.before))
    submit(executor, row, request, done, on_text, call=instr.into_text.index, instr=instr)
