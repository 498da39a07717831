"""Where lmc keeps files, and a bounded cache of small ones that can be made again at any time.

Owns        `home()/cache/KIND`: a file for each entry, named by its key.
Promises    an entry is read whole or not at all: files are put in place at once, and one that is
            damaged is dropped and counts as missing; a folder that cannot be read or written is no
            error; what was used longest ago goes when there is too much. `LMC_CACHE=0` turns it
            off: nothing is read and nothing written.
Costs       a read of the file; writing also looks through the folder now and then.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["DiskCache", "caches", "home", "is_on"]

MOST_BYTES = 64 << 20  # of a kind
_LOOK_EVERY = 32  # entries written, after the first


def home() -> Path:
    """The folder of lmc's cache: LMC_HOME, or `lmc` in the platform's folder for caches."""
    chosen = os.environ.get("LMC_HOME")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(base) / "lmc" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lmc"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lmc"


def is_on() -> bool:
    """Whether anything is kept: not with `LMC_CACHE=0`."""
    return os.environ.get("LMC_CACHE", "") not in ("0", "off", "no")


def caches() -> list[DiskCache]:
    """All kinds that there are files of."""
    with contextlib.suppress(OSError):
        folders = sorted((home() / "cache").iterdir())
        return [DiskCache(folder.name) for folder in folders if folder.is_dir()]
    return []


class DiskCache:
    """The entries of one kind, bytes by key; keys are made of what the content depends on."""

    def __init__(self, kind: str, most_bytes: int = MOST_BYTES) -> None:
        self.kind = kind
        self._most = most_bytes
        self._written = 0

    @property
    def folder(self) -> Path:
        """Where they are; `LMC_HOME` may change while the process runs."""
        return home() / "cache" / self.kind

    def get(self, key: str) -> bytes | None:
        """The entry, or None where there is none."""
        if not is_on():
            return None
        path = self.folder / key
        try:
            digest, content = path.read_bytes().split(b"\n", 1)
        except OSError:
            return None
        except ValueError:
            digest, content = b"", b""
        if digest != _digest(content):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it was used
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep an entry, in the place of an older one of that key."""
        if not is_on():
            return
        part = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
                part = file.name
                file.write(_digest(content) + b"\n" + content)
            os.replace(part, self.folder / key)
        except OSError:
            if part is not None:
                with contextlib.suppress(OSError):
                    os.unlink(part)
            return
        if self._written % _LOOK_EVERY == 0:
            self._trim()
        self._written += 1

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [size for _, size, _ in self._entries()]
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Remove all entries; how many there were."""
        removed = 0
        for _, _, path in list(self._entries()):
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
        return removed

    def _trim(self) -> None:
        """Remove what was used longest ago until a quarter of the room is free."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        if total <= self._most:
            return
        for _, size, path in entries:
            if total <= self._most * 3 // 4:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """When each was last used, its bytes, and its file."""
        try:
            paths = list(self.folder.iterdir())
        except OSError:
            return
        for path in paths:
            with contextlib.suppress(OSError):
                found = path.stat()
                yield found.st_mtime_ns, found.st_size, path


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
