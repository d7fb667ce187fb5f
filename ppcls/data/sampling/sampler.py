"""Samplers: the samples of an epoch and their order, over all ranks.

A sampler does not depend on ranks: `ppcls.data.sampling.order.Order` distributes its output. So an epoch is
the same on any number of processes with the same global batch size.
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
    """The samples of each epoch, which depend only on seed and epoch."""

    def __len__(self) -> int:
        """Returns the number of samples of each epoch."""

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions in the dataset of an epoch's samples, in order: [len] int64."""

    def describe(self) -> str:
        """Returns a text that is equal for samplers of the same length with equal epochs."""


@dataclass(frozen=True)
class SequentialSampler:
    """Each sample once, in the order of the dataset."""

    size: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:  # noqa: ARG002
        """See `EpochSampler`."""
        return np.arange(self.size, dtype=np.int64)

    def describe(self) -> str:
        """See `EpochSampler`."""
        return "in order"


@dataclass(frozen=True)
class ListSampler:
    """The given samples in each epoch, in the given order."""

    listed: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.listed)

    def epoch(self, seed: int, epoch: int) -> Positions:  # noqa: ARG002
        """See `EpochSampler`."""
        return np.array(self.listed, np.int64)

    def describe(self) -> str:
        """See `EpochSampler`."""
        return f"{len(self)} listed"


@dataclass(frozen=True)
class ShuffledSampler:
    """Each sample once, in a new random order in each epoch."""

    size: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `EpochSampler`."""
        return permutation(seed, epoch, self.size)

    def describe(self) -> str:
        """See `EpochSampler`."""
        return "shuffled"


@dataclass(frozen=True)
class RepeatedAugmentationSampler:
    """Some of the samples, each repeated several times with different augmentation.

    Hoffer et al. 2020, "Augment Your Batch". As in DeiT (Touvron et al. 2021) an epoch is as long as without
    repeats, so it has a random ``size / repeats`` of the images, and the copies of an image are in one global
    batch on different ranks.

    A global batch is sorted by copy: all first copies, then all second ones, and so on. Each rank gets
    consecutive rows, and two copies of an image are at least ``global_batch // repeats`` rows apart. So with
    at least ``repeats`` ranks no rank has two copies of an image. If the global batch is not a multiple of
    ``repeats``, the copies of one image are divided between two batches.

    Attributes:
        size: Samples in the dataset and in an epoch.
        repeats: Copies of each image.
        global_batch: Rows of a step on all ranks.
    """

    size: int
    repeats: int
    global_batch: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `EpochSampler`."""
        images = permutation(seed, epoch, self.size)[: -(-self.size // self.repeats)]
        row = np.arange(self.size)
        by_copy = np.lexsort((row % self.repeats, row // self.global_batch))
        return np.repeat(images, self.repeats)[by_copy]

    def describe(self) -> str:
        """See `EpochSampler`."""
        return f"each image {self.repeats} times in batches of {self.global_batch}"


class WeightedRandomSampler:
    """Samples drawn with replacement, with probabilities proportional to their weights.

    Args:
        weights: [N] float64, >= 0 and finite, at least one of them > 0.
        samples: Samples per epoch.
    """

    def __init__(self, weights: NDArray[np.float64], samples: int) -> None:
        cumulative = np.cumsum(weights / weights.max(), dtype=np.float64)
        self._upper = cumulative / cumulative[-1]  # sample i is drawn for fractions below upper[i]
        self._digest, self._samples = _digest(self._upper), samples

    def __len__(self) -> int:
        return self._samples

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `EpochSampler`."""
        drawn = fractions(seed, epoch, self._samples, Purpose.IMAGE)
        return np.searchsorted(self._upper, drawn, side="right").astype(np.int64)

    def describe(self) -> str:
        """See `EpochSampler`."""
        return f"by weights {self._digest}"


class BalancedClassSampler:
    """All classes equally often (class-aware sampling: Shen, Lin & Huang 2016).

    Each round has every class once, in random order, so that counts differ by at most one. The images of a
    class are used in a random order, new in each epoch, and repeated after all of them were used.

    Args:
        labels: [N] int64; classes without samples are ignored.
        samples: Samples per epoch.
    """

    def __init__(self, labels: NDArray[np.int64], samples: int) -> None:
        self._classes = _ClassSamples(labels)
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `EpochSampler`."""
        count = len(self._classes)
        classes = self._classes.rounds(seed, epoch, -(-self._samples // count)).ravel()[: self._samples]
        return self._classes.images(seed, epoch, classes, np.arange(self._samples) // count)

    def describe(self) -> str:
        """See `EpochSampler`."""
        return f"balanced over classes {self._classes.digest}"


class IdentitySampler:
    """Batches of P identities with K images each ("In Defense of the Triplet Loss", Hermans et al. 2017).

    A global batch has no identity twice, and the K images of an identity are consecutive. An identity with
    fewer images repeats some. All identities have the same probability, whatever the number of their images.

    Args:
        labels: [N] int64 identities.
        images: K.
        identities: P on all ranks; at most the number of identities in ``labels``.
    """

    def __init__(self, labels: NDArray[np.int64], images: int, identities: int) -> None:
        self._classes = _ClassSamples(labels)
        self._groups = -(-len(labels) // images)
        self._images, self._identities = images, identities

    def __len__(self) -> int:
        return self._groups * self._images

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `EpochSampler`."""
        # Only whole batches of each round are used; the identities that remain change in each round.
        in_round = len(self._classes) // self._identities * self._identities
        rounds = self._classes.rounds(seed, epoch, -(-self._groups // in_round))
        identity = rounds[:, :in_round].ravel()[: self._groups, None]
        turn = (np.arange(self._groups) // in_round * self._images)[:, None] + np.arange(self._images)
        return self._classes.images(seed, epoch, identity, turn).ravel()

    def describe(self) -> str:
        """See `EpochSampler`."""
        return f"{self._images} images of each of {self._identities} identities {self._classes.digest}"


class _ClassSamples:
    """The classes that have samples, and their samples."""

    def __init__(self, labels: NDArray[np.int64]) -> None:
        _, self._class_of, self._sizes = np.unique(labels, return_inverse=True, return_counts=True)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.digest = _digest(labels)

    def __len__(self) -> int:
        return len(self._sizes)

    def rounds(self, seed: int, epoch: int, rounds: int) -> NDArray[np.int64]:
        """Returns [rounds, C], each row a random order of the C classes."""
        drawn = keys(seed, epoch, rounds * len(self), Purpose.CLASS)
        return np.argsort(drawn.reshape(rounds, len(self)), axis=1, kind="stable")

    def images(
        self, seed: int, epoch: int, classes: NDArray[np.int64], turns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the positions of images.

        Args:
            seed: Seed of the random order.
            classes: Classes of the images.
            turns: Numbers of the images in the order of their class in this epoch.
        """
        drawn = keys(seed, epoch, len(self._class_of), Purpose.IMAGE)
        class_by_class = np.lexsort((drawn, self._class_of))
        return class_by_class[self._starts[classes] + turns % self._sizes[classes]]


def _digest(array: NDArray[Any]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=4).hexdigest()
