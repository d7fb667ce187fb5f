"""How sure an accuracy is: its confidence interval, the majority baseline, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppcls.commands import command_line
from ppcls.errors import counted

_DRAWS = 10_000
_LEVEL = 0.95
_WIDE = 0.1  # width of an interval that hides the difference between most models
_GAP = 0.05  # training accuracy above that of the evaluation, from which more pictures help most
_LOW = 0.9  # training accuracy below which the model is too small, or was trained too briefly
_FEW = 10  # evaluated images of a class, below which its recall says little


@dataclass(frozen=True)
class Certainty:
    """The accuracy of an evaluation, and how sure it is.

    Attributes:
        accuracy: Share of the images that are predicted correctly, 0..1.
        low: Lower end of the interval.
        high: Upper end of the interval.
        images: Number of evaluated images.
        baseline: Accuracy of a model that predicts the most frequent class for every image.
        majority: Name of this class.
    """

    accuracy: float
    low: float
    high: float
    images: int
    baseline: float
    majority: str

    def describe(self) -> str:
        """Returns a sentence with all numbers."""
        return (
            f"accuracy {self.accuracy:.3f}, with 95 % confidence between {self.low:.3f} and {self.high:.3f} "
            f"({counted(self.images, 'image')}); a model that always predicts {self.majority} has "
            f"{self.baseline:.3f}"
        )


def measure_certainty(confusion: NDArray[np.int64], names: Sequence[str]) -> Certainty | None:
    """Returns the accuracy of an evaluation with its interval; None without images.

    Args:
        confusion: Confusion matrix, [classes, classes], one row per true class.
        names: Class names in order of label, one per class.
    """
    images = int(confusion.sum())
    if not images:
        return None
    correct = int(confusion.trace())
    low, high = bootstrap_interval(correct, images)
    counts = confusion.sum(axis=1)
    label = int(counts.argmax())
    return Certainty(correct / images, low, high, images, float(counts[label] / images), names[label])


def bootstrap_interval(correct: int, images: int) -> tuple[float, float]:
    """Returns the ends of the 95 % bootstrap interval of an accuracy.

    Drawing images with replacement gives a binomial number of correct ones, so no image is drawn. If all
    images or none are correct, every draw is equal; the end on the other side is then the exact one (Clopper
    and Pearson 1934).

    Args:
        correct: Number of correct images.
        images: Number of images, > 0.
    """
    tail = (1 - _LEVEL) / 2
    draws = np.random.default_rng(0).binomial(images, correct / images, _DRAWS) / images
    low, high = np.quantile(draws, [tail, 1 - tail])
    if correct == images:
        low = tail ** (1 / images)
    elif correct == 0:
        high = 1 - tail ** (1 / images)
    return float(low), float(high)


def advise(
    confusion: NDArray[np.int64],
    names: Sequence[str],
    train_accuracy: float | None = None,
    pictures: str | None = None,
    *,
    from_scratch: bool = False,
) -> str:
    """Returns one sentence about what to do next, or an empty text without images.

    Args:
        confusion: Confusion matrix, [classes, classes], one row per true class.
        names: Class names in order of label, one per class.
        train_accuracy: Accuracy on the training images, 0..1; None if unknown.
        pictures: Folder whose labels ``ppcls dataset audit`` can check; None for data in another form.
        from_scratch: Whether the run started with random weights.
    """
    certainty = measure_certainty(confusion, names)
    if certainty is None:
        return ""
    audit = command_line("dataset", "audit", pictures) if pictures is not None else ""
    counts = confusion.sum(axis=1)
    if certainty.low <= certainty.baseline and np.count_nonzero(counts) > 1:
        weights = ", start from pretrained weights," if from_scratch else ""
        return (
            "Next: the model is not certainly better than always predicting one class; check the labels"
            f"{f' with `{audit}`' if audit else ''}{weights} or train longer (--epochs)."
        )
    wrong = counts - confusion.diagonal()
    if not wrong.any():
        return _more_validation(certainty)
    if train_accuracy is not None and train_accuracy < _LOW and train_accuracy - certainty.accuracy < _GAP:
        return (
            f"Next: the accuracy on the training images is only {train_accuracy:.3f}, so train longer, "
            "or use a larger model (--model) or larger images (--image-size)."
        )
    if certainty.high - certainty.low > _WIDE:
        return _more_validation(certainty)
    label = int(wrong.argmax())
    others = confusion[label].copy()
    others[label] = 0
    name = names[label]
    other = names[int(others.argmax())]
    reason = (
        f"{wrong[label]} of its {counted(counts[label], 'image is', 'images are')} wrong, mostly as {other}"
    )
    if train_accuracy is not None and train_accuracy - certainty.accuracy < _GAP:
        return (
            f"Next: look for wrong labels of {name} and {other}{f' (`{audit}`)' if audit else ''}, then "
            f"try a larger model; {name} has the most errors: {reason}."
        )
    return f"Next: add training pictures of {name} that look like {other}; {reason}."


def _more_validation(certainty: Certainty) -> str:
    return (
        "Next: add validation pictures before you compare models, because "
        f"{counted(certainty.images, 'image leaves', 'images leave')} the accuracy between "
        f"{certainty.low:.3f} and {certainty.high:.3f}."
    )
