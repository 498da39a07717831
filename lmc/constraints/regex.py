"""Regular expressions, read with Lark.

The language is that of Python's `re.fullmatch`, as a set of texts: which arm of an alternative or
which length of a repeat a matcher would prefer makes no difference, except inside atomic groups
and possessive repeats, whose meaning is just that preference. Back references, conditions on
groups and recursion are refused, since no finite automaton has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.lexer import Lexer

from lmc.constraints.charset import CharSet
from lmc.constraints.expression import (
    EPSILON,
    Alt,
    Atomic,
    Chars,
    Expression,
    Look,
    Repeat,
    Seq,
    Text,
)
from lmc.constraints.pattern_escapes import pattern_error
from lmc.constraints.scanner import Group, Quantifier, Scanner
from lmc.errors import ConstraintError

__all__ = ["Part", "parse", "parse_parts"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a pattern: what it means, where it stands, and the pieces inside."""

    expression: Expression
    begin: int
    end: int
    inner: tuple[Part, ...] = ()


def parse(pattern: str, *, ecma: bool = False) -> Expression:
    """The texts that a regular expression matches as a whole.

    Args:
        pattern: in the syntax of Python's `re`; also `\\p{..}` with general categories.
        ecma: read the pattern as ECMAScript does (for JSON Schema). It is still a full match.

    Raises:
        ConstraintError: the pattern is malformed or not regular; the place is marked.
    """
    return parse_parts(pattern, ecma=ecma).expression


def parse_parts(pattern: str, *, ecma: bool = False) -> Part:
    """Like `parse`, with the places of all pieces."""
    scanner = Scanner(pattern, ecma=ecma)
    try:
        found = _parser().parse(scanner)
    except UnexpectedToken as error:
        raise _misplaced(scanner, error) from None
    except UnexpectedInput as error:  # pragma: no cover - the scanner has refused it before
        raise ConstraintError(f"the pattern cannot be read: {error}") from None
    except RecursionError:
        raise ConstraintError("the pattern is nested too deeply") from None
    assert isinstance(found, Part)
    return found


class _Tokens(Lexer):
    """Hands the scanner's tokens to Lark."""

    def __init__(self, lexer_conf: Any) -> None:  # noqa: ANN401 - Lark's own; nothing in it is used
        del lexer_conf

    def lex(self, lexer_state: Any) -> Iterator[Token]:  # type: ignore[override]  # noqa: ANN401
        yield from lexer_state.tokens()


@cache
def _parser() -> Lark:
    grammar = (Path(__file__).parent / "regex.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer=_Tokens, transformer=_ToExpression())


def _misplaced(scanner: Scanner, error: UnexpectedToken) -> ConstraintError:
    token = error.token
    pattern = scanner.pattern
    if token.type == "$END":
        return pattern_error(pattern, scanner.opened[-1], "this parenthesis is never closed")
    at = token.start_pos or 0
    if token.type == "QUANTIFIER":
        repeated = scanner.before == "QUANTIFIER"
        what = "a repeat is repeated" if repeated else "there is nothing to repeat"
        return pattern_error(
            pattern, at, what, end=token.end_pos, hint="put what is repeated in (?:...)"
        )
    return pattern_error(pattern, at, "this is not expected", end=token.end_pos)


@v_args(inline=True)
class _ToExpression(Transformer):  # type: ignore[type-arg]
    """Expressions, from the inside out."""

    def atom(self, token: Token) -> Part:
        expression: Any = token.value
        return Part(expression, _begin(token), _end(token))

    def repeat(self, item: Part, token: Token) -> Part:
        how: Any = token.value
        assert isinstance(how, Quantifier)
        repeated = item.expression
        if how.mode == "possessive" and not isinstance(repeated, Chars):
            repeated = Atomic(repeated)  # `re` never goes back into a round it has finished
        found: Expression = Repeat(repeated, how.low, how.high, lazy=how.mode == "lazy")
        if how.mode == "possessive":
            found = Atomic(found)
        return Part(found, item.begin, _end(token), (item,))

    def group(self, opening: Token, inside: Part, closing: Token) -> Part:
        how: Any = opening.value
        assert isinstance(how, Group)
        found = inside.expression
        if how.kind in ("ahead", "behind"):
            found = Look(found, behind=how.kind == "behind", negative=how.negative)
        elif how.kind == "atomic":
            found = Atomic(found)
        return Part(found, _begin(opening), _end(closing), (inside,))

    def set(self, opening: Token, *rest: Any) -> Part:  # noqa: ANN401 - members, then a token
        negated: Any = opening.value
        *members, closing = rest
        found = CharSet.of(r for member in members for r in member.ranges())
        return Part(Chars(~found if negated else found), _begin(opening), _end(closing))

    def member(self, token: Token) -> CharSet:
        chars: Any = token.value
        assert isinstance(chars, CharSet)
        return chars

    def branch(self, *pieces: Part) -> Part:
        if not pieces:
            return Part(EPSILON, -1, -1)
        if len(pieces) == 1:
            return pieces[0]
        found = Seq(_merged([piece.expression for piece in pieces]))
        return Part(found, pieces[0].begin, pieces[-1].end, pieces)

    def alternation(self, *rest: Any) -> Part:  # noqa: ANN401 - branches and bars
        branches = [b for b in rest if isinstance(b, Part)]
        if len(branches) == 1:
            return branches[0]
        begin = min((b.begin for b in branches if b.begin >= 0), default=-1)
        found = Alt(tuple(b.expression for b in branches))
        return Part(found, begin, max(b.end for b in branches), tuple(branches))

    def start(self, found: Part) -> Part:
        return found


def _merged(items: list[Expression]) -> tuple[Expression, ...]:
    """Neighbouring texts joined into one."""
    found: list[Expression] = []
    for item in items:
        if isinstance(item, Text) and found and isinstance(found[-1], Text):
            found[-1] = Text(found[-1].text + item.text)
        else:
            found.append(item)
    return tuple(found)


def _begin(token: Token) -> int:
    return token.start_pos or 0


def _end(token: Token) -> int:
    return token.end_pos or 0
