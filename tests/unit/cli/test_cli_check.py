"""`lmc check`: the same both ways, or the first difference."""

from __future__ import annotations

from .conftest import Invoke, Write

GOOD = """
    import lmc

    @lmc.jit
    def p(s, word: str = "one"):
        s += f"Say {word}: "
        s += lmc.gen("a", 6)
        for f in (forks := s.fork(2)):
            f += "word " * 9000 * (f is forks[1])
            f += lmc.gen("b", 4, temperature=1.0)
        forks.join(on_error="collect")
        if word == "bad":
            s["missing"]
        return word + "!"
"""


def test_a_program_that_gives_the_same(invoke: Invoke, write: Write) -> None:
    write("p.py", GOOD)
    out = invoke("check", "p.py", "--model", "fake").stdout
    assert out.startswith("1 row: compiled and eager give the same, token by token (2 model calls")
    write("rows.jsonl", '{"word": "a"}\n{"word": "bad"}\n{"word": "c"}\n')
    out = invoke("check", "p.py", "--model", "fake", "--batch", "rows.jsonl").stdout
    assert out.startswith("3 rows, 1 of which failed alike: compiled and eager give the same")


def test_an_effect_is_found_with_its_place(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import functools
        import itertools
        import lmc

        # no two runs are told the same number, whenever they happen; nobody looks into a partial
        calls = functools.partial(next, itertools.count())

        @lmc.jit
        def p(s, word: str):
            number = calls()
            s += f"{word} "
            s += lmc.gen("a", 5)
            if word == "two":
                s += f"and {number} then "
            s += lmc.gen("b", 12, ignore_eos=True)
        """,
    )
    write("rows.jsonl", '{"word": "one"}\n\n{"word": "two"}\n')
    args = ["check", "p.py", "--model", "fake", "--batch", "rows.jsonl"]
    result = invoke(*args, code=1)
    first, compiled, eager, tokens = result.stdout.splitlines()
    assert first.startswith("line 3: the variable 'b', from character ")
    assert compiled.startswith("  compiled: '")
    assert eager.startswith("  eager:    '")
    assert compiled.split(": ", 1)[1].strip() != eager.split(": ", 1)[1].strip()
    assert tokens.startswith("  token ")
    assert "do not give the same (p.py:" in result.stderr


def test_an_error_that_comes_one_way_only(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import array
        import lmc

        runs = array.array("i")  # which is changed unnoticed

        @lmc.jit
        def p(s, word: str):
            runs.append(1)
            words = [word]
            s += word
            s += lmc.gen("a", 5)
            if not isinstance(words[-1], lmc.frontend.symbolic.Text) and len(runs) > 2:
                raise ValueError("once too often")
        """,
    )
    out = invoke("check", "p.py", "--model", "fake", "--arg", "word=x", code=1).stdout
    assert out.startswith("the error is not the same\n  compiled: none\n  eager:    RunError: V")


def test_values_of_another_kind(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import array
        import lmc

        runs = array.array("i")

        @lmc.jit
        def p(s, word: str):
            runs.append(1)
            s += word
            s += lmc.gen("a", 5)
            return len(runs)
        """,
    )
    out = invoke("check", "p.py", "--model", "fake", "--arg", "word=x", code=1).stdout
    assert out.startswith("the returned value is not the same\n")


def test_what_cannot_be_checked(invoke: Invoke, write: Write) -> None:
    write("p.py", GOOD)
    invoke("compile", "p.py", "-o", "p.lmc")
    assert "artifact" in invoke("check", "p.lmc", code=2).stderr
    assert "nope" in invoke("check", "p.py", "--arg", "nope=1", "--model", "fake", code=2).stderr


def test_several_files_and_all_programs_in_them(invoke: Invoke, write: Write) -> None:
    write("p.py", GOOD)
    write(
        "q.py",
        """
        import lmc
        from p import p

        @lmc.jit
        def one(s):
            s += lmc.gen("a", 3)

        @lmc.jit
        def two(s, n: int, word: str):
            p(s, word * n)

        again = two
        """,
    )
    out = invoke("check", "p.py", "q.py", "q.py:one", "--model", "fake").stdout.splitlines()
    assert [line.partition(" row")[0] for line in out] == [
        "p.py: 1",
        "q.py:one: 1",
        "q.py:two: 3",
        "q.py:one: 1",
    ]
    assert " with a made-up n and word: compiled and eager give the same" in out[2]


def test_a_difference_in_one_file_does_not_hide_the_others(invoke: Invoke, write: Write) -> None:
    write("calls.py", "import array\nimport lmc\ncalls = array.array('i', [0])\n\n"
          "@lmc.jit\ndef bad(s):\n    calls[0] += 1\n"
          "    s += f'{calls[0]}' + lmc.gen('a', 2)\n")  # fmt: skip
    write("p.py", GOOD)
    result = invoke("check", "calls.py", "p.py", "--model", "fake", code=1)
    assert result.stdout.startswith("calls.py: the ")
    assert "p.py: 1 row: compiled and eager give the same" in result.stdout
    assert "do not give the same (calls.py:" in result.stderr


def test_made_up_texts_are_those_that_a_program_asks_for(invoke: Invoke, write: Write) -> None:
    write(
        "p.py",
        """
        import lmc
        from typing import Literal

        seen = []

        @lmc.jit
        def p(s, word: str, words: list[str], kind: Literal["a", "b"], pair: tuple[int, ...]):
            if word == "magic" or words[1] == "second":
                raise ValueError(word + words[1])
            s += f"{word} {kind} {len(words)} {pair}" + lmc.gen("a", 2)
        """,
    )
    out = invoke("check", "p.py", "--model", "fake").stdout
    assert out.startswith("5 rows with a made-up word and words and kind and pair, 2 of which")
    given = invoke("check", "p.py", "--model", "fake", "--arg", "word=x").stdout
    assert given.startswith("3 rows with a made-up words and kind and pair, 1 of which")


def test_an_artifact_is_refused(invoke: Invoke, write: Write) -> None:
    write("p.py", GOOD)
    invoke("compile", "p.py", "--emit", "plan", "-o", "p.lmc")
    assert "p.lmc is an artifact" in invoke("check", "p.lmc", "--model", "fake", code=2).stderr
