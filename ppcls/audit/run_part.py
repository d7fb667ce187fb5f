"""Audits the images of a run for its report, within a limit of images and of time.

Decisions:

- Images are read in random order until a limit is reached, so a sample of a large data set is checked. A
  duplicate is found only if both copies are in the sample, and the report says how many images were read.
- Duplicates are found by small grey copies, which need no model. Suspicious labels and outliers need
  features, which take more time than reading, so fewer images may be checked for these.
- All of this runs in a thread at the end of the run, while the run computes heat maps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ppcls.audit.findings import KINDS, Finding, audit
from ppcls.audit.images import Floats, Pictures, read_copies, read_pixels
from ppcls.audit.neighbours import Neighbours, find_neighbours
from ppcls.data.index.protocol import Index, sample_name
from ppcls.errors import counted
from ppcls.files import one_line
from ppcls.report.thumbnail import AuditGroup, AuditPart, Picture

_SEED = 0
_LEAST_SECONDS = 1.5  # in less time, not even one batch of images would be read and compared
_BATCH = 64  # images between two looks at the clock
_SHOWN = 6  # groups of each kind in the report
_SHOWN_PICTURES = 4  # of each group
_LABELS_SHOWN = 10  # suspicious labels in the report
_READING_SHARE = 0.25  # of the time, if the labels are checked too
_COMPARED = ("leak", "contradiction", "exact", "near", "burst")  # kinds that need no model
_CHECKED = ("label", "outlier")  # kinds that need features


@dataclass(frozen=True)
class ImageSet:
    """Readable images in random order.

    Attributes:
        index: The images.
        copies: Grey copies, [N, D] float32; see `Pictures`.
        classes: Number of classes.
    """

    index: Index
    copies: Floats
    classes: int

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self.index)


@dataclass(frozen=True)
class CheckedLabels:
    """What a model knows about the first images of an `ImageSet`.

    Attributes:
        features: Features, [M, D] float32; NaN for an image without features.
        probabilities: Predictions of a model that was not fitted on the image, [M, classes]; NaN for an image
            without a prediction. None if there are none.
    """

    features: Floats
    probabilities: Floats | None


class Checker(Protocol):
    """Checks the labels of images with a model."""

    def __call__(
        self, images: ImageSet, seconds: float, lock: AbstractContextManager[object]
    ) -> CheckedLabels | str:
        """Returns what a model knows, or the reason why it knows nothing.

        Args:
            images: The images.
            seconds: Time after which the check ends.
            lock: Lock that is held while a model computes.
        """


@dataclass(frozen=True)
class RunAudit:
    """The images of a run, and the limit of the audit.

    Attributes:
        splits: Index of each split by its name in findings, such as ``train``.
        classes: Class names in order of label; may be empty.
        limit: Maximum number of images that are read; 0 for no audit.
        threads: Number of threads that read images.
        checker: Checks labels with the features of a model; None without a model.
    """

    splits: Mapping[str, Index]
    classes: Sequence[str]
    limit: int
    threads: int
    checker: Checker | None = None

    def __call__(
        self, seconds: float, lock: AbstractContextManager[object] | None = None
    ) -> AuditPart | None:
        """Returns what the report shows; None if the audit is off or images have several labels.

        Args:
            seconds: Duration of the audit. With less than 1.5 seconds, nothing is checked.
            lock: Lock that is held while a model computes; None without a model in another thread.
        """
        if not self.limit or any(index.labels.ndim > 1 for index in self.splits.values()):
            return None
        if seconds < _LEAST_SECONDS:
            return AuditPart("The images were not checked, because the run had to end in time.", ())
        joined = _Joined(list(self.splits.values()))
        order = np.random.default_rng(_SEED).permutation(len(joined))[: self.limit]
        begin = time.monotonic()
        end = begin + (1 if self.checker is None else _READING_SHARE) * seconds
        hashes: list[bytes | None] = []
        copies = []
        for start in range(0, len(order), _BATCH):
            if hashes and time.monotonic() > end:
                break
            digests, rows = read_copies(_Chosen(joined, order[start : start + _BATCH]), self.threads)
            hashes += digests
            copies.append(rows)
        if not hashes:
            return None
        chosen = _Chosen(joined, order[: len(hashes)])
        splits = list(self.splits)
        pictures = Pictures(
            [chosen.name(at) for at in range(len(chosen))],
            chosen.labels,
            self._names(joined.labels),
            [splits[joined.split_of(at)] for at in chosen.positions],
            hashes,
            np.concatenate(copies),
        )
        result = audit(pictures, _find_neighbours(pictures.copies), None)
        groups = {kind: result.of_kind(kind) for kind in _COMPARED}
        compared = f"{len(chosen):,} of {counted(len(joined), 'image was', 'images were')} compared"
        total = "; ".join(f"{_COUNTED[kind]}: {len(findings)}" for kind, findings in groups.items())
        checked, labels = self._check(
            pictures, chosen, seconds - (time.monotonic() - begin), lock or nullcontext()
        )
        return AuditPart(
            f"{compared}. {total}. {checked}",
            tuple(self._groups({**groups, **labels}, pictures, chosen)),
        )

    def _check(
        self, pictures: Pictures, chosen: _Chosen, seconds: float, lock: AbstractContextManager[object]
    ) -> tuple[str, dict[str, list[Finding]]]:
        """Returns a sentence about the check of labels, and its findings by kind."""
        if self.checker is None:
            return "Labels were not checked, because the model has no features of images.", {}
        if seconds < _LEAST_SECONDS:
            return "Labels were not checked, because the time did not suffice.", {}
        readable = np.flatnonzero(np.isfinite(pictures.copies).all(axis=1))
        images = ImageSet(chosen.select(readable), pictures.copies[readable], len(pictures.classes))
        known = self.checker(images, seconds, lock)
        if isinstance(known, str):
            return f"Labels were not checked: {known}.", {}
        checked = readable[: len(known.features)]
        subset = Pictures(
            [pictures.files[at] for at in checked],
            pictures.labels[checked],
            pictures.classes,
            [pictures.splits[at] for at in checked],
            [pictures.hashes[at] for at in checked],
            pictures.copies[checked],
        )
        result = audit(subset, _find_neighbours(known.features), known.probabilities)
        findings = {
            kind: [
                replace(each, positions=tuple(int(checked[at]) for at in each.positions))
                for each in result.of_kind(kind)
            ]
            for kind in _CHECKED
        }
        labels = (
            f"suspicious labels: {len(findings['label'])}"
            if known.probabilities is not None
            else "the time did not suffice for checking labels"
        )
        count = int(np.isfinite(known.features).all(axis=1).sum())
        return (
            f"{counted(count, 'image was', 'images were')} checked: {labels}; unlike all others: "
            f"{len(findings['outlier'])}.",
            findings,
        )

    def _names(self, labels: NDArray[np.int64]) -> tuple[str, ...]:
        count = int(labels.max(initial=-1)) + 1
        known = [one_line(name) for name in self.classes]
        return tuple(known[label] if label < len(known) else str(label) for label in range(count))

    def _groups(
        self, groups: Mapping[str, Sequence[Finding]], pictures: Pictures, chosen: _Chosen
    ) -> Iterator[AuditGroup]:
        for kind, findings in groups.items():
            for finding in findings[: _LABELS_SHOWN if kind == "label" else _SHOWN]:
                shown = []
                for position in finding.positions[:_SHOWN_PICTURES]:
                    pixels = read_pixels(chosen, position)
                    if pixels is not None:
                        name = one_line(pictures.files[position])
                        shown.append(Picture(pixels, pictures.describe(position), name))
                yield AuditGroup(KINDS[kind], one_line(finding.text), tuple(shown))


def _find_neighbours(vectors: Floats) -> Neighbours:
    """Returns the nearest neighbours of each vector.

    The products of a sample are so small that several threads spend more time on waiting for each other.
    """
    with threadpool_limits(1, "blas"):
        return find_neighbours(vectors)


_COUNTED = {
    "leak": "Groups of duplicates in both training and validation",
    "contradiction": "with different labels",
    "exact": "of other files with the same content",
    "near": "of other near duplicates",
    "burst": "series of similar pictures",
}


class _Joined:
    """The samples of several splits, one after the other."""

    def __init__(self, parts: Sequence[Index]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.labels: NDArray[np.int64] = np.concatenate([np.asarray(part.labels, np.int64) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def split_of(self, position: int) -> int:
        return int(np.searchsorted(self._ends, position, side="right"))

    def place(self, position: int) -> tuple[Index, int]:
        split = self.split_of(position)
        return self._parts[split], position - (int(self._ends[split - 1]) if split else 0)


class _Chosen(Index):
    """Some samples of a `_Joined`, as an index."""

    def __init__(self, joined: _Joined, positions: NDArray[np.int64]) -> None:
        self._joined = joined
        self.positions = positions.tolist()

    def select(self, positions: NDArray[np.int64]) -> _Chosen:
        return _Chosen(self._joined, np.asarray(self.positions, np.int64)[positions])

    @property
    def labels(self) -> NDArray[np.int64]:
        chosen: NDArray[np.int64] = self._joined.labels[self.positions]
        return chosen

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def source(self) -> Path:
        return self._joined.place(0)[0].source

    def name(self, position: int) -> str:
        index, at = self._joined.place(self.positions[position])
        return sample_name(index, at)

    def where(self, position: int) -> str:
        index, at = self._joined.place(self.positions[position])
        return index.where(at)

    def read(self, position: int) -> bytes | memoryview:
        index, at = self._joined.place(self.positions[position])
        return index.read(at)
