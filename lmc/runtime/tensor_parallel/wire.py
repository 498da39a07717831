"""A step as bytes: what the ranks beside the first need of it.

They compute rows and hand in their part of the logits; what is drawn, and from which tokens, is a
matter of the first rank. So masks, samplings and targets stay there, but for the places of rows
whose logits are wanted.
"""

from __future__ import annotations

import numpy as np

from lmc.runtime.request import Sampling, Segment, Step

__all__ = ["pack_step", "unpack_step"]

_MADE, _DRAWN, _SCORED = 1, 2, 4
_HEAD = 3
_FIELDS = 4  # int32 of a segment: tokens, start, slots, flags


def pack_step(step: Step) -> bytes:
    """The step in int32: counts, segments, what they follow, tokens, slots, and scored rows."""
    head = np.array([len(step.segments), step.repeats, bool(step.after)], np.int32)
    fields = np.empty((len(step.segments), _FIELDS), np.int32)
    wanted = []
    for row, s in zip(fields, step.segments, strict=True):
        flags = _MADE * s.made + _DRAWN * (s.sample is not None) + _SCORED * bool(s.targets)
        row[:] = len(s.tokens), s.start, len(s.slots), flags
        if s.targets:
            wanted.append(np.array([bool(targets) for targets in s.targets], np.int32))
    tokens = [s.tokens for s in step.segments]
    slots = [s.slots for s in step.segments]
    after = np.array(step.after, np.int32)
    parts = [head, fields.ravel(), after, *tokens, *slots, *wanted]
    return np.concatenate(parts, dtype=np.int32, casting="same_kind").tobytes()


def unpack_step(data: bytes) -> Step:
    """A step whose rows and wanted rows are those of the packed one."""
    numbers = np.frombuffer(bytearray(data), np.int32)  # torch wants to be able to write
    count, repeats, continues = numbers[:_HEAD].tolist()
    after_at = _HEAD + _FIELDS * count
    fields = numbers[_HEAD:after_at].reshape(count, _FIELDS).tolist()
    tokens_at = after_at + (count if continues else 0)
    after = tuple(numbers[after_at:tokens_at].tolist())
    slots_at = tokens_at + sum(tokens for tokens, _, _, _ in fields)
    wanted_at = slots_at + sum(slots for _, _, slots, _ in fields)
    segments = []
    for tokens, start, slots, flags in fields:
        targets: tuple[tuple[int, ...], ...] = ()
        if flags & _SCORED:
            rows = numbers[wanted_at : wanted_at + tokens].tolist()
            targets = tuple((0,) if wanted else () for wanted in rows)
            wanted_at += tokens
        segments.append(
            Segment(
                tokens=numbers[tokens_at : tokens_at + tokens],
                start=start,
                slots=numbers[slots_at : slots_at + slots],
                made=bool(flags & _MADE),
                sample=Sampling() if flags & _DRAWN else None,
                targets=targets,
            )
        )
        tokens_at += tokens
        slots_at += slots
    return Step(tuple(segments), repeats, after)
