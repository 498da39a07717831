"""Draws on the device are those of `lmc.runtime.sampler.draw`, also along tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lmc.constraints.token_classes import ENDED, LOST, NEVER, TokenClasses, TokenState
from lmc.runtime.adjustment import Adjustment
from lmc.runtime.cuda.sampler import DeviceSampler
from lmc.runtime.cuda.staging import Staging
from lmc.runtime.request import Sampling
from lmc.runtime.sampler import Wish, draw

VOCABULARY = 5000


def drawn(device: str, logits: np.ndarray, wishes: list[Wish | None]) -> tuple[Any, Any, Any]:
    sampler = DeviceSampler(VOCABULARY, 64, 8, torch.device(device))
    staging = Staging(1 << 16, torch.device(device))
    positions = np.array([0 if w is None else w.position for w in wishes])
    states, wishes = sampler.states(wishes, staging)
    rows = sampler.prepare(wishes, positions, states, staging)
    got = sampler.draw(torch.from_numpy(logits).to(device), rows)
    return tuple(x.cpu().numpy() for x in (got.tokens, got.logprobs, got.normalizers))


def wishes_of_all_kinds(rng: np.random.Generator) -> list[Wish | None]:
    mask = rng.random(VOCABULARY) < 0.3
    thin = np.zeros(VOCABULARY, np.bool_)
    thin[[7, 4999]] = True
    ids = rng.permutation(VOCABULARY)[:50]
    adjustment = Adjustment(ids, 1.3, rng.random(50) < 0.5, rng.normal(0, 3, 50).astype(np.float32))
    samplings = [
        Sampling(), Sampling(temperature=1.0, seed=3), Sampling(temperature=0.6, seed=-5, draw=2),
        Sampling(temperature=1.2, top_k=5), Sampling(temperature=0.8, top_p=0.7, row=9),
        Sampling(temperature=1.5, min_p=0.2), Sampling(temperature=1, top_k=40, top_p=0.9),
    ]  # fmt: skip
    wishes: list[Wish | None] = [None]
    options: list[dict[str, Any]] = [
        {}, {"mask": mask}, {"mask": thin, "banned": (7,)}, {"banned": (1, 2)},
        {"adjustment": adjustment}, {"adjustment": adjustment, "mask": mask},
    ]  # fmt: skip
    for position, sampling in enumerate(samplings):
        wishes += [Wish(sampling, position, **some) for some in options]
    return wishes


def test_draws_are_those_of_the_definition(device: str) -> None:
    rng = np.random.default_rng(0)
    wishes = wishes_of_all_kinds(rng)
    logits = rng.normal(0, 3, (len(wishes), VOCABULARY)).astype(np.float32)
    logits[:, 100:200] = logits[:, 200:300]  # ties
    tokens, logprobs, normalizers = drawn(device, logits, wishes)
    for i, wish in enumerate(wishes):
        expected = -1 if wish is None else draw(logits[i], wish)
        assert tokens[i] == expected, wish
        whole = np.logaddexp.reduce(logits[i].astype(np.float64))
        assert abs(normalizers[i] - whole) < 1e-4
        if wish is not None:
            assert abs(logprobs[i] - (logits[i, expected] - whole)) < 1e-4


def test_a_mask_that_allows_nothing_gives_no_token(device: str) -> None:
    nothing = Wish(Sampling(), mask=np.zeros(VOCABULARY, np.bool_))
    tokens, _, _ = drawn(device, np.zeros((1, VOCABULARY), np.float32), [nothing])
    assert tokens.tolist() == [-1]


@pytest.mark.filterwarnings("ignore:invalid value")  # by the interpreter
def test_what_is_not_finite_shows_in_the_normalizer(device: str) -> None:
    logits = np.zeros((3, VOCABULARY), np.float32)
    logits[0, 4] = np.nan
    logits[1, 4999] = np.inf
    logits[2, 4] = -np.inf
    _, _, normalizers = drawn(device, logits, [Wish(Sampling())] * 3)
    assert np.isfinite(normalizers).tolist() == [False, False, True]


def test_more_masks_than_the_arena_holds(device: str) -> None:
    sampler = DeviceSampler(VOCABULARY, 64, 8, torch.device(device))
    staging = Staging(1 << 16, torch.device(device))
    logits = torch.zeros(3, VOCABULARY, device=device)
    masks = np.eye(VOCABULARY, dtype=np.bool_)[:30]
    for at in range(0, 30, 3):
        wishes: list[Wish | None] = [Wish(Sampling(), mask=masks[at + i]) for i in range(3)]
        rows = sampler.prepare(wishes, np.zeros(3, np.int64), None, staging)
        assert sampler.draw(logits, rows).tokens.tolist() == [at, at + 1, at + 2]
        staging.reset()


def random_table(rng: np.random.Generator, states: int = 40, classes: int = 30) -> TokenClasses:
    after = rng.integers(0, states, (states, classes))
    kinds = rng.choice([NEVER, LOST, ENDED], (states, classes))
    table = np.where(rng.random((states, classes)) < 0.5, kinds, after).astype(np.int32)
    table[:, 1] = after[:, 1]  # something may come everywhere
    class_of = rng.integers(0, classes, VOCABULARY).astype(np.int16)
    tokens = rng.integers(0, VOCABULARY, states)
    allowed = table[np.arange(states), class_of[tokens]] != NEVER
    forced = np.where(allowed & (rng.random(states) < 0.4), tokens, -1).astype(np.int32)
    return TokenClasses(class_of, table, forced, np.zeros(states, np.int32), {})


@pytest.mark.parametrize("room", [200, 50])  # states that the arena holds; tables have 40
def test_rows_move_along_their_tables(device: str, room: int) -> None:
    rng = np.random.default_rng(1)
    tables = [random_table(rng) for _ in range(3)]
    samplings = [
        Sampling(), Sampling(temperature=1.0, seed=3), Sampling(temperature=0.8, top_p=0.7),
        Sampling(temperature=1.2, top_k=5, draw=2), Sampling(temperature=1.5, min_p=0.2),
    ]  # fmt: skip
    sampler = DeviceSampler(VOCABULARY, 64, 16, torch.device(device), table_states=room, tables=3)
    staging = Staging(1 << 20, torch.device(device))
    for begin in (0, 7):
        where: list[TokenState | None] = [
            None if n % 4 == 3 else TokenState(tables[n % 3], begin + n) for n in range(20)
        ]
        wishes: list[Wish | None] = [
            Wish(samplings[n % 5], state=state) for n, state in enumerate(where)
        ]
        states, prepared = sampler.states(wishes, staging)
        known = states.tolist()
        given = None
        for later in range(4):
            logits = rng.normal(0, 3, (20, VOCABULARY)).astype(np.float32)
            positions = np.full(20, later)
            if given is None:
                rows = sampler.prepare(prepared, positions, states, staging)
            else:
                rows = sampler.prepare(wishes, positions, None, staging)
            got = sampler.draw(torch.from_numpy(logits).to(device), rows, given)
            given = got.states
            for n, token in enumerate(got.tokens.tolist()):
                wish = wishes[n]
                assert wish is not None
                state = where[n]
                if state is None and known[n] != -1:
                    assert token == -1
                    continue
                mask = None if state is None else state.classes.mask(state.number)
                expected = draw(logits[n], Wish(wish.sampling, later, mask))
                forced = -1 if state is None else int(state.classes.forced[state.number])
                if later and forced >= 0:
                    expected = forced
                assert token == expected, (n, later)
                if state is not None:
                    after = state.classes.step(state.number, token)
                    gone = after < 0 or known[n] == -3  # a table without room: a mask, once
                    where[n] = None if gone else TokenState(state.classes, after)
        assert (-3 in known) == (room == 50)
        staging.reset()
