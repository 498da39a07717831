"""Which program `PROGRAM.py[:NAME]` is, and what is said when it is none."""

from __future__ import annotations

import sys

import pytest

from lmc.commands.source import load_program

from .conftest import Invoke, Write

TWO = """
    import lmc

    @lmc.jit
    def one(s):
        s += "one"

    @lmc.jit
    def two(s):
        s += "two"

    def plain():
        pass

    same = two
"""


def test_the_only_program_needs_no_name(invoke: Invoke, greet: str) -> None:
    assert "program @greet" in invoke("compile", greet).stdout


def test_a_name_picks_one_of_several(invoke: Invoke, write: Write) -> None:
    write("p.py", TWO)
    assert "program @two" in invoke("compile", "p.py:two").stdout
    assert "program @two" in invoke("compile", "p.py:same").stdout


@pytest.mark.parametrize(
    ("source", "says", "hint"),
    [
        ("p.py", "2 programs in p.py", "p.py:one, p.py:two"),
        ("p.py:tow", "no program tow in p.py", "did you mean p.py:two?"),
        ("p.py:nothing_like_it", "no program nothing_like_it", "p.py:one"),
        ("p.py:plain", "plain in p.py is not a program", "@lmc.jit"),
        ("q.py", "there is no file q.py", "did you mean p.py?"),
        ("empty.py", "no program in empty.py", "@lmc.jit"),
        ("folder", "folder is a directory", "PROGRAM.py"),
        ("notes.txt", "notes.txt is not a Python file", "PROGRAM.py"),
        ("a/b/c.py", "there is no file a/b/c.py", ""),
    ],
)
def test_what_cannot_be_found_is_wrong_usage(
    invoke: Invoke, write: Write, source: str, says: str, hint: str
) -> None:
    write("p.py", TWO)
    write("empty.py", "x = 1")
    write("notes.txt", "x")
    write("folder/x.py", "")
    lines = invoke("compile", source, code=2).stderr.splitlines()
    assert says in lines[0]
    assert hint in lines[-1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def p(:\n    pass\n", "SyntaxError: invalid syntax (p.py:1)"),
        ("import lmc\n\nx = 1 / 0\n", "ZeroDivisionError: division by zero (p.py:3)"),
        ("import nothing_there\n", "ModuleNotFoundError: No module named 'nothing_there' (p.py:1)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (p.py:2)"),
        (
            "import lmc\n@lmc.jit\ndef p():\n    pass\n",
            "no parameter for the prompt state (p.py:2)",
        ),
        ("import lmc\n\nlmc.gen('x', -1)\n", "max_tokens is -1 (p.py:3)"),
        ("class E(Exception): pass\nraise E\n", "E (p.py:2)"),
    ],
)
def test_a_file_that_cannot_be_imported_fails_with_its_line(
    invoke: Invoke, write: Write, text: str, says: str
) -> None:
    write("p.py", text)
    for command in ("compile", "explain", "run"):
        assert says in invoke(command, "p.py", code=1).stderr.splitlines()[0]
    assert "Traceback" in invoke("compile", "p.py", "--traceback", code=1).stderr


def test_a_broken_neighbour_is_named(invoke: Invoke, write: Write) -> None:
    write("neighbour.py", "x = 1 / 0\n")
    write("p.py", "import neighbour\n")
    assert "(neighbour.py:1)" in invoke("compile", "p.py", code=1).stderr


def test_neighbours_are_importable_also_later(invoke: Invoke, write: Write) -> None:
    write("there/neighbour_of_p.py", "GREETING = 'Hello'\n")
    write("there/late_neighbour_of_p.py", "NAME = 'Ada'\n")
    write(
        "there/p.py",
        """
        import lmc
        from neighbour_of_p import GREETING

        @lmc.jit
        def p(s):
            from late_neighbour_of_p import NAME
            s += GREETING + NAME
        """,
    )
    assert '"HelloAda"' in invoke("compile", "there/p.py").stdout


def test_a_program_may_be_called_like_a_library(invoke: Invoke, write: Write) -> None:
    for name in ("email", "secrets", "graphlib"):
        sys.modules.pop(name, None)
        write(f"{name}.py", "import lmc\n\n@lmc.jit\ndef p(s):\n    s += 'x'\n")
        invoke("compile", f"{name}.py", "--emit", "svg")
        __import__(name)
        assert not hasattr(sys.modules[name], "p")


def test_main_blocks_do_not_run(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        @lmc.jit
        def p(s):
            s += "x"

        if __name__ == "__main__":
            raise SystemExit("it ran")
        """,
    )
    invoke("compile", "p.py")


def test_imported_programs_do_not_make_the_choice_ambiguous(invoke: Invoke, write: Write) -> None:
    write("helper_programs.py", "import lmc\n\n@lmc.jit\ndef helper(s):\n    s += 'help'\n")
    own = "\n@lmc.jit\ndef p(s):\n    helper(s)\n"
    write("p.py", f"import lmc\nfrom helper_programs import helper\n{own}")
    write("only.py", "from helper_programs import helper\n")
    assert "program @p(" in invoke("compile", "p.py").stdout
    assert "program @helper(" in invoke("compile", "p.py:helper").stdout
    assert "program @helper(" in invoke("compile", "only.py").stdout


def test_two_files_of_one_name_are_two_modules(invoke: Invoke, write: Write) -> None:
    for word in ("one", "two"):
        write(f"{word}/p.py", f"import lmc\n\n@lmc.jit\ndef p(s):\n    s += '{word}'\n")
    assert '"one"' in invoke("compile", "one/p.py").stdout
    assert '"two"' in invoke("compile", "two/p.py").stdout
    modules = [load_program(f"{word}/p.py").function.__module__ for word in ("one", "two")]
    assert modules[0] != modules[1]
    assert all(hasattr(sys.modules[name], "p") for name in modules)


def test_what_a_program_prints_is_no_result(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        print("noise")

        @lmc.jit
        def p(s):
            print("traced")
            s += lmc.gen("a", 2)
            s["a"].encode()
            print("resumed")
        """,
    )
    for args in (
        ["run", "p.py", "--model", "fake"],
        ["run", "p.py", "--model", "fake", "--json", "--eager"],
        ["compile", "p.py"],
        ["explain", "p.py"],
    ):
        result = invoke(*args)
        for word in ("noise", "traced", "resumed")[: 3 if args[0] == "run" else 2]:
            assert word in result.stderr
            assert word not in result.stdout


def test_a_method_is_named_with_its_object(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc

        class Guide:
            @lmc.jit
            def ask(self, s, x: str):
                s += x

        guide = Guide()
        """,
    )
    assert invoke("run", "p.py:guide.ask", "--arg", "x=tea", "--model", "fake").stdout == "tea\n"
    err = invoke("run", "p.py:Guide.ask", "--arg", "x=tea", "--model", "fake", code=2).stderr
    assert "was not reached through its object" in err
    assert "no program guide.tell in p.py" in invoke("compile", "p.py:guide.tell", code=2).stderr
    assert "guide in p.py is not a program" in invoke("compile", "p.py:guide", code=2).stderr


def test_a_file_of_a_package_is_a_module_of_it(invoke: Invoke, write: Write) -> None:
    for name in ("prompts_of_a_test/__init__.py", "prompts_of_a_test/deep/__init__.py"):
        write(name, "")
    write("prompts_of_a_test/tones.py", "TONE = 'kindly'")
    write("prompts_of_a_test/later.py", "END = '.'")
    write("prompts_of_a_test/deep/near.py", "NEAR = 'please'")
    write(
        "prompts_of_a_test/deep/p.py",
        """
        import lmc
        import near
        from . import near as same
        from ..tones import TONE

        @lmc.jit
        def p(s, x: str):
            from ..later import END
            s += f"{x} {TONE}, {near.NEAR} {same.NEAR}{END}"
        """,
    )
    args = ("run", "prompts_of_a_test/deep/p.py", "--arg", "x=say", "--model", "fake")
    for more in ((), ("--eager",)):
        assert invoke(*args, *more).stdout == "say kindly, please please.\n"
