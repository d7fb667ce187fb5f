"""Bad images that a run goes on without: ``DataLoader.<split>.dataset.on_error: skip``.

A bad sample's row goes behind the real ones of its batch and repeats another, so it counts nowhere, and all
ranks make the same steps as with it. It stays where it is in the order: nothing else changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.config.sections.transform import Transform
from ppcls.data.bad_images.lists import (
    TooManyBadImagesError,
    append_bad_images,
    find_undecodable,
    read_bad_images,
    to_bad_images,
)
from ppcls.data.index.read import Index
from ppcls.data.sampling.order import Cursor, Order, StepSamples

BAD_IMAGES = "bad_images.txt"


class Quarantine:
    """The samples of one split that are known to be bad.

    Args:
        index: The samples.
        file: Where bad images are listed; other loaders and processes of the run may write there too.
        limit: The most images that may be listed there; None for no limit.
    """

    def __init__(self, index: Index, file: Path, limit: int | None = None) -> None:
        self._index, self.file, self._limit = index, file, limit
        self._positions: set[int] = set()

    def __contains__(self, position: int) -> bool:
        return position in self._positions

    @property
    def listed(self) -> int:
        """How many images are in the list, whoever found them."""
        return len(self._listed())

    def recall(self, lists: Iterable[Path], decoder: Transform) -> None:
        """Looks again at what earlier runs found, and takes what is still bad.

        Args:
            lists: Lists of bad images; those that are not there are passed over.
            decoder: The chain's first transform.
        """
        names = {each.name for file in lists if file.exists() for each in read_bad_images(file)}
        if names:
            doubtful = [each for each in range(len(self._index)) if self._index.name(each) in names]
            bad = find_undecodable(self._index, decoder, doubtful)
            if bad:
                self.add(bad)

    def add(self, bad: Mapping[int, str]) -> None:
        """Takes samples, with what is wrong with each, lists them and says so on standard error.

        Raises:
            TooManyBadError: There are more than the limit.
        """
        self._positions |= set(bad)
        known = self._listed()
        fresh = [each for each in to_bad_images(self._index, bad) if (each.name, each.where) not in known]
        append_bad_images(self.file, fresh)
        for each in fresh:
            print(f"bad image, skipped: {each}", file=sys.stderr)  # noqa: T201
        if self._limit is not None and (count := len(known) + len(fresh)) > self._limit:
            raise TooManyBadImagesError(
                f"{count} bad images, more than max_errors ({self._limit}); {self.file} lists them"
            )

    def _listed(self) -> set[tuple[str, str]]:
        bad = read_bad_images(self.file) if self.file.exists() else []
        return {(each.name, each.where) for each in bad}

    def without_bad(self, step: StepSamples, group: int, spare: NDArray[np.int64]) -> StepSamples:
        """Returns a step whose bad rows repeat others, behind the real ones.

        Args:
            step: One rank's part of a step.
            group: Rows that belong together; groups that stay whole come first, and keep their rows.
            spare: [N] positions to repeat in a batch that has no good row.

        Raises:
            TooManyBadError: There is no good one among them either.
        """
        if not self._positions:
            return step
        bad = np.array([position in self._positions for position in step.indices.tolist()])
        if not bad.any():
            return step
        rows = np.arange(len(bad))
        broken = np.array([bad[row - row % group :][:group].any() for row in rows])
        real, others = (np.flatnonzero(part & ~bad) for part in (rows < step.valid, rows >= step.valid))
        real = real[np.argsort(broken[real], kind="stable")]
        kept = np.concatenate([real, others])
        share = len(real) / step.valid if step.valid else 1.0
        if len(kept):
            chosen = kept[np.arange(len(bad)) % len(kept)]
            indices, repeats = step.indices[chosen], step.repeats[chosen]
        else:
            one = next((position for position in spare.tolist() if position not in self._positions), None)
            if one is None:
                raise TooManyBadImagesError(
                    f"{self._index.source}: no image is left; {self.file} lists the bad ones"
                )
            indices, repeats = np.full_like(step.indices, one), np.zeros_like(step.repeats)
        return replace(step, indices=indices, repeats=repeats, valid=len(real), weight=step.weight * share)


def describe_skipped(quarantines: Iterable[Quarantine | None]) -> str | None:
    """Returns how many bad images a run goes on without, and where they are listed; None without any.

    Args:
        quarantines: Of the run's loaders, which have one list; None where the first bad image ends the run.
    """
    one = next((each for each in quarantines if each is not None), None)
    if one is None or not (count := one.listed):
        return None
    return f"{count} bad images skipped, listed in {one.file}"


class AllRejectedError(TooManyBadImagesError):
    """No image is left."""


class RejectedImages(Quarantine):
    """Bad images that are remembered, and listed nowhere.

    Args:
        index: The samples.

    Attributes:
        index: The samples.
        reasons: What is wrong with each, by position.
    """

    def __init__(self, index: Index) -> None:
        self.index, self.reasons = index, dict[int, str]()
        self._positions = set()

    def add(self, bad: Mapping[int, str]) -> None:
        """Takes samples, with what is wrong with each.

        Raises:
            AllRejectedError: There is no other left.
        """
        self.reasons |= bad
        self._positions |= set(bad)
        if len(self.reasons) == len(self.index):
            raise AllRejectedError(f"{self.index.source}: no image is left")


@dataclass(frozen=True)
class CleanOrder:
    """An order without bad samples: a `ppcls.data.sampling.order.BatchOrder`."""

    order: Order
    quarantine: Quarantine

    @property
    def batch_size(self) -> int:
        """Rows a rank and step."""
        return self.order.batch_size

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.order.seed

    def __len__(self) -> int:
        return len(self.order)

    def at(self, cursor: Cursor) -> StepSamples:
        """Returns this rank's part of a step."""
        step = self.order.at(cursor)
        return self.quarantine.without_bad(step, self.order.group, self.order.positions(cursor.epoch))
