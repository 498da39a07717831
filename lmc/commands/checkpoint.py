"""What an unfinished batch has done, so that it can be gone on with.

Beside `OUT.jsonl`, which holds the results in the order of the rows, a batch keeps a record,
`OUT.jsonl.resume`: what the run was given, and the results that wait for those of earlier rows.
The record is removed when all rows are done.

Promises    whenever the process is killed, the two files together hold every row that had ended,
            but perhaps the last; a resumed run gives the bytes of one that was never disturbed.
How         OUT is emptied first, then the record is put there in one piece, then lines are only
            ever appended, each by one write; a last line without its end is cut off.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lmc.commands.output import writing
from lmc.commands.source import package_of
from lmc.errors import UsageError

if TYPE_CHECKING:
    from lmc.api import Loaded, Program

__all__ = ["Done", "Record", "program_digest", "record_path"]

_VERSION = 1
_NEW = "leave out --resume to begin anew"


def record_path(output: Path) -> Path:
    """Where the record of a batch that writes to `output` lies."""
    return output.with_name(output.name + ".resume")


def program_digest(program: Program | Loaded, path: Path) -> str:
    """A digest of a program's file and of the neighbours that it imported.

    Neighbours are what lies in its folder, or in the package that it is a part of.

    Args:
        program: loaded from the file.
        path: the .py file or the artifact.
    """
    digest = hashlib.sha256(f"{program.name}\0".encode())
    folder = path.resolve().parent
    folder = [folder, *folder.parents][max(len(package_of(folder)) - 1, 0)]
    files = {path.resolve()}
    if path.suffix == ".py":
        files |= {file for file in _imported() if file.is_relative_to(folder)}
    for file in sorted(files):
        with contextlib.suppress(OSError):
            digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _imported() -> Iterator[Path]:
    """Files of the modules in use that are no library's."""
    for name, module in list(sys.modules.items()):  # thousands, so what is a library's is dropped
        held = getattr(module, "__file__", None)  # before the system is asked where it really lies
        if isinstance(held, str) and name.partition(".")[0] != "lmc" and not _is_installed(held):
            real = os.path.realpath(held)
            if not _is_installed(real):
                yield Path(real)


def _is_installed(file: str) -> bool:
    return f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file


@dataclass
class Done:
    """The rows that an earlier run has done.

    Attributes:
        rows: of them, those that stand in OUT: the first ones.
        size: of OUT up to the end of the last whole line, in bytes.
        failed: how many of all failed.
        ahead: lines of later rows, by index.
    """

    rows: int = 0
    size: int = 0
    failed: int = 0
    ahead: dict[int, bytes] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many rows are done in all."""
        return self.rows + len(self.ahead)

    def indices(self) -> Container[int]:
        """The indices of all rows that are done; what is added to `ahead` later does not count."""
        return _Indices(self.rows, frozenset(self.ahead))


@dataclass(frozen=True)
class _Indices(Container[int]):
    first: int
    others: frozenset[int]

    def __contains__(self, index: object) -> bool:
        return cast(int, index) < self.first or index in self.others


class Record:
    """The record of a batch.

    Args:
        output: the file of its results.
        given: by name, what decides the results: program, rows, model, seed and so on.
    """

    def __init__(self, output: Path, given: dict[str, Any]) -> None:
        self.output = output
        self.path = record_path(output)
        self._given = given
        self._file: io.FileIO | None = None

    # ------------------------------------------------------------------------- reading

    def done(self, rows: int) -> Done | None:
        """What an earlier run has done; None if there was none.

        Args: rows: of the batch.

        Raises:
            UsageError: it was given something else, or its files are not as it left them.
        """
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return self._unrecorded(rows)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}") from error
        self._compare(lines[0] if lines else b"")
        done = self._written()
        for line in lines[1:]:
            if not line.endswith(b"\n"):
                break
            held = _row(line)
            if held is None:
                raise UsageError(f"{self.path} is damaged", hint=_NEW)
            if held["index"] >= done.rows:
                done.ahead[held["index"]] = line
        done.failed += sum(_failed(_row(line)) for line in done.ahead.values())
        return done

    def _unrecorded(self, rows: int) -> Done | None:
        """Results without a record: whole ones were finished, others nobody can go on with."""
        if not self.output.exists() or not self.output.stat().st_size:
            return None
        with contextlib.suppress(UsageError):
            done = self._written()
            if done.rows == rows and done.size == self.output.stat().st_size:
                return done
        raise UsageError(
            f"there is no {self.path.name} that says how {self.output} was made",
            hint=_NEW,
        )

    def _compare(self, line: bytes) -> None:
        """Refuse a record of a run that was given something else."""
        try:
            header = json.loads(line)
            there, version = dict(header["given"]), header["lmc_resume"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.path} is damaged", hint=_NEW) from error
        if version != _VERSION:
            raise UsageError(f"{self.path} is of another version of lmc", hint=_NEW)
        for name, mine in self._given.items():
            if there.get(name) != mine:
                was = there.get(name)
                told = len(str(was)) < 40 and len(str(mine)) < 40
                raise UsageError(
                    f"{self.output} was begun with another {name}"
                    + (f": {was}, not {mine}" if told else ""),
                    hint=f"give what it was given, or {_NEW}",
                )

    def _written(self) -> Done:
        """The rows in OUT."""
        done = Done()
        if not self.output.exists():
            return done
        with self.output.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                held = _row(line)
                if held is None or held["index"] != done.rows:
                    raise UsageError(
                        f"line {done.rows + 1} of {self.output} is not what the batch wrote there",
                        hint=_NEW,
                    )
                done.rows += 1
                done.size += len(line)
                done.failed += _failed(held)
        return done

    # ------------------------------------------------------------------------- writing

    def begin(self, done: Done) -> None:
        """Write the record anew, in one piece; after OUT was emptied, or cut to `done.size`.

        Raises:
            RunError: it cannot be written.
        """
        header = {"lmc_resume": _VERSION, "given": self._given}
        new = self.path.with_name(self.path.name + ".new")
        try:
            with writing(self.path):
                self._file = io.FileIO(new, "w")
                for line in (json.dumps(header).encode() + b"\n", *done.ahead.values()):
                    _append(self._file, line)
                os.replace(new, self.path)
        finally:
            new.unlink(missing_ok=True)

    def add(self, line: bytes) -> None:
        """Keep the result of a row that waits for earlier ones.

        Raises:
            RunError: it cannot be written.
        """
        assert self._file is not None, "the record was begun"
        with writing(self.path):
            _append(self._file, line)

    def finish(self) -> None:
        """All rows are done: there is nothing to resume any more."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _append(file: io.FileIO, line: bytes) -> None:
    view = memoryview(line)
    while view:  # usually one call
        view = view[file.write(view) :]


def _row(line: bytes) -> dict[str, Any] | None:
    """The object that a line holds, if it is a row's."""
    try:
        held = json.loads(line)
    except ValueError:
        return None
    if not isinstance(held, dict) or type(held.get("index")) is not int:
        return None
    return held


def _failed(held: dict[str, Any] | None) -> bool:
    return held is not None and held.get("error") is not None
