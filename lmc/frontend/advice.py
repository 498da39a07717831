"""Advice for exceptions that Python raises where a program uses a primitive wrongly."""

from __future__ import annotations

import difflib
import inspect
import re

from lmc.errors import told

__all__ = ["advice"]


def advice(error: BaseException) -> str | None:
    """How to spell a keyword that a primitive does not know; None where there is nothing to say."""
    from lmc.frontend import primitives

    # from Python 3.13 on the message itself may go on with what is meant
    said = told(error)  # some exceptions cannot say anything
    found = re.search(r"^TypeError: (\w+)\(\) got an unexpected keyword argument '(\w+)'$", said)
    if found is None or found[1] not in primitives.__all__:
        return None
    known = inspect.signature(getattr(primitives, found[1])).parameters
    near = difflib.get_close_matches(found[2], known, n=1)
    return f"did you mean {near[0]}=?" if near else None
