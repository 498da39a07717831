"""Artifacts: compiled programs as files, run without their source.

A zip archive of JSON and text, nothing of which is executed or unpickled when it is read:

    manifest.json   format, version of lmc, fingerprints of the target if it was compiled for one
    plan.json       the plan
    program.lmir    the graph it was made from, for people

The checksum of each member is in the manifest, so that damage is found before anything runs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from lmc import __version__
from lmc.errors import PlanError
from lmc.plan import PLAN_VERSION, Plan

__all__ = ["FORMAT", "Artifact", "read_artifact", "write_artifact"]

FORMAT = "lmc-artifact"
# What zipfile and json raise on bytes that are not what was written.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError, RuntimeError,
    OSError,
)  # fmt: skip
_MAX_BYTES = 256 * 2**20  # of a member, unpacked


@dataclass(frozen=True)
class Artifact:
    """A plan, the text of its graph, and the target it was compiled for.

    Attributes:
        tokenizer, template: fingerprints of the target's, or None if it fits any.
    """

    plan: Plan
    graph: str
    tokenizer: str | None = None
    template: str | None = None

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
    """Write an artifact, whole or not at all.

    Raises:
        PlanError: the plan cannot do without its source.
        OSError: the file cannot be written.
    """
    if '"opaque"' in artifact.plan.static:
        raise PlanError(
            "an argument of the program is an object that a file cannot hold",
            artifact.plan.source,
            hint="pass texts, numbers, lists and dictionaries only",
        )
    members = {
        "plan.json": json.dumps(artifact.plan.to_json(), ensure_ascii=False).encode(),
        "program.lmir": artifact.graph.encode(),
    }
    manifest = {
        "format": FORMAT,
        "plan_version": PLAN_VERSION,
        "lmc": __version__,
        "tokenizer": artifact.tokenizer,
        "template": artifact.template,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }
    descriptor, temporary = tempfile.mkstemp(dir=path.parent or Path(), prefix=f".{path.name}.")
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            archive.writestr("manifest.json", json.dumps(manifest, indent=1))
            for name, data in members.items():
                archive.writestr(name, data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


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
            data = {name: _member(archive, name) for name in ("plan.json", "program.lmir")}
            for name, held in data.items():
                if hashlib.sha256(held).hexdigest() != manifest["sha256"][name]:
                    raise PlanError(f"{path} is damaged: {name} was changed", hint=again)
            return Artifact(
                plan=Plan.from_json(json.loads(data["plan.json"])),
                graph=data["program.lmir"].decode(),
                tokenizer=manifest.get("tokenizer"),
                template=manifest.get("template"),
            )
    except _DAMAGE as error:
        raise PlanError(f"{path} is damaged: {error}", hint=again) from error


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > _MAX_BYTES:
        raise ValueError(f"{name} is too large")
    return archive.read(name)
