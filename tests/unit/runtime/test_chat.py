"""The markup that is derived from a chat template is what the template itself writes."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from lmc.errors import ModelError, TraceError
from lmc.runtime.chat import ChatTemplate

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A default system prompt where the program gives none.
SMOLLM2 = (
    "{% if messages and messages[0]['role'] != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n"
    "{% endif %}" + CHATML
)
# The system prompt is folded into the first question; roles alternate; no generation prompt.
LLAMA2 = """
{%- if messages[0]['role'] == 'system' -%}
  {%- set rest = messages[1:] -%}{%- set told = messages[0]['content'] -%}
{%- else -%}
  {%- set rest = messages -%}{%- set told = '' -%}
{%- endif -%}
{%- for m in rest -%}
  {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('roles must alternate user/assistant') }}
  {%- endif -%}
  {%- set text = m['content'] -%}
  {%- if loop.first and told -%}
    {%- set text = '<<SYS>>\n' + told + '\n<</SYS>>\n\n' + text -%}
  {%- endif -%}
  {%- if m['role'] == 'user' -%}
    {{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}
  {%- else -%}
    {{ ' ' + text.strip() + ' ' + eos_token }}
  {%- endif -%}
{%- endfor -%}
"""
LLAMA3 = """
{%- for m in messages -%}
  {%- set text = '<|start|>' + m['role'] + '<|/start|>\n\n' + m['content'] | trim + '<|eot|>' -%}
  {%- if loop.first -%}{%- set text = bos_token + text -%}{%- endif -%}
  {{- text -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant<|/start|>\n\n' -}}{%- endif -%}
"""
MISTRAL = """
{{- bos_token -}}
{%- for m in messages -%}
  {%- if m['role'] == 'user' -%}{{- '[INST] ' + m['content'] + ' [/INST]' -}}
  {%- elif m['role'] == 'assistant' -%}{{- m['content'] + eos_token -}}
  {%- else -%}{{- raise_exception('Only user and assistant roles are supported!') -}}
  {%- endif -%}
{%- endfor -%}
"""
# The system prompt stands in the newest question.
MISTRAL_V3 = """
{%- if messages[0]['role'] == 'system' -%}
  {%- set told = messages[0]['content'] -%}{%- set rest = messages[1:] -%}
{%- else -%}
  {%- set rest = messages -%}
{%- endif -%}
{{- bos_token -}}
{%- for m in rest -%}
  {%- if m['role'] == 'user' -%}
    {%- if loop.last and told is defined -%}
      {{- '[INST] ' + told + '\n\n' + m['content'] + '[/INST]' -}}
    {%- else -%}{{- '[INST] ' + m['content'] + '[/INST]' -}}
    {%- endif -%}
  {%- else -%}{{- ' ' + m['content'] + eos_token -}}
  {%- endif -%}
{%- endfor -%}
"""
QWEN25 = """
{%- if tools %}{{- 'tools!' }}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) or m.role == 'assistant' %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
# Only the answer after the newest question shows its thinking.
QWEN3 = """
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(newest=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- if m.role == 'user' %}
        {%- set ns.newest = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}
    {%- elif m.role == 'assistant' %}
        {%- set content = m.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.newest and loop.last %}
            {{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
# No system role, an own name for answers, stripped texts.
GEMMA = """
{{- bos_token -}}
{%- if messages[0]['role'] == 'system' -%}
  {{- raise_exception('System role not supported') -}}
{%- endif -%}
{%- for m in messages -%}
  {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('Roles must take turns') -}}
  {%- endif -%}
  {%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}
  {{- '<turn>' + role + '\n' + m['content'] | trim + '</turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<turn>model\n' -}}{%- endif -%}
"""
# The system prompt has no markup; answers are prompted for with the beginning of a thought, and
# shown later on without it.
DEEPSEEK = """
{{- bos_token -}}
{%- for m in messages if m['role'] == 'system' -%}{{- m['content'] -}}{%- endfor -%}
{%- for m in messages -%}
  {%- if m['role'] == 'user' -%}{{- '<User>' + m['content'] -}}
  {%- elif m['role'] == 'assistant' -%}
    {{- '<Assistant>' + m['content'].split('</think>')[-1] + eos_token -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<Assistant><think>\n' -}}{%- endif -%}
"""
# The end of the text ends each message; a default system prompt that is empty.
ZEPHYR = """
{%- if messages[0]['role'] != 'system' -%}{{- '<|system|>\n' + eos_token + '\n' -}}{%- endif -%}
{%- for m in messages -%}
  {{- '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%}
"""
# Blocks on lines of their own, which leave nothing behind.
INDENTED = """
{% for m in messages %}
    {% if m['role'] != 'nobody' %}
<{{ m['role'] }}>
{{ m['content'] }}</>
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
<assistant>
{% endif %}
"""
TEMPLATES = {
    "indented": INDENTED,
    "chatml": CHATML,
    "smollm2": SMOLLM2,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "deepseek": DEEPSEEK,
    "zephyr": ZEPHYR,
}
SYSTEMLESS = ("mistral", "gemma")

Messages = list[tuple[str, str]]


def whole(template: str, messages: Messages, *, prompt: bool, **options: object) -> str:
    """What transformers renders."""
    conversation = [{"role": role, "content": text} for role, text in messages]
    rendered, _ = render_jinja_template(
        conversations=[conversation],
        chat_template=template,
        add_generation_prompt=prompt,
        **SPECIALS,
        **options,
    )
    return str(rendered[0])


def in_pieces(chat: ChatTemplate, messages: Messages, *, prompt: bool) -> str:
    """The same conversation, one piece at a time."""
    text, history = "", []
    for role, content in messages:
        text += chat.begin(history, role, given=True) + content
        history.append(role)
        text += chat.end(history)
    return text + (chat.begin(history, "assistant") if prompt else "")


texts = st.text(min_size=1).filter(lambda t: t == t.strip() and "⟦" not in t)


@st.composite
def conversations(draw: st.DrawFn) -> Messages:
    """Questions and answers in turn, the last a question, perhaps with a system prompt."""
    turns = draw(st.integers(0, 3)) * 2 + 1
    messages = [("assistant" if n % 2 else "user", draw(texts)) for n in range(turns)]
    return [("system", draw(texts)), *messages] if draw(st.booleans()) else messages


@pytest.fixture(scope="module")
def chats() -> dict[str, ChatTemplate]:
    return {name: ChatTemplate(t, SPECIALS, model=name) for name, t in TEMPLATES.items()}


@pytest.mark.parametrize("name", TEMPLATES)
@given(messages=conversations())
def test_pieces_make_the_whole(
    name: str, messages: Messages, chats: dict[str, ChatTemplate]
) -> None:
    if name in SYSTEMLESS and messages[0][0] == "system":
        messages = messages[1:]
    expected = whole(TEMPLATES[name], messages, prompt=True)
    assert in_pieces(chats[name], messages, prompt=True) == expected
    answered: Messages = [*messages, ("assistant", "Yes.")]
    if name != "qwen3":  # which shows an empty thought in the newest answer only
        expected = whole(TEMPLATES[name], answered, prompt=False)
        assert in_pieces(chats[name], answered, prompt=False) == expected


@given(messages=conversations())
def test_options_reach_the_template(messages: Messages) -> None:
    chat = ChatTemplate(QWEN3, SPECIALS, model="qwen3", options={"enable_thinking": False})
    expected = whole(QWEN3, messages, prompt=True, enable_thinking=False)
    assert expected.endswith("</think>\n\n")
    assert in_pieces(chat, messages, prompt=True) == expected


def test_the_markup_of_each_place(chats: dict[str, ChatTemplate]) -> None:
    smollm2 = chats["smollm2"]
    default = "<|im_start|>system\nBe good.<|im_end|>\n"
    assert smollm2.begin((), "user") == default + "<|im_start|>user\n"
    assert smollm2.begin((), "system") == "<|im_start|>system\n"
    assert smollm2.begin(("system",), "user") == "<|im_start|>user\n"
    assert smollm2.end(("system",)) == smollm2.end(("user",)) == "<|im_end|>\n"
    assert smollm2.begin(("user",), "assistant") == "<|im_start|>assistant\n"
    assert smollm2.begin((), "assistant") == "<|im_start|>assistant\n"


def test_a_generated_answer_of_llama2_brings_its_own_blank(chats: dict[str, ChatTemplate]) -> None:
    llama2 = chats["llama2"]
    assert llama2.end(("user",)) == " [/INST]"
    assert llama2.begin(("user",), "assistant") == ""
    assert llama2.begin(("user",), "assistant", given=True) == " "
    assert llama2.end(("user", "assistant")) == " </s>"
    assert llama2.begin(("user", "assistant"), "user") == "<s>[INST] "


def test_there_is_one_bos_with_a_system_prompt_b_97_b_100(chats: dict[str, ChatTemplate]) -> None:
    for name in ("llama2", "llama3"):
        text = in_pieces(chats[name], [("system", "S"), ("user", "U")], prompt=True)
        assert text.count("<s>") == 1
        assert text.startswith("<s>")


def test_a_system_text_is_kept_or_refused_never_dropped_b_99(
    chats: dict[str, ChatTemplate],
) -> None:
    llama2 = chats["llama2"]
    assert whole(LLAMA2, [("system", "S")], prompt=True) == ""  # what the template does
    text = llama2.begin((), "system") + "S" + llama2.end(("system",))
    assert text == "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\n"
    with pytest.raises(TraceError, match="takes no assistant message after system"):
        llama2.begin(("system",), "assistant")
    for name in ("chatml", "smollm2", "llama3", "qwen2.5", "qwen3"):
        assert "S" in in_pieces(chats[name], [("system", "S")], prompt=True)


def test_a_refused_role_is_an_error_with_the_templates_words(
    chats: dict[str, ChatTemplate],
) -> None:
    with pytest.raises(TraceError, match="takes no system message at the start: Only user and"):
        chats["mistral"].begin((), "system")
    with pytest.raises(TraceError, match="takes no user message after user: roles must alternate"):
        chats["llama2"].begin(("user",), "user")


def test_a_role_that_the_template_leaves_out_is_an_error(chats: dict[str, ChatTemplate]) -> None:
    with pytest.raises(TraceError, match=r"takes no critic message .*leaves the message out"):
        chats["qwen2.5"].begin(("user",), "critic")


def test_a_template_that_moves_the_system_prompt_still_chats() -> None:
    chat = ChatTemplate(MISTRAL_V3, SPECIALS, model="m")
    messages = [("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C")]
    first = in_pieces(chat, messages[:2], prompt=True)
    assert first == whole(MISTRAL_V3, messages[:2], prompt=True) == "<s>[INST] S\n\nA[/INST]"
    # What was said stays where it was said: a prompt only grows.
    assert in_pieces(chat, messages, prompt=True) == first + " B</s>[INST] C[/INST]"


def test_what_depends_on_the_next_message_waits_for_it() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }};"
        "{% if not loop.last %}{{ '+' if messages[loop.index].role == 'user' else '-' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}-assistant:{% endif %}"
    )
    chat = ChatTemplate(template, SPECIALS, model="m")
    assert chat.end(("user",)) == ";"
    assert chat.begin(("user",), "user") == "+user:"
    assert chat.begin(("user",), "assistant") == "-assistant:"


def test_what_ends_a_conversation_waits_for_its_end() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{{ ';!' if loop.last and not add_generation_prompt else ';?' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    chat = ChatTemplate(template, SPECIALS, model="m")
    assert chat.end(("user",)) == ";"
    assert chat.begin(("user",), "user") == "?user:"
    assert chat.begin(("user",), "assistant") == "?assistant:"


def test_a_template_without_generation_prompt_gets_one() -> None:
    template = CHATML.split("{% if add_generation_prompt")[0]
    chat = ChatTemplate(template, SPECIALS, model="m")
    assert chat.begin(("user",), "assistant") == "<|im_start|>assistant\n"


def test_a_template_that_repeats_a_text_is_refused() -> None:
    repeating = ChatTemplate("{{ messages[0].content }}{{ messages[0].content }}", {}, model="m")
    with pytest.raises(TraceError, match="leaves the message out"):
        repeating.begin((), "user")


def test_no_template_is_an_error_that_names_the_model() -> None:
    chat = ChatTemplate(None, {}, model="my-org/my-model")
    for use in (lambda: chat.begin((), "user"), lambda: chat.end(("user",)), chat.check):
        with pytest.raises(ModelError, match="my-org/my-model") as caught:
            use()
        assert "plain text" in str(caught.value.hint)


def test_a_broken_template_is_an_error_when_it_is_loaded() -> None:
    with pytest.raises(ModelError, match="not valid"):
        ChatTemplate("{% for m in messages %}", {}, model="m")
    with pytest.raises(ModelError, match="cannot be used"):
        ChatTemplate("{{ messages[0].content + 1 }}", {}, model="m").check()
    ChatTemplate(SMOLLM2, SPECIALS, model="m").check()


def test_templates_cannot_do_harm() -> None:
    template = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ messages[0].content }}"
    with pytest.raises(TraceError):
        ChatTemplate(template, {}, model="m").begin((), "user")


def test_the_date_is_one_for_all_markup() -> None:
    template = (
        "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}"
        "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    )
    chat = ChatTemplate(template, {}, model="m")
    stamp = chat.begin((), "user")
    assert abs((datetime.fromisoformat(stamp) - datetime.now()).total_seconds()) < 60
    assert chat._find_begin((), "user", False) == stamp


def test_templates_are_compiled_once_and_stay_apart() -> None:
    template = "{{ name }}{{ strftime_now('%f') }}{{ messages[0].content }}"
    one, other = (ChatTemplate(template, {"name": name}, model="m") for name in "ab")
    assert one._template is other._template
    assert [chat.begin((), "user")[0] for chat in (one, other, one)] == ["a", "b", "a"]
    assert one.begin((), "user")[1:] != other.begin((), "user")[1:]  # each has a time of its own


def test_json_is_written_as_transformers_writes_it() -> None:
    template = "{{ {'a': '<é>', 'b': [1]} | tojson(indent=1) }}{{ messages[0].content }}"
    expected = whole(template, [("user", "x")], prompt=False)
    assert ChatTemplate(template, {}, model="m").begin((), "user") + "x" == expected
