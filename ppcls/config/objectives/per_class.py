"""Metrics that look at each class."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ppcls.config.base.fields import Fraction
from ppcls.config.sections.objective import MetricSpec

MOST_CLASSES = 1000  # of a confusion matrix: so many squared are added up at each batch


class PerClassRecall(MetricSpec):
    """Recall of each class, the share of its images that are taken for it: their mean, and the lowest.

    The mean is the balanced accuracy: each class counts as much, however many images it has. Classes without
    images don't count.
    """

    whole: ClassVar[bool] = True
    each: bool = Field(False, description="tell `recall_0`, `recall_1` … of all classes, too")

    @property
    def names(self) -> tuple[str, ...]:
        """Two, and perhaps those of classes."""
        return ("recall_mean", "recall_min")


class ConfusionMatrix(MetricSpec):
    """Precision, recall and F1 by the confusion matrix: means over classes that occur or are predicted.

    As scikit-learn's with ``average="macro"``; what has no images, or no predictions, counts 0. At most
    1,000 classes. ``tools/eval.py --confusion FILE`` writes the matrix.
    """

    whole: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """Three."""
        return ("macro_precision", "macro_recall", "macro_f1")


class TprAtFpr(MetricSpec):
    """Of two classes, the largest share of the second's images that a threshold finds at few false alarms."""

    whole: ClassVar[bool] = True
    max_fpr: Fraction = Field(
        0.001, description="the most false alarms, as a share of the first class's images"
    )
