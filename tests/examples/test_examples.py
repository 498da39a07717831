"""The examples do what their first lines say, with the fake model and (marked) the real one."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import lmc
from tests.commands import call

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
COMMANDS = [
    (path.stem, line.strip())
    for path in EXAMPLES
    for line in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    if line.strip().startswith("lmc ")
]

by_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples in a working directory that commands may write to."""
    shutil.copytree(FOLDER, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def called(line: str, *more: str) -> str:
    """What a command prints; it must succeed."""
    _, *args = shlex.split(line)
    result = call(*args, *more)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def real() -> Iterator[lmc.Engine]:
    with lmc.Engine() as engine:
        yield engine


# ------------------------------------------------------------------------------ fake model


def test_there_are_examples_with_commands() -> None:
    assert {name for name, _ in COMMANDS} == {path.stem for path in EXAMPLES}
    assert len(EXAMPLES) >= 5


@by_example
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_commands_of_examples(copied: Path, name: str, line: str) -> None:
    assert (copied / "examples" / f"{name}.py").exists()
    more = ["--model", "fake"] if line.startswith("lmc run") else []
    out = called(line, *more)
    assert out or "-o " in line


@by_example
def test_main_of_an_example(
    path: Path, fake: lmc.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not fake.closed
    imported(path).main()
    assert capsys.readouterr().out.strip()


GIVEN = {"few_shot": ["--arg", 'choices=["a", "b", "c", "d"]']}


@by_example
def test_an_example_compiles_as_a_whole(path: Path) -> None:
    programs = [k for k, held in vars(imported(path)).items() if isinstance(held, lmc.Program)]
    assert programs
    for name in programs:
        args = ["compile", f"{path}:{name}", *GIVEN.get(path.stem, []), "--emit", "report"]
        report = json.loads(called(shlex.join(["lmc", *args])))
        assert report["compiled_fully"], report["resumes"]


def test_the_vote_is_for_the_most_frequent() -> None:
    vote = imported(FOLDER / "self_consistency.py").most_frequent
    assert vote(["1", "2", "2", "3", "1", "2"]) == "2"
    assert vote(["4", "8", "15"]) == "4"


def test_rows_of_few_shot_share_their_subject(copied: Path) -> None:
    line = (
        "lmc run examples/few_shot.py --batch examples/data/mmlu.jsonl -o o --stats s --model fake"
    )
    called(line)
    assert len((copied / "o").read_text().splitlines()) == 40
    assert json.loads((copied / "s").read_text())["hit_rate"] > 0.7


# ------------------------------------------------------------------------------ real model


@pytest.mark.model
@by_example
def test_main_with_the_real_model(
    path: Path, real: lmc.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    with lmc.use(real):
        imported(path).main()
    out = capsys.readouterr().out
    says = {
        "quickstart": "The capital of France is Paris.",
        "judge": '"grade": ',
        "few_shot": " of 40 right",
        "agent": "finish: 86",
        "chat": "honey",
        "self_consistency": "vote:",
        "tree_of_thought": "best: ",
        "rag": "Ada Lovelace",
        "json_extract": "20 cards and 20 cities; ",
    }
    assert says[path.stem] in out


@pytest.mark.model
def test_every_record_of_json_extract_is_valid(real: lmc.Engine) -> None:
    module = imported(FOLDER / "json_extract.py")
    lines = (FOLDER / "data" / "cities.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 20
    with lmc.use(real):
        cards, cities = module.card.run_batch(rows), module.city.run_batch(rows)
    for one, other in zip(cards, cities, strict=True):
        assert re.fullmatch(module.COUNTRY, one["country"])
        assert one["size"] in ("small", "large", "huge")
        assert re.fullmatch(module.PEOPLE, one["people"])
        assert other.meta("city").finish_reason == "constraint"
        jsonschema.validate(json.loads(other["city"]), module.City.model_json_schema())


@pytest.mark.model
def test_quickstart_on_the_command_line() -> None:
    out = called(f"lmc run {FOLDER / 'quickstart.py'}")
    assert out == "answer: The capital of France is Paris.\n"
