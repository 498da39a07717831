"""What programs mean, by plain transformers: no cache, no batch, nothing of lmc's runtime.

The oracle runs a program's Python function on states of its own. Every model call is a greedy loop
over `transformers`' forward pass in float32. Weights are read with the `gguf` package, the
tokenizer's rules and the chat markup are written out here for the one model that it serves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmc.constraints import compile as compile_constraint
from lmc.errors import Location
from lmc.frontend.dsl import State
from lmc.params import GenParams
from lmc.runtime.output import open_character
from tests.stop_oracle import first_stop

NEAR_TIE = 1e-4  # logits closer than this may swap when float32 sums are ordered otherwise

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True)
class Prompt:
    """Settled tokens, then a span of (text, is_markup) that is not tokenized yet."""

    tokens: tuple[int, ...] = ()
    span: tuple[tuple[str, bool], ...] = ()
    messages: int = 0

    def text(self, text: str, markup: bool = False) -> Prompt:
        return Prompt(self.tokens, (*self.span, (text, markup)), self.messages)


@dataclass
class Call:
    """One model call: the tokens it gave and how close the closest decision was."""

    name: str
    text: str
    tokens: tuple[int, ...]
    gap: float
    gaps: list[float] = field(default_factory=list)


class Oracle:
    """SmolLM2 in float32."""

    def __init__(self, path: Path) -> None:
        import gguf
        import torch
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.set_num_threads(2)
        reader = gguf.GGUFReader(path)
        fields = reader.fields

        def value(key: str) -> Any:
            return fields[key].contents()

        config = LlamaConfig(
            vocab_size=len(value("tokenizer.ggml.tokens")),
            hidden_size=value("llama.embedding_length"),
            intermediate_size=value("llama.feed_forward_length"),
            num_hidden_layers=value("llama.block_count"),
            num_attention_heads=value("llama.attention.head_count"),
            num_key_value_heads=value("llama.attention.head_count_kv"),
            max_position_embeddings=value("llama.context_length"),
            rms_norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
            rope_parameters={"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
            tie_word_embeddings=True,
        )
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        names = {
            "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        }  # fmt: skip
        weights = {}
        for tensor in reader.tensors:
            held = torch.from_numpy(
                gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()
            ).float()
            parts = tensor.name.split(".")
            if parts[0] == "blk":
                if parts[2] in heads:  # rows are stored for interleaved rotation
                    n = heads[parts[2]]
                    out, into = held.shape
                    held = held.view(n, out // n // 2, 2, into).transpose(1, 2).reshape(out, into)
                weights[f"model.layers.{parts[1]}.{names[parts[2]]}.weight"] = held
            elif parts[0] == "token_embd":
                weights["model.embed_tokens.weight"] = weights["lm_head.weight"] = held
            elif parts[0] == "output_norm":
                weights["model.norm.weight"] = held
        self.model = LlamaForCausalLM(config).float().eval()
        self.model.load_state_dict(weights)
        tokens = value("tokenizer.ggml.tokens")
        vocabulary = {token: i for i, token in enumerate(tokens)}
        merges = [tuple(m.split(" ")) for m in value("tokenizer.ggml.merges")]
        self.tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]
        )
        self.tokenizer.decoder = decoders.ByteLevel()
        self.specials = {
            token: i
            for i, (token, kind) in enumerate(
                zip(tokens, value("tokenizer.ggml.token_type"), strict=True)
            )
            if kind == 3
        }
        self.eos = vocabulary["<|im_end|>"]
        self.first = vocabulary["<|im_start|>"]
        self.constraint_tokenizer = self._plain_tokenizer()

    def _plain_tokenizer(self) -> Any:
        from tokenizers import AddedToken, Tokenizer

        copy = Tokenizer.from_str(self.tokenizer.to_str())
        copy.add_special_tokens([AddedToken(t, special=True) for t in self.specials])
        return copy

    # -- spans
    def settle(self, prompt: Prompt) -> tuple[int, ...]:
        tokens = list(prompt.tokens)
        plain = ""
        for text, markup in prompt.span:
            while markup and (found := self._next_special(text)) is not None:
                at, special = found
                plain += text[:at]
                tokens += self.encode(plain)
                tokens.append(self.specials[special])
                plain, text = "", text[at + len(special) :]
            plain += text
        tokens += self.encode(plain)
        return tuple(tokens) or (self.first,)

    def _next_special(self, text: str) -> tuple[int, str] | None:
        found = [(text.find(s), s) for s in self.specials if s in text]
        return min(found) if found else None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids if text else []
        return ids

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        from tokenizers.pre_tokenizers import ByteLevel

        table = _byte_table(ByteLevel.alphabet())
        return b"".join(bytes(table[c] for c in self.tokenizer.id_to_token(t)) for t in tokens)

    # -- model calls
    def gen(self, name: str, prompt: Prompt, params: GenParams) -> tuple[Prompt, Call]:
        import torch

        assert params.greedy, "the oracle is greedy"
        tokens = self.settle(prompt)
        made: list[int] = []
        gaps: list[float] = []
        matcher = None
        shortest = 0
        if params.regex is not None:
            matcher = compile_constraint("regex", params.regex, self.constraint_tokenizer)
            shortest = matcher.shortest_tokens()
        reader = _Reader(self.model, tokens)
        forced: list[int] = []
        cut: int | None = None
        while len(made) < params.max_tokens:
            if matcher is not None and params.jump_forward and not forced:
                forced = list(matcher.forced())
            if forced:
                token = forced.pop(0)
            else:
                logits = reader.after(made)
                if matcher is not None:
                    left = params.max_tokens - len(made)
                    near = left <= matcher.reserve(left, shortest) + 8
                    mask = torch.tensor(matcher.mask_within(left) if near else matcher.mask())
                    if matcher.is_complete():
                        mask[self.eos] = True
                    logits = logits.masked_fill(~mask, -torch.inf)
                if params.ignore_eos:
                    logits[self.eos] = -torch.inf
                best = logits.topk(2)
                gaps.append(float(best.values[0] - best.values[1]))
                token = int(best.indices[0])
                if token == self.eos:
                    break
            made.append(token)
            if matcher is not None:
                matcher.advance(token)
            data = self.bytes_of(made)
            whole = data[: len(data) - len(open_character(data))].decode()
            if found_stop := first_stop(whole, params.stop, params.stop_regex):
                cut = len(whole[: found_stop[0]].encode())
                break
            if matcher is not None and not forced and matcher.is_finished():
                break
        data = self.bytes_of(made)
        text = (data if cut is None else data[:cut]).decode(errors="replace")
        kept = len(made)
        if cut is not None:
            while kept and (
                len(self.bytes_of(made[:kept])) > cut or not _whole(self.bytes_of(made[:kept]))
            ):
                kept -= 1
        rest = data[len(self.bytes_of(made[:kept])) : cut].decode() if cut is not None else ""
        after = Prompt((*tokens, *made[:kept]), ((rest, False),) if rest else (), prompt.messages)
        return after, Call(name, text, tuple(made), min(gaps, default=1.0), gaps)

    def select(self, name: str, prompt: Prompt, choices: Sequence[str]) -> tuple[Prompt, Call]:
        tokens = self.settle(prompt)
        means = []
        for choice in choices:
            ids = self.encode(choice)
            scores = self.logits([*tokens, *ids]).double().log_softmax(-1)
            picked = [float(scores[len(tokens) - 1 + i, token]) for i, token in enumerate(ids)]
            means.append(sum(picked) / len(picked))
        best = max(range(len(means)), key=means.__getitem__)
        others = [m for i, m in enumerate(means) if i != best]
        ids = tuple(self.encode(choices[best]))
        gap = means[best] - max(others, default=-1e9)
        return Prompt((*tokens, *ids), (), prompt.messages), Call(name, choices[best], ids, gap)

    def logits(self, tokens: Sequence[int]) -> Any:
        import torch

        with torch.inference_mode():
            return self.model(torch.tensor([list(tokens)])).logits[0].float()

    # -- programs
    def run(self, function: Callable[..., object], **arguments: object) -> OracleRun:
        """Run a program's Python function from its start to its end."""
        recorder = _Recorder(self)
        state = State(recorder, Prompt())
        value = function(state, **arguments)
        variables = {name: _plain(ref) for name, ref in state._variables.items()}
        return OracleRun(variables, recorder.calls, value)


class _Reader:
    """Logits after a growing text, with transformers' own cache of what it read before."""

    def __init__(self, model: Any, prompt: Sequence[int]) -> None:
        self._model = model
        self._unread = list(prompt)
        self._read = 0  # of the tokens made
        self._past: Any = None
        taken = inspect.signature(model.forward).parameters
        self._name = "cache" if "cache" in taken else "past_key_values"  # renamed in 5.2x

    def after(self, made: Sequence[int]) -> Any:
        import torch

        self._unread += made[self._read :]
        self._read = len(made)
        with torch.inference_mode():
            out = self._model(
                torch.tensor([self._unread]), use_cache=True, **{self._name: self._past}
            )
        self._past, self._unread = getattr(out, self._name), []
        return out.logits[0, -1].float().clone()  # the caller may change it


@dataclass
class OracleRun:
    """Variables, the model calls in program order, and what the function returned."""

    variables: dict[str, Any]
    calls: list[Call]
    value: object

    @property
    def gap(self) -> float:
        """How close the closest decision was; a difference is excused only below `NEAR_TIE`."""
        return min((call.gap for call in self.calls), default=1.0)


def _plain(ref: Any) -> Any:
    return [_plain(item) for item in ref] if isinstance(ref, list) else ref


class _Recorder:
    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.calls: list[Call] = []

    def extend(self, state: Prompt, text: str, at: Location | None) -> Prompt:
        return state.text(text)

    def role(self, state: Prompt, role: str, edge: str, at: Location | None) -> Prompt:
        if edge == "end":
            return state.text("<|im_end|>\n", markup=True)
        if not state.messages and role != "system":
            state = state.text(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n", markup=True)
        begun = state.text(f"<|im_start|>{role}\n", markup=True)
        return Prompt(begun.tokens, begun.span, state.messages + 1)

    def gen(
        self,
        state: Prompt,
        name: str,
        params: GenParams,
        at: Location | None,
        sample: int | None = None,
    ) -> tuple[Prompt, str]:
        after, call = self.oracle.gen(name, state, params)
        self.calls.append(call)
        return after, call.text

    def select(
        self,
        state: Prompt,
        name: str,
        choices: Sequence[str],
        method: str,
        temperature: float,
        at: Location | None,
    ) -> tuple[Prompt, str]:
        after, call = self.oracle.select(name, state, choices)
        self.calls.append(call)
        return after, call.text

    def branch(self, state: Prompt, index: int) -> Prompt:
        return state

    def joins(self, params: GenParams, at: Location | None) -> bool:
        return False  # templates are left out

    def read(self, ref: str) -> str:
        return ref

    def prepare(self, function: Callable[..., object]) -> Callable[..., object]:
        return function

    def known(self, value: object, what: str) -> object:
        return value


def _whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _byte_table(alphabet: Sequence[str]) -> dict[str, int]:
    """Byte-level BPE writes printable Latin-1 bytes as themselves, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    assert set(table) == set(alphabet)
    return table
