"""docs/errors.md shows what lmc really says, and its repairs really work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import Invoke, Write

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
CASES = re.findall(
    r"^## (.+?)\n+```python\n(.*?)```\n+```text\n(.*?)```\n+Instead:\n+```python\n(.*?)```",
    PAGE.read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)


def test_the_page_has_cases() -> None:
    assert len(CASES) == PAGE.read_text(encoding="utf-8").count("```text") >= 15


@pytest.mark.parametrize(
    ("failing", "message", "repaired"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_case_of_the_page(
    invoke: Invoke, write: Write, failing: str, message: str, repaired: str
) -> None:
    write("program.py", failing)
    assert invoke("run", "program.py", "--model", "fake", code=1).stderr == message
    write("program.py", repaired)
    invoke("run", "program.py", "--model", "fake")
