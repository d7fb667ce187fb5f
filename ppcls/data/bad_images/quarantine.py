"""Skips bad images during a run with ``DataLoader.<split>.dataset.on_error: skip``.

The batch size does not change: each bad sample is replaced by a repeated sample, which is placed after the
valid samples of the batch. Samples after the valid ones do not count in the loss or the metrics. The number
of steps and the samples of all other batches do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.bad_images.lists import (
    GrowingList,
    TooManyBadImagesError,
    append_bad_images,
    read_bad_images,
    to_bad_images,
)
from ppcls.data.bad_images.search import find_undecodable
from ppcls.data.index.protocol import Index, find_samples
from ppcls.data.sampling.order import Cursor, Order, StepSamples
from ppcls.data.transforms.base import Transform
from ppcls.errors import counted
from ppcls.files import print_error

BAD_IMAGES = "bad_images.txt"


class _FirstGood:
    """Finds the first good sample of an epoch. The search continues where the last one ended.

    Args:
        bad: Positions of bad samples. Samples are only added.
    """

    def __init__(self, bad: Set[int]) -> None:
        self._bad = bad
        self._samples: NDArray[np.int64] | None = None
        self._at = 0

    def find(self, samples: NDArray[np.int64]) -> int | None:
        """Returns the first of the samples that is not bad; None if all are bad."""
        if samples is not self._samples:
            self._samples = samples
            self._at = 0
        while self._at < len(samples) and int(samples[self._at]) in self._bad:
            self._at += 1
        return int(samples[self._at]) if self._at < len(samples) else None


class Quarantine:
    """Collects the bad samples of one split.

    Args:
        index: Samples of the split.
        file: List of bad images. Other loaders and processes of the run may append to the same list.
        limit: Maximum number of images in the list; None for no limit.
    """

    def __init__(self, index: Index, file: Path, limit: int | None = None) -> None:
        self._index = index
        self.file = file
        self._limit = limit
        self._list = GrowingList(file)
        self._positions: set[int] = set()
        self._good = _FirstGood(self._positions)

    def __contains__(self, position: int) -> bool:
        return position in self._positions

    @property
    def listed(self) -> int:
        """Number of images in the list, including images that other loaders added."""
        return len(self._list.read_places())

    def recheck(self, lists: Iterable[Path], decoder: Transform) -> None:
        """Decodes the images that earlier runs listed, and adds the images that are still bad.

        Args:
            lists: Lists of bad images. Missing files are ignored.
            decoder: First transform of the chain, which decodes an image.
        """
        places = {(bad.name, bad.where) for file in lists if file.exists() for bad in read_bad_images(file)}
        if places:
            bad = find_undecodable(self._index, decoder, find_samples(self._index, places))
            if bad:
                self.add(bad)

    def add(self, reasons: Mapping[int, str]) -> None:
        """Adds samples to the quarantine and to the list. Prints samples that are new in the list to stderr.

        Args:
            reasons: Maps the position of each bad sample to the reason.

        Raises:
            TooManyBadImagesError: The list has more images than the limit allows.
        """
        self._positions |= set(reasons)
        known = self._list.read_places()
        new = [bad for bad in to_bad_images(self._index, reasons) if (bad.name, bad.where) not in known]
        count = len(known) + len(new)
        append_bad_images(self.file, new)
        for bad in new:
            print_error(f"bad image, skipped: {bad}")
        if self._limit is not None and count > self._limit:
            raise TooManyBadImagesError(
                f"{counted(count, 'bad image')}, more than max_errors ({self._limit}); {self.file} lists "
                "them; repair or remove them, or increase max_errors"
            )

    def replace_bad(self, step: StepSamples, group: int, spare: NDArray[np.int64]) -> StepSamples:
        """Returns the step after replacing bad samples by repeated ones, which follow the valid rows.

        Args:
            step: Samples of a step on one rank.
            group: Number of consecutive rows that must stay together. Groups without a bad sample come first.
            spare: [N] positions of samples. If all rows of the step are bad, the first good sample of
                ``spare`` is repeated.

        Raises:
            TooManyBadImagesError: All rows of the step and all samples in ``spare`` are bad.
        """
        if not self._positions:
            return step
        bad = np.array([position in self._positions for position in step.indices.tolist()])
        if not bad.any():
            return step
        rows = np.arange(len(bad))
        broken = np.array([bad[row - row % group :][:group].any() for row in rows])
        valid, padding = (np.flatnonzero(part & ~bad) for part in (rows < step.valid, rows >= step.valid))
        valid = valid[np.argsort(broken[valid], kind="stable")]
        replacements = np.concatenate([valid, padding])
        share = len(valid) / step.valid if step.valid else 1.0
        if len(replacements):
            chosen = replacements[np.arange(len(bad)) % len(replacements)]
            indices = step.indices[chosen]
            repeats = step.repeats[chosen]
        else:
            good = self._good.find(spare)
            if good is None:
                raise TooManyBadImagesError(
                    f"{self._index.source}: all images are bad; {self.file} lists the bad ones; check the "
                    "files and the first transform"
                )
            indices = np.full_like(step.indices, good)
            repeats = np.zeros_like(step.repeats)
        return replace(step, indices=indices, repeats=repeats, valid=len(valid), weight=step.weight * share)


def describe_skipped(quarantines: Iterable[Quarantine | None]) -> str | None:
    """Returns a log line with the number of skipped images and the path of their list.

    Args:
        quarantines: Quarantines of the run's loaders, which share one list; None for a loader without a
            quarantine.

    Returns:
        None if no image was skipped.
    """
    quarantine = next((candidate for candidate in quarantines if candidate is not None), None)
    if quarantine is None or not (count := quarantine.listed):
        return None
    return f"{counted(count, 'bad image')} skipped, listed in {quarantine.file}"


class AllRejectedError(TooManyBadImagesError):
    """All images of the dataset are bad."""


class RejectedImages(Quarantine):
    """Collects bad samples in memory, without a list file.

    Attributes:
        index: Samples of the dataset.
        reasons: Maps the position of each bad sample to the reason.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.reasons = dict[int, str]()
        self._positions = set()
        self._good = _FirstGood(self._positions)

    def add(self, reasons: Mapping[int, str]) -> None:
        """Adds bad samples.

        Raises:
            AllRejectedError: All samples are bad.
        """
        self.reasons |= reasons
        self._positions |= set(reasons)
        if len(self.reasons) == len(self.index):
            raise AllRejectedError(
                f"{self.index.source}: none of {counted(len(self.index), 'image')} can be decoded"
            )


@dataclass(frozen=True)
class CleanOrder:
    """A `ppcls.data.sampling.order.BatchOrder` that replaces the bad samples of another order."""

    order: Order
    quarantine: Quarantine

    @property
    def batch_size(self) -> int:
        """Number of rows per step on one rank."""
        return self.order.batch_size

    @property
    def seed(self) -> int:
        """Seed of all random choices."""
        return self.order.seed

    def __len__(self) -> int:
        return len(self.order)

    def at(self, cursor: Cursor) -> StepSamples:
        """Returns this rank's samples of the step at ``cursor``, without bad samples."""
        step = self.order.at(cursor)
        return self.quarantine.replace_bad(step, self.order.group, self.order.positions(cursor.epoch))
