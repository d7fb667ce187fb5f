"""Defines samplers, which choose the samples of an epoch and their order.

A sampler does not depend on ranks, because `ppcls.data.sampling.order.Order` distributes the samples over the
ranks. So an epoch is the same on any number of processes with the same global batch size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.specs.rng import Purpose, fractions, keys, permutation

Positions = NDArray[np.int64]


class EpochSampler(Hashable, Protocol):
    """Chooses the samples of each epoch, depending only on seed and epoch."""

    def __len__(self) -> int:
        """Returns the number of samples per epoch."""

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions of an epoch's samples in the dataset, in order, [len] int64."""

    def describe(self) -> str:
        """Returns a text that identifies the sampler.

        Samplers with the same text and length yield the same samples for the same data, seed and epoch.
        """


@dataclass(frozen=True)
class SequentialSampler:
    """Yields each sample once, in the order of the dataset."""

    size: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:  # noqa: ARG002
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        return np.arange(self.size, dtype=np.int64)

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return "in order"


@dataclass(frozen=True)
class SubsetSampler:
    """Yields the same random samples in each epoch.

    Attributes:
        size: Number of samples in the dataset.
        count: Number of samples that are chosen, at most ``size``.
    """

    size: int
    count: int

    def __len__(self) -> int:
        return self.count

    def epoch(self, seed: int, epoch: int) -> Positions:  # noqa: ARG002
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        return np.random.default_rng(seed).permutation(self.size)[: self.count].astype(np.int64)

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return f"{self.count} of {self.size}"


@dataclass(frozen=True)
class ListSampler:
    """Yields the listed samples in each epoch, in the order of the list."""

    listed: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.listed)

    def epoch(self, seed: int, epoch: int) -> Positions:  # noqa: ARG002
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        return np.array(self.listed, np.int64)

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return f"{len(self)} listed {_digest(np.array(self.listed, np.int64))}"


@dataclass(frozen=True)
class ShuffledSampler:
    """Yields each sample once, in a new random order in each epoch."""

    size: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        return permutation(seed, epoch, self.size)

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return "shuffled"


@dataclass(frozen=True)
class ShardWindowSampler:
    """Yields each sample once, in a random order that uses few shards at a time.

    Each epoch shuffles the shards, and then the samples of each window of consecutive shards.

    Attributes:
        ends: Position after the last sample of each shard.
        window: Number of shards whose samples are mixed.
    """

    ends: tuple[int, ...]
    window: int

    def __len__(self) -> int:
        return self.ends[-1]

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        order = permutation(seed, epoch, len(self))
        shards = np.searchsorted(self.ends, order, side="right")
        places = np.empty(len(self.ends), np.int64)  # of each shard in the shuffled order of the shards
        places[permutation(seed, epoch, len(self.ends))] = np.arange(len(self.ends))
        return order[np.argsort(places[shards] // self.window, kind="stable")]

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return f"windows of {self.window} shards {_digest(np.array(self.ends, np.int64))}"


@dataclass(frozen=True)
class RepeatedAugmentationSampler:
    """Yields a random part of the images, each several times with different augmentation.

    See Hoffer et al. 2020, "Augment Your Batch". As in DeiT (Touvron et al. 2021), an epoch has as many
    samples as without repeats: ``size / repeats`` random images, ``repeats`` copies of each. The copies of an
    image are in one global batch, on different ranks.

    A global batch starts with the first copies of all its images, followed by all second copies, and so on.
    Each rank gets consecutive rows, and two copies of an image are at least ``global_batch // repeats`` rows
    apart. So with at least ``repeats`` ranks, no rank has two copies of an image. If the global batch size is
    not a multiple of ``repeats``, the copies of some images are divided between two batches.

    Attributes:
        size: Number of samples in the dataset and in an epoch.
        repeats: Number of copies of each image.
        global_batch: Number of rows of a step on all ranks.
    """

    size: int
    repeats: int
    global_batch: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        images = permutation(seed, epoch, self.size)[: -(-self.size // self.repeats)]
        row = np.arange(self.size)
        by_copy = np.lexsort((row % self.repeats, row // self.global_batch))
        return np.repeat(images, self.repeats)[by_copy]

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return f"each image {self.repeats} times in batches of {self.global_batch}"


class WeightedRandomSampler:
    """Draws samples with replacement, with probabilities in proportion to their weights.

    Args:
        weights: Weight of each sample, [N] float64, all finite and >= 0, and at least one > 0.
        samples: Number of samples per epoch.
    """

    def __init__(self, weights: NDArray[np.float64], samples: int) -> None:
        cumulative = np.cumsum(weights / weights.max(), dtype=np.float64)
        self._upper = cumulative / cumulative[-1]  # sample i is drawn for fractions below upper[i]
        self._digest = _digest(self._upper)
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        drawn = fractions(seed, epoch, self._samples, Purpose.IMAGE)
        return np.searchsorted(self._upper, drawn, side="right").astype(np.int64)

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return f"by weights {self._digest}"


class BalancedClassSampler:
    """Chooses all classes equally often (class-aware sampling, Shen, Lin & Huang 2016).

    An epoch consists of rounds. Each round has one image of every class, and the classes are in random order.
    So the numbers of images per class differ by at most one. The images of a class are used in a random
    order, which is new in each epoch. They are repeated when all of them were used.

    Args:
        labels: Label of each sample, [N] int64. Classes without samples are ignored.
        samples: Number of samples per epoch.
    """

    def __init__(self, labels: NDArray[np.int64], samples: int) -> None:
        self._classes = _ClassSamples(labels)
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        count = len(self._classes)
        classes = self._classes.rounds(seed, epoch, -(-self._samples // count)).ravel()[: self._samples]
        return self._classes.images(seed, epoch, classes, np.arange(self._samples) // count)

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return f"balanced over classes {self._classes.digest}"


class IdentitySampler:
    """Fills batches with P identities and K images per identity.

    See Hermans et al. 2017, "In Defense of the Triplet Loss". The identities in a global batch differ. The K
    images of an identity are consecutive. Some images are repeated if an identity has fewer than K. All
    identities have the same probability, independently of their numbers of images.

    Args:
        labels: [N] int64, identity of each image.
        images: K, number of images per identity.
        identities: P, number of identities in a global batch; at most the number in ``labels``.
    """

    def __init__(self, labels: NDArray[np.int64], images: int, identities: int) -> None:
        self._classes = _ClassSamples(labels)
        self._groups = -(-len(labels) // images)
        self._images = images
        self._identities = identities

    def __len__(self) -> int:
        return self._groups * self._images

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions of the samples of an epoch. See `EpochSampler`."""
        # Uses only the complete batches of each round. The unused identities are different in each round.
        in_round = len(self._classes) // self._identities * self._identities
        rounds = self._classes.rounds(seed, epoch, -(-self._groups // in_round))
        identity = rounds[:, :in_round].ravel()[: self._groups, None]
        turn = (np.arange(self._groups) // in_round * self._images)[:, None] + np.arange(self._images)
        return self._classes.images(seed, epoch, identity, turn).ravel()

    def describe(self) -> str:
        """Returns a text that identifies the sampler. See `EpochSampler`."""
        return f"{self._images} images of each of {self._identities} identities {self._classes.digest}"


class _ClassSamples:
    """Groups samples by class, and orders classes and samples at random.

    Args:
        labels: Label of each sample, [N] int64. Classes without samples are ignored.
    """

    def __init__(self, labels: NDArray[np.int64]) -> None:
        _, self._class_of, self._sizes = np.unique(labels, return_inverse=True, return_counts=True)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.digest = _digest(labels)

    def __len__(self) -> int:
        return len(self._sizes)

    def rounds(self, seed: int, epoch: int, rounds: int) -> NDArray[np.int64]:
        """Returns a random order of the C classes for each round, [rounds, C] int64."""
        drawn = keys(seed, epoch, rounds * len(self), Purpose.CLASS)
        return np.argsort(drawn.reshape(rounds, len(self)), axis=1, kind="stable")

    def images(
        self, seed: int, epoch: int, classes: NDArray[np.int64], turns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the positions of images in the dataset.

        Args:
            seed: Seed of the random order.
            epoch: Epoch, which changes the random order.
            classes: Classes of the images.
            turns: Number of each image in the random order of its class. Numbers beyond the last image of a
                class start again at its first image.
        """
        drawn = keys(seed, epoch, len(self._class_of), Purpose.IMAGE)
        class_by_class = np.lexsort((drawn, self._class_of))
        return class_by_class[self._starts[classes] + turns % self._sizes[classes]]


def _digest(array: NDArray[Any]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=4).hexdigest()
