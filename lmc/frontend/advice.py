"""What exceptions mean that Python raises where a program is traced, and what to do about them."""

from __future__ import annotations

import difflib
import inspect
import re

from lmc.errors import told

__all__ = ["advice", "reason"]

_SYMBOLIC = {
    "Text": "str", "TextList": "list", "Bool": "bool", "Int": "int", "Float": "float",
    "Unknown": "value",
}  # fmt: skip
_NAMED = re.compile(rf"(?:'|not |got )({'|'.join(_SYMBOLIC)})\b")


def reason(error: BaseException) -> str:
    """Why a graph ends where something raises: functions in C take nothing but real texts."""
    said = told(error)
    found = _NAMED.search(said) if isinstance(error, TypeError) else None
    if found is None:
        return said
    return f"what needs the value itself is given a {_SYMBOLIC[found[1]]} that is not known yet"


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
