"""Formulas of metrics for images with one class."""

from __future__ import annotations

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor
from paddle.nn import functional as F

Floats = NDArray[np.float64]
# Finer than float32 near 1 (2**-24). Sums of 8 billion images still fit into int64.
PROBABILITY_UNIT = 2.0**-30


def topk_correct(logits: Tensor, label: Tensor, topk: tuple[int, ...]) -> Tensor:
    """Counts the rows whose label is among the ``k`` highest logits.

    Args:
        logits: [B, C], any floating dtype. `paddle.topk` determines the order of equal logits.
        label: [B] int64; or [B, C] float, class probabilities, of which the largest one is the label.
        topk: Values of k in 1..C.

    Returns:
        One number per k, [len(topk)] int64, on the device of ``logits``.
    """
    if label.ndim == 2:
        label = label.argmax(axis=-1)
    # float32, because Paddle 3.3 has no kernel of `topk` for bfloat16 on CPUs.
    predicted = paddle.topk(logits.astype("float32"), max(topk), axis=-1)[1]
    hit = (predicted == label.unsqueeze(-1)).astype("int64")
    return paddle.stack([hit[:, :k].sum() for k in topk])


def class_hits(logits: Tensor, label: Tensor) -> Tensor:
    """Counts correct predictions and images per class. See `topk_correct` for the arguments.

    Returns:
        [2 * C] int64, on the device of ``logits``: numbers of correct predictions, then numbers of images.
    """
    label, predicted = _classes(logits, label)
    classes = logits.shape[-1]
    # Wrong predictions are counted in another bin, which is cut off. Selecting the correct ones would give a
    # tensor whose size only the device knows, and the host would have to wait for it.
    right = paddle.where(predicted == label, label, paddle.full_like(label, classes))
    return paddle.concat(
        [paddle.bincount(labels, minlength=classes)[:classes] for labels in (right, label)]
    ).astype("int64")


def confusion(logits: Tensor, label: Tensor) -> Tensor:
    """Returns the confusion matrix, flattened to [C * C] int64. Rows are labels, and columns are predictions.

    See `topk_correct` for the arguments.
    """
    label, predicted = _classes(logits, label)
    classes = logits.shape[-1]
    # Rows with non-finite logits may have no highest logit. They have no predicted class and are not counted.
    known = (predicted >= 0) & (predicted < classes)
    pair = paddle.where(known, label * classes + predicted, paddle.full_like(label, classes**2))
    return paddle.bincount(pair, minlength=classes**2)[: classes**2].astype("int64")


def _classes(logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Returns labels and predicted classes, [B] int64 each."""
    if label.ndim == 2:
        label = label.argmax(axis=-1)
    # Not `argmax`, so that equal logits give the same class as in `topk_correct`.
    return label, paddle.topk(logits.astype("float32"), 1, axis=-1)[1].squeeze(-1)


def recalls(counts: Floats) -> Floats:
    """Returns the recall of each class, [C]; NaN for classes without images.

    Args:
        counts: Sum of the results of `class_hits`, [2 * C].
    """
    right, images = counts.reshape(2, -1)
    result: Floats = np.divide(right, images, out=np.full(len(images), np.nan), where=images > 0)
    return result


def summarize_recalls(counts: Floats, each: bool) -> list[float]:
    """Returns mean and minimum of the recalls of all classes, and then each recall if ``each``.

    Args:
        counts: Sum of the results of `class_hits`, [2 * C].
        each: Whether to return the recall of each class, too.
    """
    values = recalls(counts)
    return [float(np.nanmean(values)), float(np.nanmin(values)), *(values.tolist() if each else [])]


def macro_averages(counts: Floats) -> list[float]:
    """Returns precision, recall and F1, averaged over classes.

    Classes that neither occur nor are predicted are ignored. A quotient with denominator 0 is 0.

    Args:
        counts: Sum of the results of `confusion`, [C * C].
    """
    shares, occurs = _class_shares(counts)
    return [float(values[occurs].mean()) for values in shares]


def class_precision_and_f1(counts: Floats) -> list[float]:
    """Returns the precisions of all classes, followed by the F1 scores of all classes, [2 * C].

    The values of classes that neither occur nor are predicted are NaN.

    Args:
        counts: Sum of the results of `confusion`, [C * C].
    """
    (precision, _, f1), occurs = _class_shares(counts)
    return [
        value if known else float("nan")
        for values in (precision, f1)
        for value, known in zip(values.tolist(), occurs, strict=True)
    ]


def _class_shares(counts: Floats) -> tuple[list[Floats], NDArray[np.bool_]]:
    """Returns precision, recall and F1 of each class, and True for classes that occur or are predicted."""
    classes = round(len(counts) ** 0.5)
    matrix = counts.reshape(classes, classes)
    right = matrix.diagonal()
    images = matrix.sum(axis=1)
    predictions = matrix.sum(axis=0)
    shares = [(right, predictions), (right, images), (2 * right, images + predictions)]
    return [_quotient(above, below) for above, below in shares], images + predictions > 0


def _quotient(above: Floats, below: Floats) -> Floats:
    quotient: Floats = np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
    return quotient


def calibration_counts(logits: Tensor, label: Tensor, bins: int) -> Tensor:
    """Counts images by the probability of their predicted class.

    The interval from 0 to 1 is divided into equal bins. See `topk_correct` for the other arguments.

    Args:
        logits: [B, C].
        label: [B] int64, or [B, C] float.
        bins: Number of bins.

    Returns:
        [3 * bins] int64, on the device of ``logits``: the number of images in each bin, then the numbers of
        correct predictions, then the sums of the probabilities. Probabilities are in units of
        ``PROBABILITY_UNIT`` and rounded to integers, so the sums do not depend on the order of images.
    """
    label, predicted = _classes(logits, label)
    confidence = F.softmax(logits.astype("float32"), axis=-1).max(axis=-1)
    # The probability of a prediction with non-finite logits counts as 0.
    confidence = paddle.where(confidence.isfinite(), confidence, paddle.zeros_like(confidence))
    # A bin includes its upper bound and not its lower one, as in Guo et al. 2017.
    place = ((confidence * bins).ceil().astype("int64") - 1).clip(min=0, max=bins - 1)
    one_hot = F.one_hot(place, bins).astype("int64")
    units = (confidence.astype("float64") / PROBABILITY_UNIT).round().astype("int64")
    columns = paddle.stack([paddle.ones_like(label), (predicted == label).astype("int64"), units], axis=1)
    return (columns.unsqueeze(-1) * one_hot.unsqueeze(1)).sum(axis=0).flatten()


def calibration_error(counts: Floats) -> float:
    """Returns the expected calibration error.

    Args:
        counts: Sum of the results of `calibration_counts`, [3 * bins].
    """
    images, right, units = counts.reshape(3, -1)
    return float(np.abs(right - units * PROBABILITY_UNIT).sum() / images.sum())


def true_at_false_positives(
    scores: NDArray[np.float32], labels: NDArray[np.float64], max_fpr: float
) -> float:
    """Returns the highest true positive rate for which the false positive rate is at most ``max_fpr``.

    Args:
        scores: Logits of two classes, [N, 2]. The second class is positive.
        labels: [N], 0 or 1.
        max_fpr: Maximum false positive rate, 0..1.

    Returns:
        A rate in 0..1; NaN if there are no positives or no negatives, or if scores are not finite.
    """
    if len(np.unique(labels)) < 2 or not np.isfinite(scores).all():
        return float("nan")
    # roc_curve returns rates for decreasing thresholds. No image is above the first threshold.
    from sklearn.metrics import roc_curve  # slow to import

    false, true, _ = roc_curve(labels, scores[:, 1] - scores[:, 0], drop_intermediate=False)
    return float(true[false <= max_fpr].max())
