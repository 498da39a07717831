"""Python's own syntax on texts that are not known yet, for a function whose source is at hand.

`str.join`, `in`, f-strings, `len()` and `str()` are decided inside the interpreter and cannot be
recorded by methods of a value. So the tracer runs a copy of the program's function in which these
few are calls:

    sep.join(xs)  ->  join(sep, xs)        f"<{x}>"  ->  fstring("<", (x, -1, None), ">")
    a in b        ->  contains(b, a)       len(x), str(x)  ->  length(x), text(x)

The copy is made only if the source compiles to the very code that the function has; without it
(a REPL, `exec`) the function is traced as it is, and these uses end the graph or go through
placeholders. On known values the calls do what Python does.
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import types
from collections.abc import Callable
from typing import Any

from lmc.frontend.symbolic import Bool, Int, Text, TextList

__all__ = ["rewritten"]

_FUTURE = functools.reduce(
    lambda bits, name: bits | getattr(__future__, name).compiler_flag,
    __future__.all_feature_names,
    0,
)
_PREFIX = "__lmc_"


@functools.lru_cache(maxsize=512)
def rewritten(function: Callable[..., Any]) -> Callable[..., Any]:
    """The copy of a function to trace; the function itself where no copy can be made safely."""
    if isinstance(function, types.MethodType):
        inner = rewritten(function.__func__)
        return (
            function if inner is function.__func__ else types.MethodType(inner, function.__self__)
        )
    if not isinstance(function, types.FunctionType):
        return function
    try:
        return _copy(function)
    except (OSError, TypeError, SyntaxError, ValueError, IndentationError):
        return function


def _copy(function: types.FunctionType) -> Callable[..., Any]:
    code = function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    module = ast.parse(source)
    definition = _definition(module, code)
    if definition is None or not _same(_compiled(module, code), code):
        return function  # the file changed since it was imported, or there is no source
    rewrite = _Rewrite(code)
    definition.body = [rewrite.visit(statement) for statement in definition.body]
    ast.fix_missing_locations(definition)
    function.__globals__.update(_HELPERS)
    made = types.FunctionType(
        _compiled(module, code),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _definition(module: ast.Module, code: types.CodeType) -> ast.FunctionDef | None:
    """The definition that a code was compiled from."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _compiled(module: ast.Module, like: types.CodeType) -> types.CodeType:
    """The code of the definition that stands where `like` stood, in its module compiled anew."""
    flags = like.co_flags & _FUTURE
    todo: list[types.CodeType] = [
        compile(module, like.co_filename, "exec", flags=flags, dont_inherit=True)
    ]
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


class _Rewrite(ast.NodeTransformer):
    def __init__(self, code: types.CodeType) -> None:
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        self._builtins = {"len", "str"} - own

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return node
        call = _call("contains", [node.comparators[0], node.left], node)
        if isinstance(node.ops[0], ast.In):
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
            return _call({"len": "length", "str": "text"}[node.func.id], [*node.args], node)
        return node

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


def _call(name: str, args: list[ast.expr], at: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(f"{_PREFIX}{name}__", ast.Load()), args, []), at)


# ---------------------------------------------------------------- what the calls do


def _join(separator: Any, items: Any) -> Any:
    if type(separator) is not str:
        return separator.join(items)
    if type(items) is TextList:
        return items._source.pure("list.join", separator, items)
    items = list(items)
    for item in items:
        if type(item) is Text:
            if not all(isinstance(other, str) for other in items):
                break
            between = [part for one in items for part in (separator, one)]
            return item._source.pure("text.concat", *between[1:])
    return separator.join(items)


def _contains(container: Any, item: Any) -> Any:
    if type(item) is Text and type(container) is str:
        return item._source.pure("text.contains", container, item)
    if type(container) is Text and isinstance(item, str):
        return container._source.pure("text.contains", container, item)
    return item in container


def _fstring(*parts: Any) -> Any:
    done: list[Any] = []
    source = None
    for part in parts:
        if type(part) is not tuple:
            done.append(part)
            continue
        value, conversion, spec = part
        if type(value) in (Text, Bool, Int) and not spec and conversion in (-1, ord("s")):
            source = value._source
            if type(value) is Int:
                value = source.pure("int.text", value)
            elif type(value) is Bool:
                value = source.pure("bool.text", value)
            done.append(value)
            continue
        if conversion == ord("r") and type(value) is Text and not spec:
            source = value._source
            done.append(source.pure("text.repr", value))
            continue
        done.append(format(_CONVERSIONS[conversion](value), spec or ""))
    if source is None:
        return "".join(done)
    return source.pure("text.concat", *done)


_CONVERSIONS: dict[int, Callable[[Any], Any]] = {
    -1: lambda value: value,
    ord("s"): str,
    ord("r"): repr,
    ord("a"): ascii,
}


def _length(value: Any) -> Any:
    if type(value) is Text:
        return value._source.pure("text.length", value)
    if type(value) is TextList:
        return value._source.pure("list.length", value)
    return len(value)


def _text(value: Any) -> Any:
    if type(value) is Text:
        return value
    if type(value) is Int:
        return value._source.pure("int.text", value)
    if type(value) is Bool:
        return value._source.pure("bool.text", value)
    return str(value)


_HELPERS: dict[str, Callable[..., Any]] = {
    f"{_PREFIX}join__": _join,
    f"{_PREFIX}contains__": _contains,
    f"{_PREFIX}fstring__": _fstring,
    f"{_PREFIX}length__": _length,
    f"{_PREFIX}text__": _text,
}
