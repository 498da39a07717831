"""The Python blocks of the documentation run."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

import lmc

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["language.md", "running.md", "from-sglang.md", "scheduling.md"])
def test_the_blocks_of_a_page_run_in_order(
    page: str, fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    space: dict[str, object] = {"__name__": page}
    for number, block in enumerate(blocks):
        name = f"<{page} block {number}>"
        monkeypatch.setitem(  # so that programs find their source, as they do in a file
            linecache.cache, name, (len(block), None, block.splitlines(keepends=True), name)
        )
        exec(compile(block, name, "exec"), space)
