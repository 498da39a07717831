"""lmc: a compiler for LM programs.

    import lmc

    @lmc.jit
    def greet(s, name: str):
        s += f"Hello, my name is {name}. "
        s += lmc.gen("answer", max_tokens=16, stop="\\n")

    print(greet.run(name="Ada")["answer"])

The names below are imported when they are first used, so that `import lmc` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lmc import constraints, errors, ir
    from lmc.api import Program, compile, jit, load, use
    from lmc.driver import Options
    from lmc.engine import Engine
    from lmc.frontend.dsl import (
        assistant,
        gen,
        score,
        select,
        system,
        template,
        unordered,
        user,
    )
    from lmc.frontend.media import image, video
    from lmc.frontend.tools import Tool, call, tool
    from lmc.result import Result

__all__ = [
    "Engine",
    "Options",
    "Program",
    "Result",
    "Tool",
    "assistant",
    "call",
    "compile",
    "constraints",
    "errors",
    "gen",
    "image",
    "ir",
    "jit",
    "load",
    "score",
    "select",
    "system",
    "template",
    "tool",
    "unordered",
    "use",
    "user",
    "video",
]  # fmt: skip

_WHERE = {
    "Engine": "lmc.engine",
    "Options": "lmc.driver",
    "Program": "lmc.api",
    "Result": "lmc.result",
    "Tool": "lmc.frontend.tools",
    "assistant": "lmc.frontend.dsl",
    "call": "lmc.frontend.tools",
    "compile": "lmc.api",
    "constraints": "",
    "errors": "",
    "gen": "lmc.frontend.dsl",
    "image": "lmc.frontend.media",
    "ir": "",
    "jit": "lmc.api",
    "load": "lmc.api",
    "score": "lmc.frontend.dsl",
    "select": "lmc.frontend.dsl",
    "system": "lmc.frontend.dsl",
    "template": "lmc.frontend.dsl",
    "tool": "lmc.frontend.tools",
    "unordered": "lmc.frontend.dsl",
    "use": "lmc.runnable",
    "user": "lmc.frontend.dsl",
    "video": "lmc.frontend.media",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name not in _WHERE:
        raise AttributeError(f"module 'lmc' has no attribute {name!r}")
    where = _WHERE[name]
    module = importlib.import_module(where or f"lmc.{name}")
    value = getattr(module, name) if where else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
