"""The kernels run on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
elif not torch.cuda.is_available():
    from triton.runtime import interpreter

    _patch = interpreter._LangPatchScope.set_attr

    def _set_attr(scope: Any, owner: Any, name: str, value: Any) -> None:
        # numpy 2.4 makes no int of an array of one element, which is what bounds of loops are
        if name == "__index__":
            value = lambda tensor: int(tensor.handle.data.item())  # noqa: E731
        _patch(scope, owner, name, value)

    interpreter._LangPatchScope.set_attr = _set_attr


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
