"""The generator against SplitMix64 in plain Python, and what the rest relies on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.draws import permutation, uniforms

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
SEEDS = st.integers(0, 2**32 - 1)
EPOCHS = st.integers(0, 10_000)
INDICES = st.lists(st.integers(0, 2**40), min_size=1, max_size=8)


def mix(z: int) -> int:
    """SplitMix64's output function (Steele, Lea & Flood 2014, figure 17)."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def reference(seed: int, epoch: int, index: int, slot: int) -> int:
    key = mix(seed + GOLDEN & MASK)
    key = mix(key ^ mix(epoch * GOLDEN + GOLDEN & MASK))
    row = mix(key + index * GOLDEN & MASK)
    return mix(row + (slot + 1) * GOLDEN & MASK)


def test_the_output_function_is_splitmix64s() -> None:
    # the first numbers of the published generator, seeded with 1234567
    state, numbers = 1234567, []
    for _ in range(3):
        state = state + GOLDEN & MASK
        numbers.append(mix(state))
    assert numbers == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(SEEDS, EPOCHS, INDICES, st.integers(0, 6))
def test_uniforms_are_the_reference(seed: int, epoch: int, indices: list[int], count: int) -> None:
    found = uniforms(seed, epoch, np.array(indices), count)
    assert found.dtype == np.float32
    assert found.shape == (len(indices), count)
    expected = [
        [(reference(seed, epoch, i, slot) >> 40) / 2**24 for slot in range(1, count + 1)] for i in indices
    ]
    assert found.tolist() == expected


@given(SEEDS, EPOCHS, st.integers(1, 50))
def test_the_order_is_the_reference(seed: int, epoch: int, size: int) -> None:
    keys = [reference(seed, epoch, index, 0) for index in range(size)]
    assert permutation(seed, epoch, size).tolist() == sorted(range(size), key=keys.__getitem__)


def test_known_values() -> None:
    assert (uniforms(0, 0, np.array([0]), 3) * 2**24).tolist() == [[7239838, 443485, 16288696]]
    assert (uniforms(42, 7, np.array([123456]), 3) * 2**24).tolist() == [[13875094, 13921333, 5477003]]
    assert permutation(0, 0, 10).tolist() == [9, 6, 5, 2, 4, 7, 1, 0, 8, 3]
    assert permutation(42, 7, 10).tolist() == [0, 4, 2, 8, 9, 6, 3, 5, 1, 7]


@given(SEEDS, EPOCHS, INDICES, st.integers(1, 6), st.randoms(use_true_random=False))
def test_a_samples_numbers_are_its_own(seed: int, epoch: int, indices: list[int], count: int, rng) -> None:
    whole = uniforms(seed, epoch, np.array(indices), count)
    places = list(range(len(indices)))
    rng.shuffle(places)
    for place in places:
        alone = uniforms(seed, epoch, np.array([indices[place]]), count + 2)
        np.testing.assert_array_equal(alone[0, :count], whole[place])


def test_numbers_are_uniform() -> None:
    found = uniforms(3, 1, np.arange(100_000), 2).astype(np.float64)
    assert found.min() >= 0
    assert found.max() < 1
    for column in found.T:
        counts, _ = np.histogram(column, bins=100, range=(0, 1))
        chi_squared = ((counts - 1000) ** 2 / 1000).sum()
        assert 50 < chi_squared < 160  # 99 degrees of freedom
    assert abs(np.corrcoef(found.T)[0, 1]) < 0.02


@pytest.mark.parametrize("other", [(4, 1), (3, 2), (1, 3)])
def test_seeds_and_epochs_do_not_correlate(other: tuple[int, int]) -> None:
    one = uniforms(3, 1, np.arange(20_000), 1)[:, 0]
    two = uniforms(*other, np.arange(20_000), 1)[:, 0]
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03


def test_the_largest_number_is_below_one() -> None:
    assert np.float32(2**24 - 1) * np.float32(2.0**-24) < 1


@given(SEEDS, EPOCHS, st.integers(0, 200))
def test_a_permutation_holds_each_once(seed: int, epoch: int, size: int) -> None:
    order = permutation(seed, epoch, size)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(size))


def test_orders_differ_by_epoch_and_seed() -> None:
    orders = {tuple(permutation(seed, epoch, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_every_place_of_an_order_is_as_likely() -> None:
    first = np.bincount([permutation(1, epoch, 10)[0] for epoch in range(5000)], minlength=10)
    assert ((first - 500) ** 2 / 500).sum() < 30  # chi squared, 9 degrees of freedom
