"""Audits the images of a run for its report, within a limit of images and of time.

Decisions:

- Pictures are compared by small grey copies instead of features, so the part needs no model and no GPU, and
  can run in a thread while the run computes heat maps. Suspicious labels and outliers need features:
  ``ppcls dataset audit`` finds them.
- Images are read in random order until a limit is reached, so a sample of a large data set is checked. A
  duplicate is found only if both copies are in the sample, and the report says how many images were read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.audit.findings import KINDS, audit
from ppcls.audit.images import Pictures, read_copies, read_pixels
from ppcls.audit.neighbours import find_neighbours
from ppcls.data.index.protocol import Index, sample_name
from ppcls.files import one_line
from ppcls.report.thumbnail import AuditGroup, AuditPart, Picture

_SEED = 0
_BATCH = 64  # images between two looks at the clock
_SHOWN = 6  # groups of each kind in the report
_SHOWN_PICTURES = 4  # of each group
_REPORTED = ("leak", "contradiction", "exact", "near", "burst")  # kinds that need no model


@dataclass(frozen=True)
class RunAudit:
    """The images of a run, and the limit of the audit.

    Attributes:
        splits: Index of each split by its name in findings, such as ``train``.
        classes: Class names in order of label; may be empty.
        limit: Maximum number of images that are read; 0 for no audit.
        threads: Number of threads that read images.
    """

    splits: Mapping[str, Index]
    classes: Sequence[str]
    limit: int
    threads: int

    def __call__(self, seconds: float) -> AuditPart | None:
        """Returns what the report shows; None if the audit is off or images have several labels.

        Args:
            seconds: Time after which no more images are read.
        """
        if not self.limit or any(index.labels.ndim > 1 for index in self.splits.values()):
            return None
        joined = _Joined(list(self.splits.values()))
        order = np.random.default_rng(_SEED).permutation(len(joined))[: self.limit]
        end = time.monotonic() + seconds
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
        result = audit(pictures, find_neighbours(pictures.copies), None)
        groups = {kind: result.of_kind(kind) for kind in _REPORTED}
        counted = f"{len(chosen):,} of {len(joined):,} images were compared"
        total = "; ".join(f"{_COUNTED[kind]}: {len(findings)}" for kind, findings in groups.items())
        return AuditPart(f"{counted}. {total}.", tuple(self._groups(groups, pictures, chosen)))

    def _names(self, labels: NDArray[np.int64]) -> tuple[str, ...]:
        count = int(labels.max(initial=-1)) + 1
        known = [one_line(name) for name in self.classes]
        return tuple(known[label] if label < len(known) else str(label) for label in range(count))

    def _groups(
        self, groups: Mapping[str, Sequence[Any]], pictures: Pictures, chosen: _Chosen
    ) -> Iterator[AuditGroup]:
        for kind, findings in groups.items():
            for finding in findings[:_SHOWN]:
                shown = []
                for position in finding.positions[:_SHOWN_PICTURES]:
                    pixels = read_pixels(chosen, position)
                    if pixels is not None:
                        name = one_line(pictures.files[position])
                        shown.append(Picture(pixels, pictures.describe(position), name))
                yield AuditGroup(KINDS[kind], one_line(finding.text), tuple(shown))


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
