"""The reference in `docs/ir.md` is what the code says. `--update-golden` brings it up to date."""

import re
from pathlib import Path

import pytest

from lmc.ir import Op, parse, verify
from lmc.ir.ops import OPS, If
from lmc.ir.reference import function_table, op_table, textual_form

DOCS = Path(__file__).parents[3] / "docs" / "ir.md"


@pytest.mark.parametrize("table", [op_table, function_table], ids=lambda f: f.__name__)
def test_the_tables_are_up_to_date(table: object, update_golden: bool) -> None:
    name = table.__name__.replace("_", "-")  # type: ignore[attr-defined]
    text = DOCS.read_text(encoding="utf-8")
    opening, closing = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(opening)
    found, after = rest.split(closing)
    if update_golden:
        fresh = f"{before}{opening}{table()}{closing}{after}"  # type: ignore[operator]
        DOCS.write_text(fresh, encoding="utf-8")
    else:
        assert found == table()  # type: ignore[operator]


def test_the_programs_in_the_docs_are_valid_and_canonical() -> None:
    programs = re.findall(r"```lmir\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert programs
    for text in programs:
        program = parse(text)
        verify(program)
        assert str(program) == text


@pytest.mark.parametrize("cls", OPS, ids=lambda cls: cls.op)
def test_every_op_shows_its_textual_form(cls: type[Op]) -> None:
    form = textual_form(cls)
    if cls is If:
        form = form.replace("{ ... } else { ... }", "{\nret %s9\n} else {\nret %s9\n}")
    # names that the form uses without defining them are parameters of the type they look like
    defined = form.partition(" = ")[0] if form.startswith("%") else ""
    names = set(re.findall(r"%\w+", form)) - set(re.findall(r"%\w+", defined)) - {"%s9"}
    kind = {n: "state" if re.fullmatch(r"%s\d", n) else "bool" if n == "%c" else "text"
            for n in sorted(names)}  # fmt: skip
    params = ", ".join(f"{n}: {k}" for n, k in kind.items())
    end = "" if cls.terminator else "\nret %s9"
    program = parse(f"program @p({params}) {{\n%s9 = lm.start\n{form}{end}\n}}\n")
    verify(program)
    assert type(program.body.nodes[1].op) is cls
