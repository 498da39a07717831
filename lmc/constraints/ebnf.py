"""Grammars: Lark's notation, and the one with `::=` that llama.cpp made known (GBNF).

A grammar is read as what it says about texts, without a separate lexer: a terminal may end wherever
the rest of the grammar allows it, and what is ignored may stand before and behind every terminal.
(That is what Lark's Earley parser with `lexer="dynamic_complete"` accepts.) Priorities, aliases and
everything else that only shapes a parse tree make no difference.

Rules that begin with themselves are rewritten (`left_recursion`). What is left is an expression
with rules that the engine walks like any other; only grammars whose first symbols hide behind
rules without text, and terminals that look around, are out of reach.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree, UnexpectedInput
from lark.exceptions import LarkError
from lark.grammar import NonTerminal, Terminal
from lark.load_grammar import load_grammar

from lmc.constraints.charset import ANY, CharSet, fold_case
from lmc.constraints.expression import (
    EPSILON,
    Alt,
    Atomic,
    Chars,
    Expression,
    Look,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    walk,
)
from lmc.constraints.left_recursion import without_left_recursion
from lmc.constraints.regex import parse as parse_regex
from lmc.errors import ConstraintError

__all__ = ["parse_grammar"]

_MOST_TEMPLATES = 1000


def parse_grammar(source: str) -> Expression:
    """The texts of a grammar's start rule (`start`, or `root` in the notation with `::=`).

    Raises:
        ConstraintError: the grammar is malformed, or not supported.
    """
    try:
        rules = _Gbnf(source).rules() if _is_gbnf(source) else _LarkNotation(source).rules()
    except RecursionError:
        raise ConstraintError("the grammar is nested too deeply") from None
    return Rules(tuple(without_left_recursion(rules)))


def _is_gbnf(source: str) -> bool:
    return any("::=" in line.split("#")[0].split('"')[0] for line in source.splitlines())


class _Numbers:
    """Numbers of rules by name, the first one asked for being 0."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}
        self.bodies: list[Expression | None] = []

    def __getitem__(self, key: Any) -> int:  # noqa: ANN401 - any name
        if key not in self.known:
            self.known[key] = len(self.bodies)
            self.bodies.append(None)
        return self.known[key]


class _LarkNotation:
    """Lark's own reader gives the trees; here they become expressions."""

    def __init__(self, source: str) -> None:
        try:
            grammar, _ = load_grammar(source, "the grammar", [], False)  # type: ignore[no-untyped-call]
        except LarkError as error:
            raise ConstraintError(f"the grammar cannot be read: {_plain(error)}") from None
        self._terminals: dict[str, Any] = {}
        for name, (tree, _) in grammar.term_defs:
            if tree is None:
                raise ConstraintError(
                    f"the terminal {name} is declared, but not defined",
                    hint="give it a pattern",
                )
            self._terminals[str(name)] = tree
        self._rules = {str(name): (params, tree) for name, params, tree, _ in grammar.rule_defs}
        ignored = [self._terminal(str(name)) for name in grammar.ignore]
        self._blank: Expression = Repeat(Alt(tuple(ignored)), 0, None) if ignored else EPSILON
        self._numbers = _Numbers()

    def rules(self) -> list[Expression]:
        """All rules that the start can reach, the start first."""
        if "start" not in self._rules:
            raise ConstraintError("the grammar has no rule `start`")
        start = self._numbers["", ()]
        first = self._numbers["start", ()]
        self._numbers.bodies[start] = Seq((self._blank, Ref(first)))
        todo = 1
        while todo < len(self._numbers.bodies):
            name, args = next(k for k, n in self._numbers.known.items() if n == todo)
            params, tree = self._rules[name]
            if len(params) != len(args):
                raise ConstraintError(f"the rule {name} takes {len(params)} arguments")
            values = dict(zip(map(str, params), args, strict=True))
            self._numbers.bodies[todo] = self._expression(tree, values)
            todo += 1
            if todo > _MOST_TEMPLATES:
                raise ConstraintError("the grammar has too many rules")
        return [body for body in self._numbers.bodies if body is not None]

    def _expression(self, node: Any, values: dict[str, Expression]) -> Expression:  # noqa: ANN401
        """A part of a rule; `values` are the arguments of a template."""
        if isinstance(node, NonTerminal):
            name = str(node.name)
            return values[name] if name in values else self._rule(name, ())
        if isinstance(node, Terminal):
            return self._spaced(self._terminal(str(node.name)))
        match node.data:
            case "literal" | "range":
                return self._spaced(_literal(node))
            case "template_usage":
                name, *args = node.children
                made = tuple(self._expression(a, values) for a in args)
                return self._rule(str(name.name), made)
            case "alias":
                return self._expression(node.children[0], values)
            case _:
                return _combined(node, lambda child: self._expression(child, values))

    def _rule(self, name: str, args: tuple[Expression, ...]) -> Expression:
        if name not in self._rules:
            raise ConstraintError(f"the grammar has no rule `{name}`")
        return Ref(self._numbers[name, args])

    def _spaced(self, terminal: Expression) -> Expression:
        return terminal if self._blank is EPSILON else Seq((terminal, self._blank))

    def _terminal(self, name: str) -> Expression:
        if name not in self._terminals:
            raise ConstraintError(f"the grammar has no terminal `{name}`")
        return self._pattern(self._terminals[name])

    def _pattern(self, node: Any) -> Expression:  # noqa: ANN401 - a tree of Lark
        if isinstance(node, Terminal):
            return self._terminal(str(node.name))
        if node.data in ("literal", "range"):
            return _literal(node)
        return _combined(node, self._pattern)


def _combined(node: Any, of: Callable[[Any], Expression]) -> Expression:  # noqa: ANN401
    """What both rules and terminals are built with."""
    children = node.children
    match node.data:
        case "expansions":
            return _either([of(child) for child in children])
        case "expansion":
            return _row([of(child) for child in children])
        case "value":
            return of(children[0])
        case "maybe":
            return Repeat(of(children[0]), 0, 1)
        case "expr":
            item = of(children[0])
            low, high = _counts([str(c) for c in children[1:]])
            return Repeat(item, low, high)
        case _:
            raise ConstraintError(f"grammars with `{node.data}` are not supported")


def _counts(how: list[str]) -> tuple[int, int | None]:
    if how[0] == "~":
        low, high = int(how[1]), int(how[-1])
        if high < low:
            raise ConstraintError(f"the repeat ~{low}..{high} runs backwards")
        return low, high
    return {"?": (0, 1), "*": (0, None), "+": (1, None)}[how[0]]


def _literal(node: Any) -> Expression:  # noqa: ANN401 - a tree of Lark
    if node.data == "range":
        low, high = (_string(str(child))[0] for child in node.children)
        if len(low) != 1 or len(high) != 1 or low > high:
            raise ConstraintError(f"the range {low!r}..{high!r} is not one of characters")
        return Chars(CharSet.of([(ord(low), ord(high))]))
    said = str(node.children[0])
    if said.startswith('"'):
        text, fold = _string(said)
        if not fold:
            return Text(text)
        return _row([Chars(fold_case(CharSet.chars(c))) for c in text])
    end = said.rindex("/")
    flags = "".join(f for f in said[end + 1 :] if f in "imsx")
    pattern = said[1:end].replace("\\/", "/")
    found = parse_regex(f"(?{flags}:{pattern})" if flags else pattern)
    if any(isinstance(inner, Look | Atomic) for inner in walk(found)):
        raise ConstraintError(
            f"the terminal {said} looks at what stands around it",
            hint="terminals without anchors, look-around and atomic groups are supported",
        )
    return found


def _string(said: str) -> tuple[str, bool]:
    """The text of a literal, and whether case is ignored."""
    fold = said.endswith("i")
    body = said[:-1] if fold else said
    try:
        text = ast.literal_eval('"' + body[1:-1].replace("\n", "\\n") + '"')
        assert isinstance(text, str)
        text.encode()
    except (ValueError, SyntaxError, UnicodeError):
        raise ConstraintError(f"the literal {said} cannot be read") from None
    return text, fold


def _either(arms: list[Expression]) -> Expression:
    return arms[0] if len(arms) == 1 else Alt(tuple(arms))


def _row(items: list[Expression]) -> Expression:
    return items[0] if len(items) == 1 else Seq(tuple(items))


def _plain(error: Exception) -> str:
    """What lark says in one line, and what it shows below of the grammar, indented."""
    said, *shown = filter(str.strip, str(error).splitlines())
    said = said.strip().removesuffix(" in the grammar:")
    return "\n    ".join((said[:1].lower() + said[1:], *shown))


@cache
def _gbnf_parser() -> Lark:
    grammar = (Path(__file__).parent / "gbnf.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr")


class _Gbnf:
    """The notation with `::=`: names, quoted texts, classes, groups, `* + ?` and `{m,n}`."""

    def __init__(self, source: str) -> None:
        try:
            tree = _gbnf_parser().parse(source + "\n")
        except UnexpectedInput as error:
            raise ConstraintError(
                f"the grammar cannot be read at line {error.line}, column {error.column}"
            ) from None
        assert isinstance(tree, Tree)
        self._definitions: dict[str, Any] = {}
        for rule in tree.children:
            assert isinstance(rule, Tree)
            name = str(rule.children[0])
            if name in self._definitions:
                raise ConstraintError(f"the rule {name} is defined twice")
            self._definitions[name] = rule.children[1]
        self._numbers = _Numbers()

    def rules(self) -> list[Expression]:
        """All rules that the root can reach, the root first."""
        if "root" not in self._definitions:
            raise ConstraintError("the grammar has no rule `root`")
        todo = self._numbers["root"]
        while todo < len(self._numbers.bodies):
            name = next(k for k, n in self._numbers.known.items() if n == todo)
            self._numbers.bodies[todo] = self._expression(self._definitions[name])
            todo += 1
        return [body for body in self._numbers.bodies if body is not None]

    def _expression(self, node: Any) -> Expression:  # noqa: ANN401 - a tree of Lark
        if isinstance(node, Token):
            return self._token(node)
        children = [self._expression(c) for c in node.children if not _is_count(c)]
        match node.data:
            case "alternatives":
                return _either(children)
            case "sequence":
                return _row(children)
            case _:
                low, high = _braces(str(node.children[1]))
                return Repeat(children[0], low, high)

    def _token(self, token: Token) -> Expression:
        said = str(token)
        if token.type == "NAME":
            if said not in self._definitions:
                raise ConstraintError(f"the grammar has no rule `{said}`")
            return Ref(self._numbers[said])
        if token.type == "STRING":
            return Text(_string(said)[0])
        if token.type == "DOT":
            return Chars(ANY)
        return parse_regex(said)


def _is_count(node: Any) -> bool:  # noqa: ANN401 - a tree of Lark
    return isinstance(node, Token) and node.type in ("COUNT", "BRACES")


def _braces(said: str) -> tuple[int, int | None]:
    if said in "?*+":
        return _counts([said])
    low, comma, high = said.strip("{}").replace(" ", "").partition(",")
    if not comma:
        return int(low), int(low)
    if high and int(high) < int(low or 0):
        raise ConstraintError(f"the repeat {said} runs backwards")
    return int(low or 0), int(high) if high else None
