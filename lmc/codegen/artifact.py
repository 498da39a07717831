"""Artifacts: compiled programs as files, run without their source.

A zip archive of JSON and text, nothing of which is executed or unpickled when it is read:

    manifest.json   format, version of lmc, fingerprints of the target if it was compiled for one
    plan.json       the plan
    defaults.json   arguments that a run may leave out
    program.lmir    the graph it was made from, for people

The checksum of each member is in the manifest, so that damage is found before anything runs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from lmc import __version__
from lmc.errors import PlanError
from lmc.plan import PLAN_VERSION, Plan
from lmc.plan_check import opaque_values, texts_in

__all__ = ["FORMAT", "Artifact", "read_artifact", "write_artifact"]

FORMAT = "lmc-artifact"
# What zipfile, zlib and json raise on bytes that are not what was written.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, LookupError, ValueError,
    TypeError, EOFError, RuntimeError, OSError, OverflowError,
)  # fmt: skip
_MAX_BYTES = 256 * 2**20  # of a member, unpacked


@dataclass(frozen=True)
class Artifact:
    """A plan, the text of its graph, and the target it was compiled for.

    Attributes:
        tokenizer, template: fingerprints of the target's, or None if it fits any.
        defaults: of arguments by name, each as a (template, texts) pair of `flatten`.
    """

    plan: Plan
    graph: str
    tokenizer: str | None = None
    template: str | None = None
    defaults: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def check_target(self, tokenizer: str, template: str) -> None:
        """Refuse a target that the artifact was not compiled for.

        Raises:
            PlanError: the tokenizer or the chat template is another one.
        """
        for what, mine, theirs in (
            ("tokenizer", self.tokenizer, tokenizer),
            ("chat template", self.template, template),
        ):
            if mine is not None and mine != theirs:
                raise PlanError(
                    f"the artifact was compiled for another {what}: {mine[:12]}, not {theirs[:12]}",
                    hint="run it with the model that it was compiled for, or compile it again",
                )


def write_artifact(path: Path, artifact: Artifact) -> None:
    """Write an artifact, whole or not at all; a symbolic link stays one.

    What is no regular file (a pipe, a device) is written to as it is.

    Raises:
        PlanError: the plan cannot do without its source.
        OSError: the file cannot be written.
    """
    if held := opaque_values(artifact.plan.static):
        raise PlanError(
            f"an argument of the program is an object that a file cannot hold: a "
            f"{held[0].rpartition(' ')[0]}",
            artifact.plan.source,
            hint="pass texts, numbers, lists and dictionaries only",
        )
    members = {
        "plan.json": json.dumps(artifact.plan.to_json(), ensure_ascii=False).encode(),
        "program.lmir": artifact.graph.encode(),
        "defaults.json": json.dumps(artifact.defaults).encode(),
    }
    manifest = {
        "format": FORMAT,
        "plan_version": PLAN_VERSION,
        "lmc": __version__,
        "tokenizer": artifact.tokenizer,
        "template": artifact.template,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))
        for name, data in members.items():
            archive.writestr(name, data)
    _write(Path(os.path.realpath(path)), packed.getvalue())


def _write(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all, with the permissions that it had."""
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            file.write(data)
        return
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def read_artifact(path: Path) -> Artifact:
    """Read what `write_artifact` wrote.

    Raises:
        PlanError: the file is no artifact, is damaged, or is of another version.
        OSError: the file cannot be read.
    """
    again = "compile the program again: lmc compile PROGRAM.py -o FILE.lmc"
    whole = io.BytesIO(path.read_bytes())
    if not zipfile.is_zipfile(whole):
        raise PlanError(f"{path} is not an lmc artifact", hint=again)
    try:
        with zipfile.ZipFile(whole) as archive:
            manifest = json.loads(_member(archive, "manifest.json"))
            if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
                raise PlanError(f"{path} is not an lmc artifact", hint=again)
            if manifest.get("plan_version") != PLAN_VERSION:
                raise PlanError(
                    f"{path} has plan version {manifest.get('plan_version')}, "
                    f"this lmc reads {PLAN_VERSION}",
                    hint=again,
                )
            data = {
                name: _member(archive, name)
                for name in ("plan.json", "program.lmir", "defaults.json")
            }
            for name, held in data.items():
                if hashlib.sha256(held).hexdigest() != manifest["sha256"][name]:
                    raise PlanError(f"{path} is damaged: {name} was changed", hint=again)
            plan = Plan.from_json(json.loads(data["plan.json"]))
            if opaque_values(plan.static):
                raise ValueError("an argument of the plan is an object that a file cannot hold")
            return Artifact(
                plan=plan,
                graph=data["program.lmir"].decode(),
                tokenizer=_fingerprint(manifest, "tokenizer"),
                template=_fingerprint(manifest, "template"),
                defaults=_defaults(json.loads(data["defaults.json"])),
            )
    except PlanError as error:
        if error.hint is None:
            error.hint = again
        raise
    except _DAMAGE as error:
        raise PlanError(f"{path} is damaged: {error}", hint=again) from error


def _fingerprint(manifest: dict[str, object], name: str) -> str | None:
    held = manifest.get(name)
    if held is not None and not isinstance(held, str):
        raise ValueError(f"the fingerprint of its {name} is {held!r}")
    return held


def _defaults(data: object) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Defaults of arguments; TypeError, ValueError or PlanError for anything else."""
    if not isinstance(data, dict):
        raise TypeError("its defaults are no object")
    held = {}
    for name, pair in data.items():
        match pair:
            case [str(template), list(texts)] if all(isinstance(text, str) for text in texts):
                paths = texts_in(template)
                names = [key for key, _ in json.loads(template)["dict"]]
                if names != [name] or len(paths) != len(texts) or opaque_values(template):
                    raise ValueError(f"the default of its argument {name!r} is none")
                held[name] = (template, tuple(texts))
            case _:
                raise ValueError(f"the default of its argument {name!r} is none")
    return held


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > _MAX_BYTES:
        raise ValueError(f"{name} is too large")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is packed in another way than lmc does")
    return archive.read(name)
