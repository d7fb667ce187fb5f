"""The random numbers against SplitMix64 in plain Python, and their distributions."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.transforms.specs.rng import (
    Purpose,
    fractions,
    keys,
    normals,
    permutation,
    step_fractions,
    uniforms,
)

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


def reference(seed: int, epoch: int, index: int, slot: int, repeat: int = 0) -> int:
    key = mix(seed + GOLDEN & MASK)
    key = mix(key ^ mix(epoch * GOLDEN + GOLDEN & MASK))
    row = mix(key + index * GOLDEN & MASK) ^ mix(repeat * GOLDEN & MASK)
    return mix(row + (slot + 1) * GOLDEN & MASK)


def test_output_function_is_splitmix64() -> None:
    # the first numbers of the published generator, seeded with 1234567
    state, numbers = 1234567, []
    for _ in range(3):
        state = state + GOLDEN & MASK
        numbers.append(mix(state))
    assert numbers == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(SEEDS, EPOCHS, INDICES, st.integers(0, 6))
def test_uniforms_match_reference(seed: int, epoch: int, indices: list[int], count: int) -> None:
    found = uniforms(seed, epoch, np.array(indices), count)
    assert found.dtype == np.float32
    assert found.shape == (len(indices), count)
    expected = [
        [(reference(seed, epoch, i, slot) >> 40) / 2**24 for slot in range(1, count + 1)] for i in indices
    ]
    assert found.tolist() == expected


@given(SEEDS, EPOCHS, st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 50)), min_size=1, max_size=8))
def test_repeats_have_different_numbers(seed: int, epoch: int, samples: list[tuple[int, int]]) -> None:
    indices, repeats = np.array(samples).T
    found = uniforms(seed, epoch, indices, 3, repeats)
    expected = [
        [(reference(seed, epoch, i, slot, r) >> 40) / 2**24 for slot in (1, 2, 3)] for i, r in samples
    ]
    assert found.tolist() == expected
    first = uniforms(seed, epoch, indices, 3)
    np.testing.assert_array_equal(uniforms(seed, epoch, indices, 3, np.zeros_like(indices)), first)
    np.testing.assert_array_equal(found[repeats == 0], first[repeats == 0])


def test_repeats_do_not_correlate() -> None:
    indices = np.arange(20_000)
    columns = [uniforms(3, 1, indices, 2, np.full_like(indices, repeat)) for repeat in range(4)]
    correlation = np.corrcoef(np.concatenate(columns, axis=1).T)
    assert np.abs(correlation - np.eye(8)).max() < 0.03


@given(SEEDS, EPOCHS, st.sampled_from(Purpose))
def test_purposes_use_slots_above_transforms(seed: int, epoch: int, purpose: Purpose) -> None:
    assert purpose >= 2**32
    expected = [reference(seed, epoch, index, purpose) for index in range(5)]
    assert keys(seed, epoch, 5, purpose).tolist() == expected
    found = fractions(seed, epoch, 5, purpose)
    assert found.dtype == np.float64
    assert found.tolist() == [(each >> 11) / 2**53 for each in expected]


@given(SEEDS, EPOCHS, st.integers(1, 50))
def test_permutation_matches_reference(seed: int, epoch: int, size: int) -> None:
    drawn = [reference(seed, epoch, index, 0) for index in range(size)]
    assert permutation(seed, epoch, size).tolist() == sorted(range(size), key=drawn.__getitem__)


def test_random_numbers_have_known_values() -> None:
    assert (uniforms(0, 0, np.array([0]), 3) * 2**24).tolist() == [[7239838, 443485, 16288696]]
    assert (uniforms(42, 7, np.array([123456]), 3) * 2**24).tolist() == [[13875094, 13921333, 5477003]]
    assert permutation(0, 0, 10).tolist() == [9, 6, 5, 2, 4, 7, 1, 0, 8, 3]
    assert permutation(42, 7, 10).tolist() == [0, 4, 2, 8, 9, 6, 3, 5, 1, 7]


@given(SEEDS, EPOCHS, st.integers(0, 2**40), st.integers(1, 6))
def test_step_fractions_match_reference(seed: int, epoch: int, step: int, count: int) -> None:
    expected = [(reference(seed, epoch, step, 2**33 + slot) >> 11) * 2.0**-53 for slot in range(count)]
    assert step_fractions(seed, epoch, step, count).tolist() == expected


@given(SEEDS, EPOCHS, INDICES, st.integers(1, 6), st.randoms(use_true_random=False))
def test_uniforms_do_not_depend_on_other_samples(
    seed: int, epoch: int, indices: list[int], count: int, rng
) -> None:
    whole = uniforms(seed, epoch, np.array(indices), count)
    places = list(range(len(indices)))
    rng.shuffle(places)
    for place in places:
        alone = uniforms(seed, epoch, np.array([indices[place]]), count + 2)
        np.testing.assert_array_equal(alone[0, :count], whole[place])


def test_uniforms_are_uniform() -> None:
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


def test_largest_number_is_below_one() -> None:
    assert np.float32(2**24 - 1) * np.float32(2.0**-24) < 1


@given(SEEDS, EPOCHS, st.integers(0, 200))
def test_permutation_contains_each_index_once(seed: int, epoch: int, size: int) -> None:
    order = permutation(seed, epoch, size)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(size))


def test_permutation_differs_by_epoch_and_seed() -> None:
    orders = {tuple(permutation(seed, epoch, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_permutation_positions_are_equally_likely() -> None:
    first = np.bincount([permutation(1, epoch, 10)[0] for epoch in range(5000)], minlength=10)
    assert ((first - 500) ** 2 / 500).sum() < 30  # chi squared, 9 degrees of freedom


def test_normals_are_standard_normal() -> None:
    made = normals(uniforms(1, 0, np.arange(20_000), 4))
    assert (made.shape, made.dtype) == ((20_000, 4), np.float32)
    np.testing.assert_allclose(np.cov(made.T), np.eye(4), atol=0.04)
    for limit in (-2.0, -1.0, 0.0, 0.5, 1.5):
        np.testing.assert_allclose((made < limit).mean(axis=0), NormalDist().cdf(limit), atol=0.012)
    assert np.isfinite(normals(np.float32([0, 1 - 2**-24, 0.25, 0.75]))).all()
