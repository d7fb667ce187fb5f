"""Evaluates predictions for the report: confusion matrix, recall per class, reliability, mistakes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.files import one_line, read_regular
from ppcls.files.tables import format_table, mark_formula, unmark_formula
from ppcls.report.record import LabelMistake, LabelOutcomes, Mistake, Outcomes

MAX_CELLS = 20_000
MAX_PAIRS = 20
CONFUSION_FILE = "confusion.csv"
MISTAKES_FILE = "mistakes.csv"
_COLUMNS = ("path", "label", "prediction", "score")
_LABEL_COLUMNS = ("path", "missed", "wrong", "wrong_labels", "loss")
_BINS = 10  # bins of the reliability diagram, which shows the accuracy against the confidence


@dataclass(frozen=True)
class ConfusedPair:
    """A true class and a wrong predicted class.

    Attributes:
        label: Name of the true class.
        predicted: Name of the predicted class.
        count: Number of samples of the true class with this prediction.
        share: ``count`` divided by the number of all samples of the true class, 0..1.
    """

    label: str
    predicted: str
    count: int
    share: float


@dataclass(frozen=True)
class ClassRecall:
    """Recall of one class.

    Attributes:
        name: Name of the class.
        correct: Number of its samples that were predicted correctly.
        samples: Number of its samples, at least 1.
    """

    name: str
    correct: int
    samples: int


@dataclass(frozen=True)
class LabelScores:
    """Precision, recall and F1 of one label. A quotient with the divisor 0 is 0.

    Attributes:
        name: Name of the label.
        true: Number of samples for which the label is true.
        predicted: Number of samples for which the label is predicted.
        correct: Number of samples for which both is the case.
    """

    name: str
    true: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Share of the predictions that are correct."""
        return self.correct / max(1, self.predicted)

    @property
    def recall(self) -> float:
        """Share of the samples with the label for which it is predicted."""
        return self.correct / max(1, self.true)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.correct / max(1, self.true + self.predicted)


def label_scores(outcomes: LabelOutcomes, names: Sequence[str]) -> list[LabelScores]:
    """Returns the scores of each label that occurs or is predicted, the lowest F1 first."""
    counts = zip(outcomes.true.tolist(), outcomes.predicted.tolist(), outcomes.correct.tolist(), strict=True)
    scores = [LabelScores(class_name(names, label), *each) for label, each in enumerate(counts)]
    return sorted((each for each in scores if each.true or each.predicted), key=lambda each: each.f1)


def describe_label_mistake(mistake: LabelMistake, names: Sequence[str]) -> str:
    """Returns a mistake as text, such as ``missed: cat (3%); wrong: dog (98%); loss 4.1``."""
    missed = [f"{class_name(names, label)} ({share:.0%})" for label, share in mistake.labels if share <= 0.5]
    wrong = [f"{class_name(names, label)} ({share:.0%})" for label, share in mistake.labels if share > 0.5]
    parts = [
        f"{title}: {', '.join(labels)}" for title, labels in (("missed", missed), ("wrong", wrong)) if labels
    ]
    if more := mistake.wrong - len(mistake.labels):
        parts.append(f"{more} more wrong labels")
    return "; ".join([*parts, f"loss {mistake.loss:.3g}"])


def confusion_csv(matrix: NDArray[np.int64], names: Sequence[str] = ()) -> str:
    """Returns a confusion matrix as CSV, with one row per label and one column per predicted class.

    Args:
        matrix: Confusion matrix, [classes, classes].
        names: Class names in order of label. Classes without a name are numbers.
    """
    classes = [class_name(names, label) for label in range(len(matrix))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    cells = [mark_formula(name) for name in classes]
    writer.writerow(["label", *cells])
    writer.writerows([name, *row] for name, row in zip(cells, matrix.tolist(), strict=True))
    return text.getvalue()


def read_confusion(path: Path) -> tuple[NDArray[np.int64], list[str]]:
    """Returns the confusion matrix, [classes, classes], and the names of the classes in ``confusion.csv``."""
    (_, *names), *rows = csv.reader(io.StringIO(read_regular(path).decode("utf-8-sig")))
    matrix = np.array([[int(cell) for cell in cells] for _, *cells in rows], np.int64)
    return matrix, [unmark_formula(name) for name in names]


def class_name(names: Sequence[str], label: int) -> str:
    """Returns the name of a class, or its number if it has no name."""
    return one_line(names[label]) if 0 <= label < len(names) else str(label)


def describe_mistake(mistake: Mistake, names: Sequence[str]) -> str:
    """Returns a mistake as text, such as ``cat, predicted as dog (98%), loss 4.1``."""
    label = class_name(names, mistake.label)
    predicted = class_name(names, mistake.predicted)
    return f"{label}, predicted as {predicted} ({mistake.confidence:.0%}), loss {mistake.loss:.3g}"


def nonzero_cells(confusion: NDArray[np.int64], max_cells: int = MAX_CELLS) -> list[list[int]]:
    """Returns [label, predicted, count] of the nonzero cells.

    If there are more than ``max_cells``, only the cells with the highest counts are returned.
    """
    label, predicted = confusion.nonzero()
    counts = confusion[label, predicted]
    largest = np.sort(np.argsort(-counts, kind="stable")[:max_cells])
    cells: list[list[int]] = np.stack([label, predicted, counts], axis=1)[largest].tolist()
    return cells


def confused_pairs(
    confusion: NDArray[np.int64], names: Sequence[str], max_pairs: int = MAX_PAIRS
) -> list[ConfusedPair]:
    """Returns the most frequently confused pairs of classes, the most frequent first."""
    totals = confusion.sum(axis=1)
    cells = nonzero_cells(confusion - np.diag(np.diag(confusion)))
    return [
        ConfusedPair(
            class_name(names, label), class_name(names, predicted), count, float(count / totals[label])
        )
        for label, predicted, count in sorted(cells, key=lambda cell: -cell[2])[:max_pairs]
    ]


def class_recalls(confusion: NDArray[np.int64], names: Sequence[str]) -> list[ClassRecall]:
    """Returns the recall of each class that has samples, the lowest recall first."""
    rows = zip(confusion.diagonal().tolist(), confusion.sum(axis=1).tolist(), strict=True)
    recalls = [
        ClassRecall(class_name(names, label), correct, samples)
        for label, (correct, samples) in enumerate(rows)
        if samples
    ]
    return sorted(recalls, key=lambda recall: recall.correct / recall.samples)


@dataclass(frozen=True)
class ReliabilityBin:
    """The images whose predicted class has a probability in one interval.

    Attributes:
        confidence: Mean probability of the predicted class, 0..1. It is computed from a histogram, so it is
            accurate to half a histogram bin.
        accuracy: Share of correct predictions, 0..1.
        images: Number of images, at least 1.
    """

    confidence: float
    accuracy: float
    images: int


def reliability_bins(confidences: NDArray[np.int64]) -> list[ReliabilityBin]:
    """Returns the bins of the diagram that have images, in ascending order of confidence.

    Args:
        confidences: See `Outcomes.confidences`. The number of bins must be a multiple of 10.
    """
    width = confidences.shape[1]
    centres = (np.arange(width) + 0.5) / width
    bins = []
    for part in np.split(np.arange(width), _BINS):
        wrong, correct = confidences[:, part]
        images = int((wrong + correct).sum())
        if images:
            mean = float(((wrong + correct) * centres[part]).sum() / images)
            bins.append(ReliabilityBin(mean, float(correct.sum() / images), images))
    return bins


def expected_calibration_error(bins: list[ReliabilityBin]) -> float:
    """Returns the mean over images of the difference between accuracy and confidence of their bin."""
    images = sum(bin_.images for bin_ in bins)
    gaps = sum(abs(bin_.accuracy - bin_.confidence) * bin_.images for bin_ in bins)
    return gaps / images if images else float("nan")


def mistakes_csv(
    outcomes: Outcomes | LabelOutcomes, names: Sequence[str], sample_name: Callable[[int], str]
) -> str:
    """Returns a table of all mistakes as CSV, those with the highest losses first.

    For one label per image, the columns are path, label, prediction and score, the probability of the
    prediction. For several labels, they are path, the missed and the wrongly predicted labels (the four with
    the highest losses), the number of all wrong labels, and the loss.

    Args:
        outcomes: Results per sample.
        names: Class names in order of label. Classes without a name are numbers.
        sample_name: Function that returns the path of the sample at a position of the evaluated data.
    """
    if isinstance(outcomes, LabelOutcomes):
        return format_table(_LABEL_COLUMNS, _label_rows(outcomes, names, sample_name))
    rows = [
        {
            "path": one_line(sample_name(mistake.position)),
            "label": class_name(names, mistake.label),
            "prediction": class_name(names, mistake.predicted),
            "score": f"{mistake.confidence:.6f}",
        }
        for mistake in outcomes.mistakes
    ]
    return format_table(_COLUMNS, rows)


def _label_rows(
    outcomes: LabelOutcomes, names: Sequence[str], sample_name: Callable[[int], str]
) -> list[dict[str, str]]:
    rows = []
    for mistake in outcomes.mistakes:
        missed = [class_name(names, label) for label, share in mistake.labels if share <= 0.5]
        wrong = [class_name(names, label) for label, share in mistake.labels if share > 0.5]
        rows.append(
            {
                "path": one_line(sample_name(mistake.position)),
                "missed": "; ".join(missed),
                "wrong": "; ".join(wrong),
                "wrong_labels": str(mistake.wrong),
                "loss": f"{mistake.loss:.6g}",
            }
        )
    return rows
