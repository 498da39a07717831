"""Programs that chat, with the templates of several models: eager, compiled and streamed agree.

The templates are those of `test_chat`, on the fake model: what counts is the prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_chat import DEEPSEEK, LLAMA2, MISTRAL, QWEN3, SMOLLM2, SPECIALS, TEMPLATES
from transformers.utils.chat_template_utils import render_jinja_template

import lmc
from lmc.errors import ModelError
from lmc.frontend.dsl import State


def engine(template: str, **options: Any) -> lmc.Engine:
    return lmc.Engine("fake", chat_template=template, chat_options={**SPECIALS, **options})


def rendered(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    """What transformers renders."""
    texts, _ = render_jinja_template(
        conversations=[messages],
        chat_template=template,
        **{"add_generation_prompt": False, **SPECIALS, **options},
    )
    return str(texts[0])


def agreed(
    program: lmc.Program, on: lmc.Engine, *, streamed: bool = True, **arguments: Any
) -> lmc.Result:
    """Compiled, eager and streamed, which must agree."""
    out = program.run(engine=on, **arguments)
    for eager in (True, False):
        other = program.run(engine=on, eager=eager, **arguments)
        assert (other.text, other.variables, other.value) == (out.text, out.variables, out.value)
        assert (other.error and other.error.problem) == (out.error and out.error.problem)
        if out.error is None and streamed:
            assert "".join(program.stream(engine=on, eager=eager, **arguments)) == out.text
    return out


@lmc.jit
def talk(s: State, q: str) -> Any:
    s.user(q)
    with s.assistant():
        s += "Well, "
        s += lmc.gen("a", regex="[a-z]{3}")
    s.user("And?")
    asked = s.text()
    with s.assistant():
        begun = s.text()
        s += "Then"
        continued = s.text()
    return [s.messages()[:3], asked, begun, continued]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_is_what_the_template_renders(name: str) -> None:
    template = TEMPLATES[name]
    with engine(template) as on:
        out = agreed(talk, on, q="Why?")
        assert out.error is None
        messages, _, begun, continued = out.value
        assert messages[1] == {"role": "assistant", "content": "Well, " + out["a"]}
        assert begun == rendered(template, messages, add_generation_prompt=True)
        if name != "qwen3":  # which shows an empty thought in the newest answer
            given = [*messages, {"role": "assistant", "content": "Then"}]
            assert continued == rendered(template, given, continue_final_message=True)


def test_a_begun_answer_of_llama2_has_the_blank_of_a_given_text() -> None:
    @lmc.jit
    def begins(s: State, given: bool) -> Any:
        s.user("Q")
        with s.assistant():
            if given:
                s += "Well"
            s += lmc.gen("a", regex="[a-z]{3}")
            return s.text()

    with engine(LLAMA2) as on:
        out = agreed(begins, on, given=True)
        assert out.value.endswith("[/INST] Well" + out["a"])
        out = agreed(begins, on, given=False)  # the model makes the blank itself
        assert out.value.endswith("[/INST]" + out["a"])


def test_a_text_given_to_qwen3_has_no_empty_thought() -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s.user("Q")
        s.assistant(x)
        s.user("R")
        with s.assistant():
            s += x[:0] + lmc.gen("a", regex="[a-z]{3}")

    with engine(QWEN3, enable_thinking=False) as on:
        out = agreed(p, on, x="Given")
        messages = [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "Given"},
            {"role": "user", "content": "R"},
        ]
        asked = rendered(QWEN3, messages, add_generation_prompt=True, enable_thinking=False)
        assert asked.count("<think>") == 1
        assert out.text == f"{asked}{out['a']}<|im_end|>\n"


@pytest.mark.parametrize("edge", ["select", "score", "fork", "empty", "reset", "template"])
def test_every_way_to_begin_an_answer(edge: str) -> None:
    @lmc.jit
    def p(s: State, x: str) -> Any:
        s.user(x)
        with s.assistant():
            mark = s.mark()
            if edge == "select":
                s += lmc.select("a", ["yes", "no"])
            elif edge == "score":
                s += lmc.score("a", "yes")
            elif edge == "template":
                s += lmc.gen("a", regex="[a-z]{2}") + "." + lmc.gen("b", regex="[0-9]")
            elif edge == "fork":
                forks = s.fork(2)
                forks[0] += "Given. " + lmc.gen("a", max_tokens=3)
                forks[1] += lmc.gen("a", max_tokens=3)
                forks.join()
                s += s["a"][1]
            elif edge == "reset":
                s += "Nonsense"
                s.reset(mark)
                s += lmc.gen("a", max_tokens=3)
        return s.text()

    for template, options in ((LLAMA2, {}), (QWEN3, {"enable_thinking": False}), (SMOLLM2, {})):
        with engine(template, **options) as on:
            # an eager stream has said already what a reset takes back
            assert agreed(p, on, streamed=edge != "reset", x="Q").error is None


# --------------------------------------------------------------------------------- reasoning


@lmc.jit
def think(s: State, q: str) -> Any:
    s.user(q)
    with s.assistant():
        s.reasoning("why", max_tokens=6)
        s += lmc.gen("a", regex="[a-z]{3}")
    return s.messages()


def test_reasoning_stands_apart_b_67() -> None:
    for template, options in ((QWEN3, {}), (QWEN3, {"enable_thinking": False}), (SMOLLM2, {})):
        with engine(template, **options) as on:
            out = agreed(think, on, q="Q")
            assert out.value[-1] == {
                "role": "assistant",
                "content": out["a"],
                "reasoning_content": out["why"],
            }
            tail = f"assistant\n<think>\n{out['why']}\n</think>\n\n{out['a']}<|im_end|>\n"
            assert out.text.endswith(tail)
            assert out.text.count("<think>") == 1
    assert "flow.resume" not in str(think.trace())


def test_reasoning_that_the_template_begins() -> None:
    with engine(DEEPSEEK) as on:
        out = agreed(think, on, q="Q")
        assert out.text == (
            f"<s><User>Q<Assistant><think>\n{out['why']}\n</think>\n\n{out['a']}</s>"
        )


def test_reasoning_ends_where_the_model_ends_it_b_67() -> None:
    @lmc.jit
    def p(s: State) -> Any:
        s.user("Q")
        with s.assistant():
            s.reasoning("why", regex="Because\n</think>No")
            s += lmc.gen("a", regex="No", stop="9.8")

    with engine(QWEN3) as on:
        out = agreed(p, on)
        assert out["why"] == "Because"
        assert out.meta("why").finish_reason == "stop"  # type: ignore[union-attr]
        assert out.text.endswith("<think>\nBecause\n</think>\n\nNo<|im_end|>\n")


@pytest.mark.parametrize("wrong", ["outside", "user", "late", "stop"])
def test_reasoning_is_refused_elsewhere(wrong: str, fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State) -> None:
        if wrong == "outside":
            s.reasoning()
        with s.user() if wrong == "user" else s.assistant():
            if wrong == "late":
                s += "Hm."
            s.reasoning(**{"stop": "x"} if wrong == "stop" else {})

    for eager in (True, False):
        try:
            error: Any = p.run(eager=eager).error
        except lmc.errors.UsageError as raised:
            error = raised
        assert isinstance(error, lmc.errors.UsageError)
        assert error.where is not None
        assert error.where.file.startswith("tests")


# ------------------------------------------------------------------------------ when it is loaded


def test_templates_are_checked_when_the_model_is_loaded(tmp_path: Path) -> None:
    for broken, match in (
        ("{% for m in messages %}", "not valid"),
        ("{{ messages[0].content + 1 }}", "cannot be used"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "cannot be used"),
        ("{{ messages[0].content }}{{ raise_exception('never') }}", "never"),
    ):
        with pytest.raises(ModelError, match=match):
            engine(broken)
    with pytest.raises(ModelError, match="cannot be read"):
        engine("no-such-file.jinja")
    file = tmp_path / "own.jinja"
    file.write_text(MISTRAL, encoding="utf-8")
    with engine(str(file)) as on:
        assert agreed(talk, on, q="Why?").error is None
        assert on.template_fingerprint != engine("").template_fingerprint


def test_a_model_without_a_template_takes_plain_text_only_f_10() -> None:
    @lmc.jit
    def plain(s: State) -> None:
        s += "Hello " + lmc.gen("a", max_tokens=2)

    with engine("") as on:
        assert agreed(plain, on).error is None
        error = agreed(talk, on, q="Q").error
        assert isinstance(error, ModelError)
        assert "has no chat template" in error.problem


def test_a_role_that_the_template_refuses_is_an_error_with_the_line_b_99() -> None:
    @lmc.jit
    def only_system(s: State) -> None:
        s.system("S")
        with s.assistant():
            s += lmc.gen("a", max_tokens=2)

    with engine(LLAMA2) as on:
        error = agreed(only_system, on).error
        assert "takes no assistant message after system" in str(error)
        assert error is not None
        assert error.where is not None
        assert error.where.file.startswith("tests")


@pytest.mark.parametrize("name", ["llama2", "llama3"])
def test_there_is_one_bos_b_97_b_100(name: str) -> None:
    @lmc.jit
    def p(s: State) -> None:
        s.system("S")
        s.user("U")
        with s.assistant():
            s += lmc.gen("a", max_tokens=1)

    with engine(TEMPLATES[name]) as on:
        text = agreed(p, on).text
        assert text.count("<s>") == 1
        assert text.startswith("<s>")
