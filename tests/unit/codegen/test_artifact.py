"""Plans and artifacts: JSON both ways, and clear errors for anything else."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
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


@settings(max_examples=25, deadline=None)
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


@pytest.mark.parametrize("value", [True, "a text", ["a text"], {"opaque": 1}, ({"opaque": None},)])
def test_an_argument_may_be_called_opaque(tmp_path: Path, fake: lmc.Engine, value: Any) -> None:
    @lmc.jit
    def p(s: State, opaque: object) -> object:
        s += "x"
        return opaque

    made = p.compile(opaque=value)
    write_artifact(tmp_path / "x.lmc", Artifact(made.plan, ""))
    assert lmc.load(tmp_path / "x.lmc").run(opaque=value).value == value


@pytest.mark.parametrize("value", [{1, 2}, [{"a": {1, 2}}], ({"opaque": {1, 2}},)])
def test_an_opaque_argument_is_refused_wherever_it_is(tmp_path: Path, value: Any) -> None:
    @lmc.jit
    def p(s: State, thing: object) -> None:
        s += "x"

    with pytest.raises(PlanError, match="an object that a file cannot hold: a set"):
        write_artifact(tmp_path / "x.lmc", Artifact(p.compile(thing=value).plan, ""))


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "x.lmc"
    link = tmp_path / "link.lmc"
    link.symlink_to(Path("real") / "x.lmc")
    for _ in range(2):  # a link to nothing, and to a file
        written(link)
        assert link.is_symlink()
        assert not target.is_symlink()
        assert read_artifact(target).plan == compiled().plan
    assert list(target.parent.iterdir()) == [target]


def test_what_is_no_regular_file_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "x.lmc"
    os.mkfifo(pipe)
    (tmp_path / "link.lmc").symlink_to(pipe)
    for path in (pipe, tmp_path / "link.lmc"):
        got: list[bytes] = []
        reader = threading.Thread(target=lambda got=got: got.append(pipe.read_bytes()))
        reader.start()
        written(path)
        reader.join(20)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        (tmp_path / "copy.lmc").write_bytes(got[0])
        assert read_artifact(tmp_path / "copy.lmc").plan == compiled().plan


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = written(tmp_path / "x.lmc")
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    path.chmod(0o640)
    written(path)
    assert path.stat().st_mode & 0o777 == 0o640


def umask() -> int:
    held = os.umask(0)
    os.umask(held)
    return held


def repacked(
    path: Path,
    plan: Any = None,
    defaults: Any = None,
    method: int = zipfile.ZIP_DEFLATED,
    **changes: Any,
) -> Path:
    """The artifact again, with other members and right checksums."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    if plan is not None:
        members["plan.json"] = json.dumps(plan).encode()
    if defaults is not None:
        members["defaults.json"] = json.dumps(defaults).encode()
    manifest["sha256"] = {n: hashlib.sha256(data).hexdigest() for n, data in members.items()}
    manifest.update(changes)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def opaque_plan() -> dict[str, Any]:
    @lmc.jit
    def p(s: State, thing: object) -> None:
        s += "x"

    return p.compile(thing=object()).plan.to_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer": 3},
        {"template": ["x"]},
        {"sha256": None},
        {"sha256": {}},
        {"plan": []},
        {"plan": {**compiled().plan.to_json(), "registers": -1}},
        {"plan": {**compiled().plan.to_json(), "static": "{}"}},
        {"plan": opaque_plan()},
        {"method": zipfile.ZIP_BZIP2},
        {"defaults": []},
        {"defaults": {"n": 2}},
        {"defaults": {"n": ["{}", []]}},
        {"defaults": {"n": ['{"dict": [["m", 2]]}', []]}},
        {"defaults": {"n": ['{"dict": [["n", {"$": 0}]]}', []]}},
        {"defaults": {"n": ['{"dict": [["n", {"$": 0}]]}', [3]]}},
        {"defaults": {"n": ['{"dict": [["n", {"opaque": "set 0"}]]}', []]}},
    ],
)
def test_right_checksums_do_not_make_it_right(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = repacked(written(tmp_path / "x.lmc"))
    assert read_artifact(path).plan == compiled().plan
    with pytest.raises(PlanError, match=r"damaged|not a plan") as caught:
        read_artifact(repacked(path, **changes))
    assert caught.value.hint is not None
    assert "lmc compile" in caught.value.hint


def test_the_json_of_a_result_does_not_depend_on_what_ran_before(fake: lmc.Engine) -> None:
    first = sample.run(**ROW)
    again = sample.run(**ROW)
    assert first.to_json() == again.to_json() == sample.run(eager=True, **ROW).to_json()
    cached = [out.meta("a").cached_tokens for out in (first, again)]  # type: ignore[union-attr]
    assert cached[0] < cached[1], "known all the same"


def test_arguments_with_defaults_may_be_left_out(tmp_path: Path, fake: lmc.Engine) -> None:
    @lmc.jit
    def p(s: State, q: str = "why", tags: list[str] = ["t"], n: int = 2, k: int = 1) -> object:  # noqa: B006
        s += q * 1 if n > 5 else q + tags[0] + str(n)
        return [n, k]

    made = p.compile(k=7)
    write_artifact(
        tmp_path / "p.lmc", Artifact(made.plan, str(made.program), defaults=p.defaults())
    )
    loaded = lmc.load(tmp_path / "p.lmc")
    assert loaded.run(k=7).text == "whyt2"
    assert loaded.run(k=7, q="so ").text == "so t2"
    with pytest.raises(UsageError, match="compiled for another 'k'"):
        loaded.run()  # the default of k is another value
    made = p.compile()
    write_artifact(tmp_path / "q.lmc", Artifact(made.plan, str(made.program)))
    with pytest.raises(UsageError, match="argument 'q' of p is missing"):
        lmc.load(tmp_path / "q.lmc").run()
    assert lmc.load(tmp_path / "q.lmc").run(q="a", tags=["b"]).value == [2, 1]
