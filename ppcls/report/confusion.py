"""Which classes are taken for which, for a run's report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppcls.report.record import Mistake

CELLS, PAIRS = 20_000, 20  # shown at most


@dataclass(frozen=True)
class Pair:
    """A class and one that it is taken for.

    Attributes:
        label: Name of the class.
        predicted: Name of the other one.
        count: How often.
        share: Of all samples of the class, 0..1.
    """

    label: str
    predicted: str
    count: int
    share: float


def confusion_csv(matrix: NDArray[np.int64]) -> str:
    """Returns a confusion matrix as CSV: a row a label, a column a class that it was taken for."""
    classes = range(len(matrix))
    rows = [["label", *classes], *([k, *row] for k, row in zip(classes, matrix.tolist(), strict=True))]
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def class_name(names: Sequence[str], label: int) -> str:
    """Returns a class's name; its number where it has none."""
    return names[label] if 0 <= label < len(names) else str(label)


def describe_mistake(mistake: Mistake, names: Sequence[str]) -> str:
    """Returns ``cat, taken for dog (98%), loss 4.1``."""
    label, predicted = (class_name(names, each) for each in (mistake.label, mistake.predicted))
    return f"{label}, taken for {predicted} ({mistake.confidence:.0%}), loss {mistake.loss:.3g}"


def cells(confusion: NDArray[np.int64], most: int = CELLS) -> list[list[int]]:
    """Returns [label, predicted, count] of all pairs that occurred; of too many the most frequent."""
    label, predicted = confusion.nonzero()
    counts = confusion[label, predicted]
    kept = np.sort(np.argsort(-counts, kind="stable")[:most])
    found: list[list[int]] = np.stack([label, predicted, counts], axis=1)[kept].tolist()
    return found


def confused_pairs(confusion: NDArray[np.int64], names: Sequence[str], most: int = PAIRS) -> list[Pair]:
    """Returns the pairs of different classes that were confused most often, the most frequent first."""
    totals = confusion.sum(axis=1)
    wrong = confusion - np.diag(np.diag(confusion))
    label, predicted = wrong.nonzero()
    order = np.argsort(-wrong[label, predicted], kind="stable")[:most]
    return [
        Pair(
            class_name(names, int(label[each])),
            class_name(names, int(predicted[each])),
            int(wrong[label[each], predicted[each]]),
            float(wrong[label[each], predicted[each]] / totals[label[each]]),
        )
        for each in order
    ]
