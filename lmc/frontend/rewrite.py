"""Python's own syntax on values that are not known yet, for functions whose source is at hand.

`str.join`, `in`, `is`, f-strings, `len()`, `str()` and `type()` are decided inside the interpreter
and cannot be recorded by methods of a value. So the tracer runs a copy of the program's function in
which these few are calls:

    sep.join(xs)  ->  join(sep, xs)        f"<{x}>"  ->  fstring("<", (x, -1, None), ">")
    a in b        ->  contains(b, a)       len(x), str(x), type(x)  ->  length(x), ...
    a is b        ->  same(a, b)           f(x)  ->  called(f)(x), which is f's own copy
    match x: ...  ->  match matched(x): ...
    try: ...      ->  try: with guarded(): ...        with x: ...  ->  with entered(x): ...

On known values the calls do what Python does. A copy is made only if the source compiles to the
very code that the function has. Without one (`exec`, some shells) `bytecode` puts what it can of
this into the code itself. What is left of these uses ends the graph: most of them raise by
themselves, `unreadable` finds the others.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import dis
import functools
import inspect
import linecache
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lmc.frontend import syntax
from lmc.frontend.bytecode import patched
from lmc.frontend.location import unwatched

__all__ = ["NO_SOURCE", "is_copy", "is_patched", "refused", "rewritten", "unread", "unreadable"]

_FUTURE = functools.reduce(
    lambda bits, name: bits | getattr(__future__, name).compiler_flag,
    __future__.all_feature_names,
    0,
)
_PREFIX = "__lmc_"
NO_SOURCE = "code whose source is not at hand"
_BUILTINS = {"len": "length", "str": "text", "type": "kind"}


def rewritten(function: Callable[..., Any]) -> Callable[..., Any]:
    """The copy of a function to trace; the function itself where none can be made or is needed."""
    if isinstance(function, types.MethodType):
        inner = rewritten(function.__func__)
        same = inner is function.__func__
        return function if same else types.MethodType(inner, function.__self__)
    if type(function) is not types.FunctionType:
        return function
    code = _rewritten_code(function) or _patched_code(function)
    if code is None:
        return function
    function.__globals__.update(_CALLS)
    made = types.FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


_Key = tuple[types.CodeType, int, frozenset[str]]
_MAX_CODES = 2048  # that are kept

_codes: dict[_Key, types.CodeType | None] = {}  # what was made of the source of each
_patches: dict[_Key, types.CodeType | None] = {}  # what was made of its bytecode instead
_patches_made: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


def _key(code: types.CodeType, space: dict[str, Any]) -> _Key:
    return code, id(space), _meant_otherwise(space)


def _meant_otherwise(space: dict[str, Any]) -> frozenset[str]:
    """The rewritten builtins whose names are those of something else in a module, by now."""
    real = vars(builtins)
    return frozenset(name for name in _BUILTINS if space.get(name, real[name]) is not real[name])


def _rewritten_code(function: types.FunctionType) -> types.CodeType | None:
    key = _key(function.__code__, function.__globals__)
    if key not in _codes:
        if len(_codes) > _MAX_CODES:
            _codes.clear()
        with unwatched():
            _codes[key] = _rewrite_if_possible(function)
    return _codes[key]


def _patched_code(function: types.FunctionType) -> types.CodeType | None:
    key = _key(function.__code__, function.__globals__)
    if key not in _patches:
        if len(_patches) > _MAX_CODES:
            _patches.clear()
        with unwatched():
            _patches[key] = made = patched(function.__code__, function.__globals__)
        if made is not None:
            _patches_made.update(_with_inner(made))
    return _patches[key]


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _with_inner(const)


def is_patched(code: types.CodeType) -> bool:
    """Whether a code was made of another one without its source."""
    return code in _patches_made


def unread(function: Callable[..., Any], made: Callable[..., Any]) -> types.CodeType | None:
    """The code that is traced of a function, unless `rewritten` made it from its source."""
    code = getattr(getattr(made, "__func__", made), "__code__", None)
    return code if made is function or code in _patches_made else None


def is_copy(code: types.CodeType) -> bool:
    """Whether a code is that of a copy, or inside of one; one in which nothing is rewritten is not.

    Calls are rewritten, so one that is none of these calls nothing.
    """
    return any(name.startswith(_PREFIX) for name in code.co_names)


def refused(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Whether a copy of a `def` was wanted, and could not be made of its source."""
    named = code.co_name != "<lambda>"
    return named and (_codes.get(_key(code, space), code) is None or code in _patches_made)


@functools.lru_cache(maxsize=4096)
def unreadable(code: types.CodeType) -> str | None:
    """What of a code that is no copy neither is recorded nor raises; None if there is nothing."""
    found: str | None = None
    for instr in dis.get_instructions(code):
        name = instr.opname
        if name in ("LOAD_GLOBAL", "LOAD_NAME") and instr.argval == "type":
            return "`type()`"
        if name == "IS_OP" or name.endswith(("_IF_NONE", "_IF_NOT_NONE")):
            found = "`is`"
        elif name in ("MATCH_SEQUENCE", "MATCH_MAPPING"):
            found = found or "`match`"
    return found


def _rewrite_if_possible(function: types.FunctionType) -> types.CodeType | None:
    try:
        return _rewrite(function)
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None


def _rewrite(function: types.FunctionType) -> types.CodeType | None:
    code, space = function.__code__, function.__globals__
    lines = linecache.getlines(code.co_filename, space)
    source = "".join(lines or inspect.findsource(function)[0])  # some shells keep it elsewhere
    module = _parsed(source)
    definition = _definition(module, code)
    if definition is None or not _same(_compiled(module, code), code):
        return None  # the file changed since it was imported
    rewrite = _Rewrite(_shadowed(definition, space))
    definition.body = [rewrite.visit(statement) for statement in definition.body]
    ast.fix_missing_locations(definition)
    return _compiled(module, code)


_parsing = threading.Lock()
_TRIES = 8


def _parsed(source: str) -> ast.Module:
    """The tree of a source.

    CPython counts the depth of trees in one place for all threads, and raises SystemError if two
    of them make trees at once (3.11, 3.12). Ours take turns; the program's own are let pass.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError), _parsing:
            return ast.parse(source)
    return ast.parse(source)


def _definition(module: ast.Module, code: types.CodeType) -> ast.FunctionDef | None:
    """The definition that a code was compiled from."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _shadowed(definition: ast.FunctionDef, space: dict[str, Any]) -> set[str]:
    """The rewritten builtins whose names mean something else in the module or the function."""
    bound = set(_meant_otherwise(space))
    for node in ast.walk(definition):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
    return bound


def _compiled(module: ast.Module, like: types.CodeType) -> types.CodeType:
    """The code of the definition that stands where `like` stood, in its module compiled anew."""
    flags = like.co_flags & _FUTURE
    whole: types.CodeType = compile(
        module, like.co_filename, "exec", flags=flags, dont_inherit=True
    )
    todo = [whole]
    while todo:
        code = todo.pop()
        if (code.co_name, code.co_firstlineno) == (like.co_name, like.co_firstlineno):
            return code
        todo += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    raise ValueError(f"{like.co_name} is not in its source")


def _same(mine: types.CodeType, theirs: types.CodeType) -> bool:
    """Whether two codes do the same."""
    if len(mine.co_consts) != len(theirs.co_consts):
        return False
    for a, b in zip(mine.co_consts, theirs.co_consts, strict=True):
        if isinstance(a, types.CodeType) and isinstance(b, types.CodeType):
            if not _same(a, b):
                return False
        elif type(a) is not type(b) or a != b:
            return False
    fields = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    return all(getattr(mine, f) == getattr(theirs, f) for f in fields)


_AnyTry = TypeVar("_AnyTry", ast.Try, ast.TryStar)


class _Rewrite(ast.NodeTransformer):
    def __init__(self, shadowed: set[str]) -> None:
        self._builtins = {k: v for k, v in _BUILTINS.items() if k not in shadowed}

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) != 1:
            return node
        left, op, right = node.left, node.ops[0], node.comparators[0]
        if isinstance(op, (ast.In, ast.NotIn)):
            call = _call("contains", [right, left], node)
        elif isinstance(op, (ast.Is, ast.IsNot)):
            call = _call("same", [left, right], node)
        else:
            return node
        if isinstance(op, (ast.In, ast.Is)):
            return call
        return ast.copy_location(ast.UnaryOp(ast.Not(), call), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        one = (
            len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred)
        )
        if one and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
            return _call("join", [node.func.value, node.args[0]], node)
        if one and isinstance(node.func, ast.Name) and node.func.id in self._builtins:
            return _call(self._builtins[node.func.id], [*node.args], node)
        named = node.func.id if isinstance(node.func, ast.Name) else ""
        if named == "super":
            return node
        if named not in ("isinstance", "issubclass"):  # `map(type, xs)`, but not what asks for it
            node.args = [self._handed_over(arg) for arg in node.args]
            for keyword in node.keywords:
                keyword.value = self._handed_over(keyword.value)
        node.func = _call("called", [node.func], node.func)
        return node

    def _handed_over(self, value: ast.expr) -> ast.expr:
        """An argument; `type` itself asks unseen, whoever calls it."""
        if isinstance(value, ast.Name) and value.id == "type" and "type" in self._builtins:
            return ast.copy_location(ast.Name(f"{_PREFIX}kind__", ast.Load()), value)
        return value

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts: list[ast.expr] = []
        for value in node.values:
            if not isinstance(value, ast.FormattedValue):
                parts.append(value)
                continue
            self.generic_visit(value)
            spec = value.format_spec or ast.Constant(None)
            parts.append(ast.Tuple([value.value, ast.Constant(value.conversion), spec], ast.Load()))
        return _call("fstring", parts, node)

    def visit_Match(self, node: ast.Match) -> ast.Match:
        self.generic_visit(node)
        node.subject = _call("matched", [node.subject], node.subject)
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        self.generic_visit(node)
        for item in node.items:
            item.context_expr = _call("entered", [item.context_expr], item.context_expr)
        return node

    def visit_Try(self, node: _AnyTry) -> _AnyTry:
        self.generic_visit(node)
        if node.handlers or any(map(_leaves, node.finalbody)):
            guard = ast.With([ast.withitem(_call("guarded", [], node.body[0]))], node.body)
            node.body = [ast.copy_location(guard, node.body[0])]
        return node

    visit_TryStar = visit_Try  # noqa: N815 - named as the syntax is


def _leaves(statement: ast.AST) -> bool:
    """Whether a statement may end the block around it, which drops an exception in `finally`."""
    kinds = (ast.Return, ast.Break, ast.Continue)
    return any(isinstance(node, kinds) for node in ast.walk(statement))


def _call(name: str, args: list[ast.expr], at: ast.AST) -> ast.Call:
    made = ast.Call(ast.Name(f"{_PREFIX}{name}__", ast.Load()), args, [])
    return ast.copy_location(made, at)


_CALLS = {f"{_PREFIX}{name}__": call for name, call in syntax.CALLS.items()}
