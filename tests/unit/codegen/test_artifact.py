"""Plans and artifacts: JSON both ways, and clear errors for anything else."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import lmc
from lmc.codegen.artifact import Artifact, read_artifact, write_artifact
from lmc.driver import Compiled
from lmc.errors import PlanError, UsageError
from lmc.frontend.dsl import State
from lmc.plan import PLAN_VERSION, Plan
from tests.programs import BODIES, program_of


@lmc.jit
def sample(s: State, q: str, tags: list[str], n: int = 2) -> object:
    with s.user():
        s += f"{q} {tags[0]}"
    with s.assistant():
        s += lmc.gen("a", max_tokens=6, regex="[a-z]{2,6}")
    if s["a"] == "no":
        return None
    s += lmc.select("c", ["x", "y"])
    return {"tags": tags, "n": n}


ROW: dict[str, Any] = {"q": "why", "tags": ["t", "u"]}


def compiled() -> Compiled:
    return sample.compile(**ROW)


def written(path: Path, **changes: Any) -> Path:
    made = compiled()
    write_artifact(path, Artifact(made.plan, str(made.program), **changes))
    return path


@settings(max_examples=60, deadline=None)
@given(body=BODIES)
def test_plans_survive_json(body: tuple[object, ...]) -> None:
    plan = program_of(body).compile(x="").plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_an_artifact_runs_like_its_source(tmp_path: Path, fake: lmc.Engine) -> None:
    loaded = lmc.load(written(tmp_path / "x.lmc"))
    row = {**ROW, "n": 2}
    mine, theirs = loaded.run(**row), sample.run(**row)
    assert mine.error is None
    assert (mine.variables, mine.text, mine.value) == (
        theirs.variables,
        theirs.text,
        theirs.value,
    )
    other = loaded.run(q="other", tags=["a", "b"], n=2)
    assert other.text == sample.run(q="other", tags=["a", "b"]).text


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"q": "x"}, "argument 'tags' of sample is missing"),
        ({**ROW, "n": 2, "z": 1}, "takes no argument 'z'"),
        ({**ROW, "n": 3}, "compiled for another 'n'"),
        ({"q": "x", "tags": ["only one"], "n": 2}, "compiled for another 'tags'"),
    ],
)
def test_arguments_must_be_those_it_was_compiled_for(
    row: dict[str, Any], match: str, tmp_path: Path, fake: lmc.Engine
) -> None:
    loaded = lmc.load(written(tmp_path / "x.lmc"))
    with pytest.raises(UsageError, match=match):
        loaded.run(**row)


def test_eager_execution_needs_the_source(tmp_path: Path, fake: lmc.Engine) -> None:
    with pytest.raises(UsageError, match="cannot run eagerly"):
        lmc.load(written(tmp_path / "x.lmc")).run(eager=True, **ROW)


def test_another_tokenizer_or_template_is_refused(tmp_path: Path, fake: lmc.Engine) -> None:
    own = {
        "tokenizer": fake.tokenizer_fingerprint,
        "template": fake.template_fingerprint,
    }
    assert lmc.load(written(tmp_path / "a.lmc", **own)).run(n=2, **ROW).error is None
    for what in own:
        path = written(tmp_path / f"{what}.lmc", **{**own, what: "0" * 64})
        with pytest.raises(PlanError, match=rf"another (chat )?{what}"):
            lmc.load(path).run(n=2, **ROW)


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.lmc"
    path.write_text("not a zip")
    with pytest.raises(PlanError, match="not an lmc artifact"):
        read_artifact(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", "x")
    with pytest.raises(PlanError, match="damaged"):
        read_artifact(path)
    whole = written(path).read_bytes()
    assert read_artifact(path).plan == compiled().plan
    for cut in (10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(PlanError, match=r"damaged|not an lmc artifact"):
            read_artifact(path)


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = written(tmp_path / "x.lmc")
    whole = path.read_bytes()
    expected = read_artifact(path).plan
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            found = read_artifact(path).plan
        except PlanError:
            continue
        assert found == expected


def test_a_member_changed_inside_the_archive_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "x.lmc")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["plan.json"] = members["plan.json"].replace(b'"name": "c"', b'"name": "d"')
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(PlanError, match="was changed"):
        read_artifact(path)


@pytest.mark.parametrize(
    "change",
    [
        {"version": PLAN_VERSION + 1},
        {"registers": "many"},
        {"body": None},
        {"body": {"instrs": [{"op": "explode"}]}},
        {"params": [{"path": ["x"]}]},
        {"unknown": 1},
    ],
)
def test_wrong_plans_are_refused(change: dict[str, Any]) -> None:
    data = {**compiled().plan.to_json(), **change}
    with pytest.raises(PlanError):
        Plan.from_json(data)
    for junk in (None, [], "x", {}):
        with pytest.raises(PlanError):
            Plan.from_json(junk)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = written(tmp_path / "x.lmc")
    before = path.read_bytes()

    @lmc.jit
    def p(s: State, thing: object) -> None:
        s += "x"

    made = p.compile(thing=object())
    with pytest.raises(PlanError, match="an object that a file cannot hold"):
        write_artifact(path, Artifact(made.plan, ""))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
