r"""Tokens of a regular expression: groups, classes, flags, and what verbose mode ignores.

The grammar (`regex.lark`) is the same everywhere in a pattern; what a character means is not: it
depends on the flags in force, on being inside a class, on the dialect. All of that is settled
here (for escapes, in `pattern_escapes`), so that a token carries the expression it stands for and
the grammar is small.

Two dialects: Python's `re` for constraints, ECMAScript's for JSON Schema's `pattern`. The
properties `\p{..}` are taken in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from lark import Token

from lmc.constraints.charset import ANY, CharSet, fold_case
from lmc.constraints.expression import END, START, Alt, Chars, Expression, Look, Seq, Text
from lmc.constraints.pattern_escapes import OCTAL, Reader

__all__ = ["Group", "Quantifier", "Scanner"]

_PYTHON_FLAGS = "aiLmsux"
_NEWLINE = CharSet.chars("\n")
_ECMA_LINE_ENDS = CharSet.chars("\n\r\u2028\u2029")


@dataclass(frozen=True, slots=True)
class Group:
    """An opening parenthesis: "group", "ahead", "behind" or "atomic"."""

    kind: str
    negative: bool = False


@dataclass(frozen=True, slots=True)
class Quantifier:
    """How often; `mode` is "greedy", "lazy" or "possessive"."""

    low: int
    high: int | None
    mode: str


@dataclass
class Scanner(Reader):
    """Reads one pattern once.

    Attributes:
        opened: positions of the groups that are open.
        before, last: the kinds of the last two tokens.
    """

    opened: list[int] = field(default_factory=list)
    before: str = ""
    last: str = ""
    _outer: list[frozenset[str]] = field(default_factory=list)
    _emitted: int = 0

    def tokens(self) -> Iterator[Token]:
        """The tokens of the pattern; raises ConstraintError where there can be none."""
        pattern = self.pattern
        while self._at < len(pattern):
            for token in self._next():
                self._emitted += 1
                self.before, self.last = self.last, token.type
                yield token

    # -- helpers -----------------------------------------------------------------------------

    def _token(self, kind: str, value: object, start: int) -> Token:
        token = Token(kind, "", start_pos=start, end_pos=self._at)
        token.value = value
        return token

    @property
    def _fold(self) -> str | None:
        if "i" not in self._flags:
            return None
        return "ascii" if "a" in self._flags else "unicode"

    # -- outside classes ---------------------------------------------------------------------

    def _next(self) -> Iterator[Token]:
        start = self._at
        char = self.pattern[start]
        if "x" in self._flags:
            if char in " \t\n\r\v\f":
                self._at += 1
                return
            if char == "#":
                end = self.pattern.find("\n", start)
                self._at = len(self.pattern) if end < 0 else end + 1
                return
        match char:
            case "|":
                self._at += 1
                yield self._token("BAR", None, start)
            case "(":
                yield from self._group(start)
            case ")":
                self._at += 1
                if not self.opened:
                    self._fail(start, "this parenthesis was never opened")
                self.opened.pop()
                self._flags = self._outer.pop()
                yield self._token("CLOSE", None, start)
            case "[":
                yield from self._set(start)
            case "*" | "+" | "?" | "{" if quantifier := self._quantifier():
                yield self._token("QUANTIFIER", quantifier, start)
            case ".":
                self._at += 1
                yield self._token("CHARS", Chars(self._dot()), start)
            case "^":
                self._at += 1
                yield self._token("ANCHOR", self._line_start(), start)
            case "$":
                self._at += 1
                yield self._token("ANCHOR", self._line_end(), start)
            case "\\":
                yield self._escape(start)
            case _:
                yield from self._literal(start)

    def _literal(self, start: int) -> Iterator[Token]:
        """A run of ordinary characters as one token; the last apart if a quantifier follows."""
        stops = "|()[*+?{.^$\\" + (" \t\n\r\v\f#" if "x" in self._flags else "")
        self._at += 1
        if "i" not in self._flags:
            while self._at < len(self.pattern) and self.pattern[self._at] not in stops:
                self._at += 1
            if self._at - start > 1 and self._repeats():
                self._at -= 1
        text = self.pattern[start : self._at]
        for offset, char in enumerate(text):
            if 0xD800 <= ord(char) < 0xE000:
                self._fail(start + offset, "a lone surrogate is no character")
        yield self._token("TEXT", self._chars(text), start)

    def _repeats(self) -> bool:
        """Whether a quantifier may stand here; a brace may turn out to be ordinary."""
        at = self._at
        if "x" in self._flags:
            while at < len(self.pattern) and self.pattern[at] in " \t\n\r\v\f#":
                if self.pattern[at] == "#":
                    end = self.pattern.find("\n", at)
                    at = len(self.pattern) if end < 0 else end
                at += 1
        return at < len(self.pattern) and self.pattern[at] in "*+?{"

    def _chars(self, text: str) -> Expression:
        """Ordinary characters, with the case ignored if a flag says so."""
        if self._fold is None:
            return Text(text)
        folded = self._folded(CharSet.chars(text))
        return Text(text) if len(folded) == 1 else Chars(folded)

    def _dot(self) -> CharSet:
        if "s" in self._flags:
            return ANY
        return ANY - (_ECMA_LINE_ENDS if self.ecma else _NEWLINE)

    def _line_start(self) -> Expression:
        if "m" not in self._flags:
            return START
        return Look(Chars(ANY - _NEWLINE), behind=True, negative=True)

    def _line_end(self) -> Expression:
        if "m" in self._flags:
            return Look(Chars(ANY - _NEWLINE), negative=True)
        if self.ecma:
            return END
        return Look(Alt((END, Seq((Text("\n"), END)))))

    def _quantifier(self) -> Quantifier | None:
        start = self._at
        if self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("?"):
            low, high = 0, 1
        else:
            bounds = self._braces(start)
            if bounds is None:
                return None
            low, high = bounds
        if self._take("?"):
            return Quantifier(low, high, "lazy")
        if not self.ecma and self._take("+"):
            return Quantifier(low, high, "possessive")
        return Quantifier(low, high, "greedy")

    def _braces(self, start: int) -> tuple[int, int | None] | None:
        self._at += 1
        first = self._number()
        comma = self._take(",")
        second = self._number() if comma else first
        if not self._take("}") or not (first or comma) or (self.ecma and not first):
            self._at = start
            return None
        low = int(first or 0)
        high = int(second) if second else None
        if high is not None and high < low:
            self._fail(start, f"the least count {low} is greater than the most, {high},")
        return low, high

    def _number(self) -> str:
        start = self._at
        while self._peek() and self._peek() in "0123456789":
            self._at += 1
        return self.pattern[start : self._at]

    # -- groups ------------------------------------------------------------------------------

    def _group(self, start: int) -> Iterator[Token]:
        self._at += 1
        group = Group("group")
        flags = self._flags
        if self._take("?"):
            char = self._peek()
            if self._take("#"):
                self._until(")", start, "this comment is never closed")
                return
            if self._take("P"):
                self._python_group(start)
            elif self._take(":"):
                pass
            elif self._take("="):
                group = Group("ahead")
            elif self._take("!"):
                group = Group("ahead", negative=True)
            elif self._take("<="):
                group = Group("behind")
            elif self._take("<!"):
                group = Group("behind", negative=True)
            elif char == "<" and self.ecma:
                self._at += 1
                self._name(">", start)
            elif char == ">" and not self.ecma:
                self._at += 1
                group = Group("atomic")
            elif char in ("R", "&", "+") or char.isdigit():
                self._refuse(start, "recursion")
            elif char == "(":
                self._refuse(start, "a condition on a group")
            elif char == "<":
                self._fail(start, "a group is named", hint="write (?P<name>...)")
            else:
                scoped = self._flag_group(start)
                if scoped is None:
                    return
                flags = scoped
        elif self._peek() == "*":
            self._fail(self._at, "there is nothing to repeat")
        self.opened.append(start)
        self._outer.append(self._flags)
        self._flags = flags
        yield self._token("OPEN", group, start)

    def _refuse(self, start: int, what: str) -> NoReturn:
        self._fail(
            start,
            f"{what} is not regular, so it is not supported,",
            hint="write out the texts it can stand for, or use a grammar (ebnf=)",
        )

    def _python_group(self, start: int) -> None:
        if self._take("<"):
            self._name(">", start)
        elif self._peek() == "=":
            self._refuse(start, "a back reference")
        elif self._peek() == ">":
            self._refuse(start, "recursion")
        else:
            self._fail(start, f"unknown extension ?P{self._peek()}")

    def _name(self, stop: str, start: int) -> None:
        at = self._at
        name = self._until(stop, start, "the group's name is not closed")
        if not name.isidentifier():
            self._fail(at, f"{name!r} is no name for a group")

    def _flag_group(self, start: int) -> frozenset[str] | None:
        """The flags inside `(?i-s:`; None for `(?i)`, which has set them for all that follows."""
        on, off = set(), set()
        known = "ims" if self.ecma else _PYTHON_FLAGS
        while (char := self._peek()) and char in known:
            if char == "L":
                self._fail(self._at, "the flag L needs a pattern of bytes")
            on.add(char)
            self._at += 1
        minus = self._take("-")
        if minus:
            while (char := self._peek()) and char in known:
                if char in "auL":
                    self._fail(self._at, f"the flag {char} cannot be turned off")
                off.add(char)
                self._at += 1
        if {"a", "u"} <= on:
            self._fail(start, "the flags a and u exclude each other")
        if on & off:
            self._fail(start, "a flag is turned on and off")
        if not (on or off) or (minus and not off) or not (self._peek() and self._peek() in ":)"):
            self._fail(start, "unknown extension or flag", end=self._at + 1)
        closing = self._peek()
        self._at += 1
        flags = frozenset((self._flags - ({"a"} if "u" in on else set())) | on) - off - {"u"}
        if closing == ":":
            return flags
        if minus or self.ecma:
            self._fail(start, "flags for the rest of the pattern cannot be turned off here")
        if self._emitted:
            self._fail(
                start,
                "flags for the whole pattern stand after its beginning,",
                hint="move them to the start, or write (?i:...) around what they are for",
            )
        self._flags = flags
        return None

    # -- escapes -----------------------------------------------------------------------------

    def _escape(self, start: int) -> Token:
        """An escape outside a class."""
        char = self._peek(1)
        if not char:
            self._fail(start, "a backslash stands at the end")
        anchors = {"b": self._boundary, "B": self._no_boundary}
        if not self.ecma:
            anchors |= {"A": lambda: START, "Z": lambda: END}
        if char in anchors:
            self._at += 2
            return self._token("ANCHOR", anchors[char](), start)
        if char in "123456789":
            return self._token("TEXT", self._octal_or_reference(start), start)
        if self.ecma and char == "k":
            self._refuse(start, "a back reference")
        found = self._class_or_char(start)
        if isinstance(found, CharSet):
            return self._token("CHARS", Chars(found), start)
        return self._token("TEXT", self._chars(chr(found)), start)

    def _octal_or_reference(self, start: int) -> Expression:
        text = self.pattern[start + 1 : start + 4]
        if not self.ecma and len(text) == 3 and all(c in OCTAL for c in text):
            code = int(text, 8)
            if code > 0o377:
                self._fail(start, "an octal escape is greater than \\377")
            self._at += 4
            return self._chars(chr(code))
        end = start + 2
        while end < len(self.pattern) and self.pattern[end].isdigit():
            end += 1
        self._at = end
        return self._refuse(start, "a back reference")

    def _boundary(self) -> Expression:
        word = Chars(self._word())
        return Alt((
            Seq((Look(word, behind=True), Look(word, negative=True))),
            Seq((Look(word, behind=True, negative=True), Look(word))),
        ))  # fmt: skip

    def _no_boundary(self) -> Expression:
        word, any_char = Chars(self._word()), Chars(ANY)
        outside: tuple[Expression, ...] = (
            Look(word, behind=True, negative=True),
            Look(word, negative=True),
        )
        if not self.ecma:
            # `re` says that an empty text has no place that is not a boundary.
            outside += (Alt((Look(any_char, behind=True), Look(any_char))),)
        return Alt((Seq((Look(word, behind=True), Look(word))), Seq(outside)))

    # -- classes -----------------------------------------------------------------------------

    def _set(self, start: int) -> Iterator[Token]:
        self._at += 1
        negated = self._take("^")
        yield self._token("OPEN_SET", negated, start)
        first = True
        while True:
            if self._at >= len(self.pattern):
                self._fail(start, "this class is never closed")
            at = self._at
            if self._peek() == "]" and (not first or self.ecma):
                self._at += 1
                break
            first = False
            low = self._member(start)
            if self._peek() == "-" and self._peek(1) and self._peek(1) != "]":
                self._at += 1
                high = self._member(start)
                if isinstance(low, CharSet) or isinstance(high, CharSet):
                    if not self.ecma:
                        self._fail(at, "a range cannot begin or end with a class", end=self._at)
                    for part in (low, ord("-"), high):
                        yield self._token("MEMBER", self._member_set(part), at)
                    continue
                if low > high:
                    self._fail(at, "this range runs backwards", end=self._at)
                yield self._token("MEMBER", self._folded(CharSet.of([(low, high)])), at)
            else:
                yield self._token("MEMBER", self._member_set(low), at)
        yield self._token("CLOSE_SET", None, self._at - 1)

    def _member_set(self, member: CharSet | int) -> CharSet:
        """A member as a set; case is ignored for characters, not for what `\\w` and others hold."""
        if isinstance(member, CharSet):
            return member
        return self._folded(CharSet.of([(member, member)]))

    def _folded(self, chars: CharSet) -> CharSet:
        if self._fold is None:
            return chars
        return fold_case(chars, ascii_only=self._fold == "ascii")

    def _member(self, start: int) -> CharSet | int:
        if self._at >= len(self.pattern):
            self._fail(start, "this class is never closed")
        at = self._at
        if self._peek() != "\\":
            self._at += 1
            return ord(self.pattern[at])
        char = self._peek(1)
        if not char:
            self._fail(start, "this class is never closed")
        if char == "b":
            self._at += 2
            return 8
        if char in "123456789" and not self.ecma:
            text = self.pattern[at + 1 : at + 4]
            if len(text) < 3 or not all(c in OCTAL for c in text):
                # `re` reads up to three octal digits in a class, and none is no escape.
                digits_ = ""
                for c in text:
                    if c not in OCTAL:
                        break
                    digits_ += c
                if not digits_ or char in "89":
                    self._fail(at, f"\\{char} means nothing", end=at + 2)
                self._at += 1 + len(digits_)
                return int(digits_, 8)
            if int(text, 8) > 0o377:
                self._fail(at, "an octal escape is greater than \\377", end=at + 4)
            self._at += 4
            return int(text, 8)
        return self._class_or_char(at)
