"""What is kept on disk: whole or not at all, bounded, and never what is not wanted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.constraints import known
from lmc.constraints.known import automaton_for
from lmc.disk_cache import DiskCache, caches
from lmc.params import Constraint

REGEX = Constraint("regex", "[a-z]{2,5}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LMC_HOME", str(tmp_path))
    monkeypatch.setenv("LMC_CACHE", "1")
    automaton_for.cache_clear()
    yield tmp_path / "cache" / "automata"
    automaton_for.cache_clear()


def again(constraint: Constraint) -> Any:
    """The automaton as a new process has it."""
    automaton_for.cache_clear()
    return automaton_for(constraint)


def test_an_automaton_is_made_once_and_then_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [
        REGEX,
        Constraint("stop_regex", "[aeiou]{2}"),
        Constraint("ebnf", 'start: "a" | "(" start ")"'),
        Constraint("json_schema", '{"type": "object"}', whitespace="flexible"),
        Constraint("json_schema", '{"type": "integer", "format": "odd"}', waive=("format",)),
    ]
    made = [automaton_for(constraint) for constraint in kinds]
    assert len(list(folder.iterdir())) == len(kinds)
    monkeypatch.setattr("lmc.constraints.automaton_of", None)
    for constraint, automaton in zip(kinds, made, strict=True):
        found = again(constraint)
        assert found == automaton
        assert type(found) is type(automaton)


def test_what_it_depends_on_is_in_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = '{"type": "array", "items": {"type": "null"}}'
    for constraint in (
        REGEX,
        Constraint("stop_regex", REGEX.source),
        Constraint("json_schema", schema, whitespace="compact"),
        Constraint("json_schema", schema, whitespace="pretty"),
    ):
        again(constraint)
    assert len(list(folder.iterdir())) == 4
    monkeypatch.setattr(known, "_package", lambda: "another version")
    again(REGEX)
    assert len(list(folder.iterdir())) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: b"",
        lambda raw: raw.replace(b"regular", b"Regular"),
        lambda raw: b"x" * len(raw),
    ],
)
def test_a_damaged_entry_is_made_again(folder: Path, damage: Any) -> None:
    made = automaton_for(REGEX)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert again(REGEX) == made
    assert path.read_bytes() == whole


def test_it_can_be_turned_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    automaton_for(REGEX)
    (path,) = folder.iterdir()
    path.write_bytes(b"not read")
    monkeypatch.setenv("LMC_CACHE", "0")
    again(REGEX)
    again(Constraint("regex", "b"))
    assert path.read_bytes() == b"not read"
    assert len(list(folder.iterdir())) == 1


def test_wrong_constraints_are_not_kept(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(lmc.errors.ConstraintError):
            again(Constraint("regex", "(a"))
    assert not folder.exists()


@pytest.mark.parametrize("step", ["tempfile.NamedTemporaryFile", "os.replace"])
def test_a_folder_that_cannot_be_written_is_no_error(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:  # root may write anywhere, so say no instead
        raise PermissionError(13, "Permission denied")

    folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(f"lmc.disk_cache.{step}", refuse)
        assert again(REGEX).matches("abc")
    assert list(folder.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_no_error(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    assert again(REGEX).matches("abc")
    assert caches() == []


def test_what_was_used_longest_ago_goes_first(folder: Path) -> None:
    cache = DiskCache("small", most_bytes=1000)
    for n in range(32):
        cache.put(f"{n}", b"x" * 35)  # 100 bytes with its digest
        os.utime(cache.folder / f"{n}", ns=(n, n))
    assert cache.get("3") is not None
    os.utime(cache.folder / "3", ns=(99, 99))
    cache.put("last", b"x" * 35)
    left = {path.name for path in cache.folder.iterdir()}
    assert left == {"last", "3", *(str(n) for n in range(27, 32))}
    assert cache.clear() == 7
    assert cache.size() == (0, 0)
