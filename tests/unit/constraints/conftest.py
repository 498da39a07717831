"""Vocabularies for the tests of constraints."""

from __future__ import annotations

import pytest
from small_tokenizers import VOCABULARIES, small_vocabulary

from lmc.constraints import Vocabulary


@pytest.fixture(params=VOCABULARIES)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return small_vocabulary(request.param)


@pytest.fixture
def gpt2() -> Vocabulary:
    return small_vocabulary("gpt2")
