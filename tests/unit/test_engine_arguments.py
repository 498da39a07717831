"""What `lmc.Engine` is given: wrong arguments are refused before anything is made of them."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc.errors import CapacityError, ModelError, UsageError
from lmc.runtime.load import ATTENTIONS


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kv_tokens": 1.5}, "kv_tokens is 1.5"),
        ({"kv_tokens": True}, "kv_tokens is True"),
        ({"kv_tokens": 2**31}, "kv_tokens is 2147483648"),
        ({"max_batch_tokens": 1.5}, "max_batch_tokens is 1.5"),
        ({"threads": 0}, "threads is 0"),
        ({"tool_workers": "many"}, "tool_workers is 'many'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"chat_options": [1]}, r"chat_options is \[1\]"),
        ({"chat_template": 3}, "the chat template is 3"),
        ({"model": None}, "model is None"),
        ({"device": "tpu"}, "there is no device 'tpu'"),
        ({"dtype": "int3"}, "dtype is 'int3'"),
        ({"attention": "fast"}, "there is no attention backend 'fast'"),
    ],
)
def test_an_engine_refuses_wrong_arguments(options: dict[str, Any], problem: str) -> None:
    with pytest.raises((UsageError, ModelError), match=problem) as caught:
        lmc.Engine(**{"model": "fake", **options})
    assert caught.value.hint or "seed" in options


def test_a_cache_beyond_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 7 PiB")

    monkeypatch.setattr("lmc.runtime.fake.FakeRunner.__init__", full)
    with pytest.raises(CapacityError, match="no memory for a KV cache of 1000000 tokens"):
        lmc.Engine("fake", kv_tokens=10**6)


@pytest.mark.parametrize("prompts", [None, 3, ["a", None], b"abc"])
def test_generate_takes_texts(prompts: Any) -> None:
    with lmc.Engine("fake") as engine:
        with pytest.raises(UsageError, match="a prompt is"):
            engine.generate(prompts)
        assert engine.generate(()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"level": "2"}, "level is '2', must be an integer"),
        ({"level": True}, "level is True, must be an integer"),
        ({"passes": ["cse"]}, r"passes is \['cse'\], must be a text"),
    ],
)
def test_options_of_wrong_types_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        lmc.Options(**options)
    assert caught.value.hint


def test_every_attention_backend_may_be_asked_for() -> None:
    pytest.importorskip("torch")
    from lmc.runtime.attention.registry import ATTENTION
    from lmc.runtime.cuda.backends import DEVICE_ATTENTION

    assert set(ATTENTIONS) == {"auto", *ATTENTION, *DEVICE_ATTENTION}
