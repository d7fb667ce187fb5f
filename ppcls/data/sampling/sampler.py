"""Which samples make an epoch, and in what order, over all ranks together.

A sampler knows nothing of ranks: `ppcls.data.sampling.order.Order` divides its output. So an epoch is the
same on any number of processes, as long as the global batch is.
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
    """The samples of every epoch: a function of seed and epoch, of nothing else."""

    def __len__(self) -> int:
        """Returns the samples of an epoch, the same number in each."""

    def epoch(self, seed: int, epoch: int) -> Positions:
        """Returns the positions in the dataset that make an epoch, in order: [len] int64."""

    def describe(self) -> str:
        """Returns a text that is equal where all epochs are, given their length."""


@dataclass(frozen=True)
class SequentialSampler:
    """Each sample once, in the dataset's own order."""

    size: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:  # noqa: ARG002
        """See `Sampler`."""
        return np.arange(self.size, dtype=np.int64)

    def describe(self) -> str:
        """See `Sampler`."""
        return "in order"


@dataclass(frozen=True)
class ListSampler:
    """These samples, in this order, every epoch."""

    listed: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.listed)

    def epoch(self, seed: int, epoch: int) -> Positions:  # noqa: ARG002
        """Returns the list."""
        return np.array(self.listed, np.int64)

    def describe(self) -> str:
        """Returns how many."""
        return f"{len(self)} listed"


@dataclass(frozen=True)
class ShuffledSampler:
    """Each sample once, in a new random order every epoch."""

    size: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `Sampler`."""
        return permutation(seed, epoch, self.size)

    def describe(self) -> str:
        """See `Sampler`."""
        return "shuffled"


@dataclass(frozen=True)
class RepeatedAugmentationSampler:
    """Some of the samples, each ``repeats`` times, augmented anew each time.

    Hoffer et al. 2020, "Augment Your Batch". As in DeiT (Touvron et al. 2021) an epoch is as long as without
    repeats, so it holds a random ``size / repeats`` of the images, and the copies of an image come in one
    global batch on different ranks.

    A global batch is ordered by copy: first all first copies, then all second ones. A rank takes a run of
    it, and two copies of an image are at least ``global_batch // repeats`` rows apart; so they meet on no
    rank wherever there are at least ``repeats`` ranks, without asking how many. Where the global batch is
    no multiple of ``repeats``, one image's copies lie on both sides of the border between two batches.

    Attributes:
        size: Samples in the dataset, and of an epoch.
        repeats: Copies of an image.
        global_batch: Rows a step over all ranks.
    """

    size: int
    repeats: int
    global_batch: int

    def __len__(self) -> int:
        return self.size

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `Sampler`."""
        images = permutation(seed, epoch, self.size)[: -(-self.size // self.repeats)]
        row = np.arange(self.size)
        by_copy = np.lexsort((row % self.repeats, row // self.global_batch))
        return np.repeat(images, self.repeats)[by_copy]

    def describe(self) -> str:
        """See `Sampler`."""
        return f"each image {self.repeats} times in batches of {self.global_batch}"


class WeightedRandomSampler:
    """Draws with replacement; a sample's chance in each draw is its weight over the sum of all.

    Args:
        weights: [N] float64, >= 0 and finite, at least one of them > 0.
        samples: Draws an epoch.
    """

    def __init__(self, weights: NDArray[np.float64], samples: int) -> None:
        cumulative = np.cumsum(weights / weights.max(), dtype=np.float64)
        self._upper = cumulative / cumulative[-1]  # sample i's part of [0, 1) ends below upper[i]
        self._digest, self._samples = _digest(self._upper), samples

    def __len__(self) -> int:
        return self._samples

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `Sampler`."""
        drawn = fractions(seed, epoch, self._samples, Purpose.IMAGE)
        return np.searchsorted(self._upper, drawn, side="right").astype(np.int64)

    def describe(self) -> str:
        """See `Sampler`."""
        return f"by weights {self._digest}"


class BalancedClassSampler:
    """All classes equally often, each in turn (class-aware sampling: Shen, Lin & Huang 2016).

    Classes come in rounds: a round holds each class once, in random order, so counts differ by at most
    one. A class gives its images in a random order, new every epoch, and begins again when all have come.

    Args:
        labels: [N] int64; classes without samples do not count.
        samples: Samples an epoch.
    """

    def __init__(self, labels: NDArray[np.int64], samples: int) -> None:
        self._classes = _Classes(labels)
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `Sampler`."""
        count = len(self._classes)
        classes = self._classes.rounds(seed, epoch, -(-self._samples // count)).ravel()[: self._samples]
        return self._classes.images(seed, epoch, classes, np.arange(self._samples) // count)

    def describe(self) -> str:
        """See `Sampler`."""
        return f"balanced over classes {self._classes.digest}"


class IdentitySampler:
    """Batches of P identities with K images each ("In Defense of the Triplet Loss", Hermans et al. 2017).

    No identity comes twice in a global batch, and the K images of one lie side by side. An identity of
    fewer images repeats some. All identities are as likely, whatever the number of their images.

    Args:
        labels: [N] int64, the identities.
        images: K.
        identities: P over all ranks; at most as many as ``labels`` holds.
    """

    def __init__(self, labels: NDArray[np.int64], images: int, identities: int) -> None:
        self._classes = _Classes(labels)
        self._groups = -(-len(labels) // images)
        self._images, self._identities = images, identities

    def __len__(self) -> int:
        return self._groups * self._images

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `Sampler`."""
        # Of each round, as many whole batches as there are: the identities left over change every round.
        in_round = len(self._classes) // self._identities * self._identities
        rounds = self._classes.rounds(seed, epoch, -(-self._groups // in_round))
        identity = rounds[:, :in_round].ravel()[: self._groups, None]
        turn = (np.arange(self._groups) // in_round * self._images)[:, None] + np.arange(self._images)
        return self._classes.images(seed, epoch, identity, turn).ravel()

    def describe(self) -> str:
        """See `Sampler`."""
        return f"{self._images} images of each of {self._identities} identities {self._classes.digest}"


class _Classes:
    """The classes that have samples, and the samples of each."""

    def __init__(self, labels: NDArray[np.int64]) -> None:
        _, self._class_of, self._sizes = np.unique(labels, return_inverse=True, return_counts=True)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.digest = _digest(labels)

    def __len__(self) -> int:
        return len(self._sizes)

    def rounds(self, seed: int, epoch: int, rounds: int) -> NDArray[np.int64]:
        """Returns [rounds, C]: every row a random order of the C classes."""
        drawn = keys(seed, epoch, rounds * len(self), Purpose.CLASS)
        return np.argsort(drawn.reshape(rounds, len(self)), axis=1, kind="stable")

    def images(
        self, seed: int, epoch: int, classes: NDArray[np.int64], turns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the positions of images by their number in the class's order of this epoch."""
        drawn = keys(seed, epoch, len(self._class_of), Purpose.IMAGE)
        class_by_class = np.lexsort((drawn, self._class_of))
        return class_by_class[self._starts[classes] + turns % self._sizes[classes]]


def _digest(array: NDArray[Any]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=4).hexdigest()
