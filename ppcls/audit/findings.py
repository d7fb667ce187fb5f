"""The findings of an audit, in order of what the user should look at first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ppcls.audit.duplicates import DuplicateGroups, find_bursts, find_duplicates
from ppcls.audit.labels import find_suspicious_labels
from ppcls.audit.neighbours import Neighbours
from ppcls.errors import counted

if TYPE_CHECKING:  # only for annotations
    from ppcls.audit.images import Pictures

Floats = NDArray[np.float32]
_OUTLIER_FACTOR = 4.5  # median absolute deviations above the median distance
_LEAST_PICTURES = 20  # from which distances are compared
_MOST_OUTLIERS = 0.02  # share of the pictures
_SMALL_CLASS = 10
_SMALL_SHARE = 0.05  # of the median size of the classes


@dataclass(frozen=True)
class Finding:
    """One finding: some pictures, and what is wrong with them.

    Attributes:
        kind: Kind of the finding, a key of ``KINDS``.
        positions: Positions of the pictures. May be empty.
        text: What was found, such as the suggested class.
        score: Number by which findings of the kind are ranked, the highest first.
        suggested: Suggested label; None without one.
        redundant: Positions of pictures that can be removed.
    """

    kind: str
    positions: tuple[int, ...]
    text: str
    score: float = 0.0
    suggested: int | None = None
    redundant: tuple[int, ...] = ()


# The kinds in the order in which they are shown, with their explanations.
KINDS = {
    "leak": "Duplicates in several splits. They make the accuracy of the evaluation too high.",
    "contradiction": "Duplicates with different labels. At most one label of a group is right.",
    "label": "Suspicious labels: a model that was fitted on the other pictures predicts another class.",
    "exact": "Files with the same content, in one split and class.",
    "near": "Files that show the same picture, in one split and class.",
    "outlier": "Pictures unlike all others. They may not belong to the data set.",
    "burst": "Series of similar pictures with consecutive names, such as bursts or frames of a video. Keep "
    "each series in one split.",
    "small": "Classes with few pictures, compared with the others.",
}


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        pictures: The pictures.
        findings: The findings, sorted by kind and score.
        unreadable: Number of pictures that can't be read.
        accuracy: Share of the pictures whose held-out prediction is their label; None without predictions.
        groups: Groups of duplicates.
        notes: Sentences about what was not checked.
    """

    pictures: Pictures
    findings: tuple[Finding, ...]
    unreadable: int
    accuracy: float | None
    groups: DuplicateGroups
    notes: tuple[str, ...] = field(default=())

    def of_kind(self, kind: str) -> list[Finding]:
        """Returns the findings of a kind, the most important first."""
        return [finding for finding in self.findings if finding.kind == kind]


def audit(
    pictures: Pictures,
    neighbours: Neighbours,
    probabilities: Floats | None,
    notes: Sequence[str] = (),
    alike: Neighbours | None = None,
) -> Audit:
    """Returns all findings.

    Args:
        pictures: The pictures.
        neighbours: Neighbours by the features of a model.
        probabilities: Held-out predictions, [N, classes]; NaN for pictures without one. None without a model.
        notes: Sentences about what was not checked.
        alike: Neighbours by the grey copies, for outliers; None if these are part of the features.
    """
    groups = find_duplicates(pictures, neighbours)
    compared = [neighbours] if alike is None else [neighbours, alike]
    findings = [*_duplicate_findings(pictures, groups), *_outliers(compared)]
    accuracy = None
    if probabilities is not None:
        contradicting = {at for each in findings if each.kind == "contradiction" for at in each.positions}
        for position, suggested, score in find_suspicious_labels(probabilities, pictures.labels):
            text = (
                f"labelled {pictures.classes[int(pictures.labels[position])]}, predicted "
                f"{pictures.classes[suggested]} ({probabilities[position, suggested]:.2f} against "
                f"{probabilities[position, pictures.labels[position]]:.2f})"
            )
            text += "; see also its duplicates" if position in contradicting else ""
            findings.append(Finding("label", (position,), text, score, suggested))
        known = np.isfinite(probabilities).all(axis=1)
        if known.any():
            accuracy = float((probabilities[known].argmax(axis=1) == pictures.labels[known]).mean())
    redundant = {tuple(group) for group in groups.all}
    for burst in find_bursts(pictures, neighbours):
        if tuple(burst) not in redundant:
            findings.append(Finding("burst", tuple(burst), counted(len(burst), "picture"), len(burst)))
    findings += _small_classes(pictures)
    order = list(KINDS)
    findings.sort(key=lambda each: (order.index(each.kind), -each.score, each.positions))
    unreadable = sum(not np.isfinite(copy[0]) for copy in pictures.copies)
    return Audit(pictures, tuple(findings), unreadable, accuracy, groups, tuple(notes))


def _duplicate_findings(pictures: Pictures, groups: DuplicateGroups) -> list[Finding]:
    """Returns one finding per group of duplicates, of the most serious kind that applies."""
    findings = []
    for group in groups.all:
        labels = {int(pictures.labels[position]) for position in group}
        splits = {pictures.splits[position] for position in group}
        same = len({pictures.hashes[position] for position in group}) == 1
        how = "same content" if same else "same picture"
        kind = "exact" if same else "near"
        text = f"{counted(len(group), 'file')}, {how}"
        redundant: tuple[int, ...] = tuple(group[1:])
        if len(splits) > 1:
            kind = "leak"
            text += f", in {' and '.join(sorted(splits))}"
            # The validation images are kept, so that their number does not change.
            trained = [position for position in group if pictures.splits[position] == "train"]
            redundant = tuple(trained)
        if len(labels) > 1:
            kind = "contradiction"
            text += f", labelled {' and '.join(pictures.classes[label] for label in sorted(labels))}"
            redundant = ()  # which label is right is the user's decision
        findings.append(Finding(kind, tuple(group), text, len(group), None, redundant))
    return findings


def _outliers(compared: Sequence[Neighbours]) -> list[Finding]:
    """Returns the pictures that are far from their tenth neighbour, so a few equal strangers count too.

    Grey copies find strangers that the features of a model do not: among clothes on black, photographs have
    features of a fabric, but fill the picture.

    Args:
        compared: Neighbours by the features and by the grey copies.
    """
    scores = np.max([_deviations(each) for each in compared], axis=0)
    far = np.flatnonzero(scores > _OUTLIER_FACTOR)
    far = far[np.argsort(-scores[far], kind="stable")][: max(10, int(_MOST_OUTLIERS * len(scores)))]
    return [
        Finding(
            "outlier",
            (position,),
            f"{scores[position]:.1f} deviations farther from other pictures than usual",
            float(scores[position]),
        )
        for position in far.tolist()
    ]


def _deviations(neighbours: Neighbours) -> NDArray[np.float64]:
    """Returns by how many median deviations each picture is too far from its last neighbour, [N].

    Without enough pictures, and for pictures without a neighbour, the result is minus infinity.
    """
    distances = neighbours.distances
    finite = np.isfinite(distances)
    last = np.where(finite, distances, -np.inf).max(axis=1).astype(np.float64)
    known = finite.any(axis=1)
    if known.sum() < _LEAST_PICTURES:
        return np.full(len(last), -np.inf)
    median = float(np.median(last[known]))
    deviation = float(np.median(np.abs(last[known] - median))) or 1e-6
    result: NDArray[np.float64] = (last - median) / deviation
    return result


def _small_classes(pictures: Pictures) -> list[Finding]:
    counts = np.bincount(pictures.labels, minlength=len(pictures.classes))
    typical = float(np.median(counts))
    limit = max(_SMALL_CLASS, _SMALL_SHARE * typical)
    return [
        Finding(
            "small",
            (),
            f"{pictures.classes[label]}: {counted(counts[label], 'picture')}",
            -float(counts[label]),
        )
        for label in np.flatnonzero(counts < limit).tolist()
    ]
