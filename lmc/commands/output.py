"""How results are written: JSON lines for programs, readable text for people."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from lmc.errors import RunError, UsageError

if TYPE_CHECKING:
    from lmc.result import Result

__all__ = [
    "STDOUT", "JsonLines", "encoded", "note", "plain", "say", "show", "shown_value", "writing",
]  # fmt: skip

STDOUT = "standard output"


class JsonLines:
    """JSON objects, one a line, each written at once: what was written stays, come what may.

    An older file stays as it is until `open`, or the first `write`.

    Args:
        path: the file, or None for `stream`.
        stream: standard output, unless it was redirected.
    """

    def __init__(self, path: Path | None, stream: TextIO) -> None:
        self._path = path
        self._stream = stream
        self._file: io.FileIO | None = None

    @property
    def begun(self) -> bool:
        """Whether there is no older file, or no longer."""
        return self._path is None or self._file is not None

    def open(self, kept: int = 0) -> None:
        """Empty the file, except for its first `kept` bytes.

        Raises:
            UsageError: it cannot be written.
        """
        if self.begun:
            return
        assert self._path is not None, "a stream is open"
        try:
            self._file = io.FileIO(self._path, "r+" if kept else "w")
            if kept:
                self._file.truncate(kept)
                self._file.seek(kept)
        except OSError as error:
            raise UsageError(f"-o {self._path} cannot be written: {error.strerror}") from error

    def write(self, value: dict[str, Any]) -> None:
        """Write one object; it is with the operating system when this returns.

        Raises:
            UsageError, RunError: it cannot be written.
        """
        self.open()
        self.write_line(
            encoded(value, "utf-8" if self._file is not None else self._stream.encoding).encode()
        )

    def write_line(self, line: bytes) -> None:
        """Write a line that was encoded before."""
        self.open()
        if self._file is None:
            with writing(STDOUT):
                self._stream.write(line.decode())
                self._stream.flush()
            return
        view = memoryview(line)
        with writing(self._path):
            while view:  # usually one call: an interrupt leaves no half line
                view = view[self._file.write(view) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def encoded(value: dict[str, Any], encoding: str | None = "utf-8") -> str:
    """A JSON object as a line; characters that the encoding lacks are escaped."""
    line = json.dumps(value, ensure_ascii=False, default=repr) + "\n"
    if not _writes(encoding, line):  # with half of a surrogate pair not even UTF-8 does
        line = json.dumps(value, default=repr) + "\n"
    return line


def plain(value: Any) -> Any:  # noqa: ANN401 - any value
    """A value that JSON can write: itself, or how Python shows it where JSON has nothing like it.

    A program may return anything, also what holds itself, or what fails when it is shown.
    """
    try:
        json.dumps(value, default=repr, allow_nan=False)
    except Exception:
        return shown_value(value)
    return value


def shown_value(value: object) -> str:
    """How Python shows a value; only its class where that fails."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _writes(encoding: str | None, text: str) -> bool:
    """Whether an encoding has all of the text's characters."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def show(result: Result, stream: TextIO, shown: Container[str] = ()) -> None:
    """Print the variables for people, and what the program returned.

    On a terminal the names stand out. A program without either has its whole text printed.
    Variables that were `shown` already are left out.
    """
    named = {name: value for name, value in result.variables.items() if name not in shown}
    whole = not result.variables and result.value is None and result.error is None
    if result.value is not None:
        named["returned"] = result.value
    if stream.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream, highlight=False, soft_wrap=True)
        with writing(STDOUT):
            for name, lines in _blocks(named):
                console.print(Text.assemble((name, "bold cyan"), *lines))
            if whole:
                console.print(Text(result.text))
        return
    texts = ["".join((name, *lines)) for name, lines in _blocks(named)]
    if whole:
        texts = [result.text]
    for text in texts:
        say(f"{text}\n", stream)


def _blocks(named: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Each variable as its name and what stands after it."""
    for name, value in named.items():
        try:
            lines = list(_lines(value))
        except Exception:  # it holds itself, or fails when it is shown
            value = shown_value(value)
            lines = [value]
        if len(lines) == 1 and not isinstance(value, (list, tuple, dict)):
            yield name, [f": {lines[0]}"]
        else:
            yield name, [":", *(f"\n  {line}" for line in lines)]


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, (list, tuple)):
        items = [(f"{n}.", item) for n, item in enumerate(value, 1)]
    elif isinstance(value, dict):
        items = [(f"{key}:", item) for key, item in value.items()]
    else:
        yield from str(value).splitlines() or [""]
        return
    for mark, item in items:
        first, *rest = [*_lines(item)] or [""]
        yield f"{mark} {first}"
        yield from (" " * (len(mark) + 1) + line for line in rest)


def say(text: str, stream: TextIO) -> None:
    """Write text; characters that the stream's encoding lacks are escaped."""
    if not _writes(stream.encoding, text):
        encoding = stream.encoding or "ascii"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    with writing(STDOUT):
        stream.write(text)
        stream.flush()


@contextlib.contextmanager
def writing(what: Path | str | None) -> Iterator[None]:
    """Say what it was that could not be written, to a full disk for example.

    That nobody reads our standard output any more is no error.

    Raises:
        RunError: it could not.
    """
    try:
        yield
    except OSError as error:
        if what == STDOUT and isinstance(error, BrokenPipeError):
            raise
        raise RunError(f"cannot write {what}: {error.strerror or error}") from error


def note(text: str) -> None:
    """Say something that is no result."""
    print(text, file=sys.stderr)
