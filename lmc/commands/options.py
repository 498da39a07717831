"""Options that several commands have, spelled once."""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmc.errors import UsageError

if TYPE_CHECKING:
    from lmc.driver import Options

__all__ = [
    "DEFAULT_MODEL",
    "TRACEBACK",
    "Arg",
    "Args",
    "Batch",
    "DType",
    "DTypeOption",
    "Device",
    "DeviceOption",
    "Fuse",
    "KVTokens",
    "Level",
    "Model",
    "Passes",
    "Reorder",
    "Seed",
    "Source",
    "TensorParallel",
    "Traceback",
    "check_apart",
    "check_directory",
    "check_writable",
    "compile_options",
]

TRACEBACK = "lmc.traceback"

Named = tuple[Path | None, str]


def _remember(context: typer.Context, value: bool) -> bool:
    context.meta[TRACEBACK] = value
    return value


Traceback = Annotated[
    bool,
    typer.Option(
        "--traceback",
        help="With an error, show where in the code it came from.",
        callback=_remember,
    ),
]
Source = Annotated[
    str, typer.Argument(metavar="PROGRAM.py[:NAME]", help="The file, and the function in it.")
]
Arg = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        metavar="NAME=VALUE",
        help="An argument of the program; @FILE reads a text from a file. Repeatable.",
    ),
]
Args = Annotated[
    str | None,
    typer.Option("--args", metavar="JSON", help="Arguments as a JSON object; @FILE reads it."),
]
Batch = Annotated[
    Path | None,
    typer.Option(
        "--batch",
        metavar="FILE.jsonl",
        help="Rows of arguments, a JSON object a line; - reads standard input.",
    ),
]
Level = Annotated[
    int,
    typer.Option("-O", min=0, max=3, help="Optimization level; the outputs are the same at each."),
]
Passes = Annotated[
    str | None,
    typer.Option("--passes", metavar="A,B,C", help="Run these passes instead of the level's."),
]
Reorder = Annotated[
    bool,
    typer.Option(
        "--reorder-unordered",
        help="Put what varies between rows last in lmc.unordered(...): this changes prompts.",
    ),
]
Fuse = Annotated[
    str | None,
    typer.Option(
        "--fuse",
        metavar="statements",
        help="Take a straight run of statements for one row: this can change outputs.",
    ),
]
DEFAULT_MODEL = "smollm2-135m"
Model = Annotated[
    str,
    typer.Option("--model", help="A known name, a Hugging Face folder, a .gguf file, or fake."),
]


class Device(enum.StrEnum):
    """Where the model runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class DType(enum.StrEnum):
    """The numbers that the model computes with."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


DeviceOption = Annotated[Device, typer.Option("--device", help="Where the model runs.")]
DTypeOption = Annotated[DType, typer.Option("--dtype", help="Numbers of the model.")]
KVTokens = Annotated[
    int | None,
    typer.Option("--kv-tokens", min=1, max=2**31 - 1, help="Tokens that the KV cache holds."),
]
TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel", min=1, help="Processes that the model is divided among, a GPU each."
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of the random draws.")]


def to_stdout(path: Path | None) -> bool:
    """Whether the file of `-o` is standard output by name."""
    return path is not None and str(path) == "-"


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    Raises:
        UsageError: it is a directory, lies in none, or may not be written.
    """
    if str(path) == "-":
        raise UsageError(f"{option} - names no file", hint="only -o can be standard output")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a directory", hint="name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: there is no directory {path.parent}", hint="make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option}: {path} may not be written")


def check_apart(written: Sequence[Named], read: Sequence[Named]) -> None:
    """Refuse to write a file that is read, or written otherwise, by the same command.

    Args:
        written, read: files, if they were given, each with the option that names it.

    Raises:
        UsageError: two of them are one file; devices and pipes do not count.
    """
    read = [named for named in read if str(named[0]) != "-"]  # standard input
    for place, (path, option) in enumerate(written):
        for other, its_option in (*written[:place], *read):
            if path is not None and other is not None and _same_file(path, other):
                raise UsageError(
                    f"{its_option} and {option} name the same file", hint="write to another one"
                )


def _same_file(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.is_file() and os.path.samefile(one, other)
    return one.resolve() == other.resolve()


def check_directory(path: Path, option: str) -> None:
    """Make a directory to write files into.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be made: {error.strerror}") from error


def compile_options(
    level: int,
    passes: str | None,
    dump: Path | None = None,
    *,
    reorder: bool = False,
    fuse: str | None = None,
) -> Options:
    """How to compile, checked before the program is imported.

    Raises:
        UsageError: there is no such pass or option, or the directory cannot be made.
    """
    from lmc.driver import Options

    if passes is not None:
        from lmc.passes.manager import parse_pipeline

        parse_pipeline(passes)
    if dump is not None:
        check_directory(dump, "--dump-ir")
    return Options(level=level, passes=passes, dump=dump, reorder_unordered=reorder, fuse=fuse)
