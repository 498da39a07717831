"""Arguments from the command line: --arg, --args, --batch."""

from __future__ import annotations

import errno
import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from .conftest import Invoke, Write

TAKES = """
    from __future__ import annotations

    import enum
    from collections.abc import Mapping, Sequence
    from typing import TYPE_CHECKING, Annotated, Literal, Optional

    import lmc

    if TYPE_CHECKING:
        from nowhere import Unknown

    @lmc.jit
    def p(
        s,
        text: str = "",
        free="",
        n: int = 0,
        x: float = 0.0,
        yes: bool = False,
        items: list[str] = (),
        pair: tuple[int, int] = (0, 0),
        table: dict[str, str] = None,
        several: Sequence[str] = (),
        mapped: Mapping[str, int] = None,
        maybe: Optional[int] = None,
        either: int | str = 0,
        noted: Annotated[int, "a note"] = 0,
        mode: Literal["fast", "slow"] = "fast",
        level: Literal[1, 2] = 1,
        unknown: Unknown = None,
        bare=3,
    ):
        return repr(dict(locals()))
"""


@pytest.fixture
def takes(write: Write) -> str:
    write("p.py", TAKES.replace("return repr(dict(locals()))", "return locals()['{name}']"))
    return "p.py"


def value_of(invoke: Invoke, write: Write, pair: str) -> Any:
    """What the program gets for an --arg."""
    name = pair.partition("=")[0]
    write("p.py", TAKES.replace("return repr(dict(locals()))", f"return [{name}]"))
    out = invoke("run", "p.py", "--arg", pair, "--model", "fake", "--eager", "--json").stdout
    return json.loads(out)["value"][0]


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("text=3", "3"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ("text=[1]", "[1]"),
        ("text=@@home", "@home"),
        ("free=3", "3"),
        ("n=3", 3),
        ("n=-3", -3),
        ("x=0.5", 0.5),
        ("x=2", 2.0),
        ("yes=true", True),
        ("yes=False", False),
        ('items=["a", "b"]', ["a", "b"]),
        ("pair=[1, 2]", [1, 2]),
        ('table={"a": "b"}', {"a": "b"}),
        ('several=["a"]', ["a"]),
        ('mapped={"a": 1}', {"a": 1}),
        ("maybe=3", 3),
        ("maybe=null", None),
        ("either=3", "3"),
        ("noted=3", 3),
        ("mode=slow", "slow"),
        ("level=2", 2),
        ("unknown=3", "3"),
        ("bare=4", 4),
    ],
)
def test_a_value_is_a_text_unless_the_program_says_otherwise(
    invoke: Invoke, write: Write, pair: str, value: object
) -> None:
    got = value_of(invoke, write, pair)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("n=three", "--arg n=three is not int"),
        ("n=1.5", "is not int"),
        ("n=true", "is not int"),
        ("x=fast", "is not float"),
        ("yes=1", "is not bool"),
        ("items=a", "is not list[str]"),
        ('items={"a": 1}', "is not list[str]"),
        ("table=[1]", "is not dict[str, str]"),
        ("level=3", "is not Literal[1, 2]"),
        ("bare=x", "is not int"),
        ("n", "--arg n"),
        ("=3", "--arg =3"),
        ("nobody=3", "takes no argument 'nobody'"),
        ("text=@nowhere.txt", "nowhere.txt cannot be read: No such file"),
        ("text=@bytes.bin", "it is not UTF-8"),
    ],
)
def test_a_value_that_does_not_fit_is_wrong_usage(
    invoke: Invoke, takes: str, write: Write, pair: str, says: str
) -> None:
    write("bytes.bin", "").write_bytes(b"\xff\xfe")
    for command in (["run", takes, "--model", "fake"], ["compile", takes], ["explain", takes]):
        lines = invoke(*command, "--arg", pair, code=2).stderr.splitlines()
        assert says in lines[0]
        assert lines[-1].startswith("  hint: ")


def test_a_value_may_come_from_a_file(invoke: Invoke, write: Write, greet: str) -> None:
    write("name.txt", "Grace\nHopper")
    out = invoke("run", greet, "--arg", "name=@name.txt", "--json", "--model", "fake").stdout
    assert json.loads(out)["text"].startswith("Hello, Grace\nHopper. ")


def test_args_gives_many_and_arg_wins(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        "import lmc\n\n@lmc.jit\ndef p(s, a: str, b: str, n: int):\n    s += a + b + str(n)\n",
    )
    out = invoke(
        "run", "p.py", "--args", '{"a": "x", "b": "y", "n": 2}', "--arg", "b=z", "--model", "fake"
    ).stdout
    assert out == "xz2\n"
    write("args.json", '{"a": "1", "b": "2", "n": 3}')
    assert invoke("run", "p.py", "--args", "@args.json", "--model", "fake").stdout == "123\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--args", "{"], "--args is not JSON"),
        (["--args", "{\n3}"], "in double quotes at line 2, column 1"),
        (["--args", "[1]"], "--args is not a JSON object but a list"),
        (["--args", "3"], "--args is not a JSON object but a number"),
        (["--args", "@nowhere"], "nowhere cannot be read"),
        (["--arg", "name=a", "--arg", "name=b"], "--arg name is given twice"),
        (["--args", "{}", "--batch", "rows.jsonl"], "--args and --batch exclude each other"),
        (["--batch", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--batch", "."], "cannot be read"),
    ],
)
def test_arguments_that_cannot_be_read(
    invoke: Invoke, write: Write, greet: str, args: list[str], says: str
) -> None:
    write("rows.jsonl", "{}")
    for command in (["run", greet, "--model", "fake"], ["compile", greet]):
        assert says in invoke(*command, *args, code=2).stderr.splitlines()[0]


def test_a_missing_argument_is_wrong_usage(invoke: Invoke, write: Write) -> None:
    write("p.py", "import lmc\n\n@lmc.jit\ndef p(s, a, n: int):\n    s += a\n")
    for command in (["run", "p.py", "--model", "fake"], ["run", "p.py", "--eager"]):
        first, hint = invoke(*command, code=2).stderr.splitlines()
        assert "argument 'a' of p() is missing (p.py:3)" in first
        assert "--arg a=..." in hint
    # a text may stay open when compiling, a number may not
    assert "'n' (int)" in invoke("compile", "p.py", code=2).stderr
    assert "program @p(%a: text)" in invoke("compile", "p.py", "--arg", "n=1").stdout


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"name": ', "line 3 of rows.jsonl is not JSON: Expecting value at column 9"),
        (b'{"name": }', "line 3 of rows.jsonl is not JSON: Expecting value at column 10"),
        (b'["a"]', "line 3 of rows.jsonl is not a JSON object but a list"),
        (b"null", "line 3 of rows.jsonl is not a JSON object but null"),
        (b'{"name": "\xff"}', "line 3 of rows.jsonl is not JSON: it is not UTF-8"),
        (b"[" * 100_000, "line 3 of rows.jsonl is not JSON: it is nested too deeply"),
        (b'{"name": ' + b"1" * 5000 + b"}", "line 3 of rows.jsonl is not JSON: a number has"),
    ],
)
def test_an_unreadable_line_stops_a_batch_before_it_runs(
    invoke: Invoke, write: Write, greet: str, line: bytes, says: str
) -> None:
    rows = write("rows.jsonl", "")
    rows.write_bytes(b'{"name": "a"}\n\n' + line + b'\n{"name": "b"}\n')
    result = invoke(
        "run", greet, "--batch", "rows.jsonl", "-o", "out.jsonl", "--model", "fake", code=2
    )
    assert says in result.stderr.splitlines()[0]
    assert not rows.with_name("out.jsonl").exists()
    assert says in invoke("compile", greet, "--batch", "rows.jsonl", code=2).stderr


def test_blank_lines_and_byte_order_marks_are_no_rows(
    invoke: Invoke, write: Write, greet: str
) -> None:
    rows = write("rows.jsonl", "")
    rows.write_bytes(b'\xef\xbb\xbf{"name": "a"}\r\n\r\n  \n{"name": "b"}')
    out = invoke("run", greet, "--batch", "rows.jsonl", "--model", "fake").stdout
    assert [json.loads(line)["text"][:9] for line in out.splitlines()] == ["Hello, a.", "Hello, b."]


def test_a_batch_may_come_from_standard_input(invoke: Invoke, greet: str) -> None:
    out = invoke("run", greet, "--batch", "-", "--model", "fake", stdin='{"name": "a"}\n').stdout
    assert json.loads(out)["index"] == 0
    wrong = invoke("run", greet, "--batch", "-", "--model", "fake", stdin="x", code=2)
    assert "line 1 of standard input" in wrong.stderr


def test_arg_gives_rows_what_they_lack(invoke: Invoke, write: Write, greet: str) -> None:
    write("rows.jsonl", '{}\n{"name": "Grace"}\n')
    out = invoke(
        "run", greet, "--batch", "rows.jsonl", "--arg", "name=Alan", "--model", "fake"
    ).stdout
    texts = [json.loads(line)["text"] for line in out.splitlines()]
    assert texts[0].startswith("Hello, Alan.")
    assert texts[1].startswith("Hello, Grace.")


@pytest.mark.parametrize(
    "row", ['{"text": "a", "text": "b"}', '{"table": {"a": "b", "c": "d", "a": "b"}}']
)
def test_a_name_that_is_there_twice(invoke: Invoke, takes: str, write: Write, row: str) -> None:
    write("rows.jsonl", "{}\n" + row + "\n")
    name = "text" if "text" in row else "a"
    says = f"is not JSON: the name '{name}' is there twice in one object"
    for args in (["--batch", "rows.jsonl"], ["--args", row]):
        stderr = invoke("run", takes, *args, "--model", "fake", code=2).stderr
        assert says in stderr
        assert "line 2" in stderr or "--args" in stderr


def test_standard_input_that_cannot_be_read(
    invoke: Invoke, takes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmc.commands import given

    class Torn(io.RawIOBase):
        def read(self, _: int = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    for stdin, says in ((None, "is closed"), (io.TextIOWrapper(Torn()), "Input/output error")):  # type: ignore[type-var]
        monkeypatch.setattr(given, "sys", SimpleNamespace(stdin=stdin))
        stderr = invoke("run", takes, "--batch", "-", "--model", "fake", code=2).stderr
        assert f"--batch -: standard input {'cannot be read: ' if stdin else ''}{says}" in stderr
