"""Text to graph: the inverse of the printer. The grammar is in `grammar.lark`.

The parser resolves names, makes each op through its class and checks it at once, so an error
always has a line and a column. What a line cannot show (a region without an end, say) is left to
`lmc.ir.verifier`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from lmc.errors import IRError, Location, ParseError
from lmc.ir.attributes import suggestion
from lmc.ir.core import Const, Node, Op, Operand, Program, Region, Value
from lmc.ir.ops import HostCall, If, Pure, Resume, Ret, op_class, op_names
from lmc.ir.printer import hint_of
from lmc.ir.types import BOOL, Type, parse_type

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

__all__ = ["parse"]

_READABLE = {
    "VALUE": "a value (`%name`)",
    "STRING": "a text",
    "NUMBER": "a number",
    "CONSTANT": "`true`, `false` or `null`",
    "WORD": "a name",
    "RET": "`ret`",
    "IF": "`flow.if`",
    "SWITCH": "`flow.switch`",
    "RESUME": "`flow.resume`",
    "_NL": "the end of the line",
    "$END": "the end of the text",
}


def parse(text: str, source: str | None = None) -> Program:
    """Read a program in the form that `str(program)` writes.

    Args:
        text: the program; comments and spaces are free, one node a line.
        source: name of the file; with it, nodes get their place in it as location.

    Raises:
        ParseError: the text is not a program; the message shows the line and a caret.
    """
    from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken

    reader = _Reader(text, source)
    try:
        tree = _grammar().parse(text)
    except UnexpectedToken as error:
        problem = f"expected {_listed(set(error.accepts or error.expected))}, found "
        if error.token.type == "$END":
            raise reader.error(problem + "the end of the text", *reader.end()) from None
        raise reader.error_at(error.token, problem + _shown(error.token)) from None
    except UnexpectedEOF:
        raise reader.error("the text ends in the middle", *reader.end()) from None
    except UnexpectedCharacters as error:
        what = "this text is not closed" if error.char == '"' else f"cannot read `{error.char}`"
        raise reader.error(what, error.line, error.column) from None
    return reader.program(tree)


@functools.cache
def _grammar() -> Lark:
    from importlib.resources import files

    from lark import Lark

    grammar = files("lmc.ir").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=True, propagate_positions=True)


def _shown(token: Token) -> str:
    return "the end of the line" if token.type == "_NL" else f"`{token}`"


def _listed(names: set[str]) -> str:
    literals = {t.name: t.pattern.value for t in _grammar().terminals}
    shown = sorted(_READABLE.get(name) or f"`{literals.get(name, name)}`" for name in names)
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


class _Reader:
    """Turns a syntax tree into a program, knowing the text for its messages."""

    def __init__(self, text: str, source: str | None) -> None:
        self.lines = text.split("\n")
        self.source = source
        self.defined: set[str] = set()  # all names so far: each is given once in a program

    def end(self) -> tuple[int, int]:
        """Line and column just after the last character that is no space."""
        number = max((n for n, line in enumerate(self.lines, 1) if line.strip()), default=1)
        return number, len(self.lines[number - 1].rstrip()) + 1

    def error(
        self, problem: str, line: int, column: int, width: int = 1, hint: str | None = None
    ) -> ParseError:
        """An error at a place; line and column count from 1."""
        shown = self.lines[line - 1].rstrip("\r")
        gap = " " * len(str(line))
        marks = "^" * max(1, min(width, len(shown) - column + 1))
        picture = f"{line} | {shown}\n{gap} | {' ' * (column - 1)}{marks}"
        where = Location(self.source, line) if self.source else None
        return ParseError(f"line {line}, column {column}: {problem}\n{picture}", where, hint=hint)

    def error_at(self, token: Token, problem: str, hint: str | None = None) -> ParseError:
        """An error at a token."""
        return self.error(problem, token.line or 1, token.column or 1, len(token), hint)

    def program(self, tree: Tree[Token]) -> Program:
        """The program of a tree with the root `start`."""
        name, *rest = _trees(_trees(tree)[0])
        params = [t for t in rest if t.data == "param"]
        scope: dict[str, Value] = {}
        made = []
        for param in params:
            token, kind = _token(param.children[0]), param.children[1]
            made.append(self.define(token, self.type(kind), scope))
        held = self.attributes(rest)
        body = self.region(rest[-1], scope)
        unknown = [k for k in held if k not in _HEADER]
        if unknown:
            raise self.error_at(
                held[unknown[0]][0],
                f"a program has no attribute `{unknown[0]}`",
                suggestion(unknown[0], _HEADER),
            )
        values = {k: v for k, (_, v) in held.items()}
        try:
            return Program(self.name(name), tuple(made), body, **_header(values))
        except IRError as error:
            raise self.error_at(next(iter(held.values()))[0], error.problem) from None

    def type(self, tree: Any) -> Type:  # noqa: ANN401 - lark's trees hold trees and tokens
        token = _token(tree.children[0]) if tree.data == "plain_type" else None
        if token is None:
            return Type("list", self.type(tree.children[0]))
        try:
            return parse_type(str(token))
        except IRError as error:
            raise self.error_at(token, error.problem, error.hint) from None

    def name(self, tree: Tree[Token]) -> str:
        token = _token(tree.children[0])
        return cast(str, self.literal(token)) if token.type == "STRING" else str(token)

    def literal(self, token: Token) -> Any:  # noqa: ANN401 - JSON values
        try:
            return json.loads(token)
        except ValueError:
            raise self.error_at(token, "this text has a wrong escape or is too long") from None

    def json(self, item: Any) -> Any:  # noqa: ANN401 - JSON values
        if not hasattr(item, "data"):
            return self.literal(item)
        held = [self.json(child) for child in item.children if child is not None]
        return held if item.data == "array" else dict(zip(held[::2], held[1::2], strict=True))

    def attributes(self, among: list[Tree[Token]]) -> dict[str, tuple[Token, Any]]:
        """The attributes of the tree `attributes` among these: token of the name, and value."""
        held: dict[str, tuple[Token, Any]] = {}
        for group in (t for t in among if t.data == "attributes"):
            for attribute in _trees(group):
                name, value = attribute.children
                token = _token(cast("Tree[Token]", name).children[0])
                key = self.name(cast("Tree[Token]", name))
                if key in held:
                    raise self.error_at(token, f"the attribute `{key}` is given twice")
                held[key] = token, self.json(value)
        return held

    def define(self, token: Token, kind: Type, scope: dict[str, Value]) -> Value:
        name = str(token)[1:]
        if name in scope or name in self.defined:
            raise self.error_at(token, f"`{token}` is defined twice")
        self.defined.add(name)
        scope[name] = Value(kind, hint_of(name))
        return scope[name]

    def operand(self, token: Token, scope: Mapping[str, Value]) -> Operand:
        if token.type != "VALUE":
            return Const(self.literal(token))
        name = str(token)[1:]
        if name not in scope:
            problem = f"`{token}` is not defined"
            if name in self.defined:
                problem += " here, only in another region"
            raise self.error_at(token, problem, suggestion(str(token), [f"%{n}" for n in scope]))
        return scope[name]

    def region(self, block: Tree[Token], outer: Mapping[str, Value]) -> Region:
        scope = dict(outer)
        nodes: list[Node] = []
        for tree in _trees(block):
            *results, body = _trees(tree)
            if body.data != "switch":
                nodes.append(self.node(tree, scope))
            elif results:
                raise self.error_at(_token(body.children[0]), "flow.switch: defines no values")
            else:
                nodes += self.switch(body, scope)
        return Region(tuple(nodes))

    def switch(self, body: Tree[Token], scope: Mapping[str, Value]) -> tuple[Node, ...]:
        """The comparisons and ifs that a `flow.switch` stands for."""
        head, subject = _token(body.children[0]), _token(body.children[1])
        *cases, default = _trees(body)
        value = self.operand(subject, scope)
        ways: dict[str, tuple[Token, Region]] = {}
        for case in cases:
            token = _token(case.children[0])
            text = self.literal(token)
            if text in ways:
                raise self.error_at(token, f"flow.switch: the case {token} is given twice")
            ways[text] = token, self.region(cast("Tree[Token]", case.children[1]), scope)
        rest = self.region(default, scope)
        for text, (token, way) in reversed(ways.items()):
            compares = Pure("text.eq", (value, Const(text)))
            try:
                compares.verify()
            except IRError:
                raise self.error_at(
                    subject, f"flow.switch: {subject} must be of type text, found {value.type}"
                ) from None
            holds = Value(BOOL)
            at = Location(self.source, token.line or head.line or 1) if self.source else None
            rest = Region((Node(compares, (holds,), at), Node(If(holds, way, rest), (), at)))
        return rest.nodes

    def node(self, tree: Tree[Token], scope: dict[str, Value]) -> Node:
        """The node of a tree `node`; defines its results in `scope`."""
        *results, body = _trees(tree)
        tokens = [_token(t) for r in results for t in r.children]
        head = _token(body.children[0])
        try:
            op = self.op(head, body, scope)
            op.verify()
        except ParseError:
            raise
        except IRError as error:
            raise self.error_at(head, error.problem, error.hint) from None
        kinds = op.result_types()
        if len(kinds) != len(tokens):
            raise self.error_at(
                tokens[0] if tokens else head,
                f"{op.mnemonic}: defines {len(kinds)} values, found names for {len(tokens)}",
            )
        values = tuple(
            self.define(token, kind, scope) for token, kind in zip(tokens, kinds, strict=True)
        )
        at = Location(self.source, head.line or 1) if self.source else None
        return Node(op, values, at)

    def op(self, head: Token, body: Tree[Token], scope: Mapping[str, Value]) -> Op:
        mnemonic, rest = str(head), body.children[1:]
        trees = [t for t in rest if hasattr(t, "data")]
        if body.data == "branch":
            then, orelse = (
                self.region(cast("Tree[Token]", t), scope) for t in trees if t.data != "after"
            )
            condition = self.operand(_token(rest[0]), scope)
            return If(condition, then, orelse, self.after(trees, scope))
        if body.data == "ret":
            groups = [t for t in _trees(body) if t.data == "bindings"]
            pairs = [binding.children for t in groups for binding in _trees(t)]
            state, *value = (_token(t) for t in rest if t is not None and t not in trees)
            return Ret(
                cast(Value, self.operand(state, scope)),
                tuple(self.name(cast("Tree[Token]", name)) for name, _ in pairs),
                tuple(self.operand(_token(held), scope) for _, held in pairs),
                self.operand(value[0], scope) if value else Const(None),
                self.after(trees, scope),
            )
        cls = Resume if body.data == "resume" else op_class(mnemonic)
        if cls is None:
            raise self.error_at(
                head, f"there is no op `{mnemonic}`", suggestion(mnemonic, op_names())
            )
        groups = [t for t in cast("list[Tree[Token]]", trees) if t.data in ("operands", "pair")]
        operands: list[Any] = []
        for group in groups:
            held = [self.operand(_token(t), scope) for t in group.children]
            operands.extend([tuple(held)] if group.data == "pair" else held)
        found = self.attributes(cast("list[Tree[Token]]", trees))
        attributes = {k: v for k, (_, v) in found.items()}
        if cls is Pure:
            attributes = {**attributes, "fn": mnemonic}
        op, after = cls.read(operands, attributes), self.after(trees, scope)
        if not after:
            return op
        if isinstance(op, (HostCall, Resume)):
            return dataclasses.replace(op, after=after)
        raise self.error_at(head, f"{mnemonic} waits for nothing but its operands")

    def after(self, trees: list[Any], scope: Mapping[str, Value]) -> tuple[Operand, ...]:
        """The operands that stand after `after`."""
        held = [t for tree in trees if tree.data == "after" for t in tree.children]
        return tuple(self.operand(_token(t), scope) for t in held)


_HEADER = ("static", "paths", "known", "source")


def _header(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a program that its header's attributes give.

    Raises:
        IRError: one of them has the wrong type.
    """
    held: dict[str, Any] = {}
    if "static" in values:
        if not isinstance(values["static"], str):
            raise IRError("static must be a text that holds JSON")
        held["static"] = values["static"]
    if "paths" in values:
        paths = values["paths"]
        if not isinstance(paths, list) or not all(isinstance(path, list) for path in paths):
            raise IRError("paths must be a list of lists")
        held["paths"] = tuple(tuple(path) for path in paths)
    if "known" in values:
        known = values["known"]
        if not isinstance(known, list) or not all(k is None or type(k) is str for k in known):
            raise IRError("known must be a list of texts and nulls")
        held["known"] = tuple(known)
    if "source" in values:
        match values["source"]:
            case [str(file), int(line)]:
                held["source"] = Location(file, line)
            case _:
                raise IRError('source must be ["file", line]')
    return held


def _trees(tree: Any) -> list[Tree[Token]]:  # noqa: ANN401 - lark's trees hold trees and tokens
    return [child for child in tree.children if hasattr(child, "data")]


def _token(child: Any) -> Token:  # noqa: ANN401 - lark's trees hold trees and tokens
    assert not hasattr(child, "data"), f"the grammar puts a token here, not {child}"
    return cast("Token", child)
