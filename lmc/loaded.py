"""Programs loaded from artifacts: plans without a source, which run like what they came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lmc.batch import Job
from lmc.driver import Options
from lmc.errors import UsageError
from lmc.frontend.arguments import Arguments, flatten, unflatten
from lmc.frontend.tools import Tool, tool
from lmc.jobs import PlanJob, memo_of_run
from lmc.runnable import Runnable

if TYPE_CHECKING:
    from lmc.codegen.artifact import Artifact
    from lmc.engine import Engine
    from lmc.runtime.feed import Feed
    from lmc.runtime.host_calls import Memo
    from lmc.runtime.planned_rows import RowSpec
    from lmc.runtime.results import RowResult

__all__ = ["Loaded", "load"]


def load(path: str | Path, tools: Iterable[Callable[..., object]] = ()) -> Loaded:
    """A compiled program from an artifact file, without its source.

    Args:
        path: of the file.
        tools: those that the program calls; a file cannot hold them. They are known by their names.

    Raises:
        UsageError: a tool is no function.
        PlanError: the file is no artifact, is damaged, or is of another version.
        OSError: it cannot be read.
    """
    from lmc.codegen.artifact import read_artifact

    made = [function if isinstance(function, Tool) else tool(function) for function in tools]
    return Loaded(read_artifact(Path(path)), {one.name: one for one in made})


class Loaded(Runnable):
    """A program loaded from an artifact; runs like the one it was made from."""

    def __init__(self, artifact: Artifact, tools: Mapping[str, Tool] | None = None) -> None:
        self.artifact = artifact
        self.tools = dict(tools or {})
        self.name = artifact.plan.name

    def _takes(self, name: str) -> bool:
        return name in dict(json.loads(self.artifact.plan.static)["dict"])

    def _job(
        self, engine: Engine, eager: bool, seed: int, deadline: float | None, options: Options
    ) -> Job:
        if eager:
            raise UsageError(
                "an artifact cannot run eagerly", hint="run the .py file that it was made from"
            )
        if options.reorder_unordered:
            raise UsageError(
                "an artifact's texts stand in the order in which they were compiled",
                hint="give --reorder-unordered to lmc compile",
            )
        if options.fuse is not None:
            raise UsageError(
                "fuse cannot be given to an artifact", hint="give it when the artifact is made"
            )
        if options.defaults:
            raise UsageError(
                f"{options.defaults[0][0]} cannot be given to an artifact",
                hint="give it when the artifact is made",
            )
        self.artifact.check_target(engine.tokenizer_fingerprint, engine.template_fingerprint)
        return _LoadedJob(self.artifact, self.tools, engine, seed, deadline)


@dataclass
class _LoadedJob(PlanJob):
    """Rows of an artifact's plan."""

    artifact: Artifact
    tools: Mapping[str, Tool]
    engine: Engine
    seed: int
    deadline: float | None
    memo: Memo = field(default_factory=memo_of_run)

    def expect(self, rows: Iterable[object]) -> None:
        """The plan is as it is."""

    def start(
        self,
        index: int,
        given: Mapping[str, object],
        done: Callable[[RowResult], None],
        feed: Feed | None = None,
    ) -> Callable[[], None]:
        stream = None
        if feed is not None:
            from lmc.runtime.row_stream import Outline, RowStream

            stream = RowStream(feed, Outline.of(self.artifact.plan))
        return self.engine.executor.submit(self._spec(index, given, done), stream).cancel

    def _spec(
        self, index: int, given: Mapping[str, object], done: Callable[[RowResult], None]
    ) -> RowSpec:
        from lmc.runtime.planned_rows import RowSpec

        return RowSpec(
            self.artifact.plan,
            _texts_for(self.artifact, given),
            self.seed,
            index,
            done,
            deadline=self.deadline,
            tools=self.memo.tools_of_row(self.tools),
        )

    def close(self) -> None:
        pass


def _texts_for(artifact: Artifact, given: Mapping[str, object]) -> list[str]:
    """The texts that a plan takes, out of arguments by name.

    An argument may be left out if it has a default, or if only one value is possible.

    Raises:
        UsageError: an argument is missing, unknown, or not what the plan was compiled for.
    """
    plan = artifact.plan
    wanted: dict[str, object] = dict(json.loads(plan.static)["dict"])
    left_out = {
        name: (json.dumps({"dict": [[name, shape]]}), ())
        for name, shape in wanted.items()
        if '{"$":' not in json.dumps(shape)
    }
    known = {
        name: unflatten(Arguments(template, texts, ()), texts.__getitem__)[name]
        for name, (template, texts) in {**left_out, **artifact.defaults}.items()
    }
    for name in given:
        if name not in wanted:
            raise UsageError(
                f"{plan.name} takes no argument {name!r}",
                plan.source,
                hint=f"its arguments are: {', '.join(wanted) or 'none'}",
            )
    given = {**known, **given}
    for name in wanted:
        if name not in given:
            raise UsageError(f"the argument {name!r} of {plan.name} is missing", plan.source)
    flat = flatten({name: given[name] for name in wanted})
    if flat.template != plan.static:
        for name, mine in json.loads(flat.template)["dict"]:
            if json.dumps(mine) != json.dumps(wanted[name]):
                raise UsageError(
                    f"{plan.name} was compiled for another {name!r}",
                    plan.source,
                    hint="only texts may change between runs of an artifact; compile it again",
                )
    return list(flat.texts)
