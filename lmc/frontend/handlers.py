"""Which code might catch an exception: what the tables of CPython's code objects say."""

from __future__ import annotations

import functools
from dis import opmap
from types import CodeType

from lmc.frontend.assembly import handlers_of

__all__ = ["catches", "catches_at"]

_CAUGHT = opmap["PUSH_EXC_INFO"]
_LEAVES_WITH = opmap["WITH_EXCEPT_START"]
_HANDS_ON = opmap["SEND"]


@functools.lru_cache(maxsize=4096)
def catches(code: CodeType) -> bool:
    """Whether there is a `try` or a `with` in it, or in what it hands exceptions on to.

    The latter is not looked at: a generator with `yield from` catches what the other one does.
    """
    tries = any(_kind(code, target) for _, _, target, _ in handlers_of(code))
    return tries or _HANDS_ON in code.co_code[::2]


@functools.lru_cache(maxsize=4096)
def catches_at(code: CodeType, offset: int, blocks: bool) -> bool:
    """Whether what the instruction at an offset raises may be caught there.

    Args:
        code: of a frame.
        offset: in bytes, as `f_lasti` of the frame.
        blocks: whether a `with` block counts.
    """
    unit, seen = offset // 2, set[int]()
    while unit not in seen:
        seen.add(unit)
        for start, length, target, _ in handlers_of(code):
            if start <= unit < start + length:
                kind = _kind(code, target)
                if kind == "try" or (kind == "with" and blocks):
                    return True
                unit = target  # which hands it on to what is around it
                break
    return False


def _kind(code: CodeType, target: int) -> str:
    """What a handler belongs to; an empty text if it only cleans up."""
    raw = code.co_code
    if raw[2 * target] != _CAUGHT:
        return ""
    return "with" if raw[2 * target + 2] == _LEAVES_WITH else "try"
