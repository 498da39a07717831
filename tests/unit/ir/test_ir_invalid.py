"""Invalid programs and the whole message that each gives.

A file holds a program, the line `// message:`, and what `parse` or else `verify` says about it.
After a wanted change run with `--update-golden` and read the diff before committing it.
"""

from pathlib import Path

import pytest

from lmc.errors import IRError, ParseError, VerifyError
from lmc.ir import parse, verify

FOLDER = Path(__file__).parents[2] / "invalid"
FILES = sorted(FOLDER.glob("*.lmir"))
SEPARATOR = "// message:\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_message_is_the_recorded_one(path: Path, update_golden: bool) -> None:
    text = path.read_text(encoding="utf-8")
    program, expected = text.split(SEPARATOR)
    kind = VerifyError if path.stem.startswith("verify_") else ParseError
    with pytest.raises(IRError) as caught:
        verify(parse(program))
    assert type(caught.value) is kind
    if update_golden:
        path.write_text(f"{program}{SEPARATOR}{caught.value}\n", encoding="utf-8")
    else:
        assert f"{caught.value}\n" == expected
