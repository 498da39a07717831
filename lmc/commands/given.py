"""Arguments of programs as the command line gives them: --arg, --args and --batch."""

from __future__ import annotations

import collections.abc
import hashlib
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.errors import UsageError

if TYPE_CHECKING:
    from lmc.api import Loaded, Program

__all__ = ["Rows", "annotation_of", "given_arguments", "options_of"]


def given_arguments(
    program: Program | Loaded, pairs: Sequence[str] | None, as_json: str | None
) -> dict[str, object]:
    """The arguments of --args, then those of --arg, which win.

    The value of an --arg is a text unless the program says otherwise: by the parameter's
    annotation, else by its default, else (in an artifact) by what it was compiled with.

    Raises:
        UsageError: one of them cannot be read.
    """
    held: dict[str, object] = {}
    if as_json is not None:
        held.update(_object(_text_of(as_json, "--args"), "--args"))
    named: set[str] = set()
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(
                f"--arg {pair} gives no value to a name", hint="write it as --arg NAME=VALUE"
            )
        if name in named:
            raise UsageError(f"--arg {name} is given twice", hint="give one of them")
        named.add(name)
        held[name] = _value(_text_of(text, f"--arg {name}"), name, annotation_of(program, name))
    return held


def _text_of(text: str, option: str) -> str:
    """The text itself, or what is in the file that `@FILE` names; `@@` stands for one `@`."""
    if not text.startswith("@"):
        return text
    if text.startswith("@@"):
        return text[1:]
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{option}: the file {text[1:]} cannot be read: {_why(error)}",
            hint=f"for a text that begins with @ write @{text}",
        ) from error


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"


def _object(text: str | bytes, what: str) -> dict[str, object]:
    """A JSON object.

    Raises:
        UsageError: it is none; `what` says which.
    """
    try:
        value = json.loads(text.rstrip(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, _TwiceError):
            problem = f"the name {error.args[0]!r} is there twice in one object"
        elif isinstance(error, json.JSONDecodeError):
            line = f"line {error.lineno}, " if error.lineno > 1 else ""
            problem = f"{error.msg} at {line}column {error.colno}"
        elif isinstance(error, UnicodeDecodeError):
            problem = "it is not UTF-8"
        else:
            problem = "a number has too many digits"
            if isinstance(error, RecursionError):
                problem = "it is nested too deeply"
        raise UsageError(f"{what} is not JSON: {problem}", hint=_EXAMPLE) from error
    if not isinstance(value, dict):
        raise UsageError(f"{what} is not a JSON object but {_kind(value)}", hint=_EXAMPLE)
    return value


class _TwiceError(ValueError):
    """An object says twice what stands for a name."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    held = dict(pairs)
    if len(held) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for name in names if names.count(name) > 1))
    return held


_EXAMPLE = 'write arguments by name, as in {"question": "Why?"}'


def _kind(value: object) -> str:
    kinds = {str: "a text", bool: "a truth value", list: "a list", dict: "an object"}
    return "null" if value is None else kinds.get(type(value), "a number")


# ------------------------------------------------------------------------- values of --arg


def annotation_of(program: Program | Loaded, name: str) -> Any:  # noqa: ANN401 - any annotation
    """What a parameter is said to be; `str` where nothing is said."""
    from lmc.api import Loaded

    if isinstance(program, Loaded):
        compiled = dict(json.loads(program.artifact.plan.static)["dict"])
        held = compiled.get(name)
        return str if held is None or (isinstance(held, dict) and "$" in held) else _like(held)
    parameter = inspect.signature(program.function).parameters.get(name)
    if parameter is None:
        return str
    if parameter.annotation is not parameter.empty:
        return _evaluated(parameter.annotation, program.function)
    return str if parameter.default is parameter.empty else _like(parameter.default)


def _like(value: object) -> Any:  # noqa: ANN401 - an annotation
    """The annotation of a value that stands for others of its kind."""
    if isinstance(value, dict) and "tuple" in value:
        return tuple
    kinds = (bool, int, float, list, tuple, dict)
    return next((kind for kind in kinds if type(value) is kind), str)


def _evaluated(annotation: Any, function: Callable[..., object]) -> Any:  # noqa: ANN401
    """An annotation that may be written as a string, or under postponed evaluation."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(inspect.unwrap(function).__globals__))
    except Exception:
        plain = re.match(r"(int|float|bool|list|dict|tuple)\b", annotation)
        known = {"int": int, "float": float, "bool": bool, "list": list, "dict": dict}
        return known.get(plain[1], tuple) if plain else str


def _value(text: str, name: str, annotation: Any) -> object:  # noqa: ANN401
    """The value of an --arg for a parameter of that annotation."""
    options = options_of(annotation)
    if any(_is_text(option) for option in options):
        return text
    if bool in options and text.lower() in ("true", "false"):
        text = text.lower()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _NOTHING
    for option in options:
        fitting = _fitted(value, option)
        if fitting is not _NOTHING:
            return fitting
    raise UsageError(
        f"--arg {name}={text} is not {_written(annotation)}",
        hint=f"write it as JSON, as in --arg {name}={_sample(options[0])}",
    )


_NOTHING = object()


def options_of(annotation: Any) -> list[Any]:  # noqa: ANN401
    """The members of a union, or the one annotation."""
    if typing.get_origin(annotation) is typing.Annotated:
        return options_of(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [one for member in typing.get_args(annotation) for one in options_of(member)]
    return [annotation]


def _is_text(annotation: Any) -> bool:  # noqa: ANN401
    """Whether a text is what the parameter takes; so it is wherever we know nothing better."""
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Literal:
        return all(isinstance(value, str) for value in typing.get_args(annotation))
    return not (isinstance(origin, type) and any(origin is kind for kind in _JSON_KINDS))


_SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping)
_JSON_KINDS = (int, float, bool, tuple, type(None), *_SEQUENCES, *_MAPPINGS)


def _fitted(value: object, annotation: Any) -> object:  # noqa: ANN401
    """A JSON value as the annotation wants it, or `_NOTHING`."""
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Literal:
        return value if value in typing.get_args(annotation) else _NOTHING
    if annotation is None or origin is type(None):
        return value if value is None else _NOTHING
    if origin is tuple:
        return tuple(value) if isinstance(value, list) else _NOTHING
    if origin is float and type(value) is int:
        return float(value)
    kind = list if origin in _SEQUENCES else dict if origin in _MAPPINGS else origin
    return value if type(value) is kind else _NOTHING


def _written(annotation: Any) -> str:  # noqa: ANN401
    plain = isinstance(annotation, type) and typing.get_origin(annotation) is None
    return annotation.__name__ if plain else str(annotation).replace("typing.", "")


def _sample(annotation: Any) -> str:  # noqa: ANN401
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Literal:
        return json.dumps(typing.get_args(annotation)[0])
    if origin in _MAPPINGS:
        return '\'{"a": "b"}\''
    return {int: "3", float: "0.5", bool: "true"}.get(origin, '\'["a", "b"]\'')


# ----------------------------------------------------------------------------------- rows


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise UsageError("--batch -: standard input is closed", hint="name a file")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise UsageError(f"--batch -: standard input cannot be read: {_why(error)}") from error


class Rows:
    """Rows of a JSONL file, checked before, read as they are needed.

    Args:
        path: of the file; `-` is standard input.
        defaults: arguments for the rows that lack them.

    Attributes:
        repeatable: they can be read more than once.
        lines: the line in the file of each row, from 1.
        digest: of all rows and the defaults.

    Raises:
        UsageError: the file, or one of its lines, cannot be read.
    """

    repeatable = True

    def __init__(self, path: Path, defaults: Mapping[str, object]) -> None:
        self._path = path
        self._defaults = dict(defaults)
        self._held: list[bytes] | None = None
        if str(path) == "-":
            self._held = _standard_input().splitlines()
        elif not path.is_file():  # a pipe can be read only once
            self._held = self._read().splitlines()
        digest = hashlib.sha256(json.dumps(self._defaults, default=repr).encode())
        self.lines = [number for number, _ in self._objects(digest.update)]
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[dict[str, object]]:
        for _, row in self._objects():
            yield {**self._defaults, **row}

    def _objects(
        self, seen: Callable[[bytes], None] = lambda _: None
    ) -> Iterator[tuple[int, dict[str, object]]]:
        shown = "standard input" if str(self._path) == "-" else str(self._path)
        for number, line in enumerate(self._raw_lines(), 1):
            if line.strip():
                seen(line.strip() + b"\n")
                yield number, _object(line, f"line {number} of {shown}")

    def _raw_lines(self) -> Iterator[bytes]:
        if self._held is not None:
            yield from self._held
            return
        try:
            with self._path.open("rb") as file:
                yield from file
        except OSError as error:
            raise self._unreadable(error) from error

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> UsageError:
        return UsageError(f"--batch {self._path} cannot be read: {_why(error)}")
