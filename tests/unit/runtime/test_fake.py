"""The fake model: a function of the keys, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from lmc.errors import InternalError
from lmc.runtime.fake import FakeRunner
from lmc.runtime.request import IntArray, Outcome, Sampling, Segment, Step
from tests.engine_oracle import EOS, SIZE, TOKEN_BYTES

GREEDY = Sampling()
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def ints(values: list[int]) -> IntArray:
    return np.array(values, np.int32)


def runner(slots: int = 20) -> FakeRunner:
    return FakeRunner(SIZE, slots, 50, TOKEN_BYTES, EOS)


def last(outcome: Outcome) -> tuple[int, float]:
    return outcome.tokens[-1], outcome.logprobs[-1]


def ask(
    slots: list[int], tokens: list[int] = TOKENS, made: bool = False, **options: object
) -> tuple[int, float]:
    options.setdefault("sample", GREEDY)
    segment = Segment(ints(tokens), 0, ints(slots), made, **options)  # type: ignore[arg-type]
    return last(runner().run(Step((segment,))))


def test_neither_slots_nor_chunks_matter() -> None:
    whole = ask(list(range(8)))
    assert ask([7, 3, 19, 0, 5, 6, 1, 2]) == whole
    model, slots = runner(), ints([7, 3, 19, 0, 5, 6, 1, 2])
    model.run(Step((Segment(ints(TOKENS[:3]), 0, slots[:3]),)))
    parts = (
        Segment(ints(TOKENS[3:5]), 3, slots[:5]),
        Segment(ints(TOKENS[5:]), 5, slots, sample=GREEDY),
    )
    assert last(model.run(Step(parts))) == whole


def test_every_key_of_the_context_matters_and_so_does_its_place() -> None:
    seen = {ask(list(range(8)))}
    seen.add(ask(list(range(8)), made=True))
    for at in range(8):
        seen.add(ask(list(range(8)), [*TOKENS[:at], 7, *TOKENS[at + 1 :]]))
    for at in range(6):
        swapped = TOKENS.copy()
        swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
        seen.add(ask(list(range(8)), swapped))
    assert len(seen) == 2 + 8 + 6


def test_a_wrong_slot_in_the_context_is_noticed() -> None:
    model = runner()
    model.run(Step((Segment(ints(TOKENS), 0, ints(list(range(8)))),)))
    right = Segment(ints([1]), 8, ints([0, 1, 2, 3, 4, 5, 6, 7, 8]), sample=GREEDY)
    wrong = Segment(ints([1]), 8, ints([0, 1, 2, 3, 4, 5, 5, 7, 8]), sample=GREEDY)
    assert last(model.run(Step((right,)))) != last(model.run(Step((wrong,))))
    with pytest.raises(InternalError, match="nothing was written"):
        model.run(Step((Segment(ints([1]), 2, ints([0, 15, 16])),)))
    with pytest.raises(InternalError, match="has 3 slots"):
        model.run(Step((Segment(ints([1]), 1, ints([0, 1, 2])),)))


def test_masks_and_bans_hold_and_do_not_change_the_logprob() -> None:
    free, logprob = ask(list(range(8)))
    assert ask(list(range(8)), mask=np.ones(SIZE, np.bool_)) == (free, logprob)
    mask = np.zeros(SIZE, np.bool_)
    mask[[2, 5]] = True
    for temperature in (0.0, 2.0):
        draws = {
            ask(list(range(8)), mask=mask, sample=Sampling(temperature, draw=n))[0]
            for n in range(20)
        }
        assert draws <= {2, 5}
        only = ask(list(range(8)), mask=mask, banned=(2,), sample=Sampling(temperature))
        assert only[0] == 5
    assert ask(list(range(8)), banned=(free,))[0] != free
    target = runner().run(
        Step((Segment(ints(TOKENS), 0, ints(list(range(8))), targets=((),) * 7 + ((free, 5),)),))
    )
    assert target.scores == (((),) * 7 + ((logprob, only[1]),),)
    assert (target.tokens, target.logprobs) == ((-1,), (0.0,))


def test_draws_depend_on_every_field_of_their_key_and_follow_the_distribution() -> None:
    base = {"seed": 1, "row": 2, "draw": 3}

    def draws(**changed: int) -> list[int]:
        sampling = Sampling(1.0, **{**base, **changed})
        return [ask(list(range(8)), sample=sampling, position=p)[0] for p in range(30)]

    assert draws() == draws()
    different = {tuple(draws(**{name: 9})) for name in base} | {tuple(draws())}
    assert len(different) == 4
    model = runner()
    logits = model.logits(12345)
    chances = np.exp(logits) / np.exp(logits).sum()
    counts = np.zeros(SIZE)
    for draw in range(2000):
        segment = Segment(ints([1]), 0, ints([0]), sample=Sampling(1.0, draw=draw))
        model.logits = lambda _: logits  # type: ignore[method-assign]
        counts[model.run(Step((segment,))).tokens[0]] += 1
    assert np.abs(counts / 2000 - chances).max() < 0.04


def test_top_k_and_top_p_keep_the_most_likely() -> None:
    model = runner()
    segment = Segment(
        ints(TOKENS), 0, ints(list(range(8))), targets=((),) * 7 + (tuple(range(SIZE)),)
    )
    logprobs = np.array(model.run(Step((segment,))).scores[0][-1])
    order = np.argsort(-logprobs).tolist()
    for options in ({"top_k": 2}, {"top_p": float(np.exp(logprobs[order[:2]]).sum()) - 1e-6}):
        drawn = {ask(list(range(8)), sample=Sampling(1.0, draw=n, **options))[0] for n in range(60)}
        assert drawn <= set(order[:2])
    drawn = {ask(list(range(8)), sample=Sampling(3.0, draw=n, top_k=2))[0] for n in range(60)}
    assert drawn == set(order[:2])
    assert ask(list(range(8)), sample=Sampling(3.0, top_p=1e-9))[0] == order[0]


def test_texts_are_mostly_readable_and_end() -> None:
    model = FakeRunner(SIZE, 300, 300, TOKEN_BYTES, EOS)
    lengths = []
    for start in range(30):
        keys, length = start % 10, 0
        for position in range(200):
            slots = ints(list(range(position + 1)))
            token = model.run(Step((Segment(ints([keys]), position, slots, sample=GREEDY),)))
            if token.tokens[0] in EOS:
                break
            keys, length = token.tokens[0], length + 1
        lengths.append(length)
    assert 1 < np.mean(lengths) < 100
