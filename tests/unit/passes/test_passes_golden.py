"""Golden tests: a file holds a program, a pipeline, and the program that results.

    // what the file shows
    program @p() { ... }
    // pipeline: canonicalize,cse
    program @p() { ... }            or, where nothing may happen:  // unchanged

After a wanted change run with `--update-golden` and read the diff before committing it.
"""

from pathlib import Path

import pytest

from lmc.ir import parse
from lmc.passes import PASSES
from lmc.passes.instruments import CheckMeaning, VerifyEach
from lmc.passes.manager import PassManager

FOLDER = Path(__file__).parents[2] / "golden"
FILES = sorted(FOLDER.glob("*/*.lmir"))
SEPARATOR = "// pipeline: "
UNCHANGED = "// unchanged\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_pipeline_gives_the_recorded_program(path: Path, update_golden: bool) -> None:
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(SEPARATOR, maxsplit=1)
    pipeline, expected = rest.split("\n", maxsplit=1)
    comment, start, shown = before.partition("program ")
    program = parse(before)
    assert str(program) == start + shown, "the input is not in the printer's own form"
    assert comment.startswith("// "), "the file does not say what it shows"
    after = PassManager.of(pipeline, [VerifyEach(), CheckMeaning()]).run(program)
    found = UNCHANGED if after is program else str(after)
    if update_golden:
        path.write_text(f"{before}{SEPARATOR}{pipeline}\n{found}", encoding="utf-8")
    else:
        assert found == expected


@pytest.mark.parametrize("cls", PASSES, ids=lambda cls: cls.name)
def test_every_pass_has_a_case_where_it_fires_and_one_where_it_must_not(cls: type) -> None:
    texts = [f.read_text(encoding="utf-8") for f in FILES if f.parent.name == cls.name]
    assert any(text.endswith(UNCHANGED) for text in texts)
    assert any(not text.endswith(UNCHANGED) for text in texts)
