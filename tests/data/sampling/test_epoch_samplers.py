"""The properties of each sampler: counts, probabilities, distances, reproducibility."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.sampling.epoch_samplers import (
    BalancedClassSampler,
    EpochSampler,
    IdentitySampler,
    RepeatedAugmentationSampler,
    SequentialSampler,
    ShuffledSampler,
    WeightedRandomSampler,
)
from ppcls.data.sampling.order import Cursor, Order

SEEDS = st.integers(0, 9)
EPOCHS = st.integers(0, 9)
LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=40).map(lambda labels: np.array(labels, np.int64))
UNEVEN = np.repeat(np.arange(4), [100, 20, 5, 1])  # a long tail of 126 images

RANDOM: dict[str, Callable[[], EpochSampler]] = {
    "shuffled": lambda: ShuffledSampler(126),
    "repeated": lambda: RepeatedAugmentationSampler(126, 3, 12),
    "weighted": lambda: WeightedRandomSampler(1.0 + UNEVEN, 126),
    "balanced": lambda: BalancedClassSampler(UNEVEN, 126),
    "identities": lambda: IdentitySampler(UNEVEN, 3, 2),
}


@pytest.mark.parametrize("name", RANDOM)
def test_epoch_depends_only_on_seed_and_epoch(name: str) -> None:
    one, two = RANDOM[name](), RANDOM[name]()
    assert one.describe() == two.describe()
    epochs = {}
    for seed in range(3):
        for epoch in range(3):
            positions = one.epoch(seed, epoch)
            assert positions.dtype == np.int64
            assert positions.shape == (len(one),) == (126,)
            assert positions.min() >= 0
            assert positions.max() < 126
            np.testing.assert_array_equal(two.epoch(seed, epoch), positions)
            epochs[positions.tobytes()] = seed, epoch
    assert len(epochs) == 9, "others for another seed or epoch"


def test_descriptions_of_samplers_differ() -> None:
    other = np.roll(UNEVEN, 1)
    samplers: list[EpochSampler] = [
        SequentialSampler(126),
        *(make() for make in RANDOM.values()),
        RepeatedAugmentationSampler(126, 2, 12),
        WeightedRandomSampler(1.0 + other, 126),
        BalancedClassSampler(other, 126),
        IdentitySampler(other, 3, 2),
        IdentitySampler(UNEVEN, 2, 2),
    ]
    assert len({each.describe() for each in samplers}) == len(samplers)


# What was published stays: a changed order would make a resumed run use other samples.
KNOWN = {
    "shuffled": [47, 7, 34, 98, 40, 0, 77, 93, 39, 72, 74, 26],
    "repeated": [47, 7, 34, 98, 47, 7, 34, 98, 47, 7, 34, 98],
    "weighted": [81, 117, 43, 63, 16, 18, 118, 92, 13, 44, 36, 41],
    "balanced": [120, 125, 85, 115, 78, 124, 125, 116, 100, 43, 123, 125],
    "identities": [120, 124, 123, 125, 125, 125, 85, 78, 43, 115, 116, 100],
}


@pytest.mark.parametrize("name", RANDOM)
def test_samplers_return_known_epochs(name: str) -> None:
    assert RANDOM[name]().epoch(7, 1)[:12].tolist() == KNOWN[name]


@given(LABELS, st.integers(1, 60), SEEDS, EPOCHS)
def test_balanced_sampler_has_each_class_once_per_round(
    labels: np.ndarray, samples: int, seed: int, epoch: int
) -> None:
    positions = BalancedClassSampler(labels, samples).epoch(seed, epoch)
    classes = len(set(labels.tolist()))
    drawn = labels[positions]
    for start in range(0, samples, classes):
        part = drawn[start : start + classes].tolist()
        assert len(set(part)) == len(part), "none twice in a round"
    counts = [int((drawn == label).sum()) for label in set(labels.tolist())]
    assert max(counts) - min(counts) <= 1
    for label in set(labels.tolist()):
        images = Counter({int(each): 0 for each in np.flatnonzero(labels == label)})
        images.update(positions[drawn == label].tolist())
        assert max(images.values()) - min(images.values()) <= 1, "all images of a class before any again"


def test_balanced_sampler_uses_images_of_a_class_equally() -> None:
    """An epoch takes 31 or 32 of the first class's 100; over 2000 epochs each comes as often."""
    sampler = BalancedClassSampler(UNEVEN, 126)
    counts = np.zeros(126)
    for epoch in range(2000):
        counts += np.bincount(sampler.epoch(0, epoch), minlength=126)
    expected = counts[:100].mean()
    # Without replacement counts vary less than independent draws': 99 degrees of freedom at the most.
    assert ((counts[:100] - expected) ** 2 / expected).sum() < 160
    assert 2000 * 31 <= counts[:100].sum() <= 2000 * 32


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30).filter(any), SEEDS, EPOCHS)
def test_weighted_sampler_never_draws_weight_zero(weights: list[int], seed: int, epoch: int) -> None:
    positions = WeightedRandomSampler(np.array(weights, np.float64), 200).epoch(seed, epoch)
    assert {weights[each] > 0 for each in positions} == {True}


def test_weighted_sampler_draws_proportionally() -> None:
    weights = np.array([1.0, 0.0, 2.0, 5.0, 0.5, 1.5])
    counts = np.bincount(WeightedRandomSampler(weights, 100_000).epoch(3, 0), minlength=6)
    expected = 100_000 * weights / weights.sum()
    there = weights > 0
    chi_squared = ((counts - expected)[there] ** 2 / expected[there]).sum()
    assert chi_squared < 18.5  # 4 degrees of freedom: exceeded by chance once in a thousand seeds
    assert counts[1] == 0


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e307])
def test_weighted_sampler_uses_only_ratios(scale: float) -> None:
    one, two = WeightedRandomSampler(UNEVEN + 1.0, 500), WeightedRandomSampler((UNEVEN + 1.0) * scale, 500)
    assert np.mean(one.epoch(0, 0) == two.epoch(0, 0)) > 0.99  # rounding may move a border


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 30), SEEDS, EPOCHS)
def test_repeated_augmentation_repeats_each_image(
    size: int, repeats: int, batch: int, seed: int, epoch: int
) -> None:
    sampler = RepeatedAugmentationSampler(size, repeats, batch)
    positions = sampler.epoch(seed, epoch)
    assert len(positions) == size
    counts = sorted(Counter(positions.tolist()).values(), reverse=True)
    assert len(counts) == -(-size // repeats)
    assert counts[:-1] == [repeats] * (len(counts) - 1), "at most one image has fewer"
    parted = 0
    for image in set(positions.tolist()):
        rows = np.flatnonzero(positions == image)
        parted += len(set((rows // batch).tolist())) > 1
        steps = rows // batch
        for step in set(steps.tolist()):
            together = rows[steps == step]
            full = min(batch, size - step * batch)
            assert (np.diff(together) >= full // repeats).all()
    if batch % repeats == 0:
        assert not parted, "copies of an image are in one global batch"


@pytest.mark.parametrize(
    ("world", "repeats"), [(2, 2), (4, 2), (3, 3), (4, 3), (8, 3), (4, 4), (12, 4), (24, 3)]
)
@pytest.mark.parametrize("rows", [24, 120])
def test_repeated_augmentation_puts_copies_on_different_ranks(world: int, repeats: int, rows: int) -> None:
    order = Order(RepeatedAugmentationSampler(5 * rows, repeats, rows), rows // world, seed=4, world=world)
    for step in range(len(order)):
        ranks = [set[int]() for _ in range(world)]
        for rank in range(world):
            part = replace(order, rank=rank).at(Cursor(1, step)).indices.tolist()
            ranks[rank].update(part)
            assert len(ranks[rank]) == len(part), "no image twice on a rank"
        assert len(set.union(*ranks)) == rows // repeats


def test_repeated_augmentation_with_one_copy_shuffles() -> None:
    np.testing.assert_array_equal(
        RepeatedAugmentationSampler(50, 1, 8).epoch(3, 2), ShuffledSampler(50).epoch(3, 2)
    )


@given(LABELS, st.integers(1, 4), st.data(), SEEDS, EPOCHS)
def test_identity_batches_have_p_identities_with_k_images(
    labels: np.ndarray, images: int, data: st.DataObject, seed: int, epoch: int
) -> None:
    identities = data.draw(st.integers(1, len(set(labels.tolist()))))
    sampler = IdentitySampler(labels, images, identities)
    positions = sampler.epoch(seed, epoch)
    assert len(positions) == len(sampler) == -(-len(labels) // images) * images
    rows = identities * images
    for start in range(0, len(positions), rows):
        groups = positions[start : start + rows].reshape(-1, images)
        found = labels[groups]
        assert (found == found[:, :1]).all(), "one identity a group"
        assert len(set(found[:, 0].tolist())) == len(groups), "no identity twice a batch"
        for label, group in zip(found[:, 0], groups, strict=True):
            assert len(set(group.tolist())) == min(images, int((labels == label).sum())), "few repeat"


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), SEEDS, EPOCHS)
def test_identity_sampler_uses_all_images_before_repeating(
    identities: int, images: int, rounds: int, seed: int, epoch: int
) -> None:
    labels = np.arange(identities * images * rounds) % identities
    positions = IdentitySampler(labels, images, identities).epoch(seed, epoch)
    assert sorted(positions.tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_identity_sampler_keeps_identities_on_one_rank(world: int) -> None:
    labels = np.arange(100) % 11
    order = Order(IdentitySampler(labels, 3, 8), 24 // world, seed=1, world=world, group=3)
    assert order.size == 102
    seen = []
    for step in range(len(order)):
        batch = []
        for rank in range(world):
            part = replace(order, rank=rank).at(Cursor(0, step))
            assert part.valid % 3 == 0
            batch += labels[part.indices[: part.valid]].reshape(-1, 3).tolist()
        assert all(len(set(group)) == 1 for group in batch)
        assert len({group[0] for group in batch}) == len(batch)
        seen += batch
    assert len(seen) == 34


def test_identity_sampler_uses_identities_equally() -> None:
    """A third of the identities is left over in every round; over 900 epochs each comes as often."""
    labels = np.repeat(np.arange(6), [1, 2, 3, 5, 8, 40])
    sampler = IdentitySampler(labels, 2, 4)
    counts = np.zeros(6)
    for epoch in range(900):
        counts += np.bincount(labels[sampler.epoch(0, epoch)[::2]], minlength=6)
    assert counts.sum() == 900 * 30
    assert ((counts - 4500) ** 2 / 4500).sum() < 15  # chi squared, 5 degrees of freedom, at the most
