"""The kernels run on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
elif not torch.cuda.is_available():
    import triton.language as tl
    from triton.runtime import interpreter

    _LANGUAGE = (tl, tl.core)

    _patch = interpreter._LangPatchScope.set_attr

    def _set_attr(scope: Any, owner: Any, name: str, value: Any) -> None:
        # numpy 2.4 makes no int of an array of one element, which is what bounds of loops are
        if name == "__index__":
            value = lambda tensor: int(tensor.handle.data.item())  # noqa: E731
        _patch(scope, owner, name, value)

    interpreter._LangPatchScope.set_attr = _set_attr

    _patch_lang = interpreter._patch_lang
    _scopes: list[Any] = []  # of the kernel that runs
    _patched: set[str] = set()  # modules

    def _patch_lang_once(function: Any) -> Any:
        """Once a launch: each call of a function in a kernel would look for all there is again."""
        found = {
            one.__name__
            for one in _LANGUAGE
            if any(one is g for g in function.__globals__.values())
        }
        if _scopes and found <= _patched:
            return interpreter._LangPatchScope()
        scope = _patch_lang(function)
        _patched.update(found)
        if _scopes:  # a function of another module: undone with the rest
            _scopes[0]._changes += scope._changes
            return scope
        _scopes.append(scope)
        undo = scope.restore

        def restore() -> None:
            _scopes.clear()
            _patched.clear()
            undo()

        scope.restore = restore
        return scope

    interpreter._patch_lang = _patch_lang_once


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """In the interpreter, a product of one row is a tenth of its programs, each a tenth as long.

    For tests of what is done with the products. Their numbers, with the blocks that a device gets,
    are looked at in `test_runner_cuda.py` (beside the CPU's) and in `test_kernels_cuda.py`.
    """
    if device == "cpu":
        monkeypatch.setattr("lmc.runtime.cuda.model._blocks_of_one", lambda *_: (32, 128, 4))


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
