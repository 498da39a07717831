"""What plans are bound to: an engine core with its tokenizer and chat template."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmc.constraints.automaton import Automaton
from lmc.constraints.joining import joined
from lmc.constraints.loading import load, matcher_of
from lmc.constraints.matcher import TokenMatcher
from lmc.constraints.vocabulary import Vocabulary
from lmc.errors import UsageError
from lmc.params import LogitBias
from lmc.plan import Plan
from lmc.runtime.chat import ChatTemplate
from lmc.runtime.request import KeyArray
from lmc.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lmc.runtime.engine import EngineCore

__all__ = ["Target"]

REMEMBERED_PREFILLS = 256
REMEMBERED_TEMPLATES = 512  # texts of a template may differ from row to row

Span = tuple[tuple[str, bool], ...]
"""Texts and whether each is markup."""

_TemplateKey = tuple[tuple[Automaton, ...], tuple[str, ...], str]


@dataclass
class Target:
    """An engine core, its tokenizer, its chat template, and the automata in use.

    Automata and their token tables are made once per target and shared by all rows.
    """

    core: EngineCore
    tokenizer: Tokenizer
    template: ChatTemplate
    _vocabulary: Vocabulary | None = None
    _automata: dict[str, Automaton] = field(default_factory=dict)
    _loaded: dict[int, tuple[dict[str, Any], Automaton]] = field(default_factory=dict)
    _plans: dict[int, tuple[Plan, list[Automaton]]] = field(default_factory=dict)
    _matchers: dict[int, tuple[Automaton, TokenMatcher]] = field(default_factory=dict)
    _templates: OrderedDict[_TemplateKey, Automaton] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _prefills: dict[bytes, None] = field(default_factory=dict)
    _spans: dict[Span, bytes] = field(default_factory=dict)

    def has_prefilled(self, span: Span) -> bool:
        """Whether somebody asked lately for the KV of a prompt that consists of this open span."""
        digest = self._spans.get(span)
        return digest is not None and digest in self._prefills

    def first_prefill(self, keys: KeyArray, span: Span | None = None) -> bool:
        """Whether nobody asked for the KV of these keys lately; asks from now on.

        Args:
            span: what they are the tokens of, if it begins the prompt; next time it need not be
                tokenized.
        """
        digest = keys.tobytes()
        if span is not None:
            if len(self._spans) >= REMEMBERED_PREFILLS:
                self._spans.clear()
            self._spans[span] = digest
        if digest in self._prefills:
            return False
        while len(self._prefills) >= REMEMBERED_PREFILLS:
            self._prefills.pop(next(iter(self._prefills)))
        self._prefills[digest] = None
        return True

    def forget_prefill(self, keys: KeyArray) -> None:
        """The KV of these keys was asked for and not computed."""
        self._prefills.pop(keys.tobytes(), None)

    def forget_prefills(self) -> None:
        """Ask for all prefixes anew: the cache was emptied."""
        self._prefills.clear()
        self._spans.clear()

    @property
    def vocabulary(self) -> Vocabulary:
        """The token table that constraints work on."""
        if self._vocabulary is None:
            tokenizer = self.tokenizer
            self._vocabulary = Vocabulary(
                tokenizer.token_bytes,
                tokenizer.eos_ids,
                lambda text: tokenizer.encode(text, first=False),
            )
        return self._vocabulary

    def bias(self, by_name: LogitBias) -> tuple[tuple[int, float], ...]:
        """A logit bias by token ids.

        Raises:
            UsageError: a text is not one token, or a token is there twice.
        """
        found: dict[int, float] = {}
        for key, number in by_name:
            tokens = self.tokenizer.encode(key, first=False) if isinstance(key, str) else [key]
            if len(tokens) != 1:
                raise UsageError(
                    f"logit_bias has the text {key!r}, which is {len(tokens)} tokens",
                    hint="give a text that is one token of this model, or token ids",
                )
            if tokens[0] in found:
                raise UsageError(
                    f"logit_bias has the token {tokens[0]} twice, also as {key!r}",
                    hint="give each token once",
                )
            found[tokens[0]] = number
        return tuple(found.items())

    def automata(self, plan: Plan) -> list[Automaton]:
        """The automata of a plan, equal ones shared."""
        with self._lock:
            known = self._plans.get(id(plan))
            if known is None:
                if len(self._plans) > 1024:
                    self._plans.clear()
                    self._loaded.clear()
                made = [self._automaton(data) for data in plan.constraints]
                known = self._plans[id(plan)] = (plan, made)
            return list(known[1])

    def _automaton(self, data: dict[str, Any]) -> Automaton:
        """The automaton that a plan stores; plans of one program share the stored form, too."""
        known = self._loaded.get(id(data))
        if known is None:
            key = json.dumps(data, sort_keys=True)
            if key not in self._automata:
                self._automata[key] = load(data)
            known = self._loaded[id(data)] = (data, self._automata[key])
        return known[1]

    def template_automaton(
        self, automata: tuple[Automaton, ...], texts: tuple[str, ...], before: str
    ) -> Automaton:
        """The automaton of a template, made once for the same parts; see `joining.joined`."""
        key = (automata, texts, before)
        known = self._templates.get(key)
        if known is None:
            while len(self._templates) >= REMEMBERED_TEMPLATES:
                _, dropped = self._templates.popitem(last=False)
                self._matchers.pop(id(dropped), None)
            known = self._templates[key] = joined(automata, texts, before)
        self._templates.move_to_end(key)
        return known

    def matcher(self, automaton: Automaton) -> TokenMatcher:
        """A fresh place at the beginning of an automaton.

        Raises:
            ConstraintError: no token sequence of the vocabulary spells a match.
        """
        known = self._matchers.get(id(automaton))
        if known is None:
            known = (automaton, matcher_of(automaton, self.vocabulary))
            self._matchers[id(automaton)] = known
        return known[1].fork()
