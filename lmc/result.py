"""What a run gave, as callers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmc.errors import LmcError, UsageError
from lmc.typed import plain_value, typed_value

if TYPE_CHECKING:
    from lmc.runtime.results import CallMeta, RowResult

__all__ = ["Result"]


class Result:
    """What a run gave.

    Attributes:
        variables: by name; a list after a join. A gen with a type gives a value of it; where its
            text is not complete, `variables` has the text, and reading it by `[...]` raises.
        text: the whole final prompt, markup of the chat template included.
        value: what the function returned.
        error: None, or the error that ended the run.
    """

    def __init__(self, row: RowResult, index: int = 0) -> None:
        self.index = index
        self._texts = row.variables
        self._untyped: dict[str, LmcError] = {}
        self.variables: dict[str, Any] = {
            name: self._read(name, value, row.meta.get(name))
            for name, value in row.variables.items()
        }
        self.text: str = row.text
        self.value: Any = row.value
        self.error: LmcError | None = row.error
        self._meta = row.meta

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a text, or lists of them
        if self.error is not None:
            raise self.error
        if name not in self.variables:
            known = ", ".join(self.variables) or "none"
            raise UsageError(f"there is no variable {name!r}", hint=f"the variables are: {known}")
        if name in self._untyped:
            raise self._untyped[name]
        return self.variables[name]

    def _read(self, name: str, value: Any, meta: Any) -> Any:  # noqa: ANN401 - a text, or lists
        """A variable as its gen's type has it; the text itself where that is not complete."""
        if isinstance(meta, list) and isinstance(value, list):
            return [self._read(name, *pair) for pair in zip(value, meta, strict=True)]
        kind = getattr(meta, "type", None)
        if kind is None:
            return value
        try:
            return typed_value(kind, value, meta.finish_reason, name)
        except LmcError as error:
            self._untyped.setdefault(name, error)
            return value

    def get(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - as __getitem__
        """A variable, or `default` where the run set none of that name; raises the run's error."""
        return self[name] if self.error is not None or name in self.variables else default

    def __contains__(self, name: object) -> bool:
        return name in self.variables

    def meta(self, name: str) -> CallMeta | list[Any]:
        """What is known of the model call behind a variable; a list of it after a join.

        Raises:
            UsageError: there is no such variable, or no model call stands behind it.
        """
        if name not in self._meta:
            raise UsageError(f"no model call stands behind the variable {name!r}")
        held: CallMeta | list[Any] = self._meta[name]
        return held

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values: variables, text, error, meta.

        All of it depends on the program and its arguments alone. How many tokens of a prompt were
        cached depends on what ran before it: `meta` has it, this has not.
        """
        return {
            "variables": {
                name: _plain(_as_json(value, self._meta.get(name)))
                for name, value in self._texts.items()
            },
            "text": self.text,
            "error": _error_json(self.error),
            "meta": {name: _meta_json(meta) for name, meta in self._meta.items()},
        }

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Result error: {self.error.problem}>"
        return f"<Result {', '.join(self.variables) or 'without variables'}>"


def _as_json(value: Any, meta: Any) -> Any:  # noqa: ANN401 - nested as the variables are
    """A variable that was read as a type, as JSON has it."""
    if isinstance(meta, list) and isinstance(value, list):
        return [_as_json(*pair) for pair in zip(value, meta, strict=True)]
    kind = getattr(meta, "type", None)
    if kind is None or meta.finish_reason == "length":
        return value
    return plain_value(kind, value)


def _plain(value: Any) -> Any:  # noqa: ANN401 - nested as the variables are
    """A value with the errors of failed branches in it as JSON values."""
    if isinstance(value, LmcError):
        return _error_json(value)
    if type(value) is list:
        return [_plain(item) for item in value]
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value


def _error_json(error: LmcError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    cause = error.__cause__
    kind = type(cause if cause is not None and not isinstance(cause, LmcError) else error).__name__
    return {
        "type": kind,
        "message": error.problem,
        "where": str(error.where) if error.where else None,
    }


def _meta_json(meta: Any) -> Any:  # noqa: ANN401 - nested as the variables are
    if isinstance(meta, list):
        return [_meta_json(item) for item in meta]
    if meta is None:
        return None
    held: dict[str, Any] = {
        "finish_reason": meta.finish_reason,
        "prompt_tokens": meta.prompt_tokens,
        "completion_tokens": meta.completion_tokens,
        "forced_tokens": meta.forced_tokens,
    }
    if meta.matched_stop is not None:
        held["matched_stop"] = meta.matched_stop
    if meta.scores is not None:
        held["scores"] = meta.scores
        held["method"] = meta.method
    if meta.scored:
        held["token_ids"] = list(meta.token_ids)
        held["logprobs"] = list(meta.logprobs)
    if meta.top_logprobs:
        held["top_logprobs"] = [list(map(list, top)) for top in meta.top_logprobs]
    if meta.finish_reason == "score":
        held["token_ids"] = list(meta.token_ids)
        held["logprobs"] = list(meta.logprobs)
    return held
