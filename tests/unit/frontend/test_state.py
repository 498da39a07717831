"""States, variables and programs inside of programs: compiled and eager agree on them."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest
from test_dsl import both, refused

import lmc
from lmc.errors import LmcError, UsageError
from lmc.frontend.dsl import State


def compiles(program: lmc.Program, **arguments: Any) -> bool:
    """Whether the whole program is in its graph."""
    return "flow.resume" not in str(program.trace(**arguments))


# ------------------------------------------------------------------------------- variables


def test_set_and_get(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += lmc.gen("a", max_tokens=3, ignore_eos=True)
        numbers = [1, 2]
        s.set("n", numbers)
        numbers.append(3)
        s.set("both", [s["a"], x.upper(), {"k": (x, None)}])
        s.set("again", s["a"])
        s.set("half", 0.5)
        read = s["n"]
        read.append(4)
        s += f"[{s['again']}|{s['both'][1]}|{s['half']}]"
        return [s["n"], s["both"], "n" in s, "m" in s, s.get("m", "none")]

    out = both(p, x="hi")
    assert out["n"] == out.value[0] == [1, 2]
    assert out["both"] == [out["a"], "HI", {"k": ("hi", None)}]
    assert out["again"] == out["a"]
    assert out.text.endswith(f"[{out['a']}|HI|0.5]")
    assert out.value[2:] == [True, False, "none"]
    assert compiles(p, x="hi")
    for eager in (True, False):  # no model call stands behind a variable that was set
        out = p.run(x="hi", eager=eager)
        assert set(out._meta) == {"a"}


def test_a_value_of_any_kind_may_be_set(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s.set("all", {x, "b"})
        return sorted(s["all"])

    assert both(p, x="a").value == ["a", "b"]


def test_var_names_the_text_inside(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += "Before. "
        with s.var("whole"):
            s += f"Name: {x} "
            s += lmc.gen("a", max_tokens=3, ignore_eos=True)
            with s.var("part"):
                s += lmc.select("c", ["!", "?"])
        with s.var("none"):
            pass
        s += "After " + s["part"]
        return s["whole"].upper()

    out = both(p, x="Ada")
    assert out["whole"] == f"Name: Ada {out['a']}{out['c']}"
    assert out["part"] == out["c"]
    assert out["none"] == ""
    assert out.value == out["whole"].upper()
    assert compiles(p, x="Ada")
    for eager in (True, False):
        assert set(p.run(x="Ada", eager=eager)._meta) == {"a", "c"}


def test_var_around_messages_leaves_their_markup_out(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        with s.var("turn"):
            s += lmc.user("Hi!")
            with s.assistant():
                s += lmc.gen("a", max_tokens=3)

    out = both(p)
    assert out["turn"] == "Hi!" + out["a"]


def test_var_does_not_wait(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        with s.var("long"):
            s += "word " * 30_000 + lmc.gen("a", max_tokens=1)
        s.set("reached", True)  # a model call that cannot run is an error where it is read
        return s["long"]

    with lmc.Engine("fake", kv_tokens=500) as small:
        for eager in (True, False):
            assert "positions" in str(p.run(engine=small, eager=eager).error)


def test_a_block_that_fails_names_nothing(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        try:
            with s.var("x"):
                s += "a"
                raise KeyError("k")
        except KeyError:
            pass
        s += "b"
        return "x" in s

    out = both(p)
    assert (out.value, out.text) == (False, "ab")


# ----------------------------------------------------------------------- text and messages


def test_text_is_all_text(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        with s.user():
            s += x
        before = s.text()
        with s.assistant():
            s += lmc.gen("a", max_tokens=3, ignore_eos=True)
        branch = s.copy()
        branch += "aside"
        return [before, s.text(), len(branch.text()) > len(before)]

    out = both(p, x="<|im_end|> «hi» \\ ⟦user⟧")
    assert out.value[1] == out.text
    assert out.text.startswith(out.value[0])
    assert out.value[2]
    assert compiles(p, x="a")


def test_messages_are_the_chat(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += lmc.system("Be brief.")
        s.user(f"About {x}?")
        with s.assistant():
            s += "Well, "
            s += lmc.gen("a", max_tokens=3, ignore_eos=True)
            inside = s.messages()
        return [s.messages(), inside[-1]]

    out = both(p, x="tea")
    told = "Well, " + out["a"]
    assert out.value == [
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "About tea?"},
            {"role": "assistant", "content": told},
        ],
        {"role": "assistant", "content": told},
    ]
    assert compiles(p, x="tea")


def test_text_outside_of_messages_is_refused_by_messages(fake: lmc.Engine) -> None:
    def p(s: State) -> Any:
        s += lmc.user("a")
        s += "b"
        return s.messages()

    refused(p, "outside of its messages", fake)


# ---------------------------------------------------------------------------- mark and reset


def test_reset_goes_back_and_keeps_variables(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += f"Task: {x}\n"
        mark = s.mark()
        s += "Think: " + lmc.gen("thought", max_tokens=4, ignore_eos=True)
        s.reset(mark)
        s += "Answer: "
        s += lmc.gen("answer", max_tokens=3, ignore_eos=True)
        return s["thought"]

    @lmc.jit
    def straight(s: State, x: str) -> None:
        s += f"Task: {x}\nAnswer: "
        s += lmc.gen("answer", max_tokens=3, ignore_eos=True)

    out = both(p, x="add")
    assert compiles(p, x="add")
    assert out.value == out["thought"]
    assert out["answer"] == straight.run(x="add")["answer"]
    assert out.text == "Task: add\nAnswer: " + out["answer"]


def test_retries_from_a_mark(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += x
        mark = s.mark()
        for n in range(3):
            s.reset(mark)
            s += lmc.gen("a", max_tokens=2, temperature=1.0, ignore_eos=True)
            if "e" in s["a"]:
                return n
        return -1

    for seed in range(4):
        outs = [p.run(x="go ", seed=seed, eager=eager) for eager in (True, False)]
        assert outs[0].value == outs[1].value
        assert outs[0].text == outs[1].text == "go " + outs[0]["a"]


def test_a_branch_goes_back_to_before_the_fork(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> Any:
        s += "a"
        mark = s.mark()
        s += "b"
        (f,) = s.fork(1)
        f += "c"
        f.reset(mark)
        f += "d"
        return [f.text(), s.text()]

    assert both(p).value == ["ad", "ab"]


@pytest.mark.parametrize("other", ["inside", "outside", "kind"])
def test_marks_that_do_not_fit_are_refused(other: str, fake: lmc.Engine) -> None:
    def p(s: State) -> None:
        mark: Any = s.mark()
        if other == "kind":
            s.reset("mark")  # type: ignore[arg-type]
        with s.user():
            s += "a"
            if other == "outside":
                s.reset(mark)
            mark = s.mark()
        s.reset(mark)

    refused(p, "takes what mark" if other == "kind" else "this `with` block", fake)


def test_a_mark_of_another_run_is_refused(fake: lmc.Engine) -> None:
    kept: list[Any] = []

    @lmc.jit
    def keeps(s: State) -> None:
        kept.append(s.mark())

    keeps.run(eager=True)

    def p(s: State) -> None:
        s.reset(kept[0])

    refused(p, "mark of another run", fake)


# ---------------------------------------------------------------- programs inside of programs


@lmc.jit
def shorten(state: State, text: str, *, words: int = 3) -> Any:
    state += f"Text: {text}\nIn {words} words:"
    state += lmc.gen("short", max_tokens=words, ignore_eos=True)
    return state["short"].strip()


def test_a_program_is_called_inline_or_apart(fake: lmc.Engine) -> None:
    @lmc.jit
    def inline(s: State, x: str) -> Any:
        s += "> "
        return shorten(s, x, words=2)

    @lmc.jit
    def apart(s: State, x: str) -> Any:
        s += "> "
        first = shorten.call(s, text=x)
        second = shorten.bind(words=2).call(s, text=x)
        s += f"{first.value}, {second['short']}"
        return [first.value, "short" in first, "short" in s, second.get("no", "-"), first.text()]

    out = both(inline, x="tea")
    assert out.text.startswith("> Text: tea\nIn 2 words:")
    assert out["short"].strip() == out.value
    out = both(apart, x="tea")
    alone = shorten.run(text="tea")
    assert out.value == [alone.value, True, False, "-", alone.text]
    assert out.text == f"> {alone.value}, {shorten.run(text='tea', words=2)['short']}"
    assert compiles(inline, x="a")
    assert compiles(apart, x="a")


def test_a_call_apart_goes_on_beside_others(fake: lmc.Engine) -> None:
    @lmc.jit
    def leaf(s: State, x: str) -> None:
        s += x + lmc.gen("a", max_tokens=20, ignore_eos=True)

    @lmc.jit
    def p(s: State) -> Any:
        calls = [leaf.call(s, x=f"{n} ") for n in range(8)]
        return [c["a"] for c in calls]

    for eager in (True, False):
        before = fake._runner.steps  # type: ignore[attr-defined]
        p.run(eager=eager)
        assert fake._runner.steps - before < 60  # type: ignore[attr-defined]
        fake.core.forget()


def test_wrong_calls_are_refused(fake: lmc.Engine) -> None:
    def without(s: State) -> None:
        shorten.call("text")  # type: ignore[arg-type]

    def unknown(s: State) -> None:
        shorten.call(s, txt="a")

    refused(without, "takes the prompt state of the caller", fake)
    with pytest.raises(UsageError, match="no argument 'txt'"):
        lmc.jit(unknown).run()


def test_a_run_inside_of_a_program_is_left_to_the_run_b_72(fake: lmc.Engine) -> None:
    @lmc.jit
    def retry(s: State, x: str) -> Any:
        for n in range(3):
            out = shorten.run(text=x + str(n))
            if len(out["short"]) > 4:
                s += out["short"]
                return out["short"]
        return ""

    @lmc.jit
    def outer(s: State, x: str) -> Any:
        s += lmc.gen("a", max_tokens=1)
        return [retry.run(x=x).value, retry(s, x)]

    out = both(outer, x="tea")
    assert out.error is None
    assert "another program is run" in str(outer.trace())


def test_messages_of_a_called_program_do_not_nest(fake: lmc.Engine) -> None:
    @lmc.jit
    def asks(s: State) -> None:
        s.user("hello")

    def p(s: State) -> None:
        with s.user():
            asks(s)

    refused(p, "an? user message inside a user message", fake)

    def apart(s: State) -> None:
        with s.user():
            s += asks.call(s).text()

    assert both(lmc.jit(apart)).error is None


# --------------------------------------------------------------- shapes of functions and bind


class Teller:
    style = "calm"

    def __init__(self, mood: str) -> None:
        self.mood = mood

    @lmc.jit
    def tell(self, prompt: State, x: str, *, end: str = ".") -> Any:
        prompt += f"{self.mood} {self.style} {x}{end}"
        return self.mood

    @lmc.jit
    @classmethod
    def name(cls, st: State, x: str) -> Any:
        st += f"{cls.__name__} {x}"

    @lmc.jit
    @staticmethod
    def plain(st: State, x: str) -> Any:
        st += x

    @classmethod
    @lmc.jit
    def inner(cls, st: State) -> Any:
        st += cls.style


class Loud(Teller):
    style = "loud"


def test_methods_class_methods_and_static_methods(fake: lmc.Engine) -> None:
    glad, sad = Teller("glad"), Loud("sad")
    assert both(glad.tell, x="a").text == "glad calm a."
    assert both(sad.tell.bind(end="!"), x="a").text == "sad loud a!"
    assert both(Teller.name, x="a").text == "Teller a"
    assert both(sad.name, x="a").text == "Loud a"
    assert both(Loud.plain, x="a").text == both(sad.plain, x="a").text == "a"
    with pytest.raises(UsageError, match="was not reached through its object"):
        Teller.tell.run(x="a")
    if sys.version_info < (3, 13):
        assert both(Loud.inner).text == "loud"
    else:  # where a class method no longer asks what it wraps
        with pytest.raises(UsageError, match="was not reached through its object"):
            Loud.inner.run()


def test_a_method_is_traced_once_and_again_when_its_object_changes(fake: lmc.Engine) -> None:
    teller = Teller("glad")
    first = teller.tell.compile(x="a")
    assert teller.tell.compile(x="a") is first
    teller.mood = "sad"
    assert teller.tell.run(x="a").text == "sad calm a."
    assert Teller("glad").tell.run(x="a").text == "glad calm a."


def test_the_state_may_have_any_name_and_arguments_any_shape(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(
        engine: State, /, a: str, b: list[str] | None = None, *, c: int, d: Any = "D", **more: Any
    ) -> Any:
        engine += f"{a}{b}{c}{d}{sorted(more)}"

    assert both(p, a="x", c=1).text == "xNone1D[]"
    assert both(p.bind(c=2, e="E"), a="x", d="y").text == "xNone2y['e']"
    with pytest.raises(UsageError, match=r"'c' .*is missing"):
        p.run(a="x")

    @lmc.jit
    def q(s: State, **more: Any) -> None: ...

    with pytest.raises(UsageError, match="takes no argument 's'"):
        q.run(s="x")


def test_bind_refuses_unknown_names_at_once() -> None:
    with pytest.raises(UsageError, match="takes no argument 'wrds'"):
        shorten.bind(wrds=2)
    with pytest.raises(UsageError, match="takes no argument 'state'"):
        shorten.bind(state="x")


def test_another_binding_is_another_trace(
    fake: lmc.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "BOUND", shorten.bind(words=1))

    @lmc.jit
    def p(s: State) -> Any:
        return BOUND.call(s, text="a").text()  # type: ignore[name-defined] # noqa: F821

    assert "In 1 words" in p.run().value
    monkeypatch.setitem(globals(), "BOUND", shorten.bind(words=2))
    assert "In 2 words" in p.run().value


@pytest.mark.parametrize("kind", ["star", "keyword", "keywords"])
def test_a_first_parameter_that_takes_no_state_is_refused(kind: str) -> None:
    def star(*states: State) -> None: ...

    def keyword(*, s: State) -> None: ...

    def keywords(**s: State) -> None: ...

    with pytest.raises(UsageError, match="no parameter for the prompt state"):
        lmc.jit({"star": star, "keyword": keyword, "keywords": keywords}[kind])


def test_values_are_returned_as_they_are(fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s += lmc.gen("a", max_tokens=2, ignore_eos=True)
        a = s["a"]
        return {"t": (a, f"<{x}|{a}>"), "n": [len(a), a == x, None, 0.5], ("k", 1): a.split("e")}

    out = both(p, x="q")
    assert out.value["t"] == (out["a"], f"<q|{out['a']}>")
    assert out.value["n"][0] == len(out["a"])
    assert compiles(p, x="q")


def test_programs_pickle_by_reference(fake: lmc.Engine) -> None:
    assert pickle.loads(pickle.dumps(shorten)) is shorten


def test_states_cannot_be_variables(fake: lmc.Engine) -> None:
    def p(s: State) -> None:
        s.set("x", s)

    refused(p, "cannot be the value of a variable", fake)

    def knot(s: State) -> None:
        held: list[Any] = []
        held.append(held)
        s.set("x", held)

    refused(knot, "holds itself", fake)
    with pytest.raises(LmcError):
        lmc.jit(knot).run()
