"""Each index once an epoch, the same order for any number of processes, resumed anywhere."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosformer.tasks import ResumableBatches
from cosformer.tasks.keyed_random import Permutation, is_below, words


@settings(deadline=None)
@given(length=st.integers(0, 3000), key=st.integers())
def test_a_permutation_holds_each_number_once(length: int, key: int) -> None:
    order = Permutation(length, key)
    whole = order.slice(0, length)
    assert sorted(whole.tolist()) == list(range(length))
    a, b = length // 3, length // 2
    assert order.slice(a, b).tolist() == whole[a:b].tolist()


@pytest.mark.parametrize("length", [3, 4])
def test_permutations_are_about_equally_likely(length: int) -> None:
    seen = Counter(tuple(Permutation(length, key).slice(0, length).tolist()) for key in range(6_000))
    kinds = {3: 6, 4: 24}[length]
    assert len(seen) == kinds
    assert all(0.5 < count / 6_000 * kinds < 1.6 for count in seen.values())


def test_a_large_permutation_is_not_stored_and_does_not_change() -> None:
    order = Permutation(10**12, 7)
    part = order.slice(10**11, 10**11 + 1000)
    assert len(set(part.tolist())) == 1000
    assert 0.4e12 < part.mean() < 0.6e12
    assert Permutation(10, 0, 0).slice(0, 10).tolist() == PINNED  # runs that were begun must go on with it


PINNED = [1, 9, 4, 2, 8, 3, 7, 0, 5, 6]


def test_neighbours_are_scattered() -> None:
    order = Permutation(100_000, 1).slice(0, 100_000)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.02
    assert abs(is_below(words(np.uint64(3), 100_000), 0.5).mean() - 0.5) < 0.01


@settings(deadline=None)
@given(share=st.floats(0, 1), near=st.integers(-3_000, 3_000))
def test_below_is_below(share: float, near: int) -> None:
    word = min(max(int(share * 2**64) + near, 0), 2**64 - 1)
    found = is_below(np.asarray([word], np.uint64), share)
    assert found.tolist() == [(word >> 11) * 2.0**-53 < share]


def epoch_of(sampler: ResumableBatches) -> list[list[int]]:
    return list(sampler)


@settings(deadline=None)
@given(
    length=st.integers(1, 200), batch=st.integers(1, 8), world=st.integers(1, 4), seed=st.integers(0, 9),
    shuffle=st.booleans(), drop=st.booleans(), stop=st.integers(0, 300),
)  # fmt: skip
def test_epochs_are_covered_once_and_resume_anywhere(length, batch, world, seed, shuffle, drop, stop) -> None:
    size = batch * world
    if drop and length < size:
        return
    options = {"seed": seed, "shuffle": shuffle, "drop_last": drop}

    def sampler(rank: int = 0, of: int = 1) -> ResumableBatches:
        return ResumableBatches(length, size, rank=rank, world_size=of, **options)

    one = sampler()
    epochs = [epoch_of(one) for _ in range(2)]
    assert one.epoch == 2
    used = length // size * size if drop else length
    for epoch in epochs:
        seen = [index for indices in epoch for index in indices]
        assert len(set(seen)) == len(seen) == used
        assert len(epoch) == len(one)
    assert not shuffle or length < 20 or epochs[0] != epochs[1]
    # over processes: their shares, put together, are the batches of one
    ranks = [sampler(rank, world) for rank in range(world)]
    shares = [[index for indices in epoch_of(rank) for index in indices] for rank in ranks]
    assert sorted(i for share in shares for i in share) == sorted(i for indices in epochs[0] for i in indices)
    if drop:
        for b, whole in enumerate(epochs[0]):
            assert [i for share in shares for i in share[b * batch : (b + 1) * batch]] == whole
    # stopped after any batch and resumed by another object
    steps = stop % (2 * len(one))
    stream = sampler()
    flat = [*epochs[0], *epochs[1]]
    given_out = []
    while len(given_out) < steps:
        given_out += list(islice(stream, steps - len(given_out)))
    assert given_out == flat[:steps]
    for state in (stream.state_dict(), stream.state_after(steps)):
        again = sampler()
        again.load_state_dict(state)
        rest = epoch_of(again) + (epoch_of(again) if steps < len(one) else [])
        assert rest == flat[steps:]


def test_another_number_of_processes_goes_on_in_the_same_order() -> None:
    before = ResumableBatches(100, 12, world_size=1)
    whole = list(before)
    pair = [ResumableBatches(100, 12, rank=r, world_size=2) for r in range(2)]
    for rank in pair:
        rank.load_state_dict(ResumableBatches(100, 12).state_after(3))
    assert [a + b for a, b in zip(*map(list, pair), strict=True)] == whole[3:]


def test_set_epoch_starts_another_but_not_the_same() -> None:
    sampler = ResumableBatches(20, 4)
    next(iter(sampler))
    sampler.set_epoch(0)
    assert sampler.batch == 1
    sampler.set_epoch(3)
    assert (sampler.epoch, sampler.batch) == (3, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 3, "world_size": 2}, "a batch of 3 over 2 processes.*multiple of 2 .*train.batch"),
        ({"batch_size": 2, "rank": 1}, "rank=1 of 1"),
        ({"batch_size": 11}, "10 examples make no batch of 11: use a smaller batch .*train.batch, batch_size"),
    ],
)
def test_what_is_refused(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ResumableBatches(10, **options)


def test_a_state_of_another_order_is_refused() -> None:
    state = ResumableBatches(10, 2, seed=1).state_dict()
    with pytest.raises(ValueError, match="the saved order has seed=1, this run seed=0"):
        ResumableBatches(10, 2).load_state_dict(state)
